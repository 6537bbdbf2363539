"""Lightning in a trial's function: reports of its metrics, with its checkpoints. Names are Ray's.

Importing this module imports Lightning.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, final

from hocket import extras, tune
from hocket.train.frameworks.boosters import metric_choice
from hocket.tune.worker import trial_session

with extras.explain("hocket.tune.integration.pytorch_lightning", "Lightning", "Run pip install 'hocket[lightning]'."):
    from lightning import pytorch as pl

_log = logging.getLogger(__name__)

_HOOKS: Final = sorted(name.removeprefix("on_") for name in dir(pl.Callback) if name.startswith("on_"))


class TuneReportCheckpointCallback(pl.Callback):  # type: ignore[misc]  # Lightning is not type-checked
    """A callback that reports Lightning's metrics, with a Lightning checkpoint, at each call of one of its hooks.

    Pass one to ``lightning.pytorch.Trainer(callbacks=[...])``. For a trainer with several devices use a
    `hocket.train.torch.TorchTrainer`, with `hocket.train.lightning`.

    Args:
        metrics: The metrics to report: names of Lightning's ``callback_metrics``, or a dict from names in the report to
            Lightning's names. A metric that Lightning does not have yet is left out, with a warning. Default: all.
        filename: The checkpoint's file name in its folder, for ``trainer.fit(ckpt_path=...)``.
        save_checkpoints: Whether to save checkpoints.
        on: The hooks: a name of a method of Lightning's callbacks without ``on_``, or several.

    Raises:
        TypeError: The metrics are not names.
        ValueError: A hook does not exist.

    Example:
        >>> from hocket.tune.integration.pytorch_lightning import TuneReportCheckpointCallback
        >>> callback = TuneReportCheckpointCallback({"loss": "val_loss"}, on="validation_end")
    """

    def __init__(
        self,
        metrics: metric_choice.Choice = None,
        filename: str = "checkpoint",
        save_checkpoints: bool = True,
        on: str | Sequence[str] = "validation_end",
    ) -> None:
        hooks = [on] if isinstance(on, str) else list(on)
        unknown = [hook for hook in hooks if hook not in _HOOKS]
        if unknown or not hooks:
            raise ValueError(
                f"on must name hooks of Lightning's callbacks, {', '.join(_HOOKS)}, but received {on!r}. Write "
                "on='validation_end'."
            )
        self._names = metric_choice.read(metrics)
        self._filename, self._saves = filename, save_checkpoints
        for hook in hooks:
            setattr(self, f"on_{hook}", _build_hook(getattr(self, f"on_{hook}"), self._report))

    def _report(self, trainer: Any) -> None:
        if trainer.sanity_checking:
            return
        found = {name: value.item() for name, value in trainer.callback_metrics.items()}
        names = {name: theirs for name, theirs in (self._names or {}).items() if theirs in found}
        if self._names is not None and len(names) < len(self._names):
            missing = sorted(set(self._names.values()) - set(found))
            _log.warning("Lightning has no metrics %s, so they are not reported. It has %s.", missing, sorted(found))
        metrics = metric_choice.choose(names if self._names is not None else None, found)
        if not metrics:
            return
        if not self._saves:
            tune.report(metrics)
            return
        with trial_session.get_session("report").rank.open_folder() as folder:
            trainer.save_checkpoint(str(Path(folder, self._filename)))
            tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(folder))


def _build_hook(before: Callable[..., object], report: Callable[[Any], None]) -> Callable[..., object]:
    @functools.wraps(before)
    def hook(trainer: object, *args: object, **kwargs: object) -> None:
        before(trainer, *args, **kwargs)
        report(trainer)

    return hook


@final
class TuneReportCallback(TuneReportCheckpointCallback):
    """A `TuneReportCheckpointCallback` without checkpoints.

    Args:
        metrics: As in `TuneReportCheckpointCallback`.
        on: As in `TuneReportCheckpointCallback`.
    """

    def __init__(self, metrics: metric_choice.Choice = None, on: str | Sequence[str] = "validation_end") -> None:
        super().__init__(metrics, save_checkpoints=False, on=on)
