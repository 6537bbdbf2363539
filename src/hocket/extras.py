"""Libraries that come with an extra of this package, and one form of error for each that is missing."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from typing import Any

from hocket import _base, exceptions


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
    with explain(caller, library, remedy):
        return importlib.import_module(module)


def check(module: str, caller: str, library: str, remedy: str) -> None:
    """Raise as `load` does where a module is missing, and do not import it."""
    with explain(caller, library, remedy):
        if sys.modules.get(module, importlib.util.find_spec) is None or importlib.util.find_spec(module) is None:
            raise ModuleNotFoundError(name=module)


@contextlib.contextmanager
def explain(caller: str, library: str, remedy: str) -> Iterator[None]:
    """Explain imports that fail, and look for no garbage meanwhile; see `load`."""
    try:
        with _base.NoCollection():
            yield
    except exceptions.MissingExtraError:
        raise
    except ImportError as error:
        is_missing = isinstance(error, ModuleNotFoundError)
        why = f"{error.name!r} cannot be imported" if is_missing else f"its import failed: {str(error).rstrip('.')}"
        raise exceptions.MissingExtraError(f"{caller} needs {library}, and {why}. {remedy}") from error
