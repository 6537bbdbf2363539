"""Tables of a search's progress, for programs written for Ray. The module's name is Ray's.

Without a reporter, a terminal shows a few rows; see `hocket.tune.shown.display`.
"""

from __future__ import annotations

import abc
import html
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias, final

from hocket._base import texts
from hocket.train.tracking import plain, scores
from hocket.train.tracking import values as flat_values
from hocket.tune import callback, checks
from hocket.tune import trial as trials

Columns: TypeAlias = Sequence[str] | Mapping[str, str] | None
"""Names of values, or a dict from names to headings."""

_METRICS: Final = ("training_iteration", "time_total_s")
"""The default columns of a report, beside the search's metric."""


class ProgressReporter(abc.ABC):
    """The base of classes that print a search's progress. ``RunConfig(progress_reporter=...)`` takes an instance."""

    def setup(
        self,
        start_time: float | None = None,
        total_samples: int | None = None,
        metric: str | None = None,
        mode: str | None = None,
        **info: Any,
    ) -> None:
        """Called once, before the first trial.

        Args:
            start_time: In seconds since 1970.
            total_samples: ``TuneConfig.num_samples``.
            metric: The search's metric.
            mode: The search's mode.
            **info: Reserved; empty now.
        """

    @abc.abstractmethod
    def should_report(self, trials: Sequence[trials.Trial], done: bool = False) -> bool:
        """Return whether to report now. The search asks after each event.

        Args:
            trials: All trials proposed so far, in their order.
            done: Whether the search has ended.
        """

    @abc.abstractmethod
    def report(self, trials: Sequence[trials.Trial], done: bool, *sys_info: str) -> None:
        """Print the search's progress."""


class CLIReporter(ProgressReporter):
    """A reporter that prints a table of the trials every few seconds, and when the search ends.

    Args:
        metric_columns: The columns of each trial's last report: names, or a dict from names to headings. Default: the
            search's metric, ``training_iteration`` and ``time_total_s``.
        parameter_columns: The columns of its configuration, nested keys with ``/``. Default: all.
        total_samples: Accepted for programs written for Ray; the search knows the number.
        max_progress_rows: The most trials in a table.
        max_error_rows: The most failed trials listed with their errors.
        max_column_length: Longer texts are cut.
        max_report_frequency: The least seconds between two tables.
        infer_limit: Accepted for programs written for Ray; has no effect.
        print_intermediate_tables: Whether to print tables before the search ends. Default: yes.
        metric: The metric for `sort_by_metric`. Default: the search's.
        mode: ``"max"`` or ``"min"``. Default: the search's.
        sort_by_metric: Whether the best trials come first. If not, running trials do.

    Raises:
        TypeError: Columns are not names.
        ValueError: A number is too small, or the mode is not one of the two.

    Example:
        >>> from hocket import tune
        >>> reporter = tune.CLIReporter(metric_columns=["score"], print_intermediate_tables=False)
        >>> tuner = tune.Tuner(
        ...     lambda config: {"score": config["x"] ** 2},
        ...     param_space={"x": tune.grid_search([1, 2])},
        ...     run_config=tune.RunConfig(progress_reporter=reporter),
        ... )
        >>> results = tuner.fit()  # doctest: +ELLIPSIS
        == 2 trials after ... s: 2 TERMINATED
        ...
    """

    def __init__(
        self,
        *,
        metric_columns: Columns = None,
        parameter_columns: Columns = None,
        total_samples: int | None = None,
        max_progress_rows: int = 20,
        max_error_rows: int = 20,
        max_column_length: int = 20,
        max_report_frequency: float = 5,
        infer_limit: int = 3,
        print_intermediate_tables: bool | None = None,
        metric: str | None = None,
        mode: str | None = None,
        sort_by_metric: bool = False,
    ) -> None:
        self._metrics = _read_columns("metric_columns", metric_columns)
        self._parameters = _read_columns("parameter_columns", parameter_columns)
        for name, count in (("max_progress_rows", max_progress_rows), ("max_error_rows", max_error_rows)):
            checks.check_int(name, count, "0 or more", least=0)
        checks.check_int("max_column_length", max_column_length, "4 or more", least=4)
        if mode not in (None, "min", "max"):
            raise ValueError(f"mode must be 'max' or 'min', but received {mode!r}. Write mode='min' for a loss.")
        self._most_rows, self._most_errors, self._most_letters = max_progress_rows, max_error_rows, max_column_length
        self._seconds_between = max_report_frequency
        self._is_silent_before_end = print_intermediate_tables is False
        self._metric, self._mode, self._sorts = metric, mode, sort_by_metric
        self._started = self._reported = time.time()

    def setup(
        self,
        start_time: float | None = None,
        total_samples: int | None = None,
        metric: str | None = None,
        mode: str | None = None,
        **info: Any,
    ) -> None:
        """Take the search's start, metric and mode."""
        self._started = self._reported = time.time() if start_time is None else start_time
        self._metric, self._mode = self._metric or metric, self._mode or mode

    def add_metric_column(self, metric: str, representation: str | None = None) -> None:
        """Add a column for a metric, under its name or another."""
        self._metrics = {**(self._metrics or {}), metric: representation or metric}

    def add_parameter_column(self, parameter: str, representation: str | None = None) -> None:
        """Add a column for a hyperparameter, under its name or another."""
        self._parameters = {**(self._parameters or {}), parameter: representation or parameter}

    def should_report(self, trials: Sequence[trials.Trial], done: bool = False) -> bool:
        """Return whether to print a table now."""
        if done:
            return True
        return not self._is_silent_before_end and time.time() - self._reported >= self._seconds_between

    def report(self, trials: Sequence[trials.Trial], done: bool, *sys_info: str) -> None:
        """Print a table."""
        self._reported = time.time()
        print(self.build_text(trials))  # noqa: T201 (that is what it is for)

    def build_text(self, listed: Sequence[trials.Trial]) -> str:
        """Return the table as text."""
        rows = self.build_rows(listed)
        widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([self.build_title(listed), *lines, *self.build_errors(listed)])

    def build_title(self, listed: Sequence[trials.Trial]) -> str:
        """Return one line about all trials: their number by state, and the time."""
        counts = Counter(trial.status.value for trial in listed)
        told = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
        return f"== {len(listed)} trials after {time.time() - self._started:.0f} s: {told}"

    def build_rows(self, listed: Sequence[trials.Trial]) -> list[list[str]]:
        """Return the table's cells, with a row of headings."""
        parameters = self._parameters
        if parameters is None:
            names = {name: None for trial in listed for name, _ in flat_values.flatten(trial.config)}
            parameters = {name: name for name in names}
        metrics = self._metrics
        if metrics is None:
            metrics = {name: name for name in (self._metric, *_METRICS) if name}
        rows = [["trial", "status", *parameters.values(), *metrics.values()]]
        for trial in self._order(listed)[: self._most_rows]:
            config = dict(flat_values.flatten(trial.config))
            cells = [config.get(name, "") for name in parameters]
            cells += [plain.get_metric(trial.last_result, name) for name in metrics]
            rows.append([trial.trial_id, trial.status.value, *map(self._format, cells)])
        return rows

    def build_errors(self, listed: Sequence[trials.Trial]) -> list[str]:
        """Return a line for each trial that failed."""
        failed = [trial for trial in listed if trial.status is trials.Status.ERROR]
        return [f"{trial.trial_id} failed: {trial.reason}" for trial in failed[: self._most_errors]]

    def _order(self, listed: Sequence[trials.Trial]) -> list[trials.Trial]:
        if not self._sorts or not self._metric:
            order = [trials.Status.RUNNING, trials.Status.PAUSED, trials.Status.PENDING]
            return sorted(listed, key=lambda trial: order.index(trial.status) if trial.status in order else len(order))
        return sorted(listed, key=lambda trial: -scores.score(trial.last_result, self._metric, self._mode))

    def _format(self, value: object) -> str:
        text = "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
        return texts.cut(" ".join(text.split()), self._most_letters)


@final
class JupyterNotebookReporter(CLIReporter):
    """A reporter that shows its table in a notebook, and prints it elsewhere.

    Args:
        overwrite: Whether a table replaces the one before.
        **columns: See `CLIReporter`.
    """

    def __init__(self, overwrite: bool = True, **columns: Any) -> None:
        super().__init__(**columns)
        checks.check_flag("overwrite", overwrite)
        self._overwrites = overwrite

    def report(self, trials: Sequence[trials.Trial], done: bool, *sys_info: str) -> None:
        """Show a table."""
        show = _find_notebook()
        if show is None:
            super().report(trials, done, *sys_info)
            return
        self._reported = time.time()
        show(self.build_html(trials), self._overwrites)

    def build_html(self, listed: Sequence[trials.Trial]) -> str:
        """Return the table as HTML for a notebook."""
        head, *rows = self.build_rows(listed)
        cells = ["".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in rows]
        body = "".join(f"<tr>{row}</tr>" for row in cells)
        names = "".join(f"<th>{html.escape(name)}</th>" for name in head)
        lines = [self.build_title(listed), *self.build_errors(listed)]
        told = "".join(f"<p>{html.escape(line)}</p>" for line in lines)
        return f"{told}<table><tr>{names}</tr>{body}</table>"


def _find_notebook() -> Callable[[str, bool], None] | None:
    """Return a function that shows HTML in this process's notebook; None outside a notebook."""
    try:
        from IPython import display, get_ipython
    except ImportError:
        return None
    if getattr(get_ipython(), "kernel", None) is None:
        return None

    def show(text: str, overwrites: bool) -> None:
        if overwrites:
            display.clear_output(wait=True)
        display.display(display.HTML(text))

    return show


def _read_columns(name: str, given: Columns) -> dict[str, str] | None:
    if given is None:
        return None
    names: Any = given if isinstance(given, Mapping) else {one: one for one in given}
    if isinstance(given, str) or not all(isinstance(text, str) for pair in names.items() for text in pair):
        raise TypeError(
            f"{name} must be a list of names, or a dict from names to headings, but received {given!r}. Write "
            f"{name}=['loss']."
        )
    return dict(names)


@final
class Following(callback.Callback):
    """A callback that drives a reporter.

    Args:
        reporter: The reporter, called after each event and at the end.
        metric: The search's metric.
        mode: The search's mode.
    """

    def __init__(self, reporter: ProgressReporter, metric: str | None, mode: str | None) -> None:
        self._reporter, self._metric, self._mode = reporter, metric, mode

    def setup(
        self, stop: object = None, num_samples: int | None = None, total_num_samples: int | None = None, **info: object
    ) -> None:
        """Set up the reporter."""
        self._reporter.setup(time.time(), num_samples, self._metric, self._mode)

    def on_step_end(self, iteration: int, trials: Sequence[trials.Trial], **info: object) -> None:
        """Report, if the reporter wants to."""
        if self._reporter.should_report(trials):
            self._reporter.report(trials, False)

    def on_experiment_end(self, trials: Sequence[trials.Trial], **info: object) -> None:
        """Report a last time, if the reporter wants to."""
        if self._reporter.should_report(trials, done=True):
            self._reporter.report(trials, True)
