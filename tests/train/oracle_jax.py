"""Optimizers of Optax on random small models: in ranks by way of a trainer, and in one process without one.

Some models are one tree of parameters, and `optax.partition` gives each its own optimizer: so one compiled step trains
them all. How long XLA compiles grows faster than the program, so there are several such trees.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import optax

from hocket.train import collective, strategies
from hocket.train import jax as hocket_jax
from hocket.train.rank import world

Params = dict[str, dict[str, Any]]
Weights = dict[str, Any]

STEPS: Final = 7
ROWS: Final = 4
IDS: Final = 10

OPTIMIZERS: Final[Mapping[str, Callable[[], Any]]] = {
    "sgd": lambda: optax.sgd(0.1),
    "momentum": lambda: optax.sgd(0.05, momentum=0.9),
    "nesterov": lambda: optax.sgd(0.05, momentum=0.9, nesterov=True),
    "adam": lambda: optax.adam(0.02, eps=1e-4),
    "adamw": lambda: optax.adamw(0.02, weight_decay=0.1, eps=1e-4),
    "amsgrad": lambda: optax.amsgrad(0.02, eps=1e-4),
    "nadam": lambda: optax.nadam(0.02, eps=1e-4),
    "nadamw": lambda: optax.nadamw(0.02, eps=1e-4),
    "adamax": lambda: optax.adamax(0.02, eps=1e-4),
    "adamaxw": lambda: optax.adamaxw(0.02, eps=1e-4),
    "radam": lambda: optax.radam(0.02, b2=0.9, eps=1e-4),
    "adabelief": lambda: optax.adabelief(0.02, eps=1e-4),
    "adan": lambda: optax.adan(0.02, eps=1e-4),
    "yogi": lambda: optax.yogi(0.02),
    "adagrad": lambda: optax.adagrad(0.1),
    "adadelta": lambda: optax.adadelta(1.0),
    "adafactor": lambda: optax.adafactor(0.02, min_dim_size_to_factor=3),
    "rmsprop": lambda: optax.rmsprop(0.02, eps=1e-4),
    "rmsprop centered": lambda: optax.rmsprop(0.02, centered=True, momentum=0.9, eps=1e-3),
    "lion": lambda: optax.lion(0.02),
    "lamb": lambda: optax.lamb(0.02, eps=1e-4),
    "lars": lambda: optax.lars(0.1),
    "novograd": lambda: optax.novograd(0.02, eps=1e-4),
    "fromage": lambda: optax.fromage(0.02),
    "sm3": lambda: optax.sm3(0.02),
    "polyak_sgd": lambda: optax.polyak_sgd(max_learning_rate=0.5),
    "lbfgs": lambda: optax.lbfgs(0.05, linesearch=None),
    "rprop": lambda: optax.rprop(0.02),
    "sign_sgd": lambda: optax.sign_sgd(0.02),
    "noisy_sgd": lambda: optax.noisy_sgd(0.05, eta=0.1, key=3),
    "optimistic": lambda: optax.optimistic_gradient_descent(0.05),
    "freeze some": lambda: optax.chain(optax.sgd(0.1), optax.masked(optax.set_to_zero(), _mark_vectors)),
    "lookahead-like ema": lambda: optax.chain(optax.ema(0.9), optax.scale(-0.1)),
    "schedule": lambda: optax.adam(optax.warmup_cosine_decay_schedule(0.0, 0.1, 2, STEPS), eps=1e-4),
    "injected": lambda: optax.inject_hyperparams(optax.adam)(optax.exponential_decay(0.05, 2, 0.5), eps=1e-4),
    "clip norm": lambda: optax.chain(optax.clip_by_global_norm(0.1), optax.adam(0.02, eps=1e-4)),
    "clip value": lambda: optax.chain(optax.clip(0.02), optax.sgd(0.5)),
    "clip adaptively": lambda: optax.chain(optax.adaptive_grad_clip(0.05), optax.sgd(0.5)),
    "MultiSteps": lambda: optax.MultiSteps(optax.adam(0.05, eps=1e-4), every_k_schedule=2).gradient_transformation(),
    "apply_every": lambda: optax.chain(optax.sgd(0.05), optax.apply_every(3)),
    "apply_if_finite": lambda: optax.apply_if_finite(optax.adamw(0.02, eps=1e-4), 3),
}
"""An eps of 1e-4 keeps Adam from dividing what is only rounding by its own size: gradients of 0 are seen as such in
any order of adding up."""


def _mark_vectors(params: Any) -> Any:
    return jax.tree.map(lambda value: getattr(value, "ndim", 0) == 1, params)


# --- models -----------------------------------------------------------------------------------------------------------


def build(name: str) -> dict[str, Any]:
    """Return a model's parameters, of random sizes: a table and a layer, or two layers."""
    draw = np.random.default_rng(_seed(name))
    size, wide = (int(one) for one in draw.integers(3, 7, 2))
    params = {"out": draw.normal(size=(wide, 2)) / 2}
    if draw.random() < 0.5:
        params["table"] = draw.normal(size=(IDS, wide))
    else:
        params["in"] = draw.normal(size=(size, wide)) / 2
    if draw.random() < 0.7:
        params["bias"] = draw.normal(size=wide) / 2
    return {key: jnp.asarray(value, jnp.float32) for key, value in params.items()}


def _seed(name: str) -> list[int]:
    return list(name.encode())


def make_batch(name: str, params: Mapping[str, Any], number: int) -> tuple[Any, Any]:
    draw = np.random.default_rng([*_seed(name), 1000 + number])
    goal = draw.normal(size=(ROWS, 2)).astype("float32")
    if "table" in params:
        return draw.integers(0, IDS, (ROWS, 2)), goal
    return draw.normal(size=(ROWS, params["in"].shape[0])).astype("float32"), goal


def make_batches(params: Params, numbers: Sequence[int]) -> dict[str, Any]:
    """Return a batch for each model, of the rows of several numbers."""
    return {
        name: tuple(
            np.concatenate(parts) for parts in zip(*(make_batch(name, one, number) for number in numbers), strict=True)
        )
        for name, one in params.items()
    }


def compute_loss(params: Mapping[str, Any], batch: tuple[Any, Any]) -> Any:
    x, goal = batch
    hidden = params["table"][x].mean(1) if "table" in params else x @ params["in"]
    return jnp.mean(jnp.square(jnp.tanh(hidden + params.get("bias", 0.0)) @ params["out"] - goal))


def compute_losses(params: Params, batches: Any) -> Any:
    return sum(compute_loss(params[name], batches[name]) for name in params)


def build_all(names: Sequence[str]) -> tuple[Params, Any]:
    """Return the models, and an optimizer for all of them."""
    params = {name: build(name) for name in names}
    kinds = {name: OPTIMIZERS[name]() for name in names}
    return params, optax.partition(
        kinds, {name: jax.tree.map(lambda _, name=name: name, one) for name, one in params.items()}
    )


def split_names(names: Sequence[str], size: int = 4) -> list[tuple[str, ...]]:
    """Return the names of the models of each tree."""
    return [tuple(names[start : start + size]) for start in range(0, len(names), size)]


def build_step(optimizer: Any) -> Any:
    @jax.jit
    def step(params: Any, state: Any, batches: Any) -> Any:
        loss, gradients = jax.value_and_grad(compute_losses)(params, batches)
        updates, state = optimizer.update(gradients, state, params, value=loss)
        return optax.apply_updates(params, updates), state

    return step


def read(params: Params) -> Weights:
    return {name: {key: np.asarray(value) for key, value in one.items()} for name, one in params.items()}


def batch_number(rank: int, step: int) -> int:
    return 10 * step + rank


# --- in a rank --------------------------------------------------------------------------------------------------------


def train_in_rank(config: dict[str, Any]) -> list[Weights]:
    """The training function; returns all ranks' weights."""
    joined, found = world.get_world("test"), {}
    for names in config["names"]:
        params, optimizer = build_all(names)
        if joined.rank:
            params = jax.tree.map(lambda value: value + 1, params)
        params = hocket_jax.prepare_params(params)
        optimizer = hocket_jax.prepare_optimizer(config.get("rule", optimizer))
        state, step = optimizer.init(params), build_step(optimizer)
        params, state = hocket_jax.synchronize(params, state)  # others may have stepped
        for number in range(config["steps"]):
            params, state = step(params, state, make_batches(params, [batch_number(joined.rank, number)]))
        jax.block_until_ready(params)
        collective.barrier()  # nobody pushes any more
        params, _ = hocket_jax.synchronize(params, state)
        found.update(read(params))
    return joined.all_gather_object(found)


def search_in_rank(config: dict[str, Any]) -> None:
    """Take a step that searches along a line."""
    optimizer = hocket_jax.prepare_optimizer(optax.lbfgs())
    params = jnp.ones(2)
    optimizer.update(params, optimizer.init(params), params, value=0.0, grad=params, value_fn=jnp.sum)


# --- in one process ---------------------------------------------------------------------------------------------------


def train_together(names: Sequence[str], size: int) -> Weights:
    params, optimizer = build_all(names)
    state, step = optimizer.init(params), build_step(optimizer)
    for number in range(STEPS):
        rows = [batch_number(rank, number) for rank in range(size)]
        params, state = step(params, state, make_batches(params, rows))
    return read(params)


def train_apart(names: Sequence[str], size: int, strategy: strategies.LocalSGD) -> Weights:
    """Each rank steps on its own, and now and then they meet."""
    begun, optimizer = build_all(names)
    step, gradient = build_step(optimizer), jax.jit(jax.value_and_grad(compute_losses))

    @jax.jit
    def update(gradients: Any, state: Any, params: Any, loss: Any) -> Any:
        return optimizer.update(gradients, state, params, value=loss)

    ranks = [(begun, optimizer.init(begun)) for _ in range(size)]
    anchor, velocity = begun, jax.tree.map(jnp.zeros_like, begun)
    outer = strategy.outer
    assert outer is None or isinstance(outer, strategies.Nesterov)

    def meet() -> None:
        nonlocal anchor, velocity, ranks
        found = jax.tree.map(lambda *values: sum(values) / size, *(params for params, _ in ranks))
        if outer is not None:
            slope = jax.tree.map(jnp.subtract, anchor, found)
            velocity = jax.tree.map(lambda old, new: outer.momentum * old + new, velocity, slope)
            found = jax.tree.map(
                lambda value, new, old: value - outer.lr * (new + outer.momentum * old), anchor, slope, velocity
            )
        anchor = found
        ranks = [(found, state) for _, state in ranks]

    apart = -strategy.begin_after
    for number in range(STEPS):
        rows = [[batch_number(rank, number)] for rank in range(size)]
        if apart < 0:
            loss, both = gradient(ranks[0][0], make_batches(begun, list(itertools.chain(*rows))))
            found = [(params, *update(both, state, params, loss)) for params, state in ranks]
            ranks = [(optax.apply_updates(params, updates), state) for params, updates, state in found]
            anchor = ranks[0][0]
        else:
            ranks = [
                step(params, state, make_batches(params, mine))
                for (params, state), mine in zip(ranks, rows, strict=True)
            ]
        apart += 1
        if apart == strategy.sync_every:
            meet()
            apart = 0
    if apart > 0:
        meet()
    return read(ranks[0][0])


def list_orders(size: int, steps: int) -> list[tuple[int, ...]]:
    """Return in which orders ranks may have taken their steps."""
    return sorted(set(itertools.permutations([rank for rank in range(size) for _ in range(steps)])))


def train_in_order(names: Sequence[str], order: Sequence[int]) -> Weights:
    """One step with the rows of a rank after the other. Each rank has a state of its own."""
    params, optimizer, step = prepare_order(tuple(names))
    states = [optimizer.init(params) for _ in set(order)]
    taken = [0 for _ in states]
    for rank in order:
        batches = make_batches(params, [batch_number(rank, taken[rank])])
        taken[rank] += 1
        params, states[rank] = step(params, states[rank], batches)
    return read(params)


@functools.cache
def prepare_order(names: tuple[str, ...]) -> tuple[Params, Any, Any]:
    params, optimizer = build_all(names)
    return params, optimizer, build_step(optimizer)
