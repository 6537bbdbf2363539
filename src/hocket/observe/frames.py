"""The frames of a process's stacks that matter to the program's author.

Frames that lead to a task, and threads that wait for one, do not.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_FRAME: Final = re.compile(r"  File ")
_PACKAGE: Final = f'"{Path(__file__).parents[1]}/'
_CALLER: Final = "hocket/engine/local/worker/execution.py"
"""The file whose frames call the program's functions in a worker."""
_IDLE: Final = "hocket/engine/local/guardian.py"
"""The file with the bottom frame of a worker's main thread."""
_WAITERS: Final = (_PACKAGE, "/threading.py", "/concurrent/futures/thread.py")


def trim(text: str) -> str:
    """Return those of faulthandler's stacks that run the program's code, from its first frame on.

    If there are none, return the text unchanged.
    """
    kept = []
    for block in text.strip().split("\n\n"):
        lines = block.splitlines()
        frames = [line for line in lines if _FRAME.match(line)]
        bottom = next((number for number, line in enumerate(frames) if _CALLER in line), len(frames))
        if bottom == len(frames) and any(_IDLE in line for line in frames):
            continue
        own = [number for number, line in enumerate(frames[:bottom]) if not any(part in line for part in _WAITERS)]
        if own:
            kept.append("\n".join([lines[0], *frames[: own[-1] + 1]]))
    return "\n\n".join(kept) or text


def trim_samples(samples: Mapping[str, int]) -> dict[str, int]:
    """Return the samples of `stacks.sample` that are in the program's code, each from its first frame on."""
    kept: Counter[str] = Counter()
    for stack, count in samples.items():
        thread, *frames = stack.split(";")
        callers = [number for number, frame in enumerate(frames) if _CALLER in frame]
        if not callers and (thread.startswith("hocket-") or any(_IDLE in frame for frame in frames)):
            continue
        own = frames[callers[-1] + 1 :] if callers else frames
        while own and own[0].partition(" (")[2].startswith("hocket/"):
            own = own[1:]
        if own:
            kept[";".join(own)] += count
    return dict(kept)
