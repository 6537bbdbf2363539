"""What nobody can reach any more ends, and what nobody reads does not grow: what only the local engine promises."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.engine.local import flow

pytestmark = pytest.mark.about_local("how far generators run ahead, and which actors end")


def wait_until(is_done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not is_done():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


# --- generators -------------------------------------------------------------------------------------------------------

LARGE_BYTES = 4 << 20
BOUND = flow.MOST_BYTES // LARGE_BYTES
"""About so many items come to the bound."""


def _make_large(path: Path, count: int) -> Iterator[Any]:
    for number in range(count):
        path.write_text(str(number))
        yield np.full(LARGE_BYTES, number % 100, dtype=np.uint8)


class _Maker:
    async def make(self, path: Path, count: int) -> Any:
        for number, item in enumerate(_make_large(path, count)):
            assert number >= 0
            yield item

    def make_all(self, path: Path, count: int) -> Iterator[Any]:
        yield from _make_large(path, count)


def _is_still(path: Path) -> bool:
    """Tell whether a generator has come to a stop near the bound."""
    try:
        before = int(path.read_text())
    except (FileNotFoundError, ValueError):  # it has not begun, or is just writing
        return False
    time.sleep(0.3)
    return before == int(path.read_text() or -1) and before >= BOUND // 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["task", "coroutine", "actor"])
def test_generator_that_nobody_reads_pauses_at_the_bound(
    session: hocket.SessionContext, tmp_path: Path, kind: str
) -> None:
    progress = tmp_path / "progress"
    maker = hocket.remote(_Maker).remote()
    functions: dict[str, Any] = {"task": hocket.remote(_make_large), "coroutine": maker.make, "actor": maker.make_all}
    items = functions[kind].remote(progress, 3 * BOUND)
    wait_until(lambda: _is_still(progress))
    assert int(progress.read_text()) <= BOUND + 1
    for number in range(2 * BOUND):
        assert hocket.get(next(items))[0] == number % 100
    assert sum(1 for _ in items) == BOUND


@pytest.mark.slow
def test_generator_whose_end_is_awaited_does_not_pause(session: hocket.SessionContext, tmp_path: Path) -> None:
    progress = tmp_path / "progress"
    items = hocket.remote(_make_large).remote(progress, BOUND + 10)
    wait_until(lambda: _is_still(progress))
    assert hocket.get(items.completed(), timeout=30) is None
    assert sum(1 for _ in items) == BOUND + 10


@pytest.mark.parametrize("limit", [0, 3, -1])
def test_flow_counts_what_was_not_taken(limit: int) -> None:
    ahead = flow.Flow(limit)
    size = flow.MOST_BYTES // 4
    states = [ahead.add(size) for _ in range(6)]
    assert states == {0: [False] * 3 + [True] * 3, 3: [False] * 2 + [True] * 4, -1: [False] * 6}[limit]
    assert limit < 0 or ahead.find_wanted() == {0: 5, 3: 4}[limit]
    ahead.take(5)
    assert not ahead.is_full()
    ahead.take(1)
    assert not ahead.is_full(), "what was said to an earlier attempt may come late"


def test_flow_of_a_second_attempt_goes_on_where_the_reader_is_when_it_has_asked() -> None:
    ahead = flow.Flow(0)
    assert ahead.add(flow.MOST_BYTES)
    assert ahead.find_wanted() == 1
    ahead.take(10)
    assert not any(ahead.add(flow.MOST_BYTES) for _ in range(9))
    assert ahead.add(flow.MOST_BYTES)
    assert ahead.find_wanted() == 11


# --- functions --------------------------------------------------------------------------------------------------------


def _count_functions() -> tuple[int, int]:
    engine: Any = hocket.core.session.get_engine()
    statistics = engine.view.statistics()
    return len(engine.kernel.functions), statistics["shared_bytes"]


def test_functions_that_nobody_can_call_are_forgotten(session: hocket.SessionContext) -> None:
    function: Any = None
    for number in range(50):
        array = np.full(1 << 20, number % 100, dtype=np.uint8)
        function = hocket.remote(lambda array=array: int(array[-1]))
        assert hocket.get([function.remote(), function.remote()]) == [number, number]
        known, shared_bytes = _count_functions()
        assert known <= 2
        assert shared_bytes < 20 << 20, "what a closure refers to goes with it"
    del function
    wait_until(lambda: _count_functions() == (0, 0))


def test_worker_forgets_functions(session: hocket.SessionContext) -> None:
    @hocket.remote(num_cpus=2)
    def count_known() -> int:
        import gc

        from hocket.engine.local import worker

        return max(len(one.code.functions) for one in gc.get_objects() if type(one) is worker.Worker)

    for number in range(100):
        assert hocket.get(hocket.remote(num_cpus=2)(lambda number=number: number).remote()) == number
    wait_until(lambda: hocket.get(count_known.remote()) < 20)


def test_forgotten_function_can_still_be_tried_again_and_waited_for(
    session: hocket.SessionContext, tmp_path: Path
) -> None:
    def wait_for(path: Path) -> str:
        while not path.exists():
            time.sleep(0.001)
        return "there"

    def die_once(text: str, path: Path) -> str:
        if not path.exists():
            path.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return text

    array = np.ones(1 << 20, dtype=np.uint8)
    last = hocket.remote(max_retries=1)(lambda text, path: die_once(text, path) + str(array[0]))
    ref = last.remote(hocket.remote(wait_for).remote(tmp_path / "go"), tmp_path / "died")
    same = hocket.remote(lambda: 1)
    del last
    assert hocket.get(same.remote()) == 1
    wait_until(lambda: _count_functions()[0] == 1)
    (tmp_path / "go").touch()
    assert hocket.get(ref) == "there1"


def test_class_of_an_actor_that_may_be_built_again_is_kept(session: hocket.SessionContext) -> None:
    class Counter:
        def get_pid(self) -> int:
            return os.getpid()

    counter = hocket.remote(max_restarts=1, max_task_retries=-1)(Counter).remote()
    pid = hocket.get(counter.get_pid.remote())
    wait_until(lambda: _count_functions()[0] == 0)
    os.kill(pid, signal.SIGKILL)
    assert hocket.get(counter.get_pid.remote()) != pid


def test_function_that_is_made_again_is_known_again(session: hocket.SessionContext) -> None:
    def build() -> Any:
        return hocket.remote(_double)

    for number in range(20):
        refs = [build().remote(number) for _ in range(10)]
        assert hocket.get(refs) == [2 * number] * 10


def _double(x: int) -> int:
    return 2 * x


class Meddler:
    """An asynchronous actor that cancels all that is on its loop, and whose calls leave a context variable behind."""

    def __init__(self) -> None:
        self.mark = contextvars.ContextVar("mark", default=-1)
        self.began: list[int] = []

    async def note(self, number: int) -> int:
        self.began.append(number)
        seen = self.mark.get()
        self.mark.set(number)
        await asyncio.sleep(0.001 * (number % 3))
        return seen

    async def list_began(self) -> list[int]:
        return self.began

    async def sleep(self) -> None:
        await asyncio.sleep(1000)

    async def cancel_all(self) -> None:
        for task in asyncio.all_tasks():
            if task is not asyncio.current_task():
                task.cancel()


@pytest.mark.parametrize("size", [1, 2, 1000])
def test_calls_begin_in_order_and_each_with_a_fresh_context(session: hocket.SessionContext, size: int) -> None:
    meddler = hocket.remote(Meddler).options(max_concurrency=size).remote()
    assert hocket.get([meddler.note.remote(number) for number in range(200)], timeout=30) == [-1] * 200
    assert hocket.get(meddler.list_began.remote()) == [*range(200)]


def test_calls_that_the_actor_itself_cancels_are_answered(session: hocket.SessionContext) -> None:
    meddler = hocket.remote(Meddler).remote()
    running = [meddler.sleep.remote() for _ in range(20)]
    end = meddler.cancel_all.remote()
    behind = [meddler.note.remote(number) for number in range(20)]  # some are on the loop, and have not made a step
    hocket.get(end, timeout=30)
    for ref in running:
        with pytest.raises(hocket.exceptions.HocketError, match=r"[Cc]ancelled"):
            hocket.get(ref, timeout=30)
    for ref in behind:
        with contextlib.suppress(hocket.exceptions.TaskCancelledError):
            assert hocket.get(ref, timeout=30) == -1
