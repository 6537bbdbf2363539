"""The training function does not change with the engine or the number of ranks, and neither do the weights: not in one bit."""

from __future__ import annotations

from pathlib import Path

import pytest

import hocket
from tests.engine.ray.conftest import UNTIDY
from tests.train import test_turns

pytestmark = [pytest.mark.timeout(180), UNTIDY]


def test_weights_are_those_of_one_process(tmp_path: Path) -> None:
    """Those of the local engine are too: `tests/train/test_turns.py`, and with the command `tests/train/test_demo.py`."""
    learned = []
    for engine in ("inprocess", "ray"):
        with hocket.init(engine=engine, num_cpus=2):
            for size in (1, 2, 4):
                result = test_turns.fit(test_turns.learn, tmp_path / engine, size, {"shards": False})
                learned.append((size, result.return_value, result.metrics["loss"]))
    assert learned[:3] == learned[3:]
