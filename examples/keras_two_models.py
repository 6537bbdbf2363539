"""Two Keras models with and without Hocket: the time for the same rows, as a table and as a chart.

The small model is LeNet on 28 by 28 pixels (44,426 parameters). The large model has two classes of 224 by 224 pixels
(420,802 parameters). One process with the whole machine trains each model, and then two ranks with half of each batch
train it on the same rows. Which is faster depends on the model and the machine: ranks pay off if a step takes longer
than their exchange.

    KERAS_BACKEND=torch python examples/keras_two_models.py --chart comparison.png
"""

import argparse
import tempfile
import time
from typing import Any

import keras
import matplotlib as mpl
import numpy as np

import hocket
from hocket import train
from hocket.train.keras import KerasTrainer, prepare_arrays, prepare_model


def build_lenet() -> Any:
    """Make LeNet, with 44,426 parameters."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(6, 5, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(16, 5, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(120, activation="relu"),
            layers.Dense(84, activation="relu"),
            layers.Dense(10),
        ],
        name="lenet",
    )


def build_two_classes() -> Any:
    """Make the network for two classes of photos, with 896 + 18,496 + 401,410 = 420,802 parameters."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((224, 224, 3)),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(2),
        ],
        name="two_classes",
    )


MODELS = {"lenet": (build_lenet, (28, 28, 1), 10), "two_classes": (build_two_classes, (224, 224, 3), 2)}


def make_rows(name: str, count: int) -> tuple[Any, Any]:
    """Return images, each one of a few patterns plus noise, and the numbers of their patterns."""
    _, shape, num_classes = MODELS[name]
    generator = np.random.default_rng(0)
    patterns = generator.normal(size=(num_classes, *shape)).astype("float32")
    labels = generator.integers(0, num_classes, count)
    return patterns[labels] + generator.normal(size=(count, *shape)).astype("float32"), labels


def compile_model(name: str) -> Any:
    model = MODELS[name][0]()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01), loss, metrics=["accuracy"])
    return model


def measure(model: Any, data: dict[str, Any], epochs: int) -> dict[str, float]:
    """Train one epoch to warm up, then `epochs` more; return seconds per epoch, accuracy and number of parameters."""
    model.fit(**data, epochs=1, verbose=0)
    start = time.perf_counter()
    history = model.fit(**data, epochs=epochs, verbose=0).history
    seconds = (time.perf_counter() - start) / epochs
    return {"seconds": seconds, "accuracy": history["accuracy"][-1], "parameters": model.count_params()}


def train_alone(name: str, rows: int, batch_size: int, epochs: int) -> dict[str, float]:
    """Train without Hocket."""
    x, y = make_rows(name, rows)
    return measure(compile_model(name), {"x": x, "y": y, "batch_size": batch_size}, epochs)


def train_func(config: dict[str, Any]) -> dict[str, float]:
    """Train in a rank. Only two lines are different: `prepare_model` and `prepare_arrays`."""
    x, y = make_rows(config["name"], config["rows"])
    model = prepare_model(compile_model(config["name"]))
    size = train.get_context().get_world_size()
    data = prepare_arrays(x, y, batch_size=config["batch_size"] // size)
    return measure(model, {"x": data}, config["epochs"])


def train_with_hocket(num_workers: int, **config: Any) -> dict[str, float]:
    result = KerasTrainer(
        train_func,
        train_loop_config=config,
        scaling_config=train.ScalingConfig(num_workers=num_workers),
        run_config=train.RunConfig(storage_path=tempfile.mkdtemp()),
    ).fit()
    returned: dict[str, float] = result.return_value
    return returned


def draw(path: str, found: dict[str, dict[str, dict[str, float]]]) -> None:
    """Write the comparison as a PNG."""
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, len(found), figsize=(4 * len(found), 3.2))
    for axis, (name, sides) in zip(np.atleast_1d(axes), found.items(), strict=True):
        bars = axis.bar(list(sides), [side["seconds"] for side in sides.values()], color=["#8d99ae", "#d95f02"])
        axis.bar_label(bars, fmt="%.2f s")
        axis.set(title=f"{name}: {int(sides['alone']['parameters']):,} parameters", ylabel="seconds an epoch")
        axis.margins(y=0.15)
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description="Two Keras models with and without Hocket.")
    parser.add_argument("--num-workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lenet-rows", type=int, default=8960)
    parser.add_argument("--photo-rows", type=int, default=64)
    parser.add_argument("--chart", default="comparison.png", help="where to write the chart")
    arguments = parser.parse_args()
    sizes = {"lenet": (arguments.lenet_rows, 128), "two_classes": (arguments.photo_rows, 16)}
    found: dict[str, dict[str, dict[str, float]]] = {}
    ranks = f"{arguments.num_workers} ranks"
    with hocket.init():
        for name, (rows, batch_size) in sizes.items():
            config = {"name": name, "rows": rows, "batch_size": batch_size, "epochs": arguments.epochs}
            found[name] = {
                "alone": train_alone(**config),
                ranks: train_with_hocket(arguments.num_workers, **config),
            }
    print(f"Keras on {keras.backend.backend()}")
    for name, sides in found.items():
        for who, side in sides.items():
            print(
                f"{name:12s} {int(side['parameters']):8,d} parameters  {who:8s} {side['seconds']:7.2f} s an epoch  "
                f"accuracy {side['accuracy']:.3f}"
            )
    draw(arguments.chart, found)
    print("the chart:", arguments.chart)


if __name__ == "__main__":
    main()
