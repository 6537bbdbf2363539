"""Synchronous steps, with and without backup workers; bounded staleness; the coordinator's own checkpoint.

A4 #53, A5 #67; D (backup workers).
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from hocket import ps

pytestmark = [
    pytest.mark.usefixtures("session"),
    pytest.mark.needs("processes"),
]


def _make(workers: int, **settings: object) -> tuple[ps.ParameterServerStrategy, ps.Variable, ps.Embedding]:
    strategy = ps.ParameterServerStrategy({"worker": workers, "server": 2}, optimizer=ps.SGD(lr=1.0), **settings)  # type: ignore[arg-type]
    with strategy.scope():
        weights = ps.Variable(np.zeros(50, "float32"), name="weights")
        table = ps.Embedding(40, 4, initializer=ps.Zeros(), name="table")
    return strategy, weights, table


@pytest.mark.parametrize("waits", ["join", "fetch", "done"])
def test_short_closures_make_one_step_a_round(waits: str) -> None:
    """A worker whose closure is scheduled, and which has not taken it yet, is waited for."""
    strategy, weights, _ = _make(2, synchronous=True)
    coordinator = ps.Coordinator(strategy)

    def step() -> None:
        strategy.pull([weights])
        strategy.push([(np.ones(50), weights)])

    for _ in range(150):
        results = [coordinator.schedule(step) for _ in range(2)]
        if waits == "fetch":
            coordinator.fetch(results)
        while waits == "done" and not coordinator.done():
            time.sleep(0.0005)
        coordinator.join()
    assert strategy.version == 150
    assert weights.numpy().tolist() == [-150.0] * 50
    coordinator.close()
    strategy.close()


def test_a_step_goes_on_without_workers_that_have_nothing() -> None:
    strategy, weights, _ = _make(2, synchronous=True)
    coordinator = ps.Coordinator(strategy)

    def step() -> int:
        strategy.pull([weights])
        return strategy.push([(np.ones(50), weights)]).staleness

    for _ in range(3):
        coordinator.schedule(step)
    assert coordinator.join() == 3
    assert strategy.version == 2
    alone = coordinator.schedule(step)
    deadline = time.monotonic() + 60
    while strategy.version < 3:  # nobody waits for the closure, and no other is scheduled
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert alone.fetch() == 0
    coordinator.close()
    strategy.close()


def test_a_synchronous_step_applies_the_mean_whoever_dies() -> None:
    strategy, weights, table = _make(3, synchronous=True, log_pushes=True)
    coordinator = ps.Coordinator(strategy)

    def step(number: int) -> bool:
        strategy.pull([weights])
        ids = np.array([number % 40, (number + 1) % 40])
        outcome = strategy.push([(np.full(50, -3.0), weights), (ps.IndexedSlices(np.full((2, 4), -3.0), ids), table)])
        return outcome.is_applied

    results = [coordinator.schedule(step, args=(number,)) for number in range(120)]
    killed = 0
    for count, result in enumerate(results):
        result.fetch()
        if count % 20 == 10:
            os.kill(strategy.get_server_pids()[count % 2], signal.SIGKILL)
            for pid in coordinator.get_worker_pids().values():
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:  # killed before, and not missed yet
                    continue
                killed += 1
                break
    assert coordinator.join() == 120
    assert killed >= 3

    steps = strategy.version
    assert strategy.get_staleness() == {0: 120}  # each gradient counted once, in 40 steps or a few more at the end
    assert 40 <= steps <= 44
    log = strategy.get_log()
    assert weights.numpy()[0] == steps * 3.0  # the mean of any number of equal gradients
    assert table.lookup(np.arange(40)).sum() == pytest.approx(2 * 4 * 3.0 * steps)
    assert len(log) == 120


def test_backup_workers_do_not_hold_up_a_step_and_what_is_late_is_counted() -> None:
    strategy, weights, _ = _make(2, synchronous=True, backup_workers=1)
    coordinator = ps.Coordinator(strategy)
    pids = coordinator.get_worker_pids()

    def step() -> tuple[int, bool]:
        strategy.pull([weights])
        return ps.get_current_worker_index(), strategy.push([(np.full(50, -1.0), weights)]).is_applied

    first = [coordinator.schedule(step) for _ in range(4)]
    assert coordinator.join() == 4
    os.kill(pids[0], signal.SIGSTOP)
    results = [coordinator.schedule(step) for _ in range(10)]
    while sum(result.is_ready for result in results) < 8:  # two wait at the worker that is stopped
        assert not coordinator.done()
    os.kill(pids[0], signal.SIGCONT)
    assert coordinator.join() == 10
    found = [result.fetch() for result in (*first, *results)]
    applied = sum(is_applied for _, is_applied in found)
    assert applied + strategy.statistics()["late"] == 14
    assert strategy.version == applied == -(-weights.numpy()[0] // 1)
    strategy.close()


def test_synchronous_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="backup_workers must leave at least one of the 2 workers"):
        _make(2, synchronous=True, backup_workers=2)
    with pytest.raises(ValueError, match="is only for synchronous=True"):
        _make(2, backup_workers=1)
    with pytest.raises(ValueError, match="has no staleness"):
        _make(2, synchronous=True, max_staleness=1)


def test_a_coordinator_begins_again_from_its_checkpoint_with_each_item_once(tmp_path: Path) -> None:
    """A5 #67: exact step count, and no item twice; the dealt dataset with another number of workers."""

    def run(workers: int, closures: int, *, begins_again: bool, tag: str) -> tuple[list[int], int]:
        strategy, weights, _ = _make(workers)
        coordinator = ps.Coordinator(strategy)
        if begins_again:
            assert coordinator.restore(tmp_path / "checkpoint") == {"tag": "first"}
        items = iter(coordinator.create_per_worker_dataset(list(range(100))))

        def step() -> int:
            item = int(next(items))
            strategy.pull([weights])
            strategy.push([(np.full(50, -1.0), weights)])
            return item

        results = [coordinator.schedule(step) for _ in range(closures)]
        assert coordinator.join() == closures
        seen = [result.fetch() for result in results]
        coordinator.save(tmp_path / "checkpoint", {"tag": tag})
        version, total = strategy.version, coordinator.statistics()["finished_closures"]
        assert weights.numpy()[0] == version == total
        strategy.close()
        return seen, int(total)

    first, _ = run(3, 40, begins_again=False, tag="first")
    second, total = run(2, 60, begins_again=True, tag="second")
    assert sorted(first + second) == list(range(100))
    assert total == 100


def test_restore_comes_before_the_datasets_and_needs_a_coordinators_checkpoint(tmp_path: Path) -> None:
    strategy, _, _ = _make(1)
    coordinator = ps.Coordinator(strategy)
    path = strategy.save(tmp_path / "variables")
    with pytest.raises(ps.CheckpointMismatchError, match="has no positions of datasets"):
        coordinator.restore(path)
    iterator = iter(coordinator.create_per_worker_dataset([1, 2]))
    whole = coordinator.save(tmp_path / "whole")
    with pytest.raises(RuntimeError, match="was called after iter"):
        coordinator.restore(whole)
    del iterator
    strategy.close()


def test_a_step_has_the_scale_of_its_pushes() -> None:
    strategy, weights, table = _make(2, synchronous=True)
    coordinator = ps.Coordinator(strategy)

    def step(scale: float) -> None:
        strategy.pull([weights])
        gradients = [(np.ones(50), weights), (ps.IndexedSlices(np.ones((1, 4)), [7]), table)]
        strategy.push(gradients, scale=scale)

    for scales in [(0.5, 0.5), (2.0, 0.0)]:  # the mean of what each push would have done
        for scale in scales:
            coordinator.schedule(step, args=(scale,))
        coordinator.join()
    assert weights.numpy().tolist() == [-1.5] * 50
    assert table.lookup([7]).tolist() == [[-1.5] * 4]
    coordinator.close()
    strategy.close()


def test_a_second_push_of_a_closure_is_late_and_leaves_the_first_as_it_is() -> None:
    strategy, weights, table = _make(2, synchronous=True)
    coordinator = ps.Coordinator(strategy)

    def step() -> list[bool]:
        strategy.pull([weights])
        pushes: list[tuple[object, object]] = [
            (np.ones(50), weights),
            (np.full(50, 100.0), weights),
            (ps.IndexedSlices(np.full((1, 4), 100.0), [7]), table),
        ]
        return [strategy.push([one]).is_applied for one in pushes]

    results = [coordinator.schedule(step) for _ in range(2)]
    coordinator.join()
    assert coordinator.fetch(results) == [[True, False, False]] * 2
    assert strategy.statistics()["late"] == 4
    assert weights.numpy().tolist() == [-1.0] * 50
    assert table.lookup([7]).tolist() == [[0.0] * 4]
    coordinator.close()
    strategy.close()
