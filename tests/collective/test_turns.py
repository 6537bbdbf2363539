"""Ranks that are threads and take turns."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hocket import exceptions
from hocket.collective import turns

pytestmark = pytest.mark.timeout(30)

RANDOM = turns.Local(random.getstate, random.setstate)


@pytest.fixture
def three() -> Iterator[turns.Turns]:
    before = threading.active_count()
    ranks = turns.Turns(3, [RANDOM])
    yield ranks
    ranks.close()
    assert threading.active_count() == before


def test_one_runs_at_a_time_and_always_in_the_same_order(three: turns.Turns) -> None:
    def build(rank: int, told: list[str], count: dict[int, int]) -> Callable[[], int]:
        def body() -> int:
            for step in range(3):
                told.append(f"{rank}:{step}")
                count[rank] = step + 1
                three.wait(lambda step=step: min(count.values()) > step, "waits", needs_rank=True)  # type: ignore[misc]
            return rank * 10

        return body

    seen = []
    for _ in range(2):
        told: list[str] = []
        count = dict.fromkeys(range(3), 0)
        assert three.run([build(rank, told, count) for rank in range(3)]) == [0, 10, 20]
        seen.append(told)
    assert seen[0] == seen[1]
    assert sorted(seen[0], key=lambda text: text.split(":")[1]) == seen[0]


def test_each_has_its_own_random_numbers_and_the_caller_keeps_its_own(three: turns.Turns) -> None:
    def build(rank: int, gate: list[int]) -> Callable[[], list[float]]:
        def body() -> list[float]:
            random.seed(rank)
            found = []
            for step in range(3):
                found.append(random.random())
                gate[rank] = step + 1
                three.wait(lambda step=step: min(gate) > step, "waits", needs_rank=True)  # type: ignore[misc]
            return found

        return body

    random.seed(7)
    state = random.getstate()
    gate = [0, 0, 0]
    found = three.run([build(rank, gate) for rank in range(3)])
    assert random.getstate() == state
    for rank, values in enumerate(found):
        generator = random.Random(rank)
        assert values == [generator.random() for _ in range(3)]


def test_all_that_wait_for_each_other_are_told_at_once(three: turns.Turns) -> None:
    def wait() -> None:
        three.wait(lambda: False, "waits in all_reduce", needs_rank=True)

    with pytest.raises(exceptions.DeadlockError, match="rank 0 has returned, rank 1 waits in all_reduce, rank 2 waits"):
        three.run([lambda: None, wait, wait])
    assert three.run([lambda: 1, lambda: 2, lambda: 3]) == [1, 2, 3]


def test_what_a_thread_brings_about_is_waited_for(three: turns.Turns) -> None:
    happened = threading.Event()
    timers = [threading.Timer(0.05, happened.set) for _ in range(3)]
    starting = iter(timers)

    def wait() -> bool:
        next(starting).start()
        return three.wait(happened.is_set, "waits", needs_rank=False)

    assert three.run([wait] * 3) == [True] * 3
    for timer in timers:
        timer.join()
    assert three.run([lambda: three.wait(lambda: False, "waits", needs_rank=True, timeout_s=0.01)] * 3) == [False] * 3


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_an_error_ends_all(three: turns.Turns, failing: int) -> None:
    ended = []

    def build(rank: int) -> Callable[[], None]:
        def body() -> None:
            try:
                if rank == failing:
                    three.wait(lambda: True, "waits", needs_rank=True)
                    raise KeyError(rank)
                three.wait(lambda: False, "waits", needs_rank=True)
            finally:
                ended.append(rank)

        return body

    with pytest.raises(KeyError, match=str(failing)):
        three.run([build(rank) for rank in range(3)])
    assert failing in ended
    assert not three._running


def test_ctrl_c_ends_a_rank_that_never_waits(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        """
import sys
from hocket.collective import turns
ranks = turns.Turns(2, [])
def work():
    print("runs", flush=True)
    while True:
        pass
try:
    ranks.run([lambda: ranks.wait(lambda: False, "waits", needs_rank=True), work])
except KeyboardInterrupt:
    ranks.close()
    print("ended", flush=True)
"""
    )
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "runs\n"
        process.send_signal(signal.SIGINT)
        try:
            assert process.communicate(timeout=20)[0] == "ended\n"
        finally:
            process.kill()
    assert process.returncode == 0
