"""``breakpoint()`` in a task or an actor: pdb on the terminal that the driver was started from.

A worker's stdin is /dev/null, and its session is not the terminal's. The guardian remembers the name of the terminal
before it closes its own stdin, and a worker opens the terminal anew at a ``breakpoint()``. This needs no job control:
the Linux kernel stops background readers (SIGTTIN) only at their controlling terminal, and a worker has none.

One worker at a time uses the terminal. It holds a lock on the session's status table from its first prompt until it
goes on (``continue``, ``quit``, or the end of the task's function); another worker's ``breakpoint()`` waits for it.

Holes: a driver that reads the terminal itself at the same moment competes for the lines, and Ctrl-C goes to the
driver, which owns the terminal. Only ``breakpoint()`` is redirected, not an explicit ``pdb.set_trace()``.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable


def find_terminal() -> str | None:
    """Return the name of the terminal on stdin; None if stdin is no terminal, or its terminal has no name here."""
    try:
        return os.ttyname(0)
    except OSError:
        return None


def install(terminal: str | None, lock_fd: int, get_title: Callable[[], str]) -> None:
    """Send ``breakpoint()`` of this process to a terminal, unless ``PYTHONBREAKPOINT`` names another debugger.

    Args:
        terminal: The terminal's name; without a terminal None, and `breakpoint` explains that.
        lock_fd: A file that all processes on the terminal have open.
        get_title: Returns a description of the running work.
    """

    def stop_here(*args: object, **kwargs: object) -> object:
        if os.environ.get("PYTHONBREAKPOINT") not in (None, "", "pdb.set_trace"):
            return sys.__breakpointhook__(*args, **kwargs)  # noqa: T100 (the user's own choice of a debugger)
        title = get_title()
        if terminal is None:
            raise RuntimeError(
                _explain(title, "the driver's stdin is not a terminal, as in a notebook, a pipe or a CI job")
            )
        # Loaded on use: pdb and its own imports would take 10 ms of each session's start.
        terminal_pdb = importlib.import_module("hocket.engine.local.terminal_pdb")
        try:
            file = terminal_pdb.open_terminal(terminal)
        except OSError as error:
            raise RuntimeError(_explain(title, f"{terminal} cannot be opened ({error.strerror})")) from error
        debugger = terminal_pdb.TerminalPdb(file, lock_fd, f"{title}, pid {os.getpid()}")
        debugger.set_trace(sys._getframe().f_back)
        return None

    sys.breakpointhook = stop_here


def _explain(title: str, why: str) -> str:
    return (
        f'breakpoint() in {title} found no terminal: {why}. Debug with hocket.init(engine="inprocess"), which runs '
        "everything in the driver, or switch breakpoints off with PYTHONBREAKPOINT=0."
    )
