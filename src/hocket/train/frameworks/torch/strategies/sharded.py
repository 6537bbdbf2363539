"""`hocket.train.strategies.Sharded` in PyTorch: parameters cut over a mesh of the ranks.

A parameter becomes torch's ``DTensor`` on the whole mesh: what a rank keeps of it, of its gradient and of what the
optimizer keeps for it is its part. Around the forward pass of the layer that has it, it is replaced by what the layer
computes with: along the batch's axes it is whole, put together by the plan of `hocket.mesh.relayouts`; its gradient
goes the same way back, where ranks' terms are added up. If the mesh has other axes, the layer computes with a
``DTensor`` on these, and torch propagates how results are spread. So with batch axes alone layers see plain tensors.

What was put together is given up after the layer, and put together again where the backward pass needs it, as in
Zhao et al., "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel" (2023).
"""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, final

import torch
from torch import nn
from torch.distributed import tensor as torch_tensor
from torch.distributed.tensor import experimental
from torch.optim import optimizer as torch_optimizer

from hocket import mesh as meshes
from hocket.mesh import relayouts
from hocket.mesh.backends import torch as backend
from hocket.train import strategies
from hocket.train.frameworks import spreading
from hocket.train.frameworks.torch import nested
from hocket.train.frameworks.torch.strategies import averaging, sharded_usage, sharded_uses, strategy
from hocket.train.rank import usage


@dataclasses.dataclass(frozen=True)
class _Part:
    """How a parameter is kept, and what layers compute with."""

    stored: meshes.Layout
    used: meshes.Layout
    """Whole along the batch's axes."""
    batch_dims: tuple[str, ...]
    parts: int
    """How many parts the batch has."""
    meter: sharded_usage.Meter
    """What counts the bytes."""

    @property
    def is_gathered(self) -> bool:
        return self.stored != self.used

    def gather(self, local: torch.Tensor, purpose: str = sharded_usage.GATHERED) -> torch.Tensor:
        with self.meter.count(purpose):
            return backend.run_plan(local, self.stored, self.used)

    @property
    def _summed(self) -> meshes.Layout:
        """How a gradient is spread before it is added up."""
        return self.used.with_partial(self.batch_dims)

    def list_plans(self, parameter: torch.Tensor) -> list[relayouts.Plan]:
        """Return how a parameter is put together where a layer uses it, and how its gradient is added up, if at all."""
        shape, size = tuple(parameter.shape), parameter.element_size()
        plans = [relayouts.plan_relayout(self.stored, self.used, shape, size)]
        if parameter.requires_grad:
            plans.append(relayouts.plan_relayout(self._summed, self.stored, shape, size))
        return plans

    def reduce(self, slope: torch.Tensor) -> torch.Tensor:
        """Return what this rank keeps of the mean gradient over the whole batch."""
        with self.meter.count(sharded_usage.REDUCED):
            total = backend.run_plan(slope.contiguous(), self._summed, self.stored)
        return total.div_(self.parts) if self.batch_dims else total


class _Use(torch.autograd.Function):
    """What a layer computes with, of what the rank keeps."""

    @staticmethod
    def forward(ctx: Any, local: torch.Tensor, part: _Part) -> torch.Tensor:
        ctx.part = part
        found = part.gather(local)
        return found.view_as(found) if found is local else found

    @staticmethod
    def backward(ctx: Any, *slopes: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.part.reduce(slopes[0]), None


_use: Final[Callable[[torch.Tensor, _Part], torch.Tensor]] = _Use.apply


@final
class Exchange(strategy.Exchange):
    """Layers are changed once; autograd does the rest."""

    def __init__(self, settings: strategies.Sharded, ranks: strategies.Ranks) -> None:
        self._settings = settings
        self._ranks = ranks
        self._closing = contextlib.ExitStack()
        self._meter: sharded_usage.Meter | None = None

    def adapt_model(
        self, model: nn.Module, parallel_strategy: str, options: Mapping[str, Any], device: torch.device
    ) -> nn.Module:
        strategy.require_whole("Sharded", "parts of the model in each rank", parallel_strategy, options)
        if self._ranks.world_size == 1:
            return model
        if device.type != "cpu":
            raise ValueError(f"Sharded computes on CPUs so far, but the rank's device is {device}. Use AllReduce().")
        if any(isinstance(parameter, torch_tensor.DTensor) for parameter in model.parameters()):
            raise ValueError(
                "prepare_model() received a model whose parameters are spread already. Prepare it once, as it is built."
            )
        averaging.copy_from_first([*model.parameters(), *model.buffers()])
        mesh = meshes.create_mesh(self._settings.mesh, framework="torch")
        inner = [name for name in mesh.dim_names if name not in self._settings.batch_dims]
        inner_mesh = backend.get_device_mesh(mesh)[tuple(inner)] if inner else None
        self._meter = meter = sharded_usage.Meter()
        parts = dict(self._plan(model, mesh, meter))
        uses = [value for module in model.modules() for value in module._parameters.values() if value is not None]
        plans = [parts[value].list_plans(value) for value in uses]
        spread = {parameter: _spread(parameter, part) for parameter, part in parts.items()}
        for module in model.modules():
            own = {name: value for name, value in module._parameters.items() if value is not None}
            if own:
                hooks = _LayerHooks({name: parts[value] for name, value in own.items()}, inner_mesh)
                module.register_forward_pre_hook(hooks.begin)
                module.register_forward_hook(hooks.end, always_call=True)
                register: Callable[..., Any] = module.register_load_state_dict_pre_hook
                register(hooks.spread_loaded)
                module._parameters.update({name: spread[value] for name, value in own.items()})
        meter.predict(list(spread.values()), plans)
        self._closing.enter_context(meter.follow_steps())
        use_of = {id(spread[parameter]): part for parameter, part in parts.items()}
        sharded_uses.follow(
            model,
            lambda one: _use_elsewhere(one, use_of.get(id(one)), inner_mesh),
            computes_with_parts=inner_mesh is not None,
        )
        for parameter in parts:
            parameter.data = parameter.new_empty(0)  # what still refers to it keeps no memory
        self._refuse_steps_of(set(parts))
        if inner:
            _take_plain_tensors(model, inner_mesh)
            self._closing.enter_context(experimental.implicit_replication())
        return model

    def _plan(
        self, model: nn.Module, mesh: meshes.Mesh, meter: sharded_usage.Meter
    ) -> Iterator[tuple[nn.Parameter, _Part]]:
        """Give how each parameter is kept."""
        batch_dims = tuple(spreading.list_batch_dims(self._settings))
        shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
        layouts = spreading.plan(self._settings, mesh, shapes)
        parts = self._settings.locate_batch(0, mesh.size)[1]
        for name, parameter in model.named_parameters():
            stored = layouts[name]
            backend.list_placements(stored)  # it refuses an order that torch does not know
            kept = [[axis for axis in axes if axis not in batch_dims] or meshes.UNSHARDED for axes in stored.axes]
            yield parameter, _Part(stored, meshes.Layout(kept, mesh), batch_dims, parts, meter)

    def _refuse_steps_of(self, replaced: set[nn.Parameter]) -> None:
        """Have a step of an optimizer fail that was made before the model was spread: it would train nothing."""
        seen: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()

        def check(stepped: torch.optim.Optimizer, args: object, kwargs: object) -> None:
            if stepped in seen:
                return
            if any(parameter in replaced for group in stepped.param_groups for parameter in group["params"]):
                raise RuntimeError(
                    f"This {type(stepped).__name__} has the parameters that the model had before prepare_model() "
                    "spread them, so it would train nothing. Make the optimizer after model = prepare_model(model)."
                )
            seen.add(stepped)

        self._closing.callback(torch_optimizer.register_optimizer_step_pre_hook(check).remove)

    def close(self) -> None:
        if self._meter is not None:
            usage.note(self._meter.tell())
        self._closing.close()


class _LayerHooks:
    """Puts what a layer computes with in the place of its own parameters, while it computes.

    Args:
        parts: How its parameters are kept, by name.
        inner: The mesh of the axes along which it computes with parts; None if there are none.
    """

    def __init__(self, parts: Mapping[str, _Part], inner: Any) -> None:
        self._parts = parts
        self._inner = inner
        self._begun: list[tuple[dict[str, Any], contextlib.ExitStack]] = []  # a layer may call itself

    def begin(self, module: nn.Module, args: object) -> None:
        """Called before the layer computes."""
        kept = {name: module._parameters[name] for name in self._parts}
        context = contextlib.ExitStack()
        self._begun.append((kept, context))
        found: dict[int, tuple[_Part, Any]] = {}
        for name, part in self._parts.items():
            parameter: Any = kept[name]
            value: Any = _use(parameter.to_local(), part)
            if self._inner is not None:
                value = _wrap(value, part, self._inner)
            elif part.is_gathered:
                found[value.untyped_storage().data_ptr()] = part, parameter
            module._parameters[name] = value
        if found:
            context.enter_context(_gather_again(found))
        _refresh(module)

    def spread_loaded(self, module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: object) -> None:
        """Called before the layer loads its parameters, which may be whole, the same in all ranks."""
        for name, part in self._parts.items():
            mine, value = module._parameters[name], state_dict.get(prefix + name)
            if not isinstance(value, torch.Tensor) or isinstance(value, torch_tensor.DTensor):
                continue
            if mine is not None and value.shape == mine.shape:  # else torch refuses it
                state_dict[prefix + name] = _cut(value, part)

    def end(self, module: nn.Module, args: object, result: object) -> None:
        """Called after it, also if it has raised."""
        if not self._begun:
            return
        kept, context = self._begun.pop()
        module._parameters.update(kept)
        context.close()
        _refresh(module)


def _wrap(value: torch.Tensor, part: _Part, inner: Any) -> torch.Tensor:
    """Return what a rank has of a parameter as a DTensor on the axes along which layers compute with parts."""
    names = inner.mesh_dim_names
    placements: list[Any] = [torch_tensor.Replicate()] * len(names)
    for dim, axes in enumerate(part.used.axes):
        for name in axes:
            placements[names.index(name)] = torch_tensor.Shard(dim)
    return torch_tensor.DTensor.from_local(value, inner, placements, run_check=False)


def _use_elsewhere(parameter: Any, part: _Part | None, inner: Any) -> torch.Tensor | None:
    """Return what is computed with, for a parameter as the rank keeps it; it is kept until the backward pass."""
    if part is None:
        return None
    value = _use(parameter.to_local(), part)
    return value if inner is None else _wrap(value, part, inner)


def _take_plain_tensors(model: nn.Module, inner: Any) -> None:
    """Have a model take plain tensors, of which each rank along the inner axes has the same, and return such."""
    replicas = [torch_tensor.Replicate()] * inner.ndim

    def take(tensor: torch.Tensor) -> torch.Tensor:
        return torch_tensor.DTensor.from_local(tensor, inner, replicas, run_check=False)

    def give(tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor, torch_tensor.DTensor):
            return tensor
        found: torch.Tensor = tensor.redistribute(placements=replicas).to_local(grad_placements=replicas)
        return found

    model.register_forward_pre_hook(
        lambda _, args, kwargs: (nested.map_tensors(args, take), nested.map_tensors(kwargs, take)), with_kwargs=True
    )
    model.register_forward_hook(lambda _, args, result: nested.map_tensors(result, give))


def _spread(parameter: nn.Parameter, part: _Part) -> nn.Parameter:
    """Return a parameter as a DTensor."""
    return nn.Parameter(_cut(parameter.detach().clone(), part), requires_grad=parameter.requires_grad)


def _cut(value: torch.Tensor, part: _Part) -> torch_tensor.DTensor:
    """Return what every rank has whole as a DTensor."""
    whole = meshes.Layout.replicated(part.stored.mesh, value.ndim)
    local = backend.run_plan(value.contiguous(), whole, part.stored)
    placements = backend.list_placements(part.stored)
    return torch_tensor.DTensor.from_local(
        local, backend.get_device_mesh(part.stored.mesh), placements, run_check=False
    )


def _gather_again(found: Mapping[int, tuple[_Part, Any]]) -> contextlib.AbstractContextManager[None]:
    """Keep nothing of gathered parameters for the backward pass, which gathers them again.

    Args:
        found: How they are kept, and the parameters, by where what was gathered lies.
    """

    def pack(tensor: torch.Tensor) -> Any:
        known = None if isinstance(tensor, torch_tensor.DTensor) else found.get(tensor.untyped_storage().data_ptr())
        return tensor if known is None else (known, tensor.size(), tensor.stride(), tensor.storage_offset())

    @torch.no_grad()
    def unpack(packed: Any) -> torch.Tensor:
        if isinstance(packed, torch.Tensor):
            return packed
        (part, parameter), *place = packed
        found: torch.Tensor = part.gather(parameter.detach().to_local(), sharded_usage.GATHERED_AGAIN).as_strided(
            *place
        )
        return found

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)


def _refresh(module: nn.Module) -> None:
    """Have a recurrent layer look at its parameters again, which it keeps in a list of its own."""
    if isinstance(module, nn.RNNBase):
        module._flat_weights = [getattr(module, name) for name in module._flat_weights_names]
