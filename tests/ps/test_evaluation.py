"""Evaluation by closures: a mean over a whole data set, each item once, while a worker is killed. A6 #73, #74."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

from hocket import ps

ROWS, BATCH = 1003, 16


@pytest.mark.needs("processes")
def test_an_evaluation_by_closures_is_exact_while_a_worker_dies(session: object) -> None:
    random = np.random.default_rng(0)
    inputs, labels = random.normal(size=(ROWS, 5)), random.integers(0, 2, ROWS)
    strategy = ps.ParameterServerStrategy({"worker": 2, "server": 2})
    with strategy.scope():
        weights = ps.Variable(random.normal(size=5), name="weights")
    coordinator = ps.Coordinator(strategy)
    starts = list(range(0, ROWS, BATCH))
    batches = iter(coordinator.create_per_worker_dataset(starts))

    def evaluate() -> tuple[int, int]:
        start = int(next(batches))
        part = slice(start, start + BATCH)
        guesses = inputs[part] @ weights.read_value() > 0
        return int((guesses == labels[part]).sum()), len(guesses)

    results = [coordinator.schedule(evaluate) for _ in starts]
    results[len(starts) // 3].fetch()
    os.kill(coordinator.get_worker_pids()[0], signal.SIGKILL)
    found = np.array(coordinator.fetch(results))
    assert found[:, 1].sum() == ROWS
    assert found[:, 0].sum() == ((inputs @ weights.numpy() > 0) == labels).sum()
    strategy.close()
