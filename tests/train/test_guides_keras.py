"""Loops as Keras's guides write them end in two ranks where one process ends that has the whole batch; and what cannot
be right is refused in the first step. The programs are in `guides_keras`.

Results are of float32, whose last digit is 6e-8 of a weight of 1; ranks add up in another order. `CLOSE` leaves room
for some steps of that. Mixed precision computes in halves: its ranks are compared as closely, and one process roughly.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

with pytest.MonkeyPatch.context() as _patch:
    if "KERAS_BACKEND" not in os.environ:
        _patch.setenv("KERAS_BACKEND", "torch")  # for this process, in which torch is loaded anyway
    import keras

from hocket import train
from hocket.train import keras as hocket_keras
from tests.train import guides_keras

CLOSE: Final = 1e-5
ROUGH: Final = {"mixed_precision": 2e-3, "batch_normalization": np.inf, "dropout": np.inf}
"""How near programs come to one process that do so roughly, or, since each rank normalises by its own rows and draws
masks of its own, not at all. Their ranks are equal."""

PARTS: Final = 3

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),  # a run trains a dozen models two times; JAX compiles each step for seconds
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),  # Keras's
]


@pytest.fixture
def common_session_kind(request: pytest.FixtureRequest) -> str:
    given = getattr(request.node, "callspec", None)
    return f"keras on {given.params.get('backend', 'torch') if given is not None else 'torch'}"


def compare(config: dict[str, Any]) -> Any:
    return guides_keras.compare(config["names"])


def fit(function: Callable[..., Any], path: Path, backend: str, config: Any = None, **given: Any) -> Any:
    runs = given.pop("runs", {})
    return hocket_keras.KerasTrainer(
        function,
        train_loop_config=config,
        keras_config=hocket_keras.KerasConfig(backend=backend),
        scaling_config=train.ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5}),
        run_config=train.RunConfig(storage_path=str(path), **runs),
        **given,
    ).fit()


def measure(one: Any, other: Any) -> float:
    """Return how far results lie apart at most, beside the largest value if that is above 1."""
    assert [part.shape for part in one] == [part.shape for part in other]
    return max(float(np.abs(a - b).max() / max(1.0, np.abs(a).max())) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize(
    "backend", ["torch", *(pytest.param(name, marks=pytest.mark.long) for name in ("tensorflow", "jax"))]
)
@pytest.mark.usefixtures("session")
def test_two_ranks_end_where_one_process_does(backend: str, part: int, tmp_path: Path) -> None:
    if backend != "torch":
        pytest.importorskip(backend, reason=f"needs {backend}: pip install 'hocket[{backend}]'")
    names = guides_keras.list_programs(backend)[part::PARTS]
    found = fit(compare, tmp_path, backend, {"names": names}).return_value
    assert list(found) == names
    wrong: dict[str, object] = {}
    for name, (alone, ranks) in found.items():
        texts: list[Any] = [one for one in (alone, *ranks) if isinstance(one, str)]
        far = texts or [measure(ranks[0], ranks[1]), measure(alone, ranks[0])]
        if texts or far[0] > CLOSE or not far[1] <= ROUGH.get(name, CLOSE):
            wrong[name] = far
    assert wrong == {}


# --- what is refused, or found by the net -----------------------------------------------------------------------------


def build(optimizer: Any = "sgd", **given: Any) -> Any:
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
    model.compile(optimizer, "mse", **given)
    return model


def step_by_hand(model: Any, optimizer: Any) -> None:
    x, y = guides_keras.rows(16)
    model.zero_grad()
    keras.losses.MeanSquaredError()(keras.ops.convert_to_tensor(y), model(keras.ops.convert_to_tensor(x))).backward()
    optimizer.apply([one.value.grad for one in model.trainable_weights], model.trainable_weights)


def step_a_model_that_was_built_later() -> None:
    model = hocket_keras.prepare_model(keras.Sequential([keras.layers.Dense(1)]))
    model(np.ones((1, 6), "float32"))
    step_by_hand(model, keras.optimizers.SGD(0.1))


def step_by_hand_with_another_strategy() -> None:
    step_by_hand(hocket_keras.prepare_model(build()), keras.optimizers.SGD(0.1))


def step_with_another_optimizer() -> None:
    class Own(guides_keras.Own):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.second = keras.optimizers.SGD(0.1)

        def train_step(self, data: Any) -> Any:
            step_by_hand(self, self.second)
            return {}

    inputs = keras.Input((6,))
    model = Own(inputs, keras.layers.Dense(1)(inputs))
    model.compile("sgd", "mse")
    hocket_keras.prepare_model(model).fit(hocket_keras.prepare_arrays(*guides_keras.rows(), batch_size=8), verbose=0)


def train_a_model_without_variables() -> None:
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    hocket_keras.prepare_model(model).fit((part for part in [guides_keras.rows(16)]), verbose=0)


def normalize_jointly() -> None:
    layer = keras.layers.BatchNormalization()
    layer.synchronized = True  # only on TensorFlow does Keras take it as an argument
    hocket_keras.prepare_model(keras.Sequential([keras.Input((6,)), layer, keras.layers.Dense(1)]))


def take_unequal_steps() -> None:
    x, y = guides_keras.rows(16 + 16 * train.get_context().get_world_rank())
    hocket_keras.prepare_model(build()).fit(x, y, batch_size=8, verbose=0)


@pytest.mark.parametrize(
    ("function", "strategy", "message"),
    [
        (take_unequal_steps, None, r"(?s)same order.*If the ranks have unequal numbers of batches"),
        (
            normalize_jointly,
            None,
            r"has synchronized=True, but in a prepared model a layer sees only the rows of its own",
        ),
        (step_a_model_that_was_built_later, None, r"made after prepare_model\(\).*Build the model first"),
        (
            step_by_hand_with_another_strategy,
            hocket_keras.LocalSGD(2),
            r"a loop of the program's own, which the strategy does not see",
        ),
        (
            step_with_another_optimizer,
            hocket_keras.ParameterServer(),
            r"Compile the model with that optimizer, or use AllReduce",
        ),
        (train_a_model_without_variables, None, r"does not have all of its variables yet"),
    ],
)
@pytest.mark.usefixtures("session")
def test_what_cannot_be_right_is_refused(function: Any, strategy: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(train.TrainingFailedError, match=message):
        fit(function, tmp_path, "torch", strategy=strategy)


class Meddle(keras.callbacks.Callback):  # type: ignore[misc]  # Keras is not type-checked
    """Does something in rank 1 alone, when the first epoch ends."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self._what = what

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if train.get_context().get_world_rank() == 1 and epoch == 0:
            if self._what == "weights":
                self.model.set_weights([weight + 1e-3 for weight in self.model.get_weights()])
            else:
                self.model.optimizer.learning_rate = 0.5


class Odd(keras.layers.Layer):  # type: ignore[misc]  # the same
    """Counts rows in whole numbers, and does not say how ranks put them together."""

    def build(self, shape: Any) -> None:
        self.seen = self.add_weight(shape=(), initializer="zeros", trainable=False, dtype="int32", name="seen")

    def call(self, inputs: Any, training: bool = False) -> Any:
        if training:
            self.seen.assign_add(keras.ops.cast(keras.ops.sum(inputs[:, 0] > 0), "int32"))
        return inputs


def diverge(config: dict[str, str]) -> None:
    layers = [Odd()] if config["what"] == "layer" else []
    model = keras.Sequential([keras.Input((6,)), *layers, keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    data = hocket_keras.prepare_arrays(*guides_keras.rows(), batch_size=8)
    hocket_keras.prepare_model(model).fit(data, epochs=2, verbose=0, callbacks=[Meddle(config["what"])])


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (
            "weights",
            r"rank . has values of the parameter `sequential/dense/kernel.*a callback set weights in one rank alone",
        ),
        ("rate", r"rank . has values of the optimizer's .*learning_rate.*sets the learning rate by its own numbers"),
        ("layer", r"has values of the buffer `.*seen.*aggregation='sum'"),
    ],
)
@pytest.mark.usefixtures("session")
def test_the_net_finds_ranks_that_differ(what: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(train.RanksDivergedError, match=message):
        fit(diverge, tmp_path, "torch", {"what": what})


def train_on_the_same_rows() -> list[str]:
    import warnings

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        hocket_keras.prepare_model(build()).fit(*guides_keras.rows(16), verbose=0)
    return [str(one.message) for one in caught]


@pytest.mark.usefixtures("session")
def test_the_same_rows_in_all_ranks_are_named(tmp_path: Path) -> None:
    said = fit(train_on_the_same_rows, tmp_path, "torch").return_value
    assert any("the same rows in all 2 ranks" in text and "prepare_arrays(" in text for text in said)


def evaluate_a_sum() -> list[str]:
    model = hocket_keras.prepare_model(build())
    model.compile("sgd", keras.losses.MeanSquaredError(reduction="sum"))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(2):
            model.evaluate(hocket_keras.prepare_arrays(*guides_keras.rows(16), batch_size=4, resume=False), verbose=0)
    return [str(one.message) for one in told if "reduction='sum'" in str(one.message)]


@pytest.mark.usefixtures("session")
def test_a_sum_that_an_evaluation_does_not_add_up_is_told_once(tmp_path: Path) -> None:
    (message,) = fit(evaluate_a_sum, tmp_path, "torch").return_value
    assert "the mean of the 2 ranks' sums" in message


def break_and_go_on(config: dict[str, str]) -> list[Any]:
    keras.utils.set_random_seed(3)
    model = hocket_keras.prepare_model(build(keras.optimizers.Adam(0.01)))
    data = hocket_keras.prepare_arrays(*guides_keras.rows(), batch_size=8, shuffle=False, resume=False)

    class Break(keras.callbacks.Callback):  # type: ignore[misc]  # Keras is not type-checked
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 1 and not Path(config["folder"], "broken").exists():
                raise KeyError(epoch)

    try:
        model.fit(data, epochs=3, verbose=0, callbacks=[keras.callbacks.BackupAndRestore(config["folder"]), Break()])
    except KeyError:
        return []
    return [np.asarray(array).tolist() for array in (*model.get_weights(), model.optimizer.iterations)]


@pytest.mark.parametrize("backend", ["torch", pytest.param("tensorflow", marks=pytest.mark.long)])
@pytest.mark.usefixtures("session")
def test_a_backup_that_rank_0_restores_is_that_of_all(backend: str, tmp_path: Path) -> None:
    """On TensorFlow an optimizer has no variables before its first step, and the callback makes rank 0's."""
    folders = [tmp_path / name for name in ("broken", "whole")]
    for folder in folders:
        folder.mkdir()
    (folders[1] / "broken").touch()
    assert fit(break_and_go_on, tmp_path / "first", backend, {"folder": str(folders[0])}).return_value == []
    (folders[0] / "broken").touch()
    found, expected = (
        fit(break_and_go_on, tmp_path / f"{number}", backend, {"folder": str(folder)}).return_value
        for number, folder in enumerate(folders)
    )
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
