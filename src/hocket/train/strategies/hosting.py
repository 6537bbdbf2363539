"""Hosts: what a strategy keeps in the driver during ``fit()``, such as parameter servers.

Restarts of ranks leave it be.

Most strategies keep nothing there; `open_host` is registered for those that do. A host says what the ranks are given in
the strategy's stead, which knows where to find it.
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
        strategy: What the ranks are given.
    """

    def __init__(self, strategy: strategies.Strategy) -> None:
        self.strategy = strategy

    def renew(self) -> bool:
        """Begin anew if what the ranks need is lost; return whether `strategy` is another one now. Called before ranks
        are started again. They go on from the run's last checkpoint."""
        return False

    def get_statistics(self) -> dict[str, object]:
        """Return what was counted; it becomes `Result.statistics`."""
        return {}

    def close(self) -> None:
        """Give it up. Called when no rank runs any more."""


@functools.singledispatch
def open_host(strategy: strategies.Strategy, num_workers: int) -> Host:
    """Begin what a strategy keeps in the driver.

    Args:
        strategy: Which.
        num_workers: How many ranks there will be at most.
    """
    return Host(strategy)


UseStrategy: TypeAlias = Callable[[strategies.Strategy], contextlib.AbstractContextManager[None]]
"""Has a framework in the calling rank use a strategy, for the duration of a block."""


@final
class FunctionWithStrategy:
    """A training function together with its strategy; it looks like the function.

    Args:
        function: The training function.
        strategy: What its `prepare_model`, `prepare_optimizer` and the like shall use.
        use_strategy: How its framework does so. A function of a module, which ranks can import.
    """

    def __init__(
        self, function: Callable[..., object], strategy: strategies.Strategy, use_strategy: UseStrategy
    ) -> None:
        functools.update_wrapper(self, function)  # first, because it takes over an object's attributes
        self._function = function
        self.strategy: Final = strategy
        self._use_strategy = use_strategy

    def __call__(self, *args: object) -> object:
        """Run it in a rank."""
        with self._use_strategy(self.strategy):
            return self._function(*args)

    def replace(self, strategy: strategies.Strategy) -> FunctionWithStrategy:
        """Return the function together with another strategy."""
        return FunctionWithStrategy(self._function, strategy, self._use_strategy)


def add_strategy(function: object, strategy: object, use_strategy: UseStrategy) -> Any:
    """Return a training function together with its strategy, by default `AllReduce`. What cannot be called stays as it
    is: the trainer refuses it."""
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
    """Begin a host anew if what it kept is lost; return the function for the ranks then, else None.

    Args:
        function: What `hosted` has given.
        host: The same.
    """
    if host is None or not host.renew():
        return None
    assert isinstance(function, FunctionWithStrategy), "others have no host"
    return function.replace(host.strategy)


@contextlib.contextmanager
def hosted(function: Callable[..., object], num_workers: int) -> Iterator[tuple[Callable[..., object], Host | None]]:
    """Keep a training function's host for the duration of a block. Yields the function for the ranks, and the host.

    Args:
        function: Which; one without a strategy needs no host.
        num_workers: How many ranks there will be at most.
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
