"""Progress bars for tasks and actors, too, under Ray's name: a line of text now and then.

Bars of several processes that redraw one terminal would overwrite each other; lines do not.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar, final

T = TypeVar("T")

safe_print = print
"""Ray's name for a `print` that leaves bars intact."""


@final
class tqdm(Generic[T]):  # noqa: N801 (Ray's and tqdm's name)
    """A progress report on stderr, at most one line per `flush_interval_s`.

    Args:
        iterable: The values to iterate over.
        desc: The start of the line.
        total: The number of items in all. Default: the length of `iterable`, if it has one.
        unit: The name of the counted items.
        position: For programs written for Ray: has no effect.
        flush_interval_s: Seconds between two lines.
    """

    def __init__(
        self,
        iterable: Iterable[T] | None = None,
        desc: str | None = None,
        total: int | None = None,
        unit: str | None = None,
        position: int | None = None,
        flush_interval_s: float | None = 1.0,
    ) -> None:
        self._iterable = iterable
        self._desc, self._unit = f"{desc}: " if desc else "", unit or "it"
        self.n: int = 0
        """The number of items so far."""
        self.total: int | None = len(iterable) if total is None and hasattr(iterable, "__len__") else total  # type: ignore[arg-type]  # it has a length
        self._interval_s = 1.0 if flush_interval_s is None else flush_interval_s
        self._last = time.monotonic()

    def set_description(self, desc: str) -> None:
        """Set the start of later lines."""
        self._desc = f"{desc}: "

    def update(self, n: int = 1) -> None:
        """Count further items."""
        self.n += n
        if time.monotonic() - self._last >= self._interval_s:
            self.refresh()

    def refresh(self) -> None:
        """Write the line now."""
        self._last = time.monotonic()
        of = "" if self.total is None else f"/{self.total}"
        sys.stderr.write(f"{self._desc}{self.n}{of} {self._unit}\n")

    close = refresh

    def __iter__(self) -> Iterator[T]:
        if self._iterable is None:
            raise ValueError("This bar was given nothing to go through. Write tqdm(values), or call update(1).")
        for value in self._iterable:
            self.update(1)
            yield value
