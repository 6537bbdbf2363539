"""The functions that a training function calls between the gradients and the step."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from hocket import ps
from hocket.collective import arithmetic
from hocket.train import strategies
from hocket.train.frameworks.jax import framework, host_calls, trees


def average_gradients(gradients: object) -> Any:
    """Return the mean of all ranks' gradients, in each rank. Works inside `jax.jit`, where it belongs, and outside.

    For programs that take steps themselves; with optax, use `prepare_optimizer`. It can average any value that a step
    must share, such as running statistics. All ranks must call it in the same order, inside a program and outside.

    With `LocalSGD` and `ParameterServer` ranks share no gradients: the rank gets its own back, and the prepared
    optimizer does the rest. With `Sharded` the ranks compute one program, whose gradients come from all rows already.

    A rank should compute on one device. Gradients of halves (bfloat16, float16) are added up as float32.

    Args:
        gradients: A pytree of float arrays, with the same structure, shapes and dtypes in all ranks.

    Raises:
        TypeError: A leaf is no array of floats.
        ValueError: The trainer's strategy works in the optimizer, and none was prepared.
        RuntimeError: The caller is outside a training function.

    Example:
        >>> import tempfile, jax, jax.numpy as jnp
        >>> from hocket import train
        >>> from hocket.train.jax import JaxTrainer, average_gradients
        >>> def train_loop():
        ...     compute = jax.jit(lambda x: average_gradients({"w": jax.grad(jnp.sum)(x)}))
        ...     return compute(jnp.zeros(2))["w"].tolist()
        >>> JaxTrainer(
        ...     train_loop,
        ...     scaling_config=train.ScalingConfig(num_workers=0),
        ...     run_config=train.RunConfig(storage_path=tempfile.mkdtemp()),
        ... ).fit().return_value
        [1.0, 1.0]
    """
    return framework.FRAMEWORK.get_state("average_gradients").average(gradients, "average_gradients")


def prepare_optimizer(optimizer: Any) -> Any:
    """Return an optimizer whose updates go through the trainer's strategy.

    With `AllReduce` it averages the gradients before the optimizer sees them, and its state is the optimizer's own.
    With `LocalSGD` the ranks meet in its ``update``, which then needs the parameters. So it must be the outermost
    optimizer: prepare a chain, and do not chain a prepared optimizer. With `ParameterServer` the same holds, and
    ``init`` must be called with the parameters that training begins with, outside `jax.jit`.

    Args:
        optimizer: A gradient transformation of optax, or a named tuple like it, with ``init`` and ``update``. With
            `ParameterServer` also an optimizer of `hocket.ps`, which the servers apply.

    Raises:
        TypeError: `optimizer` is no such object.
        ValueError: It is prepared already.
        RuntimeError: The caller is outside a training function.

    Example:
        >>> import tempfile, jax, jax.numpy as jnp, optax
        >>> from hocket import train
        >>> from hocket.train.jax import JaxTrainer, prepare_optimizer, prepare_params
        >>> def train_loop():
        ...     optimizer = prepare_optimizer(optax.adam(0.1))
        ...     params = prepare_params(jnp.array(1.0))
        ...     state = optimizer.init(params)
        ...     @jax.jit
        ...     def step(params, state):
        ...         updates, state = optimizer.update(jax.grad(jnp.square)(params), state, params)
        ...         return optax.apply_updates(params, updates), state
        ...     params, state = step(params, state)
        ...     return round(float(params), 3)
        >>> JaxTrainer(
        ...     train_loop,
        ...     scaling_config=train.ScalingConfig(num_workers=0),
        ...     run_config=train.RunConfig(storage_path=tempfile.mkdtemp()),
        ... ).fit().return_value
        0.9
    """
    exchange = framework.FRAMEWORK.get_state("prepare_optimizer")
    _join_scales()
    if isinstance(optimizer, ps.Optimizer):
        return exchange.adapt_server_optimizer(optimizer)
    if not hasattr(optimizer, "_replace") and callable(getattr(optimizer, "gradient_transformation", None)):
        optimizer = optimizer.gradient_transformation()  # optax.MultiSteps itself is no transformation
    init, update = getattr(optimizer, "init", None), getattr(optimizer, "update", None)
    if not (callable(init) and callable(update) and hasattr(optimizer, "_replace")):
        raise TypeError(
            f"prepare_optimizer() takes a gradient transformation of optax, but received {optimizer!r}. Write "
            "prepare_optimizer(optax.adam(1e-3)); a program that takes steps without an optimizer calls "
            "average_gradients(gradients)."
        )
    if getattr(update, "is_prepared", False):
        raise ValueError(
            "prepare_optimizer() received an optimizer that is prepared already. Prepare it once, and use the returned "
            "optimizer."
        )
    prepared = exchange.adapt_optimizer(optimizer)

    def update_first(updates: Any, state: Any, params: Any = None, **extra: Any) -> Any:
        _check_first()
        return prepared.update(updates, state, params, **extra)

    update_first.is_prepared = True  # type: ignore[attr-defined]
    return prepared._replace(update=update_first)


def _check_first() -> None:
    """Raise if optax has used this rank's own gradients before a prepared optimizer averages them."""
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("optax", "jax"):
        name, known = frame.f_globals["__name__"], frame.f_locals
        chained = known.get("update_fns")
        is_later = chained is not None and "fn" in known and known["fn"] is not chained[0]
        skips = getattr(known.get("self"), "_should_skip_update_fn", None)  # of optax.MultiSteps
        may_skip = skips is not None and not getattr(skips, "__qualname__", "").startswith("MultiSteps.")  # its default
        if is_later or may_skip or name.endswith("._conditionality"):
            raise ValueError(
                f"optax ({frame.f_code.co_qualname}) called a prepared optimizer after a transformation that sees the "
                "gradients of this rank alone, so each rank would clip differently, or skip different steps. Prepare "
                "the outermost optimizer: prepare_optimizer(optax.chain(...)), "
                "prepare_optimizer(optax.apply_if_finite(...))."
            )
        frame = frame.f_back
    _join_scales(is_late=True)


def _join_scales(*, is_late: bool = False) -> None:
    """Make Flax's `DynamicScale`, if it is imported, decide for all ranks together whether gradients are finite."""
    module = sys.modules.get("flax.training.dynamic_scale")
    if module is None or hasattr(module.DynamicScale.value_and_grad, "is_joint"):
        return
    original = module.DynamicScale.value_and_grad

    @functools.wraps(original)
    def value_and_grad(self: Any, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        compute = original(self, *args, **kwargs)

        def compute_jointly(*given: Any) -> Any:
            result = compute(*given)
            state = framework.FRAMEWORK.get_optional_state()
            if state is None or strategies.Alike.OPTIMIZERS not in state.alike:
                return result
            mine = jnp.asarray(result.finite, jnp.float32)
            leaf = trees.Leaf("finite", (), "float32")
            ours = host_calls.all_reduce([mine], [leaf], "DynamicScale", arithmetic.ReduceOp.MIN)[0] > 0
            overflown = original(self, lambda value: value * jnp.nan)(jnp.float32(0)).dynamic_scale
            scale = jax.tree.map(lambda good, bad: jnp.where(ours, good, bad), result.dynamic_scale, overflown)
            return result._replace(dynamic_scale=scale, finite=ours)

        return compute_jointly

    value_and_grad.is_joint = True  # type: ignore[attr-defined]
    module.DynamicScale.value_and_grad = value_and_grad
    if is_late:
        raise RuntimeError(
            "flax.training.dynamic_scale was imported after prepare_optimizer(), so each rank would decide by itself "
            "whether its gradients are finite. Import it before prepare_optimizer()."
        )
