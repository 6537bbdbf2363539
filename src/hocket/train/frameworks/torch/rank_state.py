"""The prepared objects of one rank, from the start of its training function to the end.

See `hocket.train.frameworks.contract`.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import traceback
import warnings
import weakref
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final, TypeAlias, final

import numpy as np
import torch
import torch.distributed as dist
from torch.optim import optimizer as torch_optimizer

from hocket._base.internals import torch as torch_internals
from hocket.collective import torch as collective_torch
from hocket.collective.torch import traffic
from hocket.train import strategies
from hocket.train.frameworks.torch import precision
from hocket.train.frameworks.torch import strategies as torch_strategies
from hocket.train.rank import equality, worker_session

_CAUSES: Final = {
    "parameter": (
        "Likely causes: one rank alone loaded or changed weights (do it in all ranks, or before prepare_model()); "
        "gradients were written or clipped by values that differ between the ranks; or an optimizer steps parameters "
        "that the strategy does not know (make it from the parameters of the model that prepare_model() returned)."
    ),
    "buffer": (
        "Likely causes: one rank alone wrote into the buffer, outside of the forward pass of the prepared model; or "
        "the program called the model inside it, as in model.module(x): call model(x)."
    ),
    "optimizer": (
        "Likely causes: each rank sets the learning rate by its own loss, as ReduceLROnPlateau does (give it the mean "
        "of all ranks); one rank alone loaded the optimizer's state; or a rank skipped a step."
    ),
}
"""Likely causes and remedies when ranks differ, by the kind of tensor that differs first."""

_DEVICE_WORDS: Final = 1021
"""A tensor on a device is read as rows of so many words of 4 bytes. Only the sum of the rows travels to the host."""

_NUMPY: Final = (torch.float32, torch.float64, torch.int64, torch.int32, torch.bool, torch.float16, torch.uint8)
_PLAIN: Final = (torch.nn.Parameter, torch.Tensor)
_NOTHING: Final = np.zeros(0)

_Read: TypeAlias = tuple[equality.Equal, torch.Tensor | None, torch.Tensor | None]
"""A tensor to compare. If its values are not with it: bytes that a device has made of them, and some of them."""


@final
class RankState:
    """The prepared models and optimizers of a rank, and its strategy at work.

    Args:
        session: The rank's session.
        strategy: How updates travel.
    """

    def __init__(self, session: worker_session.WorkerSession, strategy: strategies.Strategy) -> None:
        self._session = session
        self._info = info = session.info
        self.strategy = strategy
        self.world_size: Final = info.world_size
        self.exchange = torch_strategies.open_exchange(strategy, strategies.Ranks(info.rank, info.world_size))
        self.precision: precision.Precision | None = None
        """The precision that `accelerate` has chosen; None if it was not called."""
        self._models: list[weakref.ref[torch.nn.Module]] = []
        self._prepared: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        #: The optimizers that have begun their first step.
        self._known: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._closing = contextlib.ExitStack()
        self._closing.callback(self.exchange.close)
        #: The parameters that models had before they were prepared, and have no longer.
        self._replaced: list[weakref.ref[torch.nn.Parameter]] = []
        if self.exchange.needs_optimizer or info.world_size > 1:
            hook = torch_optimizer.register_optimizer_step_pre_hook(self._begin_step)
            self._closing.callback(hook.remove)
        self._smallest = 0
        """The number of elements in the smallest parameter of the first optimizer that has stepped."""
        #: The optimizers that have stepped, and whether their parameters should be equal in all ranks.
        self._stepped: weakref.WeakKeyDictionary[torch.optim.Optimizer, bool] = weakref.WeakKeyDictionary()
        self._held: object = None
        """The optimizer of the last step, and the models. This keeps them for the comparison at the end."""
        if info.world_size > 1:
            session.watch.add(self._list_alike, _CAUSES)
            self._closing.callback(torch_optimizer.register_optimizer_step_post_hook(self._note_step).remove)
            if info.rank == 0:
                traffic.forget_sizes()

    @property
    def has_prepared(self) -> bool:
        """Whether a model or an optimizer was prepared."""
        return bool(self._models) or len(self._prepared) > 0

    def add_model(self, model: torch.nn.Module, before: Sequence[torch.nn.Parameter]) -> None:
        """Note a prepared model, and the parameters that it had before."""
        self._models.append(weakref.ref(model))
        now = {id(parameter) for parameter in model.parameters()}
        if self._info.world_size > 1 and self._session.batch_part == (self._info.rank, self._info.world_size):
            model.register_forward_pre_hook(_TakeRows(self._session.watch))  # ranks should train on different rows
        self._replaced += [weakref.ref(parameter) for parameter in before if id(parameter) not in now]
        self._known.clear()  # an optimizer that was foreign may step the new model
        self._stepped.clear()

    def add_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Make an optimizer's steps go through the strategy."""
        if optimizer in self._prepared:
            raise ValueError(
                f"prepare_optimizer() received the same {type(optimizer).__name__} twice. Prepare it once, and use the "
                "returned optimizer."
            )
        self._prepared.add(optimizer)
        exchange = self.exchange
        before = optimizer.register_step_pre_hook(lambda stepped, args, kwargs: exchange.before_step(stepped))
        after = optimizer.register_step_post_hook(lambda stepped, args, kwargs: exchange.after_step(stepped))
        self._closing.callback(before.remove)
        self._closing.callback(after.remove)

    def close(self) -> None:
        """Release everything. If the training function has ended well, compare the ranks' tensors first, and warn if
        each rank has trained a model of its own."""
        error = sys.exception()
        if error is None:
            self._session.watch.end()
        elif isinstance(error, Exception) and self._is_of_sharding(error):
            error.add_note(self._explain_sharding(error))
        self._held = None
        self._closing.close()
        if sys.exception() is None and self._trains_apart():
            warnings.warn(
                f"The training function stepped an optimizer, but prepared no model, and the {self._info.world_size} "
                "ranks exchanged nothing as large as a parameter: each has trained a model of its own. Write model = "
                "hocket.train.torch.prepare_model(model) before the optimizer is made.",
                stacklevel=2,
            )

    def _is_of_sharding(self, error: Exception) -> bool:
        """Return whether torch has raised an error, and a model was sharded."""
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        parameters = (p for model in self._list_models() for p in model.parameters())
        return frame.f_globals.get("__name__", "").startswith("torch.") and any(
            hasattr(p, "placements") for p in parameters
        )

    def _explain_sharding(self, error: Exception) -> str:
        """Return a remedy for an error of torch with parts of parameters."""
        is_torchs = isinstance(self.strategy, strategies.AllReduce)
        remedy = "parallel_strategy='ddp'" if is_torchs else "strategy=AllReduce()"
        modules = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
        within = itertools.takewhile(lambda name: name.startswith("torch."), reversed(modules))  # not around a closure
        if any(name.startswith("torch.optim.") and name != "torch.optim.optimizer" for name in within):
            return (
                "Each rank keeps a part of the parameters, and torch has no rule for how this optimizer computes with "
                f"parts. Use another optimizer, such as AdamW, Adam or SGD, or {remedy}."
            )
        who = "sharded by torch's fully_shard" if is_torchs else f"spread by {type(self.strategy).__name__}"
        forward = " (or name the method to torch.distributed.fsdp.register_fsdp_forward_method)" if is_torchs else ""
        return (
            f"The model is {who}, which may be the cause. Call model(x), not a layer or a method of it{forward}. Such "
            "a model supports no gradients of gradients, no torch.autograd.grad with respect to parameters, no sparse "
            f"gradients and no copies. {remedy} supports all of these."
        )

    def _list_models(self) -> list[torch.nn.Module]:
        return [model for model in (ref() for ref in self._models) if model is not None]

    def _list_parameters(self) -> set[int]:
        return {id(parameter) for model in self._list_models() for parameter in model.parameters()}

    def _list_alike(self) -> Iterator[equality.Equal]:
        """Yield the tensors that should be equal in all ranks now."""
        found: list[_Read] = []
        names = dict[int, str]()
        alike = self.exchange.alike
        takes_parameters = strategies.Alike.PARAMETERS in alike  # once, because testing a flag is slow
        for number, model in enumerate(self._list_models()):
            prefix, inner = f"model {number}: " if number else "", _unwrap(model)
            left: Collection[str] = getattr(model, "parameters_to_ignore", ())  # of DistributedDataParallel
            for name, parameter in inner.named_parameters():
                names[id(parameter)] = prefix + name if name not in left else ""
                if takes_parameters and name not in left:
                    _read("parameter", prefix + name, parameter, found)
            for name, buffer in inner.named_buffers() if strategies.Alike.BUFFERS in alike else ():
                if name not in left:
                    _read("buffer", prefix + name, buffer, found)
        for optimizer, is_related in self._stepped.items() if strategies.Alike.OPTIMIZERS in alike else ():
            if is_related:
                _read_optimizer(optimizer, names, found)
        return _bring_home(found)

    def _note_step(self, optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        """Note a step. torch calls this after each step of any optimizer in this process."""
        if worker_session.get_optional_session() is not self._session:
            return  # it is the step of another rank, which takes turns in this process
        if optimizer not in self._stepped:
            known = self._list_parameters()
            mine = (id(p) for group in optimizer.param_groups for p in group["params"])
            self._stepped[optimizer] = bool(known) if self.exchange.averages_others else any(p in known for p in mine)
        if self._stepped[optimizer]:
            self._held = optimizer, self._list_models()
            self._session.watch.count_step()
        if not self._smallest:
            sizes = [parameter.numel() for group in optimizer.param_groups for parameter in group["params"]]
            self._smallest = min(sizes, default=0)

    def _trains_apart(self) -> bool:
        """Return whether the ranks have trained without each other, as far as our own process group can see."""
        if self._models or self._info.rank or self._info.local_world_size < self._info.world_size:
            return False
        is_ours = dist.is_initialized() and dist.get_backend() == collective_torch.NAME
        return is_ours and traffic.find_largest() < self._smallest

    def _begin_step(self, optimizer: torch.optim.Optimizer, args: tuple[object, ...], kwargs: dict[str, object]) -> Any:
        """Begin a step. torch calls this before each step of any optimizer in this process."""
        if worker_session.get_optional_session() is not self._session:
            return None  # it is the step of another rank, which takes turns in this process
        if optimizer not in self._known:
            self._check_first(optimizer)
            self._known.add(optimizer)
        return self.exchange.begin_step(optimizer, args, kwargs)

    def _check_first(self, optimizer: torch.optim.Optimizer) -> None:
        """Raise if the steps of an optimizer would not go through the strategy."""
        mine = {id(p) for group in optimizer.param_groups for p in group["params"]}
        name, related = type(optimizer).__name__, not mine.isdisjoint(self._list_parameters())
        if any(id(one) in mine for one in (ref() for ref in self._replaced) if one is not None):
            raise RuntimeError(
                f"This {name} has the parameters that the model had before prepare_model() spread them, so it would "
                "train nothing. Make the optimizer after model = prepare_model(model)."
            )
        if related and self.exchange.needs_optimizer and optimizer not in self._prepared:
            raise RuntimeError(
                f"{self.strategy.title} works in the optimizer's step, but this {name} was not prepared. "
                "Write optimizer = hocket.train.torch.prepare_optimizer(optimizer) before the first step."
            )
        stands_alone = self.exchange.needs_optimizer and optimizer not in self._prepared and not related
        trains = any(p.grad is not None for group in optimizer.param_groups for p in group["params"])
        if stands_alone and trains and self._models and not self.exchange.owns(optimizer):
            raise RuntimeError(
                f"This {name} has no parameter of a prepared model, so each rank would train the optimizer's "
                "parameters by itself. Prepare their model with prepare_model(), and the optimizer with "
                "prepare_optimizer()."
            )
        if not related and self._is_for_spread(optimizer):
            raise RuntimeError(
                f"This {name} would train nothing: it has no parameter of the model, and none with a gradient, only "
                "temporary parameters of the same number and shapes. It was made while the model's parameters were "
                "gathered, as after a forward pass. Make it right after model = prepare_model(model)."
            )

    def _is_for_spread(self, optimizer: torch.optim.Optimizer) -> bool:
        """Return whether an optimizer has parameters that stand in, only for a while, for a spread model's."""
        mine = [p for group in optimizer.param_groups for p in group["params"]]
        spread = [p for model in self._list_models() for p in model.parameters() if hasattr(p, "placements")]
        shapes = {tuple(p.shape) for p in spread if p.grad is not None}
        return bool(mine) and all(p.grad is None and tuple(p.shape) in shapes for p in mine)


@final
class _TakeRows:
    """A hook that shows the first batches to `equality`. Copies of the model have a hook that does nothing."""

    def __init__(self, watch: equality.Watch | None = None) -> None:
        self._watch = watch

    @torch_internals.skip_compiler
    def __call__(self, model: torch.nn.Module, args: tuple[object, ...]) -> None:
        if self._watch is None or not (model.training and torch.is_grad_enabled()):
            return
        batch = next((one for one in args if type(one) is torch.Tensor), None)
        if batch is not None and batch.layout == torch.strided and not batch.is_meta:
            raw = _resolve(batch).cpu().reshape(-1).contiguous().view(torch.uint8)
            self._watch = self._watch if self._watch.take_rows(raw.numpy()) else None

    def __deepcopy__(self, memo: object) -> _TakeRows:
        return _TakeRows()

    def __reduce__(self) -> tuple[type[_TakeRows], tuple[()]]:
        return _TakeRows, ()


def _unwrap(model: torch.nn.Module) -> torch.nn.Module:
    """Return the model inside DistributedDataParallel, or the model itself."""
    return model.module if isinstance(model, torch.nn.parallel.DistributedDataParallel) else model


def _read(kind: str, name: str, tensor: Any, found: list[_Read]) -> None:
    """Add a tensor to compare, or the part of it that other ranks have too."""
    part, values = "", tensor.detach()
    if type(tensor) not in _PLAIN and hasattr(tensor, "placements"):  # of a DTensor
        mesh, cut = tensor.device_mesh, [one.is_shard() for one in tensor.placements]
        if not all(one.is_shard() or one.is_replicate() for one in tensor.placements):
            return
        if all(is_cut or mesh.size(dim) == 1 for dim, is_cut in enumerate(cut)):
            return  # no other rank has this part
        part = ",".join(str(at) for at, is_cut in zip(mesh.get_coordinate(), cut, strict=True) if is_cut)
        values = values.to_local()
    if values.is_meta or values.layout != torch.strided or values.is_quantized:
        return
    values = _resolve(values)
    if values.is_cpu and values.dtype in _NUMPY:
        found.append((equality.Equal(kind, name, values.numpy(), part), None, None))
        return
    flat = values.reshape(-1)
    sample = flat[:: max(1, -(-flat.numel() // equality.SAMPLES))]
    raw = _pack(flat).view(torch.uint8)
    if not flat.is_cpu and raw.numel() >= _DEVICE_WORDS * 8:
        whole = raw.numel() // (_DEVICE_WORDS * 4) * _DEVICE_WORDS * 4
        sums = raw[:whole].view(torch.int32).view(-1, _DEVICE_WORDS).sum(0)
        raw = torch.cat([sums.view(torch.uint8), raw[whole:]])
    read = _pack((sample.real if sample.is_complex() else sample).double())
    found.append((equality.Equal(kind, name, _NOTHING, part), raw, read))


def _resolve(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's values. torch may only have noted that they are conjugated or negated."""
    return tensor.detach().resolve_conj().resolve_neg()


def _pack(flat: torch.Tensor) -> torch.Tensor:
    """Return a flat tensor without gaps between its values. torch calls a single value contiguous in any case."""
    return flat if flat.stride(0) == 1 else flat.clone(memory_format=torch.contiguous_format)


def _read_optimizer(optimizer: torch.optim.Optimizer, names: dict[int, str], found: list[_Read]) -> None:
    """Add an optimizer's tensors, its learning rates, and its parameters that no model has.

    Args:
        optimizer: An optimizer of a prepared model.
        names: Names of the models' parameters, by ``id``; empty for parameters that are left alone.
        found: The list to which they are added.
    """
    for number, group in enumerate(optimizer.param_groups):
        where = f" of group {number}" if number else ""
        rate = np.array(float(group.get("lr", 0.0)))
        found.append((equality.Equal("optimizer", f"learning rate{where}", rate), None, None))
        for place, parameter in enumerate(group["params"]):
            name = names.get(id(parameter))
            if name is None:
                name = f"{place} of {type(optimizer).__name__}{where}"
                _read("parameter", name, parameter, found)
            for key, value in optimizer.state.get(parameter, {}).items() if name else ():
                if isinstance(value, torch.Tensor):
                    _read("optimizer", f"{key} of `{name}`", value, found)


def _bring_home(found: list[_Read]) -> Iterator[equality.Equal]:
    """Yield tensors as numpy arrays. Those on a device come in one copy, since each copy waits for the device."""
    away = [part.view(torch.uint8) for _, *parts in found for part in parts if part is not None]
    home = iter(torch.split(torch.cat(away).cpu(), [one.numel() for one in away]) if away else ())
    for equal, raw, _ in found:
        if raw is None:
            yield equal
        else:
            yield equal._replace(array=next(home).numpy(), sample=next(home).clone().view(torch.float64).numpy())
