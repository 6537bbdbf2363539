"""A snapshot in words, and with rich as lines of a terminal."""

from __future__ import annotations

import io
from typing import Any

from hocket._base import texts
from hocket.train.progress import model

NOTED_SECONDS = 1.0
"""The least lag of a rank that a plain line names."""

SHOWN_RANKS = 8
"""The most ranks with a shown lag. Of more ranks, the slowest are shown. A guess: these fit into 80 columns."""

SHORTEST_BAR = 8  # columns


def format_number(number: float) -> str:
    """Return a count as text: whole, with separators of thousands; a small fraction with one digit.

    Example:
        >>> format_number(5120.3), format_number(7), format_number(0.25)
        ('5,120', '7', '0.2')
    """
    return f"{number:,.0f}" if number >= 10 or number == int(number) else f"{number:.1f}"


def format_duration(seconds: float) -> str:
    """Return a duration as on a clock.

    Example:
        >>> format_duration(83), format_duration(3723)
        ('1:23', '1:02:03')
    """
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def format_lag(seconds: float) -> str:
    """Return a lag in a unit that is easy to read.

    Example:
        >>> format_lag(0.0123), format_lag(2.5), format_lag(90)
        ('12 ms', '2.5 s', '1:30')
    """
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 60 else format_duration(seconds)


def _describe_step(now: model.Snapshot) -> str:
    name = _quote(now.step_name)
    if now.total is None:
        return f"{name} {format_number(now.step)}"
    return f"{name} {format_number(now.done)}/{format_number(now.total)}"


def _quote(name: str) -> str:
    """Return a user's name without control characters, which the terminal would obey."""
    return texts.show_name(name)


def _list_parts(now: model.Snapshot) -> list[str]:
    parts = [_describe_step(now)]
    if now.loss is not None:
        parts.append(f"{_quote(now.loss_name)} {now.loss:.4g}")
    if now.samples_per_s is not None:
        parts.append(f"{format_number(now.samples_per_s)} samples/s")
    elif now.steps_per_s is not None:
        parts.append(f"{format_number(now.steps_per_s)} {_quote(now.step_name)}s/s")
    return parts


def _describe_restarts(now: model.Snapshot) -> list[str]:
    return [f"restarts {now.restarts}"] if now.restarts else []


def build_line(name: str, now: model.Snapshot) -> str:
    """Return the snapshot as a line for a log."""
    parts = _list_parts(now)
    if now.left_s is not None:
        parts.append(f"{format_duration(now.left_s)} left")
    worst = max(now.lags, key=lambda lag: lag.seconds, default=None)
    if worst is not None and worst.seconds >= NOTED_SECONDS:
        parts.append(f"rank {worst.rank} is {format_lag(worst.seconds)} behind")
    return f"{_quote(name)}: {', '.join(parts + _describe_restarts(now))}"


def build_last_line(name: str, now: model.Snapshot, error: BaseException | None) -> str:
    """Return the line that stays when a run is over."""
    end = "done" if error is None else f"failed with {_quote(texts.name_class(type(error)))}"
    parts = [*_list_parts(now), *_describe_restarts(now)]
    return f"{_quote(name)}: {end} after {format_duration(now.elapsed_s)}, {', '.join(parts)}"


def build_lag_line(now: model.Snapshot) -> str:
    """Return the line with each rank's lag; of many ranks, only the slowest."""
    shown = list(now.lags)
    if len(shown) > SHOWN_RANKS:
        shown = sorted(shown, key=lambda lag: -lag.seconds)[:SHOWN_RANKS]
    marks = [f"{lag.rank}: {format_lag(lag.seconds)}{'…' if lag.is_waited_for else ''}" for lag in shown]
    what = "lag of ranks" if len(shown) == len(now.lags) else f"last of {len(now.lags)} ranks"
    return f"{what}  {'  '.join(marks)}"


class Painter:
    """The painter of lines for a terminal.

    Args:
        name: The run's name.
        has_colours: Whether colours may be used, unless the environment has NO_COLOR.
    """

    def __init__(self, name: str, *, has_colours: bool = True) -> None:
        from rich import console, progress_bar, segment, table, text  # only when needed: this takes some 50 ms

        self._name = _quote(name)
        self._rich: Any = (progress_bar.ProgressBar, table.Table, text.Text)
        self._segments_class: Any = segment.Segments
        self._console = console.Console(
            file=io.StringIO(), force_terminal=has_colours, highlight=False, legacy_windows=False
        )

    def paint(self, now: model.Snapshot, width: int) -> list[str]:
        """Return the coloured lines, each narrower than `width` columns, if need be without the name or the bar."""
        bar_class, table_class, text_class = self._rich
        parts = [self._name, *_list_parts(now)]
        tail = [f"left {format_duration(now.left_s)}"] if now.left_s is not None else []
        tail += [format_duration(now.elapsed_s), *_describe_restarts(now)]
        if len("  ".join(parts + tail)) >= width:
            del parts[0]
        cells = [text_class(part, style="bold" if part is self._name else "") for part in parts]
        room = width - 1 - len("  ".join(parts + tail)) - 2
        if now.total is not None and room >= SHORTEST_BAR:
            bar = bar_class(total=now.total, completed=min(now.done, now.total), width=min(room, 40))
            cells.insert(1 + parts.index(_describe_step(now)), bar)
        cells += [text_class(part, style="dim") for part in tail]
        if room < -2:
            what = text_class("  ".join(parts + tail), no_wrap=True, overflow="ellipsis")
        else:
            what = table_class.grid(padding=(0, 2))
            what.add_row(*cells)
        lines = [self._render(what, width - 1)]
        if now.lags:
            lag_line = text_class(build_lag_line(now), style="dim", no_wrap=True, overflow="ellipsis")
            lines.append(self._render(lag_line, width - 1))
        return lines

    def _render(self, what: Any, width: int) -> str:
        options = self._console.options.update(width=width, no_wrap=True, overflow="ellipsis", height=1)
        (line, *_) = self._console.render_lines(what, options, pad=False)
        with self._console.capture() as captured:
            self._console.print(self._segments_class(line), end="", soft_wrap=True)
        return captured.get()
