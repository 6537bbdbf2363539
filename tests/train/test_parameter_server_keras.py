"""Keras on parameter servers: plain Keras's steps with one rank, and one model for two."""

from __future__ import annotations

import functools
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

with pytest.MonkeyPatch.context() as _patch:
    if "KERAS_BACKEND" not in os.environ:
        _patch.setenv("KERAS_BACKEND", "torch")  # for this process, in which torch is loaded anyway
    import keras

import hocket
from hocket import train
from hocket.train import keras as hocket_keras
from hocket.train.strategies import ParameterServer
from tests.train.on_servers import fit, make_digits

pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"  # Keras's own
)


def build_keras_model(optimizer: Any) -> Any:
    keras.utils.set_random_seed(7)
    model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(4)])
    model = hocket_keras.prepare_model(model)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def learn_with_keras(config: dict[str, Any]) -> float:
    parts = [make_digits(0, step) for step in range(config["steps"])]
    x, y = (np.concatenate(part) for part in zip(*parts, strict=True))
    data = hocket_keras.prepare_arrays(x, y, batch_size=32)
    history = build_keras_model(keras.optimizers.Adam(0.02)).fit(data, epochs=2, verbose=0, validation_data=(x, y))
    losses = history.history["val_loss"]
    assert losses[-1] < losses[0]
    return float(losses[-1])


def test_two_ranks_learn_together(here: None, tmp_path: Path) -> None:
    settings = ParameterServer(num_servers=2, max_staleness=0)
    result = fit(hocket_keras.KerasTrainer, tmp_path, learn_with_keras, settings, 2, config={"steps": 10})
    assert result.return_value < 0.9
    assert result.statistics["staleness"] == {0: 20}


def learn_on_after_a_kill(config: dict[str, Any]) -> list[float]:
    """Train with a checkpoint an epoch; be killed once after the second."""
    keras.utils.set_random_seed(7)
    model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(4)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model = hocket_keras.prepare_model(model)
    data = hocket_keras.prepare_arrays(*make_digits(0, 0), batch_size=8)
    checkpoint = train.get_checkpoint()
    if checkpoint is not None:
        hocket_keras.load_weights(model, checkpoint.path)

    class Death(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_end(self, epoch: int, logs: object = None) -> None:
            if config["dies"] and checkpoint is None and epoch == 2:
                os.kill(os.getpid(), signal.SIGKILL)

    callbacks = [hocket_keras.ReportCheckpointCallback(), Death()]
    model.fit(data, initial_epoch=data.epoch, epochs=4, verbose=0, callbacks=callbacks)
    return [float(weight) for array in model.get_weights() for weight in array.ravel()]


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_a_restart_from_a_checkpoint_goes_on(session: hocket.SessionContext, tmp_path: Path, backend: str) -> None:
    alone, killed = (
        fit(
            functools.partial(hocket_keras.KerasTrainer, keras_config=hocket_keras.KerasConfig(backend=backend)),
            tmp_path / str(dies),
            learn_on_after_a_kill,
            ParameterServer(),
            1,
            config={"dies": dies},
            max_failures=1,
        )
        for dies in (False, True)
    )
    assert (alone.statistics["pushes"], killed.statistics["pushes"]) == (16, 16)
    assert len(killed.metrics_history) == 4
    np.testing.assert_allclose(killed.return_value, alone.return_value, atol=1e-6)


KERAS_OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.9)),
    "momentum": lambda: keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "adamw": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1),
    "adagrad": lambda: keras.optimizers.Adagrad(0.05),
}


@pytest.mark.parametrize("name", KERAS_OPTIMIZERS)
def test_one_rank_takes_the_steps_of_plain_keras(here: None, tmp_path: Path, name: str) -> None:
    x, y = make_digits(0, 0)

    def loop() -> Any:
        model = build_keras_model(KERAS_OPTIMIZERS[name]())
        data = hocket_keras.prepare_arrays(x, y, batch_size=8, resume=False)
        model.fit(data, epochs=2, verbose=0)
        model.set_weights([weight / 2 for weight in model.get_weights()])  # which the servers must hear of
        model.fit(data, epochs=1, verbose=0)
        return model.get_weights()

    expected, found = (
        fit(hocket_keras.KerasTrainer, tmp_path, loop, strategy).return_value
        for strategy in (None, ParameterServer(2, max_staleness=1))
    )
    for value, ours in zip(expected, found, strict=True):
        np.testing.assert_allclose(ours, value, rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (lambda: keras.optimizers.Lion(0.1), "have no Lion. Use one of keras.optimizers: SGD, Adam, AdamW, Adagrad"),
        (lambda: keras.optimizers.Adam(0.1, clipnorm=1.0), r"have no Adam\(clipnorm=1.0\). Leave clipnorm out"),
        (lambda: keras.optimizers.Adagrad(0.1, weight_decay=0.1), r"have no Adagrad\(weight_decay=0.1\), as Keras"),
        (
            lambda: keras.optimizers.SGD(0.1, momentum=0.9, weight_decay=0.1),
            "have no SGD with both momentum=0.9 and weight_decay=0.1",
        ),
    ],
)
def test_what_servers_cannot_do_for_keras_is_refused(here: None, tmp_path: Path, optimizer: Any, message: str) -> None:
    def loop() -> None:
        build_keras_model(optimizer()).fit(*make_digits(0, 0), verbose=0)

    with pytest.raises(ValueError, match=message):
        fit(hocket_keras.KerasTrainer, tmp_path, loop, ParameterServer())


# --- the model and the optimizer that the servers have ----------------------------------------------------------------


class Turned(keras.Sequential):  # type: ignore[misc]  # Keras is not type-checked
    """Gives the optimizer its variables in another order, and not all of them."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        self.zero_grad()
        self.compute_loss(x, y, self(x, training=True)).backward()
        chosen = self.trainable_weights[:0:-1]
        self.optimizer.apply([one.value.grad for one in chosen], chosen)
        return {}


def test_gradients_go_to_the_variables_that_they_are_of(here: None, tmp_path: Path) -> None:
    def loop() -> Any:
        keras.utils.set_random_seed(7)
        layers = [keras.layers.Dense(8, use_bias=False) for _ in range(3)]
        model = hocket_keras.prepare_model(Turned([keras.Input((8,)), *layers]))
        model.compile(keras.optimizers.SGD(0.1), "mse")
        x, y = np.random.default_rng(0).normal(size=(2, 32, 8)).astype("float32")
        model.fit(hocket_keras.prepare_arrays(x, y, batch_size=8), epochs=2, verbose=0)
        return model.get_weights()

    expected, found = (
        fit(hocket_keras.KerasTrainer, tmp_path, loop, strategy).return_value for strategy in (None, ParameterServer())
    )
    for value, ours in zip(expected, found, strict=True):
        np.testing.assert_allclose(ours, value, rtol=0, atol=2e-6)


def test_weights_that_are_set_after_steps_by_batch_reach_the_servers(here: None, tmp_path: Path) -> None:
    x, y = make_digits(0, 0)

    def loop() -> Any:
        model = build_keras_model(keras.optimizers.Adam(0.01))
        for half in (False, True):
            for start in (0, 8):
                model.train_on_batch(x[start : start + 8], y[start : start + 8])
            if half:
                model.set_weights([weight / 2 for weight in model.get_weights()])
            model.fit(hocket_keras.prepare_arrays(x, y, batch_size=8, resume=False), epochs=1, verbose=0)
        return model.get_weights()

    expected, found = (
        fit(hocket_keras.KerasTrainer, tmp_path, loop, strategy).return_value for strategy in (None, ParameterServer())
    )
    for value, ours in zip(expected, found, strict=True):
        np.testing.assert_allclose(ours, value, rtol=0, atol=2e-6)


class Clip(keras.callbacks.Callback):  # type: ignore[misc]  # the same
    """Changes the weights when something ends, as some GANs do."""

    def __init__(self, *ends: str) -> None:
        super().__init__()
        for end in ends:
            setattr(self, end, self._clip)

    def _clip(self, *_: object, **__: object) -> None:
        self.model.set_weights([weight.clip(-0.01, 0.01) for weight in self.model.get_weights()])


def run_phases(change: Any, callbacks: Any = ()) -> None:
    model = build_keras_model(keras.optimizers.Adam(0.02))
    data = hocket_keras.prepare_arrays(*make_digits(0, 0), batch_size=8, resume=False)
    for _ in range(2):
        model.fit(data, epochs=2, verbose=0, callbacks=list(callbacks))
        change(model)


def compile_again(model: Any) -> None:
    model.compile(keras.optimizers.Adam(0.02), keras.losses.SparseCategoricalCrossentropy(from_logits=True))


def freeze(model: Any) -> None:
    model.layers[0].trainable = False


@pytest.mark.parametrize(
    ("change", "callbacks", "message"),
    [
        (compile_again, [], r"compiled with Adam 'adam.*' after it had trained with Adam 'adam.*', but.*the servers"),
        (freeze, [], r"trains 2 variables now, which are not the 4 of its first fit\(\)"),
        (id, [Clip("on_train_batch_end")], r"changed the weights `0/.*kernel` after they came from the servers"),
        (id, [Clip("on_epoch_end")], r"changed the model's weights between two epochs of fit\(\)"),
    ],
    ids=["another_optimizer", "other_variables", "each_step", "each_epoch"],
)
def test_what_the_servers_would_not_hear_of_is_refused(
    here: None, tmp_path: Path, change: Any, callbacks: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        fit(hocket_keras.KerasTrainer, tmp_path, lambda: run_phases(change, callbacks), ParameterServer())
