"""Parameter servers in JAX: an optimizer's ``update`` pushes to the servers, and returns the step to the parameters
that they have then. See `hocket.train.strategies.ps_client`.

The optimizer decides which process computes the step:

- Servers apply an optimizer of `hocket.ps`. They keep its momentum and the like, once for all ranks.
- An optimizer of optax is a function that only the rank can run. The rank computes a step, with a state of its own, and
  the servers add the step up.

``init`` puts the parameters on the servers; pass it the initial ones. ``update`` calls the host
once, in the middle of the compiled step (`host_calls`). When it ends a step it begins the next, because a JAX program
does not say when it uses parameters.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from hocket import ps
from hocket._base import texts
from hocket.train import strategies
from hocket.train.frameworks.jax import host_calls, trees
from hocket.train.frameworks.jax.strategies import averaging, strategy
from hocket.train.rank import worker_session
from hocket.train.strategies import parameter_server, ps_client

_CALLER: Final = "prepare_optimizer"
_VISITOR: Final = "hocket.train.jax.parameter_server"

_COUNT: Final = trees.Leaf("the number of the step", (), "int32")
_SQUARES: Final = "the sums of the parameters' squares"


class ParameterServerState(NamedTuple):
    """The state of an optimizer that was prepared with `ParameterServer`.

    A pytree of arrays, to be saved like any other.
    """

    count: Any
    """The number of steps taken."""
    inner: object
    """The state of an optimizer of optax, each rank's own; empty for an optimizer that the servers apply."""


class ServerOptimizer(NamedTuple):
    """The result of `prepare_optimizer` for an optimizer of `hocket.ps`, with the methods of an optax optimizer."""

    init: Any
    update: Any


_exchanges: weakref.WeakKeyDictionary[worker_session.WorkerSession, JaxParameterServer] = weakref.WeakKeyDictionary()


@final
class JaxParameterServer(strategy.JaxStrategy):
    def __init__(self, settings: parameter_server.OpenParameterServer, ranks: strategies.Ranks) -> None:
        self._client = ps_client.open_client(settings, "jax.JaxTrainer")
        self._made: dict[str, Any] = {}
        """The variables on the servers, by the leaves' names."""
        self._pulled = ps_client.PulledWeights("Train changed weights in a trainer of their own")
        _exchanges[worker_session.get_session("jax.JaxTrainer")] = self
        host_calls.add_visitor(_VISITOR, _visit)

    def average(self, gradients: object, caller: str) -> Any:
        self.check_prepared("ParameterServer", "the optimizer's step pushes the gradients to the servers", caller)
        return gradients

    def adapt_optimizer(self, optimizer: Any) -> Any:
        self.is_prepared = True

        def update(updates: object, state: ParameterServerState, params: Any = None, **extra: object) -> Any:
            _check(state, params)
            steps, inner = optimizer.update(updates, state.inner, params, **extra)
            return self._step(jax.tree.map(_negate, steps), params, state._replace(inner=inner))

        def init(params: object) -> ParameterServerState:
            self._make(params, ps.SGD(lr=1.0))  # the servers only add up the rank's steps
            return ParameterServerState(jnp.zeros((), jnp.int32), optimizer.init(params))

        return optimizer._replace(init=init, update=update)

    def adapt_server_optimizer(self, optimizer: ps.Optimizer) -> Any:
        self.is_prepared = True

        def update(updates: object, state: ParameterServerState, params: object = None, **_: object) -> object:
            _check(state, params)
            return self._step(updates, params, state)

        def init(params: object) -> ParameterServerState:
            self._make(params, optimizer)
            return ParameterServerState(jnp.zeros((), jnp.int32), ())

        update.is_prepared = True  # type: ignore[attr-defined]  # as `prepare_optimizer` notes
        return ServerOptimizer(init, update)

    def synchronize(self, params: object, state: object) -> tuple[Any, Any]:
        """Return the servers' current parameters."""
        leaves, values, structure = trees.list_leaves(params, "synchronize")
        if any(isinstance(value, jax.core.Tracer) for value in values):
            raise TypeError(
                "With ParameterServer synchronize() reads from the servers, which compiled code cannot do. Call it "
                "outside of jax.jit."
            )
        jax.block_until_ready((params, state))  # the step that computes them must have pushed
        self._pulled.forget()
        found = [
            jnp.asarray(self._client.read(self._made[leaf.name]), value.dtype) if leaf.name in self._made else value
            for leaf, value in zip(leaves, values, strict=True)
        ]
        return jax.tree_util.tree_unflatten(structure, found), state

    def close(self) -> None:
        jax.effects_barrier()
        self._client.close()

    # --- inside the program -----------------------------------------------------------------------------------------

    def _step(self, gradients: object, params: object, state: ParameterServerState) -> object:
        leaves, values, structure = trees.list_leaves(gradients, _CALLER)
        targets = jax.tree.leaves(params)
        chosen = [number for number, value in enumerate(values) if trees.is_inexact(value)]
        count = jnp.asarray(state.count + 1, jnp.int32)
        squares = jnp.stack([_sum_squares(targets[number]) for number in chosen]) if chosen else jnp.zeros(0)
        *pulled, _, _ = host_calls.visit(
            [*(values[number] for number in chosen), squares, count],
            [*(leaves[number] for number in chosen), trees.Leaf(_SQUARES, squares.shape, "float32"), _COUNT],
            _CALLER,
            _VISITOR,
        )
        for number, new in zip(chosen, pulled, strict=True):
            values[number] = averaging.find_step(targets[number], new.astype(targets[number].dtype), values[number])
        return jax.tree_util.tree_unflatten(structure, values), state._replace(count=count)

    # --- on the host ------------------------------------------------------------------------------------------------

    def _make(self, params: object, optimizer: ps.Optimizer) -> None:
        leaves, values, _ = trees.list_leaves(params, "init")
        if any(isinstance(value, jax.core.Tracer) for value in values):
            raise TypeError(
                "With ParameterServer optimizer.init(params) puts the parameters on servers, which compiled code "
                "cannot do. Call it outside of jax.jit."
            )
        if self._made:
            raise ValueError(
                "With ParameterServer optimizer.init(params) was called a second time in this training function. "
                "Prepare one optimizer, for one tree of parameters."
            )
        for leaf, value in zip(leaves, values, strict=True):
            if trees.is_inexact(value):
                array = np.asarray(value)
                wide = array.astype(jnp.dtype(host_calls.widen(array.dtype)))
                self._made[leaf.name] = self._client.make_variable(leaf.name or "params", wide, optimizer)
        self._client.enter_early()

    def take_step(self, arrays: Sequence[tuple[trees.Leaf, npt.NDArray[Any]]]) -> None:
        """Push gradients, and replace them by the parameters that the servers have then."""
        *gradients, (_, squares), (_, count) = arrays
        if not self._made:
            raise ValueError(
                "With ParameterServer the servers must have the parameters before the first step. Call "
                "optimizer.init(params) with the parameters that training begins with, even if you then replace its "
                "result by a checkpoint's state."
            )
        targets = [self._made[leaf.name] for leaf, _ in gradients]
        for target, found in zip(targets, squares.reshape(-1), strict=True):
            self._pulled.check(target.name, float(found))
        pushed = [
            ps_client.Gradient(target, array.reshape(target.shape))
            for target, (_, array) in zip(targets, gradients, strict=True)
        ]
        self._client.push(int(count[0]), pushed)
        self._client.pass_turn()
        self._client.enter_early()
        for target, (_, array) in zip(targets, gradients, strict=True):
            self._client.read(target, array.reshape(target.shape))
            self._pulled.note(target.name, array)


def _visit(arrays: Sequence[tuple[trees.Leaf, npt.NDArray[Any]]]) -> None:
    _exchanges[worker_session.get_session("jax.prepare_optimizer")].take_step(arrays)


def _check(state: object, params: object) -> None:
    if not isinstance(state, ParameterServerState):
        raise ValueError(
            f"ParameterServer needs the state of a prepared optimizer, but received {texts.name_kind(state)}. Write "
            "optimizer = prepare_optimizer(optimizer), and make the state with optimizer.init(params); a checkpoint "
            "of another strategy has another state."
        )
    if params is None:
        raise ValueError(
            "ParameterServer pulls parameters, but optimizer.update() was called without them. Write "
            "optimizer.update(gradients, state, params)."
        )


def _sum_squares(param: Any) -> Any:
    """Return the sum of a parameter's squared elements; NaN for halves, which are rounded, and complex numbers."""
    if str(param.dtype) not in ("float32", "float64"):
        return jnp.float32(jnp.nan)
    return jnp.sum(jnp.square(param)).astype(jnp.float32)


def _negate(step: Any) -> object:
    return -step if hasattr(step, "dtype") and trees.is_inexact(step) else step
