"""The display in a notebook: one output, which is changed in place."""

from __future__ import annotations

import html
import sys
from typing import Any


def is_here() -> bool:
    """Tell whether this process is the kernel of a notebook. IPython is not imported for it."""
    ipython: object = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    return getattr(shell, "kernel", None) is not None


class Output:
    """One output of the cell that runs."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, lines: list[str]) -> None:
        """Show lines in place of those before."""
        from IPython.display import display

        text = "\n".join(lines)
        bundle = {"text/plain": text, "text/html": f"<pre>{html.escape(text)}</pre>"}
        if self._handle is None:
            self._handle = display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)
