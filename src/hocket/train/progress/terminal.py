"""The last rows of a terminal, kept free for the display.

Ranks write to the terminal themselves, past the driver, and so do breakpoints and the program's own prints. A line that
is drawn where the cursor is, and over itself again, as most displays do it, would be torn by them. So an order to the
terminal (DECSTBM) has it scroll only the rows above, and everybody's output stays as it was written, there. Each
drawing saves the cursor, goes down, writes and comes back, in one write. A process that is killed before `close` leaves
the rows set aside; the next full-screen program, or ``reset``, ends that.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Sequence

SMALLEST = (8, 40)
"""Rows and columns that a terminal must have. A guess: smaller ones are left to the program."""

_SAVE, _RESTORE, _PLAIN = "\x1b7", "\x1b8", "\x1b[0m"


class StatusArea:
    """Rows at the bottom of a terminal. `close` must be called."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._size = (0, 0)
        self._height = 0
        atexit.register(self.close)

    def draw(self, lines: Sequence[str]) -> None:
        """Show lines, which are narrower than the terminal. Takes as many rows as there are lines."""
        size = self._read_size()
        if size[0] < SMALLEST[0]:
            self.clear()
            return
        commands = ""
        if (size, len(lines)) != (self._size, self._height):
            commands = self._build_release() + self._build_claim(size[0], len(lines))
            self._size, self._height = size, len(lines)
        first = size[0] - len(lines) + 1
        rows = "".join(f"\x1b[{first + index};1H\x1b[2K{line}{_PLAIN}" for index, line in enumerate(lines))
        self._write(f"{commands}{_SAVE}{rows}{_RESTORE}")

    @property
    def width(self) -> int:
        """How many columns there are."""
        return self._read_size()[1]

    def clear(self) -> None:
        """Give the rows back, empty."""
        if self._height:
            self._write(self._build_release())
            self._height = 0

    def close(self) -> None:
        """Give the rows back, for good. Can be called again."""
        atexit.unregister(self.close)
        self.clear()

    def _build_claim(self, rows: int, height: int) -> str:
        """Make room below the cursor, which keeps its column, and let only what is above scroll."""
        room = "\x1bD" * height + f"\x1b[{height}A"
        return f"{room}{_SAVE}\x1b[1;{rows - height}r{_RESTORE}"

    def _build_release(self) -> str:
        if not self._height:
            return ""
        first = self._size[0] - self._height + 1
        rows = "".join(f"\x1b[{first + index};1H\x1b[2K" for index in range(self._height))
        return f"{_SAVE}{rows}\x1b[r{_RESTORE}"

    def _read_size(self) -> tuple[int, int]:
        try:
            size = os.get_terminal_size(self._descriptor)
        except OSError:  # it is gone
            return 0, 0
        return size.lines, size.columns

    def _write(self, text: str) -> None:
        data = text.encode("utf-8", "replace")
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError:  # it is gone, and the training goes on
            self._height = 0


def is_usable(descriptor: int) -> bool:
    """Tell whether a descriptor is a terminal that understands what is sent, and is ours to write to now."""
    if not os.isatty(descriptor) or os.environ.get("TERM", "dumb") in ("dumb", "unknown", ""):
        return False
    try:
        size = os.get_terminal_size(descriptor)
    except OSError:
        return False
    if size.lines < SMALLEST[0] or size.columns < SMALLEST[1]:
        return False
    try:
        return os.tcgetpgrp(descriptor) == os.getpgrp()
    except OSError:  # not the controlling terminal, so no job of a shell in the background
        return True
