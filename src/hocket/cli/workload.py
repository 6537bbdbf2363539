"""The tasks and actors of `hocket bench` and `hocket doctor`.

This module imports very little, because each new worker imports it.
"""

import os
import signal


class Counter:
    """An actor that counts."""

    def __init__(self) -> None:
        self._count = 0

    def add(self, amount: int) -> int:
        """Add to the sum, and return it."""
        self._count += amount
        return self._count


def multiply(x: int, y: int) -> int:
    """Return the product of two numbers."""
    return x * y


def kill_itself() -> None:
    """End the worker as the system's out-of-memory killer would."""
    os.kill(os.getpid(), signal.SIGKILL)
