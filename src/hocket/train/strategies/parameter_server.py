"""Parameter servers: the ranks push gradients to servers, and pull what has become of the parameters.

They do not wait for each other.

Servers hold the parameters and the optimizer's state, and live as long as ``fit()`` takes: a rank that dies costs the
step that it was in. Each rank's step is an update of its own, so n ranks take n steps where all-reduce takes one, and a
gradient may have been computed from parameters that others have moved since: it is *stale*. `max_staleness` bounds by
how much. See `hocket.ps`.

What happens is in `hocket.train.strategies.ps_client`; each adapter says when.
"""

from __future__ import annotations

import importlib
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, Final, final

from hocket import keywords, ps
from hocket.train.strategies import strategy

MIN_TABLE_ROWS: Final = 100_000
"""From how many rows on an embedding moves by rows. A guess: 100,000 rows of 16 floats are 6 MB, which is much for a
step."""

TIMEOUT_SECONDS: Final = 600.0
"""How long a rank may wait for others, where staleness is bounded. As in `hocket.ps`."""

_POLICIES: Final = ("raise", "skip", "clip")


@final
@keywords.explained()
@dataclass(frozen=True)
class ParameterServer(strategy.Strategy):
    """Servers hold the parameters; each rank pushes its gradients and pulls what they have become, without waiting for
    the other ranks.

    Right for large embeddings, of which a step touches few rows, and for ranks of different speeds. The training
    function must give its optimizer to `prepare_optimizer`.

    Raises:
        ValueError: A setting breaks its rule.

    Example:
        >>> from hocket.train.strategies import ParameterServer
        >>> ParameterServer(num_servers=2, max_staleness=4).bad_gradients
        'raise'
    """

    hosted_by: ClassVar[str] = "hocket.train.strategies.ps_client"
    num_servers: int = 1
    """How many servers the parameters are dealt out to. On one machine a server is memory with a lock, so more of them
    let more ranks update at once."""
    max_staleness: int | None = None
    """How many updates of other ranks may come between a rank's pull and its push. None: any number. 0: none, so one
    rank computes at a time."""
    _: KW_ONLY
    min_table_rows: int = MIN_TABLE_ROWS
    """Embeddings with as many rows move by the rows that a batch uses; smaller ones as a whole, unless they are made
    with ``sparse=True``."""
    bad_gradients: str = "raise"
    """What to do with a gradient that has NaN or infinity: ``"raise"``; ``"skip"`` the step; or ``"clip"``: NaN becomes
    0, infinity the largest other value."""
    scale_by_staleness: bool = False
    """Whether a step of staleness s is taken with 1 / (1 + s) of the learning rate."""
    timeout_s: float = TIMEOUT_SECONDS
    """Seconds that a rank may wait for another one, where staleness is bounded."""

    def __post_init__(self) -> None:
        if not _is_count(self.num_servers, 1):
            raise ValueError(
                f"num_servers must be 1 or more, but received {self.num_servers!r}. Leave it out for one, or use "
                "AllReduce() for none."
            )
        if self.max_staleness is not None and not _is_count(self.max_staleness, 0):
            raise ValueError(
                f"max_staleness must be 0 or more updates, or None for no bound, but received {self.max_staleness!r}. "
                "With 0 one rank computes at a time; twice the number of ranks is usual."
            )
        if not _is_count(self.min_table_rows, 1):
            raise ValueError(
                f"min_table_rows must be 1 or more, but received {self.min_table_rows!r}. With 1 each embedding moves "
                "by rows."
            )
        if self.bad_gradients not in _POLICIES:
            raise ValueError(
                f"bad_gradients must be 'raise', 'skip' or 'clip', but received {self.bad_gradients!r}. Leave it out "
                "to hear of the first one."
            )
        if not self.timeout_s > 0:
            raise ValueError(
                f"timeout_s must be more than 0 seconds, but received {self.timeout_s!r}. Leave it out for "
                f"{TIMEOUT_SECONDS:.0f}."
            )


@final
@dataclass(frozen=True)
class OpenParameterServer(strategy.Strategy):
    """`ParameterServer` of a run whose servers are there. What the ranks are given."""

    settings: ParameterServer
    num_workers: int
    """How many ranks there will be at most."""
    remote: ps.RemoteStrategy
    """Where the servers are."""

    @property
    def title(self) -> str:
        """That of what it was opened from."""
        return self.settings.title

    def open(self, ranks: strategy.Ranks) -> strategy.StrategyRuntime:
        """Begin on host arrays."""
        opened: strategy.StrategyRuntime = importlib.import_module(self.settings.hosted_by).open_steps(self, ranks)
        return opened


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
