"""`multiprocessing.Pool` on Hocket's workers."""

from __future__ import annotations

import itertools
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, NoReturn, Self, final

from hocket.compat.multiprocessing import chunks, pool_workers, results
from hocket.core import actor as core_actor
from hocket.core import api, session

CHUNKS_PER_PROCESS = 4
"""The default number of chunks per process into which `map` divides its items. multiprocessing's number."""


@final
class Pool:
    """Processes that call functions, with the interface of `multiprocessing.Pool`.

    Functions and arguments may be ones that multiprocessing cannot send: lambdas, closures, functions of ``__main__``.
    A process that dies is replaced; its work fails with an error that says how it died.

    Args:
        processes: The number of processes. Default: one for each CPU of the session.
        initializer: A function that each process calls first. If it fails, all work fails with its exception.
        initargs: The arguments of `initializer`.
        maxtasksperchild: After how many chunks to replace a process by a new one. Default: never.
        context: For programs written for multiprocessing: has no effect.
        ray_address: The ``address`` of `hocket.init`, if no session is open.
        ray_remote_args: Options of the processes' actors, such as ``{"num_cpus": 1}``.

    Raises:
        ValueError: A number is below 1, or the processes request more CPUs than the session has.
        TypeError: `initializer` cannot be called, or `processes` is no number.

    Example:
        >>> from hocket.util.multiprocessing import Pool
        >>> with Pool(2) as pool:
        ...     pool.map(lambda x: x * x, range(4))
        [0, 1, 4, 9]
    """

    def __init__(
        self,
        processes: int | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: Iterable[object] | None = None,
        maxtasksperchild: int | None = None,
        context: object = None,
        ray_address: str | None = None,
        ray_remote_args: Mapping[str, object] | None = None,
    ) -> None:
        _check_count("processes", processes, "Processes in the pool must be >0")
        _check_count("maxtasksperchild", maxtasksperchild, "maxtasksperchild must be >0")
        if initializer is not None and not callable(initializer):
            raise TypeError(
                f"initializer must be a function, but received {initializer!r}. Pass it without calling it."
            )
        if context is not None:
            warnings.warn(
                "The 'context' argument of Pool is ignored: processes are started by the session. Leave it out.",
                stacklevel=2,
            )
        if not session.is_initialized():
            session.init(ray_address, num_cpus=processes)
        options = dict(ray_remote_args or {})
        processes = processes or max(1, int(api.cluster_resources().get("CPU", 1)))
        _check_cpus(processes, options)
        process_class = core_actor.ActorClass(chunks.PoolProcess, options)
        arguments = (initializer, tuple(initargs or ()))
        self._workers = pool_workers.PoolWorkers(processes, lambda: process_class.remote(*arguments), maxtasksperchild)
        self._iterators: weakref.WeakSet[results.IMapIterator] = weakref.WeakSet()
        #: Iterators without a taken result. They stay alive: their items are done even if no result is ever taken.
        self._unbegun: set[results.IMapIterator] = set()
        # Not at exit, when the session ends all processes anyway.
        weakref.finalize(self, self._workers.abandon).atexit = False

    # --- one call -----------------------------------------------------------------------------------------------------

    def apply(
        self,
        func: Callable[..., object],
        args: Iterable[object] | None = None,
        kwargs: Mapping[str, object] | None = None,
    ) -> Any:
        """Call ``func(*args, **kwargs)`` in a process, wait for the result, and return it.

        If a signal's handler raises, this call and its work end; the same holds for `map` and `starmap`.
        """
        return self._apply(func, args, kwargs, helps=True)

    def apply_async(
        self,
        func: Callable[..., object],
        args: Iterable[object] | None = None,
        kwargs: Mapping[str, object] | None = None,
        callback: results.Callback | None = None,
        error_callback: results.Callback | None = None,
    ) -> results.AsyncResult:
        """Like `apply`, but return at once.

        Args:
            func: The function to call.
            args: Positional arguments.
            kwargs: Keyword arguments.
            callback: Called with the result, in a thread of the pool.
            error_callback: Called with the exception, in a thread of the pool.
        """
        made: results.AsyncResult = self._apply(func, args, kwargs, callback, error_callback)
        return made

    def _apply(
        self,
        func: Callable[..., object],
        args: Iterable[object] | None,
        kwargs: Mapping[str, object] | None,
        callback: results.Callback | None = None,
        error_callback: results.Callback | None = None,
        *,
        helps: bool = False,
    ) -> Any:
        self._workers.check_running()
        result = results.AsyncResult(1, is_single=True, callback=callback, error_callback=error_callback, owner=self)
        work = (tuple(args or ()), dict(kwargs or {}))
        item = pool_workers.Item(self._workers.encode(func), chunks.APPLY, work, result, 0)
        return self._submit([item], result, helps=helps)

    def _submit(self, items: list[pool_workers.Item], result: results.AsyncResult, *, helps: bool) -> Any:
        """Submit work; return the pending result, or, if the caller helps, the finished value."""
        try:
            self._workers.submit(items, helps=helps)
            if not helps:
                return result
            self._workers.help_out(result)
            return result.get()
        finally:
            if helps and not result.ready():
                self._workers.withdraw(result)

    # --- many calls ---------------------------------------------------------------------------------------------------

    def map(self, func: Callable[[Any], object], iterable: Iterable[object], chunksize: int | None = None) -> list[Any]:
        """Call a function for each item, and return the results in the order of the items.

        Args:
            func: Takes one item.
            iterable: The items; all of them are read first.
            chunksize: How many items a chunk has. Default: a quarter of each process's share.

        Raises:
            ValueError: `chunksize` is below 1, or the pool is closed.
        """
        return self._map(func, iterable, chunksize, chunks.MAP, helps=True)  # type: ignore[no-any-return]

    def map_async(
        self,
        func: Callable[[Any], object],
        iterable: Iterable[object],
        chunksize: int | None = None,
        callback: results.Callback | None = None,
        error_callback: results.Callback | None = None,
    ) -> results.AsyncResult:
        """Like `map`, but return at once."""
        made: results.AsyncResult = self._map(func, iterable, chunksize, chunks.MAP, callback, error_callback)
        return made

    def starmap(
        self, func: Callable[..., object], iterable: Iterable[Iterable[object]], chunksize: int | None = None
    ) -> list[Any]:
        """Like `map`, for items that are the arguments of the function: ``func(*item)``."""
        return self._map(func, iterable, chunksize, chunks.STARMAP, helps=True)  # type: ignore[no-any-return]

    def starmap_async(
        self,
        func: Callable[..., object],
        iterable: Iterable[Iterable[object]],
        chunksize: int | None = None,
        callback: results.Callback | None = None,
        error_callback: results.Callback | None = None,
    ) -> results.AsyncResult:
        """Like `starmap`, but return at once."""
        made: results.AsyncResult = self._map(func, iterable, chunksize, chunks.STARMAP, callback, error_callback)
        return made

    def _map(
        self,
        func: Callable[..., object],
        iterable: Iterable[object],
        chunksize: int | None,
        kind: int,
        callback: results.Callback | None = None,
        error_callback: results.Callback | None = None,
        *,
        helps: bool = False,
    ) -> Any:
        self._workers.check_running()
        _check_count("chunksize", chunksize, "Chunksize must be 1+")
        function = self._workers.encode(func)
        items = list(iterable)
        if chunksize is None:
            chunksize = max(1, -(-len(items) // (self._workers.size * CHUNKS_PER_PROCESS)))
        pieces = chunks.build_chunks(items, chunksize)
        result = results.AsyncResult(
            len(pieces), is_single=False, callback=callback, error_callback=error_callback, owner=self
        )
        items_of = [pool_workers.Item(function, kind, piece, result, position) for position, piece in enumerate(pieces)]
        return self._submit(items_of, result, helps=helps)

    def imap(
        self, func: Callable[[Any], object], iterable: Iterable[object], chunksize: int | None = 1
    ) -> results.IMapIterator:
        """Like `map`, but return an iterator over the results; items are read as results are taken.

        Args:
            func: Takes one item.
            iterable: The items; may be endless.
            chunksize: How many items a chunk has.
        """
        return self._imap(func, iterable, chunksize, is_ordered=True)

    def imap_unordered(
        self, func: Callable[[Any], object], iterable: Iterable[object], chunksize: int | None = 1
    ) -> results.IMapIterator:
        """Like `imap`, with the results in the order in which they arrive."""
        return self._imap(func, iterable, chunksize, is_ordered=False)

    def _imap(
        self, func: Callable[[object], object], iterable: Iterable[object], chunksize: int | None, *, is_ordered: bool
    ) -> results.IMapIterator:
        self._workers.check_running()
        _check_count("chunksize", chunksize, "Chunksize must be 1+")
        function = self._workers.encode(func)
        workers = self._workers

        def submit(work: list[list[object]], receiver: results.Receiver, first: int) -> None:
            workers.submit(
                [
                    pool_workers.Item(function, chunks.MAP, piece, receiver, first + offset)
                    for offset, piece in enumerate(work)
                ]
            )

        iterator = results.IMapIterator(
            _cut(iter(iterable), chunksize or 1),
            submit,
            workers.abandon,
            self._unbegun.discard,
            lambda: workers.count_ahead(function),
            is_ordered=is_ordered,
            owner=self,
        )
        self._iterators.add(iterator)
        self._unbegun.add(iterator)
        return iterator

    # --- the end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Take no more work. The processes end when all work is done, which includes unread items of `imap`."""
        for iterator in list(self._iterators):
            iterator.feed_all()
        self._unbegun.clear()
        self._workers.close()

    def terminate(self) -> None:
        """End the processes now. Unfinished work fails with `TaskCancelledError`."""
        self._unbegun.clear()
        self._workers.terminate()

    def join(self) -> None:
        """Wait until all work is done.

        Raises:
            ValueError: The pool has been neither closed nor terminated.
        """
        if not self._workers.is_closed:
            raise ValueError("Pool is still running. Call close() or terminate() before join().")
        self._workers.join()

    def __enter__(self) -> Self:
        self._workers.check_running()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.terminate()

    def __reduce__(self) -> NoReturn:
        raise NotImplementedError(
            "pool objects cannot be passed between processes or pickled. Make a pool in the process that uses it."
        )


def _check_count(name: str, value: int | None, rule: str) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, but received {value!r}. Leave it out for the default.")
    if value < 1:
        raise ValueError(f"{rule}, but received {value!r}. Leave it out for the default.")


def _check_cpus(processes: int, options: Mapping[str, Any]) -> None:
    total = api.cluster_resources().get("CPU", 0)
    asked = processes * (options.get("num_cpus") or 0)
    if asked > total:
        raise ValueError(
            f"Tried to start a pool with {processes} processes of {options['num_cpus']} CPUs each, but there are only "
            f"{total:g} CPUs in the session. Start fewer, or open the session with hocket.init(num_cpus=...)."
        )


def _cut(items: Iterator[object], size: int) -> Iterator[list[object]]:
    while piece := list(itertools.islice(items, size)):
        yield piece
