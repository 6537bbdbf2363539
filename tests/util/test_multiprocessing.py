"""Pool: what multiprocessing's does, and what happens when a process dies."""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import os
import pickle
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.compat.multiprocessing import chunks
from hocket.core import session as session_module
from hocket.engine import values
from hocket.util.multiprocessing import Pool, TimeoutError

_state: list[Any] = []


def square(x: int) -> int:
    return x * x


def add(x: int, y: int = 10) -> int:
    return x + y


def fail(x: int) -> None:
    raise KeyError(x)


def fail_at_three(x: int) -> int:
    if x == 3:
        raise ValueError("three")
    return x


def set_up(*args: Any) -> None:
    _state.extend(args)


def get_state(_: object) -> list[Any]:
    return _state


def get_pid(_: object = None) -> int:
    return os.getpid()


def die(_: object = None) -> None:
    os._exit(3)


in_processes = pytest.mark.needs("processes")


@pytest.fixture
def pool(any_session: hocket.SessionContext) -> Iterator[Pool]:
    with Pool(2) as pool:
        yield pool


@pytest.fixture
def local_pool(session: hocket.SessionContext) -> Iterator[Pool]:
    with Pool(2) as pool:
        yield pool


def test_timeout_error_is_the_one_of_multiprocessing() -> None:
    assert TimeoutError is multiprocessing.TimeoutError


def test_apply(pool: Pool) -> None:
    assert pool.apply(add, (1,)) == 11
    assert pool.apply(add, (1,), {"y": 2}) == 3
    assert pool.apply(add, args=[1, 2], kwargs=None) == 3
    assert pool.apply(lambda: "closure") == "closure"
    with pytest.raises(KeyError, match="5"):
        pool.apply(fail, (5,))


def test_a_function_sees_the_globals_of_its_call(pool: Pool) -> None:
    space: dict[str, Any] = {"__name__": "__main__"}
    exec("def get(): return value", space)
    with pytest.raises(NameError, match="value"):
        pool.apply(space["get"])
    for value in range(3):
        space["value"] = value
        assert pool.apply(space["get"]) == value
        assert pool.map(lambda x: x + value, [1, 2]) == [1 + value, 2 + value]  # noqa: B023 (called at once)


def test_which_functions_are_encoded_once() -> None:
    """Only those whose code is all that there is to send."""
    space: dict[str, Any] = {"__name__": "__main__", "known": 1}
    exec(
        "def fixed(x): return [len(y) for y in x]\n"
        "def uses_global(x): return known\n"
        "def uses_unknown(x): return not_yet_known\n"
        "def inner(x): return [(lambda: known)() for _ in x]\n"
        "def default(x=[]): return x\n",
        space,
    )
    assert chunks.is_fixed(space["fixed"])
    assert chunks.is_fixed(square)
    assert chunks.is_fixed(len)
    for name in ("uses_global", "uses_unknown", "inner", "default"):
        assert not chunks.is_fixed(space[name]), name
    assert not chunks.is_fixed([].append)
    assert not chunks.is_fixed(lambda: space)


def test_many_different_functions(pool: Pool) -> None:
    assert [pool.apply(lambda bound=x: bound) for x in range(200)] == list(range(200))
    results = [pool.apply_async(lambda bound=x: bound) for x in range(200)]
    assert [result.get() for result in results] == list(range(200))


def test_functions_that_are_used_again_and_again(local_pool: Pool) -> None:
    """More than a process remembers, in another order each time."""
    drawn = random.Random(1)
    functions = [eval(f"lambda x: x + {number}") for number in range(chunks.MAX_FUNCTIONS + 6)]
    for _ in range(30):
        numbers = [drawn.randrange(len(functions)) for _ in range(40)]
        results = [local_pool.apply_async(functions[number], (1,)) for number in numbers]
        assert [result.get() for result in results] == [number + 1 for number in numbers]


def test_one_message_may_need_what_it_makes_a_process_forget() -> None:
    encoded = [values.encode_function(eval(f"lambda x: x + {n}"), "f") for n in range(2 * chunks.MAX_FUNCTIONS)]
    process = chunks.PoolProcess(None, ())
    known: dict[bytes, Any] = {}
    most = chunks.MAX_FUNCTIONS
    for needed in (*([one] for one in encoded[:most]), [encoded[0], encoded[most]], encoded[::-1], encoded[most - 1 :]):
        new = [(one.id, chunks.Parcel(one.blob, list(one.buffers))) for one in needed if one.id not in known]
        work: list[tuple[int, object]] = [(chunks.APPLY, ((1,), {}))] * len(needed)
        outcomes, _ = process.run(new, [one.id for one in needed], work)
        assert outcomes == [(True, encoded.index(one) + 1) for one in needed[: len(outcomes)]]
        chunks.renew(known, {one.id: one for one in needed})
        chunks.forget(known)


@pytest.mark.parametrize("chunksize", [None, 1, 3, 1000])
def test_map(pool: Pool, chunksize: int | None) -> None:
    expected = [x * x for x in range(100)]
    assert pool.map(square, range(100), chunksize) == expected
    assert pool.map_async(square, iter(range(100)), chunksize).get() == expected
    assert pool.starmap(add, [(x, x) for x in range(100)], chunksize) == [2 * x for x in range(100)]
    assert pool.starmap_async(add, ((x,) for x in range(5)), chunksize).get() == [10, 11, 12, 13, 14]
    assert list(pool.imap(square, range(100), chunksize)) == expected
    assert sorted(pool.imap_unordered(square, range(100), chunksize)) == expected


def test_no_items(pool: Pool) -> None:
    assert pool.map(square, []) == []
    assert pool.map_async(square, []).get(timeout=0) == []
    assert list(pool.imap(square, [])) == []
    assert list(pool.imap_unordered(square, [])) == []


def test_arrays(pool: Pool) -> None:
    arrays = [np.full(100_000, x) for x in range(4)]
    totals = pool.map(np.sum, arrays, chunksize=1)
    assert totals == [100_000 * x for x in range(4)]
    doubled = pool.map(lambda array: array * 2, arrays)
    assert all((array == 2 * x).all() for x, array in enumerate(doubled))


def test_errors_carry_the_traceback_of_the_process(pool: Pool) -> None:
    for call in (
        lambda: pool.map(fail, [1, 2]),
        lambda: pool.starmap(fail, [(1,)]),
        lambda: next(pool.imap(fail, [1])),
        lambda: pool.map_async(fail, [1]).get(),
    ):
        with pytest.raises(KeyError, match="1") as caught:
            call()
        assert "in fail" in str(caught.value.__cause__)


class UndescribedError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


def fail_strangely(x: int) -> None:
    raise UndescribedError


def test_errors_that_cannot_be_described_are_raised_too(pool: Pool) -> None:
    with pytest.raises(UndescribedError) as caught:
        pool.map(fail_strangely, [1, 2])
    assert "in fail_strangely" in str(caught.value.__cause__)


def test_imap_goes_on_after_an_error(pool: Pool) -> None:
    results = pool.imap(fail_at_three, range(6))
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="three"):
        next(results)
    assert list(results) == [4, 5]


def test_imap_reads_an_endless_iterable_as_needed(pool: Pool) -> None:
    results = pool.imap(square, itertools.count())
    assert [next(results) for _ in range(1000)] == [x * x for x in range(1000)]


def test_imap_raises_what_its_iterable_raised_in_its_place(pool: Pool) -> None:
    def give() -> Iterator[int]:
        yield 1
        yield 2
        raise RuntimeError("no more paper")

    results = pool.imap(square, give())
    assert [next(results), next(results)] == [1, 4]
    with pytest.raises(RuntimeError, match="no more paper"):
        next(results)
    with pytest.raises(StopIteration):
        next(results)


def test_imap_after_close_and_join(pool: Pool) -> None:
    results = pool.imap(square, range(500))
    unordered = pool.imap_unordered(square, range(500))
    pool.close()
    pool.join()
    assert list(results) == [x * x for x in range(500)]
    assert sorted(unordered) == [x * x for x in range(500)]


@in_processes
def test_waiting(local_pool: Pool, tmp_path: Path) -> None:
    paths = [tmp_path / "first", tmp_path / "second"]
    for path in paths:
        os.mkfifo(path)
    result = local_pool.apply_async(Path.read_text, (paths[0],))
    assert not result.ready()
    result.wait(timeout=0)
    with pytest.raises(ValueError, match=r"AsyncResult object at .* not ready"):
        result.successful()
    with pytest.raises(TimeoutError, match=r"not there after 0.01 s"):
        result.get(timeout=0.01)
    slow = local_pool.imap(Path.read_text, [paths[1]])
    with pytest.raises(TimeoutError, match=r"not there after 0.01 s"):
        slow.next(timeout=0.01)
    for path in paths:
        path.write_text(path.name)
    assert slow.next(timeout=30) == "second"
    result.wait()
    assert result.ready()
    assert result.successful()
    assert result.get() == "first"
    failed = local_pool.apply_async(fail, (1,))
    failed.wait()
    assert not failed.successful()


def test_callbacks(pool: Pool) -> None:
    told: list[Any] = []
    pool.apply_async(square, (3,), callback=told.append, error_callback=fail).wait()
    pool.map_async(square, [1, 2], callback=told.append, error_callback=fail).wait()
    pool.starmap_async(add, [(1, 2)], callback=told.append, error_callback=fail).wait()
    assert told == [9, [1, 4], [3]]
    errors: list[Any] = []
    pool.apply_async(fail, (1,), callback=fail, error_callback=errors.append).wait()
    pool.map_async(fail, [2, 3], chunksize=1, callback=fail, error_callback=errors.append).wait()
    assert [type(error) for error in errors] == [KeyError, KeyError]


def test_a_callback_may_use_the_pool(pool: Pool) -> None:
    found: list[Any] = []
    done = threading.Event()

    def finish(value: int) -> None:
        found.append(value)
        done.set()

    def go_on(value: int) -> None:
        found.append(pool.apply_async(square, (value,), callback=finish))

    pool.apply_async(square, (2,), callback=go_on)
    assert done.wait(30)
    assert found[1] == 16


@pytest.mark.filterwarnings("ignore:A callback of a Pool raised KeyError")  # what is tested
def test_a_callback_that_fails_does_not_harm_the_pool(pool: Pool) -> None:
    assert pool.apply_async(square, (2,), callback=fail).get() == 4
    assert pool.apply(square, (3,)) == 9


@in_processes
def test_initializer_runs_once_in_each_process(local_pool: Pool) -> None:
    with Pool(2, initializer=set_up, initargs=[1, "a"]) as pool:
        assert pool.map(get_state, range(20), chunksize=1) == [[1, "a"]] * 20


@in_processes
def test_an_initializer_that_fails_is_reported(local_pool: Pool) -> None:
    with (
        Pool(1, initializer=fail, initargs=(7,)) as pool,
        pytest.raises(KeyError, match="7") as caught,
    ):
        pool.apply(square, (1,))
    assert "in fail" in str(caught.value.__cause__)


@in_processes
def test_work_is_done_in_the_pools_processes(local_pool: Pool) -> None:
    pids = set(local_pool.map(get_pid, range(50), chunksize=1))
    assert 1 <= len(pids) <= 2
    assert os.getpid() not in pids


@in_processes
def test_a_free_process_takes_over(local_pool: Pool, tmp_path: Path) -> None:
    """One process is kept busy; the other one does all the rest, and the caller waits for its own work only."""
    path = tmp_path / "gate"
    os.mkfifo(path)
    for _ in range(50):  # the call and the pool's thread race for what is in the row
        busy = local_pool.apply_async(path.read_text)
        assert local_pool.apply(square, (3,)) == 9
        assert local_pool.map(square, range(20), chunksize=1) == [x * x for x in range(20)]
        assert not busy.ready()
        path.write_text("open")
        assert busy.get() == "open"


@in_processes
def test_maxtasksperchild(session: hocket.SessionContext) -> None:
    with Pool(1, maxtasksperchild=2) as pool:
        pids = [pool.apply(get_pid) for _ in range(6)]
        assert pids[0] == pids[1] != pids[2] == pids[3] != pids[4] == pids[5]
        assert len(set(pool.map(get_pid, range(6), chunksize=1))) == 3


@in_processes
def test_a_process_that_dies_is_named_and_replaced(local_pool: Pool) -> None:
    for call in (
        lambda: local_pool.apply(die),
        lambda: local_pool.map(die, [1]),
        lambda: local_pool.apply_async(die).get(),
    ):
        with pytest.raises(
            hocket.exceptions.ActorDiedError, match=r"exited with code 3|Ray reports no signal, exit code"
        ):
            call()
    assert local_pool.map(square, range(10), chunksize=1) == [x * x for x in range(10)]


@in_processes
def test_what_cannot_travel_harms_only_itself(local_pool: Pool) -> None:
    with pytest.raises(hocket.exceptions.SerializationError, match=r"_thread.lock.*Remedy"):
        local_pool.apply(square, (threading.Lock(),))
    with pytest.raises(hocket.exceptions.SerializationError, match=r"_thread.lock.*Remedy"):
        local_pool.apply(threading.Lock)
    assert local_pool.map(square, range(10), chunksize=1) == [x * x for x in range(10)]  # short: they travel together
    makers = [int, threading.Lock, int, threading.Lock, int]
    results = local_pool.imap(lambda maker: maker(), makers)
    assert next(results) == 0
    with pytest.raises(hocket.exceptions.SerializationError, match=r"_thread.lock.*Remedy"):
        next(results)
    results = local_pool.imap(type, [1, threading.Lock(), 2])
    assert next(results) is int
    with pytest.raises(hocket.exceptions.SerializationError, match=r"_thread.lock.*Remedy"):
        next(results)
    assert next(results) is int


@in_processes
def test_an_exception_that_cannot_travel(local_pool: Pool) -> None:
    def raise_lock() -> None:
        raise ValueError(threading.Lock())

    with pytest.raises(hocket.exceptions.HocketError, match=r"builtins.ValueError: <unlocked _thread.lock") as caught:
        local_pool.apply(raise_lock)
    assert "in raise_lock" in str(caught.value.__cause__)


class StopError(BaseException):
    """A base of its own: `except Exception` lets it through."""


class TwoPartsError(Exception):
    """Cannot be called with its `args`, as the exceptions of many libraries."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


class UnpicklableError(Exception):
    def __reduce__(self) -> Any:
        raise ValueError("not me")


class Unreadable:
    def __reduce__(self) -> Any:
        return _refuse, ()


def _refuse() -> None:
    raise ZeroDivisionError("cannot be read")


def raise_stop(kind: Any) -> Any:
    raise kind("enough")


def raise_two_parts() -> Any:
    raise TwoPartsError("enough", 5)


def raise_unpicklable() -> Any:
    raise UnpicklableError("enough")


def get_self_containing() -> Any:
    own: list[Any] = [1]
    own.append(own)
    return threading.Lock(), own


ODD: list[tuple[str, Any, tuple[Any, ...], type[Exception], str]] = [
    ("cancelled", raise_stop, (asyncio.CancelledError,), hocket.exceptions.TaskError, "enough"),
    ("own base", raise_stop, (StopError,), hocket.exceptions.TaskError, "enough"),
    ("generator exit", raise_stop, (GeneratorExit,), hocket.exceptions.TaskError, "enough"),
    ("exit", raise_stop, (SystemExit,), hocket.exceptions.TaskError, "enough"),
    ("interrupt", raise_stop, (KeyboardInterrupt,), hocket.exceptions.TaskError, "enough"),
    ("stop iteration", raise_stop, (StopIteration,), hocket.exceptions.TaskError, "enough"),
    ("two parts", raise_two_parts, (), TwoPartsError, "enough"),
    ("unpicklable error", raise_unpicklable, (), hocket.exceptions.HocketError, "UnpicklableError: enough"),
    ("unreadable result", Unreadable, (), ZeroDivisionError, "cannot be read"),
    ("unpicklable result", get_self_containing, (), hocket.exceptions.SerializationError, "lock"),
    ("unreadable argument", type, (Unreadable(),), ZeroDivisionError, "cannot be read"),
    ("unpicklable argument", type, (threading.Lock(),), hocket.exceptions.SerializationError, "lock"),
]


def note(log: str, number: int, function: Any = None, args: Any = ()) -> Any:
    with Path(log).open("a") as file:
        file.write(f"{number}\n")
    return number if function is None else function(*args)


@pytest.mark.parametrize(("function", "args", "kind", "text"), [one[1:] for one in ODD], ids=[one[0] for one in ODD])
@pytest.mark.parametrize("way", ["apply_async", "imap"])
def test_each_item_runs_once_and_fails_alone(
    pool: Pool, tmp_path: Path, way: str, function: Any, args: Any, kind: type[Exception], text: str
) -> None:
    """Whatever one raises, returns or takes: those that travel with it have their own results."""
    log, number = str(tmp_path / "log"), 20
    pool.starmap(note, [(os.devnull, 0)] * 50, chunksize=1)  # short from now on: chunks travel together
    calls = [(log, n, function, args) if n == 7 else (log, n) for n in range(number)]
    if way == "imap":
        arrived = pool.imap(lambda call: note(*call), calls)
        gets = [arrived.next] * number
    else:
        gets = [result.get for result in [pool.apply_async(note, call) for call in calls]]
    found: list[Any] = []
    for get in gets:
        try:
            found.append(get(20))
        except Exception as raised:  # noqa: BLE001 (its class is looked at)
            found.append(raised)
    error = found[7]
    assert [one for one in found if one is not error] == [n for n in range(number) if n != 7]
    assert type(error) is kind
    assert text in str(error)
    with Path(log).open() as file:
        assert sorted(map(int, file)) == [n for n in range(number) if n != 7 or function is not type]


@pytest.mark.needs("parallelism")
def test_pool_inside_a_task(session: hocket.SessionContext) -> None:
    @hocket.remote(num_cpus=0)
    def use_pool() -> list[int]:
        with Pool(2) as pool:
            return pool.map(square, range(5))

    assert hocket.get(use_pool.remote()) == [0, 1, 4, 9, 16]


def test_close_terminate_join(any_session: hocket.SessionContext) -> None:
    pool = Pool(1)
    with pytest.raises(ValueError, match=r"Pool is still running. Call close\(\) or terminate\(\)"):
        pool.join()
    result = pool.map_async(square, range(10))
    pool.close()
    pool.join()
    assert result.ready()
    assert result.get() == [x * x for x in range(10)]
    for call in (
        lambda: pool.map(square, [1]),
        lambda: pool.apply(square, (1,)),
        lambda: pool.imap(square, [1]),
        pool.__enter__,
    ):
        with pytest.raises(ValueError, match="Pool not running"):
            call()
    pool.close()
    pool.terminate()
    pool.join()


@in_processes
def test_terminate_fails_what_was_not_done(local_pool: Pool, tmp_path: Path) -> None:
    path = tmp_path / "gate"
    os.mkfifo(path)
    results = [local_pool.apply_async(path.read_text) for _ in range(5)]
    local_pool.terminate()
    for result in results:
        with pytest.raises(
            hocket.exceptions.TaskCancelledError, match="The pool was terminated before this work was done"
        ):
            result.get(timeout=30)
    local_pool.join()


def test_the_end_of_the_session_fails_what_was_not_done(session: hocket.SessionContext, tmp_path: Path) -> None:
    path = tmp_path / "gate"
    os.mkfifo(path)
    pool = Pool(1)
    result = pool.apply_async(path.read_text)
    hocket.shutdown()
    with pytest.raises(hocket.exceptions.HocketError, match=r"session|terminated"):
        result.get(timeout=30)
    with pytest.raises((ValueError, hocket.exceptions.SessionClosedError), match=r"not running|session"):
        pool.apply(square, (1,))


def test_a_forgotten_pool_ends(session: hocket.SessionContext) -> None:
    assert Pool(1).map(square, [1, 2]) == [1, 4]
    assert Pool(1).map_async(square, [1, 2]).get() == [1, 4]
    engine = session_module.get_open_engine()
    deadline = time.monotonic() + 30
    while engine.view.statistics()["actors"]:
        assert time.monotonic() < deadline
        hocket.get(hocket.remote(square).remote(1))  # the engine works while somebody waits


def test_resources_of_the_processes(session: hocket.SessionContext) -> None:
    with Pool(2, ray_remote_args={"num_cpus": 1}) as pool:
        assert pool.map(square, [1, 2, 3]) == [1, 4, 9]
        assert "CPU" not in hocket.available_resources()
    with pytest.raises(ValueError, match="3 processes of 1 CPUs each, but there are only 2 CPUs"):
        Pool(3, ray_remote_args={"num_cpus": 1})
    with pytest.raises(ValueError, match="Invalid option keyword 'num_cpu'"):
        Pool(1, ray_remote_args={"num_cpu": 1})


def test_opens_a_session() -> None:
    with Pool(2) as pool:
        assert hocket.cluster_resources()["CPU"] == 2
        assert pool.map(square, [1, 2, 3]) == [1, 4, 9]
    hocket.shutdown()


def test_bad_input(pool: Pool) -> None:
    for count in (0, -1):
        with pytest.raises(ValueError, match=f"Processes in the pool must be >0, but received {count}"):
            Pool(count)
        with pytest.raises(ValueError, match=f"maxtasksperchild must be >0, but received {count}"):
            Pool(1, maxtasksperchild=count)
        calls: tuple[Any, ...] = (pool.map, pool.map_async, pool.starmap, pool.imap, pool.imap_unordered)
        for call in calls:
            with pytest.raises(ValueError, match=rf"Chunksize must be 1\+, but received {count}"):
                call(square, [1], chunksize=count)
    with pytest.raises(TypeError, match="processes must be an int, but received '2'"):
        Pool("2")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="initializer must be a function, but received 3"):
        Pool(1, initializer=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="func must be a function, but received 3"):
        pool.map(3, [1])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="callback must be a function of one argument, but received 3"):
        pool.apply_async(square, (1,), callback=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="'int' object is not iterable"):
        pool.map(square, 3)  # type: ignore[arg-type]
    with pytest.raises(NotImplementedError, match="pool objects cannot be passed between processes"):
        pickle.dumps(pool)
    with pytest.warns(UserWarning, match="'context' argument of Pool is ignored"):
        Pool(1, context=multiprocessing.get_context("spawn"))


def test_function_may_refer_to_large_values(any_session: hocket.SessionContext) -> None:
    array, text = np.ones(100_000), "x" * 400_000
    with Pool(2) as pool:
        assert pool.map(lambda x: len(text) + x, range(4)) == [400_000 + x for x in range(4)]
        assert pool.map(lambda x: float(array.sum()) + x, range(4)) == [100_000.0 + x for x in range(4)]
