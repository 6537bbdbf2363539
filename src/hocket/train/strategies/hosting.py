"""Hosts: the parts of strategies in the driver during ``fit()``, such as parameter servers.

A host survives restarts of ranks. Most strategies need none; `open_host` is registered for those that do. A host has a
strategy of its own for the ranks, which knows where to find the host's servers.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias, final

from hocket.train import strategies


class Host:
    """The part of a strategy in the driver. This base class keeps nothing.

    Args:
        strategy: The strategy for the ranks.
    """

    def __init__(self, strategy: strategies.Strategy) -> None:
        self.strategy = strategy

    def renew(self) -> bool:
        """Begin anew if state that the ranks need is lost; return whether `strategy` has changed.

        Called before ranks start again. They go on from the run's last checkpoint."""
        return False

    def get_statistics(self) -> dict[str, object]:
        """Return the host's counts, which become `Result.statistics`."""
        return {}

    def close(self) -> None:
        """Release all resources. Called when no rank runs any more."""


@functools.singledispatch
def open_host(strategy: strategies.Strategy, num_workers: int) -> Host:
    """Open the host of a strategy.

    Args:
        strategy: The strategy.
        num_workers: The greatest number of ranks.
    """
    return Host(strategy)


UseStrategy: TypeAlias = Callable[[strategies.Strategy], contextlib.AbstractContextManager[None]]
"""A function that makes a framework in the calling rank use a strategy during a block."""


@final
class FunctionWithStrategy:
    """A training function together with its strategy; it looks like the function.

    Args:
        function: The training function.
        strategy: The strategy for its `prepare_model`, `prepare_optimizer` and the like.
        use_strategy: Makes the framework use the strategy. It is a module's function, because ranks must import it.
    """

    def __init__(
        self, function: Callable[..., object], strategy: strategies.Strategy, use_strategy: UseStrategy
    ) -> None:
        functools.update_wrapper(self, function)  # first, because it takes over an object's attributes
        self._function = function
        self.strategy: Final = strategy
        self._use_strategy = use_strategy

    def __call__(self, *args: object) -> object:
        """Run the training function in a rank."""
        with self._use_strategy(self.strategy):
            return self._function(*args)

    def replace(self, strategy: strategies.Strategy) -> FunctionWithStrategy:
        """Return the function together with another strategy."""
        return FunctionWithStrategy(self._function, strategy, self._use_strategy)


def add_strategy(function: object, strategy: object, use_strategy: UseStrategy) -> Any:
    """Return a training function together with its strategy, by default `AllReduce`.

    An object that cannot be called is returned unchanged, because the trainer refuses it."""
    if strategy is not None and not isinstance(strategy, strategies.Strategy):
        raise TypeError(
            f"strategy must be a Strategy, but received {strategy!r}. Write strategy=AllReduce() or "
            "strategy=LocalSGD(8)."
        )
    return (
        FunctionWithStrategy(function, strategy or strategies.AllReduce(), use_strategy)
        if callable(function)
        else function
    )


def renew(function: Callable[..., object], host: Host | None) -> Callable[..., object] | None:
    """Begin a host anew if its state is lost; then return a new function for the ranks, else None.

    Args:
        function: The function that `hosted` has yielded.
        host: The host that `hosted` has yielded.
    """
    if host is None or not host.renew():
        return None
    assert isinstance(function, FunctionWithStrategy), "others have no host"
    return function.replace(host.strategy)


@contextlib.contextmanager
def hosted(function: Callable[..., object], num_workers: int) -> Iterator[tuple[Callable[..., object], Host | None]]:
    """Keep a training function's host during the block; yield the function for the ranks, and the host.

    Args:
        function: The training function. Without a strategy it needs no host.
        num_workers: The greatest number of ranks.
    """
    if not isinstance(function, FunctionWithStrategy):
        yield function, None
        return
    if function.strategy.hosted_by:
        importlib.import_module(function.strategy.hosted_by)
    host = open_host(function.strategy, num_workers)
    try:
        yield function if host.strategy is function.strategy else function.replace(host.strategy), host
    finally:
        host.close()
