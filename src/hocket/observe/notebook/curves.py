"""The widget: a thread of the notebook's kernel reads the logs of runs, and sends changes to the page."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any, Final, final

from hocket import extras
from hocket.observe import training

_anywidget: Final = extras.load(
    "anywidget", "hocket.observe.notebook", "anywidget", "Run pip install 'hocket[notebook]'."
)
_traitlets: Final = extras.load(
    "traitlets", "hocket.observe.notebook", "anywidget", "Run pip install 'hocket[notebook]'."
)

LOOK_SECONDS = 0.5
"""Seconds between two reads of the logs."""

WIDTH = 300
"""The number of stretches in a plot, each drawn by its least and its greatest value."""

QUIET_SECONDS = 600.0
"""Seconds without a change after which the widget stops reading. `start` resumes it."""

_HERE: Final = Path(__file__).parent


class _Widget(_anywidget.AnyWidget):  # type: ignore[misc,name-defined]  # a module loaded by name has no types
    """The page's part of the curves."""

    _esm = _HERE / "curves.js"
    _css = _HERE / "curves.css"
    run = _traitlets.Dict().tag(sync=True)


@final
class LiveCurves:
    """Live curves of the latest run: its state, what slows it down, and a curve for each metric and rank.

    A cell shows them if it ends with this object or calls IPython's ``display``. They follow trainers from then on.

    Args:
        folder: A run's folder, or the folder of several. Default: the runs of this kernel's session.

    Raises:
        MissingExtraError: anywidget is not installed.

    Example:
        >>> import hocket
        >>> from hocket import train
        >>> from hocket.observe.notebook import LiveCurves
        >>> context = hocket.init(num_cpus=2)
        >>> curves = LiveCurves()
        >>> def train_function():
        ...     train.report({"loss": 0.5})
        >>> result = train.DataParallelTrainer(train_function).fit()
        >>> curves.look()["curves"]
        {'loss': [[0.5]]}
        >>> curves.close()
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self._runs = training.Runs(None if folder is None else Path(folder))
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self.widget = _Widget()
        self.start()

    def start(self) -> None:
        """Read on, after `close` or a long silence."""
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._ending.clear()
                self._thread = threading.Thread(target=self._follow, name="hocket-curves", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Stop reading; the shown curves stay."""
        with self._lock:
            self._ending.set()
            if self._thread is not None:
                self._thread.join()
                self._thread = None
            self._runs.close()

    def look(self) -> dict[str, Any]:
        """Return the data of the latest run, in the form of `hocket.observe.training`, and show them.

        Empty if there is no run.
        """
        found = self._runs.list_runs([os.getpid()])
        run = self._runs.describe(found[0]["path"], WIDTH) if found else None
        shown = run or {}
        kept = {name: value for name, value in shown.items() if name not in ("now", "ranks")}  # these always change
        if kept != self.widget.run:
            self.widget.run = kept
        return shown

    def _follow(self) -> None:
        changed_at, last = time.monotonic(), self.widget.run
        while not self._ending.wait(LOOK_SECONDS):
            self.look()
            if self.widget.run is not last:
                changed_at, last = time.monotonic(), self.widget.run
            elif time.monotonic() - changed_at > QUIET_SECONDS:
                return

    def _repr_mimebundle_(self, **given: object) -> object:
        self.start()
        return self.widget._repr_mimebundle_(**given)
