"""Libraries that come with an extra of this package, and the error for a missing library."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from typing import Any

from hocket import _base, exceptions


def load(module: str, caller: str, library: str, remedy: str) -> Any:
    """Import a module of a library, and return it.

    Args:
        module: The module's name.
        caller: The function or class that needs the module, for the message.
        library: The usual name of the library.
        remedy: The advice if the library is missing.

    Raises:
        MissingExtraError: The library is not installed, or its import failed.
    """
    with explain(caller, library, remedy):
        return importlib.import_module(module)


def check(module: str, caller: str, library: str, remedy: str) -> None:
    """Raise as `load` does if a module is missing, but do not import the module."""
    with explain(caller, library, remedy):
        if sys.modules.get(module, importlib.util.find_spec) is None or importlib.util.find_spec(module) is None:
            raise ModuleNotFoundError(name=module)


@contextlib.contextmanager
def explain(caller: str, library: str, remedy: str) -> Iterator[None]:
    """Raise `MissingExtraError` for an import that fails inside, and pause the garbage collector; see `load`."""
    try:
        with _base.NoCollection():
            yield
    except exceptions.MissingExtraError:
        raise
    except ImportError as error:
        is_missing = isinstance(error, ModuleNotFoundError)
        why = f"{error.name!r} cannot be imported" if is_missing else f"its import failed: {str(error).rstrip('.')}"
        raise exceptions.MissingExtraError(f"{caller} needs {library}, and {why}. {remedy}") from error
