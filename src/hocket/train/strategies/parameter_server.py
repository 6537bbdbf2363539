"""Parameter servers: ranks push gradients to servers and pull the updated variables, without waiting for each other.

Servers hold the variables and the optimizer's state as long as ``fit()`` runs, so the death of a rank costs only its
current step. Each rank's step is an update of its own, so n ranks take n steps while all-reduce takes one. A gradient
may be *stale*: other ranks have updated the variables since its rank pulled them. `max_staleness` is a bound on that.
See `hocket.ps`.

`hocket.train.strategies.ps_client` has the work in the ranks; each framework's adapter calls it.
"""

from __future__ import annotations

import importlib
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, Final, final

from hocket import keywords, ps
from hocket.train.strategies import strategy

MIN_TABLE_ROWS: Final = 100_000
"""The least rows of an embedding that moves by rows. A guess: 100,000 rows of 16 floats are 6 MB, which is much for a
step."""

TIMEOUT_SECONDS: Final = 600.0
"""Seconds that a rank may wait for others, if staleness is bounded. As in `hocket.ps`."""

_POLICIES: Final = ("raise", "skip", "clip")


@final
@keywords.explained()
@dataclass(frozen=True)
class ParameterServer(strategy.Strategy):
    """A strategy with parameters on servers. Ranks push gradients and pull parameters without waiting for each other.

    It is right for large embeddings with few rows in each step, and for ranks of different speeds. The training
    function must pass its optimizer to `prepare_optimizer`.

    Raises:
        ValueError: A setting breaks its rule.

    Example:
        >>> from hocket.train.strategies import ParameterServer
        >>> ParameterServer(num_servers=2, max_staleness=4).bad_gradients
        'raise'
    """

    hosted_by: ClassVar[str] = "hocket.train.strategies.ps_client"
    num_servers: int = 1
    """The number of servers that share the parameters. On one machine a server is memory with a lock, so with more
    servers more ranks can update at once."""
    max_staleness: int | None = None
    """The most updates of other ranks between a rank's pull and its push. None: no bound. 0: none, so only one rank
    computes at a time."""
    _: KW_ONLY
    min_table_rows: int = MIN_TABLE_ROWS
    """The least rows of an embedding that moves only the rows of a batch. Smaller embeddings move whole, unless they
    are made with ``sparse=True``."""
    bad_gradients: str = "raise"
    """The reaction to a gradient with NaN or infinity: ``"raise"`` an error; ``"skip"`` the step; or ``"clip"``: NaN
    becomes 0, infinity the largest other value."""
    scale_by_staleness: bool = False
    """Whether a step of staleness s uses 1 / (1 + s) of the learning rate."""
    timeout_s: float = TIMEOUT_SECONDS
    """Seconds that a rank may wait for another rank, if staleness is bounded."""

    def __post_init__(self) -> None:
        if not _is_count(self.num_servers, 1):
            raise ValueError(
                f"num_servers must be 1 or more, but received {self.num_servers!r}. Leave it out for one, or use "
                "AllReduce() for none."
            )
        if self.max_staleness is not None and not _is_count(self.max_staleness, 0):
            raise ValueError(
                f"max_staleness must be 0 or more updates, or None for no bound, but received {self.max_staleness!r}. "
                "Twice the number of ranks is usual; with 0 only one rank computes at a time."
            )
        if not _is_count(self.min_table_rows, 1):
            raise ValueError(
                f"min_table_rows must be 1 or more, but received {self.min_table_rows!r}. With 1 each embedding moves "
                "by rows."
            )
        if self.bad_gradients not in _POLICIES:
            raise ValueError(
                f"bad_gradients must be 'raise', 'skip' or 'clip', but received {self.bad_gradients!r}. Leave it out "
                "to raise an error at the first bad gradient."
            )
        if not self.timeout_s > 0:
            raise ValueError(
                f"timeout_s must be more than 0 seconds, but received {self.timeout_s!r}. Leave it out for "
                f"{TIMEOUT_SECONDS:.0f}."
            )


@final
@dataclass(frozen=True)
class OpenParameterServer(strategy.Strategy):
    """The `ParameterServer` of a run with living servers, as the ranks get it."""

    settings: ParameterServer
    num_workers: int
    """The greatest number of ranks."""
    remote: ps.RemoteStrategy
    """The address of the servers."""

    @property
    def title(self) -> str:
        """The title of the strategy that was opened."""
        return self.settings.title

    def open(self, ranks: strategy.Ranks) -> strategy.StrategyRuntime:
        """Return the strategy's runtime on host arrays."""
        opened: strategy.StrategyRuntime = importlib.import_module(self.settings.hosted_by).open_steps(self, ranks)
        return opened


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
