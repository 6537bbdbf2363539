"""Which strategy a rank uses, from the start of its training function to the end.

It belongs to the rank's `worker_session.WorkerSession`, and is made at the first call of a function that needs it. `RunWithStrategy` is there earlier, if it
runs in a trainer's rank.

A rank whose training function has returned leaves the others' collectives, so that one which still waits for it is told and does not hang.
"""

from __future__ import annotations

import weakref
from typing import Any, final

from hocket.train import strategies
from hocket.train.frameworks.jax import host_calls
from hocket.train.frameworks.jax import strategies as jax_strategies
from hocket.train.rank import worker_session, world
from hocket.train.strategies import hosting

_exchanges: weakref.WeakKeyDictionary[worker_session.WorkerSession, jax_strategies.Exchange] = (
    weakref.WeakKeyDictionary()
)


def get_exchange(caller: str) -> jax_strategies.Exchange:
    """Return the calling rank's strategy at work.

    Args:
        caller: The function's name, for the message.

    Raises:
        RuntimeError: It is called outside a training function.
    """
    session = worker_session.get_session(f"jax.{caller}")
    found = _exchanges.get(session)
    if found is None:
        found = _exchanges[session] = _open(session, strategies.AllReduce())
    return found


def _open(session: worker_session.WorkerSession, strategy: strategies.Strategy) -> jax_strategies.Exchange:
    info = session.info
    return jax_strategies.open_exchange(strategy, jax_strategies.Ranks(info.rank, info.world_size))


@final
class RunWithStrategy(hosting.FunctionWithStrategy):
    """A training function together with its strategy."""

    def __call__(self, *args: Any) -> Any:
        """Run it."""
        session = worker_session.get_session("jax.JaxTrainer")
        _exchanges[session] = _open(session, self.strategy)
        try:
            returned = self._function(*args)
        finally:
            _exchanges.pop(session).close()
        host_calls.wait_for_steps()
        world.get_world("jax.JaxTrainer").close()
        return returned
