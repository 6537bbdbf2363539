"""Loops as the guides of JAX, Flax and Optax write them, for two ranks and for one process with the whole batch.

Each program gets a `Kit` and returns arrays. In the ranks the kit prepares optimizers and shares rows out; in the
process of rank 0 it leaves them as they are and has all rows.
"""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from flax.training import dynamic_scale, train_state

from hocket.train import jax as hocket_jax
from hocket.train.rank import world

ROWS: Final = 64
WHOLE: Final = 16


@dataclass
class Kit:
    """What a program trains with."""

    rank: int | None
    """None: one process, nothing prepared."""

    def prepare(self, optimizer: Any) -> Any:
        return optimizer if self.rank is None else hocket_jax.prepare_optimizer(optimizer)

    def share(self, params: Any) -> Any:
        return params if self.rank is None else hocket_jax.prepare_params(params)

    def average(self, tree: Any) -> Any:
        return tree if self.rank is None else hocket_jax.average_gradients(tree)

    def batches(self) -> list[tuple[Any, Any]]:
        x = np.random.default_rng(0).normal(size=(ROWS, 6)).astype("float32")
        y = x.sum(axis=1, keepdims=True)
        half = WHOLE // 2
        found = []
        for first in range(0, ROWS, WHOLE):
            start = first if self.rank is None else first + self.rank * half
            part = slice(start, start + (WHOLE if self.rank is None else half))
            found.append((jnp.asarray(x[part]), jnp.asarray(y[part])))
        return found


Program = Callable[[Kit], Sequence[Any]]
PROGRAMS: Final[dict[str, Program]] = {}
REFUSED: Final[dict[str, str]] = {}
"""Programs that ranks refuse in the first step, and what the error says."""


def guide(program: Program) -> Program:
    PROGRAMS[program.__name__] = program
    return program


def refused(message: str) -> Callable[[Program], Program]:
    def note(program: Program) -> Program:
        REFUSED[program.__name__] = message
        return guide(program)

    return note


def compare() -> Mapping[str, tuple[Any, list[Any]]]:
    """A training function: return what one process and the ranks make of the programs."""
    joined = world.get_world("jax.guides")
    alone = {
        name: run(Kit(None), name) if joined.rank == 0 else None for name in PROGRAMS
    }  # before anything is prepared
    return {name: (alone[name], joined.all_gather_object(run(Kit(joined.rank), name))) for name in PROGRAMS}


def run(kit: Kit, name: str) -> Any:
    try:
        return [np.asarray(one, np.float64) for one in jax.tree.leaves(PROGRAMS[name](kit))]
    except Exception:  # noqa: BLE001 (the text is what is looked at)
        return traceback.format_exc()


def make_params() -> Any:
    return {"kernel": jnp.linspace(-1, 1, 6)[:, None], "bias": jnp.zeros(1)}


def find_loss(params: Any, x: Any, y: Any) -> Any:
    return jnp.mean(jnp.square(x @ params["kernel"] + params["bias"] - y))


def train(kit: Kit, optimizer: Any, wrap: Callable[[Any], Any] | None = None) -> Sequence[Any]:
    """Train with a jitted step; `wrap` puts something of Optax around the prepared optimizer."""
    optimizer = kit.prepare(optimizer)
    if wrap is not None:
        optimizer = wrap(optimizer)
    params = kit.share(make_params())
    state = optimizer.init(params)

    @jax.jit
    def step(params: Any, state: Any, x: Any, y: Any) -> Any:
        updates, state = optimizer.update(jax.grad(find_loss)(params, x, y), state, params)
        return optax.apply_updates(params, updates), state

    for _ in range(2):
        for x, y in kit.batches():
            params, state = step(params, state, x, y)
    return [params, [one for one in jax.tree.leaves(state) if jnp.issubdtype(one.dtype, jnp.number)]]


@guide
def adam(kit: Kit) -> Sequence[Any]:
    return train(kit, optax.adam(0.1))


@guide
def a_chain_that_clips(kit: Kit) -> Sequence[Any]:
    return train(kit, optax.chain(optax.clip_by_global_norm(0.1), optax.adamw(0.1, weight_decay=0.01)))


@guide
def something_behind_a_prepared_one(kit: Kit) -> Sequence[Any]:
    return train(kit, optax.sgd(0.1), lambda prepared: optax.chain(prepared, optax.clip(0.01)))


@refused(r"Prepare the outermost optimizer: prepare_optimizer\(optax.chain\(")
def something_that_clips_before_a_prepared_one(kit: Kit) -> Sequence[Any]:
    return train(kit, optax.sgd(0.1), lambda prepared: optax.chain(optax.clip_by_global_norm(0.1), prepared))


@guide
def steps_that_accumulate(kit: Kit) -> Sequence[Any]:
    return train(kit, optax.MultiSteps(optax.adam(0.1), every_k_schedule=2))


@guide
def steps_that_accumulate_around_a_prepared_one(kit: Kit) -> Sequence[Any]:
    # what is accumulated between two steps is of the rank's own rows
    params, _ = train(kit, optax.adam(0.1), lambda prepared: optax.MultiSteps(prepared, 2).gradient_transformation())
    return [params]


@guide
def a_mask(kit: Kit) -> Sequence[Any]:
    return train(kit, optax.masked(optax.sgd(0.1, momentum=0.9), {"kernel": True, "bias": False}))


@guide
def an_optimizer_for_each_part(kit: Kit) -> Sequence[Any]:
    parts = {"fast": optax.adam(0.1), "slow": optax.sgd(0.01)}
    return train(kit, optax.multi_transform(parts, {"kernel": "fast", "bias": "slow"}))


@guide
def prepared_ones_for_each_part(kit: Kit) -> Sequence[Any]:
    params = kit.share(make_params())
    parts = {"fast": kit.prepare(optax.adam(0.1)), "slow": kit.prepare(optax.sgd(0.01))}
    optimizer = optax.multi_transform(parts, {"kernel": "fast", "bias": "slow"})
    state = optimizer.init(params)
    for x, y in kit.batches():
        updates, state = optimizer.update(jax.grad(find_loss)(params, x, y), state, params)
        params = optax.apply_updates(params, updates)
    return [params]


@guide
def a_schedule_that_is_injected(kit: Kit) -> Sequence[Any]:
    return train(kit, optax.inject_hyperparams(optax.adam)(learning_rate=optax.cosine_decay_schedule(0.1, 8)))


@guide
def parameters_averaged_over_time(kit: Kit) -> Sequence[Any]:
    params = kit.share(make_params())
    optimizer, ema = kit.prepare(optax.sgd(0.1)), optax.ema(0.9)
    state, kept = optimizer.init(params), ema.init(params)
    means: list[Any] = []
    for x, y in kit.batches():
        updates, state = optimizer.update(jax.grad(find_loss)(params, x, y), state, params)
        params = optax.apply_updates(params, updates)
        mean, kept = ema.update(params, kept)
        means.append(mean)
    return [params, means]


@guide
def steps_of_a_scan(kit: Kit) -> Sequence[Any]:
    optimizer, params = kit.prepare(optax.adam(0.1)), kit.share(make_params())
    xs, ys = (jnp.stack(parts) for parts in zip(*kit.batches(), strict=True))

    @jax.jit
    def run(params: Any, state: Any) -> Any:
        def step(carry: Any, batch: Any) -> Any:
            params, state = carry
            loss, gradients = jax.value_and_grad(find_loss)(params, *batch)
            updates, state = optimizer.update(gradients, state, params)
            return (optax.apply_updates(params, updates), state), loss

        return jax.lax.scan(step, (params, state), (xs, ys))[0]

    return list(run(params, optimizer.init(params)))


@guide
def models_side_by_side(kit: Kit) -> Sequence[Any]:
    """An ensemble, with vmap over parameters, state and steps."""
    optimizer = kit.prepare(optax.adam(0.1))
    many = kit.share(jax.tree.map(lambda one: jnp.stack([one, 2 * one, one + 1]), make_params()))
    state = jax.vmap(optimizer.init)(many)

    def step(params: Any, state: Any, x: Any, y: Any) -> Any:
        updates, state = optimizer.update(jax.grad(find_loss)(params, x, y), state, params)
        return optax.apply_updates(params, updates), state

    steps = jax.jit(jax.vmap(step, in_axes=(0, 0, None, None)))
    for x, y in kit.batches():
        many, state = steps(many, state, x, y)
    return [many]


@guide
def a_step_outside_of_jit(kit: Kit) -> Sequence[Any]:
    params = kit.share(make_params())
    for x, y in kit.batches():
        gradients = kit.average(jax.grad(find_loss)(params, x, y))
        params = jax.tree.map(lambda param, gradient: param - 0.1 * gradient, params, gradients)
    return [params]


def overflow(batches: list[tuple[Any, Any]], kit: Kit) -> list[tuple[Any, Any]]:
    """Have the gradients of one row of the second batch overflow: in the ranks, one of rank 1's."""
    if kit.rank != 0:
        x, y = batches[1]
        batches[1] = (x.at[-1].set(1e30), y)
    return batches


@guide
def a_scale_of_flax(kit: Kit) -> Sequence[Any]:
    state = train_state.TrainState.create(
        apply_fn=None, params=kit.share(make_params()), tx=kit.prepare(optax.sgd(0.1, momentum=0.9))
    )
    scale = dynamic_scale.DynamicScale(growth_interval=2, scale=1024.0)

    @jax.jit
    def step(state: Any, scale: Any, x: Any, y: Any) -> Any:
        scale, finite, _, gradients = scale.value_and_grad(find_loss)(state.params, x, y)
        new = state.apply_gradients(grads=gradients)
        select = functools.partial(jnp.where, finite)
        return new.replace(
            params=jax.tree.map(select, new.params, state.params),
            opt_state=jax.tree.map(select, new.opt_state, state.opt_state),
        ), scale

    for x, y in overflow(kit.batches(), kit):
        state, scale = step(state, scale, x, y)
    return [state.params, state.opt_state, scale.scale, scale.fin_steps]


@guide
def steps_left_out(kit: Kit) -> Sequence[Any]:
    optimizer, params = kit.prepare(optax.apply_if_finite(optax.adam(0.1), 5)), kit.share(make_params())
    state = optimizer.init(params)
    for x, y in overflow(kit.batches(), kit):
        updates, state = optimizer.update(jax.grad(find_loss)(params, x, y), state, params)
        params = optax.apply_updates(params, updates)
    return [params, state.notfinite_count, state.total_notfinite]


@refused(r"prepare_optimizer\(optax.apply_if_finite\(")
def steps_left_out_around_a_prepared_one(kit: Kit) -> Sequence[Any]:
    return train(kit, optax.adam(0.1), lambda prepared: optax.apply_if_finite(prepared, 5))


@refused(r"Prepare the outermost optimizer: prepare_optimizer\(optax.chain\(")
def accumulated_steps_left_out_around_a_prepared_one(kit: Kit) -> Sequence[Any]:
    def wrap(prepared: Any) -> Any:
        return optax.MultiSteps(prepared, 2, should_skip_update_fn=optax.skip_not_finite).gradient_transformation()

    return train(kit, optax.adam(0.1), wrap)


class Net(nn.Module):  # type: ignore[misc]  # Flax is not type-checked
    @nn.compact
    def __call__(self, x: Any, train: bool) -> Any:
        x = nn.Dense(4, kernel_init=nn.initializers.ones)(x * jnp.arange(6))
        x = nn.BatchNorm(use_running_average=not train, use_fast_variance=False)(x)
        return nn.Dense(1, kernel_init=nn.initializers.constant(0.3))(x)


@guide
def statistics_of_batches(kit: Kit) -> Sequence[Any]:
    """The ranks normalise by their own rows, so only they are compared; the running statistics are averaged."""
    net = Net()
    variables = kit.share(net.init(jax.random.key(0), jnp.zeros((1, 6)), train=False))
    optimizer = kit.prepare(optax.sgd(0.01))
    params, stats = variables["params"], variables["batch_stats"]
    state = optimizer.init(params)

    @jax.jit
    def step(params: Any, stats: Any, state: Any, x: Any, y: Any) -> Any:
        def compute(params: Any) -> Any:
            out, new = net.apply({"params": params, "batch_stats": stats}, x, train=True, mutable=["batch_stats"])
            return jnp.mean(jnp.square(out - y)), new["batch_stats"]

        gradients, new = jax.grad(compute, has_aux=True)(params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), kit.average(new), state

    for x, y in kit.batches():
        params, stats, state = step(params, stats, state, x, y)
    return [params, stats]


@guide
def modules_of_nnx(kit: Kit) -> Sequence[Any]:
    model = nnx.Linear(6, 1, rngs=nnx.Rngs(0))
    nnx.update(model, kit.share(nnx.state(model)))
    optimizer = nnx.Optimizer(model, kit.prepare(optax.adam(0.1)), wrt=nnx.Param)

    @nnx.jit
    def step(model: Any, optimizer: Any, x: Any, y: Any) -> None:
        gradients = nnx.grad(lambda model: jnp.mean(jnp.square(model(x) - y)))(model)
        optimizer.update(model, gradients)

    for x, y in kit.batches():
        step(model, optimizer, x, y)
    return [nnx.state(model)]
