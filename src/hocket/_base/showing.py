"""Descriptions of the parts of a process, for viewers: plain data, made only when somebody asks.

A part says once how it is described. A viewer's question is answered by a thread of its own (`hocket.engine.stacks`)
while the part works; so a description only reads, takes no lock that work is done under, and may be a moment old.
"""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar, final

from hocket._base import texts

T = TypeVar("T")

Facts = dict[str, Any]
"""Plain data, as JSON has it."""

MOST: Final = 100
"""How many parts of a kind are described: the newest."""

MOST_TEXT: Final = 2_000
"""How long a text may be in an answer of more than `LONG` letters: somebody may have named a task with a megabyte."""

LONG: Final = 1 << 18

_shown: dict[str, dict[int, tuple[weakref.ref[Any], Callable[[Any], Facts]]]] = {}
_lock = threading.RLock()  # the collector of garbage may come to `_forget` in a thread that has it


def show(kind: str, part: T, describe: Callable[[T], Facts]) -> None:
    """Describe a part to viewers, as long as it lives.

    Args:
        kind: What it is: ``"servers"``.
        part: Is held weakly.
        describe: Is given the part. It may fail: then viewers are told.

    Example:
        >>> from hocket._base import showing
        >>> class Counter:
        ...     count = 3
        >>> counter = Counter()
        >>> showing.show("counters", counter, lambda one: {"count": one.count})
        >>> showing.describe()["counters"]
        [{'count': 3}]
        >>> del counter
        >>> "counters" in showing.describe()
        False
    """
    key = id(part)

    def forget(_: object) -> None:
        with _lock:
            parts = _shown.get(kind, {})
            parts.pop(key, None)
            if not parts:
                _shown.pop(kind, None)

    with _lock:
        _shown.setdefault(kind, {})[key] = weakref.ref(part, forget), describe


@final
class _Logs:
    """The logs that this process has written, those that were begun last."""

    def __init__(self) -> None:
        self.paths: deque[str] = deque(maxlen=MOST)


_logs = _Logs()


def note_log(path: str | os.PathLike[str]) -> None:
    """Tell viewers where a log is that this process begins: they find it also when it is closed."""
    _logs.paths.append(os.path.abspath(path))
    show("logs", _logs, lambda logs: {"paths": list(dict.fromkeys(logs.paths))})


def describe() -> dict[str, list[Facts]]:
    """Return what there is to see of this process, by kind."""
    with _lock:
        parts = {kind: list(found.values())[-MOST:] for kind, found in _shown.items()}
    return {kind: [facts for one in found for facts in _describe(*one)] for kind, found in parts.items()}


def _describe(reference: weakref.ref[Any], describe: Callable[[Any], Facts]) -> list[Facts]:
    part = reference()
    if part is None:
        return []
    try:
        return [describe(part)]
    except Exception as error:  # noqa: BLE001 (a look must not harm the described part)
        return [{"problem": f"{type(error).__name__}: {error}"}]


def encode(found: object, indent: int | None = None) -> str:
    """Return an answer to viewers as JSON in ASCII; a float that is not finite is a text, and so is what JSON does not
    have.

    Args:
        found: Plain data.
        indent: By how many columns; None is one line without spaces.

    Raises:
        TypeError: A key is none that JSON has.

    Example:
        >>> from hocket._base import showing
        >>> showing.encode({"loss": float("nan"), "step": 1})
        '{"loss":"nan","step":1}'
    """
    import json  # most workers are never asked

    separators = (",", ":") if indent is None else None
    try:
        encoded = json.dumps(found, default=texts.safe_text, allow_nan=False, indent=indent, separators=separators)
        if len(encoded) <= LONG:
            return encoded
    except ValueError:  # rare, and so looked for only now
        pass
    return json.dumps(_make_plain(found), default=texts.safe_text, indent=indent, separators=separators)


def _make_plain(found: object) -> object:
    if isinstance(found, str):
        return texts.shorten(found, MOST_TEXT)
    if isinstance(found, float) and not math.isfinite(found):
        return str(found)
    if isinstance(found, Mapping):
        return {_make_plain(name): _make_plain(value) for name, value in found.items()}
    if isinstance(found, list | tuple):
        return [_make_plain(one) for one in found]
    return found


def _renew_lock() -> None:
    """In a fork: the thread that had it is not there."""
    global _lock  # noqa: PLW0603 (a process has one list)
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)
