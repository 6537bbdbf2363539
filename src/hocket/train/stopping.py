"""Callbacks that end a training in good order: pass them in ``RunConfig(callbacks=[...])``.

`fit` then returns a `Result` of the reports until then, with their checkpoints.
"""

from __future__ import annotations

import math
import time
import warnings
from typing import Any, Final, final

from hocket._base import texts
from hocket.train import user_callback
from hocket.train.checkpoints import checkpoint
from hocket.train.tracking import values

MODES: Final = ("min", "max")


@final
class EarlyStopping(user_callback.UserCallback):
    """A callback that ends a training when a metric of rank 0 has not improved for some reports.

    Reports without the metric do not count. Reports that come again after a failure count once. Training goes on while
    the driver decides, so ranks may make a few more reports than the result has.

    Args:
        metric: The metric's name; ``"val/loss"`` looks into nested metrics.
        mode: ``"min"`` if less is better, ``"max"`` if more is.
        patience: The number of reports in a row without a better value that ends the training.
        min_delta: The least difference from the best value that counts as better.
        threshold: A value that is good enough to end the training at once. Default: none.
        check_finite: Whether NaN and infinities end the training at once.

    Attributes:
        best: The best value of the last run; None before the first.
        reason: Why this callback ended the last run; empty if it did not.

    Raises:
        TypeError: The metric is not a name, or a setting is not a number.
        ValueError: The mode is unknown, the patience is below 1, or `min_delta` is negative.

    Example:
        >>> import tempfile
        >>> from hocket import train
        >>> def loop():
        ...     for loss in [3.0, 2.0, 2.5, 2.5, 1.0]:
        ...         train.report({"loss": loss})
        >>> stopping = train.EarlyStopping("loss", patience=2)
        >>> trainer = train.DataParallelTrainer(
        ...     loop,
        ...     scaling_config=train.ScalingConfig(num_workers=0),
        ...     run_config=train.RunConfig(storage_path=tempfile.mkdtemp(), callbacks=[stopping]),
        ... )
        >>> len(trainer.fit().metrics_history), stopping.best
        (4, 2.0)
    """

    def __init__(
        self,
        metric: str,
        *,
        mode: str = "min",
        patience: int = 3,
        min_delta: float = 0.0,
        threshold: float | None = None,
        check_finite: bool = True,
    ) -> None:
        given: object = metric
        if not isinstance(given, str) or not given:
            raise TypeError(
                f"metric must be a metric's name, but received {texts.safe_repr(metric)}. Write EarlyStopping('loss')."
            )
        if mode not in MODES:
            raise ValueError(f"mode must be 'min' or 'max', but received {mode!r}. Write mode='min' for a loss.")
        if isinstance(patience, bool) or not isinstance(patience, int):
            raise TypeError(f"patience must be a whole number of reports, but received {patience!r}. Write patience=3.")
        if patience < 1:
            raise ValueError(f"patience must be 1 report or more, but received {patience!r}. Write patience=1.")
        for name, number in (("min_delta", min_delta), ("threshold", threshold)):
            is_number = isinstance(number, int | float) and not isinstance(number, bool)
            if not is_number and (number is not None or name == "min_delta"):
                raise TypeError(f"{name} must be a number, but received {texts.safe_repr(number)}. Write {name}=0.01.")
        if not min_delta >= 0:
            raise ValueError(f"min_delta must be 0 or more, but received {min_delta!r}. Write min_delta=0.01.")
        self._metric, self._sign, self._patience = metric, 1.0 if mode == "max" else -1.0, patience
        self._min_delta, self._threshold, self._check_finite = min_delta, threshold, check_finite
        self._waited = 0
        #: For each report, the best value and the number of reports since, because reports may come again.
        self._states: list[tuple[float | None, int]] = []
        #: Whether a report had the metric, and the names of other metrics in reports without it.
        self._is_known = False
        self._others: set[str] = set()
        self.best: float | None = None
        self.reason = ""

    def before_run(self, run_context: user_callback.TrainRunContext) -> None:
        """Begin to count."""
        self.best, self.reason, self._waited = None, "", 0
        self._states = []
        self._is_known = False
        self._others = set()

    def after_report(
        self,
        run_context: user_callback.TrainRunContext,
        metrics: list[dict[str, Any]],
        checkpoint: checkpoint.Checkpoint | None,
    ) -> None:
        """Judge the metric.

        Raises:
            StopIteration: The training is to end.
        """
        del self._states[run_context.report_count - 1 :]
        self.best, self._waited = self._states[-1] if self._states else (None, 0)
        numbers = values.list_numbers(metrics[0])
        value = numbers.get(self._metric)
        if value is None:
            self._others.update(numbers)
        else:
            self._is_known = True
            self.reason = self._judge(float(value))
        self._states.append((self.best, self._waited))
        if self.reason:
            raise StopIteration(self.reason)

    def after_run(self, run_context: user_callback.TrainRunContext, error: BaseException | None) -> None:
        """Warn if the metric never came, because the callback then could not act."""
        if self._others and not self._is_known:
            warnings.warn(
                f"EarlyStopping({self._metric!r}) could not act, because no report has a number called "
                f"{self._metric!r}. Name a metric that the reports have: {sorted(self._others)[:20]}.",
                stacklevel=2,
            )

    def _judge(self, value: float) -> str:
        if not math.isfinite(value):
            return f"{self._metric} is {value}" if self._check_finite else ""
        if self.best is None or self._sign * (value - self.best) > self._min_delta:
            self.best, self._waited = value, 0
        else:
            self._waited += 1
        if self._threshold is not None and self._sign * (value - self._threshold) >= 0:
            return f"{self._metric} is {value}, which reaches the threshold {self._threshold}"
        if self._waited >= self._patience:
            return f"{self._metric} has not improved on {self.best} for {self._waited} reports"
        return ""


@final
class TimeLimit(user_callback.UserCallback):
    """A callback that ends a training at the first report after some time.

    Args:
        seconds: The time from the beginning of `fit`.

    Raises:
        TypeError: `seconds` is not a number.
        ValueError: `seconds` is not more than 0.

    Example:
        >>> import tempfile
        >>> from hocket import train
        >>> trainer = train.DataParallelTrainer(
        ...     lambda: [train.report({"step": step}) for step in range(1000)],
        ...     scaling_config=train.ScalingConfig(num_workers=0),
        ...     run_config=train.RunConfig(storage_path=tempfile.mkdtemp(), callbacks=[train.TimeLimit(1e-9)]),
        ... )
        >>> len(trainer.fit().metrics_history)
        1
    """

    def __init__(self, seconds: float) -> None:
        if isinstance(seconds, bool) or not isinstance(seconds, int | float):
            raise TypeError(f"seconds must be a number, but received {seconds!r}. Write TimeLimit(3600).")
        if not seconds > 0:
            raise ValueError(f"seconds must be more than 0, but received {seconds!r}. Write TimeLimit(3600).")
        self._seconds = seconds
        self._end = math.inf

    def before_run(self, run_context: user_callback.TrainRunContext) -> None:
        """Start the clock."""
        self._end = time.monotonic() + self._seconds

    def after_report(
        self,
        run_context: user_callback.TrainRunContext,
        metrics: list[dict[str, Any]],
        checkpoint: checkpoint.Checkpoint | None,
    ) -> None:
        """Check the clock.

        Raises:
            StopIteration: The time is over.
        """
        if time.monotonic() >= self._end:
            raise StopIteration(f"the time limit of {self._seconds:g} s is over")
