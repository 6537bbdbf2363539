"""Units: modules whose parameters `sharded` puts together in one message, and whose gradients it adds up in one.

A message has a cost, so small layers share one. A unit is a module whose parameters, with those of all modules in it,
take no more bytes than a limit when they are whole; or a larger module with its own parameters alone. While a unit
computes, all its whole parameters are there; after it, only this rank's parts.

The whole parameters are released after the unit, and put together again when the backward pass needs the first of them.
A unit that is the whole model keeps them, since the backward pass begins with it. Values that another mechanism keeps
are left to it: activation checkpointing, which computes the unit again, or a move to other memory.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, final

import torch
from torch import nn
from torch.distributed import tensor as torch_tensor

from hocket import mesh as meshes
from hocket._base.internals import torch as torch_internals
from hocket.mesh import relayouts
from hocket.mesh.backends import torch as backend
from hocket.train.frameworks import spreading
from hocket.train.frameworks.torch.strategies import sharded_hooks, sharded_usage


@final
@dataclasses.dataclass(frozen=True)
class Part:
    """The layouts of a parameter: for storing, and for computing."""

    stored: meshes.Layout
    used: meshes.Layout
    """The layout for layers: whole along the batch's axes."""
    batch_dims: tuple[str, ...]
    parts: int
    """The number of parts of the batch."""

    @property
    def summed(self) -> meshes.Layout:
        """The layout of a gradient before it is added up."""
        return self.used.with_partial(self.batch_dims)

    @property
    def is_gathered(self) -> bool:
        return self.stored != self.used

    def list_plans(self, parameter: torch.Tensor) -> list[relayouts.Plan]:
        """Return the plan that puts a parameter together for a unit and, if it is trained, its gradient's plan."""
        gather, reduce = spreading.plan_traffic(
            self.stored, self.batch_dims, tuple(parameter.shape), parameter.element_size()
        )
        return [gather, reduce] if parameter.requires_grad else [gather]

    def wrap(self, value: torch.Tensor, inner: Any) -> torch.Tensor:
        """Return a rank's part of a parameter as a DTensor on the axes along which layers compute with parts."""
        names = inner.mesh_dim_names
        placements: list[Any] = [torch_tensor.Replicate()] * len(names)
        for dim, axes in enumerate(self.used.axes):
            for name in axes:
                placements[names.index(name)] = torch_tensor.Shard(dim)
        return torch_tensor.DTensor.from_local(value, inner, placements, run_check=False)


class _Use(torch.autograd.Function):
    """The tensors that layers compute with, made from the rank's parts."""

    @staticmethod
    def forward(ctx: Any, unit: Unit, *kept: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.unit = unit
        ctx.set_materialize_grads(False)
        values = unit.gather(kept, sharded_usage.GATHERED)
        found = [value.view_as(value) if value is own else value for value, own in zip(values, kept, strict=True)]
        trained: Sequence[bool] = ctx.needs_input_grad[1:]
        ctx.mark_non_differentiable(*[value for value, trains in zip(found, trained, strict=True) if not trains])
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *slopes: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        trained: Sequence[bool] = ctx.needs_input_grad[1:]
        given = [slope if trains else None for slope, trains in zip(slopes, trained, strict=True)]
        return None, *(_reduce(ctx.unit, *given) if torch.is_grad_enabled() else ctx.unit.reduce(given))


_use: Final[Callable[..., tuple[torch.Tensor, ...]]] = _Use.apply


class _Reduce(torch.autograd.Function):
    """Gradients that are added up, and then differentiated again: for a penalty, the same in each rank."""

    @staticmethod
    def forward(ctx: Any, unit: Unit, *slopes: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        ctx.unit = unit
        ctx.set_materialize_grads(False)
        return tuple(unit.reduce(slopes))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *kept: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        return None, *ctx.unit.gather_some(kept)


_reduce: Final[Callable[..., tuple[torch.Tensor | None, ...]]] = _Reduce.apply


@dataclasses.dataclass(frozen=True)
class _Opened:
    """The state of a unit while it computes."""

    values: Mapping[int, torch.Tensor]
    """The tensors that layers compute with, by the ``id`` of the parameters."""
    has_history: bool
    """Whether they have a history, for gradients."""
    context: contextlib.ExitStack
    gathered: Sequence[torch.Tensor]
    versions: Sequence[int]
    """How often each of `gathered` had been written into."""
    kept: Mapping[int, tuple[int, int]]
    """How often each parameter, and this rank's part of it, had been written into, by the same ``id``."""


@final
class Unit:
    """Parameters that are put together in one message.

    Args:
        parameters: The stored parameters, and how each is kept.
        inner: The mesh of the axes along which layers compute with parts; None if there are none.
        meter: Counts the bytes.
        again: Holds parameters put together for the backward pass; without it, those of the forward pass are kept.
    """

    def __init__(
        self,
        parameters: Sequence[tuple[nn.Parameter, Part]],
        inner: object,
        meter: sharded_usage.Meter,
        again: Again | None = None,
    ) -> None:
        self._parameters = [parameter for parameter, _ in parameters]
        self._parts = [part for _, part in parameters]
        self._inner = inner
        self._meter = meter
        self._again = again
        self._open: list[_Opened] = []  # a unit may call itself

    def gather(self, kept: Sequence[torch.Tensor], purpose: str) -> list[torch.Tensor]:
        """Put parameters together.

        Args:
            kept: This rank's part of each.
            purpose: The meter's name for the purpose.
        """
        with self._meter.count(purpose):
            return backend.run_plans(kept, [(part.stored, part.used) for part in self._parts])

    def gather_some(self, kept: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """Put together the tensors that are there. Each rank's mean then covers the tensors of all ranks."""
        with self._meter.count(sharded_usage.GATHERED_AGAIN):
            return self._move(kept, lambda part: (part.stored, part.used))

    def _move(
        self,
        given: Sequence[torch.Tensor | None],
        choose: Callable[[Part], tuple[meshes.Layout, meshes.Layout]],
    ) -> list[torch.Tensor | None]:
        """Move tensors that belong to parameters, where there are any, from one layout to another."""
        there = [
            (one.contiguous(), choose(part)) for one, part in zip(given, self._parts, strict=True) if one is not None
        ]
        found = iter(backend.run_plans([one for one, _ in there], [pair for _, pair in there]))
        return [None if one is None else next(found) for one in given]

    def reduce(self, slopes: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """Return this rank's parts of the mean gradients over the whole batch."""
        if self._again is not None:
            self._again.forget(self)
        if any(slope is not None and slope.layout is not torch.strided for slope in slopes):
            raise NotImplementedError(
                "A parameter has a sparse gradient, which Sharded does not add up. Write sparse=False in Embedding and "
                "EmbeddingBag, or use ParameterServer(), in which large tables move by rows."
            )
        with self._meter.count(sharded_usage.REDUCED):
            totals = self._move(slopes, lambda part: (part.summed, part.stored))
        return [
            None if total is None else total.div(part.parts) for total, part in zip(totals, self._parts, strict=True)
        ]

    def gather_again(self) -> list[torch.Tensor]:
        """Put the parameters together for the backward pass."""
        parameters: list[Any] = self._parameters
        return self.gather([one.detach().to_local() for one in parameters], sharded_usage.GATHERED_AGAIN)

    def use(self) -> list[torch.Tensor]:
        """Return the tensors that layers compute with. They are kept until the backward pass."""
        values = self._gather_to_use()
        if self._inner is None:
            return values
        return [part.wrap(value, self._inner) for value, part in zip(values, self._parts, strict=True)]

    def _gather_to_use(self) -> list[torch.Tensor]:
        parameters: list[Any] = self._parameters
        kept = [parameter.to_local() for parameter in parameters]
        return list(_use(self, *kept)) if torch.is_grad_enabled() else self.gather(kept, sharded_usage.GATHERED)

    def find(self, parameter: nn.Parameter) -> torch.Tensor | None:
        """Return the tensor that layers compute with for a parameter; None if the unit does not compute now. None, too,
        if the parameter was written into since the unit began, as when a layer puts a mean into another's."""
        if not self._open:
            return None
        opened = self._open[-1]
        if torch.is_grad_enabled() > opened.has_history or _look_at_versions(parameter) != opened.kept[id(parameter)]:
            return None
        return opened.values[id(parameter)]

    # --- while its module computes ------------------------------------------------------------------------------------

    def build_begin(self) -> Callable[..., None]:
        """Return the hook before the module computes."""
        return lambda module, args: self._begin()

    def build_end(self) -> Callable[..., None]:
        """Return the hook after the module has computed or raised."""
        return lambda module, args, result: self._end(module)

    def _begin(self) -> None:
        if self._open and self._open[-1].has_history >= torch.is_grad_enabled():  # a call from within uses the same
            self._open.append(dataclasses.replace(self._open[-1], context=contextlib.ExitStack()))
            return
        if self._again is not None:
            self._again.forget(self)  # an optimizer may have stepped since
        context = contextlib.ExitStack()
        values = gathered = self._gather_to_use()
        kept = {id(parameter): _look_at_versions(parameter) for parameter in self._parameters}
        if self._inner is None and self._again is not None and not torch_internals.keeps_values():
            places = {
                value.untyped_storage().data_ptr(): number
                for number, (value, part) in enumerate(zip(values, self._parts, strict=True))
                if part.is_gathered and value.numel()  # tensors without elements have no address of their own
            }
            context.enter_context(self._gather_again(places, list(kept.values()), self._again))
        elif self._inner is not None:
            values = [part.wrap(value, self._inner) for value, part in zip(values, self._parts, strict=True)]
        found = {id(parameter): value for parameter, value in zip(self._parameters, values, strict=True)}
        self._open.append(
            _Opened(
                found,
                torch.is_grad_enabled(),
                context,
                gathered,
                [torch_internals.read_version(one) for one in gathered],
                kept,
            )
        )

    def _end(self, module: nn.Module) -> None:
        if not self._open:
            return
        opened = self._open.pop()
        opened.context.close()
        if [torch_internals.read_version(one) for one in opened.gathered] != opened.versions:
            raise RuntimeError(
                f"{type(module).__name__} wrote into its parameters while it computed. With Sharded a layer computes "
                "with temporary copies, so the change would be lost. Change parameters between steps, in the part that "
                "each rank keeps: parameter.to_local()."
            )

    def _gather_again(
        self, places: Mapping[int, int], versions: Sequence[tuple[int, int]], again: Again
    ) -> contextlib.AbstractContextManager[None]:
        """Return a context in which autograd saves no whole parameters. The backward pass puts them together again.

        Args:
            places: The number of each parameter, by the address of its whole tensor.
            versions: How often each parameter has been written into.
            again: Holds the parameters in the backward pass.
        """

        def pack(tensor: torch.Tensor) -> object:
            if isinstance(tensor, torch_tensor.DTensor):
                return tensor
            number = places.get(tensor.untyped_storage().data_ptr())  # also of a view, such as a transposed weight
            return tensor if number is None else (number, tensor.size(), tensor.stride(), tensor.storage_offset())

        @torch.no_grad()
        def unpack(packed: Any) -> torch.Tensor:
            if isinstance(packed, torch.Tensor):
                return packed
            number, *place = packed
            if _look_at_versions(self._parameters[number]) != versions[number]:
                raise RuntimeError(
                    "The parameters that the backward pass needs have changed since the forward pass, by an "
                    "optimizer's step or by hand. Call backward() before they change, or compute the loss again."
                )
            found: torch.Tensor = again.look_up(self)[number].as_strided(*place)
            return found

        return torch.autograd.graph.saved_tensors_hooks(pack, unpack)


@torch.no_grad()
def _look_at_versions(parameter: Any) -> tuple[int, int]:
    """Return how often a parameter was written into: by torch's functions, and directly in its local part."""
    return torch_internals.read_version(parameter), torch_internals.read_version(parameter.to_local())


@final
class Again:
    """The parameters of one unit at a time, put together for the backward pass that is under way."""

    def __init__(self) -> None:
        self._unit: Unit | None = None
        self._values: list[torch.Tensor] = []

    def look_up(self, unit: Unit) -> list[torch.Tensor]:
        """Return a unit's whole parameters. Put them together if they are not there."""
        if self._unit is not unit:
            self._unit, self._values = None, []  # releases the last unit's memory first
            self._values = unit.gather_again()
            self._unit = unit
        return self._values

    def forget(self, unit: Unit) -> None:
        """Release a unit's parameters, if they are there."""
        if self._unit is unit:
            self._unit, self._values = None, []


@final
class Units:
    """The units of a model, and for each parameter the tensor that layers compute with.

    Args:
        model: The model.
        parts: How each of its parameters is kept.
        inner: See `Unit`.
        meter: Counts the bytes.
        hooks: The model's hooks.
        limit: The most bytes of whole parameters in a unit.
    """

    def __init__(
        self,
        model: nn.Module,
        parts: Mapping[nn.Parameter, Part],
        inner: object,
        meter: sharded_usage.Meter,
        hooks: sharded_hooks.Hooks,
        limit: int,
    ) -> None:
        again = Again()
        self._alone = {id(one): Unit([(one, part)], inner, meter) for one, part in parts.items()}
        self._units: dict[int, list[Unit]] = {}
        plans = []
        for module, parameters in _split(model, limit):
            unit = Unit([(one, parts[one]) for one in parameters], inner, meter, None if module is model else again)
            for one in parameters:
                self._units.setdefault(id(one), []).append(unit)  # a tied parameter may be in several units
                plans.append(parts[one].list_plans(one))
            hooks.before(module, unit.build_begin())
            hooks.after(module, unit.build_end())
        plans += [part.list_plans(one) for one, part in parts.items() if id(one) not in self._units]
        meter.predict(list(parts), plans)

    def use(self, parameter: nn.Parameter) -> torch.Tensor | None:
        """Return the tensor that layers compute with for a stored parameter; None for any other tensor."""
        for unit in self._units.get(id(parameter), ()):
            found = unit.find(parameter)
            if found is not None:
                return found
        alone = self._alone.get(id(parameter))
        return None if alone is None else alone.use()[0]


def _split(model: nn.Module, limit: int) -> Iterator[tuple[nn.Module, list[nn.Parameter]]]:
    """Yield the modules that are units, with their parameters.

    Args:
        model: The model.
        limit: The most bytes of whole parameters in a unit of several modules.
    """
    waiting = [model]
    while waiting:
        module = waiting.pop()
        everything = list(module.parameters())
        is_called = type(module).forward is not nn.Module.forward  # not so a ModuleList: its hooks would not run
        fits = is_called and sum(one.numel() * one.element_size() for one in everything) <= limit
        own = everything if fits else list(module.parameters(recurse=False))
        if own and is_called:
            yield module, own
        if not fits:
            waiting += reversed(list(module.children()))
