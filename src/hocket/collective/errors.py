"""Errors between ranks."""

from __future__ import annotations

from hocket import exceptions


class CollectiveError(exceptions.HocketError):
    """A collective operation cannot end well.

    The group cannot be used any more: the ranks no longer agree on what was done.
    """


class RankDiedError(CollectiveError):
    """A rank that the others wait for has died, or has left the group."""


class CollectiveMismatchError(CollectiveError):
    """The ranks called different operations, or the same with other shapes."""


class CollectiveTimeoutError(CollectiveError, TimeoutError):
    """A rank did not come to an operation in time. The message says what each is doing."""
