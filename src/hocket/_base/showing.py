"""Descriptions of the parts of a process, for viewers: plain data, made only on a viewer's request.

A part registers its description once, as a function. A separate thread answers viewers (`hocket.engine.stacks`) while
the part works. So a description only reads, takes no lock that protects work, and may be a moment old.
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
"""Plain data, of JSON's types."""

MOST: Final = 100
"""How many parts of a kind are described at most: the newest."""

MOST_TEXT: Final = 2_000
"""The most letters of a text in a long answer: a user may have given a task a name of a megabyte."""

LONG: Final = 1 << 18
"""An answer of more letters is long."""

_shown: dict[str, dict[int, tuple[weakref.ref[Any], Callable[[Any], Facts]]]] = {}
_lock = threading.RLock()  # the garbage collector may call `forget` in a thread that holds the lock


def show(kind: str, part: T, describe: Callable[[T], Facts]) -> None:
    """Describe a part to viewers, as long as it lives.

    Args:
        kind: The kind of the part, such as ``"servers"``.
        part: The part; only a weak reference to it is kept.
        describe: Takes the part, and returns its description. If it raises, viewers see the error.

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
    """The paths of the logs that this process began last."""

    def __init__(self) -> None:
        self.paths: deque[str] = deque(maxlen=MOST)


_logs = _Logs()


def note_log(path: str | os.PathLike[str]) -> None:
    """Show viewers the path of a log that this process begins. They still find the log after it is closed."""
    _logs.paths.append(os.path.abspath(path))
    show("logs", _logs, lambda logs: {"paths": list(dict.fromkeys(logs.paths))})


def describe() -> dict[str, list[Facts]]:
    """Return the descriptions of this process's parts, by kind."""
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
    """Return an answer to viewers as JSON in ASCII. Floats that are not finite, and values that JSON has no type for,
    become texts.

    Args:
        found: Plain data.
        indent: The number of columns to indent by; None writes one line without spaces.

    Raises:
        TypeError: JSON does not allow a key's type.

    Example:
        >>> from hocket._base import showing
        >>> showing.encode({"loss": float("nan"), "step": 1})
        '{"loss":"nan","step":1}'
    """
    import json  # here, because viewers ask few workers

    separators = (",", ":") if indent is None else None
    try:
        encoded = json.dumps(found, default=texts.safe_text, allow_nan=False, indent=indent, separators=separators)
        if len(encoded) <= LONG:
            return encoded
    except ValueError:  # a float that is not finite: too rare to search every answer for one
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
    """Replace the lock in a forked child: the thread that held it does not exist there."""
    global _lock  # noqa: PLW0603 (a process has one list)
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)
