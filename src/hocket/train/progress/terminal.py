"""The last lines of a terminal, reserved for the display.

Ranks, breakpoints and the program's prints write to the terminal directly, past the driver. Most displays redraw a line
at the cursor, and such output would tear that line. So this module sends a command (DECSTBM) by which only the lines
above scroll, and all other output stays intact there. Each drawing saves the cursor, goes down, writes and comes back,
in one write. A process that is killed before `close` leaves the lines reserved, until the next full-screen program or
``reset``.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Sequence

SMALLEST = (8, 40)
"""The least lines and columns of a terminal for the display. A guess: smaller terminals are left to the program."""

_SAVE, _RESTORE, _PLAIN = "\x1b7", "\x1b8", "\x1b[0m"


class StatusArea:
    """Reserved lines at the bottom of a terminal. `close` must be called."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._size = (0, 0)
        self._height = 0
        atexit.register(self.close)

    def draw(self, lines: Sequence[str]) -> None:
        """Show lines, which must be narrower than the terminal, in as many reserved lines."""
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
        """The number of columns."""
        return self._read_size()[1]

    def clear(self) -> None:
        """Give the reserved lines back, empty."""
        if self._height:
            self._write(self._build_release())
            self._height = 0

    def close(self) -> None:
        """Give the reserved lines back, for good. Can be called more than once."""
        atexit.unregister(self.close)
        self.clear()

    def _build_claim(self, rows: int, height: int) -> str:
        """Return the command that makes room below the cursor, keeps its column, and scrolls only the lines above."""
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
        except OSError:  # the terminal is gone
            return 0, 0
        return size.lines, size.columns

    def _write(self, text: str) -> None:
        data = text.encode("utf-8", "replace")
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError:  # the terminal is gone, and the training goes on
            self._height = 0


def is_usable(descriptor: int) -> bool:
    """Return whether a descriptor is a terminal that understands the commands, with this process in the foreground."""
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
    except OSError:  # not the controlling terminal, so this is no background job
        return True
