"""The console that commands print tables on."""

from __future__ import annotations

import os

from rich import console


def open_console(columns: int) -> console.Console:
    """Return the console that a command prints its tables on.

    Args:
        columns: How wide it is where there is no terminal, and COLUMNS does not say.
    """
    out = console.Console(highlight=False)
    if not out.is_terminal and not os.environ.get("COLUMNS", "").isdigit():
        out.width = columns
    return out
