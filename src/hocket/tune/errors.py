"""What a search raises."""

from __future__ import annotations

from hocket import exceptions


class TuneError(exceptions.HocketError):
    """A search cannot go on, or its results do not have what was asked for. The message says why, and what to write."""
