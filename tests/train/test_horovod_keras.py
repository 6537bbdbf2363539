"""Horovod's verbs for Keras 3: on torch here, since what differs between the backends is `hocket.train.keras`'s."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

with pytest.MonkeyPatch.context() as _patch:
    if "KERAS_BACKEND" not in os.environ:
        _patch.setenv("KERAS_BACKEND", "torch")
    import keras

from hocket import train
from hocket.train.horovod import keras as hvd
from hocket.train.keras import KerasTrainer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings(
        "ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"
    ),  # Keras's own
]


def fit(function: Any, path: Path, num_workers: int, config: dict[str, Any] | None = None) -> Any:
    return (
        KerasTrainer(
            function,
            train_loop_config=config,
            scaling_config=train.ScalingConfig(num_workers=num_workers),
            run_config=train.RunConfig(storage_path=str(path)),
        )
        .fit()
        .return_value
    )


def call_everything() -> dict[str, Any]:
    hvd.init()
    rank = hvd.rank()
    found: dict[str, Any] = {"place": [hvd.size(), hvd.local_size(), hvd.local_rank()]}
    found["mean"] = hvd.allreduce([rank, 2.0 * rank]).tolist()
    found["sum"] = hvd.allreduce(keras.ops.ones(2), op=hvd.Sum).tolist()
    found["gathered"] = hvd.allgather(np.full((1 + rank, 2), rank)).tolist()
    found["sent"] = hvd.broadcast([float(rank)], root_rank=hvd.size() - 1).tolist()
    found["object"] = hvd.broadcast_object({"rank": rank}, root_rank=hvd.size() - 1)
    x = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
    y = x.sum(1, keepdims=True)
    keras.utils.set_random_seed(rank)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse", jit_compile=False)
    callbacks = [hvd.BroadcastGlobalVariablesCallback(0), hvd.MetricAverageCallback()]
    rows = slice(rank * 32 // hvd.size(), (rank + 1) * 32 // hvd.size())
    history = model.fit(x[rows], y[rows], batch_size=32, epochs=3, verbose=0, shuffle=False, callbacks=callbacks)
    found["loss"] = history.history["loss"]
    found["weights"] = hvd.allgather_object([weight.tolist() for weight in model.get_weights()])
    assert 0 <= hvd.join() < hvd.size()
    hvd.shutdown()
    return found


@pytest.mark.usefixtures("session")
def test_two_ranks_are_one_with_all_rows(tmp_path: Path) -> None:
    two, one = fit(call_everything, tmp_path, 2), fit(call_everything, tmp_path, 1)
    assert two["place"] == [2, 2, 0]
    assert two["mean"] == [0.5, 1.0]
    assert two["sum"] == [2.0, 2.0]
    assert two["gathered"] == [[0, 0], [1, 1], [1, 1]]
    assert two["sent"] == [1.0]
    assert two["object"] == {"rank": 1}
    assert two["loss"] == pytest.approx(one["loss"], abs=1e-5)
    assert two["weights"][0] == two["weights"][1]
    for mine, alone in zip(two["weights"][0], one["weights"][0], strict=True):
        np.testing.assert_allclose(mine, alone, atol=1e-5)


def go_on_with_what_one_rank_restored(config: dict[str, Any]) -> tuple[list[Any], list[int]]:
    hvd.init()
    x = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
    keras.utils.set_random_seed(hvd.rank())
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.1)), "mse", jit_compile=False)
    optimizer = model.optimizer
    if hvd.rank() == 0:  # as from a file that it alone has
        optimizer.build(model.trainable_variables)
        optimizer.iterations.assign(100)
        optimizer.variables[-1].assign(np.ones(1))
    callbacks = []
    if config["by"] == "callback":
        callbacks.append(hvd.BroadcastGlobalVariablesCallback(0))
    else:
        optimizer.build(model.trainable_variables)
        hvd.broadcast_parameters(model, 0)
        hvd.broadcast_optimizer_state(optimizer, 0)
    mine = x[hvd.rank() :: 2]
    model.fit(mine, mine.sum(1), batch_size=4, epochs=2, verbose=0, callbacks=callbacks)
    steps = int(keras.ops.convert_to_numpy(optimizer.iterations))
    return hvd.allgather_object([one.tolist() for one in model.get_weights()]), hvd.allgather_object(steps)


@pytest.mark.parametrize("by", ["callback", "verb"])
@pytest.mark.usefixtures("session")
def test_all_ranks_have_the_steps_and_moments_that_one_restored(tmp_path: Path, by: str) -> None:
    weights, steps = fit(go_on_with_what_one_rank_restored, tmp_path, 2, {"by": by})
    assert steps == [108, 108]
    assert weights[0] == weights[1]


def overflow_in_one_rank() -> tuple[list[Any], list[Any]]:
    hvd.init()
    x = np.random.default_rng(0).normal(size=(16, 4)).astype("float32")
    y = x.sum(1, keepdims=True)
    if hvd.rank():
        x[5] = np.inf
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    optimizer = keras.optimizers.LossScaleOptimizer(
        hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), initial_scale=1024.0
    )
    model.compile(optimizer, "mse", jit_compile=False)
    model.fit(x, y, batch_size=4, verbose=0, shuffle=False)
    scale = float(keras.ops.convert_to_numpy(optimizer.dynamic_scale))
    return hvd.allgather_object([one.tolist() for one in model.get_weights()]), hvd.allgather_object(scale)


@pytest.mark.usefixtures("session")
def test_all_ranks_leave_out_the_step_in_which_one_overflows(tmp_path: Path) -> None:
    weights, scales = fit(overflow_in_one_rank, tmp_path, 2)
    assert scales == [512.0, 512.0]
    assert weights[0] == weights[1]
    assert np.isfinite(weights[0][0]).all()


def train_with_callbacks(config: dict[str, Any]) -> Any:
    """The shape of Horovod's own examples for Keras."""
    hvd.init()
    rng = np.random.default_rng(hvd.rank())
    x = rng.normal(size=(64, 4)).astype("float32")
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    scaled = 0.1 * hvd.size()
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(scaled), backward_passes_per_step=1, average_aggregated_gradients=True
    )
    model.compile(optimizer, "mse", metrics=["mae"], jit_compile=False)
    rates = []
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(initial_lr=scaled, warmup_epochs=2, verbose=1),
        hvd.callbacks.LearningRateScheduleCallback(initial_lr=scaled, multiplier=0.5, start_epoch=2, end_epoch=3),
        hvd.callbacks.LearningRateScheduleCallback(
            initial_lr=scaled, multiplier=lambda epoch: 10.0**-epoch, start_epoch=3
        ),
        keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: rates.append(
                float(keras.ops.convert_to_numpy(model.optimizer.learning_rate))
            )
        ),
    ]
    if hvd.rank() == 0:
        callbacks.append(hvd.callbacks.BestModelCheckpoint(config["best"], monitor="loss"))
    history = model.fit(x, x.sum(1), batch_size=16, epochs=5, verbose=0, callbacks=callbacks)
    return rates, history.history["lr"], hvd.allgather_object([one.tolist() for one in model.get_weights()])


@pytest.mark.usefixtures("session")
def test_callbacks_of_horovod_set_the_rate_as_it_does(tmp_path: Path) -> None:
    best = tmp_path / "best.keras"
    rates, logged, weights = fit(train_with_callbacks, tmp_path, 2, {"best": str(best)})
    assert best.exists()
    warm = [0.2 * 0.5 * (min(1.0, (batch / 4 + 0.25) / 2) + 1) for batch in range(8)]  # from half of it to all
    assert rates == pytest.approx([*warm, *[0.1] * 4, *[2e-4] * 4, *[2e-5] * 4], rel=1e-5)
    assert logged == pytest.approx([warm[3], warm[7], 0.1, 2e-4, 2e-5], rel=1e-5)
    assert weights[0] == weights[1]


def test_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"need hvd\.init\(\) first"):
        hvd.rank()
    hvd.init()
    try:
        with pytest.raises(TypeError, match=r"takes an optimizer of Keras 3, but received builtins\.str"):
            hvd.DistributedOptimizer("sgd")
        with pytest.raises(ValueError, match=r"does not support backward_passes_per_step=4"):
            hvd.DistributedOptimizer(keras.optimizers.SGD(), backward_passes_per_step=4)
        with pytest.raises(
            ValueError, match=r"with each batch, but the number of batches in an epoch is unknown. Pass steps_per_epoch"
        ):
            hvd.callbacks.LearningRateWarmupCallback(0.1).on_train_begin()
        with pytest.raises(ValueError, match="root_rank must be one of the 1 ranks from 0, but received 1"):
            hvd.broadcast_object(1, root_rank=1)
        with pytest.raises(ValueError, match=r"received a scalar. Write \[value\]"):
            hvd.allgather(1.0)
    finally:
        hvd.shutdown()
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match=r"Run the training function with hocket\.train\.keras\.KerasTrainer"):
        hvd.init()
