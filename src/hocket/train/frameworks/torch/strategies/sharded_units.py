"""Units: modules whose parameters `sharded` puts together in one message, and whose gradients it adds up in one.

A message has a cost of its own, so small layers share one. A unit is a module whose parameters, with those of all
modules in it, take no more bytes than a limit when they are whole; or a larger module with its own parameters alone.
While it computes, what all of them compute with is there; after it, only what this rank keeps.

What was put together is given up after the unit and put together again when the backward pass needs the first of it;
unless the unit is the whole model, which the backward pass begins with. If someone else keeps what the backward pass
needs (activation checkpointing, which computes the unit again; or moves to other memory), they have it.
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
    """How a parameter is kept, and what layers compute with."""

    stored: meshes.Layout
    used: meshes.Layout
    """Whole along the batch's axes."""
    batch_dims: tuple[str, ...]
    parts: int
    """How many parts the batch has."""

    @property
    def summed(self) -> meshes.Layout:
        """How a gradient is spread before it is added up."""
        return self.used.with_partial(self.batch_dims)

    @property
    def is_gathered(self) -> bool:
        return self.stored != self.used

    def list_plans(self, parameter: torch.Tensor) -> list[relayouts.Plan]:
        """Return how a parameter is put together where a unit uses it, and how its gradient is added up, if at all."""
        gather, reduce = spreading.plan_traffic(
            self.stored, self.batch_dims, tuple(parameter.shape), parameter.element_size()
        )
        return [gather, reduce] if parameter.requires_grad else [gather]

    def wrap(self, value: torch.Tensor, inner: Any) -> torch.Tensor:
        """Return what a rank has of a parameter as a DTensor on the axes along which layers compute with parts."""
        names = inner.mesh_dim_names
        placements: list[Any] = [torch_tensor.Replicate()] * len(names)
        for dim, axes in enumerate(self.used.axes):
            for name in axes:
                placements[names.index(name)] = torch_tensor.Shard(dim)
        return torch_tensor.DTensor.from_local(value, inner, placements, run_check=False)


class _Use(torch.autograd.Function):
    """The tensors that layers compute with, made of those that the rank keeps."""

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
    """Gradients added up, where what comes of them is differentiated again: a penalty, the same in each rank."""

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
    """The state while a unit computes."""

    values: Mapping[int, torch.Tensor]
    """What layers compute with, by the numbers of the parameters as objects."""
    has_history: bool
    """Whether it was put together for gradients."""
    context: contextlib.ExitStack
    gathered: Sequence[torch.Tensor]
    versions: Sequence[int]
    """How often each had been written into."""
    kept: Mapping[int, tuple[int, int]]
    """How often what the rank keeps had been written into, by the same numbers."""


@final
class Unit:
    """Parameters that are put together in one message.

    Args:
        parameters: As they are kept, and how.
        inner: The mesh of the axes along which layers compute with parts; None if there are none.
        meter: What counts the bytes.
        again: Where what is put together for the backward pass is kept; without it, that of the forward pass is.
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
        self._open: list[_Opened] = []  # it may call itself

    def gather(self, kept: Sequence[torch.Tensor], purpose: str) -> list[torch.Tensor]:
        """Put parameters together.

        Args:
            kept: What this rank keeps of each.
            purpose: What for, as the meter knows it.
        """
        with self._meter.count(purpose):
            return backend.run_plans(kept, [(part.stored, part.used) for part in self._parts])

    def gather_some(self, kept: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """Put those that are there together; each rank's mean is then of what all of them have."""
        with self._meter.count(sharded_usage.GATHERED_AGAIN):
            return self._move(kept, lambda part: (part.stored, part.used))

    def _move(
        self,
        given: Sequence[torch.Tensor | None],
        choose: Callable[[Part], tuple[meshes.Layout, meshes.Layout]],
    ) -> list[torch.Tensor | None]:
        """Move what belongs to parameters, where there is something, from one layout to another."""
        there = [
            (one.contiguous(), choose(part)) for one, part in zip(given, self._parts, strict=True) if one is not None
        ]
        found = iter(backend.run_plans([one for one, _ in there], [pair for _, pair in there]))
        return [None if one is None else next(found) for one in given]

    def reduce(self, slopes: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """Return what this rank keeps of the mean gradients over the whole batch."""
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
        """Return what layers compute with; it is kept until the backward pass."""
        values = self._gather_to_use()
        if self._inner is None:
            return values
        return [part.wrap(value, self._inner) for value, part in zip(values, self._parts, strict=True)]

    def _gather_to_use(self) -> list[torch.Tensor]:
        parameters: list[Any] = self._parameters
        kept = [parameter.to_local() for parameter in parameters]
        return list(_use(self, *kept)) if torch.is_grad_enabled() else self.gather(kept, sharded_usage.GATHERED)

    def find(self, parameter: nn.Parameter) -> torch.Tensor | None:
        """Return what layers compute with for a parameter, if the unit computes now; else None. None, too, if the
        parameter was written into since the unit began, as a layer may do with a mean of another one's."""
        if not self._open:
            return None
        opened = self._open[-1]
        if torch.is_grad_enabled() > opened.has_history or _look_at_versions(parameter) != opened.kept[id(parameter)]:
            return None
        return opened.values[id(parameter)]

    # --- while its module computes ------------------------------------------------------------------------------------

    def build_begin(self) -> Callable[..., None]:
        """Return what is called before the module computes."""
        return lambda module, args: self._begin()

    def build_end(self) -> Callable[..., None]:
        """Return what is called after it, also if it has raised."""
        return lambda module, args, result: self._end(module)

    def _begin(self) -> None:
        if self._open and self._open[-1].has_history >= torch.is_grad_enabled():
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
                if part.is_gathered and value.numel()  # without elements it lies nowhere, as others do
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
                f"{type(module).__name__} has written into its parameters while it computed. With Sharded it computes "
                "with copies, put together for the moment, so that would be lost. Write into them between steps, into "
                "what each rank keeps: parameter.to_local()."
            )

    def _gather_again(
        self, places: Mapping[int, int], versions: Sequence[tuple[int, int]], again: Again
    ) -> contextlib.AbstractContextManager[None]:
        """Keep nothing of what was put together for the backward pass, which puts it together again.

        Args:
            places: The number of the parameter, by where what was put together of it lies.
            versions: How often each parameter has been written into.
            again: Where it is kept then.
        """

        def pack(tensor: torch.Tensor) -> object:
            if isinstance(tensor, torch_tensor.DTensor):
                return tensor
            number = places.get(tensor.untyped_storage().data_ptr())
            return tensor if number is None else (number, tensor.size(), tensor.stride(), tensor.storage_offset())

        @torch.no_grad()
        def unpack(packed: Any) -> torch.Tensor:
            if isinstance(packed, torch.Tensor):
                return packed
            number, *place = packed
            if _look_at_versions(self._parameters[number]) != versions[number]:
                raise RuntimeError(
                    "The parameters that the backward pass needs have changed since the forward pass, by an optimizer's"
                    " step or by hand. Call backward() before, or compute the loss again."
                )
            found: torch.Tensor = again.look_up(self)[number].as_strided(*place)
            return found

        return torch.autograd.graph.saved_tensors_hooks(pack, unpack)


@torch.no_grad()
def _look_at_versions(parameter: Any) -> tuple[int, int]:
    """Return how often a parameter was written into, by torch's functions and by hand."""
    return torch_internals.read_version(parameter), torch_internals.read_version(parameter.to_local())


@final
class Again:
    """The parameters put together for the backward pass that is under way: of one unit at a time."""

    def __init__(self) -> None:
        self._unit: Unit | None = None
        self._values: list[torch.Tensor] = []

    def look_up(self, unit: Unit) -> list[torch.Tensor]:
        """Return what was put together of a unit, which is done if it was not."""
        if self._unit is not unit:
            self._unit, self._values = None, []  # before there is more
            self._values = unit.gather_again()
            self._unit = unit
        return self._values

    def forget(self, unit: Unit) -> None:
        """Keep what there is of a unit no longer."""
        if self._unit is unit:
            self._unit, self._values = None, []


@final
class Units:
    """The units of a model, and for each parameter what layers compute with.

    Args:
        model: The model.
        parts: How each of its parameters is kept.
        inner: As of a unit.
        meter: What counts the bytes.
        hooks: The model's hooks.
        limit: How many bytes of whole parameters a unit has, at most.
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
                self._units.setdefault(id(one), []).append(unit)
                plans.append(parts[one].list_plans(one))
            hooks.before(module, unit.build_begin())
            hooks.after(module, unit.build_end())
        plans += [part.list_plans(one) for one, part in parts.items() if id(one) not in self._units]
        meter.predict(list(parts), plans)

    def use(self, parameter: nn.Parameter) -> torch.Tensor | None:
        """Return what layers compute with for a parameter as it is kept; for another one None."""
        for unit in self._units.get(id(parameter), ()):
            found = unit.find(parameter)
            if found is not None:
                return found
        alone = self._alone.get(id(parameter))
        return None if alone is None else alone.use()[0]


def _split(model: nn.Module, limit: int) -> Iterator[tuple[nn.Module, list[nn.Parameter]]]:
    """Give the modules that are units, with their parameters.

    Args:
        model: The model.
        limit: How many bytes of whole parameters a unit of several modules has, at most.
    """
    waiting = [model]
    while waiting:
        module = waiting.pop()
        everything = list(module.parameters())
        is_called = type(module).forward is not nn.Module.forward
        fits = is_called and sum(one.numel() * one.element_size() for one in everything) <= limit
        own = everything if fits else list(module.parameters(recurse=False))
        if own and is_called:
            yield module, own
        if not fits:
            waiting += reversed(list(module.children()))
