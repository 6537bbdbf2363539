"""Generators with a fixed number of results: ``num_returns=3`` on a generator function, as in Ray.

The first items are the results. If the generator raises, or ends too soon, the missing results are that error. Further
items are not taken.
"""

from __future__ import annotations

import inspect
import logging
import types
from collections.abc import AsyncGenerator, Generator
from typing import Any, NamedTuple

_log = logging.getLogger("hocket")

KINDS = frozenset({types.GeneratorType, types.AsyncGeneratorType})


class Failure(NamedTuple):
    """A placeholder for a missing result of a task."""

    error: Exception


def is_to_be_taken(result: object, num_returns: int, function: object) -> bool:
    """Return whether the results of a call are the items of the generator that it returned.

    Args:
        result: The return value of the call.
        num_returns: The number of results; below 0 for a stream.
        function: The function that was called. With ``num_returns=1``, only generator functions count: an ordinary
            function has returned a value that cannot travel.
    """
    if type(result) not in KINDS or num_returns < 1:
        return False
    return num_returns > 1 or inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def take(items: Generator[Any, Any, Any], count: int, name: str) -> object:
    """Return `count` items of a generator, or the item itself for 1."""
    taken: list[object] = []
    raised = None
    try:
        for item in items:
            if len(taken) == count:
                _log_surplus(name, count)
                break
            taken.append(item)
    except Exception as error:  # any error of the user's code is the task's result
        raised = error
    finally:
        items.close()
    return _complete(taken, count, name, raised)


async def take_async(items: Any, count: int, name: str) -> object:
    """Return `count` items of a generator, asynchronous or not, or the item itself for 1."""
    if not isinstance(items, AsyncGenerator):
        return take(items, count, name)
    taken: list[object] = []
    raised = None
    try:
        async for item in items:
            if len(taken) == count:
                _log_surplus(name, count)
                break
            taken.append(item)
    except Exception as error:  # any error of the user's code is the task's result
        raised = error
    finally:
        await items.aclose()
    return _complete(taken, count, name, raised)


def _log_surplus(name: str, count: int) -> None:
    _log.warning(
        "`%s` has num_returns=%d, but its generator yields more items: only the first become results. Leave "
        "num_returns out to get all of them, one by one.",
        name,
        count,
    )


def _complete(taken: list[object], count: int, name: str, raised: Exception | None) -> object:
    missing = count - len(taken)
    if raised is not None and not missing:
        _log.warning("The generator `%s` raised an error after it had yielded its %d results: %r", name, count, raised)
    elif missing:
        error = raised or ValueError(
            f"`{name}` has num_returns={count}, but its generator yielded {len(taken)}. Yield {count} items, or leave "
            "num_returns out to get all of them."
        )
        if not taken:
            raise error
        taken += [Failure(error)] * missing
    return taken[0] if count == 1 else tuple(taken)


def iterate(found: Any) -> Generator[object, None, None]:
    """Yield the items of a generator, asynchronous or not, in an ordinary thread."""
    if not hasattr(found, "__aiter__"):
        yield from found
        return
    import asyncio  # here, because most programs need none of it (24 ms)

    loop = asyncio.new_event_loop()
    try:
        while True:
            try:
                yield loop.run_until_complete(anext(found))
            except StopAsyncIteration:
                return
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
