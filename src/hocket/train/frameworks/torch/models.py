"""Makes all ranks train a model as one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Final

import torch
from torch.nn import parallel

from hocket._base.internals import torch as torch_internals
from hocket.train.frameworks.torch import devices, framework
from hocket.train.frameworks.torch.strategies import sharding
from hocket.train.rank import worker_session

STRATEGIES: Final = ("ddp", "fsdp", None)
"""The values of `prepare_model`'s `parallel_strategy`."""


def prepare_model(
    model: torch.nn.Module,
    move_to_device: bool | torch.device = True,
    parallel_strategy: str | None = "ddp",
    parallel_strategy_kwargs: Mapping[str, object] | None = None,
) -> torch.nn.Module:
    """Move a model to the rank's device, and have the trainer's strategy train it: by default, average its gradients
    over all ranks.

    Args:
        model: The model; the same in all ranks. All of them start from rank 0's weights.
        move_to_device: Whether to move the model, or the device to which to move it.
        parallel_strategy: With more than one rank, ``"ddp"`` applies the trainer's strategy, for `AllReduce` torch's
            DistributedDataParallel. ``"fsdp"`` shards the model with torch's ``fully_shard`` (FSDP2); to shard layer by
            layer, call that for the layers first. None does neither.
        parallel_strategy_kwargs: Arguments of DistributedDataParallel or ``fully_shard``.

    Returns:
        The model, or its wrapper, which has the model as ``.module``. A sharded model is the same object, with other
        parameters: make the optimizer afterwards.

    Raises:
        ValueError: `parallel_strategy` is unknown, or the trainer's strategy does not support it.
        RuntimeError: The caller is outside a training function.
    """
    worker_session.get_session("torch.prepare_model")
    if parallel_strategy not in STRATEGIES:
        raise ValueError(
            f"parallel_strategy must be one of {list(STRATEGIES)}, but received {parallel_strategy!r}. Leave it out "
            "for 'ddp', or pass None and wrap the model yourself."
        )
    state = framework.FRAMEWORK.get_state("prepare_model")
    device = devices.get_device() if isinstance(move_to_device, bool) else torch.device(move_to_device)
    if move_to_device is not False:
        model = model.to(device)
    if state.precision is not None:
        state.precision.adapt_model(model)
    if parallel_strategy is None:
        return model
    options = dict(parallel_strategy_kwargs or {})
    before = list(model.parameters())
    prepared = state.exchange.adapt_model(model, parallel_strategy, options, device)
    state.add_model(prepared, before)
    return prepared


@contextlib.contextmanager
def no_sync(model: torch.nn.Module, when: bool = True) -> Iterator[None]:
    """In a block, let backward passes add to this rank's gradients only. For all but the last batch of a step.

    It works with the result of `prepare_model`, compiled or not, with any number of ranks and any strategy.

    Args:
        model: The result of `prepare_model`.
        when: False changes nothing, so the last of the batches needs no code of its own.

    Example:
        >>> import torch
        >>> from hocket.train.torch import no_sync
        >>> model = torch.nn.Linear(1, 1)
        >>> for number in range(4):
        ...     with no_sync(model, when=number < 3):
        ...         model(torch.ones(2, 1)).sum().backward()
        >>> model.bias.grad
        tensor([8.])
    """
    inner = torch_internals.unwrap_compiled(model)
    if not when:
        yield
    elif isinstance(inner, parallel.DistributedDataParallel):
        with inner.no_sync():
            yield
    else:
        with sharding.keep_gradients(inner):
            yield


def synchronize() -> None:
    """Make the models of all ranks equal, if the strategy lets them differ between steps.

    All ranks must call it at the same step.

    With `LocalSGD` the ranks meet here, and the next `sync_every` steps begin. With `AllReduce` there is nothing to do.
    With `ParameterServer` the rank reads the servers' current parameters; ranks that step may be ahead of them.

    Raises:
        RuntimeError: The caller is outside a training function.
    """
    framework.FRAMEWORK.get_state("synchronize").exchange.synchronize()
