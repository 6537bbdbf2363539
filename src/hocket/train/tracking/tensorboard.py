"""TensorBoard's event files, by a writer that is installed: torch's, which needs tensorboard, or tensorboardX."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hocket import exceptions


def find_writer_class() -> Any:
    """Return the class of a writer.

    Raises:
        MissingExtraError: There is none.
    """
    try:
        from tensorboardX import SummaryWriter  # the smaller one: it needs neither torch nor tensorboard
    except ImportError:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise exceptions.MissingExtraError(
                "To log to TensorBoard needs a writer, and neither tensorboardX nor torch with tensorboard is "
                "installed. Run pip install 'hocket[tensorboard]'."
            ) from error
    return SummaryWriter


def open_writer(writer_class: Any, folder: str | Path) -> object:
    """Open a folder's event file, which `close` of what is returned ends."""
    return writer_class(str(folder), flush_secs=30)
