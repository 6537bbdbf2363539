"""Handwritten digits with Flax and Optax, on two workers.

To make a program for one process into this one, add `prepare_params`, `prepare_optimizer` and `prepare_arrays` to the
training function, and a trainer around it. The step stays one jitted function, and contains the average over the
workers.

    python examples/train_flax.py
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn import datasets

from hocket import train
from hocket.train.jax import (
    GlobalMean,
    JaxTrainer,
    load_pytree,
    prepare_arrays,
    prepare_optimizer,
    prepare_params,
    save_pytree,
    split_key,
)


class Network(nn.Module):
    """A perceptron with dropout."""

    @nn.compact
    def __call__(self, x: Any, *, training: bool) -> Any:
        x = nn.relu(nn.Dense(64)(x))
        x = nn.Dropout(0.1, deterministic=not training)(x)
        return nn.Dense(10)(x)


def load_dataset() -> tuple[Any, Any]:
    """Return images and labels.

    Call it in the training function, not in the driver: the values of a configuration travel to every worker.
    """
    digits = datasets.load_digits()
    return (digits.data / 16).astype(np.float32), digits.target


def train_func(config: dict[str, Any]) -> None:
    """Train in a worker."""
    images, labels = load_dataset()
    loader = prepare_arrays((images[:1500], labels[:1500]), config["batch_size"])  # this worker's part
    tests = prepare_arrays((images[1500:], labels[1500:]), 64, shuffle=False, resume=False)
    model = Network()
    shared, own = split_key(jax.random.key(0))  # all workers share the first parameters, each has its own dropout
    params = prepare_params(model.init(shared, images[:1], training=False))
    optimizer = prepare_optimizer(optax.adam(config["lr"]))  # averages the gradients first
    state = {"params": params, "optimizer": optimizer.init(params)}
    checkpoint = train.get_checkpoint()
    if checkpoint is not None:  # after a restart
        state = load_pytree(Path(checkpoint.path, "state.npz"), like=state)

    @jax.jit
    def step(state: Any, batch: Any, weights: Any, key: Any) -> Any:
        def compute_loss(params: Any) -> Any:
            inputs, targets = batch
            outputs = model.apply(params, inputs, training=True, rngs={"dropout": key})
            return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(outputs, targets) * weights)

        loss, gradients = jax.value_and_grad(compute_loss)(state["params"])
        updates, optimizer_state = optimizer.update(gradients, state["optimizer"], state["params"])
        return {"params": optax.apply_updates(state["params"], updates), "optimizer": optimizer_state}, loss

    @jax.jit
    def find_correct(params: Any, batch: Any) -> Any:
        inputs, targets = batch
        return model.apply(params, inputs, training=False).argmax(1) == targets

    for epoch in range(loader.epoch, config["num_epochs"]):
        loss = jnp.nan
        for number, (batch, weights) in enumerate(loader):
            state, loss = step(state, batch, weights, jax.random.fold_in(own, epoch * len(loader) + number))
        accuracy = GlobalMean()
        for batch, weights in tests:
            accuracy.add(find_correct(state["params"], batch), weights)
        metrics = {"epoch": epoch, "loss": float(loss), "accuracy": accuracy.compute()}
        with tempfile.TemporaryDirectory() as folder:
            if train.get_context().get_world_rank() == 0:
                save_pytree(Path(folder, "state.npz"), state)
            train.report(metrics, train.Checkpoint.from_directory(folder))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-workers", type=int, default=2)
    parser.add_argument("--num-epochs", type=int, default=5)
    parser.add_argument("--storage-path", default=None)
    options = parser.parse_args()
    result = JaxTrainer(
        train_func,
        train_loop_config={"num_epochs": options.num_epochs, "batch_size": 32, "lr": 1e-2},
        scaling_config=train.ScalingConfig(num_workers=options.num_workers),
        run_config=train.RunConfig(name="flax", storage_path=options.storage_path),
    ).fit()
    assert result.metrics is not None
    assert result.checkpoint is not None
    print(f"trained {result.metrics['epoch'] + 1} epochs: accuracy {result.metrics['accuracy']:.3f}")
    with result.checkpoint.as_directory() as folder:
        arrays = np.load(Path(folder, "state.npz"))  # read without JAX
        print(
            f"the checkpoint has {sum(arrays[name].size for name in arrays if name.startswith('params/'))} parameters"
        )
