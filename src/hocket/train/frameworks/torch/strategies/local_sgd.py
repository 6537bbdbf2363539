"""Local SGD in PyTorch: the ranks step on their own, and meet now and then.

`hocket.train.strategies.local_sgd` describes a meeting.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any, Final, final

import torch

from hocket.train import strategies
from hocket.train.frameworks.torch.strategies import averaging, closures, strategy

STATE_KEY: Final = "hocket.local_sgd"
"""The key of the meetings' state in an optimizer's ``state_dict``. Other strategies, and plain torch, ignore it."""


@final
class TorchLocalSGD(strategy.TorchStrategy):
    """`LocalSGD` at work. Each optimizer has `_Meetings`, which use a hook before a step to see closures."""

    needs_optimizer = True
    shares_gradients = False

    def __init__(self, settings: strategies.LocalSGD, ranks: strategies.Ranks) -> None:
        self._settings = settings
        self._ranks = ranks
        self._models: list[torch.nn.Module] = []
        self._meetings: dict[torch.optim.Optimizer, _Meetings] = {}

    def adapt_model(
        self, model: torch.nn.Module, parallel_strategy: str, options: Mapping[str, object], device: torch.device
    ) -> torch.nn.Module:
        strategy.require_whole("LocalSGD", "a whole model in each rank and wraps none", parallel_strategy, options)
        if self._ranks.world_size > 1:
            averaging.copy_from_first(itertools.chain(model.parameters(), model.buffers()))
        self._models.append(model)
        return model

    @property
    def alike(self) -> strategies.Alike:
        is_met = all(meetings.is_over for meetings in self._meetings.values())
        return strategies.Alike.PARAMETERS if is_met else strategies.Alike.NOTHING

    def adapt_optimizer(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        mine = set(list_parameters(optimizer))
        models = [model for model in self._models if not mine.isdisjoint(model.parameters())]
        if not mine <= {parameter for model in models for parameter in model.parameters()}:
            raise ValueError(
                "LocalSGD averages parameters of prepared models, but prepare_optimizer() received an optimizer of "
                "other parameters. Call model = prepare_model(model) first, and make the optimizer from the returned "
                "model's parameters."
            )
        self._meetings[optimizer] = _Meetings(optimizer, models, self._settings, self._ranks.world_size)
        return optimizer

    def owns(self, optimizer: torch.optim.Optimizer) -> bool:
        return any(one.outer is optimizer for one in self._meetings.values())

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        self._meetings[optimizer].after_step()

    def synchronize(self) -> None:
        for meetings in self._meetings.values():
            meetings.meet_if_apart()

    def close(self) -> None:
        for meetings in self._meetings.values():
            meetings.close()
        self._meetings.clear()
        self._models.clear()


def _build_outer(
    outer: strategies.Nesterov | Callable[[list[Any]], Any], tensors: list[torch.Tensor]
) -> torch.optim.Optimizer:
    if isinstance(outer, strategies.Nesterov):
        return torch.optim.SGD(tensors, lr=outer.lr, momentum=outer.momentum, nesterov=True)
    made: torch.optim.Optimizer = outer(tensors)
    return made


def list_parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Return the parameters that an optimizer changes, in its order."""
    return [p for p in _list_all(optimizer) if p.requires_grad]


def _list_all(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


@final
class _Meetings:
    """The counter of an optimizer's steps. It makes the ranks meet."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        models: list[torch.nn.Module],
        settings: strategies.LocalSGD,
        world_size: int,
    ) -> None:
        self._optimizer = optimizer
        self._models = models
        self._settings = settings
        self._world_size = world_size
        #: The parameters that are known to have begun equal in all ranks.
        self._seen = set(list_parameters(optimizer))
        self._count = 0
        #: The number of steps since the last meeting, which each rank took by itself.
        self._apart = 0
        #: The parameters that those steps have changed; some may be frozen by now.
        self._moved: set[torch.Tensor] = set()
        #: Whether the models may differ: by those steps, or in their buffers.
        self._may_differ = False
        #: By parameter, the ranks' last common values, as wide as their mean; empty without an outer optimizer.
        self._anchors: dict[torch.Tensor, torch.Tensor] = {}
        #: How many anchors the outer optimizer got together, each time.
        self._added: list[int] = []
        self.outer: torch.optim.Optimizer | None = None
        #: The loaded state that waits for the anchors.
        self._loaded: Mapping[str, object] | None = None
        self._hooks = [
            optimizer.register_state_dict_post_hook(self._add_state),
            optimizer.register_load_state_dict_pre_hook(self._take_state),
            optimizer.register_step_pre_hook(self._begin_step),
        ]

    @property
    def is_over(self) -> bool:
        """Whether each rank has taken no step by itself since the last meeting."""
        return not self._apart

    def _begin_step(self, optimizer: torch.optim.Optimizer, args: tuple[object, ...], kwargs: dict[str, object]) -> Any:
        """Begin a step: return new arguments for it, or None. Called before ``step``."""
        new = [one for one in list_parameters(optimizer) if one not in self._seen]
        if new and self._world_size > 1:
            averaging.require_equal(new, "parameters that were added later")
        self._seen.update(new)
        self._moved.update(one for one in _list_all(optimizer) if one.requires_grad or one.grad is not None)
        if self._count >= self._settings.begin_after:
            if self._settings.outer is not None:
                self._drop_anchors()
            return None
        closure = closures.get_optional_closure(args, kwargs)
        if closure is None:
            self._average_gradients()
            return None

        def compute() -> object:
            loss = closure()
            self._average_gradients()
            device = list_parameters(optimizer)[0].device
            return closures.average_loss(loss, device, self._world_size)

        return closures.replace_closure(args, kwargs, compute)

    def after_step(self) -> None:
        self._count += 1
        self._may_differ = True
        if self._count <= self._settings.begin_after:
            return
        self._apart += 1
        if self._apart == self._settings.sync_every:
            self._meet()

    def meet_if_apart(self) -> None:
        if self._may_differ:
            self._meet()

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def _average_gradients(self) -> None:
        parameters = list_parameters(self._optimizer)
        averaging.average_gradients(parameters, [True] * len(parameters), self._world_size)

    @torch.no_grad()
    def _drop_anchors(self) -> None:
        """Keep the value of each parameter that has no anchor yet: before the first step, and for parameters added
        later. If the program has set a parameter since a meeting, its anchor begins anew."""
        if self._loaded is not None:
            self._restore_outer(self._loaded)
            self._loaded = None
        missing = [p for p in _list_all(self._optimizer) if p in self._moved and p not in self._anchors]
        if missing:
            self._add_anchors(missing)
        for parameter, anchor in self._anchors.items() if not self._apart else ():
            if not torch.equal(anchor.to(parameter.dtype), parameter):
                anchor.copy_(parameter)

    def _add_anchors(self, parameters: list[torch.Tensor]) -> None:
        added = {p: p.detach().to(averaging.widen(p.dtype), copy=True) for p in parameters}
        self._anchors.update(added)
        self._added.append(len(added))
        if self.outer is None:
            assert self._settings.outer is not None, "anchors are for the outer optimizer"
            self.outer = _build_outer(self._settings.outer, list(added.values()))
        else:
            self.outer.add_param_group({"params": list(added.values())})

    @torch.no_grad()
    def _meet(self) -> None:
        parameters = [p for p in _list_all(self._optimizer) if p in self._moved]
        buffers = [buffer for model in self._models for buffer in model.buffers()]
        inexact = [buffer for buffer in buffers if buffer.is_floating_point() or buffer.is_complex()]
        means = averaging.compute_means([*parameters, *inexact], self._world_size)
        if self.outer is not None:
            self._step_outer(parameters, means)
            means[: len(parameters)] = [self._anchors[parameter] for parameter in parameters]
        for tensor, mean in zip([*parameters, *inexact], means, strict=True):
            tensor.copy_(mean)
        if self._world_size > 1:
            averaging.copy_from_first(b for b in buffers if not (b.is_floating_point() or b.is_complex()))
        self._apart, self._may_differ = 0, False
        self._moved.clear()

    def _step_outer(self, parameters: list[torch.Tensor], means: list[torch.Tensor]) -> None:
        assert self.outer is not None, "there is nothing to step"
        for parameter, mean in zip(parameters, means, strict=False):
            anchor = self._anchors[parameter]
            anchor.grad = anchor - mean
        self.outer.step()
        self.outer.zero_grad()

    # --- checkpoints ------------------------------------------------------------------------------------------------

    def _add_state(self, optimizer: torch.optim.Optimizer, state: dict[str, object]) -> None:
        mine: dict[str, object] = {"count": self._count, "apart": self._apart}
        if self.outer is not None:
            mine["outer"] = self.outer.state_dict()
            mine["anchors"] = list(self._anchors.values()) if self._apart else None  # otherwise they equal the weights
            places = {p: place for place, p in enumerate(_list_all(optimizer))}
            if all(p in places for p in self._anchors):
                rest = iter(self._anchors)
                mine["added"] = [[places[p] for p in itertools.islice(rest, count)] for count in self._added]
        elif self._loaded is not None and self._settings.outer is not None:
            mine |= {key: self._loaded[key] for key in ("outer", "anchors", "added") if key in self._loaded}
        state[STATE_KEY] = mine

    def _take_state(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        mine = state.get(STATE_KEY)
        if mine is None:
            return
        self._count, self._apart = mine["count"], mine["apart"]
        self._may_differ = False  # all ranks load the same
        self._moved.clear()
        self._anchors, self._added, self.outer = {}, [], None  # the weights are loaded too, before or after this
        self._loaded = mine

    def _restore_outer(self, state: Mapping[str, Any]) -> None:
        """Give the outer optimizer its former parameters, in the order in which it got them, and its state."""
        if "outer" not in state:
            return
        parameters = _list_all(self._optimizer)
        for places in state.get("added") or ():
            self._add_anchors([parameters[place] for place in places])
        if self.outer is None:  # an earlier version saved the state
            self._add_anchors(list_parameters(self._optimizer))
        assert self.outer is not None, "the anchors are there"
        self.outer.load_state_dict(state["outer"])
        for anchor, saved in zip(self._anchors.values(), state.get("anchors") or (), strict=False):
            anchor.copy_(saved)
