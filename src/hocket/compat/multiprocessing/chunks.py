"""Chunks, a pool's unit of work, and the actor in each of the pool's processes.

A *chunk* is one call of `apply`, or some items of a `map`. The pool sends several short chunks to a process in one
message. After `SLICE_SECONDS` of work on a message, the process returns, and the pool gives the rest to a free process.

A function travels once to each process, and is known there by the digest of its code.

Each chunk succeeds or fails alone. Items, results and exceptions have classes of the user's, which can fail on the way.
So they travel in a `Parcel` for one chunk alone. All that a chunk raises is its outcome, even if ``except Exception``
would miss it. Hence no chunk is sent twice: each item runs once.
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
"""How long a process works on one message, if it may choose. A guess: 50 times the cost of the message itself
(measured: about 0.1 ms with the change of threads), and short enough for processes to finish together."""

MAX_FUNCTIONS = 64
"""How many functions a process remembers after a message: the ones used last. The pool counts in the same way, and so
knows which functions a process has forgotten."""

APPLY = 0
MAP = 1
STARMAP = 2
REFUSED = 3
"""The kinds of chunks. A `REFUSED` chunk could not be sent; it keeps its place among the other chunks."""

Outcome = tuple[bool, Any]
"""Whether a chunk succeeded, and its result or its `Failure`."""


class RemoteTraceback(Exception):  # noqa: N818 (the name that multiprocessing gives it)
    """The traceback of an exception in another process; the ``__cause__`` of that exception."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


class Failure:
    """An exception on its way to the pool.

    Args:
        data: An encoded `TaskError`, which every process can decode.
    """

    def __init__(self, data: bytes) -> None:
        self.data = data

    def open(self) -> BaseException:
        """Return the exception, with the process's traceback as its cause. An exception that cannot travel becomes a
        `HocketError` with its text. An exception that is no `Exception` would end the program, and StopIteration would
        end the loop over the results: these two become the cause of a `TaskError`, as in `hocket.get`."""
        found: exceptions.TaskError = values.decode(self.data)
        error = found.cause
        kind = type(error)
        if not issubclass(kind, Exception) or issubclass(kind, StopIteration | StopAsyncIteration):
            return found
        vars(BaseException)["__cause__"].__set__(error, RemoteTraceback(found.traceback_str))
        return error


class Parcel(NamedTuple):
    """A value or function, encoded for travel. It is decoded alone, at its place of use."""

    data: bytes
    buffers: list[object]
    """The memory of its large values."""

    def open(self) -> Any:
        """Return the value."""
        return values.decode(*self)


def pack(value: object, what: str, explain: Callable[[object, str, Exception], str] | None = None) -> object:
    """Return a value in a form that can travel with others: unchanged if nothing can go wrong, else in a `Parcel`.

    Raises:
        SerializationError: The value cannot travel.
    """
    if values.is_simple(value):
        return value
    encoded = values.encode(value, what, explain)
    if encoded.refs:
        return value  # references count only in an encoding by the engine
    return Parcel(encoded.data, list(map(pickle.PickleBuffer, encoded.buffers)))


def unpack(value: Any) -> Any:
    """Return the value that `pack` packed."""
    return value.open() if type(value) is Parcel else value


def remember(known: dict[Any, Any], key: object, value: object) -> None:
    """Put a value into a dict; if that has more than `MAX_FUNCTIONS`, drop the oldest."""
    known[key] = value
    if len(known) > MAX_FUNCTIONS:
        del known[next(iter(known))]


def renew(known: dict[bytes, Any], functions: Mapping[bytes, object]) -> None:
    """Make functions the newest ones of a dict, in their order."""
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
        #: The failure of the initializer, which becomes the outcome of all work.
        self._failure: Failure | None = None
        if initializer is not None:
            try:
                initializer(*initargs)
            except BaseException as error:  # the caller sees all errors of the user's code
                if is_meant_for_process(error):
                    raise
                self._failure = build_failure(initializer, error)

    def run(
        self, new: list[tuple[bytes, Parcel]], digests: list[bytes], chunks: list[tuple[int, object]]
    ) -> tuple[list[Outcome], float]:
        """Work on chunks in order, until `SLICE_SECONDS` have passed; at least on one.

        Args:
            new: Digest and code of functions that are new to this process.
            digests: The function's digest for each chunk; a single one if all chunks share it.
            chunks: The kind and the work of each chunk.

        Returns:
            The outcomes of the finished chunks, and the seconds that they took.
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
        forget(self._functions)  # only now: one message may need more
        return outcomes, spent

    def apply(self, digest: bytes, *args: object) -> Outcome:
        """Work on one `APPLY` chunk with a known function: cheaper to encode than `run`."""
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
                result = [function(item) for item in work]  # not `map`, which a StopIteration of the function would end
            elif kind == STARMAP:
                result = [function(*args) for args in work]
            else:
                args, kwargs = work
                result = function(*args, **kwargs)
            return True, pack(result, "the result", unsendable.explain_result)
        except BaseException as error:  # the caller sees all errors of the user's code
            if is_meant_for_process(error):
                raise
            return False, build_failure(function, error)


def is_meant_for_process(error: BaseException) -> bool:
    """Return whether an exception is not the user's code's own: it ends the actor, or is Ctrl-C."""
    kind = type(error)
    return issubclass(kind, exceptions.ActorExit) or (
        issubclass(kind, KeyboardInterrupt) and contract.is_from_handler(error)
    )


def is_fixed(function: object) -> bool:
    """Return whether a function's encoding never changes: it is found by name, or uses only arguments and built-ins."""
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
    """Return a function's exception in a form that can travel."""
    name = texts.safe_text(getattr(function, "__qualname__", type(function).__qualname__))
    return Failure(values.encode_error(exceptions.TaskError(name, texts.format_error(error), error)))


def build_chunks(items: Iterable[object], size: int) -> list[list[object]]:
    """Return the items in lists of at most `size`."""
    whole = items if isinstance(items, list) else list(items)
    return [whole[start : start + size] for start in range(0, len(whole), size)]
