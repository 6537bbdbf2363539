"""What of a process's stacks is of interest to who wrote the program."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_PACKAGE: Final = f'"{Path(__file__).parents[1]}/'
_FRAME: Final = re.compile(r"  File ")
_WRAPPERS: Final = (_PACKAGE, '"<string>"', "/threading.py", "/concurrent/futures/thread.py")
"""Files whose frames are those of who waits for work, or brought it."""


def trim(text: str) -> str:
    """Return stacks, as faulthandler writes them, without threads that only wait for work, and without the frames
    below the program's own that brought it.

    What is left when nothing is: the text as it was.
    """
    kept = []
    for block in text.strip().split("\n\n"):
        lines = block.splitlines()
        frames = [line for line in lines if _FRAME.match(line)]
        own = [number for number, line in enumerate(frames) if not any(part in line for part in _WRAPPERS)]
        if own:
            kept.append("\n".join([lines[0], *frames[: own[-1] + 1]]))
    return "\n\n".join(kept) or text
