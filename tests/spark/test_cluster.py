"""Executors in processes of their own, as on several machines; and what a program leaves when it ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

PROGRAM = """
import os, sys, warnings
warnings.simplefilter("ignore")
from pyspark.sql import SparkSession
import hocket
from hocket import data, spark as hocket_spark, train
from hocket.train.world import WorldConfig, get_world

folder = sys.argv[1]
builder = SparkSession.builder.master("local-cluster[2,1,1024]")
for name, value in {
    "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.executor.memory": "512m",
    "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
    "spark.local.dir": os.environ["TMPDIR"],
}.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("OFF")

def add(config):
    values = get_world("add").all_gather_object((train.get_context().get_world_rank(), os.getppid()))
    train.report({"ranks": [rank for rank, _ in values], "workers": len({pid for _, pid in values})})

try:
    data.from_spark(spark.range(10))
except ValueError as error:
    print(str(error).partition(".")[0])
with hocket.init(num_cpus=2, engine="local"):
    rows = data.from_spark(spark.range(0, 1000, 1, 4), path=f"{folder}/rows")
    print(rows.count(), sum(row["id"] for row in rows.take_all()))
    print(data.range(100).to_spark(spark, path=f"{folder}/more").count())
print(hocket_spark.run(train.DataParallelTrainer(
    add, train_loop_config={}, backend_config=WorldConfig(), scaling_config=train.ScalingConfig(num_workers=2),
    run_config=train.RunConfig(storage_path=f"{folder}/runs"),
)).metrics)
spark.stop()
"""

ALONE = """
import warnings
warnings.simplefilter("ignore")
from pyspark.sql import SparkSession
import hocket
from hocket import data

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config(
    "spark.ui.showConsoleProgress", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
with hocket.init(num_cpus=2, engine="local"):
    rows = data.from_spark(spark.range(10))
    print(rows.map_batches(lambda batch: batch).to_spark(spark).count())
spark.stop()
"""


def run(program: str, folder: Path) -> str:
    """Run a program that has a folder of its own for temporary files; see that it leaves none there, and no process."""
    temporary = folder / "temporary"
    temporary.mkdir()
    environment = {
        **os.environ,
        "TMPDIR": str(temporary),
        "JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={temporary}",
        "PYSPARK_PYTHON": sys.executable,
    }
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder)],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    left = [path.name for path in temporary.iterdir() if path.name.startswith("hocket")]
    assert left == []
    assert [process for process in psutil.process_iter() if is_of(process, str(temporary))] == []
    return done.stdout


def is_of(process: psutil.Process, temporary: str) -> bool:
    try:
        return process.environ().get("TMPDIR") == temporary and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:  # another user's, or gone
        return False


def test_executors_elsewhere_write_read_and_train(tmp_path: Path) -> None:
    refusal, *found = run(PROGRAM, tmp_path).splitlines()
    assert refusal.startswith("from_spark() received no path, but Spark runs on other machines, which")
    assert found == ["1000 499500", "100", "{'ranks': [0, 1], 'workers': 2}"]


def test_a_program_leaves_no_temporary_file_and_no_process(tmp_path: Path) -> None:
    assert run(ALONE, tmp_path) == "10\n"
