"""The gate: never above the bound, never stuck.

A model of it with Hypothesis, threads, and real processes that are stopped at random.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import sys
import threading
import time

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from hocket import ps
from hocket.ps import errors
from hocket.ps.stores import gate, memory


def make_gate(
    bound: int | None, timeout_s: float = 20.0, *, is_logging: bool = True, needed: int = 0, workers: int = 8
) -> tuple[memory.Memory, gate.Gate]:
    kept = memory.create(gate.count_bytes(), "gate")
    gate.build(kept, gate.Settings(bound, needed, is_logging, workers))
    return kept, gate.Gate(kept.ref, timeout_s)


@hypothesis.settings(max_examples=150, deadline=None)
@hypothesis.given(
    bound=st.integers(0, 5),
    workers=st.integers(1, 6),
    choices=st.lists(st.integers(0, 10**6), min_size=20, max_size=120),
)
def test_the_bound_holds_and_somebody_can_always_go_on(bound, workers, choices):
    """A4 #53.

    Each step one worker tries what it would do next; whatever the order, no push is staler, and never are all stuck.
    """
    kept, door = make_gate(bound)
    state = ["outside"] * workers
    closures = itertools.count()

    def attempt(worker: int) -> bool:
        if state[worker] == "outside":
            done, state_after = door._try_enter(worker), "computes"
        elif state[worker] == "computes":
            done, state_after = door._try_grant(worker), "pushes"
        else:
            assert door.leave(worker, next(closures), 0) <= bound
            done, state_after = True, "outside"
        if done:
            state[worker] = state_after
        return bool(done)

    for choice in choices:
        worker = choice % workers
        if choice % 13 == 0 and state[worker] != "outside":  # it dies, or its closure fails
            door.forget(worker)
            state[worker] = "outside"
            continue
        if not attempt(worker):
            able = [other for other in range(workers) if other != worker and attempt(other)]
            assert able, f"all are stuck: {state}, readings {door._readings[:workers]}"
    assert all(staleness <= bound for staleness in door.get_histogram())
    log = door.get_log()
    assert ((log[:, 2] - log[:, 1]) <= bound).all()
    assert log[:, 2].tolist() == list(range(len(log)))
    kept.close()


@hypothesis.given(
    version=st.integers(0, 5),
    waiting=st.lists(st.integers(0, 9), max_size=5),
    granted=st.lists(st.integers(0, 9), max_size=3),
)
def test_deadlines_are_kept_if_any_order_keeps_them(version, waiting, granted):
    """Against trying all orders, with the granted ones first and in their worst order."""

    def can(order: list[int], now: int) -> bool:
        if not order:
            return True
        return any(
            now <= one and can([*order[:place], *order[place + 1 :]], now + 1) for place, one in enumerate(order)
        )

    last = version + len(granted)
    worst = all(deadline >= last - 1 for deadline in granted)
    assert gate._can_keep(version, sorted(waiting), granted) == (worst and can(waiting, last))


@pytest.mark.parametrize("bound", [0, 3, None])
def test_threads_as_workers(bound):
    kept, door = make_gate(bound)

    def work(worker: int) -> None:
        rng = random.Random(worker)
        for closure in range(150):
            door.enter(worker)
            if rng.random() < 0.1:
                door.forget(worker)
                continue
            if rng.random() < 0.3:
                time.sleep(0)
            door.grant(worker)
            staleness = door.leave(worker, closure, 0)
            assert bound is None or staleness <= bound

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert sum(door.get_histogram().values()) == door.version == len(door.get_log())
    kept.close()


def test_who_waits_too_long_is_told_for_whom():
    kept, door = make_gate(0, timeout_s=0.1)
    door.enter(3)
    with pytest.raises(
        errors.PushTimeoutError,
        match=r"Worker 1 has waited for 0 s: with max_staleness=0 it may not run further ahead of worker 3, which pulled at version 0 of 0",
    ):
        door.enter(1)
    door.forget(3)
    assert door.enter(1) == 0
    assert door.get_reading(1) == 0
    kept.close()


def test_a_process_dies_inside(tmp_path):
    """The one that holds the gate's own mutex: the next gets it."""
    kept, door = make_gate(1)
    child = os.fork()
    if not child:
        try:
            mine = gate.Gate(kept.ref, 5.0)
            mine._mutex.__enter__()
            os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(7)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    door.enter(0)
    door.grant(0)
    assert door.leave(0, 1, 0) == 0
    assert door.leave(0, 1, 0) == 0  # said again by its successor
    assert door.version == 1
    kept.close()


def die_at_line(ref, number, act):
    """Run `act` with a gate in a child that is killed before the given line of gate.py; return whether it got there."""
    child = os.fork()
    if not child:
        try:
            mine, lines = gate.Gate(ref, 5.0), itertools.count()

            def trace(frame, event, _argument):
                if frame.f_code.co_filename != gate.__file__:
                    return None
                if event == "line" and next(lines) == number:
                    os.kill(os.getpid(), signal.SIGKILL)
                return trace

            sys.settrace(trace)
            act(mine)
        finally:
            os._exit(7)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def test_a_worker_dies_at_any_line_of_leave():
    """Its successor leaves again, with the same ticket: the push is counted once, in each of the counts."""
    for line in itertools.count():
        kept, door = make_gate(1)
        assert door.enter(0) == 0
        door.grant(0)
        was_killed = die_at_line(kept.ref, line, lambda mine: mine.leave(0, 1, 0))
        door.forget(0)
        door.leave(0, 1, 0)
        assert (door.version, sum(door.get_histogram().values()), len(door.get_log())) == (1, 1, 1)
        door.enter(1)
        door.grant(1)
        assert door.leave(1, 1, 0) == 0
        with door.held() as version:
            assert version == 2
        kept.close()
        if not was_killed:
            break
    assert line > 20


def test_a_worker_dies_at_any_line_of_a_synchronous_step():
    """The gradient that it has brought is in the step, once; the step is closed, once."""

    def bring(mine):
        if mine.arrive(0, 1, 0) == gate.CLOSES:
            mine.close_round(0)

    for line in itertools.count():
        kept, door = make_gate(None, needed=1, workers=2)
        door.enter_round(0)
        was_killed = die_at_line(kept.ref, line, bring)
        door.forget(0)
        if door.version == 0 and not door.list_arrived()[1]:
            door.enter_round(0)
            assert door.arrive(0, 1, 0) == gate.CLOSES
            door.close_round(0)
        elif door.version == 0:
            assert door.claim_round()
            door.close_round(0)
        else:
            assert door.arrive(0, 1, 0) == gate.COMES_LATE
        assert (door.version, door.get_histogram(), len(door.get_log()), door.late) == (1, {0: 1}, 1, 0)
        kept.close()
        if not was_killed:
            break
    assert line > 20


@pytest.mark.needs("processes")
def test_staleness_with_workers_that_are_stopped(session):
    """A4 #53: SIGSTOP and SIGCONT at random, and a kill."""
    bound = 4
    strategy = ps.ParameterServerStrategy(
        {"worker": 3, "server": 1}, max_staleness=bound, log_pushes=True, optimizer=ps.SGD(lr=1.0)
    )
    coordinator = ps.Coordinator(strategy)
    with strategy.scope():
        weights = ps.Variable(np.zeros(4, "float32"))

    def step() -> None:
        (value,) = strategy.pull([weights])
        strategy.push([(np.full_like(value, -1.0), weights)])

    values = [coordinator.schedule(step) for _ in range(500)]
    rng = random.Random(7)
    stopped = 0
    while stopped < 10 or not values[-1].is_ready:
        if values[-1].is_ready:
            values += [coordinator.schedule(step) for _ in range(200)]
        pids = coordinator.get_worker_pids()
        pid = pids[rng.choice(sorted(pids))]
        try:
            os.kill(pid, signal.SIGSTOP)
            stopped += 1
            time.sleep(rng.uniform(0, 0.02))
            os.kill(pid, signal.SIGKILL if stopped == 3 else signal.SIGCONT)
        except ProcessLookupError:
            continue
    coordinator.join()
    assert weights.numpy().tolist() == [float(len(values))] * 4
    histogram = strategy.get_staleness()
    assert max(histogram) <= bound
    log = strategy.get_log()
    assert (log[:, 2] - log[:, 1]).max() <= bound
    assert len(set(log[:, 0])) == 3
    assert len(log) == sum(histogram.values()) == len(values)
    assert coordinator.statistics()["recoverable_worker_failure_count"] >= 1
    strategy.close()
