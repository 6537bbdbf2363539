"""What cannot travel is named, with the path to it and one thing to do instead: as an argument, in a closure,
returned, raised."""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import hashlib
import mmap
import multiprocessing
import os
import queue
import re
import socket
import sqlite3
import subprocess
import sys
import threading
import traceback
import types
import weakref
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import hocket
from hocket.exceptions import HocketError, SerializationError, TaskError


class Holder:
    """An object with a part that cannot travel, and with itself."""

    def __init__(self) -> None:
        self.name = "holder"
        self.itself = self
        self.parts = [{"guard": threading.Lock()}]


class Weak:
    pass


async def wait() -> None:
    """A coroutine function."""


def make_generator() -> Any:
    return (number for number in range(3))


def make_local_class() -> Any:
    class Local:
        def __init__(self) -> None:
            self.guard = threading.Lock()

    return Local()


def make_function_with_lock() -> Any:
    guard = threading.Lock()
    return lambda: guard


def make_module() -> Any:
    module = types.ModuleType("made_here")
    module.guard = threading.Lock()  # type: ignore[attr-defined]
    return module


KEPT = Weak()
"""Keeps the target of weak references alive."""


@dataclass(frozen=True)
class Case:
    make: Callable[[], Any]
    path: str
    """After the name of the argument: which part it is; empty is the thing itself."""
    kind: str
    advice: str
    end: Callable[[Any], object] = lambda thing: None


def open_for_writing() -> Any:
    return Path(os.devnull).open("w")


def open_for_reading_bytes() -> Any:
    return Path(__file__).open("rb")


CASES = {
    "lock": Case(threading.Lock, "", "_thread.lock", "create the lock inside the function"),
    "rlock": Case(threading.RLock, "", "_thread.RLock", "create the lock inside the function"),
    "condition": Case(threading.Condition, "", "threading.Condition", "create the condition inside the function"),
    "event": Case(threading.Event, "", "threading.Event", "wait for an object reference instead"),
    "semaphore": Case(threading.Semaphore, "", "threading.Semaphore", "limit the tasks with num_cpus"),
    "barrier": Case(lambda: threading.Barrier(2), "", "threading.Barrier", "wait for object references instead"),
    "thread": Case(threading.Thread, "", "threading.Thread", "start the thread inside the function"),
    "thread-local": Case(threading.local, "", "_thread._local", "create the thread-local state inside"),
    "queue": Case(queue.Queue, "", "queue.Queue", "keep the queue in an actor"),
    "shared lock": Case(multiprocessing.Lock, "", "multiprocessing.synchronize.Lock", "create the lock inside"),
    "executor": Case(
        lambda: futures.ThreadPoolExecutor(1),
        "",
        "concurrent.futures.thread.ThreadPoolExecutor",
        "create the pool inside",
    ),
    "socket": Case(socket.socket, "", "socket.socket", "open the connection inside", socket.socket.close),
    "database": Case(
        lambda: sqlite3.connect(":memory:"),
        "",
        "sqlite3.Connection",
        "open the connection inside",
        sqlite3.Connection.close,
    ),
    "generator": Case(make_generator, "", "builtins.generator", "pass a list"),
    "coroutine": Case(
        wait,
        "",
        "builtins.coroutine",
        "pass the arguments and create the coroutine inside",
        lambda thing: thing.close(),
    ),
    "file": Case(open_for_writing, "", "_io.TextIOWrapper", "pass the path and open", lambda file: file.close()),
    "binary file": Case(
        open_for_reading_bytes, "", "_io.BufferedReader", "pass the path and open", lambda file: file.close()
    ),
    "frame": Case(sys._getframe, "", "builtins.frame", "pass the values that you need"),
    "memory map": Case(lambda: mmap.mmap(-1, 10), "", "mmap.mmap", "pass the path and map", mmap.mmap.close),
    "weak reference": Case(lambda: weakref.ref(KEPT), "", "weakref.ReferenceType", "pass the object itself"),
    "pointer": Case(lambda: ctypes.pointer(ctypes.c_int(1)), "", "LP_c_int", "pass the value that it points to"),
    "process": Case(
        lambda: subprocess.Popen(["true"]), "", "subprocess.Popen", "start it inside", lambda process: process.wait()
    ),
    "context variable": Case(lambda: contextvars.ContextVar("v"), "", "ContextVar", r"pass its value, with \.get\(\)"),
    "match": Case(lambda: re.match("a", "a"), "", "re.Match", r"pass match\.groups\(\)"),
    "digest": Case(hashlib.sha256, "", "_hashlib.HASH", r"pass its digest\(\)"),
    "event loop": Case(
        asyncio.SelectorEventLoop,  # a worker of Ray's may make others by default
        "",
        "asyncio.unix_events._UnixSelectorEventLoop",
        "get the loop inside",
        lambda loop: loop.close(),
    ),
    "folder": Case(
        lambda: os.scandir("/"), "", "posix.ScandirIterator", "pass a list of the paths", lambda it: it.close()
    ),
    "local class": Case(make_local_class, r"\.guard", "_thread.lock", "create the lock inside the function"),
    "function": Case(
        make_function_with_lock, " -> closure variable 'guard'", "_thread.lock", "create the lock inside the function"
    ),
    "module": Case(make_module, "", "builtins.module", "import the module inside the function"),
    "object that holds itself": Case(
        Holder, r"\.parts\[0\]\['guard'\]", "_thread.lock", "create the lock inside the function"
    ),
}


@pytest.fixture(scope="module", autouse=True)
def one_session() -> Iterator[None]:
    with hocket.init(num_cpus=1):
        yield


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@pytest.fixture
def thing(case: Case) -> Iterator[Any]:
    made = case.make()
    yield made
    case.end(made)


RESULT_ADVICE = {
    "generator": "use yield in the function, or return a list",
    "coroutine": r"await it, or run it with asyncio\.run\(\.\.\.\), and return its result",
    "file": "return the path, or the contents of the file",
    "binary file": "return the path, or the contents of the file",
    "frame": "return the values that you need from it",
    "memory map": "return the path, or a numpy array",
    "weak reference": "return the object itself",
    "pointer": "return the value that it points to",
    "context variable": r"return its value, with \.get\(\)",
    "match": r"return match\.groups\(\)",
    "digest": r"return its digest\(\)",
    "folder": "return a list of the paths",
    "module": "return the module's name",
}
"""What to do where it was returned; all others are kept in an actor."""


def build_pattern(case: Case, start: str, advice: str = "") -> str:
    kind = re.escape(case.kind)
    cannot = rf"{start}{case.path} is a \S*{kind}, which cannot be pickled \((.|\n)+\)"
    return rf"{cannot}\. Remedy: {advice or case.advice}"


def echo(*args: Any, **kwargs: Any) -> int:
    return len(args) + len(kwargs)


NOBODY_CAN_CLOSE_IT = pytest.mark.filterwarnings(
    # A task makes the thing and cannot hand it over; in the in-process engine its end is seen by this process.
    "ignore::ResourceWarning",
    "ignore::RuntimeWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
)


def test_there_are_more_than_twenty() -> None:
    assert len(CASES) > 20


def test_argument(case: Case, thing: Any) -> None:
    task = hocket.remote(echo)
    message = "Cannot send the arguments of remote function `echo` to another process: "
    with pytest.raises(SerializationError, match=build_pattern(case, message + "argument 1")):
        task.remote(1, thing)
    with pytest.raises(SerializationError, match=build_pattern(case, message + "argument 'tool'")):
        task.remote(1, tool=thing)
    with pytest.raises(SerializationError, match=build_pattern(case, message + r"argument 0\['tools'\]\[2\]")):
        task.remote({"tools": [1, 2, thing]})


def test_put(case: Case, thing: Any) -> None:
    with pytest.raises(SerializationError, match=build_pattern(case, r"value\[0\]")):
        hocket.put((thing,))


def test_closure(case: Case, thing: Any) -> None:
    def use() -> int:
        return id(thing)

    with pytest.raises(SerializationError, match=build_pattern(case, r"`?use`? -> closure variable 'thing'")):
        hocket.remote(use).remote()


@pytest.mark.parametrize("name", CASES)
@NOBODY_CAN_CLOSE_IT
def test_result(name: str) -> None:
    def make() -> Any:
        return CASES[name].make()

    def make_all() -> Iterator[Any]:
        yield CASES[name].make()

    advice = RESULT_ADVICE.get(name, "return plain data, or keep it in an actor")
    with pytest.raises(HocketError, match=build_pattern(CASES[name], "the result of `make`", advice)):
        hocket.get(hocket.remote(max_retries=0)(make).remote())
    with pytest.raises(HocketError, match=build_pattern(CASES[name], "item 0 of `make_all`", advice)):
        hocket.get(next(hocket.remote(max_retries=0)(make_all).remote()))


class CarrierError(Exception):
    """An exception with something in it that cannot travel."""

    def __init__(self, message: str, thing: Any) -> None:
        super().__init__(message)
        self.thing = thing


@pytest.mark.parametrize("name", CASES)
@NOBODY_CAN_CLOSE_IT
def test_exception(name: str) -> None:
    def carry() -> None:
        raise CarrierError("the real reason", CASES[name].make())

    start = r"CarrierError: the real reason\n\(the exception itself could not be sent: .*"
    pattern = build_pattern(CASES[name], start)
    with pytest.raises(HocketError, match=pattern):
        hocket.get(hocket.remote(max_retries=0)(carry).remote())


def refuse() -> None:
    raise LookupError("cannot be rebuilt")


class Stubborn:
    """It can be pickled, but not rebuilt."""

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return refuse, ()


class Hungry:
    """Its constructor needs more than its pickle has."""

    def __init__(self, food: str) -> None:
        self.food = food

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return Hungry, ()


def test_a_result_that_cannot_be_rebuilt_is_named() -> None:
    @hocket.remote
    def make(food: str) -> Hungry:
        return Hungry(food)

    start = r"^(The result of `make`|A value) could not be rebuilt here: TypeError: .*missing 1 required positional argument"
    with pytest.raises(
        SerializationError, match=f"{start}.*return plain data, or give its class a __reduce__"
    ) as caught:
        hocket.get(make.remote("hay"))
    assert [frame.name for frame in caught.traceback][1:] == []
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None or caught.value.__suppress_context__
    with pytest.raises(SerializationError, match=start):
        hocket.get([hocket.put(1), make.remote("hay")])
    with pytest.raises(SerializationError, match=r"^(The value of ObjectRef\(.*\)|A value) could not be rebuilt here"):
        hocket.get(hocket.put(Hungry("grass")))
    inside = hocket.remote(lambda ref: hocket.get(ref[0])).remote([make.remote("hay")])
    with pytest.raises(SerializationError, match=r"(The result of `make`|A value) could not be rebuilt here"):
        hocket.get(inside)


def test_a_result_that_cannot_be_rebuilt_is_explained_where_it_is_awaited() -> None:
    ref = hocket.remote(lambda: Hungry("hay")).remote()

    async def wait() -> object:
        return await ref

    what = r"^(The value of ObjectRef\(.*\)|A value) could not be rebuilt here: TypeError: .*missing 1 required"
    with pytest.raises(SerializationError, match=what):
        asyncio.run(wait())
    with pytest.raises(SerializationError, match=what):
        ref.future().result(timeout=40)


@pytest.mark.needs("decoding_errors")
def test_which_result_cannot_be_rebuilt_is_told() -> None:
    @hocket.remote
    def make() -> Hungry:
        return Hungry("hay")

    with pytest.raises(SerializationError, match=r"^The result of `make` could not be rebuilt here"):
        hocket.get(make.remote())
    with pytest.raises(SerializationError, match=r"^The value of ObjectRef\("):
        hocket.get(hocket.put(Hungry("grass")))


@pytest.mark.needs("decoding_errors")
def test_the_users_own_lines_are_shown_where_a_result_cannot_be_rebuilt() -> None:
    with pytest.raises(SerializationError, match="LookupError: cannot be rebuilt") as caught:
        hocket.get(hocket.remote(lambda: [Stubborn()]).remote())
    cause = caught.value.__cause__
    assert isinstance(cause, LookupError)
    assert [frame.name for frame in traceback.extract_tb(cause.__traceback__)] == ["refuse"]


def test_a_function_that_cannot_be_rebuilt_is_told_from_one_that_raises() -> None:
    stubborn = Stubborn()
    with pytest.raises(TaskError, match="was raised while this process unpickled") as caught:
        hocket.get(hocket.remote(lambda: stubborn).remote())
    assert isinstance(caught.value, LookupError)


class Unnamed:
    """Lets nobody ask for its class."""

    @property  # type: ignore[misc]  # any object may have one
    def __class__(self) -> Any:
        raise ValueError("no class")


def test_an_object_whose_class_cannot_be_asked_for_is_named() -> None:
    for send in (hocket.put, hocket.remote(lambda given: given).remote):
        with pytest.raises(SerializationError, match=r"Cannot send .* to another process: ValueError: no class"):
            send(Unnamed())
