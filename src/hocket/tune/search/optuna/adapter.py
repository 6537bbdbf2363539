"""Optuna, which enters here."""

from __future__ import annotations

import functools
import importlib
from typing import Any

from hocket import extras


@functools.cache
def load() -> Any:
    """Return Optuna.

    It says less from then on: warnings, unless its verbosity was set to something other than its default. Who wants
    more calls ``optuna.logging.set_verbosity`` after an `OptunaSearch` was made.

    Raises:
        MissingExtraError: It is not installed.
    """
    remedy = "Run pip install 'hocket[tune]', or search with BasicVariantGenerator."
    optuna = extras.load("optuna", "OptunaSearch", "Optuna", remedy)
    if optuna.logging.get_verbosity() == optuna.logging.INFO:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def get_internals() -> Any:
    """Return the module of Optuna's names that Optuna does not document. Only its searches load it."""
    return importlib.import_module("hocket._base.internals.optuna")
