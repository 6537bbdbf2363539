"""The state of a framework in a rank: its prepared objects, from the start of the training function to the end.

The state belongs to the rank's session. A trainer's rank has it before the training function runs (`RankStates.use`).
Elsewhere, as in a session of `Trainer`, the first call that needs it creates it.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Final, Generic, Protocol, TypeVar, final

from hocket._base import texts
from hocket.train import strategies
from hocket.train.rank import worker_session


class RankState(Protocol):
    """The prepared objects of a framework in one rank."""

    def close(self) -> None:
        """Release everything."""


class RuntimeState:
    """A strategy at work on host arrays, for a framework that needs nothing else.

    Args:
        joined: The ranks' collectives.
        strategy: How updates travel.

    Raises:
        TypeError: The strategy is for another framework.
    """

    def __init__(self, joined: strategies.Collectives, strategy: strategies.Strategy) -> None:
        opened = strategy.open(strategies.Ranks(joined.rank, joined.size, joined))
        if not isinstance(opened, strategies.StrategyRuntime):
            raise strategies.build_opened_error(strategy, opened)
        self.runtime: Final = opened

    def close(self) -> None:
        """Close the strategy."""
        self.runtime.close()


S = TypeVar("S", bound=RankState)


@final
class RankStates(Generic[S]):
    """The states of one framework, by session.

    Args:
        framework: The framework's name, for messages: ``"torch"``.
        build: Makes a state from a session, a strategy and the caller's name.
    """

    def __init__(
        self, framework: str, build: Callable[[worker_session.WorkerSession, strategies.Strategy, str], S]
    ) -> None:
        self._framework = framework
        self._build = build
        self._states: weakref.WeakKeyDictionary[worker_session.WorkerSession, S] = weakref.WeakKeyDictionary()

    def get(self, caller: str) -> S:
        """Return the calling rank's state.

        Args:
            caller: The function's name, for the message.
        """
        name = f"{self._framework}.{caller}"
        session = worker_session.get_session(name)
        state = self._states.get(session)
        if state is None:
            state = self._states[session] = self._build(session, strategies.AllReduce(), name)
        return state

    def get_optional(self) -> S | None:
        """Return the calling rank's state; None if there is none yet, or outside a training function."""
        session = worker_session.get_optional_session()
        return None if session is None else self._states.get(session)

    @contextlib.contextmanager
    def use(self, strategy: strategies.Strategy) -> Iterator[None]:
        """Use a strategy in the calling rank, for the duration of a block."""
        name = f"{self._framework}'s trainer"
        session = worker_session.get_session(name)
        session.batch_part = strategy.locate_batch(session.info.rank, session.info.world_size)
        state = self._states[session] = self._build(session, strategy, name)
        try:
            yield
        except BaseException as error:
            self._states.pop(session, None)
            with contextlib.ExitStack() as stack:
                stack.push(functools.partial(_note, error))
                state.close()
            raise
        self._states.pop(session, None)
        state.close()


def _note(error: BaseException, _: object, second: BaseException | None, __: object) -> bool:
    """Add a note on a second error, from closing the strategy, to an error; return whether to drop the second."""
    if not isinstance(second, Exception):
        return False
    error.add_note(f"After that, the strategy could not be closed: {texts.describe(second)}")
    return True
