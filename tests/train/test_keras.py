"""Keras 3 on each backend: several ranks train one model, as one process would; the rest is seen where it is
quickest."""

from __future__ import annotations

import os
import random
import re
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
from hocket.data import ledger
from hocket.train import keras as hocket_keras
from hocket.train.frameworks import report_callback, weights
from hocket.train.frameworks.keras import bridges, variables
from hocket.train.rank import context
from hocket.train.rank.world import get_world
from tests.train.ranks import be_rank

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings(
        "ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"
    ),  # Keras's own
]

ROWS = 65
"""With 16 rows a step the last step has one row, so that one of two ranks has none in it."""


def make_data() -> tuple[Any, Any]:
    generator = np.random.default_rng(0)
    return generator.normal(size=(ROWS, 8)).astype("float32"), generator.integers(0, 3, ROWS)


def build_model(optimizer: Any = None) -> Any:
    random.seed(7)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(3)])
    model.compile(
        optimizer or keras.optimizers.Adam(0.01),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(2)],
    )
    return model


def train_loop(config: dict[str, Any]) -> dict[str, Any]:
    """Two epochs with a callback that stops one rank's neighbours too, an evaluation, and what is asked for."""
    x, y = make_data()
    rank = train.get_context().get_world_rank()
    model = build_model()
    if rank:  # rank 0's weights are everybody's
        model.set_weights([weight + 1 for weight in model.get_weights()])
    model = hocket_keras.prepare_model(model)
    data = hocket_keras.prepare_arrays(x, y, batch_size=config["batch_size"])
    checkpoint = train.get_checkpoint()
    if checkpoint is not None:
        hocket_keras.load_weights(model, checkpoint.path)
    epoch, steps_left = data.epoch, data.steps_left
    callbacks: list[Any] = [hocket_keras.ReportCheckpointCallback(checkpoint_on=config.get("on", "epoch_end"))]
    if config.get("kill_at") is not None and checkpoint is None:
        callbacks.append(Kill(config["kill_at"], rank))
    held = hocket_keras.prepare_arrays(x, y, batch_size=7, resume=False)
    history = model.fit(
        data, epochs=2, initial_epoch=epoch, verbose=0, callbacks=callbacks, validation_data=held
    ).history
    mine = [float(np.abs(weight).sum()) for weight in model.get_weights()]
    return {
        "backend": keras.backend.backend(),
        "history": history,
        "evaluated": model.evaluate(held, verbose=0, return_dict=True),
        "weights": model.get_weights(),
        "all": get_world("test").all_gather_object(mine),
        "began": (epoch, steps_left),
    }


class Kill(keras.callbacks.Callback):  # type: ignore[misc]  # Keras is not type-checked
    """Kills rank 1's process at a step; the others go on to the next, and wait for it."""

    def __init__(self, step: int, rank: int) -> None:
        super().__init__()
        self._step, self._rank = step, rank

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == self._step and self._rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)


def fit(function: Any, path: Path, config: Any, num_workers: int, **options: Any) -> train.Result:
    settings = {"name": options.pop("name", None), "failure_config": options.pop("failure_config", None)}
    return hocket_keras.KerasTrainer(
        function,
        train_loop_config=config,
        scaling_config=train.ScalingConfig(num_workers=num_workers),
        run_config=train.RunConfig(storage_path=path, **settings),
        **options,
    ).fit()


def check_equal(many: dict[str, Any], one: dict[str, Any]) -> None:
    for weight, expected in zip(many["weights"], one["weights"], strict=True):
        np.testing.assert_allclose(weight, expected, atol=1e-5)
    assert many["history"].keys() == one["history"].keys()
    for name, values in one["history"].items():
        assert many["history"][name] == pytest.approx(values, abs=1e-5), name
    assert many["evaluated"] == pytest.approx(one["evaluated"], abs=1e-5)


# --- two ranks are one process with twice the batch -------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["tensorflow", "torch", "jax"])
@pytest.mark.usefixtures("session")
def test_two_ranks_train_as_one_with_twice_the_batch(
    backend: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if backend != "torch":
        pytest.importorskip(backend, reason=f"needs {backend}: pip install 'hocket[{backend}]'")
    config = hocket_keras.KerasConfig(backend=backend)
    alone = fit(train_loop, tmp_path, {"batch_size": 16}, 1, keras_config=config).return_value
    killed = {"batch_size": 8, "kill_at": 2, "on": "train_batch_end"}
    result = fit(  # the second rank dies after the third step; what is saved goes on with the rows that are left
        train_loop, tmp_path, killed, 2, keras_config=config, failure_config=train.FailureConfig(max_failures=1)
    )
    assert re.search(r"Rank 1 of 2 died: its process .* (was killed by signal 9|ended; Ray reports)", caplog.text)
    both = result.return_value
    assert (alone["backend"], both["backend"]) == (backend, backend)
    assert both["all"][0] == both["all"][1]
    assert both["began"][0] == 0
    assert 0 < both["began"][1] < 5
    for weight, expected in zip(both["weights"], alone["weights"], strict=True):
        np.testing.assert_allclose(weight, expected, atol=1e-5)
    assert both["evaluated"] == pytest.approx(alone["evaluated"], abs=1e-5)
    assert {name: values[-1] for name, values in both["history"].items()} == pytest.approx(
        {name: values[-1] for name, values in alone["history"].items()}, abs=1e-5
    )
    assert result.checkpoint is not None
    with np.load(Path(result.checkpoint.path, "weights.npz")) as saved:  # numpy alone
        assert [saved[name].shape for name in saved.files[:4]] == [(8, 16), (16,), (16, 3), (3,)]


def train_on_lists() -> list[list[float]]:
    x, y = make_data()
    inputs = [keras.Input((4,)), keras.Input((4,))]
    model = keras.Model(inputs, keras.layers.Dense(3)(keras.layers.Concatenate()(inputs)))
    model.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model = hocket_keras.prepare_model(model)
    model.fit(hocket_keras.prepare_arrays([x[:, :4], x[:, 4:]], y, batch_size=8), verbose=0)
    weights: list[list[float]] = [weight.tolist() for weight in model.get_weights()]
    return weights


@pytest.mark.parametrize("backend", ["tensorflow", "torch", "jax"])
@pytest.mark.usefixtures("session")
def test_a_model_of_several_inputs_takes_a_list_of_arrays(backend: str, tmp_path: Path) -> None:
    if backend != "torch":
        pytest.importorskip(backend, reason=f"needs {backend}: pip install 'hocket[{backend}]'")
    config = hocket_keras.KerasConfig(backend=backend)
    kernel, bias = fit(train_on_lists, tmp_path, None, 1, keras_config=config).return_value
    assert np.shape(kernel) == (8, 3)
    assert np.isfinite(bias).all()
    assert any(bias)


def test_ranks_take_turns_where_steps_run_in_their_own_threads(tmp_path: Path) -> None:
    with hocket.init(engine="inprocess"):
        if keras.backend.backend() != "torch":
            with pytest.raises(ValueError, match=r"needs ranks that are processes.*KERAS_BACKEND=torch"):
                fit(train_loop, tmp_path, {"batch_size": 8}, 2)
            return
        both = fit(train_loop, tmp_path, {"batch_size": 8}, 2).return_value
        check_equal(both, fit(train_loop, tmp_path, {"batch_size": 16}, 1).return_value)
        strategy = hocket_keras.LocalSGD(2, outer=hocket_keras.Nesterov(), begin_after=1)
        apart = fit(train_loop, tmp_path, {"batch_size": 8}, 2, strategy=strategy).return_value
        assert apart["all"][0] == apart["all"][1]
        assert any(not np.allclose(*pair) for pair in zip(apart["weights"], both["weights"], strict=True))


# --- in this process --------------------------------------------------------------------------------------------------


class Record(keras.callbacks.Callback):  # type: ignore[misc]  # Keras is not type-checked
    """Notes what callbacks are told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []

    def on_train_begin(self, logs: Any = None) -> None:
        self.told.append("begin")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.told.append(f"epoch {epoch}")

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.told.append(f"batch {batch}")

    def on_train_end(self, logs: Any = None) -> None:
        self.told.append("end")


def test_fit_goes_on_in_the_middle_of_an_epoch_and_callbacks_see_one_fit() -> None:
    x, y = make_data()
    with be_rank():
        data = hocket_keras.prepare_arrays(x, y, batch_size=16)
        whole = build_model()
        hocket_keras.prepare_model(whole).fit(data, epochs=2, verbose=0)
        expected = whole.get_weights()
    with be_rank() as reports:
        first = hocket_keras.prepare_arrays(x, y, batch_size=16)
        model = hocket_keras.prepare_model(build_model())

        class Stop(keras.callbacks.Callback):  # type: ignore[misc]  # Keras is not type-checked
            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                if batch == 2:
                    self.state = first.state_dict()
                    self.saved = [np.array(one) for one in model.get_weights()]
                    self.theirs = [keras.ops.convert_to_numpy(one.value) for one in model.optimizer.variables]
                    raise KeyboardInterrupt

        stop = Stop()
        with pytest.raises(KeyboardInterrupt):
            model.fit(first, epochs=2, verbose=0, callbacks=[stop])
    assert reports == []
    with be_rank(positions={"#0": stop.state}):
        data = hocket_keras.prepare_arrays(x, y, batch_size=16)
        model = hocket_keras.prepare_model(build_model())
        model.set_weights(stop.saved)
        model.optimizer.build(model.trainable_variables)
        for variable, value in zip(model.optimizer.variables, stop.theirs, strict=True):
            variable.assign(value)
        assert (data.epoch, data.steps_left) == (0, 2)
        record = Record()
        history = model.fit(data, epochs=2, initial_epoch=data.epoch, verbose=0, callbacks=[record])
        assert history.epoch == [0, 1]
        assert record.told == [
            *("begin", "epoch 0", "batch 0", "batch 1"),
            *("epoch 1", "batch 0", "batch 1", "batch 2", "batch 3", "batch 4", "end"),
        ]
        assert (data.epoch, data.steps_left) == (2, 5)
    for weight, other in zip(model.get_weights(), expected, strict=True):
        np.testing.assert_allclose(weight, other, atol=1e-6)


def test_what_is_trained_on_can_be_evaluated_meanwhile() -> None:
    """Of an epoch that goes on in the middle, also: an evaluation has all rows."""
    x, y = make_data()
    with be_rank(positions={"#0": {**ledger.Ledger(ROWS, 16).state_dict(), "position": 48}}):
        data = hocket_keras.prepare_arrays(x, y, batch_size=16)
        model = hocket_keras.prepare_model(build_model(keras.optimizers.SGD(0.0)))
        found = []

        class Evaluate(keras.callbacks.Callback):  # type: ignore[misc]  # Keras is not type-checked
            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                found.append(model.evaluate(data, verbose=0)[0])

        history = model.fit(data, epochs=2, verbose=0, validation_data=data, callbacks=[Evaluate()]).history
        assert len(found) == 2 + 5
        assert found + history["val_loss"] == pytest.approx([model.evaluate(x, y, verbose=0)[0]] * 9, rel=1e-5)


def test_an_epoch_of_prepared_arrays_has_all_rows() -> None:
    """Keras would go on in the next epoch where one of fewer steps has ended, and the positions would be others."""
    x, y = make_data()
    with be_rank():
        data = hocket_keras.prepare_arrays(x, y, batch_size=16)
        model = hocket_keras.prepare_model(build_model())
        with pytest.raises(
            ValueError, match=r"steps_per_epoch=2, but .* has all rows, in 5 steps, .* Leave steps_per_epoch out"
        ):
            model.fit(data, steps_per_epoch=2, verbose=0)
        model.fit(data, steps_per_epoch=5, epochs=2, verbose=0)
        assert (data.epoch, data.steps_left) == (2, 5)


def test_ranks_together_read_each_row_once_and_take_equal_steps() -> None:
    x = np.arange(9)
    read, again, trained = [], [], []
    for rank in range(4):
        with be_rank(rank, 4):
            data = hocket_keras.prepare_arrays({"x": x, "other": x[:, None]}, x, batch_size=2, shuffle=True)
            read += [batch[1].tolist() for batch in data]
            data.begin_training()
            assert data.begin_epoch() == (1 if rank else None)
            trained.append([data[number][1].tolist() for number in range(data.num_batches)])
            again += [batch[1].tolist() for batch in data.open_evaluation()]
            assert data[0][0]["other"].shape == (2, 1)
            with pytest.raises(IndexError, match="There is no batch 2: there are 2 batches"):
                data[2]
    assert sorted(row for batch in read for row in batch) == list(range(9))
    assert again == read
    assert [len(steps) for steps in trained] == [2, 2, 2, 2]
    last = trained[0][1][0]
    assert [steps[1] for steps in trained] == [[last]] * 4  # filled in for three of them
    assert sorted([row for steps in trained for row in steps[0]] + [last]) == list(range(9))


def train_to_a_filler(_: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """Return what 17 rows make of a model, and by hand what they do if the second rank leaves out the last step."""
    x = np.random.default_rng(0).normal(size=(17, 3)).astype("float32")
    y = x[:, :1] * 2
    slices = [[slice(0, 8), slice(16, 17)], [slice(8, 16)]]

    def build() -> Any:
        normalization = keras.layers.BatchNormalization(momentum=0.5)
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), normalization, keras.layers.Dense(1)])
        for number, weight in enumerate(model.weights):
            values = 0.1 * number + np.arange(np.prod(weight.shape))
            weight.assign(values.reshape(weight.shape))
        model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse")
        return model

    parts = []
    for mine in slices:
        model = build()
        for rows in mine:
            model.train_on_batch(x[rows], y[rows])
        parts.append(model.get_weights())
    model = hocket_keras.prepare_model(build())
    model.fit(hocket_keras.prepare_arrays(x, y, batch_size=8, shuffle=False), verbose=0)
    return model.get_weights(), [(one + other) / 2 for one, other in zip(*parts, strict=True)]


@pytest.mark.usefixtures("session")
def test_a_rank_without_rows_takes_no_step_of_its_own(tmp_path: Path) -> None:
    strategy = hocket_keras.LocalSGD(100)
    found, by_hand = fit(train_to_a_filler, tmp_path, {}, 2, strategy=strategy).return_value
    for weight, expected in zip(found, by_hand, strict=True):
        np.testing.assert_allclose(weight, expected, atol=1e-5)


class Around(keras.Model):  # type: ignore[misc]  # Keras is not type-checked
    """A model around another one."""

    def __init__(self, part: Any) -> None:
        super().__init__()
        self.part = part

    def call(self, inputs: Any) -> Any:
        return self.part(inputs)


def train_a_part(config: dict[str, Any]) -> list[Any]:
    x = np.random.default_rng(0).normal(size=(19, 3)).astype("float32")  # three rows for the last step of two ranks
    part = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="ones")])
    whole = Around(part)
    whole.build((None, 3))
    if config["is_prepared"]:
        hocket_keras.prepare_model(part)
    whole.compile(keras.optimizers.SGD(0.1), "mse")
    hocket_keras.prepare_model(whole)
    data = hocket_keras.prepare_arrays(x, x[:, :1], batch_size=config["batch_size"], shuffle=False)
    whole.fit(data, epochs=2, verbose=0)
    return list(whole.get_weights())


@pytest.mark.usefixtures("session")
def test_rows_count_where_a_part_of_the_model_is_prepared_too(tmp_path: Path) -> None:
    two = fit(train_a_part, tmp_path, {"is_prepared": True, "batch_size": 8}, 2).return_value
    one = fit(train_a_part, tmp_path, {"is_prepared": False, "batch_size": 16}, 1).return_value
    for weight, expected in zip(two, one, strict=True):
        np.testing.assert_allclose(weight, expected, atol=1e-6)


def train_with_a_list(_: dict[str, Any]) -> list[list[Any]]:
    x, y = make_data()
    found = []
    for is_list in (False, True):
        keras.utils.set_random_seed(0)
        model = hocket_keras.prepare_model(build_model())
        callbacks: Any = [keras.callbacks.EarlyStopping("loss")]
        if is_list:
            callbacks = keras.callbacks.CallbackList(callbacks, add_history=True)
        model.fit(hocket_keras.prepare_arrays(x, y, batch_size=2), epochs=2, verbose=0, callbacks=callbacks)
        found.append(model.get_weights())
    return found


@pytest.mark.usefixtures("session")
def test_ranks_meet_after_their_steps_also_with_a_list_of_callbacks(tmp_path: Path) -> None:
    plain, listed = fit(train_with_a_list, tmp_path, {}, 2, strategy=hocket_keras.LocalSGD(3)).return_value
    for weight, expected in zip(listed, plain, strict=True):
        np.testing.assert_array_equal(weight, expected)


def train_in_turns(_: dict[str, Any]) -> float:
    x, y = make_data()
    rank = train.get_context().get_world_rank()
    model = hocket_keras.prepare_model(build_model())
    losses = [model.train_on_batch(x[rank::2], y[rank::2])[0] for _ in range(4)]
    return float(losses[-1] - losses[0])


@pytest.mark.usefixtures("session")
def test_steps_by_batch_do_not_wait_for_each_other_where_one_rank_computes_at_a_time(tmp_path: Path) -> None:
    strategy = train.strategies.ParameterServer(max_staleness=0)
    assert fit(train_in_turns, tmp_path, {}, 2, strategy=strategy).return_value < 0


def test_gradients_cross_to_the_host_and_back_on_this_backend() -> None:
    def double(flat: Any, rows: float) -> None:
        seen.append(rows)
        flat[:-1] *= 2

    seen: list[float] = []
    crossing = bridges.Crossing(double)
    gradients = [keras.ops.ones((2, 3)), None, keras.ops.ones((4,), "float16")]
    averaged = crossing.average(gradients, 5)
    assert averaged[1] is None
    assert [keras.backend.standardize_dtype(averaged[number].dtype) for number in (0, 2)] == ["float32", "float16"]
    assert keras.ops.convert_to_numpy(averaged[0]).tolist() == [[2.0] * 3] * 2
    assert seen == [5.0]
    assert crossing.average([None], 1) == [None]


@pytest.mark.parametrize("compression", ["fp16", "bf16", None])
def test_an_average_counts_rows_also_in_halves(compression: str | None) -> None:
    class Twice:
        """Two ranks of which the other has one row and gradients of 1.0."""

        rank, size = 0, 2

        def all_reduce(self, array: Any, op: Any = None) -> None:
            if len(array) == 1:
                array += 1
            elif compression is None:
                array += 1.0
            else:
                array[:] = (array + 0.5) / 2

    exchange: Any = hocket_keras.AllReduce(compression=compression).open(train.strategies.Ranks(0, 2, Twice()))  # type: ignore[arg-type]
    flat = np.array([5.0, 9.0, 0.0], np.float32)
    exchange.average(flat, 3.0)
    assert flat[:2].tolist() == [4.0, 7.0]
    flat = np.array([np.nan, np.nan, 0.0], np.float32)
    exchange.average(flat, 0.0)
    assert np.isfinite(flat[:2]).all()


def test_the_outer_step_is_nesterovs() -> None:
    settings = hocket_keras.LocalSGD(1, outer=hocket_keras.Nesterov(lr=0.5, momentum=0.5))
    exchange: Any = settings.open(train.strategies.Ranks(0, 1))
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.set_weights([np.array([[4.0]])])
    arrays = variables.ModelVariables(model)
    exchange.begin(arrays)
    found = []
    for inner in (2.0, 1.0):
        model.set_weights([np.array([[inner]])])
        exchange.after_steps(arrays, 1)
        found.append(float(model.get_weights()[0][0, 0]))
    # anchor 4, gradient 2: 4 - .5 * (2 + .5 * 2); then gradient 1.5, momentum 2.5: 2.5 - .5 * (1.5 + .5 * 2.5)
    assert found == [2.5, 1.125]


def test_the_outer_step_of_other_variables_begins_anew() -> None:
    exchange: Any = hocket_keras.LocalSGD(1, outer=hocket_keras.Nesterov()).open(train.strategies.Ranks(0, 1))
    model = keras.Sequential([keras.Input((1,)), *(keras.layers.Dense(1, use_bias=False) for _ in range(2))])
    arrays = variables.ModelVariables(model)
    for trained in range(2):
        for number, layer in enumerate(model.layers):
            layer.trainable = number == trained
        model.layers[trained].set_weights([np.array([[1.0]])])
        exchange.begin(arrays)
        model.layers[trained].set_weights([np.array([[0.0]])])
        exchange.after_steps(arrays, 1)
    ends = [float(layer.get_weights()[0][0, 0]) for layer in model.layers]
    assert ends[0] == ends[1] == pytest.approx(1 - 0.7 * 1.9)


# --- callbacks --------------------------------------------------------------------------------------------------------


class OwnReport(hocket_keras.ReportCheckpointCallback):
    """Reports as its base does, and more."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        super().on_epoch_end(epoch, {**(logs or {}), "epoch": epoch})

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        super().on_train_batch_end(batch, {"batch": batch})


@pytest.mark.parametrize("on", ["epoch_end", "train_batch_end"])
def test_a_subclass_of_the_callback_has_methods_of_its_own(monkeypatch: pytest.MonkeyPatch, on: str) -> None:
    reported: list[dict[str, Any]] = []
    monkeypatch.setattr(context, "report", lambda metrics, **_: reported.append(metrics))
    for kind in (OwnReport, hocket_keras.ReportCheckpointCallback):
        callback = kind(checkpoint_on=(), report_metrics_on=on)
        does_nothing = getattr(callback.on_train_batch_end, "_is_default", False)
        assert does_nothing == (kind is not OwnReport and on == "epoch_end"), "Keras does not call it then"
        build_model().fit(np.ones((4, 8)), np.ones(4), epochs=2, batch_size=2, verbose=0, callbacks=[callback])
    if on == "epoch_end":
        assert [one.get("epoch") for one in reported] == [0, 1, None, None]
    else:
        assert [one.get("batch") for one in reported] == [0, 1, 0, 1, None, None, None, None]
        assert all("loss" in one for one in reported[4:])


# --- what is refused --------------------------------------------------------------------------------------------------


def test_bad_input_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"backend must be one of \['tensorflow', 'torch', 'jax'\], but received 'mxnet'"
    ):
        hocket_keras.KerasConfig(backend="mxnet")
    with pytest.raises(ValueError, match="timeout_s must be more than 0 seconds, but received 0"):
        hocket_keras.KerasConfig(timeout_s=0)
    with pytest.raises(TypeError, match=r"strategy must be a Strategy, but received 'ps'\. Write strategy=AllReduce"):
        hocket_keras.KerasTrainer(train_loop, strategy="ps")  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="was called outside a training function"):
        hocket_keras.prepare_model(build_model())
    with pytest.raises(ValueError, match="seed must lie between 0 and"):
        hocket_keras.enable_reproducibility(-1)
    for settings, message in [
        (
            hocket_keras.AllReduce(bucket_mb=1),
            "bucket_mb=1 has no meaning here: this framework's gradients travel as one array",
        ),
        (
            hocket_keras.AllReduce(compression=train.strategies.PowerSGD()),
            "compression=PowerSGD.* works in PyTorch only",
        ),
        (hocket_keras.LocalSGD(2, outer=len), "must be a Nesterov, but received outer=<built-in function len>"),
        (train.strategies.Strategy(), r"has no open\(\)"),
    ]:
        with pytest.raises((TypeError, ValueError), match=message):
            settings.open(train.strategies.Ranks(0, 1))
    with be_rank(0, 2), pytest.raises(RuntimeError, match=r"keras\.prepare_model\(\) needs ranks that are joined"):
        hocket_keras.prepare_model(build_model())
    with be_rank():
        with pytest.raises(TypeError, match=r"takes a keras\.Model of Keras 3, but received builtins\.int"):
            hocket_keras.prepare_model(3)
        model = hocket_keras.prepare_model(build_model())
        with pytest.raises(ValueError, match=r"received the model 'sequential.*' twice"):
            hocket_keras.prepare_model(model)
        x, y = make_data()
        data = hocket_keras.prepare_arrays(x, y, batch_size=16)
        with pytest.raises(ValueError, match=r"steps_per_epoch=3, but .* has all rows, in 5 steps"):
            model.fit(data, epochs=2, steps_per_epoch=3, verbose=0)
        assert len(model.fit(data, epochs=2, steps_per_epoch=5, verbose=0).history["loss"]) == 2
        with pytest.raises(ValueError, match="one dimension, with one value for each row, but received one of shape"):
            hocket_keras.GlobalMean().add(np.zeros((2, 2)))
    with pytest.raises(ValueError, match=r"checkpoint_on must be one of epoch_begin, .*but received 'noon'"):
        hocket_keras.ReportCheckpointCallback(checkpoint_on="noon")
    with pytest.raises(ValueError, match="logs at epoch_end have loss, but metrics asks for auc"):
        report_callback._choose(["auc"], {"loss": 1.0}, "epoch_end")


def test_bad_arrays_are_refused() -> None:
    x = np.zeros((6, 2))
    with be_rank(0, 8), pytest.raises(ValueError, match="received 6 rows for 8 ranks, but each rank needs one or more"):
        hocket_keras.prepare_arrays(x)
    with be_rank():
        with pytest.raises(ValueError, match="arrays with equally many rows, but received 6 and 5"):
            hocket_keras.prepare_arrays(x, np.zeros(5))
        with pytest.raises(TypeError, match="a row for each sample, but received str"):
            hocket_keras.prepare_arrays("x")
        with pytest.raises(ValueError, match="sample_weight without y"):
            hocket_keras.prepare_arrays(x, sample_weight=np.ones(6))
        data = hocket_keras.prepare_arrays(x, name="train")
        with pytest.raises(ValueError, match="a loader with name='train' before"):
            hocket_keras.prepare_arrays(x, name="train")
    with (
        be_rank(positions={"train": data.state_dict()}),
        pytest.raises(ValueError, match=r"position for this loader \(name='train'\) does not fit it"),
    ):
        hocket_keras.prepare_arrays(np.zeros((7, 2)), name="train")


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    hocket_keras.save_weights(build_model(), tmp_path)
    small = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    with pytest.raises(ValueError, match="has 2 variables, but the checkpoint has 4"):
        hocket_keras.load_weights(small, tmp_path)
    other = keras.Sequential([keras.Input((8,)), keras.layers.Dense(9), keras.layers.Dense(3)])
    with pytest.raises(ValueError, match=r"has the shape \(8, 9\), but the checkpoint's '.*kernel' has \(8, 16\)"):
        hocket_keras.load_weights(other, tmp_path)
    with pytest.raises(FileNotFoundError, match=r"has no weights\.npz"):
        weights.load(tmp_path / "none")
