"""Drives any strategy in PyTorch on host arrays: gradients before an optimizer's step, parameters after it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np
import torch
import torch.distributed as dist

from hocket import ps
from hocket.collective import world
from hocket.collective.arithmetic import ReduceOp
from hocket.train import strategies
from hocket.train.frameworks.torch.strategies import averaging, closures, local_sgd, served_optimizers, strategy, tables
from hocket.train.strategies.strategy import Array

_OPS = {
    ReduceOp.SUM: dist.ReduceOp.SUM,
    ReduceOp.PRODUCT: dist.ReduceOp.PRODUCT,
    ReduceOp.MIN: dist.ReduceOp.MIN,
    ReduceOp.MAX: dist.ReduceOp.MAX,
    ReduceOp.BAND: dist.ReduceOp.BAND,
    ReduceOp.BOR: dist.ReduceOp.BOR,
    ReduceOp.BXOR: dist.ReduceOp.BXOR,
}


@final
class GroupCollectives:
    """The collectives of torch's default process group, on numpy arrays, which are reduced in place."""

    def __init__(self) -> None:
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()

    def all_reduce(self, array: Array, op: ReduceOp = ReduceOp.SUM) -> None:
        """Put the sum of all ranks' arrays, or the result of `op`, into each."""
        world.check_op(world.flatten(array), op)
        tensor = _as_tensor(array)
        dist.all_reduce(tensor, dist.ReduceOp.SUM if op is ReduceOp.MEAN else _OPS[op])
        _put_back(array, tensor / self.size if op is ReduceOp.MEAN else tensor)

    def broadcast(self, array: Array, root: int = 0) -> None:
        """Put the root's array into each rank's."""
        world.flatten(array)
        if not 0 <= root < self.size:
            raise ValueError(f"root must be one of the ranks 0 to {self.size - 1}, but received {root!r}.")
        tensor = _as_tensor(array)
        dist.broadcast(tensor, root)
        _put_back(array, tensor)

    def all_gather_object(self, value: object) -> list[Any]:
        """Return all ranks' values, by rank."""
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value)
        return found

    def barrier(self) -> None:
        """Wait until all ranks have called it."""
        dist.barrier()


def _as_tensor(array: Array) -> torch.Tensor:
    """Return an array's values as a tensor: the same memory, if torch has numpy's dtype."""
    try:
        tensor = torch.from_numpy(array)
    except TypeError:  # bfloat16, which numpy has from another package
        tensor = torch.from_numpy(array.astype(np.float32)).to(torch.bfloat16)
    return tensor.cuda() if dist.get_backend() == "nccl" else tensor


def _put_back(array: Array, tensor: torch.Tensor) -> None:
    back = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
    array[...] = back.cpu().numpy()


@final
class TorchModel(strategies.HostModel):
    """The parameters of an optimizer, as host arrays.

    Args:
        optimizer: The optimizer. It may get more parameters later.
        names: The name of each parameter.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, names: Mapping[torch.Tensor, str]) -> None:
        self._optimizer = optimizer
        self._names = names
        self.count = 0
        """The number of steps taken."""

    @property
    def parameters(self) -> list[torch.Tensor]:
        """The parameters, in the optimizer's order."""
        return local_sgd.list_parameters(self._optimizer)

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The parameters' shapes."""
        return [tuple(p.shape) for p in self.parameters]

    def read(self) -> list[Array]:
        """Return copies of the parameters, halves as float32."""
        return [np.array(tables.to_array(p)) for p in self.parameters]

    @torch.no_grad()
    def write(self, arrays: Sequence[Array]) -> None:
        """Set the parameters."""
        strategies.check_shapes(arrays, self.shapes)
        for parameter, array in zip(self.parameters, arrays, strict=True):
            parameter.copy_(torch.from_numpy(np.ascontiguousarray(array)))

    def list_rules(self) -> list[tuple[str, ps.Optimizer]]:
        """Return each parameter's name, and the servers' equivalent of the optimizer for it."""
        return [
            (self._names[parameter], served_optimizers.convert(self._optimizer, group))
            for group in self._optimizer.param_groups
            for parameter in group["params"]
            if parameter.requires_grad
        ]

    @property
    def steps_taken(self) -> int:
        """The number of steps that the optimizer has taken here."""
        return self.count


@final
class OnArrays(strategy.TorchStrategy):
    """A strategy at work on host arrays.

    Args:
        runtime: The strategy, for the first optimizer.
        name: Its name, for messages.
        ranks: The participants.
    """

    needs_optimizer = True

    def __init__(self, runtime: strategies.StrategyRuntime, name: str, ranks: strategies.Ranks) -> None:
        self._first = runtime
        self._name = name
        self._ranks = ranks
        self.shares_gradients = False
        self._models: list[torch.nn.Module] = []
        self._driven: dict[torch.optim.Optimizer, tuple[strategies.StrategyRuntime, TorchModel]] = {}
        #: Whether a closure computes the gradients in the current step.
        self._has_closure = False
        #: Parameters and gradients, hidden from torch in a step that the strategy takes.
        self._aside: list[tuple[torch.Tensor, torch.Tensor]] = []

    def adapt_model(
        self, model: torch.nn.Module, parallel_strategy: str, options: Mapping[str, object], device: torch.device
    ) -> torch.nn.Module:
        strategy.require_whole(self._name, "a whole model in each rank", parallel_strategy, options)
        if self._ranks.world_size > 1:
            averaging.copy_from_first(itertools.chain(model.parameters(), model.buffers()))
        self._models.append(model)
        return model

    @property
    def alike(self) -> strategies.Alike:
        found = strategies.Alike.ALL
        for runtime in [self._first, *(runtime for runtime, _ in self._driven.values())]:
            found &= runtime.alike
        return found & ~strategies.Alike.BUFFERS

    def adapt_optimizer(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        names: dict[torch.Tensor, str] = {
            parameter: name for model in self._models for name, parameter in model.named_parameters()
        }
        driven = TorchModel(optimizer, names)
        if any(parameter not in names for parameter in driven.parameters):
            raise ValueError(
                f"{self._name} works on parameters of prepared models, but prepare_optimizer() received an optimizer "
                "of other parameters. Call model = prepare_model(model) first, and make the optimizer from the "
                "returned model's parameters."
            )
        runtime = strategies.open_next(self._first)
        self._driven[optimizer] = runtime, driven
        runtime.begin(driven)
        return optimizer

    def begin_step(
        self, optimizer: torch.optim.Optimizer, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        self._has_closure = False
        if optimizer not in self._driven:
            return None
        runtime, _ = self._driven[optimizer]
        if runtime.takes_steps:
            return closures.run_closure(args, kwargs)
        if not runtime.averages_gradients:
            return None
        replaced = closures.follow_closure(args, kwargs, lambda: self._change_gradients(optimizer))
        if replaced is None:
            return None
        self._has_closure = True
        return closures.share_loss(optimizer, replaced, self._ranks.world_size) or replaced

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        if not self._has_closure:
            self._change_gradients(optimizer)

    @torch.no_grad()
    def _change_gradients(self, optimizer: torch.optim.Optimizer) -> None:
        """Pass the gradients through the strategy."""
        runtime, driven = self._driven[optimizer]
        if not (runtime.averages_gradients or runtime.takes_steps):
            return
        everything = driven.parameters
        numbers = [number for number, p in enumerate(everything) if p.grad is not None]
        if self._ranks.world_size > 1 and runtime.averages_gradients and not runtime.takes_steps:
            used = np.array([float(p.grad is not None) for p in everything])
            self._ranks.world.all_reduce(used)  # ranks without a gradient that another has count as zero
            numbers = [number for number, count in enumerate(used) if count]
        given = [everything[number] for number in numbers]
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad.to_dense() for p in given]
        flat = strategies.flatten_gradients([tables.to_array(gradient) for gradient in gradients])
        if runtime.takes_steps:
            runtime.choose(numbers)
            strategies.take_step(runtime, flat, float(optimizer.param_groups[0]["lr"]), counts=True)
        else:
            strategies.average(runtime, flat, 1.0)
        for parameter, part in zip(
            given, strategies.unflatten(flat[:-1], [tuple(p.shape) for p in given]), strict=True
        ):
            new = torch.from_numpy(part).to(parameter.device, parameter.dtype)
            if runtime.takes_steps:
                parameter.copy_(new)
                assert parameter.grad is not None, "it was chosen"
                self._aside.append((parameter, parameter.grad))
                parameter.grad = None  # torch's own step then changes nothing
            else:
                parameter.grad = new

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        for parameter, gradient in self._aside:
            parameter.grad = gradient
        self._aside.clear()
        runtime, driven = self._driven[optimizer]
        driven.count += 1
        runtime.after_steps(driven, 1)

    def synchronize(self) -> None:
        for runtime, driven in self._driven.values():
            runtime.synchronize(driven)

    def close(self) -> None:
        for runtime in dict.fromkeys([self._first, *(runtime for runtime, _ in self._driven.values())]):
            runtime.close()
