"""What one rank has prepared, from the start of its training function to the end.

See `hocket.train.frameworks.contract`.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
import weakref
from collections.abc import Iterator
from typing import Any, Final, TypeAlias, final

import numpy as np
import torch
import torch.distributed as dist
from torch.optim import optimizer as torch_optimizer

from hocket.collective import torch as collective_torch
from hocket.collective.torch import traffic
from hocket.train import strategies
from hocket.train.frameworks.torch import precision
from hocket.train.frameworks.torch import strategies as torch_strategies
from hocket.train.rank import equality, worker_session

_CAUSES: Final = {
    "parameter": (
        "Likely causes: one rank alone has loaded or changed weights (do it in all ranks, or before prepare_model()); "
        "gradients were written or clipped by what differs between the ranks; or an optimizer steps what the strategy "
        "does not know (make it from the parameters of what prepare_model() returned)."
    ),
    "buffer": (
        "Likely causes: one rank alone has written into the buffer, outside of the forward pass of what "
        "prepare_model() returned; or the model was called around it, as in model.module(x): call model(x)."
    ),
    "optimizer": (
        "Likely causes: a learning rate that each rank decides by its own loss, as ReduceLROnPlateau does (give it the "
        "mean of all ranks); one rank alone has loaded the optimizer's state; or a rank left out a step."
    ),
}
"""By what differs first: why ranks differ, and what to do."""

_DEVICE_WORDS: Final = 1021
"""A tensor on a device is read as rows of so many words of 4 bytes, whose sums travel."""

_NUMPY: Final = (torch.float32, torch.float64, torch.int64, torch.int32, torch.bool, torch.float16, torch.uint8)
_NOTHING: Final = np.zeros(0)

_Read: TypeAlias = tuple[equality.Equal, torch.Tensor | None, torch.Tensor | None]
"""A tensor for the net; and what a device has made of it, and some of its values, if they are not with it."""


@final
class RankState:
    """Prepared models and optimizers of a rank, and its strategy at work.

    Args:
        session: The rank's.
        strategy: How updates travel.
    """

    def __init__(self, session: worker_session.WorkerSession, strategy: strategies.Strategy) -> None:
        self._session = session
        self._info = info = session.info
        self.strategy = strategy
        self.exchange = torch_strategies.open_exchange(strategy, strategies.Ranks(info.rank, info.world_size))
        self.precision: precision.Precision | None = None
        """What `accelerate` was asked for; None if it was not called."""
        self._models: list[weakref.ref[torch.nn.Module]] = []
        self._prepared: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._unrelated: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._closing = contextlib.ExitStack()
        self._closing.callback(self.exchange.close)
        if self.exchange.needs_optimizer:
            hook = torch_optimizer.register_optimizer_step_pre_hook(self._check_step)
            self._closing.callback(hook.remove)
        self._smallest = 0
        """How many numbers the smallest parameter has of the optimizer that has made the first step."""
        #: The optimizers that have stepped, and whether they step prepared models.
        self._stepped: weakref.WeakKeyDictionary[torch.optim.Optimizer, bool] = weakref.WeakKeyDictionary()
        self._held: object = None
        """The optimizer of the last step, so that what it stepped is there to be compared when the training function
        has returned."""
        if info.world_size > 1:
            session.watch.add(self._list_alike, _CAUSES)
            self._closing.callback(torch_optimizer.register_optimizer_step_post_hook(self._note_step).remove)
            if info.rank == 0:
                traffic.forget_sizes()

    @property
    def has_prepared(self) -> bool:
        """Whether a model or an optimizer was prepared."""
        return bool(self._models) or len(self._prepared) > 0

    def add_model(self, model: torch.nn.Module) -> None:
        """Note that a model was prepared."""
        self._models.append(weakref.ref(model))
        self._unrelated.clear()
        self._stepped.clear()

    def add_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Have an optimizer's steps go through the strategy."""
        if optimizer in self._prepared:
            raise ValueError(
                f"prepare_optimizer() received the same {type(optimizer).__name__} twice. Prepare it once, and use "
                "what that returns."
            )
        self._prepared.add(optimizer)
        exchange = self.exchange
        before = optimizer.register_step_pre_hook(lambda stepped, args, kwargs: exchange.before_step(stepped))
        after = optimizer.register_step_post_hook(lambda stepped, args, kwargs: exchange.after_step(stepped))
        self._closing.callback(before.remove)
        self._closing.callback(after.remove)

    def close(self) -> None:
        """Give everything back. If the training function has ended well, compare what the ranks have, and say what it
        has forgotten."""
        if sys.exception() is None:
            self._session.watch.end()
        self._held = None
        self._closing.close()
        if sys.exception() is None and self._trains_apart():
            warnings.warn(
                "The training function has taken steps of an optimizer, but no model was prepared, and the "
                f"{self._info.world_size} ranks have exchanged nothing as large as a parameter: each has trained a "
                "model of its own. Write model = hocket.train.torch.prepare_model(model) before the optimizer is made.",
                stacklevel=2,
            )

    def _list_models(self) -> list[torch.nn.Module]:
        return [model for model in (ref() for ref in self._models) if model is not None]

    def _list_parameters(self) -> set[int]:
        return {id(parameter) for model in self._list_models() for parameter in model.parameters()}

    def _list_alike(self) -> Iterator[equality.Equal]:
        """Give what the ranks should have the same of now."""
        return _bring_home(list(self._read_alike()))

    def _read_alike(self) -> Iterator[_Read]:
        alike, names = self.exchange.alike, dict[int, str]()
        for number, model in enumerate(self._list_models()):
            prefix = f"model {number}: " if number else ""
            inner = _unwrap(model)
            for name, parameter in inner.named_parameters():
                names[id(parameter)] = prefix + name
                if strategies.Alike.PARAMETERS in alike:
                    yield from _read("parameter", prefix + name, parameter)
            if strategies.Alike.BUFFERS in alike:
                for name, buffer in inner.named_buffers():
                    yield from _read("buffer", prefix + name, buffer)
        if strategies.Alike.OPTIMIZERS in alike:
            for optimizer, is_related in self._stepped.items():
                if is_related:
                    yield from _read_optimizer(optimizer, names)

    def _note_step(self, optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        """Called after each step of any optimizer in this process."""
        if worker_session.get_optional_session() is not self._session:
            return  # of another rank, of those that take turns
        if optimizer not in self._stepped:
            known = self._list_parameters()
            self._stepped[optimizer] = any(id(p) in known for group in optimizer.param_groups for p in group["params"])
        if self._stepped[optimizer]:
            self._held = optimizer, self._list_models()
            self._session.watch.count_step()
        if not self._smallest:
            sizes = [parameter.numel() for group in optimizer.param_groups for parameter in group["params"]]
            self._smallest = min(sizes, default=0)

    def _trains_apart(self) -> bool:
        """Tell whether the ranks have trained without each other, as far as our own process group can know."""
        if self._models or self._info.rank or self._info.local_world_size < self._info.world_size:
            return False
        is_ours = dist.is_initialized() and dist.get_backend() == collective_torch.NAME
        return is_ours and traffic.find_largest() < self._smallest

    def _check_step(self, optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        """Called before each step of any optimizer in this process."""
        if optimizer in self._prepared or optimizer in self._unrelated:
            return
        known = self._list_parameters()
        if any(id(p) in known for group in optimizer.param_groups for p in group["params"]):
            raise RuntimeError(
                f"{type(self.strategy).__name__} works in the optimizer's step, but this {type(optimizer).__name__} "
                "was not prepared. Write optimizer = hocket.train.torch.prepare_optimizer(optimizer) before the "
                "first step."
            )
        self._unrelated.add(optimizer)


def _unwrap(model: torch.nn.Module) -> torch.nn.Module:
    """Return the model that DistributedDataParallel has wrapped, or the model."""
    return model.module if isinstance(model, torch.nn.parallel.DistributedDataParallel) else model


@torch.no_grad()
def _read(kind: str, name: str, tensor: Any) -> Iterator[_Read]:
    """Give a tensor, or the part of it that other ranks have too, as the net compares it."""
    part = ""
    if hasattr(tensor, "placements"):  # of a DTensor
        mesh, cut = tensor.device_mesh, [one.is_shard() for one in tensor.placements]
        if not all(one.is_shard() or one.is_replicate() for one in tensor.placements):
            return
        if all(is_cut or mesh.size(dim) == 1 for dim, is_cut in enumerate(cut)):
            return  # nobody else has it
        part = ",".join(str(at) for at, is_cut in zip(mesh.get_coordinate(), cut, strict=True) if is_cut)
        tensor = tensor.to_local()
    if tensor.is_meta or tensor.layout != torch.strided or tensor.is_quantized:
        return
    flat = tensor.detach().reshape(-1)
    if flat.is_cpu and flat.dtype in _NUMPY:
        yield equality.Equal(kind, name, flat.numpy(), part), None, None
        return
    sample = flat[:: max(1, -(-flat.numel() // equality.SAMPLES))]
    raw = flat.contiguous().view(torch.uint8)
    if not flat.is_cpu and raw.numel() >= _DEVICE_WORDS * 8:
        whole = raw.numel() // (_DEVICE_WORDS * 4) * _DEVICE_WORDS * 4
        sums = raw[:whole].view(torch.int32).view(-1, _DEVICE_WORDS).sum(0)
        raw = torch.cat([sums.view(torch.uint8), raw[whole:]])
    yield equality.Equal(kind, name, _NOTHING, part), raw, (sample.real if sample.is_complex() else sample).double()


def _read_optimizer(optimizer: torch.optim.Optimizer, names: dict[int, str]) -> Iterator[_Read]:
    """Give what an optimizer keeps for the parameters of prepared models, and its learning rates."""
    for number, group in enumerate(optimizer.param_groups):
        where = f" of group {number}" if number else ""
        yield from _read("optimizer", f"learning rate{where}", torch.as_tensor(group.get("lr", 0.0)))
        for parameter in group["params"]:
            for key, value in optimizer.state.get(parameter, {}).items() if id(parameter) in names else ():
                if isinstance(value, torch.Tensor):
                    yield from _read("optimizer", f"{key} of `{names[id(parameter)]}`", value)


def _bring_home(found: list[_Read]) -> Iterator[equality.Equal]:
    """Give tensors as numpy arrays: what is on a device in one copy, since each waits for the device."""
    away = [part.view(torch.uint8) for _, *parts in found for part in parts if part is not None]
    home = iter(torch.split(torch.cat(away).cpu(), [one.numel() for one in away]) if away else ())
    for equal, raw, _ in found:
        if raw is None:
            yield equal
        else:
            yield equal._replace(array=next(home).numpy(), sample=next(home).clone().view(torch.float64).numpy())
