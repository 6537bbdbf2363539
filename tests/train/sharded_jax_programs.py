"""Training functions in JAX whose parameters and batches are spread over a mesh of the ranks."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from hocket import mesh, train
from hocket.train import jax as adapter
from hocket.train.frameworks.jax.framework import FRAMEWORK

WIDTH, HIDDEN, CLASSES, ROWS, BATCH = 6, 8, 4, 42, 8

TENSOR_PARALLEL: dict[str, list[str]] = {
    "up/kernel": [mesh.UNSHARDED, "model"],
    "up/bias": ["model"],
    "down/kernel": ["model", mesh.UNSHARDED],
}
"""The hidden layer is cut."""


def make_rows() -> dict[str, Any]:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(ROWS, WIDTH)).astype("float32")
    return {"x": x, "y": (x @ generator.normal(size=(WIDTH, CLASSES))).argmax(1), "row": np.arange(ROWS)}


def make_params(seed: int) -> dict[str, Any]:
    generator = np.random.default_rng(seed)
    kernels = [generator.normal(size=shape).astype("float32") for shape in ((WIDTH, HIDDEN), (HIDDEN, CLASSES))]
    return {
        "up": {"kernel": kernels[0], "bias": np.zeros(HIDDEN, "float32")},
        "down": {"kernel": kernels[1], "bias": np.zeros(CLASSES, "float32")},
    }


def compute(params: Any, x: Any) -> Any:
    hidden = jnp.tanh(x @ params["up"]["kernel"] + params["up"]["bias"])
    return hidden @ params["down"]["kernel"] + params["down"]["bias"]


@jax.vmap
def draw_row(key: Any, row: Any) -> Any:
    return jax.random.bernoulli(jax.random.fold_in(key, row), 0.9, (WIDTH,))


def draw(key: Any, rows: Any) -> Any:
    """Return a mask for dropout that does not depend on where in a batch a row is: the last batch of an epoch is
    filled up in each rank."""
    return draw_row(jnp.broadcast_to(key, rows.shape), rows)


def make_step(optimizer: Any) -> Any:
    @jax.jit
    def step(params: Any, state: Any, batch: Any, weights: Any, key: Any) -> Any:
        def compute_loss(params: Any) -> Any:
            logits = compute(params, batch["x"] * draw(key, batch["row"]))
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"])
            return (losses * weights).mean()

        loss, slopes = jax.value_and_grad(compute_loss)(params)
        updates, state = optimizer.update(slopes, state, params)
        return optax.apply_updates(params, updates), state, loss

    return step


def count_kept(tree: Any) -> float:
    """Return how much of a tree's elements this rank has."""
    arrays = [leaf for leaf in jax.tree.leaves(tree) if leaf.ndim]
    return float(sum(leaf.addressable_data(0).size for leaf in arrays) / sum(leaf.size for leaf in arrays))


def train_perceptron(config: dict[str, Any]) -> dict[str, Any]:
    """Train on batches of 8 rows; return what all came to. Rank 1 of the first attempt may die on the way."""
    rank = train.get_context().get_world_rank()
    parts = config["parts"]
    loader = adapter.prepare_arrays(make_rows(), BATCH // parts)
    params = adapter.prepare_params(make_params(rank))  # all begin with rank 0's
    optimizer = adapter.prepare_optimizer(optax.adamw(0.02))
    state = optimizer.init(params)
    checkpoint = train.get_checkpoint()
    if checkpoint is not None:
        params, state = adapter.load_pytree(Path(checkpoint.path, "model.npz"), (params, state))
    step, key = make_step(optimizer), jax.random.key(0)
    loss: Any = None
    seen: list[list[int]] = []
    for epoch in range(loader.epoch, 3):
        for batch, weights in loader:
            note = Path(config.get("folder", ""), "killed")
            if config.get("folder") and epoch == 1 and rank == 1 and loader.steps_left == 3 and not note.exists():
                note.write_text("")
                os.kill(os.getpid(), signal.SIGKILL)
            params, state, loss = step(params, state, batch, weights, adapter.fold_in_rank(key))
            rows, told = (np.asarray(one.addressable_data(0)) for one in (batch["row"], weights))
            seen.append(sorted(rows[told > 0].tolist()))
        params, state = adapter.synchronize(params, state)
        with tempfile.TemporaryDirectory() as folder:
            whole = adapter.gather((params, state))
            if rank == 0:
                adapter.save_pytree(Path(folder, "model.npz"), whole)
            train.report({"epoch": epoch, "loss": float(loss)}, train.Checkpoint(folder) if rank == 0 else None)
    accuracy = adapter.GlobalMean()
    judge = jax.jit(lambda params, batch: compute(params, batch["x"]).argmax(1) == batch["y"])
    for batch, weights in adapter.prepare_arrays(make_rows(), BATCH // parts, name="held"):
        accuracy.add(judge(params, batch), weights)
    found = {
        "weights": adapter.gather(params),
        "loss": float(loss),
        "accuracy": accuracy.compute(),
        "kept": (count_kept(params), count_kept(state)),
        "seen": train.collective.broadcast_from_rank_zero(seen),
    }
    if "saved" in config:
        mesh.save({"params": params, "state": state}, config["saved"])
        found["refused"] = read_as_whole(params)
    return found


def read_as_whole(params: Any) -> list[str]:
    """Return what is said when spread arrays are read as whole ones."""
    kernel = params["up"]["kernel"]
    return [
        read_error(lambda: adapter.save_pytree("never.npz", {"kernel": kernel})),
        read_error(lambda: FRAMEWORK.to_host(kernel, "list_weights()")),
    ]


def read_error(call: Callable[[], object]) -> str:
    try:
        call()
    except (TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def place_what_an_optimizer_keeps(config: dict[str, Any]) -> dict[tuple[int, ...], bool]:
    """Return what of the state of Adafactor is replicated, by the shape; it keeps sums over rows and columns."""
    params = adapter.prepare_params({"up": {"kernel": np.ones((8, 6), "float32")}})
    optimizer = adapter.prepare_optimizer(optax.adafactor(0.1, min_dim_size_to_factor=2, momentum=0.9))
    state: Any = adapter.prepare_params(optimizer.init(params))
    return {leaf.shape: leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(state) if leaf.size > 1}


def load_elsewhere(config: dict[str, Any]) -> list[Any]:
    """Load what another world has saved, go on with it, and return the weights before, and whether one step works."""
    params = adapter.prepare_params(make_params(1))
    optimizer = adapter.prepare_optimizer(optax.adamw(0.02))
    state = optimizer.init(params)
    loaded = mesh.load(config["saved"], like={"params": params, "state": state})
    params, state = adapter.prepare_params(loaded["params"]), adapter.prepare_params(loaded["state"])
    whole = adapter.gather(params)
    kept = count_kept(params), count_kept(state)
    loader = adapter.prepare_arrays(make_rows(), config["batch_size"])
    batch, weights = next(iter(loader))
    params, state, loss = make_step(optimizer)(params, state, batch, weights, jax.random.key(0))
    return [whole, kept, float(loss)]


def call_wrongly(config: dict[str, Any]) -> list[str]:
    """Return what is said to calls that cannot be, in one process after the other."""
    params = make_params(0)
    return [
        read_error(lambda: adapter.prepare_optimizer(optax.sgd(0.1)).init(params)),
        read_error(lambda: adapter.prepare_params(params)),
        read_error(lambda: adapter.prepare_params({"words": {"table": np.zeros((3, 2))}})),
    ]


def prepare_rows(config: dict[str, Any]) -> list[Any]:
    """Return what becomes of a rank's own rows, and what is said if the ranks have different numbers of them."""
    rank = train.get_context().get_world_rank()
    batch = adapter.prepare_batch({"x": np.full((3, 2), rank, "float32"), "y": np.arange(3)})
    return [
        batch["y"].shape,
        adapter.gather(batch)["x"][:, 0].tolist(),
        float(jax.jit(jnp.mean)(batch["x"])),
        read_error(lambda: adapter.prepare_batch(np.zeros(3 + rank))),
        read_error(lambda: adapter.prepare_batch({"x": np.zeros(3), "y": np.zeros(4)})),
    ]
