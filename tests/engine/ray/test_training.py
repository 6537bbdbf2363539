"""The training function does not change with the engine or the number of ranks, and neither do the weights: not in
one bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import hocket
from tests.conftest import SharedRay
from tests.engine.ray.conftest import UNTIDY
from tests.train import test_preemption, test_turns

pytestmark = [pytest.mark.timeout(180), UNTIDY]


def learn(path: Path) -> list[Any]:
    found = []
    for size in (1, 2, 4):
        result = test_turns.fit(test_turns.learn, path, size, {"shards": False})
        found.append((size, result.return_value, result.metrics["loss"]))
    return found


def test_weights_are_those_of_one_process(shared_ray: SharedRay, tmp_path: Path) -> None:
    """Those of the local engine are too: `tests/train/test_turns.py`, and with the command
    `tests/train/test_demo.py`."""
    with hocket.init(engine="inprocess", num_cpus=2):
        expected = learn(tmp_path / "inprocess")
    with shared_ray.lend(), hocket.init(engine="ray", num_cpus=2):
        assert learn(tmp_path / "ray") == expected


def test_a_rank_that_is_told_to_end_saves_first(shared_ray: SharedRay, tmp_path: Path) -> None:
    with shared_ray.lend(), hocket.init(engine="ray", num_cpus=2):
        result = test_preemption.fit(test_preemption.save_when_told, tmp_path, {"flags": str(tmp_path)})
    history = result.metrics_history
    assert [metrics["first"] for metrics in history] == [0] * 3 + [3] * 4 + [7] * 3
    assert [metrics["told"] for metrics in history if metrics["told"]] == [[[1], 1, True]] * 2
