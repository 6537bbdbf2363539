"""Remote generators, which return references one by one while they still run."""

from __future__ import annotations

import weakref
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from hocket import exceptions
from hocket._base import texts
from hocket.core import ending
from hocket.engine import contract, methods

T_co = TypeVar("T_co", covariant=True)


class ObjectRefGenerator(Generic[T_co]):
    """The items of a remote generator. ``next`` waits for the next item, and returns a reference to it.

    If the generator raises, the last reference raises in `get`; then the iteration ends. After a worker's death, a
    further attempt continues without a break: no item comes twice. The generator runs ahead of its reader up to a bound
    (see ``_generator_backpressure_num_objects``). When this object is gone, the generator's task is cancelled; if the
    task does not react, its process is ended.

    ``.remote()`` of a generator function returns this object; users do not build it. It belongs to one reader, and
    cannot be sent.

    Example:
        >>> import hocket
        >>> @hocket.remote
        ... def count(n):
        ...     for i in range(n):
        ...         yield i
        >>> [hocket.get(ref) for ref in count.remote(3)]
        [0, 1, 2]
    """

    def __init__(self, stream: contract.ObjectRef[object]) -> None:
        self._engine = stream._engine
        self._stream = stream
        self._index = 0
        self._head: contract.ObjectRef[Any] = self._engine.objects.take_item(stream, 0)
        self._is_over = False
        # Not `__del__`: the garbage collector might finalize the reference first. On Ray the generator may run on, as
        # that engine's limits say.
        self._finalizer = weakref.finalize(self, ending.end, self._engine, [stream], waits=False)
        self._finalizer.atexit = False
        if "abandoned_generators" in self._engine.limits:
            self._finalizer.detach()

    @property
    def head(self) -> contract.ObjectRef[T_co]:
        """The reference to the next item; for `wait`."""
        return self._head

    def completed(self) -> contract.AnyRef:
        """Return the reference that gets a value (None), or the error, when the generator is done.

        The caller may wait for the end before it reads. So from now on the generator does not pause for its reader,
        unless ``_generator_backpressure_num_objects`` sets a bound.
        """
        self._finalizer.detach()  # the caller may wait for the end, and drop this object unread
        self._engine.objects.lift_bound(self._stream)
        return self._stream

    def task_id(self) -> contract.Id:
        """Return the id of the generator's task, in hexadecimal."""
        return self._stream.task_id()

    def is_finished(self) -> bool:
        """Return whether the generator has no further item."""
        return self._is_over or self._engine.objects.is_end(self._head, 0) is True

    def next_ready(self) -> bool:
        """Return whether `next` would return at once, with an item."""
        return not self._is_over and self._engine.objects.is_end(self._head, 0) is False

    def _next_sync(self, timeout_s: float | None = None) -> contract.ObjectRef[T_co]:
        """Return the next item's reference; raise StopIteration at the end, and GetTimeoutError after the time-out."""
        if self._is_over:
            raise StopIteration
        is_end = self._engine.objects.is_end(self._head, timeout_s)
        if is_end is None:
            raise exceptions.GetTimeoutError(
                f"Item {self._index} of the generator was not ready after {timeout_s} s. The generator goes on; call "
                "next again."
            )
        return self._step(is_end)

    def _step(self, is_end: bool) -> contract.ObjectRef[T_co]:
        if is_end:
            self._is_over = True
            self._finalizer.detach()
            raise StopIteration
        item = self._head
        self._index += 1
        self._head = self._engine.objects.take_item(self._stream, self._index)
        return item

    def __iter__(self) -> Iterator[contract.ObjectRef[T_co]]:
        return self

    def __next__(self) -> contract.ObjectRef[T_co]:
        try:
            return self._next_sync()
        except (exceptions.HocketError, KeyboardInterrupt) as error:
            exceptions.hide_frames(error)
            raise

    def __aiter__(self) -> AsyncIterator[contract.ObjectRef[T_co]]:
        return self

    async def __anext__(self) -> contract.ObjectRef[T_co]:
        import asyncio

        if self._is_over:
            raise StopAsyncIteration
        is_there = asyncio.get_running_loop().create_future()
        loop = asyncio.get_running_loop()

        def wake() -> None:
            if not is_there.done():
                is_there.set_result(None)

        def tell() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(wake)

        self._engine.objects.when_done(self._head, tell)
        await is_there
        try:
            return self._step(self._engine.objects.is_end(self._head, None) is True)
        except StopIteration:
            raise StopAsyncIteration from None

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(
            "An ObjectRefGenerator cannot be sent to another process: it belongs to one reader. Send the references "
            "that it yields, as a list."
        )

    def __repr__(self) -> str:
        return f"ObjectRefGenerator({self._stream.hex()}, next={self._index})"


class DynamicObjectRefGenerator:
    """The references that a generator with ``num_returns="dynamic"`` returns together, when it is done.

    If the generator raised, the last reference raises in `get`.
    """

    def __init__(self, refs: Sequence[contract.ObjectRef[object]]) -> None:
        self._refs = refs

    def __iter__(self) -> Iterator[contract.AnyRef]:
        return iter(self._refs)

    def __len__(self) -> int:
        return len(self._refs)

    def __repr__(self) -> str:
        return f"DynamicObjectRefGenerator({len(self._refs)} references)"


def collect(function: Any, *, is_retried: bool) -> object:
    """Return a function that runs a generator function to its end, and returns references to its items. If the
    generator raises, the last reference holds the error; with `is_retried` the function raises it instead."""
    import functools

    @functools.wraps(function)
    def run(*args: object, **kwargs: Any) -> DynamicObjectRefGenerator:
        found = function(*args, **kwargs)
        if hasattr(found, "__aiter__"):
            import asyncio

            return asyncio.run(_put_all_async(found, function.__name__, is_retried=is_retried))
        return _put_all(found, function.__name__, is_retried=is_retried)

    return run


def call_and_collect(
    actor: object, method: str, label: str, is_retried: bool, /, *args: object, **kwargs: object
) -> Any:
    """Run a generator method of an actor to its end, and return references to its items; see `collect`. The actor runs
    this function on itself. For an asynchronous generator it returns a coroutine."""
    found = methods.get_method(actor, method)(*args, **kwargs)
    put_all = _put_all_async if hasattr(found, "__aiter__") else _put_all
    return put_all(found, label, is_retried=is_retried)


def _put_all(found: Iterable[object], name: str, *, is_retried: bool) -> DynamicObjectRefGenerator:
    engine = contract.get_current_engine()
    refs: list[contract.AnyRef] = []
    try:
        for item in found:
            refs.append(engine.objects.put(item))  # noqa: PERF401 (what there is remains when the next one raises)
    except Exception as error:
        if is_retried:
            raise
        refs.append(_put_error(engine, name, error))
    return DynamicObjectRefGenerator(refs)


async def _put_all_async(found: AsyncIterable[object], name: str, *, is_retried: bool) -> DynamicObjectRefGenerator:
    engine = contract.get_current_engine()
    refs: list[contract.AnyRef] = []
    try:
        async for item in found:
            refs.append(engine.objects.put(item))  # noqa: PERF401 (the same)
    except Exception as error:
        if is_retried:
            raise
        refs.append(_put_error(engine, name, error))
    return DynamicObjectRefGenerator(refs)


def _put_error(engine: contract.Engine, name: str, error: Exception) -> contract.AnyRef:
    return engine.objects.put_error(exceptions.TaskError(name, texts.format_error(error), exceptions.get_cause(error)))


def wrap(refs: Sequence[contract.ObjectRef[object]], num_returns: int) -> Any:
    """Return the result of ``.remote()``: one reference, a list of them, a generator, or None."""
    if num_returns == 1:
        return refs[0]
    if num_returns < 0:
        return ObjectRefGenerator(refs[0])
    return refs or None
