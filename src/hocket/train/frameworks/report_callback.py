"""The base of the reporting callbacks for Keras 2 (tf-keras) and Keras 3: when they report, and which metrics.

Names and rules are Ray's. Keras calls one method for each moment; the callback's arguments choose the moments at which
it reports. A subclass may override these methods and call them with ``super()``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from hocket.train.checkpoints import checkpoint as checkpoint_module
from hocket.train.rank import context, worker_session

MOMENTS: Final = tuple(
    f"{what}_{when}"
    for what in ("epoch", "train_batch", "test_batch", "predict_batch", "train", "test", "predict")
    for when in ("begin", "end")
)
"""The moments at which Keras calls a callback."""

_BATCH_MOMENTS: Final = tuple(moment for moment in MOMENTS if "batch" in moment)

_IS_DEFAULT: Final = "_is_default"
"""The attribute that marks a method of a Keras callback as empty. After each batch Keras calls the methods without the
mark, and computes the logs for them. So our methods for batches have the mark, unless a callback reports then."""


class ReportMixin:
    """Mixin for a callback that reports at the chosen moments.

    Combine it with the ``Callback`` class of a Keras version; `write_checkpoint` is the part that differs.

    Args:
        checkpoint_on: The moments at which to report with a checkpoint.
        report_metrics_on: The moments at which to report without a checkpoint, unless `checkpoint_on` has them too.
        metrics: The logs to report: a name, several, or a dict from the reported name to Keras's. Default: all.

    Raises:
        ValueError: There is no such moment.
    """

    def __init__(
        self,
        checkpoint_on: str | Sequence[str] = "epoch_end",
        report_metrics_on: str | Sequence[str] = "epoch_end",
        metrics: str | Sequence[str] | Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self._checkpoint_on = _check_moments("checkpoint_on", checkpoint_on)
        self._report_on = _check_moments("report_metrics_on", report_metrics_on)
        self._metrics = metrics
        for moment in self._chosen & set(_BATCH_MOMENTS):
            name = f"on_{moment}"
            hook = getattr(self, name)
            if getattr(hook, _IS_DEFAULT, False):  # the method is still ours, not a subclass's
                setattr(self, name, lambda *args, hook=hook, **kwargs: hook(*args, **kwargs))

    @property
    def _chosen(self) -> set[str]:
        return {*self._checkpoint_on, *self._report_on}

    def write_checkpoint(self, folder: str) -> bool:
        """Write the model to a folder, in every rank; return whether this rank's files belong in the checkpoint."""
        raise NotImplementedError

    def _report(self, moment: str, logs: Mapping[str, object]) -> None:
        metrics = _choose(self._metrics, logs, moment)
        if moment not in self._checkpoint_on:
            context.report(metrics)
            return
        with worker_session.get_session("report").open_folder() as folder:
            is_ours = self.write_checkpoint(folder)
            context.report(metrics, checkpoint=checkpoint_module.Checkpoint(folder) if is_ours else None)


def _build_hook(moment: str) -> Callable[..., None]:
    """Return the method that Keras calls at a moment."""

    def hook(self: ReportMixin, *args: object, logs: Mapping[str, object] | None = None) -> None:
        if moment in self._chosen:
            given = logs if logs is not None else (args[-1] if args and isinstance(args[-1], Mapping) else {})
            self._report(moment, given)

    hook.__name__ = f"on_{moment}"
    hook.__qualname__ = f"{ReportMixin.__qualname__}.on_{moment}"
    if moment in _BATCH_MOMENTS:
        setattr(hook, _IS_DEFAULT, True)
    return hook


for _moment in MOMENTS:
    setattr(ReportMixin, f"on_{_moment}", _build_hook(_moment))


def _check_moments(name: str, given: str | Sequence[str]) -> tuple[str, ...]:
    moments = (given,) if isinstance(given, str) else tuple(given)
    for moment in moments:
        if moment not in MOMENTS:
            raise ValueError(
                f"{name} must be one of {', '.join(MOMENTS)}, but received {moment!r}. Leave it out for 'epoch_end'."
            )
    return moments


def _choose(
    wanted: str | Sequence[str] | Mapping[str, str] | None, logs: Mapping[str, object], moment: str
) -> dict[str, object]:
    """Return the metrics to report, by their reported names."""
    if wanted is None:
        names: Mapping[str, str] = {name: name for name in logs}
    elif isinstance(wanted, str):
        names = {wanted: wanted}
    elif isinstance(wanted, Mapping):
        names = wanted
    else:
        names = {name: name for name in wanted}
    missing = [name for name in names.values() if name not in logs]
    if missing:
        raise ValueError(
            f"Keras's logs at {moment} have {', '.join(logs) or 'nothing'}, but metrics asks for {', '.join(missing)}. "
            "Name metrics that the logs have, or leave metrics out for all."
        )
    return {name: _to_plain(logs[source]) for name, source in names.items()}


def _to_plain(value: Any) -> object:
    """Return a scalar of numpy or of a framework as a Python float, and other values unchanged."""
    is_scalar = getattr(value, "shape", None) == () and hasattr(value, "__float__")
    return float(value) if is_scalar else value
