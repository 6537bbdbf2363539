"""The only module that imports Optuna."""

from __future__ import annotations

import functools
import importlib
from typing import Any

from hocket import extras


@functools.cache
def load() -> Any:
    """Return Optuna, and lower its verbosity to warnings if that is still the default.

    For more output, call ``optuna.logging.set_verbosity`` after making an `OptunaSearch`.

    Raises:
        MissingExtraError: Optuna is not installed.
    """
    remedy = "Run pip install 'hocket[tune]', or search with BasicVariantGenerator."
    optuna = extras.load("optuna", "OptunaSearch", "Optuna", remedy)
    if optuna.logging.get_verbosity() == optuna.logging.INFO:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def get_internals() -> Any:
    """Return the module of Optuna's undocumented names. Only Optuna's searchers load it."""
    return importlib.import_module("hocket._base.internals.optuna")
