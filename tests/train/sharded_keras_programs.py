"""Training functions in Keras whose models are spread over a mesh of the ranks.

Keras is imported in the ranks, with the backend that they have.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hocket import mesh, train
from hocket.train import world

WIDTH, HIDDEN, CLASSES, ROWS, BATCH, EPOCHS = 6, 8, 4, 43, 8, 3
"""43 rows: the last batch of an epoch has 3, which two ranks cannot share equally."""

TENSOR_PARALLEL: dict[str, list[str]] = {
    "net/up/kernel": [mesh.UNSHARDED, "model"],
    "net/up/bias": ["model"],
    "net/down/kernel": ["model", mesh.UNSHARDED],
}
"""The hidden layer is cut."""


def make_rows() -> tuple[Any, Any]:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(ROWS, WIDTH)).astype("float32")
    return x, (x @ generator.normal(size=(WIDTH, CLASSES))).argmax(1)


def make_model(seed: int, dropout: float = 0.0) -> Any:
    import keras

    layers, generator = keras.layers, np.random.default_rng(seed)
    model = keras.Sequential(
        [
            keras.Input((WIDTH,)),
            layers.Dense(HIDDEN, activation="tanh", name="up"),
            layers.BatchNormalization(name="norm", momentum=0.9),
            layers.Dropout(dropout, seed=1),
            layers.Dense(CLASSES, name="down"),
        ],
        name="net",
    )
    for layer in (model.get_layer("up"), model.get_layer("down")):
        layer.kernel.assign(generator.normal(size=layer.kernel.shape).astype("float32"))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(0.02), loss, metrics=["accuracy"])
    return model


def count_kept(variables: Any) -> float:
    """Return how much of the elements of variables this rank has."""
    values = [variable.value for variable in variables]
    return float(sum(one.addressable_data(0).size for one in values) / sum(one.size for one in values))


def train_network(config: dict[str, Any]) -> dict[str, Any]:
    """Train on batches of 8 rows; return what all came to. Rank 1 of the first attempt may die on the way."""
    import keras

    from hocket.train import keras as adapter

    rank, parts = train.get_context().get_world_rank(), config["parts"]
    x, y = make_rows()
    model = adapter.prepare_model(make_model(rank, config.get("dropout", 0.0)))  # all begin with rank 0's
    data = adapter.prepare_arrays(x, y, batch_size=BATCH // parts, shuffle=True)
    held = adapter.prepare_arrays(x[:21], y[:21], batch_size=BATCH // parts, resume=False)
    checkpoint = train.get_checkpoint()
    if checkpoint is not None:
        adapter.load_weights(model, checkpoint.path)
    seen: list[Any] = []

    class Follow(keras.callbacks.Callback):  # type: ignore[misc]  # Keras is not type-checked
        epoch = 0

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.epoch = epoch
            seen.append([sorted(data[number][0][:, 0].tolist()) for number in range(len(data))])

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            note = Path(config.get("folder", ""), "killed")
            if config.get("folder") and self.epoch == 1 and rank == 1 and batch == 2 and not note.exists():
                note.write_text("")
                os.kill(os.getpid(), signal.SIGKILL)

    history = model.fit(
        data,
        initial_epoch=data.epoch,
        epochs=EPOCHS,
        verbose=0,
        validation_data=held,
        callbacks=[Follow(), adapter.ReportCheckpointCallback(), *list_savers(config)],
    ).history
    whole = model.get_weights()
    found = {
        "weights": whole,
        "history": {name: values[-1] for name, values in history.items()},
        "tested": model.evaluate(data, verbose=0, return_dict=True),
        "guessed": model.predict(x[:5], verbose=0),
        "seen": world.get_world("test").all_gather_object(seen),
    }
    if "mesh" in config:
        found["kept"] = (count_kept(model.trainable_weights), count_kept(model.optimizer.variables))
    if "saved" in config:
        mesh.save({weight.path: weight.value for weight in model.weights}, config["saved"])
        found["files"] = save_as_keras_does(model, held, whole, config["saved"])
        found["again"] = load_again(model, whole, held, config["saved"])
        found["refused"] = misuse(model, x, y, has_rules="model" in config["mesh"])
    return found


def list_savers(config: dict[str, Any]) -> list[Any]:
    """Keras's own, in each rank and to the same path."""
    import keras

    if "saved" not in config:
        return []
    return [keras.callbacks.ModelCheckpoint(f"{config['saved']}_kept.weights.h5", save_weights_only=True)]


def save_as_keras_does(model: Any, held: Any, whole: list[Any], folder: str) -> list[bool]:
    """Return whether Keras's own files, written by all ranks together, have the whole model, and the parts are back."""
    import keras

    before = count_kept(model.trainable_weights)
    model.save(f"{folder}_whole.keras")
    other = keras.saving.load_model(f"{folder}_whole.keras")
    kept, expected = read_optimizer(other), read_optimizer(model)
    found = [
        all(np.array_equal(one, other) for one, other in zip(other.get_weights(), whole, strict=True)),
        kept.keys() == expected.keys() and all(np.array_equal(kept[name], expected[name]) for name in kept),
    ]
    other.load_weights(f"{folder}_kept.weights.h5")
    found.append(all(np.array_equal(one, other) for one, other in zip(other.get_weights(), whole, strict=True)))
    text = read_error(lambda: model.save(f"{folder}_whole.unknown"))
    model.evaluate(held, verbose=0)
    return [*found, "Invalid filepath extension" in text, count_kept(model.trainable_weights) == before]


def read_optimizer(model: Any) -> dict[str, Any]:
    """Return what the optimizer keeps, whole; a model that was read from a file names it without its own name."""
    (state,) = model.get_state_tree(value_format="numpy_array")["optimizer_variables"].values()
    return {name.removeprefix("net_"): value for name, value in state.items()}


def load_again(model: Any, whole: list[Any], held: Any, folder: str) -> list[bool]:
    """Return whether the weights are the same after they were saved and loaded: by a file, and by their parts."""
    import tempfile

    from hocket.train import keras as adapter

    def is_same() -> bool:
        found = model.get_weights()
        return all(np.array_equal(one, other) for one, other in zip(found, whole, strict=True))

    def spoil() -> bool:
        model.set_weights([np.zeros_like(one) for one in whole])
        model.evaluate(held, verbose=0)  # they are spread now
        return is_same()

    with tempfile.TemporaryDirectory() as own:
        adapter.save_weights(model, own)
        spoiled = spoil()
        adapter.load_weights(model, own)
    found = [spoiled, is_same(), spoil()]
    values = mesh.load(folder, like={weight.path: weight.value for weight in model.weights})
    for weight in model.weights:
        weight.assign(values[weight.path])
    return [*found, is_same()]


def read_error(call: Callable[[], object]) -> str:
    try:
        call()
    except (TypeError, ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def misuse(model: Any, x: Any, y: Any, *, has_rules: bool) -> list[str]:
    """Return what is said to calls that cannot be."""
    import keras

    from hocket.train import keras as adapter

    data = adapter.prepare_arrays(x, y, batch_size=BATCH, resume=False)

    def fit_other(**options: Any) -> None:
        other = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(CLASSES)], name="net")
        other.compile("sgd", "mse", **options)
        adapter.prepare_model(other).fit(data, verbose=0)

    return [
        read_error(lambda: model.fit(x, y, verbose=0)),
        read_error(lambda: model.evaluate(x, y, verbose=0)),
        read_error(lambda: model.predict(data, verbose=0)),
        read_error(lambda: model.train_on_batch(x, y)),
        read_error(lambda: fit_other(run_eagerly=True)),
        read_error(lambda: fit_other(steps_per_execution=2)),
        *([read_error(fit_other)] if has_rules else []),
    ]


def load_elsewhere(config: dict[str, Any]) -> tuple[list[Any], float]:
    """Load what another world has saved; return the weights, and how much of them this rank has."""
    from hocket.train import keras as adapter

    model = adapter.prepare_model(make_model(1))
    data = adapter.prepare_arrays(*make_rows(), batch_size=BATCH, resume=False)
    model.evaluate(data, verbose=0)  # the model is spread now, so its layouts are known
    values = mesh.load(config["saved"], like={weight.path: weight.value for weight in model.weights})
    for weight in model.weights:
        weight.assign(values[weight.path])
    model.evaluate(data, verbose=0)
    return model.get_weights(), count_kept(model.trainable_weights)


def count_rows(seen: list[list[list[list[float]]]], epoch: int, num_parts: int) -> Counter[float]:
    """Return how often each row was in a step of an epoch: once if one rank read it, or all."""
    counts: Counter[float] = Counter()
    for step in zip(*(of_rank[epoch] for of_rank in seen[:num_parts]), strict=True):
        counts.update(step[0] if all(rows == step[0] for rows in step) else [row for rows in step for row in rows])
    return counts
