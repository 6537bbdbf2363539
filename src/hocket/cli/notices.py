"""Notices that a command writes beside its results."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def notify(text: str) -> None:
    """Say something on stderr that keeps nobody from working, also if it cannot be written."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:  # a full disk: what is left in the stream's buffer would make the exit code 120
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 (for the rest of the process)
