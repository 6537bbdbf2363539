"""Chunks, the work that a pool sends to its processes, and the actor that lives in each.

A *chunk* is the pool's unit of work: one call of `apply`, or some items of a `map`. Several chunks go to a process in
one message when they turn out to be short. A process that finds a message longer than `SLICE_SECONDS` of work leaves
the rest undone, and the pool gives it to whoever is free.

Functions travel once to each process and are known by the digest of their code.

Each chunk has its own fate. What can fail on its way (an item, a result, an exception, whose classes are the user's)
travels in a `Parcel`, which is packed and opened for one chunk alone; and whatever a chunk raises, also what
``except Exception`` lets through, is an outcome of it. So nothing is sent twice: each item runs once.
"""

from __future__ import annotations

import builtins
import multiprocessing
import os
import pickle
import sys
import time
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from hocket import exceptions
from hocket._base import texts
from hocket.engine import contract, unsendable, values

SLICE_SECONDS = 0.005
"""How long a process works on one message, if it may choose. A guess: 50 times what the message itself costs (measured:
about 0.1 ms with the change of threads), and short enough that processes finish together."""

MAX_FUNCTIONS = 64
"""How many functions a process remembers after a message: those that messages needed last. The pool counts the same
way, so that it knows what a process has forgotten."""

APPLY = 0
MAP = 1
STARMAP = 2
REFUSED = 3
"""What a chunk is; the last one could not be sent, and stands for itself in a row of others."""

Outcome = tuple[bool, Any]
"""Whether a chunk succeeded, and its result or its `Failure`."""


class RemoteTraceback(Exception):  # noqa: N818 (the name that multiprocessing gives it)
    """Where in another process an exception was raised; the ``__cause__`` of that exception."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


class Failure:
    """An exception on its way to the pool.

    Args:
        data: A `TaskError`, encoded, which can be opened everywhere.
    """

    def __init__(self, data: bytes) -> None:
        self.data = data

    def open(self) -> BaseException:
        """Return the exception, with the traceback of the process as its cause. Where it cannot travel, it is a
        `HocketError` with its text. One that is no `Exception` would end the program, and StopIteration the loop over
        the results: these are the cause of a `TaskError`, as `hocket.get` has it."""
        found: exceptions.TaskError = values.decode(self.data)
        error = found.cause
        kind = type(error)
        if not issubclass(kind, Exception) or issubclass(kind, StopIteration | StopAsyncIteration):
            return found
        vars(BaseException)["__cause__"].__set__(error, RemoteTraceback(found.traceback_str))
        return error


class Parcel(NamedTuple):
    """A value, or a function, in the form that travels: opened where it is used, by itself."""

    data: bytes
    buffers: list[object]
    """The memory of the large values in it."""

    def open(self) -> Any:
        """Return the value."""
        return values.decode(*self)


def pack(value: object, what: str, explain: Callable[[object, str, Exception], str] | None = None) -> object:
    """Return a value as it can travel together with others: as it is, if nothing can go wrong, or in a `Parcel`.

    Raises:
        SerializationError: It cannot travel.
    """
    if values.is_simple(value):
        return value
    encoded = values.encode(value, what, explain)
    if encoded.refs:
        return value  # references count only in an encoding that the engine makes
    return Parcel(encoded.data, list(map(pickle.PickleBuffer, encoded.buffers)))


def unpack(value: Any) -> Any:
    """Return what was packed."""
    return value.open() if type(value) is Parcel else value


def remember(known: dict[Any, Any], key: object, value: object) -> None:
    """Put something into a dict that holds `MAX_FUNCTIONS`; the oldest one goes."""
    known[key] = value
    if len(known) > MAX_FUNCTIONS:
        del known[next(iter(known))]


def renew(known: dict[bytes, Any], functions: Mapping[bytes, object]) -> None:
    """Make functions the newest of a dict, in their order."""
    for digest, function in functions.items():
        known.pop(digest, None)
        known[digest] = function


def forget(known: dict[bytes, Any]) -> None:
    """Drop the oldest functions of a dict that has more than `MAX_FUNCTIONS`."""
    while len(known) > MAX_FUNCTIONS:
        del known[next(iter(known))]


class PoolProcess:
    """The actor in each process of a pool."""

    def __init__(self, initializer: Callable[..., object] | None, initargs: tuple[object, ...]) -> None:
        multiprocessing.current_process().name = f"HocketPoolWorker-{os.getpid()}"
        self._functions: dict[bytes, Any] = {}
        #: Why the initializer failed; it is what comes of all work.
        self._failure: Failure | None = None
        if initializer is not None:
            try:
                initializer(*initargs)
            except BaseException as error:  # whatever the user's code raises is the caller's to see
                if is_meant_for_process(error):
                    raise
                self._failure = build_failure(initializer, error)

    def run(
        self, new: list[tuple[bytes, Parcel]], digests: list[bytes], chunks: list[tuple[int, object]]
    ) -> tuple[list[Outcome], float]:
        """Work on chunks, in order, as long as `SLICE_SECONDS` allow; at least on one.

        Args:
            new: Digest and code of functions that this process does not know.
            digests: Which function each chunk is for; only one if they are all for the same.
            chunks: What to do, and with what.

        Returns:
            The outcomes of those that were done, and the seconds that they took.
        """
        codes = self._functions | dict(new)
        renew(self._functions, {digest: codes[digest] for digest in digests})
        started = time.perf_counter()
        outcomes: list[Outcome] = []
        spent = 0.0
        for position, (kind, work) in enumerate(chunks):
            digest = digests[position if len(digests) > 1 else 0]
            outcomes.append(self._run_chunk(digest, kind, work))
            spent = time.perf_counter() - started
            if spent > SLICE_SECONDS:
                break
        forget(self._functions)  # not before: one message may need more
        return outcomes, spent

    def apply(self, digest: bytes, *args: object) -> Outcome:
        """Work on one chunk of `APPLY`, for a function that is known: less to encode than with `run`."""
        return self._run_chunk(digest, APPLY, (args, {}))

    def _run_chunk(self, digest: bytes, kind: int, work: Any) -> Outcome:
        result: Any
        if self._failure is not None or kind == REFUSED:
            return False, self._failure
        function: Any = None
        try:
            function = self._functions[digest]
            if type(function) is Parcel:
                function = self._functions[digest] = function.open()
            work = unpack(work)
            if kind == MAP:
                result = [function(item) for item in work]  # `map` would end at a StopIteration of the function's
            elif kind == STARMAP:
                result = [function(*args) for args in work]
            else:
                args, kwargs = work
                result = function(*args, **kwargs)
            return True, pack(result, "the result", unsendable.explain_result)
        except BaseException as error:  # whatever the user's code raises is the caller's to see
            if is_meant_for_process(error):
                raise
            return False, build_failure(function, error)


def is_meant_for_process(error: BaseException) -> bool:
    """Tell whether an exception is not of the code that it went through: it ends the actor, or is Ctrl-C."""
    kind = type(error)
    return issubclass(kind, exceptions.ActorExit) or (
        issubclass(kind, KeyboardInterrupt) and contract.is_from_handler(error)
    )


def is_fixed(function: object) -> bool:
    """Tell whether what travels of a function stays the same: it is found by its name, or uses nothing but its
    arguments and built-ins.
    """
    if isinstance(function, types.BuiltinFunctionType):
        return isinstance(function.__self__, types.ModuleType)
    if not isinstance(function, types.FunctionType):
        return False
    module = sys.modules.get(function.__module__)
    if function.__module__ != "__main__" and getattr(module, function.__qualname__, None) is function:
        return True
    if function.__closure__ or function.__defaults__ or function.__kwdefaults__ or function.__dict__:
        return False
    codes = [function.__code__]
    for code in codes:
        codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    names = {name for code in codes for name in code.co_names}
    return all(hasattr(builtins, name) for name in names) and names.isdisjoint(function.__globals__)


def build_failure(function: object, error: BaseException) -> Failure:
    """Return what can travel of an exception that a function has raised."""
    name = texts.safe_text(getattr(function, "__qualname__", type(function).__qualname__))
    return Failure(values.encode_error(exceptions.TaskError(name, texts.format_error(error), error)))


def build_chunks(items: Iterable[object], size: int) -> list[list[object]]:
    """Return the items in lists of at most `size`."""
    whole = items if isinstance(items, list) else list(items)
    return [whole[start : start + size] for start in range(0, len(whole), size)]
