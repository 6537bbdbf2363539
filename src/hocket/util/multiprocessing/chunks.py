"""Chunks, the work that a pool sends to its processes, and the actor that lives in each.

A *chunk* is the pool's unit of work: one call of `apply`, or some items of a `map`. Several chunks go to a process in
one message when they turn out to be short. A process that finds a message longer than `SLICE_SECONDS` of work leaves
the rest undone, and the pool gives it to whoever is free.

Functions travel once to each process and are known by the digest of their code.
"""

from __future__ import annotations

import builtins
import multiprocessing
import os
import sys
import time
import types
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from hocket._base import texts
from hocket.engine import pickling, values

SLICE_SECONDS = 0.005
"""How long a process works on one message, if it may choose. A guess: 50 times what the message itself costs (measured:
about 0.1 ms with the change of threads), and short enough that processes finish together."""

MAX_FUNCTIONS = 64
"""How many functions a process remembers. The pool counts the same way, so that it knows what a process has
forgotten."""

APPLY = 0
MAP = 1
STARMAP = 2

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
    """An exception on its way to the pool."""

    def __init__(self, error: BaseException, text: str) -> None:
        self.error = error
        self.text = text

    def open(self) -> BaseException:
        """Return the exception, with the traceback of the process as its cause."""
        vars(BaseException)["__cause__"].__set__(self.error, RemoteTraceback(self.text))
        return self.error


class Code(NamedTuple):
    """A function in the form that travels."""

    blob: bytes
    buffers: list[object]
    """The memory of the large values that it refers to."""


def remember(known: dict[Any, Any], key: object, value: object) -> None:
    """Put something into a dict that holds `MAX_FUNCTIONS`; the oldest one goes."""
    known[key] = value
    if len(known) > MAX_FUNCTIONS:
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
            except Exception as error:  # whatever the user's code raises is the caller's to see
                self._failure = build_failure(error)

    def run(
        self, new: list[tuple[bytes, Code]], digests: list[bytes], chunks: list[tuple[int, object]]
    ) -> tuple[list[Outcome], float]:
        """Work on chunks, in order, as long as `SLICE_SECONDS` allow; at least on one.

        Args:
            new: Digest and code of functions that this process does not know.
            digests: Which function each chunk is for; only one if they are all for the same.
            chunks: What to do, and with what.

        Returns:
            The outcomes of those that were done, and the seconds that they took.
        """
        for digest, code in new:
            self._functions.pop(digest, None)
            remember(self._functions, digest, code)
        started = time.perf_counter()
        outcomes: list[Outcome] = []
        spent = 0.0
        for position, (kind, work) in enumerate(chunks):
            digest = digests[position if len(digests) > 1 else 0]
            outcomes.append(self._run_chunk(digest, kind, work, is_alone=len(chunks) == 1))
            spent = time.perf_counter() - started
            if spent > SLICE_SECONDS:
                break
        return outcomes, spent

    def apply(self, digest: bytes, *args: object) -> Outcome:
        """Work on one chunk of `APPLY`, for a function that is known: less to encode than with `run`."""
        return self._run_chunk(digest, APPLY, (args, {}), is_alone=True)

    def _run_chunk(self, digest: bytes, kind: int, work: Any, *, is_alone: bool) -> Outcome:
        result: Any
        if self._failure is not None:
            return False, self._failure
        try:
            function = self._functions[digest]
            if type(function) is Code:
                function = self._functions[digest] = values.decode(*function)
            if kind == MAP:
                result = list(map(function, work))
            elif kind == STARMAP:
                result = [function(*args) for args in work]
            else:
                args, kwargs = work
                result = function(*args, **kwargs)
            if not is_alone and not values.is_plain(result):
                values.encode(result, "the result")  # one that cannot travel must not keep the others from it
        except Exception as error:  # whatever the user's code raises is the caller's to see
            return False, build_failure(error)
        return True, result


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


def build_failure(error: Exception) -> Failure:
    """Return what can travel of an exception."""
    text = texts.format_error(error)
    for name in ("__cause__", "__context__"):  # they are in the text, and might not be able to travel
        vars(BaseException)[name].__set__(error, None)
    if not pickling.can_travel(error):
        error = RuntimeError(f"{type(error).__module__}.{texts.describe(error)}")
    return Failure(error, text)


def build_chunks(items: Iterable[object], size: int) -> list[list[object]]:
    """Return the items in lists of at most `size`."""
    whole = items if isinstance(items, list) else list(items)
    return [whole[start : start + size] for start in range(0, len(whole), size)]
