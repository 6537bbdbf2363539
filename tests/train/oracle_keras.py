"""Optimizers of Keras on random small models: in ranks by way of a trainer, and in the process of rank 0 with nothing
but Keras.

The plain models are trained in a rank, since a process has one backend of Keras for good; they are never prepared.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import keras
import numpy as np

from hocket.train import keras as hocket_keras
from hocket.train import strategies
from hocket.train.frameworks.keras import variables
from hocket.train.rank import world

Arrays = list[Any]

STEPS: Final = 6
ROWS: Final = 4
IDS: Final = 10

optimizers = keras.optimizers
schedules = keras.optimizers.schedules

OPTIMIZERS: Final[Mapping[str, Callable[[], Any]]] = {
    "SGD": lambda: optimizers.SGD(0.1),
    "SGD momentum": lambda: optimizers.SGD(0.05, momentum=0.9),
    "SGD nesterov": lambda: optimizers.SGD(0.05, momentum=0.9, nesterov=True),
    "SGD decay": lambda: optimizers.SGD(0.1, weight_decay=0.1),
    "Adam": lambda: optimizers.Adam(0.02, epsilon=1e-4),
    "AdamW": lambda: optimizers.AdamW(0.02, epsilon=1e-4, weight_decay=0.1),
    "Adagrad": lambda: optimizers.Adagrad(0.1),
    "schedule": lambda: optimizers.Adam(schedules.CosineDecay(0.1, STEPS), epsilon=1e-4),
    "Adam amsgrad": lambda: optimizers.Adam(0.02, epsilon=1e-4, amsgrad=True),
    "Adadelta": lambda: optimizers.Adadelta(1.0),
    "Adafactor": lambda: optimizers.Adafactor(0.02),
    "Adamax": lambda: optimizers.Adamax(0.02, epsilon=1e-4),
    "Ftrl": lambda: optimizers.Ftrl(0.1, l1_regularization_strength=0.01, l2_regularization_strength=0.01),
    "Lamb": lambda: optimizers.Lamb(0.02, epsilon=1e-4),
    "Lion": lambda: optimizers.Lion(0.02),
    "LossScaleOptimizer": lambda: optimizers.LossScaleOptimizer(optimizers.SGD(0.1, momentum=0.9), initial_scale=64.0),
    "Muon": lambda: optimizers.Muon(0.02),
    "Nadam": lambda: optimizers.Nadam(0.02, epsilon=1e-4),
    "RMSprop": lambda: optimizers.RMSprop(0.02, epsilon=1e-4),
    "RMSprop centered": lambda: optimizers.RMSprop(0.02, epsilon=1e-3, centered=True, momentum=0.9),
    "ScheduleFreeAdamW": lambda: optimizers.ScheduleFreeAdamW(0.02, epsilon=1e-4),
    "clipnorm": lambda: optimizers.Adam(0.02, epsilon=1e-4, clipnorm=0.05),
    "global_clipnorm": lambda: optimizers.SGD(0.5, global_clipnorm=0.05),
    "clipvalue": lambda: optimizers.SGD(0.5, clipvalue=0.02),
    "ema": lambda: optimizers.SGD(0.1, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=2),
    "accumulation": lambda: optimizers.Adam(0.05, epsilon=1e-4, gradient_accumulation_steps=2),
    "Adagrad decay": lambda: optimizers.Adagrad(0.1, weight_decay=0.1),
    "SGD momentum decay": lambda: optimizers.SGD(0.1, momentum=0.9, weight_decay=0.1),
}

ON_SERVERS: Final = ("SGD", "SGD momentum", "SGD nesterov", "SGD decay", "Adam", "AdamW", "Adagrad", "schedule")
"""What servers apply."""

REFUSED_BY_SERVERS: Final[Mapping[str, str]] = {
    **{
        name: f"have no {name.partition(' ')[0]}. Use one of keras.optimizers: SGD, Adam, AdamW, Adagrad"
        for name in (
            *("Adadelta", "Adafactor", "Adamax", "Ftrl", "Lamb", "Lion", "LossScaleOptimizer", "Muon", "Nadam"),
            *("RMSprop", "RMSprop centered", "ScheduleFreeAdamW"),
        )
    },
    "Adam amsgrad": "have no Adam(amsgrad=True). Leave amsgrad out",
    "clipnorm": "have no Adam(clipnorm=0.05). Leave clipnorm out",
    "global_clipnorm": "have no SGD(global_clipnorm=0.05). Leave global_clipnorm out",
    "clipvalue": "have no SGD(clipvalue=0.02). Leave clipvalue out",
    "ema": "have no SGD(use_ema=True). Leave use_ema out",
    "accumulation": "have no Adam(gradient_accumulation_steps=2). Leave gradient_accumulation_steps out",
    "Adagrad decay": "have no Adagrad(weight_decay=0.1), as Keras computes it. Leave weight_decay out",
    "SGD momentum decay": r"have no SGD with both momentum=0.9 and weight_decay=0.1, as Keras computes it. Use AdamW",
}


# --- models -----------------------------------------------------------------------------------------------------------


def build(name: str, has_table: bool, *, is_eager: bool = False) -> Any:
    """Return a compiled model of random sizes, with an embedding or without."""
    draw = np.random.default_rng([*name.encode(), has_table])
    given, wide = (int(one) for one in draw.integers(2, 6, 2))
    layers: list[Any] = [keras.Input((2,), dtype="int32") if has_table else keras.Input((given,))]
    if has_table:
        layers += [keras.layers.Embedding(IDS, given), keras.layers.Flatten()]
    layers += [keras.layers.Dense(wide, activation="tanh"), keras.layers.Dense(2)]
    model = keras.Sequential(layers)
    model.set_weights([draw.normal(size=weight.shape).astype("float32") / 2 for weight in model.get_weights()])
    model.compile(OPTIMIZERS[name](), "mse", run_eagerly=is_eager)
    return model


def make_rows(name: str, model: Any, numbers: Sequence[int]) -> tuple[Any, Any]:
    """Return the batches of several numbers. Ids are few, so that most batches name some of them twice."""
    xs, ys = [], []
    for number in numbers:
        draw = np.random.default_rng([*name.encode(), 100 + number])
        shape = (ROWS, *model.input_shape[1:])
        is_ids = keras.backend.standardize_dtype(model.inputs[0].dtype) == "int32"
        xs.append(draw.integers(0, IDS, shape).astype("int32") if is_ids else draw.normal(size=shape).astype("float32"))
        ys.append(draw.normal(size=(ROWS, 2)).astype("float32"))
    return np.concatenate(xs), np.concatenate(ys)


def batch_number(rank: int, step: int) -> int:
    return 10 * step + rank


def read(model: Any) -> Arrays:
    return [variables.read(weight) for weight in model.weights]


def fit_plainly(model: Any, x: Any, y: Any, rows: int, **given: Any) -> None:
    model.fit(x, y, batch_size=rows, shuffle=False, verbose=0, **given)


# --- in a rank --------------------------------------------------------------------------------------------------------


def train_in_rank(config: dict[str, Any]) -> Any:
    """The training function; returns all ranks' weights by case, and in rank 0 what `config["oracle"]` has computed."""
    joined, found, expected = world.get_world("test"), {}, {}
    for name, has_table in config["cases"]:
        model = build(name, has_table, is_eager=config["is_eager"])
        x, y = make_rows(name, model, [batch_number(joined.rank, step) for step in range(config["steps"])])
        if joined.rank:
            model.set_weights([weight + 1 for weight in model.get_weights()])
        fit_plainly(hocket_keras.prepare_model(model), x, y, ROWS)
        found[name, has_table] = read(model)
        if joined.rank == 0:
            expected[name, has_table] = config["oracle"](name, has_table, joined.size, config)
    return keras.backend.backend(), joined.all_gather_object(found), expected


def train_once(config: dict[str, Any]) -> None:
    """Train a model for a step."""
    model = build(config["name"], has_table=False)
    fit_plainly(hocket_keras.prepare_model(model), *make_rows(config["name"], model, [0]), ROWS)


def prepare_twice(config: dict[str, Any]) -> None:
    """Prepare two models."""
    for name in ("SGD", "Adam"):
        hocket_keras.prepare_model(build(name, has_table=False))


def train_on_arrays(config: dict[str, Any]) -> Any:
    """The same with prepared arrays, of which the last step has one row for all ranks."""
    joined, found, expected = world.get_world("test"), {}, {}
    for name, has_table in config["cases"]:
        model, plain = (build(name, has_table, is_eager=config["is_eager"]) for _ in range(2))
        x, y = (part[:-7] for part in make_rows(name, model, range(STEPS)))
        data = hocket_keras.prepare_arrays(x, y, batch_size=ROWS, shuffle=False, resume=False)
        hocket_keras.prepare_model(model).fit(data, epochs=2, verbose=0)
        found[name, has_table] = read(model)
        if joined.rank == 0:
            fit_plainly(plain, x, y, joined.size * ROWS, epochs=2)
            expected[name, has_table] = [read(plain)]
    return keras.backend.backend(), joined.all_gather_object(found), expected


# --- with Keras alone -------------------------------------------------------------------------------------------------


def train_together(name: str, has_table: bool, size: int, config: Mapping[str, Any]) -> list[Arrays]:
    """Each step takes the rows of all ranks."""
    model = build(name, has_table, is_eager=config["is_eager"])
    pairs = itertools.product(range(config["steps"]), range(size))
    x, y = make_rows(name, model, [batch_number(rank, step) for step, rank in pairs])
    fit_plainly(model, x, y, size * ROWS)
    return [read(model)]


def train_in_some_order(name: str, has_table: bool, size: int, config: Mapping[str, Any]) -> list[Arrays]:
    """One step with the rows of a rank after the other, in each order that there is."""
    steps = config["steps"]
    found = []
    for order in sorted(set(itertools.permutations([rank for rank in range(size) for _ in range(steps)]))):
        model = build(name, has_table, is_eager=config["is_eager"])
        taken = [order[:place].count(rank) for place, rank in enumerate(order)]
        fit_plainly(model, *make_rows(name, model, list(map(batch_number, order, taken))), ROWS)
        found.append(read(model))
    return found


def train_apart(name: str, has_table: bool, size: int, config: Mapping[str, Any]) -> list[Arrays]:
    """Each rank steps on its own, and now and then they meet."""
    strategy: strategies.LocalSGD = config["strategy"]
    models = [build(name, has_table, is_eager=config["is_eager"]) for _ in range(size)]
    outer = strategy.outer
    assert outer is None or isinstance(outer, strategies.Nesterov)
    anchors = read(models[0])
    speeds = [np.zeros_like(anchor) for anchor in anchors]

    def meet() -> None:
        nonlocal anchors, speeds
        means = [sum(values) / size for values in zip(*map(read, models), strict=True)]
        if outer is not None:
            slopes = [anchor - mean for anchor, mean in zip(anchors, means, strict=True)]
            speeds = [outer.momentum * speed + slope for speed, slope in zip(speeds, slopes, strict=True)]
            means = [
                anchor - outer.lr * (slope + outer.momentum * speed)
                for anchor, slope, speed in zip(anchors, slopes, speeds, strict=True)
            ]
        anchors = means
        for model in models:
            model.set_weights(anchors)

    apart = -strategy.begin_after
    for step in range(config["steps"]):
        everybody = range(size)
        for rank, model in enumerate(models):
            ranks = everybody if apart < 0 else [rank]
            model.train_on_batch(*make_rows(name, model, [batch_number(one, step) for one in ranks]))
        apart += 1
        if apart == 0:
            anchors = read(models[0])
        if apart == strategy.sync_every:
            meet()
            apart = 0
    if apart > 0:
        meet()
    return [read(models[0])]
