"""A real Spark, on two cores of this machine, whose tasks may fail three times."""

from __future__ import annotations

import gc
import importlib
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

import hocket


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """One session of Spark's for all tests, since to start Java takes seconds."""
    before = dict(os.environ)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)  # where the tests themselves are
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # of what Spark is not made for yet, and sockets that it leaves to the collector
        sql: Any = importlib.import_module("pyspark.sql")
        builder = sql.SparkSession.builder.master("local[2,4]").appName("hocket's tests")
        for name, value in {
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.session.timeZone": "UTC",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
        }.items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
        session.sparkContext.setLogLevel("OFF")
        yield session
        gateway = session.sparkContext._gateway
        session.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()
        assert gateway.proc.wait(30) is not None
        gc.collect()
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def rows_session() -> Iterator[hocket.SessionContext]:
    """A session of ours, in this process."""
    with hocket.init(num_cpus=2, engine="inprocess") as context:
        yield context
