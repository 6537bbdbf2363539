"""`hocket top`: the running work, in a terminal, until Ctrl-C or q."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import time

from rich import box, console, table, text

from hocket import extras
from hocket._base import showing, texts
from hocket.cli import consoles
from hocket.observe.top import looking

PLAIN_SECONDS = 2.0
"""The interval of the prints if the terminal cannot show pages."""

WIDTH = 140
"""The width in columns if there is no terminal."""


def run(*, pid: int | None, plain: bool, count: int | None) -> int:
    """Show a session, and return the exit code.

    Args:
        pid: The pid of its driver. Default: the session that was opened last.
        plain: Whether to print repeatedly, as on a terminal that cannot show pages.
        count: How often to print. If set, it implies `plain`. Default: until the session ends.
    """
    look = looking.Look(pid)
    try:
        view = look.look()
        if view.pid is None:
            which = "" if pid is None else f" The given pid was {pid}; `hocket status` lists your sessions."
            print(f"{view.headline}{which}")
            return 0 if pid is None else 1
        if plain or count is not None or not sys.stdout.isatty() or os.environ.get("TERM", "dumb") == "dumb":
            _print_on(look, count)
        else:
            _open(look)
    finally:
        look.close()
    return 0


def _open(look: looking.Look) -> None:
    remedy = "Run pip install 'hocket[top]', or hocket top --plain."
    extras.check("textual", "A page in the terminal", "textual", remedy)
    importlib.import_module("hocket.observe.top.screen").Top(look).run()


def _print_on(look: looking.Look, count: int | None) -> None:
    out = consoles.open_console(WIDTH)
    printed = 0
    while (view := look.look()).pid is not None:
        _print(out, view)
        printed += 1
        if printed == count:
            return
        time.sleep(PLAIN_SECONDS)
    out.print(text.Text(view.headline))


def _print(out: console.Console, view: looking.View) -> None:
    out.print(text.Text(f"{time.strftime('%H:%M:%S')} {view.headline}", style="bold"))
    for name, found in view.tables.items():
        for remark in found.remarks:
            out.print(text.Text(texts.escape(texts.shorten(remark, showing.MOST_TEXT))))
        if not found.rows:
            continue
        built = table.Table(title=name, title_justify="left", box=box.SIMPLE_HEAD)
        for column in found.columns:
            built.add_column(column.name, justify="right" if column.is_number else "left", overflow="fold")
        for row in found.rows:
            built.add_row(*map(text.Text, found.show(row)))
        out.print(built)
