"""The tasks and actors of `hocket bench` and `hocket doctor`.

Imports next to nothing: each new worker imports this module.
"""

import os
import signal


class Counter:
    """An actor that counts."""

    def __init__(self) -> None:
        self._count = 0

    def add(self, amount: int) -> int:
        """Return the sum so far."""
        self._count += amount
        return self._count


def multiply(x: int, y: int) -> int:
    """Return the product."""
    return x * y


def kill_itself() -> None:
    """End the worker as the system's out-of-memory killer would."""
    os.kill(os.getpid(), signal.SIGKILL)
