"""What data sets call: coroutines and asynchronous generators, and the kind of the errors that functions raise."""

from __future__ import annotations

import asyncio
import pickle
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hocket
from hocket import data, exceptions
from hocket.data import blocks, context, steps
from hocket.data.datasource import Datasink, WriteResult


@pytest.fixture(scope="module", autouse=True)
def session() -> Iterator[None]:
    with hocket.init(num_cpus=2):
        yield


class Meeting:
    """Goes on when several have come: they are under way at once, in one loop."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._come = 0
        self._all: asyncio.Event | None = None
        self._loop: Any = None

    async def meet(self) -> None:
        loop = asyncio.get_running_loop()
        assert self._loop in (None, loop), "another loop than before"
        self._loop, self._all = loop, self._all or asyncio.Event()
        self._come += 1
        if self._come % self._size == 0:
            self._all.set()
        await self._all.wait()


class Doubles(Meeting):
    async def __call__(self, batch: dict[str, Any], by: int = 2) -> dict[str, Any]:
        await self.meet()
        return {"id": batch["id"] * by}


class Twice:
    async def __call__(self, batch: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        for _ in range(2):
            await asyncio.sleep(0)
            yield {"id": batch["id"]}


def ids(rows: list[dict[str, Any]]) -> list[int]:
    return [int(row["id"]) for row in rows]


def test_batches_of_a_block_run_side_by_side() -> None:
    rows = data.range(8, override_num_blocks=2)
    made = rows.map_batches(Doubles, batch_size=1, fn_constructor_args=[4], fn_kwargs={"by": 3}, concurrency=1)
    assert ids(made.take_all()) == [0, 3, 6, 9, 12, 15, 18, 21]
    whole = rows.map_batches(Doubles, fn_constructor_args=[1], concurrency=1)
    assert ids(whole.take_all()) == list(range(0, 16, 2))


def test_asynchronous_generators() -> None:
    assert ids(data.range(3).map_batches(Twice, batch_size=1, concurrency=1).take_all()) == [0, 0, 1, 1, 2, 2]
    assert ids(data.range(5).flat_map(Twice, concurrency=1).take_all()) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


def test_coroutine_functions() -> None:
    async def more(row: dict[str, int]) -> dict[str, int]:
        await asyncio.sleep(0)
        return {"id": row["id"] + 1}

    async def both(row: dict[str, int]) -> list[dict[str, int]]:
        await asyncio.sleep(0)
        return [row, row]

    async def is_even(row: dict[str, int]) -> bool:
        return row["id"] % 2 == 0

    async def count(group: dict[str, Any]) -> dict[str, Any]:
        return {"id": np.array([len(group["id"])])}

    rows = data.range(6)
    assert ids(rows.map(more).take_all()) == [1, 2, 3, 4, 5, 6]
    assert ids(rows.flat_map(both).take_all()) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert ids(rows.filter(is_even).take_all()) == [0, 2, 4]
    named = rows.map_batches(lambda batch: {"id": batch["id"], "k": batch["id"] // 4})
    assert ids(named.groupby("k").map_groups(count).take_all()) == [4, 2]


def test_no_rows() -> None:
    async def same(batch: dict[str, Any]) -> dict[str, Any]:
        return batch

    assert data.range(4).filter(lambda row: False).map_batches(same, batch_size=1).take_all() == []


ERRORS = (ValueError, KeyboardInterrupt, GeneratorExit, SystemExit, StopAsyncIteration, asyncio.CancelledError)


async def cancel_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("num_calls", [1, 3, 40])
@pytest.mark.parametrize("error", [*ERRORS, StopIteration, "cancels itself", "stops the loop", "cancels all"], ids=str)
def test_an_error_of_a_coroutine_ends_all_others(error: Any, num_calls: int) -> None:
    """Also where it would end the loop, into which other threads call."""
    num_threads = threading.active_count()
    begun: list[int] = []

    async def ends(row: dict[str, int]) -> dict[str, int]:
        begun.append(row["id"])
        if row["id"] != num_calls // 2:
            await asyncio.sleep(0 if row["id"] % 2 else 0.002)
            return row
        if error == "cancels itself":
            await cancel_itself()
        if error == "stops the loop":
            asyncio.get_running_loop().stop()
            await asyncio.sleep(0)
        if error == "cancels all":
            for task in asyncio.all_tasks():
                task.cancel()
            await asyncio.sleep(0)
        raise ValueError if isinstance(error, str) else error("it was this one")

    function = steps.Asynchronous(ends)
    wanted: Any = {StopIteration: RuntimeError, "stops the loop": (RuntimeError, ValueError)}.get(
        error, (asyncio.CancelledError, futures.CancelledError) if isinstance(error, str) else error
    )
    rows = steps.MapRows(steps.Function(function))
    block = blocks.build({"id": np.arange(num_calls)}, "rows")
    for _ in range(3):  # the same loop serves the next block
        begun.clear()
        with pytest.raises(wanted):
            steps.call(rows, block)
        count = len(begun)
        time.sleep(0.01)
        assert len(begun) == count
    assert threading.active_count() == num_threads


def test_calls_that_have_begun_are_cancelled() -> None:
    async def waits(row: dict[str, int]) -> dict[str, int]:
        if row["id"]:
            await asyncio.Event().wait()
        raise ValueError("it was this one")

    rows = steps.MapRows(steps.Function(steps.Asynchronous(waits)))
    with pytest.raises(ValueError, match="it was this one"):
        steps.call(rows, blocks.build({"id": np.arange(8)}, "rows"))


class OddError(Exception):
    """A user's error, with a constructor of its own."""

    def __init__(self, number: int, *, why: str) -> None:
        super().__init__(number, why)

    def __reduce__(self) -> Any:
        return _rebuild, (self.args[0], self.args[1]), self.__dict__


def _rebuild(number: int, why: str) -> OddError:
    return OddError(number, why=why)


def fail(_: object) -> Any:
    raise OddError(7, why="it was 7")


async def fail_later(_: object) -> Any:
    await asyncio.sleep(0)
    raise OddError(7, why="it was 7")


class Failing:
    def __call__(self, batch: object) -> Any:
        return fail(batch)


class Unmade:
    def __init__(self) -> None:
        fail(None)

    def __call__(self, batch: object) -> object:
        return batch


USES: dict[str, Callable[[data.Dataset], data.Dataset]] = {
    "map": lambda rows: rows.map(fail),
    "a coroutine": lambda rows: rows.map(fail_later),
    "map_batches": lambda rows: rows.map_batches(fail),
    "flat_map": lambda rows: rows.flat_map(fail),
    "filter": lambda rows: rows.filter(fail),
    "map_groups": lambda rows: rows.groupby("id").map_groups(fail),
    "add_column": lambda rows: rows.add_column("x", fail),
    "a pool": lambda rows: rows.map_batches(Failing, concurrency=1),
    "a constructor": lambda rows: rows.map_batches(Unmade, concurrency=1),
}


@pytest.mark.parametrize("use", USES)
def test_errors_of_functions_are_of_both_kinds(use: str) -> None:
    with pytest.raises(exceptions.UserCodeException, match="it was 7") as caught:
        USES[use](data.range(3)).materialize()
    if use == "a constructor":
        assert isinstance(getattr(caught.value, "cause", None), OddError)
        return
    assert isinstance(caught.value, OddError)
    again = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(again, exceptions.UserCodeException)
    assert isinstance(again, exceptions.TaskError)
    assert isinstance(again, OddError)


def test_other_errors_are_none_of_a_function(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"x\n1\n")
    rows = data.read_csv(str(tmp_path)).map(lambda row: row)
    (tmp_path / "a.csv").unlink()
    with pytest.raises(FileNotFoundError) as caught:
        rows.materialize()
    assert not isinstance(caught.value, exceptions.UserCodeException)


def test_what_a_function_returns_wrongly_is_its_error() -> None:
    with pytest.raises(exceptions.UserCodeException, match=r"The result of map_batches\(`.*`\) must be a dict of"):
        data.range(3).map_batches(lambda batch: 5).materialize()


class Counts(Datasink[int]):
    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, blocks: Any, ctx: object) -> int:
        return sum(table.num_rows for table in blocks)

    def on_write_complete(self, write_result: WriteResult[int]) -> None:
        self._path.write_text(str(sum(write_result.write_returns)))


def test_targets_say_what_they_return(tmp_path: Path) -> None:
    data.range(10).write_datasink(Counts(tmp_path / "count"))
    assert (tmp_path / "count").read_text() == "10"
    assert hocket.data.context is context
