"""One wait for many sources, which one thread serves in turn."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, final

from hocket.core import api, generators
from hocket.engine import contract

Source: TypeAlias = contract.ObjectRef[Any] | generators.ObjectRefGenerator[Any]
"""A reference or a stream of references to wait for."""

_FEW: Final = 8
"""The largest number of sources that are served one a turn: with so few, a second look costs more than a turn."""


@dataclass(frozen=True, slots=True)
class _Waited:
    """A source's entry."""

    serve: Callable[[Any], None]
    owner: Hashable
    is_awaited: bool


@final
class WaitLoop:
    """The sources of a wait, each with the function that serves it when it is ready. One thread uses a loop.

    A source that is added again goes to the end of the queue: a busy source cannot keep another from being served.
    """

    def __init__(self) -> None:
        self._waiting: dict[Source, _Waited] = {}
        self._num_awaited = 0

    @property
    def is_over(self) -> bool:
        """Whether no awaited source is left."""
        return not self._num_awaited

    def add(
        self, source: Source, serve: Callable[[Any], None], *, owner: Hashable = None, is_awaited: bool = True
    ) -> None:
        """Wait for a source, and serve it once, when it is ready.

        Args:
            source: The source.
            serve: The function to call with the ready source.
            owner: The owner to pass to `forget`; None for no owner.
            is_awaited: Whether the loop is over only after this source.
        """
        self._waiting[source] = _Waited(serve, owner, is_awaited)
        self._num_awaited += is_awaited

    def forget(self, owner: Hashable) -> None:
        """Stop waiting for an owner's sources."""
        for source in [source for source, waited in self._waiting.items() if waited.owner == owner]:
            self._num_awaited -= self._waiting.pop(source).is_awaited

    def wait(self, seconds: float | None, others: Sequence[Source] = ()) -> bool:
        """Wait until a source is ready, and serve the ready sources.

        Args:
            seconds: The longest wait; None for no limit.
            others: Sources to wait for as well, which are not served here.

        Returns:
            True if one of `others` is ready, or no source is.
        """
        sources = [*others, *self._waiting]  # `others` first: `wait` prefers them to sources that are always ready
        ready = api.wait(sources, num_returns=1, timeout=seconds)[0]
        if ready and len(sources) > _FEW:
            ready = api.wait(sources, num_returns=len(sources), timeout=0)[0]
        is_other = not ready
        for source in ready:
            waited = self._waiting.pop(source, None)
            if waited is None:  # forgotten while another source was served, or one of `others`
                is_other = is_other or source in others
                continue
            self._num_awaited -= waited.is_awaited
            waited.serve(source)
        return is_other
