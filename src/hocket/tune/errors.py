"""Errors of a search."""

from __future__ import annotations

from hocket import exceptions


class TuneError(exceptions.HocketError):
    """A search cannot go on, or its results lack a requested metric. The message says why, and what to write."""


class ExperimentError(TuneError, TypeError, ValueError):
    """An experiment that `run_experiments` was given, or the name of a trainable, is none."""
