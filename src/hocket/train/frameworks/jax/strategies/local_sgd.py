"""Local SGD in JAX, as `hocket.train.strategies.local_sgd` describes it: an optax optimizer around the user's.

The optimizer's state counts the steps, and the count is equal in all ranks. It decides whether the ranks meet after a
step, so the meeting is a branch of the compiled program. An optimizer returns updates, not parameters. So at a meeting
it returns the difference between the rank's parameters and the common ones, corrected once for the rounding of the sum.
The error that is left is less than the last digit of the step; `synchronize` leaves none.
"""

from __future__ import annotations

from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp

from hocket._base import texts
from hocket.train import strategies
from hocket.train.frameworks.jax import host_calls, trees
from hocket.train.frameworks.jax.strategies import averaging, strategy


class LocalSGDState(NamedTuple):
    """The state of an optimizer that was prepared with `LocalSGD`. A pytree of arrays, to be saved like any other."""

    count: Any
    """The number of steps taken."""
    apart: Any
    """The number of steps since the last meeting, which each rank took by itself."""
    anchors: object
    """The last parameters that the ranks had in common, as wide as their mean; empty without an outer optimizer."""
    velocity: object
    """The outer optimizer's momentum; empty without an outer optimizer."""
    inner: Any
    """The state of the user's optimizer; each rank has its own."""


@final
class JaxLocalSGD(strategy.JaxStrategy):
    """`LocalSGD` at work in JAX. It keeps no state; see `LocalSGDState`."""

    def __init__(self, settings: strategies.LocalSGD, ranks: strategies.Ranks) -> None:
        outer = settings.outer
        if not (outer is None or isinstance(outer, strategies.Nesterov)):
            raise TypeError(
                f"In JAX, LocalSGD's outer optimizer must be a Nesterov, but received {outer!r}. Write "
                "outer=Nesterov(lr=0.7, momentum=0.9)."
            )
        self._outer: strategies.Nesterov | None = outer
        self._settings = settings
        self._world_size = ranks.world_size

    def average(self, gradients: object, caller: str) -> Any:
        self.check_prepared("LocalSGD", "the ranks meet in the optimizer's step", caller)
        if self._settings.begin_after:
            raise ValueError(
                f"With LocalSGD(begin_after={self._settings.begin_after}) the ranks share gradients in the first steps "
                f"alone, and {caller}() does not know the number of the step. Leave it out, since the prepared "
                "optimizer averages them; or leave begin_after out."
            )
        return gradients

    def adapt_optimizer(self, optimizer: Any) -> Any:
        self.is_prepared = True

        def init(params: object) -> LocalSGDState:
            anchors, velocity = (), ()
            if self._outer is not None:
                anchors = jax.tree.map(_copy_wide, params)
                velocity = jax.tree.map(jnp.zeros_like, anchors)
            zero = jnp.zeros((), jnp.int32)
            return LocalSGDState(zero, jnp.zeros((), jnp.int32), anchors, velocity, optimizer.init(params))

        def update(updates: object, state: LocalSGDState, params: object = None, **extra: object) -> Any:
            _check_state(state)
            if params is None:
                raise ValueError(
                    "LocalSGD averages parameters, but optimizer.update() was called without them. Write "
                    "optimizer.update(gradients, state, params)."
                )
            early = state.count < self._settings.begin_after
            if self._settings.begin_after:
                losses = averaging.pick_losses(extra, self._world_size)
                updates, losses = jax.lax.cond(early, self._average, lambda tree: tree, (updates, losses))
                extra.update(losses)
            steps, inner = optimizer.update(updates, state.inner, params, **extra)
            if self._outer is not None:  # the anchors are the parameters before the ranks' own steps
                is_first = state.count <= self._settings.begin_after
                anchors = jax.tree.map(
                    lambda anchor, param: jnp.where(is_first, param.astype(anchor.dtype), anchor), state.anchors, params
                )
                state = state._replace(anchors=anchors)
            state = state._replace(
                count=state.count + 1, apart=jnp.where(early, 0, state.apart + 1).astype(jnp.int32), inner=inner
            )

            def meet(steps: object, state: LocalSGDState) -> object:
                moved = jax.tree.map(lambda param, step: jnp.asarray(param + step, param.dtype), params, steps)
                common, state = self._meet(moved, state)
                found = jax.tree.map(averaging.find_step, params, common, steps)
                return found, state

            return jax.lax.cond(
                state.apart >= self._settings.sync_every, meet, lambda steps, state: (steps, state), steps, state
            )

        return optimizer._replace(init=init, update=update)

    def synchronize(self, params: object, state: object) -> tuple[Any, Any]:
        found = [
            one for one in jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, LocalSGDState)) if _is_ours(one)
        ]
        if len(found) != 1:
            _check_state(state)
        common, met = jax.lax.cond(found[0].apart > 0, self._meet, self._settle, params, found[0])
        whole = jax.tree.map(
            lambda node: met if _is_ours(node) else node, state, is_leaf=lambda node: isinstance(node, LocalSGDState)
        )
        return common, whole

    def _average(self, tree: object) -> object:
        return averaging.compute_means(tree, self._world_size, "prepare_optimizer")

    def _compute_mean(self, params: object) -> object:
        wide = jax.tree.map(
            lambda param: param.astype(host_calls.widen(param.dtype)) if trees.is_inexact(param) else param, params
        )
        return averaging.compute_means(wide, self._world_size, "prepare_optimizer", floats_only=False)

    def _settle(self, params: object, state: LocalSGDState) -> tuple[object, LocalSGDState]:
        """Return the common parameters if no rank has stepped since the last meeting: only last digits differ."""
        common = self._compute_mean(params)
        return jax.tree.map(lambda param, mean: mean.astype(param.dtype), params, common), state

    def _meet(self, params: object, state: LocalSGDState) -> tuple[object, LocalSGDState]:
        """Return the common parameters, and take the outer step."""
        common = self._compute_mean(params)
        if self._outer is not None:
            lr, momentum = self._outer.lr, self._outer.momentum
            slope = jax.tree.map(lambda anchor, mean: anchor - mean.astype(anchor.dtype), state.anchors, common)
            velocity = jax.tree.map(lambda old, new: momentum * old + new, state.velocity, slope)
            common = jax.tree.map(
                lambda anchor, new, old: anchor - lr * (new + momentum * old), state.anchors, slope, velocity
            )
            state = state._replace(anchors=common, velocity=velocity)
        common = jax.tree.map(lambda param, mean: mean.astype(param.dtype), params, common)
        return common, state._replace(apart=jnp.zeros((), jnp.int32))


def _is_ours(node: object) -> bool:
    return isinstance(node, LocalSGDState)


def _check_state(state: object) -> None:
    if not _is_ours(state):
        raise ValueError(
            f"LocalSGD needs the state of a prepared optimizer, but received {texts.name_kind(state)}. Write "
            "optimizer = prepare_optimizer(optimizer), and make the state with optimizer.init(params); a checkpoint "
            "of another strategy has another state."
        )


def _copy_wide(param: object) -> object:
    array = jnp.asarray(param)
    return jnp.array(array, host_calls.widen(array.dtype), copy=True)
