"""TensorBoard's event files, by a writer that is installed: torch's, which needs tensorboard, or tensorboardX."""

from __future__ import annotations

import contextlib
import importlib
from pathlib import Path
from typing import Any

from hocket import extras


def find_writer_class() -> Any:
    """Return the class of a writer.

    Raises:
        MissingExtraError: There is none.
    """
    with contextlib.suppress(ImportError):  # the smaller one: it needs neither torch nor tensorboard
        return importlib.import_module("tensorboardX").SummaryWriter
    needed, remedy = "tensorboardX, or PyTorch with tensorboard", "Run pip install 'hocket[tensorboard]'."
    return extras.load("torch.utils.tensorboard", "Logging to TensorBoard", needed, remedy).SummaryWriter


def open_writer(writer_class: Any, folder: str | Path) -> object:
    """Open a folder's event file, which `close` of what is returned ends."""
    return writer_class(str(folder), flush_secs=30)
