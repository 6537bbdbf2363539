"""Notices that a command writes beside its results."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def notify(text: str) -> None:
    """Print a notice on stderr. If that fails, the command goes on."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:  # a full disk: the stream's unwritten buffer would make the exit code 120
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 (for the rest of the process)
