"""Libraries that come with an extra of this package: imported when they are asked for, by name."""

from __future__ import annotations

import importlib
from typing import Any

from hocket import exceptions


def load(module: str, caller: str, library: str, remedy: str) -> Any:
    """Return a module.

    Args:
        module: Its name.
        caller: What needs it, for the message.
        library: What people call it.
        remedy: What to do if it is missing.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise exceptions.MissingExtraError(
            f"{caller} needs {library}, and {error.name!r} cannot be imported. {remedy}"
        ) from error
