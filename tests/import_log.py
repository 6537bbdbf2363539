"""Notes what each process imports from now on: loaded where workers are forked from, it says what they import later."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

VARIABLE: Final = "HOCKET_TEST_IMPORT_LOG"
"""The environment variable that names the file."""

PREFIX: Final = "hocket"


def read(path: Path) -> dict[int, list[str]]:
    """Return what was imported of this package, by process; the first is the one that loaded this."""
    found: dict[int, list[str]] = {}
    for line in path.read_text().splitlines():
        pid, name = line.split()
        found.setdefault(int(pid), []).append(name)
    return found


class Finder:
    """Finds no module, and notes those of this package that somebody looks for."""

    @staticmethod
    def find_spec(fullname: str, *_: object) -> None:
        """Note a look for a module."""
        if fullname.partition(".")[0] == PREFIX:
            with Path(os.environ[VARIABLE]).open("a", encoding="utf-8") as file:
                file.write(f"{os.getpid()} {fullname}\n")


if os.environ.get("HOCKET_LOADING") == __name__:
    Path(os.environ[VARIABLE]).write_text(f"{os.getpid()} {__name__}\n", encoding="utf-8")
    sys.meta_path.insert(0, Finder)
