"""Records what training computes, to the bit: weights, reports and the order of rows, by framework and strategy.

    python tools/goldens.py record before.json     # another checkout's: PYTHONPATH=/a/checkout/src:/a/checkout
    python tools/goldens.py compare before.json after.json

For changes that must not change a result. The figures are those of one machine and one set of versions, so none are
kept here: record both sides on one. What two ranks do on parameter servers depends on
who comes first, so these cells have one rank, or two that take turns.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import hocket
from hocket import train
from hocket.train.strategies import AllReduce, LocalSGD, Nesterov, ParameterServer, PowerSGD, Sharded, Strategy

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

ROWS, FEATURES, IDS, CLASSES, EPOCHS, BATCH = 85, 6, 11, 3, 3, 8
STRATEGIES: dict[str, Strategy] = {
    "AllReduce": AllReduce(),
    "AllReduce(bf16)": AllReduce(compression="bf16"),
    "AllReduce(fp16)": AllReduce(compression="fp16"),
    "LocalSGD": LocalSGD(3),
    "LocalSGD(begin_after)": LocalSGD(2, begin_after=4),
    "LocalSGD(Nesterov)": LocalSGD(3, outer=Nesterov(), begin_after=2),
    "ParameterServer": ParameterServer(),
    "ParameterServer(tables)": ParameterServer(2, min_table_rows=5),
}
TORCH_ONLY = {"AllReduce(PowerSGD)": AllReduce(compression=PowerSGD(begin_after=3))}
SHARDED = {"Sharded": Sharded(mesh={"data": 2}, shard_along=["data"])}
"""Of PyTorch and JAX, in two processes."""


def make_data() -> tuple[Any, Any, Any]:
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(ROWS, FEATURES)).astype("float32")
    ids = generator.integers(0, IDS, ROWS).astype("int32")
    labels = (rows @ generator.normal(size=(FEATURES, CLASSES)) + (ids % CLASSES)[:, None]).argmax(1)
    return rows, ids, labels.astype("int64")


def note(config: dict[str, Any], seen: list[Any]) -> None:
    """Leave the order of this rank's rows where the driver finds it."""
    rank = train.get_context().get_world_rank()
    Path(config["folder"], f"order-{rank}").write_text(digest(np.concatenate(seen)))


def digest(values: Any) -> str:
    values = np.ascontiguousarray(values)
    return f"{values.dtype}{list(values.shape)} {hashlib.sha256(values.tobytes()).hexdigest()[:32]}"


def train_torch(config: dict[str, Any]) -> dict[str, Any]:
    import torch
    from torch.utils import data

    from hocket.train import torch as adapter

    adapter.enable_reproducibility(7)
    rows, ids, labels = make_data()
    rows_of_all = data.TensorDataset(
        torch.from_numpy(rows), torch.from_numpy(ids.astype("int64")), torch.from_numpy(labels), torch.arange(ROWS)
    )
    loader = adapter.prepare_data_loader(data.DataLoader(rows_of_all, batch_size=BATCH, shuffle=True))

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(IDS, FEATURES)
            self.norm = torch.nn.BatchNorm1d(FEATURES)
            self.out = torch.nn.Linear(FEATURES, CLASSES)

        def forward(self, rows: Any, ids: Any) -> Any:
            return self.out(self.norm(rows) + self.table(ids))

    model = adapter.prepare_model(Net())
    optimizer = adapter.prepare_optimizer(torch.optim.Adam(model.parameters(), lr=0.05))
    seen: list[Any] = []
    loss: Any = None
    for epoch in range(loader.epoch, EPOCHS):
        for batch, numbers, targets, places in loader:
            seen.append(places.numpy())
            loss = torch.nn.functional.cross_entropy(model(batch, numbers), targets) * loader.loss_scale
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        adapter.synchronize()
        train.report({"epoch": epoch, "loss": float(loss.detach()).hex()})
    note(config, seen)
    inner = getattr(model, "module", model)
    whole = {
        name: value.full_tensor() if hasattr(value, "full_tensor") else value
        for name, value in inner.state_dict().items()
    }
    return {name: digest(value.detach().numpy()) for name, value in whole.items()}


def train_jax(config: dict[str, Any]) -> dict[str, Any]:
    import jax
    import jax.numpy as jnp
    import optax

    from hocket import ps
    from hocket.train import jax as adapter

    rows, ids, labels = make_data()
    loader = adapter.prepare_arrays((rows, ids, labels, np.arange(ROWS)), BATCH, shuffle=True)
    generator = np.random.default_rng(1)
    params = adapter.prepare_params(
        {
            "table": jnp.asarray(generator.normal(size=(IDS, FEATURES)).astype("float32")),
            "kernel": jnp.asarray(generator.normal(size=(FEATURES, CLASSES)).astype("float32")),
            "bias": jnp.zeros(CLASSES),
        }
    )
    optimizer = adapter.prepare_optimizer(ps.Adam(lr=0.05) if config.get("on_servers") else optax.adam(0.05))
    state = optimizer.init(params)

    @jax.jit  # type: ignore[untyped-decorator]  # JAX is not type-checked
    def step(params: Any, state: Any, batch: Any, weights: Any) -> Any:
        def compute_loss(params: Any) -> Any:
            logits = (batch[0] + params["table"][batch[1]]) @ params["kernel"] + params["bias"]
            return (optax.softmax_cross_entropy_with_integer_labels(logits, batch[2]) * weights).mean()

        loss, gradients = jax.value_and_grad(compute_loss)(params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss

    seen: list[Any] = []
    loss: Any = None
    for epoch in range(loader.epoch, EPOCHS):
        for batch, weights in loader:
            seen.append(np.asarray(batch[3].addressable_data(0)))
            params, state, loss = step(params, state, batch, weights)
        params, state = adapter.synchronize(params, state)
        train.report({"epoch": epoch, "loss": float(loss).hex()})
    note(config, seen)
    return {name: digest(value) for name, value in adapter.gather(params).items()}


def train_keras(config: dict[str, Any]) -> dict[str, Any]:
    import keras

    from hocket.train import keras as adapter

    adapter.enable_reproducibility(3)
    rows, ids, labels = make_data()
    given = keras.Input((FEATURES,))
    numbers = keras.Input((), dtype="int32")
    hidden = keras.layers.BatchNormalization()(given) + keras.layers.Embedding(IDS, FEATURES)(numbers)
    model = keras.Model([given, numbers], keras.layers.Dense(CLASSES)(hidden))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.05), loss, metrics=["accuracy"])
    model = adapter.prepare_model(model)
    data = adapter.prepare_arrays((rows, ids), labels, batch_size=BATCH, shuffle=True)
    history: list[Any] = []

    class Note(keras.callbacks.Callback):  # type: ignore[misc]  # Keras is not type-checked
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            history.append(sorted(logs))

    report = adapter.ReportCheckpointCallback()
    model.fit(data, epochs=EPOCHS, verbose=0, callbacks=[Note(), report])
    found = model.evaluate(
        adapter.prepare_arrays((rows, ids), labels, batch_size=BATCH, resume=False), verbose=0, return_dict=True
    )
    weights = {str(number): digest(value) for number, value in enumerate(model.get_weights())}
    return {**weights, "accuracy": float(found["accuracy"]).hex(), "logs": history}


def train_tf_keras(config: dict[str, Any]) -> dict[str, Any]:
    import tensorflow as tf

    from hocket.train import tensorflow as adapter
    from hocket.train.tensorflow.keras import ReportCheckpointCallback

    tf.keras.utils.set_random_seed(5)
    rows, _, labels = make_data()
    context = train.get_context()
    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        model = tf.keras.Sequential([tf.keras.layers.Input((FEATURES,)), tf.keras.layers.Dense(CLASSES)])
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(tf.keras.optimizers.SGD(0.5), loss, metrics=["accuracy"])
    data = tf.data.Dataset.from_tensor_slices((rows, labels)).shard(2, context.get_world_rank()).batch(BATCH).repeat()
    shard = adapter.prepare_dataset_shard(data)
    model.fit(shard, epochs=EPOCHS, steps_per_epoch=4, verbose=0, callbacks=[ReportCheckpointCallback()])
    return {str(number): digest(value) for number, value in enumerate(model.get_weights())}


@dataclass(frozen=True)
class Cell:
    """One run."""

    name: str
    module: str
    """The adapter below `hocket.train`."""
    function: Callable[..., Any]
    strategy: Strategy | None
    num_workers: int
    engine: str = "local"
    config: Mapping[str, Any] = field(default_factory=dict)
    """What the training function is told, and the Keras backend."""


def list_cells() -> Iterator[Cell]:
    for name, module, function, config in (
        ("torch", "torch", train_torch, {}),
        ("jax", "jax", train_jax, {}),
        ("keras-tensorflow", "keras", train_keras, {"backend": "tensorflow"}),
        ("keras-torch", "keras", train_keras, {"backend": "torch"}),
        ("keras-jax", "keras", train_keras, {"backend": "jax"}),
    ):
        more = {**(TORCH_ONLY if name == "torch" else {}), **(SHARDED if name in ("torch", "jax") else {})}
        for title, strategy in {**STRATEGIES, **more}.items():
            size = 1 if isinstance(strategy, ParameterServer) else 2
            yield Cell(f"{name} {title}", module, function, strategy, size, config=config)
    on_servers = ParameterServer()
    yield Cell("jax ParameterServer(ps.Adam)", "jax", train_jax, on_servers, 1, config={"on_servers": True})
    yield Cell("tf_keras", "tensorflow", train_tf_keras, None, 2)
    for title, strategy in {**STRATEGIES, **TORCH_ONLY}.items():
        yield Cell(f"torch in turns {title}", "torch", train_torch, strategy, 2, "inprocess")


TRAINERS = {"torch": "TorchTrainer", "jax": "JaxTrainer", "keras": "KerasTrainer", "tensorflow": "TensorflowTrainer"}


def run_cell(cell: Cell) -> dict[str, Any]:
    folder = tempfile.mkdtemp()
    adapter = importlib.import_module(f"hocket.train.{cell.module}")
    given: dict[str, Any] = {} if cell.strategy is None else {"strategy": cell.strategy}
    if "backend" in cell.config:
        given["keras_config"] = adapter.KerasConfig(backend=cell.config["backend"])
    with hocket.init(engine=cell.engine, num_cpus=2, log_to_driver=False):
        result = getattr(adapter, TRAINERS[cell.module])(
            cell.function,
            train_loop_config={"folder": folder, **cell.config},
            scaling_config=train.ScalingConfig(num_workers=cell.num_workers),
            run_config=train.RunConfig(storage_path=folder),
            **given,
        ).fit()
    return {
        "returned": result.return_value,
        "reports": [{key: str(value) for key, value in row.items()} for row in result.metrics_history],
        "orders": {path.name: path.read_text() for path in sorted(Path(folder).glob("order-*"))},
    }


def record(path: Path, wanted: str) -> None:
    cells: dict[str, Any] = {}
    for cell in list_cells():
        if wanted not in cell.name:
            continue
        cells[cell.name] = run_cell(cell)
        text = json.dumps(cells[cell.name], sort_keys=True)
        print(f"{cell.name}: {hashlib.sha256(text.encode()).hexdigest()[:16]}", flush=True)
        path.write_text(json.dumps(cells, indent=1, sort_keys=True))


def compare(before: Path, after: Path) -> int:
    old, new = json.loads(before.read_text()), json.loads(after.read_text())
    different = [name for name in old if old[name] != new.get(name)]
    for name in different:
        print(f"{name}: differs\n  before {json.dumps(old[name])[:400]}\n  after  {json.dumps(new.get(name))[:400]}")
    print(f"{len(old) - len(different)} of {len(old)} cells are the same to the bit.")
    return 1 if different or not old else 0


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    logging.disable(logging.INFO)
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    recorder = commands.add_parser("record")
    recorder.add_argument("path", type=Path)
    recorder.add_argument("--only", default="", help="cells whose name has this")
    comparer = commands.add_parser("compare")
    comparer.add_argument("before", type=Path)
    comparer.add_argument("after", type=Path)
    asked = parser.parse_args()
    if asked.command == "compare":
        sys.exit(compare(asked.before, asked.after))
    record(asked.path, asked.only)
