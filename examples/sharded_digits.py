"""Handwritten digits with the network 784-700-500-10, cut over the ranks by a layout: PyTorch, JAX and Keras on JAX.

The training functions are the same as for one process. `Sharded` makes the ranks a mesh, and a layout says which
weights are cut along which axes of the mesh:

    python examples/sharded_digits.py --framework torch --layout data      # each rank has other rows
    python examples/sharded_digits.py --framework jax --layout fully       # ... and a part of each weight
    python examples/sharded_digits.py --framework jax --layout tensor      # ranks share the hidden layers
    python examples/sharded_digits.py --framework keras --layout fully     # the same with Keras 3, on JAX
    python examples/sharded_digits.py --framework torch --layout 2x2       # rows and hidden layers, with four ranks

All of them end with the same weights, up to the order of sums. `--layout one` is one process without a strategy.
"""

import argparse
import importlib
import itertools
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from sklearn import datasets

import hocket
from hocket import mesh, train
from hocket.train.strategies import Sharded

SIZES = (784, 700, 500, 10)
BATCH_SIZE, TRAINED = 128, 1408
"""The rows of a step over all ranks, and the number of rows in training, of 1,797."""

CUTS: dict[str, dict[str, list[str]]] = {
    "jax": {"0/kernel": ["", "model"], "0/bias": ["model"], "1/kernel": ["model", ""]},
    "keras": {"net/up/kernel": ["", "model"], "net/up/bias": ["model"], "net/down/kernel": ["model", ""]},
    "torch": {"0.weight": ["model", ""], "0.bias": ["model"], "2.weight": ["", "model"]},
}
"""The first layer is cut by its outputs and the second by its inputs, so no gather is needed between them. PyTorch
keeps a kernel transposed."""

MESHES = {"data": {"data": 2}, "fully": {"data": 2}, "tensor": {"model": 2}, "2x2": {"data": 2, "model": 2}}


def choose_strategy(framework: str, layout: str) -> Sharded | None:
    """Return the strategy for `--layout`; None for one process."""
    if layout == "one":
        return None
    rules = {name: [axis or mesh.UNSHARDED for axis in axes] for name, axes in CUTS[framework].items()}
    return Sharded(
        mesh=MESHES[layout],
        layout=rules if "model" in MESHES[layout] else {},
        shard_along=["data"] if layout == "fully" else [],
    )


def load_digits() -> tuple[Any, Any]:
    """Return 1,797 real digits of 8 x 8 pixels, enlarged to the 28 x 28 of the reference, and their labels."""
    digits = datasets.load_digits()
    larger = np.kron(digits.images / 16, np.ones((3, 3)))
    images = np.pad(larger, ((0, 0), (2, 2), (2, 2))).reshape(-1, 784)
    order = np.random.default_rng(22).permutation(len(images))
    return images[order].astype("float32"), digits.target[order].astype("int64")


def make_kernels() -> list[Any]:
    """Return the layers' first weights, as inputs by outputs (Glorot's uniform)."""
    generator = np.random.default_rng(22)
    limits = {shape: (6 / sum(shape)) ** 0.5 for shape in itertools.pairwise(SIZES)}
    return [generator.uniform(-limit, limit, shape).astype("float32") for shape, limit in limits.items()]


# --- the training functions -------------------------------------------------------------------------------------------


def train_jax(config: dict[str, Any]) -> list[Any]:
    """Train in JAX; return the first layer's weights, and the fraction of all weights that this rank holds."""
    import jax
    import jax.numpy as jnp
    import optax

    from hocket.train import jax as adapter

    images, labels = load_digits()
    loader = adapter.prepare_arrays((images[:TRAINED], labels[:TRAINED]), config["batch_size"])
    made = [{"kernel": kernel, "bias": np.zeros(kernel.shape[1], "float32")} for kernel in make_kernels()]
    params = adapter.prepare_params(dict(enumerate(made)))
    optimizer = adapter.prepare_optimizer(optax.adam(1e-3))
    state = optimizer.init(params)

    def compute(params: Any, x: Any) -> Any:
        for number in range(3):
            x = x @ params[number]["kernel"] + params[number]["bias"]
            x = jax.nn.relu(x) if number < 2 else x
        return x

    @jax.jit  # type: ignore[untyped-decorator]  # JAX is not type-checked
    def step(params: Any, state: Any, batch: Any, weights: Any) -> Any:
        def compute_loss(params: Any) -> Any:
            losses = optax.softmax_cross_entropy_with_integer_labels(compute(params, batch[0]), batch[1])
            return (losses * weights).mean()

        loss, slopes = jax.value_and_grad(compute_loss)(params)
        updates, state = optimizer.update(slopes, state, params)
        return optax.apply_updates(params, updates), state, loss

    guess = jax.jit(lambda params, x: jnp.argmax(compute(params, x), axis=1))
    for epoch in range(loader.epoch, config["epochs"]):
        losses = []
        for batch, weights in loader:
            params, state, loss = step(params, state, batch, weights)
            losses.append(float(loss))
        accuracy = adapter.GlobalMean()
        held = adapter.prepare_arrays(
            (images[TRAINED:], labels[TRAINED:]), config["batch_size"], name=f"held {epoch}", resume=False
        )
        for batch, weights in held:
            accuracy.add(guess(params, batch[0]) == batch[1], weights)
        train.report({"epoch": epoch, "loss": float(np.mean(losses)), "accuracy": accuracy.compute()})
    mesh.save(params, config["folder"])  # all ranks call it, and each writes its parts
    leaves = jax.tree.leaves(params)
    kept = sum(leaf.addressable_data(0).size for leaf in leaves) / sum(leaf.size for leaf in leaves)
    return [adapter.gather(params[0]["kernel"]), kept]


def train_keras(config: dict[str, Any]) -> list[Any]:
    """Train in Keras; return the same as `train_jax`."""
    import keras

    from hocket.train import keras as adapter

    images, labels = load_digits()
    names, activations = ("up", "down", "last"), ("relu", "relu", None)
    layers = [
        keras.layers.Dense(size, activation, name=name)
        for size, activation, name in zip(SIZES[1:], activations, names, strict=True)
    ]
    model = keras.Sequential([keras.Input(SIZES[:1]), *layers], name="net")
    for layer, kernel in zip(layers, make_kernels(), strict=True):
        layer.kernel.assign(kernel)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3, epsilon=1e-8), loss, metrics=["accuracy"])
    model = adapter.prepare_model(model)
    size = config["batch_size"]
    data = adapter.prepare_arrays(images[:TRAINED], labels[:TRAINED], batch_size=size)
    held = adapter.prepare_arrays(images[TRAINED:], labels[TRAINED:], batch_size=size, resume=False)
    history = model.fit(
        data, initial_epoch=data.epoch, epochs=config["epochs"], validation_data=held, verbose=0
    ).history
    for epoch, (lost, accuracy) in enumerate(zip(history["loss"], history["val_accuracy"], strict=True)):
        train.report({"epoch": epoch, "loss": lost, "accuracy": accuracy})
    mesh.save({weight.path: weight.value for weight in model.weights}, config["folder"])
    values = [weight.value for weight in model.weights]
    kept = sum(value.addressable_data(0).size for value in values) / sum(value.size for value in values)
    return [model.get_weights()[0], kept]


def train_torch(config: dict[str, Any]) -> list[Any]:
    """Train in PyTorch; return the same as `train_jax`."""
    import torch
    from torch import nn
    from torch.utils import data

    from hocket.train import torch as adapter

    images, labels = map(torch.from_numpy, load_digits())
    rows = data.TensorDataset(images[:TRAINED], labels[:TRAINED])
    loader = adapter.prepare_data_loader(data.DataLoader(rows, batch_size=config["batch_size"], shuffle=True))
    layers = [nn.Linear(one, other) for one, other in itertools.pairwise(SIZES)]
    with torch.no_grad():
        for layer, kernel in zip(layers, make_kernels(), strict=True):
            layer.weight.copy_(torch.from_numpy(kernel.T))
            layer.bias.zero_()
    model = adapter.prepare_model(nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2]))
    optimizer = adapter.prepare_optimizer(torch.optim.Adam(model.parameters(), lr=1e-3))
    for epoch in range(loader.epoch, config["epochs"]):
        losses = adapter.GlobalMean()
        for batch, targets in loader:
            each = nn.functional.cross_entropy(model(batch), targets, reduction="none")
            optimizer.zero_grad()
            loss: Any = each.mean() * loader.loss_scale
            loss.backward()
            optimizer.step()
            losses.add(each, loader.weights)
        accuracy = adapter.GlobalMean()
        held = data.DataLoader(data.TensorDataset(images[TRAINED:], labels[TRAINED:]), batch_size=config["batch_size"])
        tested = adapter.prepare_data_loader(held, name=f"held {epoch}")
        with torch.no_grad():
            for batch, targets in tested:
                accuracy.add(model(batch).argmax(1) == targets, tested.weights)
        train.report({"epoch": epoch, "loss": losses.compute(), "accuracy": accuracy.compute()})
    values = list(model.parameters())
    parts = [value.to_local() if hasattr(value, "to_local") else value for value in values]
    if parts[0] is not values[0]:
        mesh.save(model, config["folder"])
    kept = sum(part.numel() for part in parts) / sum(value.numel() for value in values)
    whole = values[0].full_tensor() if hasattr(values[0], "full_tensor") else values[0]
    return [whole.detach().numpy().T.copy(), kept]


# --- the program around them ------------------------------------------------------------------------------------------


def draw(history: list[dict[str, Any]], path: Path) -> None:
    """Draw loss and accuracy."""
    figure = Figure(figsize=(9, 4), layout="constrained")
    for axes, name in zip(figure.subplots(1, 2), ("loss", "accuracy"), strict=True):
        axes.plot([row[name] for row in history])
        axes.set_title({"loss": "cross entropy in training", "accuracy": "accuracy in testing"}[name])
        axes.set_xlabel("epoch")
    figure.savefig(path, dpi=120)


TRAINERS = {
    "jax": ("JaxTrainer", train_jax),
    "keras": ("KerasTrainer", train_keras),
    "torch": ("TorchTrainer", train_torch),
}


def main() -> None:
    """Train, draw, and print the fraction of the weights that a rank held."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--framework", choices=sorted(CUTS), default="torch")
    parser.add_argument("--layout", choices=["one", *MESHES], default="fully")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path("sharded_digits"), help="for the picture and the weights")
    arguments = parser.parse_args()
    strategy = choose_strategy(arguments.framework, arguments.layout)
    count = 1 if strategy is None else strategy.world_size
    parts = 1 if strategy is None else strategy.locate_batch(0, count)[1]
    os.environ["KERAS_BACKEND"] = "jax"  # the only backend on which Keras can spread a model
    adapter = importlib.import_module(f"hocket.train.{arguments.framework}")
    name, function = TRAINERS[arguments.framework]
    trainer: Any = getattr(adapter, name)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    with hocket.init(num_cpus=count), tempfile.TemporaryDirectory() as storage:
        result = trainer(
            function,
            train_loop_config={
                "batch_size": BATCH_SIZE // parts,
                "epochs": arguments.epochs,
                "folder": str(arguments.folder.resolve() / "weights"),
            },
            strategy=strategy,
            scaling_config=train.ScalingConfig(num_workers=count),
            run_config=train.RunConfig(storage_path=storage),
        ).fit()
        history = result.metrics_history
    kernel, kept = result.return_value
    for row in history:
        print(f"epoch {row['epoch']}: loss {row['loss']:.4f}, accuracy in testing {row['accuracy']:.4f}")
    print(f"a rank had {kept:.3f} of the weights; the first layer's sum is {kernel.sum():.4f}")
    draw(history, arguments.folder / "curves.png")


if __name__ == "__main__":
    main()
