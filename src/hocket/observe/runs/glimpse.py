"""What a list says of a run that is over, without reading all of its log: of a hundred runs few are looked at."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hocket.observe.runs import history
from hocket.stores import regular

_RUN: Final = b'{"is":"run",'
_ATTEMPT: Final = b'\n{"is":"attempt",'
_ROW: Final = b'\n{"is":"row",'


@dataclass(frozen=True)
class Glimpse:
    """A run whose ranks were started once, and which has ended."""

    size: int
    """Of its log in bytes: a run that goes on after all has a longer one."""
    name: str
    started: float
    ended: float
    error: str | None
    rows: int
    ranks: int


def take(file: Path) -> Glimpse | None:
    """Return what the first lines of a log and its last one say; None if all of it has to be read.

    Args:
        file: The log. Its lines begin as `log.RunLog` writes them.
    """
    with regular.open_regular(file) as opened:
        data = opened.read(regular.MOST_BYTES)  # a longer one has no end here, and is read line by line
    if not data.startswith(_RUN) or data.count(b"\n" + _RUN) or data.count(_ATTEMPT) != 1 or not data.endswith(b"\n"):
        return None
    attempt_at = data.index(_ATTEMPT) + 1
    try:
        begun = json.loads(data[: data.index(b"\n")])
        attempt = json.loads(data[attempt_at : data.index(b"\n", attempt_at)])
        end = json.loads(data[data.rindex(b"\n", 0, -1) + 1 :])
        if end["is"] != "end":
            return None
        return Glimpse(
            size=len(data),
            name=str(begun["name"]),
            started=history.read_time(begun["at"]),
            ended=history.read_time(end["at"]),
            error=None if end["error"] is None else str(end["error"]),
            rows=data.count(_ROW),
            ranks=int(attempt["ranks"]),
        )
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError):
        return None
