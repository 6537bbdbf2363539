"""TensorBoard's event files, written by tensorboardX, or by torch with tensorboard."""

from __future__ import annotations

import contextlib
import importlib
from pathlib import Path
from typing import Any

from hocket import extras


def find_writer_class() -> Any:
    """Return the class of a writer.

    Raises:
        MissingExtraError: No writer is installed.
    """
    with contextlib.suppress(ImportError):  # first: it needs neither torch nor tensorboard
        return importlib.import_module("tensorboardX").SummaryWriter
    needed, remedy = "tensorboardX, or PyTorch with tensorboard", "Run pip install 'hocket[tensorboard]'."
    return extras.load("torch.utils.tensorboard", "Logging to TensorBoard", needed, remedy).SummaryWriter


def open_writer(writer_class: Any, folder: str | Path) -> object:
    """Open an event file in a folder, and return its writer, which must be closed."""
    return writer_class(str(folder), flush_secs=30)
