"""Errors of a search."""

from __future__ import annotations

from hocket import exceptions


class TuneError(exceptions.HocketError):
    """An error that ends a search, or a metric missing from its results. The message says why, and what to write."""


class ExperimentError(TuneError, TypeError, ValueError):
    """An invalid experiment for `run_experiments`, or an invalid or unknown trainable."""
