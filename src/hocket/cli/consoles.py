"""The console for the commands' tables."""

from __future__ import annotations

import os

from rich import console


def open_console(columns: int) -> console.Console:
    """Return the console on which a command prints its tables.

    Args:
        columns: The width if there is no terminal and COLUMNS is not set to a number.
    """
    out = console.Console(highlight=False)
    if not out.is_terminal and not os.environ.get("COLUMNS", "").isdigit():
        out.width = columns
    return out
