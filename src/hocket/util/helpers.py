"""Results in the order in which they arrive."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from hocket.core import api, scopes
from hocket.engine import contract


def as_completed(
    refs: Sequence[contract.ObjectRef[object]], *, chunk_size: int = 10, yield_obj_refs: bool = False
) -> Iterator[Any]:
    """Yield the values of references, each as soon as it arrives.

    Args:
        refs: References, without duplicates.
        chunk_size: How many finished references to look up at once. A larger chunk is faster when many finish together;
            a result never waits until a chunk is full.
        yield_obj_refs: Whether to yield the references instead of their values.

    Raises:
        ValueError: `chunk_size` is below 1, or a reference occurs twice.
        TypeError: An element is no reference.

    Example:
        >>> import hocket
        >>> sorted(hocket.util.as_completed([hocket.put(2), hocket.put(1)]))
        [1, 2]
    """
    _check_chunk_size(chunk_size)
    return _yield_completed(list(refs), chunk_size, yields_refs=yield_obj_refs)


def _yield_completed(
    unfinished: list[contract.ObjectRef[object]], chunk_size: int, *, yields_refs: bool
) -> Iterator[object]:
    while unfinished:
        ready, unfinished = _take_finished(unfinished, chunk_size)
        while ready:
            ref = ready.pop(0)
            yield ref if yields_refs else api.get(ref)
            del ref  # the consumer may hold the only other reference


def _take_finished(
    refs: list[contract.ObjectRef[object]], most: int
) -> tuple[list[contract.ObjectRef[object]], list[contract.ObjectRef[object]]]:
    """Wait for one reference, and return it with others that are finished by then, and the rest."""
    ready, rest = api.wait(refs, num_returns=1)
    if most > 1 and rest:
        more, rest = api.wait(rest, num_returns=min(most - 1, len(rest)), timeout=0)
        ready += more
    return ready, rest


def map_unordered(
    fn: scopes.Remote,
    items: Iterable[object],
    *,
    backpressure_size: int | None = 100,
    chunk_size: int = 10,
    yield_obj_refs: bool = False,
) -> Iterator[Any]:
    """Call a remote function for each item, and yield each result as soon as it arrives.

    If the loop ends early, unfinished calls are cancelled.

    Args:
        fn: A remote function or a method of an actor, with one argument.
        items: The items. They may be endless: they are read as results are taken.
        backpressure_size: How many calls are in flight at most; None for no limit.
        chunk_size: As for `as_completed`.
        yield_obj_refs: Whether to yield the references instead of their values.

    Raises:
        ValueError: A size is below 1.
        TypeError: `fn` is not remote.

    Example:
        >>> import hocket
        >>> @hocket.remote
        ... def double(x):
        ...     return 2 * x
        >>> sorted(hocket.util.map_unordered(double, [1, 2, 3]))
        [2, 4, 6]
    """
    if not callable(getattr(fn, "remote", None)):
        raise TypeError(
            f"map_unordered takes a remote function or an actor's method, but received {fn!r}. Decorate it with "
            "@hocket.remote."
        )
    if backpressure_size is not None and backpressure_size < 1:
        raise ValueError(
            f"backpressure_size must be positive, or None for no limit, but received {backpressure_size!r}."
        )
    _check_chunk_size(chunk_size)
    return _yield_mapped(fn, iter(items), backpressure_size, chunk_size, yields_refs=yield_obj_refs)


def _yield_mapped(
    fn: scopes.Remote, items: Iterator[object], most: int | None, chunk_size: int, *, yields_refs: bool
) -> Iterator[object]:
    with scopes.Scope() as scope:
        unfinished = [scope.start(fn, item) for item in itertools.islice(items, most)]
        while unfinished:
            ready, unfinished = _take_finished(unfinished, chunk_size)
            for ref in ready:
                scope.release(ref)
            unfinished += [scope.start(fn, item) for item in itertools.islice(items, len(ready))]
            while ready:
                ref = ready.pop(0)
                yield ref if yields_refs else api.get(ref)
                del ref  # the consumer may hold the only other reference


def _check_chunk_size(chunk_size: int) -> None:
    if chunk_size < 1:
        raise ValueError(f"`chunk_size` must be >= 1, but received {chunk_size!r}. Leave it out for 10.")
