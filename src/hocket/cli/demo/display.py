"""The live progress of the demo."""

from __future__ import annotations

from typing import Any, Self

from rich import console, progress

from hocket import train

OUT = console.Console(highlight=False, soft_wrap=True)
"""Where the demo prints."""


class LiveDisplay(train.UserCallback):
    """A bar with epoch, loss, accuracy and samples/s. Used as a context manager around `fit`.

    Args:
        num_epochs: How many there will be.
        is_quiet: Whether nothing is shown.
    """

    def __init__(self, num_epochs: int, *, is_quiet: bool) -> None:
        self._progress = progress.Progress(
            progress.TextColumn("epoch {task.completed:>3}/{task.total}"),
            progress.BarColumn(bar_width=24),
            progress.TextColumn("{task.description}"),
            progress.TimeElapsedColumn(),
            console=OUT,
            disable=is_quiet,
        )
        self._task = self._progress.add_task("starting the workers", total=num_epochs)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def after_report(
        self,
        run_context: train.TrainRunContext,
        metrics: list[dict[str, Any]],
        checkpoint: train.Checkpoint | None,
    ) -> None:
        """Show rank 0's metrics, which are those of all ranks together."""
        first = metrics[0]
        self._progress.update(
            self._task,
            completed=first["epoch"],
            description=f"loss {first['loss']:.4f}  accuracy {first['accuracy']:.4f}  "
            f"{first['samples_per_second']:,.0f} samples/s",
        )
