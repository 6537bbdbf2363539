"""Programs that start their own processes or devices, and the same training functions as ranks of a trainer."""

from __future__ import annotations

import socket
import sys
from concurrent import futures
from pathlib import Path

import pytest

from tests.programs import running

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.about_local("programs of their own"),
]


def test_a_perceptron_of_flax_over_the_devices_of_two_processes(tmp_path: Path) -> None:
    script = running.SCRIPTS / "flax_nnx.py"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with futures.ThreadPoolExecutor() as pool:
        both = [pool.submit(running.run, tmp_path / str(n), sys.executable, script, address, str(n)) for n in range(2)]
        original = both[0].result()
        assert both[1].result() is not None
    ours = running.run(tmp_path / "hocket", sys.executable, script, "hocket")
    found = running.read_result(ours)
    assert (found["processes"], found["devices"]) == (2, 2)
    assert found == running.read_result(original)


def test_a_model_of_keras_over_two_devices(tmp_path: Path) -> None:
    script = running.SCRIPTS / "keras_data_parallel.py"
    original = running.read_result(running.run(tmp_path / "keras", sys.executable, script, "keras"))
    ours = running.read_result(running.run(tmp_path / "hocket", sys.executable, script, "hocket"))
    # XLA adds up the two halves of a batch in an order of its own: the last digit of a float32 may differ.
    assert ours["history"]["loss"] == pytest.approx(original["history"]["loss"], rel=1e-6)
    assert ours["history"]["accuracy"] == pytest.approx(original["history"]["accuracy"], rel=1e-6)
    assert ours["total"] == pytest.approx(original["total"], rel=1e-6)


def test_boosted_trees_of_xgboost(tmp_path: Path) -> None:
    script = running.SCRIPTS / "xgboost_collective.py"
    original = running.run(tmp_path / "xgboost", sys.executable, script, "xgboost")
    ours = running.run(tmp_path / "hocket", sys.executable, script, "hocket")
    found = running.read_result(ours)
    assert (found["ranks"], len(found["trees"])) == (2, 8)
    assert found == running.read_result(original)
