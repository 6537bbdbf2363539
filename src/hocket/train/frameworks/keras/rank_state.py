"""The strategy at work in one rank, from the start of its training function to the end. It belongs to the rank's session."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any, final

from hocket.collective.world import World
from hocket.train import strategies
from hocket.train.frameworks.keras import strategies as keras_strategies
from hocket.train.rank import worker_session, world
from hocket.train.strategies import hosting


@final
class RankState:
    """A rank's strategy, at work.

    Args:
        joined: The ranks.
        strategy: How updates travel.
    """

    def __init__(self, joined: World, strategy: strategies.Strategy) -> None:
        self.world = joined
        self.strategy = strategy
        self.exchange = keras_strategies.open_exchange(strategy, joined)
        self.prepared: list[Any] = []
        """What `prepare_model` has made of the rank's models."""


_states: weakref.WeakKeyDictionary[worker_session.WorkerSession, RankState] = weakref.WeakKeyDictionary()


def get_state(caller: str) -> RankState:
    """Return the calling rank's state.

    Args:
        caller: The function's name, for the message.

    Raises:
        RuntimeError: It is called outside a training function, or the ranks are not joined.
    """
    session = worker_session.get_session(f"keras.{caller}")
    state = _states.get(session)
    if state is None:
        joined = world.get_world(f"keras.{caller}")
        state = _states[session] = RankState(joined, strategies.AllReduce())
    return state


@contextlib.contextmanager
def use_strategy(strategy: strategies.Strategy) -> Iterator[None]:
    """Have the open session's rank use a strategy, for the duration of a block."""
    session = worker_session.get_session("keras.KerasTrainer")
    state = _states[session] = RankState(world.get_world("keras.KerasTrainer"), strategy)
    try:
        yield
    finally:
        _states.pop(session, None)
        state.exchange.close()


@final
class RunWithStrategy(hosting.FunctionWithStrategy):
    """A training function together with its strategy."""

    def __call__(self, *args: Any) -> Any:
        """Run it."""
        with use_strategy(self.strategy):
            return self._function(*args)
