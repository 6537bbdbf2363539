"""`hocket.train.strategies.Sharded` in PyTorch: parameters cut over a mesh of the ranks.

A parameter becomes torch's ``DTensor`` on the whole mesh. A rank keeps its part of the parameter, of the gradient, and
of the optimizer's state. While the layer that has it computes, another tensor replaces it. That tensor is whole along
the batch's axes, put together by the plan of `hocket.mesh.relayouts`. Its gradient goes back the same way, and the
ranks' terms are added up. If the mesh has other axes, the layer computes with a ``DTensor`` on these, and torch
propagates how results are spread. So with batch axes alone layers see plain tensors.

The tensor is released after the layer, and put together again where the backward pass needs it, as in Zhao et al.,
"PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel" (2023). Small layers share a message
(`sharded_units`). Without batch axes layers compute with the parts.
"""

from __future__ import annotations

import contextlib
import functools
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import device_mesh
from torch.distributed import tensor as torch_tensor
from torch.distributed.tensor import experimental
from torch.optim import optimizer as torch_optimizer

from hocket import mesh as meshes
from hocket._base.internals import torch as torch_internals
from hocket.mesh import shown
from hocket.mesh.backends import torch as backend
from hocket.train import strategies
from hocket.train.frameworks import spreading
from hocket.train.frameworks.torch import nested
from hocket.train.frameworks.torch.strategies import (
    averaging,
    closures,
    sharded_hooks,
    sharded_units,
    sharded_usage,
    sharded_uses,
    strategy,
)
from hocket.train.rank import usage


@final
class TorchSharded(strategy.TorchStrategy):
    """`Sharded` at work: it changes layers once, and autograd does the rest."""

    averages_others = True

    def __init__(self, settings: strategies.Sharded, ranks: strategies.Ranks) -> None:
        self._settings = settings
        self._ranks = ranks
        self._closing = contextlib.ExitStack()
        self._meters: list[sharded_usage.Meter] = []
        """The meters of the prepared models."""
        self._outside = closures.Outside(ranks.world_size)

    def adapt_model(
        self, model: nn.Module, parallel_strategy: str, options: Mapping[str, object], device: torch.device
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
        if hasattr(model, torch_internals.COMPILED):
            raise TypeError(
                "prepare_model() received the result of torch.compile(), but Sharded changes how layers are called. "
                "Write model = torch.compile(prepare_model(model))."
            )
        averaging.copy_from_first([*model.parameters(), *model.buffers()])
        mesh = meshes.create_mesh(self._settings.mesh, framework="torch")
        planned = dict(self._plan(model, mesh))
        spread = {parameter: _spread(parameter, part) for parameter, part in planned.items()}
        for module in model.modules():
            own = {name: spread[old] for name, old in torch_internals.get_parameters(module).items() if old is not None}
            torch_internals.get_parameters(module).update(own)
        meter = sharded_usage.Meter()
        self._meters.append(meter)
        self._attach(model, {spread[old]: part for old, part in planned.items()}, meter)
        self._closing.enter_context(meter.follow_steps())
        for parameter in planned:
            parameter.data = parameter.new_empty(0)  # remaining references keep no memory
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        look = functools.partial(_compare_gradients, names, meter)
        self._closing.callback(torch_optimizer.register_optimizer_step_pre_hook(look).remove)
        return model

    @property
    def alike(self) -> strategies.Alike:
        return strategies.Alike.ALL

    def begin_step(
        self, optimizer: torch.optim.Optimizer, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        parameters = [one for group in optimizer.param_groups for one in group["params"]]
        outside = [one for one in parameters if not isinstance(one, torch_tensor.DTensor)]
        if not self._meters:
            return None
        taken = self._outside.begin_step(optimizer, outside, args, kwargs)
        return closures.share_loss(optimizer, taken or (args, kwargs), self._ranks.world_size) or taken

    def _attach(
        self, model: nn.Module, parts: Mapping[nn.Parameter, sharded_units.Part], meter: sharded_usage.Meter
    ) -> None:
        """Make a model's layers, and those of copies, compute with the tensors that stored parameters stand for."""
        hooks = sharded_hooks.Hooks()
        for module in model.modules():
            own = {
                name: parts[value]
                for name, value in torch_internals.get_parameters(module).items()
                if value is not None
            }
            if own:
                hooks.before_loading(module, _build_spreader(own))
        mesh = next(iter(parts.values())).stored.mesh if parts else None
        if mesh is not None:
            inner = [name for name in mesh.dim_names if name not in self._settings.batch_dims]
            if len(inner) == len(mesh.dim_names):
                self._use_parts(model, parts, meter, hooks, backend.get_device_mesh(mesh))
            else:
                self._use_gathered(model, parts, meter, hooks, backend.get_device_mesh(mesh), inner)

        def adapt(made: nn.Module, copies: Mapping[int, Any]) -> None:
            hooks.remove_from_copies(copies)
            own = {copies[id(one)]: part for one, part in parts.items() if id(one) in copies}
            self._attach(made, own, sharded_usage.Meter())

        sharded_hooks.follow_copies(model, adapt)

    def _use_gathered(
        self,
        model: nn.Module,
        parts: Mapping[nn.Parameter, sharded_units.Part],
        meter: sharded_usage.Meter,
        hooks: sharded_hooks.Hooks,
        mesh: device_mesh.DeviceMesh,
        inner_names: Sequence[str],
    ) -> None:
        """Make layers compute with parameters that are put together along the batch's axes."""
        inner = mesh[tuple(inner_names)] if inner_names else None
        units = sharded_units.Units(model, parts, inner, meter, hooks, self._settings.bucket_bytes)
        for module in model.modules():
            names = [name for name, value in torch_internals.get_parameters(module).items() if value is not None]
            if names:
                layer = _Layer(names, units.use)
                hooks.before(module, layer.build_begin())
                hooks.after(module, layer.build_end())
        uses: list[Callable[[], Any]] = [
            functools.partial(_share_buffers, model, parts),
            functools.partial(sharded_uses.Uses, units.use, mesh),
        ]
        if inner is None:
            sharded_uses.enter_while_computing(
                model, hooks, uses, take=lambda args: nested.map_tensors(args, _make_whole)
            )
        else:
            self._compute_with_parts(model, hooks, [backend.Functions, *uses], inner)

    def _use_parts(
        self,
        model: nn.Module,
        parts: Mapping[nn.Parameter, sharded_units.Part],
        meter: sharded_usage.Meter,
        hooks: sharded_hooks.Hooks,
        inner: object,
    ) -> None:
        """Make layers compute with each rank's parts: every rank has the whole batch."""
        meter.predict(list(parts), [part.list_plans(parameter) for parameter, part in parts.items()])
        for module in model.modules():
            _refresh(module)
        for parameter in parts:
            backend.lay_out_gradients(parameter)
        self._compute_with_parts(model, hooks, [backend.Functions], inner)

    def _compute_with_parts(
        self, model: nn.Module, hooks: sharded_hooks.Hooks, modes: Sequence[Callable[[], Any]], inner: Any
    ) -> None:
        """Make modules take and return plain tensors, which are the same in each rank along the inner axes."""
        replicas = [torch_tensor.Replicate()] * inner.ndim

        def take(tensor: torch.Tensor) -> torch.Tensor:
            if isinstance(tensor, torch_tensor.DTensor):
                if tensor.device_mesh == inner:
                    return tensor
                tensor = _make_whole(tensor)
            return torch_tensor.DTensor.from_local(tensor, inner, replicas, run_check=False)

        def give(tensor: torch.Tensor) -> torch.Tensor:
            if not isinstance(tensor, torch_tensor.DTensor):
                return tensor
            found: torch.Tensor = tensor.redistribute(placements=replicas).to_local(grad_placements=replicas)
            return _once(found) if torch.is_grad_enabled() else found

        sharded_uses.enter_while_computing(
            model,
            hooks,
            modes,
            take=lambda args: nested.map_tensors(args, take),
            give=lambda result: nested.map_tensors(result, give),
        )
        self._closing.enter_context(experimental.implicit_replication())  # plain tensors count as replicated

    def _plan(self, model: nn.Module, mesh: meshes.Mesh) -> Iterator[tuple[nn.Parameter, sharded_units.Part]]:
        """Yield each parameter, and how it is kept."""
        batch_dims = tuple(spreading.list_batch_dims(self._settings))
        shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
        layouts = spreading.plan(self._settings, mesh, shapes, is_first=not self._meters)
        parts = self._settings.locate_batch(0, mesh.size)[1]
        for name, parameter in model.named_parameters():
            stored = layouts[name]
            backend.list_placements(stored)  # refuses an order of axes that torch does not know
            shown.OWN.note_spread(name, stored, shapes[name], parameter.element_size())
            yield parameter, sharded_units.Part(stored, spreading.find_used(stored, batch_dims), batch_dims, parts)

    def close(self) -> None:
        if self._meters:
            usage.note(max(self._meters, key=lambda one: one.steps).tell())
        self._closing.close()


class _Layer:
    """The replacement of a layer's own parameters, while it computes, by the tensors for computing.

    Args:
        names: The parameters' names.
        use: Returns the tensor for a stored parameter; None if there is none.
    """

    def __init__(self, names: Sequence[str], use: Callable[[nn.Parameter], torch.Tensor | None]) -> None:
        self._names = names
        self._use = use
        self._begun: list[dict[str, Any]] = []  # a layer may call itself

    def build_begin(self) -> Callable[..., None]:
        """Return the hook before the layer computes."""

        def begin(module: nn.Module, args: object) -> None:
            parameters: dict[str, Any] = torch_internals.get_parameters(module)
            if any(name not in parameters for name in self._names):
                raise RuntimeError(
                    f"A {type(module).__name__} has lost the parameters {self._names} since prepare_model() spread "
                    "them. weight_norm(), for example, takes them. Change the layers first, and then prepare the model."
                )
            kept = {name: parameters[name] for name in self._names}
            self._begun.append(kept)
            for name, parameter in kept.items():
                value = self._use(parameter) if parameter is not None else None
                if value is not None:
                    parameters[name] = value
            _refresh(module)

        return begin

    def build_end(self) -> Callable[..., None]:
        """Return the hook after the layer has computed."""

        def end(module: nn.Module, args: object, result: object) -> None:
            if self._begun:
                torch_internals.get_parameters(module).update(self._begun.pop())
                _refresh(module)

        return end


def _build_spreader(own: Mapping[str, sharded_units.Part]) -> Callable[..., None]:
    """Return a hook before a module loads its parameters, which may be whole, the same in all ranks."""

    def spread(module: nn.Module, state_dict: dict[str, object], prefix: str, *_: object) -> None:
        for name, part in own.items():
            mine, value = torch_internals.get_parameters(module)[name], state_dict.get(prefix + name)
            if not isinstance(value, torch.Tensor) or isinstance(value, torch_tensor.DTensor):
                continue
            if mine is not None and value.shape == mine.shape:  # otherwise torch refuses it
                state_dict[prefix + name] = _cut(value, part)

    return spread


def _compare_gradients(
    names: Mapping[int, str], meter: sharded_usage.Meter, stepped: torch.optim.Optimizer, args: object, kwargs: object
) -> None:
    """Raise if ranks have gradients of different parameters, which then were added to each other.

    Args:
        names: Names of the model's parameters, by their ``id``.
        meter: Counts the bytes.
        stepped: The optimizer that is about to step.
        args: The step's arguments.
        kwargs: The step's keyword arguments.
    """
    own = [one for group in stepped.param_groups for one in group["params"] if id(one) in names]
    if not own:
        return
    have = [one.grad is not None for one in own]
    mine = torch.tensor([zlib.crc32(bytes(have))])  # a few bytes, however many parameters there are
    with meter.count(sharded_usage.COMPARED):
        told = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(told, mine)
    if all(one.item() == told[0].item() for one in told):
        return
    everyone: list[Any] = [None] * len(told)
    dist.all_gather_object(everyone, have)
    number = next(number for number, several in enumerate(zip(*everyone, strict=True)) if len(set(several)) > 1)
    ranks = [rank for rank, several in enumerate(everyone) if several[number]]
    raise RuntimeError(
        f"The parameter {names[id(own[number])]!r} has a gradient in the ranks {ranks} only, so the ranks used "
        "different layers, and added up gradients of different parameters. Use the same layers in all ranks; multiply "
        "the result of a layer that is not needed by 0."
    )


def _check_complete(model: nn.Module, known: Mapping[nn.Parameter, object]) -> None:
    """Raise if a model has new parameters since it was spread: their gradients would be those of one rank."""
    for name, parameter in model.named_parameters():
        if parameter not in known and (parameter.requires_grad or isinstance(parameter, torch_tensor.DTensor)):
            raise RuntimeError(
                f"The model has a new parameter, {name!r}, since prepare_model() spread it, so nothing would add up "
                "that parameter's gradients. Build the whole model first, and then prepare it; load_state_dict() keeps "
                "the parameters without assign=True."
            )


@contextlib.contextmanager
def _share_buffers(model: nn.Module, known: Mapping[nn.Parameter, object]) -> Iterator[None]:
    """Share rank 0's changes of buffers, such as the means of a batch normalization, as DDP does."""
    _check_complete(model, known)
    yield
    if model.training:
        averaging.copy_from_first(buffer.data for buffer in model.buffers())


def _make_whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return a spread tensor whole in each rank, such as a state that a program has made like a parameter."""
    return tensor.full_tensor() if isinstance(tensor, torch_tensor.DTensor) else tensor


class _Once(torch.autograd.Function):
    """The output of modules that compute with parts. Its gradient cannot be differentiated again."""

    @staticmethod
    def forward(_: object, value: torch.Tensor) -> torch.Tensor:
        return value.view_as(value)

    @staticmethod
    def backward(_: object, *slopes: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():
            raise NotImplementedError(
                "A gradient was to be differentiated again (create_graph=True), but PyTorch's DTensors do not support "
                "that, and with Sharded, layers of this model compute with them. Use a mesh of batch axes alone, such "
                "as Sharded(mesh={'data': 2}, shard_along='data')."
            )
        return slopes[0]


_once: Final[Callable[[torch.Tensor], torch.Tensor]] = _Once.apply


def _spread(parameter: nn.Parameter, part: sharded_units.Part) -> nn.Parameter:
    """Return a parameter as a DTensor."""
    return nn.Parameter(_cut(parameter.detach().clone(), part), requires_grad=parameter.requires_grad)


def _cut(value: torch.Tensor, part: sharded_units.Part) -> torch_tensor.DTensor:
    """Return a tensor that every rank has whole as a DTensor."""
    whole = meshes.Layout.replicated(part.stored.mesh, value.ndim)
    local = backend.run_plan(value.contiguous(), whole, part.stored)
    placements = backend.list_placements(part.stored)
    return torch_tensor.DTensor.from_local(
        local, backend.get_device_mesh(part.stored.mesh), placements, run_check=False
    )


def _refresh(module: nn.Module) -> None:
    if isinstance(module, nn.RNNBase):
        torch_internals.refresh_recurrent(module)
