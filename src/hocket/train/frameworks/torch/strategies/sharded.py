"""`hocket.train.strategies.Sharded` in PyTorch: parameters cut over a mesh of the ranks.

A parameter becomes torch's ``DTensor`` on the whole mesh: what a rank keeps of it, of its gradient and of what the
optimizer keeps for it is its part. Around the forward pass of the layer that has it, it is replaced by what the layer
computes with: along the batch's axes it is whole, put together by the plan of `hocket.mesh.relayouts`; its gradient
goes the same way back, where ranks' terms are added up. If the mesh has other axes, the layer computes with a
``DTensor`` on these, and torch propagates how results are spread. So with batch axes alone layers see plain tensors.

What was put together is given up after the layer, and put together again where the backward pass needs it, as in
Zhao et al., "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel" (2023); small layers together
(`sharded_units`). Without batch axes layers compute with what is kept.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, final

import torch
from torch import nn
from torch.distributed import tensor as torch_tensor
from torch.distributed.tensor import experimental
from torch.optim import optimizer as torch_optimizer

from hocket import mesh as meshes
from hocket.mesh.backends import torch as backend
from hocket.train import strategies
from hocket.train.frameworks import spreading
from hocket.train.frameworks.torch import nested
from hocket.train.frameworks.torch.strategies import averaging, sharded_units, sharded_usage, sharded_uses, strategy
from hocket.train.rank import usage


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
        parts = dict(self._plan(model, mesh))
        spread = {parameter: _spread(parameter, part) for parameter, part in parts.items()}
        self._meter = meter = sharded_usage.Meter()
        inner = [name for name in mesh.dim_names if name not in self._settings.batch_dims]
        if len(inner) == len(mesh.dim_names):
            self._use_parts(model, parts, spread, meter, backend.get_device_mesh(mesh))
        else:
            inner_mesh = backend.get_device_mesh(mesh)[tuple(inner)] if inner else None
            self._use_gathered(model, parts, spread, meter, inner_mesh)
        self._closing.enter_context(meter.follow_steps())
        for parameter in parts:
            parameter.data = parameter.new_empty(0)  # what still refers to it keeps no memory
        self._refuse_steps_of(set(parts))
        return model

    def _use_gathered(
        self,
        model: nn.Module,
        parts: Mapping[nn.Parameter, sharded_units.Part],
        spread: Mapping[nn.Parameter, nn.Parameter],
        meter: sharded_usage.Meter,
        inner: Any,
    ) -> None:
        """Have layers compute with parameters that are put together along the batch's axes."""
        units = sharded_units.Units(model, parts, spread, inner, meter, self._settings.bucket_bytes)
        for module, own in _replace(model, parts, spread):
            hooks = _LayerHooks(list(own), units.use)
            module.register_forward_pre_hook(hooks.begin)
            module.register_forward_hook(hooks.end, always_call=True)
        uses = functools.partial(sharded_uses.Uses, units.use)
        if inner is None:
            sharded_uses.enter_while_computing(model, [uses])
        else:
            self._compute_with_parts(model, [backend.Functions, uses], inner)

    def _use_parts(
        self,
        model: nn.Module,
        parts: Mapping[nn.Parameter, sharded_units.Part],
        spread: Mapping[nn.Parameter, nn.Parameter],
        meter: sharded_usage.Meter,
        inner: Any,
    ) -> None:
        """Have layers compute with what each rank keeps: every rank has the whole batch."""
        meter.predict(list(spread.values()), [part.list_plans(old) for old, part in parts.items()])
        for module, _ in _replace(model, parts, spread):
            _refresh(module)
        for parameter in spread.values():
            if parameter.requires_grad:
                backend.lay_out_gradients(parameter)
        self._compute_with_parts(model, [backend.Functions], inner)

    def _compute_with_parts(self, model: nn.Module, modes: Sequence[Callable[[], Any]], inner: Any) -> None:
        """Have modules take plain tensors, of which each rank along the inner axes has the same, and return such."""
        replicas = [torch_tensor.Replicate()] * inner.ndim

        def take(tensor: torch.Tensor) -> torch.Tensor:
            if isinstance(tensor, torch_tensor.DTensor):
                return tensor
            return torch_tensor.DTensor.from_local(tensor, inner, replicas, run_check=False)

        def give(tensor: torch.Tensor) -> torch.Tensor:
            if not isinstance(tensor, torch_tensor.DTensor):
                return tensor
            return _once(tensor.redistribute(placements=replicas).to_local(grad_placements=replicas))

        sharded_uses.enter_while_computing(
            model,
            modes,
            take=lambda args: nested.map_tensors(args, take),
            give=lambda result: nested.map_tensors(result, give),
        )
        self._closing.enter_context(experimental.implicit_replication())

    def _plan(self, model: nn.Module, mesh: meshes.Mesh) -> Iterator[tuple[nn.Parameter, sharded_units.Part]]:
        """Give how each parameter is kept."""
        batch_dims = tuple(spreading.list_batch_dims(self._settings))
        shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
        layouts = spreading.plan(self._settings, mesh, shapes)
        parts = self._settings.locate_batch(0, mesh.size)[1]
        for name, parameter in model.named_parameters():
            stored = layouts[name]
            backend.list_placements(stored)  # it refuses an order that torch does not know
            yield parameter, sharded_units.Part(stored, spreading.find_used(stored, batch_dims), batch_dims, parts)

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
        names: Their names.
        use: Returns what layers compute with for a parameter as it is kept.
    """

    def __init__(self, names: Sequence[str], use: Callable[[nn.Parameter], torch.Tensor | None]) -> None:
        self._names = names
        self._use = use
        self._begun: list[dict[str, Any]] = []  # a layer may call itself

    def begin(self, module: nn.Module, args: object) -> None:
        """Called before the layer computes."""
        parameters: dict[str, Any] = module._parameters
        kept = {name: parameters[name] for name in self._names}
        self._begun.append(kept)
        for name, parameter in kept.items():
            value = self._use(parameter) if parameter is not None else None
            if value is not None:
                parameters[name] = value
        _refresh(module)

    def end(self, module: nn.Module, args: object, result: object) -> None:
        """Called after it, also if it has raised."""
        if self._begun:
            module._parameters.update(self._begun.pop())
            _refresh(module)


def _replace(
    model: nn.Module, parts: Mapping[nn.Parameter, sharded_units.Part], spread: Mapping[nn.Parameter, nn.Parameter]
) -> Iterator[tuple[nn.Module, Mapping[str, sharded_units.Part]]]:
    """Put parameters as they are kept into modules, which then load whole ones, too; give those that have some."""
    for module in model.modules():
        old = {name: value for name, value in module._parameters.items() if value is not None}
        if old:
            own = {name: parts[value] for name, value in old.items()}
            register: Callable[..., Any] = module.register_load_state_dict_pre_hook
            register(functools.partial(_spread_loaded, own))
            module._parameters.update({name: spread[value] for name, value in old.items()})
            yield module, own


def _spread_loaded(
    own: Mapping[str, sharded_units.Part], module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: object
) -> None:
    """Called before a module loads its parameters, which may be whole, the same in all ranks."""
    for name, part in own.items():
        mine, value = module._parameters[name], state_dict.get(prefix + name)
        if not isinstance(value, torch.Tensor) or isinstance(value, torch_tensor.DTensor):
            continue
        if mine is not None and value.shape == mine.shape:  # else torch refuses it
            state_dict[prefix + name] = _cut(value, part)


class _Once(torch.autograd.Function):
    """What modules that compute with parts return."""

    @staticmethod
    def forward(_: Any, value: torch.Tensor) -> torch.Tensor:
        return value.view_as(value)

    @staticmethod
    def backward(_: Any, *slopes: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():
            raise NotImplementedError(
                "A gradient is to be differentiated again (create_graph=True), which PyTorch's DTensors cannot: with "
                "Sharded, layers of this model compute with parts. Use a mesh of batch axes alone, such as "
                "Sharded(mesh={'data': 2}, shard_along='data')."
            )
        return slopes[0]


_once: Final[Callable[[torch.Tensor], torch.Tensor]] = _Once.apply


def _spread(parameter: nn.Parameter, part: sharded_units.Part) -> nn.Parameter:
    """Return a parameter as a DTensor."""
    return nn.Parameter(_cut(parameter.detach().clone(), part), requires_grad=parameter.requires_grad)


def _cut(value: torch.Tensor, part: sharded_units.Part) -> torch_tensor.DTensor:
    """Return what every rank has whole as a DTensor."""
    whole = meshes.Layout.replicated(part.stored.mesh, value.ndim)
    local = backend.run_plan(value.contiguous(), whole, part.stored)
    placements = backend.list_placements(part.stored)
    return torch_tensor.DTensor.from_local(
        local, backend.get_device_mesh(part.stored.mesh), placements, run_check=False
    )


def _refresh(module: nn.Module) -> None:
    """Have a recurrent layer look at its parameters again, which it keeps in a list of its own."""
    if isinstance(module, nn.RNNBase):
        module._flat_weights = [getattr(module, name) for name in module._flat_weights_names]
