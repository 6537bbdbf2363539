"""One training function for each framework: the same data, the same model, the same life.

Each trains a softmax regression for three epochs and reports after each with a checkpoint. In epoch 1 of the first
attempt rank 1 kills itself. The second attempt goes on from the checkpoint. In the end all ranks evaluate together, on
rows that do not divide evenly. Frameworks are imported in the functions, so that one can run without the others.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from hocket import train
from hocket.testing.suites.programs import wait_until
from hocket.train import world

ROWS, FEATURES, CLASSES, EPOCHS, BATCH = 65, 8, 3, 3, 8


def make_data() -> tuple[Any, Any]:
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(ROWS, FEATURES)).astype("float32")
    return rows, (rows @ generator.normal(size=(FEATURES, CLASSES))).argmax(1)


def compute_accuracy(kernel: Any, bias: Any) -> float:
    """What one process would find."""
    rows, labels = make_data()
    return float(((rows @ np.asarray(kernel) + np.asarray(bias)).argmax(1) == labels).mean())


def maybe_die(config: dict[str, Any], epoch: int) -> None:
    """Rank 1 of the first attempt kills itself when it knows of a checkpoint, and leaves a note of when."""
    note = Path(config["folder"], "killed")
    if epoch == 1 and train.get_context().get_world_rank() == 1 and not note.exists():
        wait_until(lambda: train.get_checkpoint() is not None)  # on servers it is not held up by the rank that saves
        note.write_text(repr(time.time()))
        os.kill(os.getpid(), signal.SIGKILL)


def note_start(config: dict[str, Any], epoch: int) -> None:
    if train.get_context().get_world_rank() == 0:
        with Path(config["folder"], "began").open("a") as file:
            file.write(f"{epoch} ")


def train_torch(config: dict[str, Any]) -> dict[str, Any]:
    import torch
    from torch.utils import data

    from hocket.train import torch as adapter

    rows, labels = make_data()
    examples = data.TensorDataset(torch.from_numpy(rows), torch.from_numpy(labels))
    loader = adapter.prepare_data_loader(data.DataLoader(examples, batch_size=BATCH, shuffle=True))
    model = adapter.prepare_model(torch.nn.Linear(FEATURES, CLASSES))
    inner: Any = getattr(model, "module", model)
    optimizer = adapter.prepare_optimizer(torch.optim.SGD(model.parameters(), lr=0.5))
    checkpoint = train.get_checkpoint()
    if checkpoint is not None:
        saved = np.load(Path(checkpoint.path, "weights.npz"))
        inner.load_state_dict({"weight": torch.from_numpy(saved["kernel"].T), "bias": torch.from_numpy(saved["bias"])})
    note_start(config, loader.epoch)
    weights: dict[str, Any] = {}
    for epoch in range(loader.epoch, EPOCHS):
        for batch, targets in loader:
            maybe_die(config, epoch)
            loss = torch.nn.functional.cross_entropy(model(batch), targets) * loader.loss_scale
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        train.collective.barrier()  # on servers the others may still push
        adapter.synchronize()
        with tempfile.TemporaryDirectory() as folder:
            whole = [value.full_tensor() if hasattr(value, "full_tensor") else value for value in inner.parameters()]
            weights = {"kernel": whole[0].detach().numpy().T, "bias": whole[1].detach().numpy()}
            np.savez(Path(folder, "weights.npz"), **weights)
            train.report({"epoch": epoch}, train.Checkpoint(folder))
    accuracy = adapter.GlobalMean()
    held = adapter.prepare_data_loader(data.DataLoader(examples, batch_size=BATCH), name="held")
    for batch, targets in held:
        accuracy.add(model(batch).argmax(1) == targets, held.weights)
    return {"accuracy": accuracy.compute(), "kernel": weights["kernel"].copy(), "bias": weights["bias"].copy()}


def train_jax(config: dict[str, Any]) -> dict[str, Any]:
    import jax
    import jax.numpy as jnp
    import optax

    from hocket.train import jax as adapter

    data = make_data()
    loader = adapter.prepare_arrays(data, BATCH, shuffle=True)
    params = adapter.prepare_params({"kernel": jnp.zeros((FEATURES, CLASSES)), "bias": jnp.zeros(CLASSES)})
    optimizer = adapter.prepare_optimizer(optax.sgd(0.5))
    state = optimizer.init(params)
    checkpoint = train.get_checkpoint()
    if checkpoint is not None:
        params = adapter.load_pytree(Path(checkpoint.path, "weights.npz"), params)

    @jax.jit
    def step(params: Any, state: Any, batch: Any, weights: Any) -> Any:
        def compute_loss(params: Any) -> Any:
            logits = batch[0] @ params["kernel"] + params["bias"]
            return (optax.softmax_cross_entropy_with_integer_labels(logits, batch[1]) * weights).mean()

        updates, state = optimizer.update(jax.grad(compute_loss)(params), state, params)
        return optax.apply_updates(params, updates), state

    note_start(config, loader.epoch)
    whole: Any = None
    for epoch in range(loader.epoch, EPOCHS):
        for batch, weights in loader:
            maybe_die(config, epoch)
            params, state = step(params, state, batch, weights)
        train.collective.barrier()  # on servers the others may still push
        params, state = adapter.synchronize(params, state)
        with tempfile.TemporaryDirectory() as folder:
            whole = adapter.gather(params)
            adapter.save_pytree(Path(folder, "weights.npz"), whole)
            train.report({"epoch": epoch}, train.Checkpoint(folder))
    accuracy = adapter.GlobalMean()
    for batch, weights in adapter.prepare_arrays(data, BATCH, name="held"):
        accuracy.add((batch[0] @ params["kernel"] + params["bias"]).argmax(1) == batch[1], weights > 0)
    return {"accuracy": accuracy.compute(), **{name: np.asarray(value) for name, value in whole.items()}}


def train_keras(config: dict[str, Any]) -> dict[str, Any]:
    import keras

    from hocket.train import keras as adapter

    x, y = make_data()
    model = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(CLASSES)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.5), loss, metrics=["accuracy"])
    model = adapter.prepare_model(model)
    data = adapter.prepare_arrays(x, y, batch_size=BATCH, shuffle=True)
    checkpoint = train.get_checkpoint()
    if checkpoint is not None:
        adapter.load_weights(model, checkpoint.path)
    note_start(config, data.epoch)

    class Life(keras.callbacks.Callback):  # type: ignore[misc]  # Keras is not type-checked
        epoch = 0

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.epoch = epoch

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            maybe_die(config, self.epoch)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            logs["epoch"] = epoch

    report = adapter.ReportCheckpointCallback(metrics=["epoch"])
    model.fit(data, epochs=EPOCHS, initial_epoch=data.epoch, verbose=0, callbacks=[Life(), report])
    held = adapter.prepare_arrays(x, y, batch_size=BATCH, resume=False)
    kernel, bias = model.get_weights()
    found = model.evaluate(held, verbose=0, return_dict=True)
    return {"accuracy": found["accuracy"], "kernel": kernel, "bias": bias}


def train_tf_keras(config: dict[str, Any]) -> dict[str, Any]:
    import tensorflow as tf

    from hocket.train import tensorflow as adapter
    from hocket.train.frameworks import weights
    from hocket.train.tensorflow.keras import ReportCheckpointCallback

    x, y = make_data()
    context = train.get_context()
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Input((FEATURES,)), tf.keras.layers.Dense(CLASSES)])
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(tf.keras.optimizers.SGD(0.5), loss, metrics=["accuracy"])
    start = 0
    checkpoint = train.get_checkpoint()
    if checkpoint is not None:
        saved = weights.load(checkpoint.path)
        model.set_weights([saved["dense/kernel"], saved["dense/bias"]])
        start = int(Path(config["folder"], "done").read_text()) + 1
    note_start(config, start)
    rows = tf.data.Dataset.from_tensor_slices((x, y)).shard(2, context.get_world_rank()).batch(BATCH).repeat()

    class Life(tf.keras.callbacks.Callback):  # type: ignore[misc]  # Keras is not type-checked
        epoch = 0

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.epoch = epoch

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            maybe_die(config, self.epoch)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            logs["epoch"] = epoch

    class Note(tf.keras.callbacks.Callback):  # type: ignore[misc]  # the same
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if context.get_world_rank() == 0:
                Path(config["folder"], "done").write_text(str(epoch))

    report = ReportCheckpointCallback(metrics=["epoch"])
    shard = adapter.prepare_dataset_shard(rows)
    model.fit(
        shard, epochs=EPOCHS, initial_epoch=start, steps_per_epoch=4, verbose=0, callbacks=[Life(), report, Note()]
    )
    kernel, bias = model.get_weights()
    return {"accuracy": None, "kernel": kernel, "bias": bias}


def train_numpy(config: dict[str, Any]) -> dict[str, Any]:
    from tests.matrix import numpy_framework as adapter

    data = make_data()
    zeros = np.zeros((FEATURES, CLASSES), np.float32), np.zeros(CLASSES, np.float32)
    model = adapter.Model(*zeros, lr=0.5)
    rows = adapter.Rows(data, BATCH, shuffle=True)
    checkpoint = train.get_checkpoint()
    if checkpoint is not None:
        adapter.FRAMEWORK.load_weights(model, checkpoint.path)
    adapter.prepare(model)
    note_start(config, rows.epoch)
    for epoch in range(rows.epoch, EPOCHS):
        model.runtime.begin_epoch(model)
        for batch, targets in rows:
            maybe_die(config, epoch)
            model.step(batch, targets, len(batch) if rows.weights.any() else 0)
        model.runtime.synchronize(model)
        with tempfile.TemporaryDirectory() as folder:
            adapter.FRAMEWORK.save_weights(model, folder)
            train.report({"epoch": epoch}, train.Checkpoint(folder))
    held = adapter.Rows(data, BATCH, "held")
    right = np.zeros(2)
    for batch, targets in held:
        right += (((batch @ model.kernel + model.bias).argmax(1) == targets) @ held.weights, held.weights.sum())
    world.get_world("numpy").all_reduce(right)
    return {"accuracy": right[0] / right[1], "kernel": model.kernel, "bias": model.bias}
