"""Handles that are dropped while a process sleeps.

A handle's finalizer may run in any thread at any moment, so all that it does is to append an id to `Engine.dropped`;
whoever waits next counts it. But a process that only waits, or a driver that computes while its background reader
sleeps, may not come to that for minutes, and an actor whose last handle is gone would live as long.

So while somebody sleeps, a `Bell` hangs in the place of `Engine.dropped`: a deque whose `append` puts the usual one
back, appends there, and wakes the sleeper. The finalizer itself does what it always did, so it costs nothing while
nobody sleeps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol, final


class Owner(Protocol):
    """What a bell needs of an engine."""

    #: Ids of handles that have been garbage-collected and not yet been counted.
    dropped: deque[int]


@final
class Bell(deque[int]):
    """Stands for an engine's `dropped` while somebody sleeps; always empty itself.

    Args:
        owner: The engine.
        ring: Wakes the sleeper. Called by a finalizer: it must not wait, lock or raise.
    """

    def __init__(self, owner: Owner, ring: Callable[[], None]) -> None:
        super().__init__()
        self._owner = owner
        #: Where the ids are: what `Engine.dropped` is while nobody sleeps.
        self.usual = owner.dropped
        self.ring = ring
        #: Whether it has rung since somebody looked.
        self.has_rung = False

    def hang(self) -> bool:
        """Take the place; False if something was dropped meanwhile, and the sleeper had better not sleep."""
        if self.usual:
            return False
        self._owner.dropped = self
        return not self.usual

    def take_down(self) -> None:
        """Give the place back."""
        self._owner.dropped = self.usual

    def append(self, object_id: int, /) -> None:
        """Wake the sleeper; what follows goes where it always does."""
        self._owner.dropped = self.usual
        self.usual.append(object_id)
        self.has_rung = True
        self.ring()
