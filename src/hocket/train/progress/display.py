"""The callback that shows a run's progress, and the rule for adding it to a run."""

from __future__ import annotations

import dataclasses
import html
import numbers
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, final

from hocket._base import texts
from hocket.train import configs, user_callback
from hocket.train.checkpoints import checkpoint
from hocket.train.progress import model, terminal, text

SWITCH = "HOCKET_PROGRESS"
"""The environment variable that overrides the program's mode: ``off``, ``live``, ``plain``, or ``auto``."""

MODES = ("auto", "live", "plain", "off")

DRAW_SECONDS = 0.25
"""Seconds between drawings of a terminal. A guess: often enough to look alive."""

NOTEBOOK_SECONDS = 0.5
"""The least seconds between changes of a notebook. A guess: each change is a message to a browser."""

_terminal_lock = threading.Lock()  # one run at a time may reserve lines of the terminal


class _Screen(Protocol):
    def update(self) -> None: ...
    def close(self, last_line: str) -> None: ...


@final
class ProgressDisplay(user_callback.UserCallback):
    """A callback that shows a run's step, loss, speed, time left, and the lag of each rank behind the first.

    `fit` adds one by itself in a terminal and in a notebook. Pass one in `RunConfig.callbacks` to get lines in a log
    too, or to select metrics. The environment variable ``HOCKET_PROGRESS=off`` silences all displays.

    In a terminal, the display reserves the last lines, and other output scrolls above, untouched. Elsewhere it writes a
    line to stderr every `interval_s` seconds. When the run is over, one line stays.

    The display finds its values in rank 0's metrics: ``step`` or ``epoch``, ``loss``, and for the speed ``samples``
    (samples of each rank since its last report) or ``samples_per_second`` (of all ranks together). The time left needs
    a total: `total`, or ``total_steps``, ``num_epochs`` or the like in the metrics or in ``train_loop_config``.

    Args:
        mode: ``"auto"`` chooses by where the program runs, ``"live"`` is the same, ``"plain"`` writes lines even to a
            terminal, ``"off"`` shows nothing.
        step_key: The metric that counts the run's progress.
        total: The total of that metric.
        loss_key: The metric to show as the loss; ``"val/loss"`` looks into nested metrics.
        samples_key: The metric with the number of samples that a rank has used since its last report.
        interval_s: Seconds between lines.

    Raises:
        ValueError: The mode is unknown, or the total or the interval is not positive.

    Example:
        >>> import tempfile
        >>> from hocket import train
        >>> def loop(config):
        ...     for step in range(config["num_steps"]):
        ...         train.report({"step": step, "loss": 1 / (step + 1), "samples": 32})
        >>> trainer = train.DataParallelTrainer(
        ...     loop,
        ...     train_loop_config={"num_steps": 3},
        ...     scaling_config=train.ScalingConfig(num_workers=0),
        ...     run_config=train.RunConfig(
        ...         storage_path=tempfile.mkdtemp(), callbacks=[train.ProgressDisplay(loss_key="loss", interval_s=60)]
        ...     ),
        ... )
        >>> trainer.fit().metrics["step"]
        2
    """

    def __init__(
        self,
        mode: str = "auto",
        *,
        step_key: str | None = None,
        total: float | None = None,
        loss_key: str | None = None,
        samples_key: str = "samples",
        interval_s: float = 10.0,
    ) -> None:
        if mode not in MODES:
            raise ValueError(f"mode must be one of {list(MODES)}, but received {mode!r}. Leave it out for 'auto'.")
        _check_types(total, interval_s, {"step_key": step_key, "loss_key": loss_key, "samples_key": samples_key})
        if total is not None and not total > 0:
            raise ValueError(f"total must be more than 0, but received {total!r}. Give the last step, or leave it out.")
        if not interval_s > 0:
            raise ValueError(
                f"interval_s must be more than 0 seconds, but received {interval_s!r}. Leave it out for 10."
            )
        self._mode = mode
        self._keys = model.Keys(step=step_key, total=total, loss=loss_key, samples=samples_key)
        self._interval = interval_s
        self._lock = threading.Lock()
        self._progress: model.Progress | None = None
        self._screen: _Screen | None = None

    def before_run(self, run_context: user_callback.TrainRunContext) -> None:
        """Begin to count. Nothing is shown before the first report."""
        self._progress = model.Progress(self._keys, run_context.train_loop_config, time.monotonic())

    def after_arrival(self, run_context: user_callback.TrainRunContext, counts: Sequence[int]) -> None:
        """Note which ranks lag."""
        assert self._progress is not None, "a run begins first"
        with self._lock:
            self._progress.note_arrivals(counts, time.monotonic())

    def after_report(
        self,
        run_context: user_callback.TrainRunContext,
        metrics: list[dict[str, object]],
        checkpoint: checkpoint.Checkpoint | None,
    ) -> None:
        """Note the report, and show it if it is time."""
        assert self._progress is not None, "a run begins first"
        with self._lock:
            self._progress.note_row(metrics, time.monotonic(), run_context.report_count)
        if self._screen is None:
            self._screen = self._open_screen(run_context.experiment_name)
        self._screen.update()

    def after_exception(
        self, run_context: user_callback.TrainRunContext, worker_exceptions: dict[int, Exception]
    ) -> None:
        """Count the failure."""
        assert self._progress is not None, "a run begins first"
        with self._lock:
            self._progress.note_failure()

    def after_run(self, run_context: user_callback.TrainRunContext, error: BaseException | None) -> None:
        """Leave one line, and forget the run."""
        progress, screen = self._progress, self._screen
        self._progress = self._screen = None
        if progress is not None and screen is not None:
            screen.close(text.build_last_line(run_context.experiment_name, progress.look(time.monotonic()), error))

    def _look(self) -> model.Snapshot | None:
        with self._lock:
            return None if self._progress is None else self._progress.look(time.monotonic())

    def _choose_mode(self) -> str:
        mode = read_switch()
        return self._mode if mode == "auto" or self._mode == "off" else mode

    def _open_screen(self, name: str) -> _Screen:
        mode = self._choose_mode()
        if mode == "off":
            return _Nothing()
        if mode != "plain":
            if _is_notebook():
                return _open_notebook(name, self._look)
            descriptor = find_terminal()
            if descriptor is not None:
                return _Live(name, self._look, descriptor) if _terminal_lock.acquire(blocking=False) else _Nothing()
        return _open_lines(name, self._look, self._interval)


class _Nothing:
    def update(self) -> None:
        """Show nothing."""

    def close(self, last_line: str) -> None:
        """Show nothing."""


class _Timed:
    """A screen that is updated at intervals."""

    def __init__(
        self,
        look: Callable[[], model.Snapshot | None],
        interval_s: float,
        show: Callable[[model.Snapshot], None],
        show_last: Callable[[str], None],
    ) -> None:
        self._look, self._interval, self._show, self._show_last = look, interval_s, show, show_last
        self._next = 0.0

    def update(self) -> None:
        """Show the present snapshot if it is time."""
        now = time.monotonic()
        snapshot = self._look() if now >= self._next else None
        if snapshot is not None:
            self._next = now + self._interval
            self._show(snapshot)

    def close(self, last_line: str) -> None:
        """Leave the last line."""
        self._show_last(last_line)


def _open_lines(name: str, look: Callable[[], model.Snapshot | None], interval_s: float) -> _Timed:
    """Return a screen that writes lines to a log."""
    return _Timed(look, interval_s, lambda snapshot: _write_line(text.build_line(name, snapshot)), _write_line)


def _open_notebook(name: str, look: Callable[[], model.Snapshot | None]) -> _Timed:
    """Return a screen that changes a notebook's output, in the thread that runs the cell, as IPython requires."""
    output = _Output()

    def show(snapshot: model.Snapshot) -> None:
        lags = [text.build_lag_line(snapshot)] if snapshot.lags else []
        output.show([text.build_line(name, snapshot), *lags])

    return _Timed(look, NOTEBOOK_SECONDS, show, lambda last_line: output.show([last_line]))


class _Live:
    """The last lines of a terminal, drawn by a thread, so that a stalled run is visible too."""

    def __init__(self, name: str, look: Callable[[], model.Snapshot | None], descriptor: int) -> None:
        self._look = look
        self._painter = text.Painter(name)
        self._area = terminal.StatusArea(descriptor)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._draw_on, name="hocket-progress", daemon=True)
        self._thread.start()

    def update(self) -> None:
        """Do nothing, because the thread draws."""

    def _draw_on(self) -> None:
        while True:
            snapshot = self._look()
            if snapshot is not None:
                self._area.draw(self._painter.paint(snapshot, self._area.width))
            if self._is_over.wait(DRAW_SECONDS):
                return

    def close(self, last_line: str) -> None:
        """Give the reserved lines back, and leave the last line."""
        try:
            self._is_over.set()
            self._thread.join()
            self._area.close()
            _write_line(last_line)
        finally:
            _terminal_lock.release()


def _write_line(line: str) -> None:
    """Write a line to stderr, if the program has it."""
    if sys.stderr is not None:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


def find_terminal() -> int | None:
    """Return the descriptor of stderr if it is a terminal to draw on; else None."""
    try:
        descriptor = sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):  # there is no stderr, or it is not a file
        return None
    return descriptor if terminal.is_usable(descriptor) else None


def read_switch() -> str:
    """Return the mode that the environment sets; ``"auto"`` by default."""
    found = os.environ.get(SWITCH, "") or "auto"
    if found not in MODES:
        raise ValueError(f"{SWITCH} must be one of {list(MODES)}, but is {found!r}. Unset it for 'auto'.")
    return found


def add_display(config: configs.RunConfig) -> configs.RunConfig:
    """Return the configuration with a display among the callbacks, if it has none and there is a place to show it."""
    mode = read_switch()
    if mode == "off" or any(isinstance(callback, ProgressDisplay) for callback in config.callbacks):
        return config
    if mode == "auto" and not _is_notebook() and find_terminal() is None:
        return config
    return dataclasses.replace(config, callbacks=(*config.callbacks, ProgressDisplay()))


def _check_types(total: object, interval_s: object, keys: Mapping[str, object]) -> None:
    """Refuse settings that are not numbers or names."""
    for name, number in (("total", total), ("interval_s", interval_s)):
        is_number = isinstance(number, numbers.Real) and not isinstance(number, bool)
        if not is_number and (number is not None or name == "interval_s"):
            raise TypeError(f"{name} must be a number, but received {texts.safe_repr(number)}. Write {name}=10.")
    for name, key in keys.items():
        if key is not None and not isinstance(key, str):
            raise TypeError(
                f"{name} must be a metric's name, but received {texts.safe_repr(key)}. Write {name}='{name[:-4]}'."
            )


def _is_notebook() -> bool:
    """Return whether this process is the kernel of a notebook, without importing IPython."""
    ipython: object = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    return getattr(shell, "kernel", None) is not None


class _Output:
    """The display in a notebook: one output of the running cell, changed in place."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, lines: list[str]) -> None:
        """Show lines in place of the last ones."""
        from IPython.display import display

        text = "\n".join(lines)
        bundle = {"text/plain": text, "text/html": f"<pre>{html.escape(text)}</pre>"}
        if self._handle is None:
            self._handle = display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)
