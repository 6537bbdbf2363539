"""Errors between ranks."""

from __future__ import annotations

from hocket import exceptions


class CollectiveError(exceptions.HocketError):
    """A collective operation cannot succeed.

    The group is unusable afterwards, because the ranks no longer agree on which operations were done.
    """


class RankDiedError(CollectiveError):
    """A rank that the others wait for has died, or has left the group."""


class CollectiveMismatchError(CollectiveError):
    """The ranks called different operations, or the same operation with different shapes."""


class CollectiveTimeoutError(CollectiveError, TimeoutError):
    """A rank did not reach an operation in time. The message describes what each rank is doing."""
