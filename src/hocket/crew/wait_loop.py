"""One wait for many sources: one thread serves them, in turn."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, final

from hocket.core import api, generators
from hocket.engine import contract

Source: TypeAlias = contract.ObjectRef[Any] | generators.ObjectRefGenerator[Any]
"""What can be waited for."""

_FEW: Final = 8
"""Of so few sources, what else is there is looked for in the next turn, which costs less than to look twice."""


@dataclass(frozen=True, slots=True)
class _Waited:
    """A source's entry."""

    serve: Callable[[Any], None]
    owner: Hashable
    is_awaited: bool


@final
class WaitLoop:
    """The sources of a wait, each with the function that serves it when it is ready. Used by one thread.

    Whoever was served goes to the end of the queue, so that none keeps another from being served, however much it has
    to say.
    """

    def __init__(self) -> None:
        self._waiting: dict[Source, _Waited] = {}
        self._num_awaited = 0

    @property
    def is_over(self) -> bool:
        """Whether nothing is left that must be waited for."""
        return not self._num_awaited

    def add(
        self, source: Source, serve: Callable[[Any], None], *, owner: Hashable = None, is_awaited: bool = True
    ) -> None:
        """Wait for something; serve it, once, when it is there.

        Args:
            source: What is waited for.
            serve: Called with it.
            owner: Who can be forgotten; None for nobody.
            is_awaited: Whether the end waits for it.
        """
        self._waiting[source] = _Waited(serve, owner, is_awaited)
        self._num_awaited += is_awaited

    def forget(self, owner: Hashable) -> None:
        """Wait no longer for what was added for an owner."""
        for source in [source for source, waited in self._waiting.items() if waited.owner == owner]:
            self._num_awaited -= self._waiting.pop(source).is_awaited

    def wait(self, seconds: float | None, others: Sequence[Source] = ()) -> bool:
        """Wait until something is there, and serve all that is; return whether any of it was none of these.

        Args:
            seconds: How long to wait at most; None: as long as it takes.
            others: What is waited for beside them, and not served here.

        Returns:
            True if one of `others` is there, or nothing is.
        """
        sources = [*others, *self._waiting]  # they first: one that is there is returned though others always are
        ready = api.wait(sources, num_returns=1, timeout=seconds)[0]
        if ready and len(sources) > _FEW:
            ready = api.wait(sources, num_returns=len(sources), timeout=0)[0]
        is_other = not ready
        for source in ready:
            waited = self._waiting.pop(source, None)
            if waited is None:  # forgotten since, or another's
                is_other = is_other or source in others
                continue
            self._num_awaited -= waited.is_awaited
            waited.serve(source)
        return is_other
