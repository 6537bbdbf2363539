"""Errors whose classes cannot travel as others do."""

from __future__ import annotations

import threading


class KeptOpenError(Exception):
    """Cannot be sent to another process."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


class LastOfItsKindError(Exception):
    """Lets nobody inherit."""

    def __init_subclass__(cls) -> None:
        raise TypeError("nobody inherits from this")
