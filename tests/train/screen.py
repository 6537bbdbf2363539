"""As much of a terminal as the progress display uses: what a user would see."""

from __future__ import annotations

import codecs
import re

_COMMAND = re.compile(r"\x1b(?:\[([0-9;]*)([A-Za-z])|([78D]))")


class Screen:
    """Rows of characters, a cursor, and rows that scroll. Refuses what it does not know."""

    def __init__(self, rows: int, columns: int) -> None:
        self.rows, self.columns = rows, columns
        self.cells = [[" "] * columns for _ in range(rows)]
        self.scrolled: list[str] = []
        """What went out of the top."""
        self.row = self.column = 0
        self.bottom = rows - 1
        """The last row that scrolls."""
        self._saved = (0, 0)
        self._rest = ""
        self._decode = codecs.getincrementaldecoder("utf-8")().decode

    def feed(self, data: bytes) -> None:
        text, self._rest = self._rest + self._decode(data), ""
        place = 0
        while place < len(text):
            if text[place] != "\x1b":
                self._put(text[place])
                place += 1
                continue
            found = _COMMAND.match(text, place)
            if found is None:
                self._rest = text[place:]  # the rest of it comes with the next bytes
                assert len(self._rest) < 20, f"an unknown command: {self._rest!r}"
                return
            self._obey(found[3] or found[2], [int(number or 0) for number in (found[1] or "").split(";")])
            place = found.end()

    def _put(self, character: str) -> None:
        if character == "\r":
            self.column = 0
        elif character == "\n":
            self._down()
        else:
            if self.column == self.columns:
                self.column = 0
                self._down()
            self.cells[self.row][self.column] = character
            self.column += 1

    def _down(self) -> None:
        if self.row == self.bottom:
            self.scrolled.append("".join(self.cells.pop(0)).rstrip())
            self.cells.insert(self.bottom, [" "] * self.columns)
        elif self.row < self.rows - 1:
            self.row += 1

    def _obey(self, command: str, numbers: list[int]) -> None:
        if command == "7":
            self._saved = (self.row, self.column)
        elif command == "8":
            self.row, self.column = self._saved
        elif command == "D":
            self._down()
        elif command == "A":
            self.row = max(0, self.row - (numbers[0] or 1))
        elif command == "H":
            self.row, self.column = numbers[0] - 1, numbers[1] - 1
        elif command == "K":
            assert numbers == [2]
            self.cells[self.row] = [" "] * self.columns
        elif command == "r":
            self.bottom = (numbers[1] if len(numbers) > 1 else self.rows) - 1
            self.row = self.column = 0
        else:
            assert command == "m", f"an unknown command: {command}"

    def read(self) -> list[str]:
        """Return all that was shown, also what went out of the top, without empty rows."""
        return [row for row in [*self.scrolled, *("".join(cells).rstrip() for cells in self.cells)] if row]
