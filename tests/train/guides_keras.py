"""Loops as Keras's guides write them, for two ranks and for one process with the whole batch.

Each program gets a `Kit` and returns arrays: weights, and metrics if they are to be the same. In the ranks the kit
prepares models and shares rows out; in the process of rank 0 it leaves the model as it is and has batches of twice the
size, in the same order. The plain models are trained in a rank, since a process has one backend of Keras for good.

With 65 rows and 32 a step, the last step has one row: of two ranks one has none.
"""

from __future__ import annotations

import random
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import keras
import numpy as np

from hocket.train import keras as hocket_keras
from hocket.train.rank import world

ROWS: Final = 65
WHOLE: Final = 32
"""Rows of a step, of all ranks together."""

ops, layers, losses, optimizers = keras.ops, keras.layers, keras.losses, keras.optimizers


@dataclass
class Kit:
    """What a program trains with."""

    rank: int | None
    """None: one process, nothing prepared."""
    folder: str

    def prepare(self, model: Any) -> Any:
        return model if self.rank is None else hocket_keras.prepare_model(model)

    def fit(self, model: Any, x: Any, y: Any = None, weights: Any = None, batch: int = WHOLE, **given: Any) -> Any:
        if self.rank is None:
            return model.fit(x, y, sample_weight=weights, batch_size=batch, shuffle=False, verbose=0, **given)
        data = hocket_keras.prepare_arrays(x, y, weights, batch_size=batch // 2, shuffle=False)
        return model.fit(data, verbose=0, **given)

    def slice(self, first: int, count: int) -> slice:
        """Return which rows of a whole batch are this one's."""
        half = (count + 1) // 2
        return slice(
            *{None: (first, first + count), 0: (first, first + half), 1: (first + half, first + count)}[self.rank]
        )


Program = Callable[[Kit], Sequence[Any]]
PROGRAMS: Final[dict[str, Program]] = {}
LIMITED: Final[dict[str, tuple[str, ...]]] = {}
"""Which programs are for some backends only."""


def guide(*backends: str) -> Callable[[Program], Program]:
    def note(program: Program) -> Program:
        name = program.__name__
        PROGRAMS[name] = program
        if backends:
            LIMITED[name] = backends
        return program

    return note


def list_programs(backend: str) -> list[str]:
    return [name for name in PROGRAMS if backend in LIMITED.get(name, (backend,))]


def run(kit: Kit, name: str) -> Any:
    """Return what a program returns, or the text of its error."""
    random.seed(7)
    keras.config.set_dtype_policy("float32")
    try:
        return [np.asarray(one, np.float64) for one in PROGRAMS[name](kit)]
    except Exception:  # noqa: BLE001 (the text is what is looked at)
        return traceback.format_exc()


def compare(names: Sequence[str]) -> Mapping[str, tuple[Any, list[Any]]]:
    """A training function: return what one process and the ranks make of programs."""
    joined = world.get_world("guides")
    found: dict[str, tuple[Any, list[Any]]] = {}
    for name in names:
        folder = joined.all_gather_object(tempfile.mkdtemp() if joined.rank == 0 else None)[0]
        mine = run(Kit(joined.rank, folder), name)
        ranks = joined.all_gather_object(mine)
        alone = run(Kit(None, tempfile.mkdtemp()), name) if joined.rank == 0 else None
        found[name] = (alone, ranks)
    return found


# --- data and models --------------------------------------------------------------------------------------------------


def rows(count: int = ROWS) -> tuple[Any, Any]:
    x = np.random.default_rng(0).normal(size=(count, 6)).astype("float32")
    return x, x.sum(axis=1, keepdims=True)


def classes(count: int = ROWS) -> tuple[Any, Any]:
    x, y = rows(count)
    return x, (y[:, 0] > 0).astype("int32") + (y[:, 0] > 2)


def sequences(count: int = ROWS) -> tuple[Any, Any]:
    """Tokens, of which the first half of each rank's batch has more."""
    generator = np.random.default_rng(1)
    x = generator.integers(1, 20, (count, 7)).astype("int32")
    x[np.arange(7)[None] >= np.where(np.arange(count) % 32 < 16, 2, 6)[:, None]] = 0
    return x, x % 3


def dense(units: int = 1, **given: Any) -> Any:
    return keras.Sequential([keras.Input((6,)), layers.Dense(4, "tanh"), layers.Dense(units, **given)])


def history(found: Any, *names: str) -> list[Any]:
    return [found.history[name] for name in names]


# --- compile and fit --------------------------------------------------------------------------------------------------


def train_dense(kit: Kit, optimizer: Any, loss: Any = "mse", metrics: Any = ("mae",), **given: Any) -> Sequence[Any]:
    model = dense()
    model.compile(optimizer, loss, metrics=list(metrics), **given)
    found = kit.fit(kit.prepare(model), *rows(), epochs=2)
    return [*model.get_weights(), *history(found, "loss", "mae")]


@guide()
def compile_and_fit(kit: Kit) -> Sequence[Any]:
    return train_dense(kit, "adam")


@guide()
def clipnorm(kit: Kit) -> Sequence[Any]:
    return train_dense(kit, optimizers.SGD(0.5, clipnorm=0.05))


@guide()
def global_clipnorm(kit: Kit) -> Sequence[Any]:
    return train_dense(kit, optimizers.SGD(0.5, global_clipnorm=0.05))


@guide()
def weights_averaged_over_time(kit: Kit) -> Sequence[Any]:
    return train_dense(kit, optimizers.SGD(0.1, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=2))


@guide()
def gradients_accumulated(kit: Kit) -> Sequence[Any]:
    return train_dense(kit, optimizers.SGD(0.1, gradient_accumulation_steps=2))


@guide()
def a_schedule(kit: Kit) -> Sequence[Any]:
    return train_dense(kit, optimizers.AdamW(optimizers.schedules.CosineDecay(0.1, 6), weight_decay=0.01))


@guide("jax", "torch")
def jit_compiled(kit: Kit) -> Sequence[Any]:
    if keras.backend.backend() == "torch":
        return train_dense(kit, "sgd")  # torch.compile takes a minute here; `auto` is what Keras chooses
    return train_dense(kit, "sgd", jit_compile=True)


@guide()
def run_eagerly(kit: Kit) -> Sequence[Any]:
    return train_dense(kit, "sgd", run_eagerly=True)


@guide()
def a_sum_for_a_loss(kit: Kit) -> Sequence[Any]:
    return train_dense(kit, optimizers.SGD(0.001), losses.MeanSquaredError(reduction="sum"))


class Pinball(keras.losses.Loss):  # type: ignore[misc]  # Keras is not type-checked
    def call(self, y_true: Any, y_pred: Any) -> Any:
        error = y_true - y_pred
        return ops.mean(ops.maximum(0.8 * error, -0.2 * error), axis=-1)


@guide()
def a_loss_that_is_a_class(kit: Kit) -> Sequence[Any]:
    return train_dense(kit, optimizers.SGD(0.1), Pinball())


@guide()
def a_loss_that_divides_a_sum(kit: Kit) -> Sequence[Any]:
    squares = losses.MeanSquaredError(reduction="sum")
    return train_dense(kit, optimizers.SGD(0.1), lambda y, p: squares(y, p) / ops.cast(ops.shape(y)[0], "float32"))


@guide()
def a_loss_that_is_a_function(kit: Kit) -> Sequence[Any]:
    return train_dense(kit, optimizers.SGD(0.1), lambda y, p: ops.mean(ops.square(y - p), axis=-1))


@guide()
def losses_are_scaled(kit: Kit) -> Sequence[Any]:
    return train_dense(kit, optimizers.LossScaleOptimizer(optimizers.SGD(0.1), initial_scale=1024.0))


@guide()
def one_rank_overflows(kit: Kit) -> Sequence[Any]:
    x, y = rows(64)
    x[20] = 1e30  # in rank 1's part of the first batch
    model = keras.Sequential([keras.Input((6,)), layers.Dense(1)])
    model.compile(optimizers.LossScaleOptimizer(optimizers.SGD(0.01)), "mse")
    kit.fit(kit.prepare(model), x, y, epochs=2)
    return [*model.get_weights(), ops.convert_to_numpy(model.optimizer.dynamic_scale)]


@guide()
def mixed_precision(kit: Kit) -> Sequence[Any]:
    keras.config.set_dtype_policy("mixed_float16")
    model = dense(dtype="float32")
    model.compile(optimizers.LossScaleOptimizer(optimizers.SGD(0.1), initial_scale=64.0), "mse")
    kit.fit(kit.prepare(model), *rows(), epochs=1)
    return list(model.get_weights())


@guide()
def weights_of_classes(kit: Kit) -> Sequence[Any]:
    x, y = classes()
    model = dense(3)
    model.compile("sgd", losses.SparseCategoricalCrossentropy(from_logits=True))
    found = kit.fit(kit.prepare(model), x, y, epochs=2, class_weight={0: 1.0, 1: 5.0, 2: 0.3})
    return [*model.get_weights(), *history(found, "loss")]


@guide()
def weights_of_samples(kit: Kit) -> Sequence[Any]:
    model = dense()
    model.compile("sgd", "mse", weighted_metrics=["mae"])
    found = kit.fit(kit.prepare(model), *rows(), np.linspace(0, 3, ROWS, dtype="float32"), epochs=2)
    return [*model.get_weights(), *history(found, "loss", "mae")]


@guide()
def a_mean_by_weights(kit: Kit) -> Sequence[Any]:
    model = dense()
    model.compile(optimizers.SGD(0.1), losses.MeanSquaredError(reduction="mean_with_sample_weight"))
    found = kit.fit(kit.prepare(model), *rows(), np.linspace(0, 3, ROWS, dtype="float32"), epochs=2)
    return [*model.get_weights(), *history(found, "loss")]


@guide()
def learning_rate_and_stopping(kit: Kit) -> Sequence[Any]:
    model = dense()
    model.compile(optimizers.SGD(0.3), "mse", metrics=["mae"])
    callbacks = [
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.7),
        keras.callbacks.ReduceLROnPlateau("val_loss", patience=1, min_delta=0.5),
        keras.callbacks.EarlyStopping("val_mae", patience=2, min_delta=0.3, restore_best_weights=True),
    ]
    found = kit.fit(kit.prepare(model), *rows(), epochs=5, callbacks=callbacks, validation_data=rows(20))
    return [*model.get_weights(), *history(found, "val_loss", "val_mae", "learning_rate")]


@guide()
def a_part_is_frozen_and_later_not(kit: Kit) -> Sequence[Any]:
    base = keras.Sequential([keras.Input((6,)), layers.Dense(4, "tanh")])
    base.trainable = False
    inputs = keras.Input((6,))
    model = kit.prepare(keras.Model(inputs, layers.Dense(1)(base(inputs, training=False))))
    model.compile(optimizers.SGD(0.1), "mse")
    kit.fit(model, *rows(), epochs=1)
    base.trainable = True
    model.compile(optimizers.SGD(0.01), "mse")
    kit.fit(model, *rows(), epochs=1)
    return list(model.get_weights())


# --- masks ------------------------------------------------------------------------------------------------------------


@guide()
def masks_of_an_embedding(kit: Kit) -> Sequence[Any]:
    inputs = keras.Input((7,), dtype="int32")
    steps = layers.LSTM(4, return_sequences=True)(layers.Embedding(20, 4, mask_zero=True)(inputs))
    model = keras.Model(inputs, layers.Dense(3)(steps))
    model.compile(optimizers.SGD(0.5), losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    found = kit.fit(kit.prepare(model), *sequences(), epochs=2)
    return [*model.get_weights(), *history(found, "loss", "accuracy")]


@guide()
def a_layer_that_masks(kit: Kit) -> Sequence[Any]:
    x, y = sequences()
    inputs = keras.Input((7, 2))
    steps = layers.GRU(4, return_sequences=True)(layers.Masking()(inputs))
    model = keras.Model(inputs, layers.Dense(1)(steps))
    model.compile(optimizers.SGD(0.1), "mse")
    given = np.repeat(x[..., None], 2, axis=-1).astype("float32") / 20
    found = kit.fit(kit.prepare(model), given, y[..., None].astype("float32"), epochs=2)
    return [*model.get_weights(), *history(found, "loss")]


@guide()
def classes_that_are_ignored(kit: Kit) -> Sequence[Any]:
    x, y = sequences()
    inputs = keras.Input((7,), dtype="int32")
    model = keras.Model(inputs, layers.Dense(3)(layers.Embedding(20, 4)(inputs)))
    model.compile(optimizers.SGD(0.5), losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=255))
    found = kit.fit(kit.prepare(model), x, np.where(x == 0, 255, y), epochs=2)
    return [*model.get_weights(), *history(found, "loss")]


@guide()
def masks_and_weights_of_two_outputs(kit: Kit) -> Sequence[Any]:
    x, y = sequences()
    inputs = keras.Input((7,), dtype="int32")
    embedded = layers.Embedding(20, 4, mask_zero=True)(inputs)
    each = layers.Dense(3, name="each", activity_regularizer="l2")(embedded)
    whole = layers.Dense(1, name="whole", kernel_regularizer="l2")(layers.GlobalAveragePooling1D()(embedded))
    model = keras.Model(inputs, {"each": each, "whole": whole})
    model.compile(
        optimizers.SGD(0.3),
        {"each": losses.SparseCategoricalCrossentropy(from_logits=True), "whole": "mse"},
        loss_weights={"each": 0.7, "whole": 0.3},
    )
    targets = {"each": y, "whole": x.sum(axis=1, keepdims=True).astype("float32") / 50}
    found = kit.fit(kit.prepare(model), x, targets, epochs=2)
    return [*model.get_weights(), *history(found, "loss")]


@guide()
def dense_on_sequences(kit: Kit) -> Sequence[Any]:
    x = np.random.default_rng(0).normal(size=(ROWS, 7, 4)).astype("float32")
    model = keras.Sequential([keras.Input((7, 4)), layers.LSTM(3, return_sequences=True), layers.Dense(3)])
    model.compile(optimizers.SGD(0.1), "mse")
    kit.fit(kit.prepare(model), x, x[..., :3])
    return list(model.get_weights())


# --- layers that keep something ---------------------------------------------------------------------------------------


class Counters(keras.layers.Layer):  # type: ignore[misc]  # the same
    """Counts rows and steps, and remembers a mean."""

    def build(self, shape: Any) -> None:
        def add(name: str, aggregation: Any, dtype: str = "float32") -> Any:
            return self.add_weight(
                name=name, shape=(), initializer="ones", trainable=False, aggregation=aggregation, dtype=dtype
            )

        self.seen, self.whole = add("seen", "sum"), add("whole", "sum", "int32")
        self.first, self.steps = add("first", "only_first_replica"), add("steps", "none", "int32")
        self.middle = add("middle", "mean")

    def call(self, inputs: Any, training: bool = False) -> Any:
        if training:
            count = ops.sum(ops.ones_like(inputs[:, 0]))
            self.seen.assign_add(count)
            self.whole.assign_add(ops.cast(count, "int32"))
            self.first.assign_add(1.0)
            self.steps.assign_add(1)
            self.middle.assign_add(2.0)
        return inputs


@guide()
def layers_that_count(kit: Kit) -> Sequence[Any]:
    model = keras.Sequential([keras.Input((6,)), Counters(), layers.Dense(1)])
    model.compile("sgd", "mse")
    kit.fit(kit.prepare(model), *rows(), epochs=3)
    return list(model.get_weights())


class Whole(keras.layers.Layer):  # type: ignore[misc]  # the same
    """Counts rows in whole numbers, and keeps nothing else."""

    def build(self, shape: Any) -> None:
        self.seen = self.add_weight(
            shape=(), initializer="zeros", trainable=False, aggregation="sum", dtype="int32", name="seen"
        )

    def call(self, inputs: Any, training: bool = False) -> Any:
        if training:
            self.seen.assign_add(ops.cast(ops.sum(ops.ones_like(inputs[:, 0])), "int32"))
        return inputs


@guide()
def a_layer_that_counts_in_whole_numbers(kit: Kit) -> Sequence[Any]:
    model = keras.Sequential([keras.Input((6,)), Whole(), layers.Dense(1)])
    model.compile("sgd", "mse")
    kit.fit(kit.prepare(model), *rows(), epochs=2)
    return list(model.get_weights())


@guide()
def batch_normalization(kit: Kit) -> Sequence[Any]:
    model = keras.Sequential([keras.Input((6,)), layers.BatchNormalization(), layers.Dense(1)])
    model.compile("sgd", "mse")
    kit.fit(kit.prepare(model), *rows(64), epochs=2)
    return list(model.get_weights())


@guide()
def dropout(kit: Kit) -> Sequence[Any]:
    model = keras.Sequential([keras.Input((6,)), layers.Dropout(0.5), layers.GaussianNoise(0.1), layers.Dense(1)])
    model.compile("sgd", "mse")
    kit.fit(kit.prepare(model), *rows(), epochs=2)
    return list(model.get_weights())


@guide()
def spectral_normalization(kit: Kit) -> Sequence[Any]:
    model = keras.Sequential([keras.Input((6,)), layers.SpectralNormalization(layers.Dense(4)), layers.Dense(1)])
    model.compile(optimizers.SGD(0.05), "mse")
    kit.fit(kit.prepare(model), *rows(), epochs=2)
    return list(model.get_weights())


@guide("jax", "tensorflow")  # torch refuses the second step of a stateful layer in plain Keras too
def a_stateful_layer(kit: Kit) -> Sequence[Any]:
    x = np.random.default_rng(0).normal(size=(64, 5, 2)).astype("float32")
    batch = WHOLE if kit.rank is None else WHOLE // 2
    inputs = keras.Input(batch_shape=(batch, 5, 2))
    model = keras.Model(inputs, layers.Dense(1)(layers.LSTM(3, stateful=True)(inputs)))
    model.compile(optimizers.SGD(0.1), "mse")
    kit.fit(kit.prepare(model), x, x[:, 0, :1], epochs=2)
    return [
        weight.numpy() if hasattr(weight, "numpy") else ops.convert_to_numpy(weight)
        for weight in model.trainable_weights
    ]


class ActivityLayer(keras.layers.Layer):  # type: ignore[misc]  # the same
    def call(self, inputs: Any) -> Any:
        self.add_loss(0.1 * ops.mean(ops.square(inputs)))
        return inputs


@guide()
def layers_that_add_losses(kit: Kit) -> Sequence[Any]:
    inputs = keras.Input((6,))
    hidden = ActivityLayer()(layers.Dense(4, kernel_regularizer=keras.regularizers.L2(0.01))(inputs))
    model = keras.Model(inputs, layers.Dense(1)(hidden))
    model.compile(optimizers.SGD(0.1), "mse")
    kit.fit(kit.prepare(model), *rows(), epochs=2)
    return list(model.get_weights())


# --- metrics ----------------------------------------------------------------------------------------------------------


def train_binary(kit: Kit, **given: Any) -> tuple[Any, Any]:
    x, y = rows()
    model = dense(activation="sigmoid")
    metrics = [keras.metrics.TruePositives(name="tp"), keras.metrics.AUC(name="auc"), keras.metrics.Precision(name="p")]
    model.compile("sgd", "binary_crossentropy", metrics=metrics)
    return model, kit.fit(kit.prepare(model), x, (y > 0).astype("float32"), epochs=2, **given)


@guide()
def metrics_that_count(kit: Kit) -> Sequence[Any]:
    x, y = rows(40)
    held = (x, (y > 0).astype("float32"))
    model, found = train_binary(kit, validation_data=held)
    evaluated = model.evaluate(*held, verbose=0)
    return [*history(found, "loss", "tp", "auc", "p", "val_tp", "val_loss", "val_p", "val_auc"), evaluated]


class Own(keras.Model):  # type: ignore[misc]  # the same
    """The guide's train_step, on each backend."""

    def find_loss(self, x: Any, y: Any, y_pred: Any) -> Any:
        return self.compute_loss(y=y, y_pred=y_pred)

    def note(self, loss: Any, y: Any, y_pred: Any) -> dict[str, Any]:
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred)
        return {metric.name: metric.result() for metric in self.metrics}

    if keras.backend.backend() == "torch":

        def train_step(self, data: Any) -> Any:
            import torch

            x, y = data
            self.zero_grad()
            y_pred = self(x, training=True)
            loss = self.find_loss(x, y, y_pred)
            loss.backward()
            with torch.no_grad():
                self.optimizer.apply([weight.value.grad for weight in self.trainable_weights], self.trainable_weights)
            return self.note(loss, y, y_pred)

    elif keras.backend.backend() == "tensorflow":

        def train_step(self, data: Any) -> Any:
            import tensorflow as tf

            x, y = data
            with tf.GradientTape() as tape:
                y_pred = self(x, training=True)
                loss = self.find_loss(x, y, y_pred)
            self.optimizer.apply(tape.gradient(loss, self.trainable_weights), self.trainable_weights)
            return self.note(loss, y, y_pred)

    else:

        def train_step(self, state: Any, data: Any) -> Any:  # type: ignore[misc]  # as Keras on JAX calls it
            import jax

            trained, kept, of_optimizer, of_metrics = state
            x, y = data

            def compute(trained: Any, kept: Any) -> Any:
                y_pred, kept = self.stateless_call(trained, kept, x, training=True)
                return self.find_loss(x, y, y_pred), (y_pred, kept)

            (loss, (y_pred, kept)), grads = jax.value_and_grad(compute, has_aux=True)(trained, kept)
            trained, of_optimizer = self.optimizer.stateless_apply(of_optimizer, grads, trained)
            mapping = list(zip(self.metrics_variables, of_metrics, strict=True))
            with keras.StatelessScope(state_mapping=mapping) as scope:
                logs = self.note(loss, y, y_pred)
            of_metrics = [scope.get_current_value(one) for one in self.metrics_variables]
            return logs, (trained, kept, of_optimizer, of_metrics)


@guide()
def a_train_step(kit: Kit) -> Sequence[Any]:
    inputs = keras.Input((6,))
    model = Own(inputs, layers.Dense(1)(inputs))
    model.compile(optimizers.SGD(0.1), "mse", metrics=["mae"])
    found = kit.fit(kit.prepare(model), *rows(), epochs=2)
    return [*model.get_weights(), *history(found, "mae")]


class Lower(Own):
    """Without compile's loss and metrics: the guide's "going lower level"."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.total, self.mae = keras.metrics.Mean(name="loss"), keras.metrics.MeanAbsoluteError(name="mae")
        self.squares = losses.MeanSquaredError()

    def find_loss(self, x: Any, y: Any, y_pred: Any) -> Any:
        return self.squares(y, y_pred)

    def note(self, loss: Any, y: Any, y_pred: Any) -> dict[str, Any]:
        self.total.update_state(loss)
        self.mae.update_state(y, y_pred)
        return {"total": self.total.result(), "mean": self.mae.result(), "last": loss}

    @property
    def metrics(self) -> Any:
        return [self.total, self.mae]


@guide()
def a_train_step_with_metrics_of_its_own(kit: Kit) -> Sequence[Any]:
    inputs = keras.Input((6,))
    model = Lower(inputs, layers.Dense(1)(inputs))
    model.compile(optimizers.SGD(0.1))
    found = kit.fit(kit.prepare(model), *rows(64), epochs=2)
    odd = kit.fit(model, *rows(), epochs=1)
    return [*model.get_weights(), *history(found, "total", "mean", "last"), *history(odd, "mean", "last")]


class Masked(Own):
    """A train_step that calls a loss with a mask by itself."""

    loss_of_steps = losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=255)

    def find_loss(self, x: Any, y: Any, y_pred: Any) -> Any:
        return self.loss_of_steps(y, y_pred)

    def note(self, loss: Any, y: Any, y_pred: Any) -> dict[str, Any]:
        return {"own": loss}


@guide()
def a_train_step_with_a_mask(kit: Kit) -> Sequence[Any]:
    x, y = sequences()
    inputs = keras.Input((7,), dtype="int32")
    model = Masked(inputs, layers.Dense(3)(layers.Embedding(20, 4)(inputs)))
    model.compile(optimizers.SGD(0.5))
    kit.fit(kit.prepare(model), x, np.where(x == 0, 255, y), epochs=2)
    return list(model.get_weights())


class Gan(keras.Model):  # type: ignore[misc]  # the same
    """Two optimizers, as in the guide of DCGAN; without noise, which differs between the ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.critic = keras.Sequential([keras.Input((6,)), layers.Dense(4, "tanh"), layers.Dense(1)])
        self.maker = keras.Sequential([keras.Input((2,)), layers.Dense(6)])
        self.loss_tracker = keras.metrics.Mean(name="d_loss")
        self.built = True

    def compile(self, d_optimizer: Any, g_optimizer: Any, loss_fn: Any) -> None:
        super().compile()
        self.d_optimizer, self.g_optimizer, self.loss_fn = d_optimizer, g_optimizer, loss_fn

    @property
    def metrics(self) -> Any:
        return [self.loss_tracker]

    def find_critics_loss(self, x: Any) -> Any:
        made = self.maker(x[:, :2])
        labels = ops.concatenate([ops.ones((ops.shape(x)[0], 1)), ops.zeros((ops.shape(x)[0], 1))])
        return self.loss_fn(labels, self.critic(ops.concatenate([x, made])))

    def find_makers_loss(self, x: Any) -> Any:
        return self.loss_fn(ops.ones((ops.shape(x)[0], 1)), self.critic(self.maker(x[:, :2])))

    def train_step(self, data: Any) -> Any:
        x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        for find, part, optimizer in (
            (self.find_critics_loss, self.critic, self.d_optimizer),
            (self.find_makers_loss, self.maker, self.g_optimizer),
        ):
            given = part.trainable_weights
            if keras.backend.backend() == "torch":
                import torch

                self.zero_grad()
                loss = find(x)
                loss.backward()
                with torch.no_grad():
                    optimizer.apply([weight.value.grad for weight in given], given)
            else:
                import tensorflow as tf

                with tf.GradientTape() as tape:
                    loss = find(x)
                optimizer.apply_gradients(zip(tape.gradient(loss, given), given, strict=True))
            if part is self.critic:
                self.loss_tracker.update_state(loss)
        return {"d_loss": self.loss_tracker.result()}


@guide("torch", "tensorflow")
def two_optimizers(kit: Kit) -> Sequence[Any]:
    model = Gan()
    model.compile(optimizers.Adam(0.01), optimizers.SGD(0.05), losses.BinaryCrossentropy(from_logits=True))
    kit.fit(kit.prepare(model), rows()[0], epochs=2)
    return list(model.get_weights())


class Vae(keras.Model):  # type: ignore[misc]  # the same
    """A model of two parts without ``call``; it passes its mean on, since noise differs between the ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = keras.Sequential([keras.Input((6,)), layers.Dense(2)])
        self.decoder = keras.Sequential([keras.Input((2,)), layers.Dense(6)])
        self.total = keras.metrics.Mean(name="total_loss")

    @property
    def metrics(self) -> Any:
        return [self.total]

    def train_step(self, data: Any) -> Any:
        x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss = ops.mean(ops.sum(ops.square(self.decoder(self.encoder(x)) - x), axis=1))
        given = self.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, given), given, strict=True))
        self.total.update_state(loss)
        return {"loss": self.total.result()}


@guide("tensorflow")  # PyTorch and JAX refuse it in plain Keras too
def a_model_without_call(kit: Kit) -> Sequence[Any]:
    model = Vae()
    model.compile(optimizers.Adam(0.01))
    kit.fit(kit.prepare(model), rows()[0], epochs=2)
    return list(model.get_weights())


# --- loops by hand ----------------------------------------------------------------------------------------------------


@guide()
def batch_by_batch(kit: Kit) -> Sequence[Any]:
    x, y = rows(70)
    model = dense()
    if kit.rank:
        model.set_weights([weight + 1 for weight in model.get_weights()])
    model.compile(optimizers.SGD(0.1), "mse", metrics=["mae"])
    kit.prepare(model)
    found = []
    for first in range(0, 70, 16):
        part = kit.slice(first, min(16, 70 - first))
        found.append(model.train_on_batch(x[part], y[part]))
    part = kit.slice(0, 33)
    tested = model.test_on_batch(x[part], y[part], return_dict=True)
    return [*model.get_weights(), found, [tested["loss"], tested["mae"]]]


@guide()
def a_loop_by_hand(kit: Kit) -> Sequence[Any]:
    x, y = rows(64)
    model, optimizer, loss_fn = kit.prepare(dense()), optimizers.Adam(0.05), losses.MeanSquaredError()
    optimizer.build(model.trainable_variables)
    state = [one.value for one in model.trainable_variables], [one.value for one in optimizer.variables]
    backend = keras.backend.backend()
    for first in range(0, 64, WHOLE):
        part = kit.slice(first, WHOLE)
        given = ops.convert_to_tensor(x[part]), ops.convert_to_tensor(y[part])
        if backend == "torch":
            model.zero_grad()
            loss_fn(given[1], model(given[0], training=True)).backward()
            optimizer.apply([one.value.grad for one in model.trainable_weights], model.trainable_weights)
        elif backend == "tensorflow":
            import tensorflow as tf

            @tf.function
            def step(x: Any, y: Any) -> None:
                with tf.GradientTape() as tape:
                    loss = loss_fn(y, model(x, training=True))
                optimizer.apply(tape.gradient(loss, model.trainable_weights), model.trainable_weights)

            step(*given)
        else:
            import jax

            @jax.jit
            def advance(trained: Any, kept: Any, x: Any, y: Any) -> Any:
                def compute(trained: Any) -> Any:
                    return loss_fn(y, model.stateless_call(trained, [], x)[0])

                return optimizer.stateless_apply(kept, jax.grad(compute)(trained), trained)

            state = advance(*state, *given)
    if backend == "jax":
        return [np.asarray(one) for one in state[0]]
    return list(model.get_weights())


class Stop(keras.callbacks.Callback):  # type: ignore[misc]  # the same
    """Ends the training after a batch, by what one rank alone knows."""

    def __init__(self, stops: bool) -> None:
        super().__init__()
        self._stops = stops

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._stops and batch == 1:
            self.model.stop_training = True


@guide()
def a_batch_that_ends_the_training(kit: Kit) -> Sequence[Any]:
    model = dense()
    model.compile(optimizers.SGD(0.1), "mse")
    found = kit.fit(kit.prepare(model), *rows(), epochs=3, callbacks=[Stop(kit.rank != 0)])
    return [*model.get_weights(), [len(found.epoch)]]


# --- callbacks that write ---------------------------------------------------------------------------------------------


class Saver(keras.callbacks.Callback):  # type: ignore[misc]  # the same
    """Saves in each rank, as a program would that knows of none."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.save_weights(self._path)


@guide()
def callbacks_that_write(kit: Kit) -> Sequence[Any]:
    model, folder = dense(), kit.folder
    model.compile("sgd", "mse")
    kit.prepare(model)
    callbacks = [
        keras.callbacks.ModelCheckpoint(
            f"{folder}/best/at.weights.h5", "loss", save_best_only=True, save_weights_only=True
        ),
        keras.callbacks.ModelCheckpoint(f"{folder}/whole/{{epoch}}.keras"),
        keras.callbacks.BackupAndRestore(f"{folder}/backup", delete_checkpoint=False),
        keras.callbacks.CSVLogger(f"{folder}/log.csv", append=True),
        Saver(f"{folder}/own.weights.h5"),
    ]
    kit.fit(model, *rows(), epochs=3, callbacks=callbacks)
    lines = Path(folder, "log.csv").read_text(encoding="utf-8").splitlines()
    found = [len(lines), len(list(Path(folder, "whole").iterdir()))]
    model.load_weights(f"{folder}/best/at.weights.h5")
    best = model.get_weights()
    model.load_weights(f"{folder}/own.weights.h5")
    whole = keras.models.load_model(f"{folder}/whole/3.keras").get_weights()
    again = kit.fit(model, *rows(), epochs=4, callbacks=[keras.callbacks.BackupAndRestore(f"{folder}/backup")])
    return [*best, *whole, *model.get_weights(), found, [len(again.epoch), Path(folder, "backup").exists()]]
