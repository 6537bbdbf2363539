"""Random programs in several threads: tasks, trees, arrays, failures, deaths, cancellations and actors at once.

Every wait must end, every value must be right, and at the end nothing may be held: this is where lost messages and
leaked leases show.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.exceptions import TaskCancelledError, WorkerCrashedError

pytestmark = pytest.mark.needs("processes", "owner_deaths")

SECONDS = 3.0

KINDS = 8


@hocket.remote
def echo(x: Any) -> Any:
    return x


@hocket.remote
def tree(depth: int) -> int:
    return 1 if depth <= 0 else sum(hocket.get([tree.remote(depth - 1), tree.remote(depth - 2)]))


@hocket.remote
def add_one(array: Any) -> Any:
    return array + 1


@hocket.remote
def fail() -> None:
    raise ValueError("deliberate")


@hocket.remote(max_retries=3)
def maybe_die(seed: int) -> int:
    if random.Random(seed + os.getpid()).random() < 0.2:
        os.kill(os.getpid(), signal.SIGKILL)
    return 1


@hocket.remote
def wrap(x: Any) -> list[Any]:
    return [hocket.put(x), echo.remote(x)]


class Counter:
    def __init__(self) -> None:
        self.value = 0

    def add(self) -> int:
        self.value += 1
        return self.value

    def call(self, other: Any) -> int:
        return int(hocket.get(other.add.remote()))


class Program:
    """One thread's random walk."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.counters = [hocket.remote(Counter).remote() for _ in range(2)]
        self.done: set[str] = set()

    def run(self, is_over: Callable[[], bool]) -> None:
        steps: list[Callable[[], None]] = [
            *(self.echo_many, self.grow_tree, self.send_arrays, self.pass_errors, self.lose_workers),
            *(self.use_actors, self.replace_actor, self.open_boxes, self.cancel_trees, self.wait_in_parts),
        ]
        while not is_over():
            step = self.chance.choice(steps)
            step()
            self.done.add(step.__name__)

    def echo_many(self) -> None:
        assert hocket.get([echo.remote(x) for x in range(200)]) == list(range(200))

    def grow_tree(self) -> None:
        assert hocket.get(tree.remote(5)) == 13

    def send_arrays(self) -> None:
        array = np.arange(self.chance.choice([10, 5_000, 200_000]))
        assert np.array_equal(hocket.get(add_one.remote(add_one.remote(hocket.put(array)))), array + 2)

    def pass_errors(self) -> None:
        with pytest.raises(ValueError, match="deliberate"):
            hocket.get(echo.remote(fail.remote()))

    def lose_workers(self) -> None:
        with contextlib.suppress(WorkerCrashedError):
            assert hocket.get([maybe_die.remote(self.chance.randrange(10**6)) for _ in range(5)]) == [1] * 5

    def use_actors(self) -> None:
        first, second = self.counters
        counts = hocket.get([first.add.remote() for _ in range(100)])
        assert counts == list(range(counts[0], counts[0] + 100))
        assert hocket.get(first.call.remote(second)) > 0

    def replace_actor(self) -> None:
        self.counters[self.chance.randrange(2)] = hocket.remote(Counter).remote()

    def open_boxes(self) -> None:
        assert hocket.get(hocket.get(wrap.remote(7))) == [7, 7]

    def cancel_trees(self) -> None:
        refs = [tree.remote(4) for _ in range(3)]
        for ref in refs:
            hocket.cancel(ref)
        for ref in refs:
            with contextlib.suppress(TaskCancelledError):
                assert hocket.get(ref) == 8

    def wait_in_parts(self) -> None:
        refs = [echo.remote(x) for x in range(50)]
        while refs:
            _, refs = hocket.wait(refs, num_returns=min(7, len(refs)))


@pytest.mark.slow
@pytest.mark.parametrize("round_number", range(3))
def test_random_programs_end_and_leave_nothing_held(session: hocket.SessionContext, round_number: int) -> None:
    seed = random.randrange(10**6)
    print("seed", seed)
    programs = [Program(seed + number) for number in range(3)]
    until = time.monotonic() + SECONDS
    errors: list[BaseException] = []
    done = [program.done for program in programs]

    def is_over() -> bool:
        """For so many seconds, and as long after that as few kinds of steps have been taken: the machine may be
        busy."""
        kinds = set[str]().union(*done)
        return bool(errors) or (time.monotonic() > until and len(kinds) >= KINDS)

    def run(program: Program) -> None:
        try:
            program.run(is_over)
        except BaseException as error:  # noqa: BLE001 (it is reported by the main thread)
            errors.append(error)

    threads = [threading.Thread(target=run, args=(program,), daemon=True) for program in programs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS + 30)
    assert not any(thread.is_alive() for thread in threads), f"a wait did not end; seed {seed}"
    assert errors == []
    del programs
    engine = hocket.core.session.get_engine()
    deadline = time.monotonic() + 10
    while (engine.view.statistics()["actors"] or engine.view.statistics()["tasks"]) and time.monotonic() < deadline:
        gc.collect()  # pytest.raises ties errors, and so the frames with their references, into cycles
        hocket.wait([hocket.put(0)])
    statistics = engine.view.statistics()
    assert (statistics["tasks"], statistics["objects"], statistics["actors"]) == (0, 0, 0)
    assert hocket.available_resources() == hocket.cluster_resources()
