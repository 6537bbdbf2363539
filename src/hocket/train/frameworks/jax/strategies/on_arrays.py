"""Drives any strategy in JAX on host arrays: the compiled step calls the host before and after the optimizer."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np

from hocket import ps
from hocket._base import texts
from hocket.train import strategies
from hocket.train.frameworks.jax import host_calls, trees
from hocket.train.frameworks.jax.strategies import averaging, strategy
from hocket.train.rank import worker_session
from hocket.train.strategies.strategy import Array

_GRADIENTS: Final = "hocket.train.jax.on_arrays.gradients"
_PARAMETERS: Final = "hocket.train.jax.on_arrays.parameters"


class OnArraysState(NamedTuple):
    """The state of an optimizer that was prepared with a strategy on host arrays.

    A pytree of arrays, to be saved like any other.
    """

    count: Any
    """The number of steps taken."""
    inner: object
    """The state of the user's optimizer; each rank has its own."""


@final
class TreeModel(strategies.HostModel):
    """Parameters that are on the host during a call.

    Args:
        arrays: Their values, which `write` changes in place.
        steps_taken: The number of steps that the optimizer has taken.
    """

    def __init__(self, arrays: Sequence[Array], steps_taken: int) -> None:
        self._arrays = arrays
        self._steps_taken = steps_taken

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The parameters' shapes."""
        return [array.shape for array in self._arrays]

    def read(self) -> list[Array]:
        """Return copies of the parameters, halves as float32."""
        return [np.array(array) for array in self._arrays]

    def write(self, arrays: Sequence[Array]) -> None:
        """Set the parameters."""
        strategies.check_shapes(arrays, self.shapes)
        for mine, array in zip(self._arrays, arrays, strict=True):
            mine[...] = array

    def list_rules(self) -> list[tuple[str, ps.Optimizer]]:
        """Refuse: an optimizer of optax is a function, which servers cannot apply."""
        raise strategy.build_conversion_error()

    @property
    def steps_taken(self) -> int:
        """The number of steps that the optimizer has taken."""
        return self._steps_taken


@final
class OnArrays(strategy.JaxStrategy):
    """A strategy at work on host arrays.

    Args:
        runtime: The strategy.
        name: Its name, for messages.
        ranks: The participants.

    Raises:
        ValueError: The strategy takes steps itself. It needs a learning rate, which optax does not expose.
    """

    def __init__(self, runtime: strategies.StrategyRuntime, name: str, ranks: strategies.Ranks) -> None:
        if runtime.takes_steps:
            raise ValueError(
                f"{name} takes steps in the optimizer's place and needs its learning rate, which optimizers of optax "
                "do not expose. Have the strategy average gradients, or return a JaxStrategy for JAX from its open()."
            )
        self._runtime = strategies.open_next(runtime)
        self._name = name
        self._changes_parameters = any(
            getattr(type(runtime), method) is not getattr(strategies.StrategyRuntime, method)
            for method in ("after_steps", "synchronize")
        )
        #: Whether the strategy looks at the parameters before the first step.
        self._looks_first = type(runtime).begin is not strategies.StrategyRuntime.begin
        self._has_begun = False
        _at_work[worker_session.get_session(f"jax.{name}")] = self
        host_calls.add_visitor(_GRADIENTS, _visit_gradients)
        host_calls.add_visitor(_PARAMETERS, _visit_parameters)

    def average(self, gradients: object, caller: str) -> object:
        if not self._runtime.averages_gradients:
            self.check_prepared(self._name, "the optimizer's step shows the strategy the parameters", caller)
        elif self._changes_parameters or self._looks_first:
            raise ValueError(
                f"{self._name} works on the parameters too, which {caller}() does not see. Give the optimizer to "
                "prepare_optimizer() and leave that call out."
            )
        return self._average(gradients)

    def adapt_optimizer(self, optimizer: Any) -> object:
        self.is_prepared = True

        def init(params: Any) -> OnArraysState:
            return OnArraysState(jnp.zeros((), jnp.int32), optimizer.init(params))

        def update(updates: object, state: OnArraysState, params: object = None, **extra: Any) -> object:
            if not isinstance(state, OnArraysState):
                raise ValueError(
                    f"{self._name} needs the state of a prepared optimizer, but received {texts.name_kind(state)}. "
                    "Write optimizer = prepare_optimizer(optimizer), and make the state with optimizer.init(params)."
                )
            if params is None and (self._changes_parameters or self._looks_first):
                raise ValueError(
                    f"{self._name} works on the parameters, but optimizer.update() was called without them. Write "
                    "optimizer.update(gradients, state, params)."
                )
            steps, inner = optimizer.update(self._average(updates, state.count, params), state.inner, params, **extra)
            state = OnArraysState(state.count + 1, inner)
            if not self._changes_parameters:
                return steps, state
            moved = jax.tree.map(lambda param, step: jnp.asarray(param + step, param.dtype), params, steps)
            common = self._travel(_PARAMETERS, moved, state.count, params)
            return jax.tree.map(averaging.find_step, params, common, steps), state

        return optimizer._replace(init=init, update=update)

    def synchronize(self, params: object, state: object) -> tuple[object, object]:
        if not self._changes_parameters:
            return params, state
        return self._travel(_PARAMETERS, params, jnp.zeros((), jnp.int32), params), state

    def close(self) -> None:
        jax.effects_barrier()
        self._runtime.close()

    # --- in the program -----------------------------------------------------------------------------------------------

    def _average(self, gradients: object, count: object = None, params: object = None) -> object:
        if not self._runtime.averages_gradients:
            return gradients
        if self._looks_first and params is not None:
            return self._travel(_GRADIENTS, gradients, count, params)
        return self._travel(_GRADIENTS, gradients)

    def _travel(self, visitor: str, tree: object, count: object = None, before: object = None) -> object:
        """Return a tree with its floats changed by the host.

        Args:
            visitor: The name of the function that changes them there.
            tree: The tree whose floats travel.
            count: The number of steps taken by then; 0 between steps. None if the host need not know.
            before: The parameters before the step. They travel to the host only.
        """
        leaves, values, structure = trees.list_leaves(tree, "prepare_optimizer")
        chosen = [number for number, value in enumerate(values) if trees.is_inexact(value)]
        sent, names = [values[number] for number in chosen], [leaves[number] for number in chosen]
        if count is not None:
            old = jax.tree.leaves(before)
            sent += [*(old[number] for number in chosen), jnp.asarray(count, jnp.int32)]
            names += [*(trees.Leaf(f"before {one.name}", one.shape, one.dtype) for one in names), _COUNT]
        found = host_calls.visit(sent, names, "prepare_optimizer", visitor)
        for number, new in zip(chosen, found, strict=False):
            values[number] = new.astype(values[number].dtype)
        return jax.tree_util.tree_unflatten(structure, values)

    # --- on the host --------------------------------------------------------------------------------------------------

    def visit_gradients(self, arrays: Sequence[tuple[trees.Leaf, Array]]) -> None:
        """Replace this rank's gradients by those of all ranks."""
        given, before, count = _unpack(arrays)
        self._begin(before, count)
        parts = [array for _, array in given]
        flat = strategies.flatten_gradients(parts)
        strategies.average(self._runtime, flat, 1.0)
        for part, new in zip(parts, strategies.unflatten(flat[:-1], [part.shape for part in parts]), strict=True):
            part[...] = new

    def visit_parameters(self, arrays: Sequence[tuple[trees.Leaf, Array]]) -> None:
        """Replace the parameters by those that the strategy makes of them."""
        given, before, count = _unpack(arrays)
        self._begin(before, max(0, count - 1))
        model = TreeModel([array.reshape(leaf.shape) for leaf, array in given], count)
        if count:
            self._runtime.after_steps(model, 1)
        else:
            self._runtime.synchronize(model)

    def _begin(self, before: Sequence[Array], count: int) -> None:
        """Show the strategy the parameters before its first step, once they have arrived."""
        if before and not self._has_begun:
            self._has_begun = True
            self._runtime.begin(TreeModel(before, count))


def _unpack(
    arrays: Sequence[tuple[trees.Leaf, Array]],
) -> tuple[Sequence[tuple[trees.Leaf, Array]], Sequence[Array], int]:
    """Return the arrays that travel back, the parameters before the step if they came too, and the number of steps
    taken by then."""
    if arrays[-1][0] != _COUNT:
        return arrays, (), 0
    *given, (_, counted) = arrays
    half = len(given) // 2
    return given[:half], [array.reshape(leaf.shape) for leaf, array in given[half:]], int(counted[0])


_COUNT: Final = trees.Leaf("the number of the step", (), "int32")

_at_work: weakref.WeakKeyDictionary[worker_session.WorkerSession, OnArrays] = weakref.WeakKeyDictionary()


def _visit_gradients(arrays: Sequence[tuple[trees.Leaf, Array]]) -> None:
    _at_work[worker_session.get_session("jax.prepare_optimizer")].visit_gradients(arrays)


def _visit_parameters(arrays: Sequence[tuple[trees.Leaf, Array]]) -> None:
    _at_work[worker_session.get_session("jax.prepare_optimizer")].visit_parameters(arrays)
