"""DistributedDataParallel around a model that changes, or is not always called through the wrapper.

torch's wrapper averages the gradients of the parameters that were trainable when it was made, in the first backward
pass after each forward pass through it. Otherwise each rank silently trains by itself: with a layer that is unfrozen,
appended, replaced or tied later, a loss through ``model.module``, a second backward pass, or a step whose backward
passes were all in ``no_sync``. And the wrapper waits for layers that are frozen later. Two rules correct this:

- Before a forward pass the wrapper is made again, in place, if the model's trainable parameters have changed. All of
  its parameters begin equal then, as at first.
- A gradient from any other backward pass is averaged when that pass ends; in ``no_sync``, before the step. A mean that
  all ranks already have does not change by that.

The program decides both, and does the same in all ranks. A rank that does something else comes alone to a collective,
which ends in an error.
"""

from __future__ import annotations

import inspect
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, final

import torch
from torch.nn import parallel

from hocket._base.internals import torch as torch_internals
from hocket.train.frameworks.torch.strategies import averaging

_BUFFERS: Final = (
    "forward_sync_buffers"
    if "forward_sync_buffers" in inspect.signature(parallel.DistributedDataParallel).parameters  # new in torch 2.13
    else "broadcast_buffers"
)


@final
class Wrapper:
    """A model's wrapper, and the parameters that it covers.

    Args:
        model: The model.
        options: Options of DistributedDataParallel.
        compress: Called with the wrapper each time it is made.
        world_size: The number of ranks.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        options: Mapping[str, Any],
        compress: Callable[[parallel.DistributedDataParallel], None],
        world_size: int,
    ) -> None:
        self.shares_buffers = all(options.get(name) in (None, True) for name in {_BUFFERS, "broadcast_buffers"})
        """Whether all ranks have rank 0's buffers after each forward pass that trains."""
        if self.shares_buffers:  # torch would do so only before the next forward pass
            options = {**options, "broadcast_buffers": None, _BUFFERS: False}
        self._options = options
        self._compress = compress
        self._world_size = world_size
        self.generation = 0
        """How often the wrapper was made again."""
        self._covered: dict[torch.nn.Parameter, str] = {}
        self._dropped: list[weakref.ref[torch.nn.Parameter]] = []
        self._hooks: list[Any] = []
        #: Whether the wrapper averages the next backward pass.
        self._armed = False
        #: The parameters whose gradients are the mean of all ranks.
        self._reduced: set[torch.nn.Parameter] = set()
        #: The parameters whose gradients have a part that is this rank's own.
        self._own: set[torch.nn.Parameter] = set()
        #: Whether a backward pass since the last step was in `no_sync`.
        self._has_kept = False
        self._is_queued = False
        self._has_looked = False
        self.wrapped: Final = parallel.DistributedDataParallel(model, **options)
        self._follow()
        self._closing = [self.wrapped.register_forward_pre_hook(_BeforeForward(self), prepend=True)]
        if self.shares_buffers:
            averaging.copy_from_first(model.buffers())
            self._closing.append(averaging.share_buffers(self.wrapped))

    def close(self) -> None:
        """Release the model."""
        for hook in [*self._hooks, *self._closing]:
            hook.remove()

    # --- the covered parameters ---------------------------------------------------------------------------------------

    def _list_trainable(self) -> dict[torch.nn.Parameter, str]:
        ignored = self.wrapped.parameters_to_ignore
        named = self.wrapped.module.named_parameters()
        return {one: name for name, one in named if one.requires_grad and name not in ignored}

    def list_ignored(self) -> set[torch.nn.Parameter]:
        """Return the parameters that the user wants left alone."""
        ignored: Iterable[str] = self.wrapped.parameters_to_ignore
        return {one for name, one in self.wrapped.module.named_parameters() if name in ignored} if ignored else set()

    def covers(self, parameter: torch.Tensor) -> bool:
        """Return whether the wrapper averages a parameter's gradients."""
        return parameter in self._covered

    def _follow(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._covered = self._list_trainable()
        covered: list[Any] = [*self._covered]  # torch does not type the next method
        self._hooks = [one.register_post_accumulate_grad_hook(self._take_gradient) for one in covered]
        self._reduced.clear()
        self._compress(self.wrapped)

    def begin_forward(self, wrapped: parallel.DistributedDataParallel) -> None:
        """Prepare for a forward pass through the wrapper, or through a copy of it."""
        if wrapped is not self.wrapped or not torch.is_grad_enabled():
            return
        syncs = wrapped.require_backward_grad_sync
        if wrapped.static_graph and not syncs:
            raise ValueError(
                "no_sync() does not work with parallel_strategy_kwargs={'static_graph': True}: torch expects each "
                "backward pass to average the gradients. Leave static_graph out."
            )
        trainable = self._list_trainable()
        if trainable and [*map(id, trainable)] != [
            *map(id, self._covered)
        ]:  # torch copes with a model that is all frozen
            self._make_again()
        self._armed = syncs
        self._reduced.clear()

    def _make_again(self) -> None:
        wrapped = self.wrapped
        there = set(wrapped.module.parameters())
        self._dropped += [weakref.ref(one) for one in self._covered if one not in there]
        kept = {name: value for name, value in vars(wrapped).items() if name.endswith("_hooks")}
        kept |= {name: getattr(wrapped, name) for name in ("training", "require_backward_grad_sync")}
        wrapped.__init__(wrapped.module, **self._options)  # type: ignore[misc]  # in place: programs have it
        vars(wrapped).update(kept)
        self.generation += 1
        self._follow()

    # --- gradients ----------------------------------------------------------------------------------------------------

    def _take_gradient(self, parameter: torch.nn.Parameter) -> None:
        """Note that a backward pass has added to a parameter's gradient."""
        if self._armed and parameter not in self._reduced:
            if not self._reduced and self.wrapped.find_unused_parameters:
                torch_internals.call_after_backward(self._await_means)
            self._reduced.add(parameter)
            self._own.discard(parameter)
            return
        self._own.add(parameter)
        if not self.wrapped.require_backward_grad_sync:
            self._has_kept = True
        elif not self._is_queued:
            self._is_queued = True
            torch_internals.call_after_backward(self._end_backward)

    def _await_means(self) -> None:
        """Wait, at the end of a backward pass, until torch's wrapper has put the means into place."""
        torch_internals.call_after_backward(self._note_means)

    def _note_means(self) -> None:
        """Note that layers have the mean too if only another rank has used them."""
        self._reduced.update(one for one in self._covered if one.grad is not None)

    def _end_backward(self) -> None:
        self._is_queued = False
        self.average()
        if self.shares_buffers and self.wrapped.training:  # the forward pass was not through the wrapper
            averaging.copy_from_first(buffer.data for buffer in self.wrapped.module.buffers())

    def average(self, *, is_due: bool = False) -> None:
        """Average the gradients that have a part of this rank's own.

        Args:
            is_due: Whether another rank may have such a part even if this one has none.
        """
        if self._own or is_due:
            own, covered = self._own, list(self._covered)
            self._own = set()
            self._reduced.update(
                averaging.average_gradients(covered, [one in own for one in covered], self._world_size)
            )

    def begin_step(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Make an optimizer step parameters with the mean of all ranks' gradients, even of gradients that a
        program has written itself."""
        self._check_finished()
        self._look_for_hooks()
        mine = [one for one in parameters if one in self._covered]
        self._own.update(one for one in mine if one.grad is not None and one not in self._reduced)
        # The layers that no_sync has left to the step may differ between ranks.
        self.average(is_due=self._has_kept and self.wrapped.find_unused_parameters)
        self._has_kept = False
        self._reduced.difference_update(mine)  # their gradients at the next step are no longer this mean

    def _look_for_hooks(self) -> None:
        """Warn at the first step of hooks on gradients, which see one rank's."""
        found = (
            ()
            if self._has_looked
            else [name for one, name in self._covered.items() if torch_internals.has_hooks(one, own=1)]
        )
        self._has_looked = True
        if found:
            warnings.warn(
                f"There are hooks on the gradients of {_list_names(found)}. As with DistributedDataParallel, a hook "
                "sees the gradient of its rank, before the mean over the ranks. A hook that does more than scale or "
                "mask it, such as a clamp or an optimizer's step, trains a different model than one process would. "
                "Change gradients between backward() and step(), when they are the mean, or train with "
                "Sharded(shard_along='data'), where hooks see the mean.",
                stacklevel=2,
            )

    def _check_finished(self) -> None:
        """Raise if an optimizer is about to step before the wrapper has averaged all gradients."""
        if not (self._armed and self._reduced):
            return
        self._armed = False
        try:
            torch_internals.check_reduced(self.wrapped)
        except RuntimeError as error:
            missing = [name for one, name in self._covered.items() if one not in self._reduced]
            raise RuntimeError(
                f"The forward pass has not used the layers of {_list_names(missing)} in this rank, so the gradients "
                "were not averaged. Write prepare_model(model, parallel_strategy_kwargs={'find_unused_parameters': "
                "True}) if ranks or steps use different layers, or freeze unused parameters with requires_grad_(False)."
            ) from error

    def check_current(self, parameters: Sequence[torch.Tensor], optimizer: str) -> None:
        """Raise if an optimizer has parameters that the model has lost, and lacks some that took their place."""
        gone = [one for one in (ref() for ref in self._dropped) if one is not None]
        mine = {id(one) for one in parameters}
        if not any(id(one) in mine for one in gone):
            return
        lacking = [name for one, name in self._covered.items() if id(one) not in mine and one.grad is not None]
        if lacking:
            raise RuntimeError(
                f"The model now has {_list_names(lacking)} in place of parameters that this {optimizer} still steps, "
                "so the new ones would not be trained. Make the optimizer after the model was changed, or call its "
                "add_param_group()."
            )


@final
class _BeforeForward:
    """A hook of a wrapper. Copies of the wrapper share it; pickles have a hook that does nothing."""

    def __init__(self, wrapper: Wrapper | None) -> None:
        self._wrapper = wrapper

    @torch_internals.skip_compiler
    def __call__(self, wrapped: parallel.DistributedDataParallel, args: object) -> None:
        if self._wrapper is not None:
            self._wrapper.begin_forward(wrapped)

    def __deepcopy__(self, memo: object) -> _BeforeForward:
        return self

    def __reduce__(self) -> tuple[type[_BeforeForward], tuple[None]]:
        return _BeforeForward, (None,)


def _list_names(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names[:4]) + (f" and {len(names) - 4} more" if names[4:] else "")
