"""Which strategy a rank uses, from the start of its training function to the end.

See `hocket.train.frameworks.rank_states`.

A rank whose training function has returned leaves the others' collectives, so that one which still waits for it is told
and does not hang.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

from hocket.train import strategies
from hocket.train.frameworks import rank_states
from hocket.train.frameworks.jax import host_calls
from hocket.train.frameworks.jax import strategies as jax_strategies
from hocket.train.rank import worker_session, world


def _build(
    session: worker_session.WorkerSession, strategy: strategies.Strategy, caller: str
) -> jax_strategies.Exchange:
    return jax_strategies.open_exchange(strategy, strategies.Ranks(session.info.rank, session.info.world_size))


_STATES: Final = rank_states.RankStates("jax", _build)

get_exchange: Final = _STATES.get
"""Return the calling rank's strategy at work; see `rank_states.RankStates.get`."""


@contextlib.contextmanager
def use_strategy(strategy: strategies.Strategy) -> Iterator[None]:
    """Have the open session's rank use a strategy, for the duration of a training function."""
    with _STATES.use(strategy):
        yield
    host_calls.wait_for_steps()
    world.get_world("jax.JaxTrainer").close()
