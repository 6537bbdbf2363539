"""What this process notes beside its tasks: steps of a training, reports, pushes. Its engine says where it goes."""

from __future__ import annotations

from collections.abc import Callable

from hocket.engine.events.layout import Kind

Note = Callable[[Kind, str, float, float, int], object]
"""Kind, name, when it started by `time.perf_counter`, seconds, and the subject of a record."""

_note: Note | None = None


def open_notes(write: Note | None) -> None:
    """Say who writes notes down, from any thread; None: nobody does any more."""
    global _note  # noqa: PLW0603 (a process has one engine)
    _note = write


def note(kind: Kind, name: str, started: float, seconds: float, subject: int = 0) -> None:
    """Note what happened in this process, if its engine keeps events."""
    write = _note
    if write is not None:
        write(kind, name, started, seconds, subject)
