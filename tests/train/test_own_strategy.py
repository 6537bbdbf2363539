"""A strategy that a user has written, in every framework: what it computes is what numpy says."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import hocket
from hocket import train
from hocket.train.strategies import hosting
from tests.train.elastic_averaging import ElasticAveraging

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings(
        "ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"
    ),  # Keras's own
]

ROWS, FEATURES, BATCH, EVERY, LR = 48, 4, 4, 2, 0.1
STRATEGY = ElasticAveraging(EVERY)


def make_data() -> tuple[Any, Any]:
    generator = np.random.default_rng(3)
    rows = generator.normal(size=(ROWS, FEATURES)).astype("float32")
    return rows, (rows @ generator.normal(size=(FEATURES, 1))).astype("float32")


def compute_expected(world_size: int = 2) -> Any:
    """What elastic averaging does with a linear model: each rank takes its half of each batch of all."""
    rows, labels = make_data()
    center = np.zeros((FEATURES, 1))
    mine = [center.copy() for _ in range(world_size)]
    for step in range(ROWS // (BATCH * world_size)):
        for rank in range(world_size):
            start = (step * world_size + rank) * BATCH
            batch, targets = rows[start : start + BATCH], labels[start : start + BATCH]
            mine[rank] -= LR * 2 * batch.T @ (batch @ mine[rank] - targets) / BATCH
        if (step + 1) % EVERY == 0:
            mean = sum(mine) / world_size
            mine = [one - STRATEGY.pull * (one - center) for one in mine]
            center = center + STRATEGY.pull * (mean - center)
    return center


def train_torch() -> Any:
    return descend_in_torch(lambda optimizer, compute: (compute(), optimizer.step()))


def train_torch_by_closures() -> Any:
    return descend_in_torch(lambda optimizer, compute: optimizer.step(compute))


def descend_in_torch(take_step: Callable[[Any, Callable[[], Any]], object]) -> Any:
    import torch
    from torch.utils import data

    from hocket.train import torch as adapter

    rows, labels = make_data()
    whole = data.TensorDataset(torch.from_numpy(rows), torch.from_numpy(labels))
    loader = adapter.prepare_data_loader(data.DataLoader(whole, batch_size=BATCH))
    plain = torch.nn.Linear(FEATURES, 1, bias=False)
    torch.nn.init.zeros_(plain.weight)
    model = adapter.prepare_model(plain)
    optimizer = adapter.prepare_optimizer(torch.optim.SGD(model.parameters(), lr=LR))
    for batch, targets in loader:

        def compute(batch: Any = batch, targets: Any = targets) -> Any:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(batch), targets)
            loss.backward()
            return loss

        take_step(optimizer, compute)
    adapter.synchronize()
    return plain.weight.detach().numpy().T.copy()


def train_jax() -> Any:
    import jax
    import jax.numpy as jnp
    import optax

    from hocket.train import jax as adapter

    params = adapter.prepare_params({"kernel": jnp.zeros((FEATURES, 1))})
    optimizer = adapter.prepare_optimizer(optax.sgd(LR))
    state = optimizer.init(params)

    @jax.jit
    def step(params: Any, state: Any, batch: Any) -> Any:
        def compute_loss(params: Any) -> Any:
            return jnp.square(batch[0] @ params["kernel"] - batch[1]).mean()

        updates, state = optimizer.update(jax.grad(compute_loss)(params), state, params)
        return optax.apply_updates(params, updates), state

    for batch, _ in adapter.prepare_arrays(make_data(), BATCH, shuffle=False):
        params, state = step(params, state, batch)
    params, state = adapter.synchronize(params, state)
    return np.asarray(params["kernel"])


def train_keras() -> Any:
    import keras

    from hocket.train import keras as adapter

    model = keras.Sequential(
        [keras.Input((FEATURES,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")]
    )
    model.compile(keras.optimizers.SGD(LR), "mse")
    model = adapter.prepare_model(model)
    model.fit(adapter.prepare_arrays(*make_data(), batch_size=BATCH, shuffle=False), verbose=0)
    return model.get_weights()[0]


FRAMEWORKS: dict[str, tuple[str, str, Any, dict[str, Any]]] = {
    "torch": ("torch", "TorchTrainer", train_torch, {}),
    "torch by closures": ("torch", "TorchTrainer", train_torch_by_closures, {}),
    "jax": ("jax", "JaxTrainer", train_jax, {}),
    **{
        f"keras on {backend}": ("keras", "KerasTrainer", train_keras, {"backend": backend})
        for backend in ("tensorflow", "torch", "jax")
    },
}


def fit(name: str, path: Path, num_workers: int, strategy: train.strategies.Strategy = STRATEGY, **changed: Any) -> Any:
    module, trainer, function, options = FRAMEWORKS[name]
    options = {key: value for key, value in {**options, **changed}.items() if value is not None}
    adapter = importlib.import_module(f"hocket.train.{module}")
    given: dict[str, Any] = {"keras_config": adapter.KerasConfig(**options)} if options else {}
    return getattr(adapter, trainer)(
        function,
        strategy=strategy,
        scaling_config=train.ScalingConfig(num_workers=num_workers),
        run_config=train.RunConfig(storage_path=path),
        **given,
    ).fit()


@pytest.mark.usefixtures("session")
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_it_computes_the_same_in_each_framework(framework: str, tmp_path: Path) -> None:
    returned = fit(framework, tmp_path, 2).return_value
    np.testing.assert_allclose(returned, compute_expected(), atol=1e-5)


def test_it_does_so_in_ranks_that_take_turns_and_in_one(tmp_path: Path) -> None:
    with hocket.init(engine="inprocess", num_cpus=2):
        np.testing.assert_allclose(fit("torch", tmp_path, 2).return_value, compute_expected(), atol=1e-5)
        np.testing.assert_allclose(fit("torch", tmp_path, 0).return_value, compute_expected(1), atol=1e-5)


class Plain(train.strategies.Strategy):
    """Averages gradients."""

    def open(self, ranks: train.strategies.Ranks) -> train.strategies.StrategyRuntime:
        return _Plain(ranks)


class _Plain(train.strategies.StrategyRuntime):
    def __init__(self, ranks: train.strategies.Ranks) -> None:
        self._world = ranks.world

    def average(self, flat: Any, rows: float) -> None:
        assert (flat.dtype, len(flat)) == (np.float32, FEATURES + 1)
        self._world.all_reduce(flat)
        flat /= self._world.size


class Steps(train.strategies.Strategy):
    """Takes the optimizer's steps itself, and notes with what."""

    seen: ClassVar[list[tuple[float, bool]]] = []

    def open(self, ranks: train.strategies.Ranks) -> train.strategies.StrategyRuntime:
        return _Steps()


class _Steps(train.strategies.StrategyRuntime):
    takes_steps = True

    def begin(self, model: train.strategies.HostModel) -> None:
        self._parameters = model.read()

    def choose(self, numbers: Sequence[int]) -> None:
        self._chosen = numbers

    def take_step(self, flat: Any, rate: float, *, counts: bool) -> None:
        Steps.seen.append((rate, counts))
        mine = [self._parameters[number] for number in self._chosen]
        for value, part in zip(mine, train.strategies.unflatten(flat[:-1], [one.shape for one in mine]), strict=True):
            part[...] = value - rate * part
            value[...] = part


def compute_plain(world_size: int) -> Any:
    """Plain descent with the rows of all ranks."""
    rows, labels = make_data()
    kernel = np.zeros((FEATURES, 1))
    for start in range(0, ROWS, BATCH * world_size):
        batch, targets = rows[start : start + BATCH * world_size], labels[start : start + BATCH * world_size]
        kernel -= LR * 2 * batch.T @ (batch @ kernel - targets) / len(batch)
    return kernel


@pytest.mark.parametrize("framework", ["torch", "torch by closures", "jax"])
def test_gradients_go_through_it(framework: str, tmp_path: Path) -> None:
    with hocket.init(engine="inprocess", num_cpus=2):
        size = 0 if framework == "jax" else 2  # JAX's ranks are processes
        returned = fit(framework, tmp_path, size, Plain()).return_value
    np.testing.assert_allclose(returned, compute_plain(size or 1), atol=1e-5)


@pytest.mark.parametrize("rate", [LR, 0.0])
@pytest.mark.parametrize("framework", ["torch", "torch by closures", "keras on torch"])
def test_it_may_take_the_steps_also_those_of_a_rate_of_0(
    framework: str, rate: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "keras" not in sys.modules:
        monkeypatch.setenv("KERAS_BACKEND", "torch")
    monkeypatch.setitem(globals(), "LR", rate)
    Steps.seen.clear()
    returned = fit(framework, tmp_path, 0, Steps(), backend=None).return_value
    np.testing.assert_allclose(returned, compute_plain(1), atol=1e-5)
    rates, counted = zip(*Steps.seen, strict=True)
    assert rates == pytest.approx([rate] * (ROWS // BATCH))
    assert all(counted)


def test_what_jax_cannot_do_is_refused(tmp_path: Path) -> None:
    def average() -> None:
        from hocket.train import jax as adapter

        adapter.average_gradients({"w": np.ones(1, np.float32)})

    def forget_state() -> None:
        import optax

        from hocket.train import jax as adapter

        params = adapter.prepare_params({"w": np.ones(1, np.float32)})
        adapter.prepare_optimizer(optax.sgd(LR)).update(params, optax.sgd(LR).init(params), params)

    def forget_params() -> None:
        import optax

        from hocket.train import jax as adapter

        params = adapter.prepare_params({"w": np.ones(1, np.float32)})
        optimizer = adapter.prepare_optimizer(optax.sgd(LR))
        optimizer.update(params, optimizer.init(params))

    for function, strategy, message in (
        (average, STRATEGY, "With ElasticAveraging the optimizer's step shows the strategy the parameters"),
        (forget_state, STRATEGY, "ElasticAveraging needs the state of a prepared optimizer"),
        (forget_params, STRATEGY, "ElasticAveraging works on the parameters, but .* without them"),
        (average, Steps(), "Steps takes steps in the optimizer's place and needs its learning rate"),
    ):
        FRAMEWORKS["refused"] = ("jax", "JaxTrainer", function, {})
        with pytest.raises(ValueError, match=message):
            fit("refused", tmp_path, 0, strategy)
        del FRAMEWORKS["refused"]


@dataclass(frozen=True)
class Broadcasts(train.strategies.Strategy):
    """Writes arrays that numpy and the frameworks would broadcast, or too few, or too many elements."""

    wrong: str

    def open(self, ranks: train.strategies.Ranks) -> train.strategies.StrategyRuntime:
        return _Broadcasts(self.wrong)


class _Broadcasts(train.strategies.StrategyRuntime):
    def __init__(self, wrong: str) -> None:
        self._wrong = wrong

    def after_steps(self, model: train.strategies.HostModel, count: int) -> None:
        match self._wrong:
            case "shape":
                model.write([np.full((1, 1), one.mean(), one.dtype) for one in model.read()])
            case "count":
                model.write([])
            case "flat":
                model.write_flat(np.append(model.read_flat(), np.float32(0)))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("shape", r"Parameter 0 of the model has the shape \(.+\), but write\(\) received an array of shape \(1, 1\)"),
        ("count", r"The model has 1 parameters, but write\(\) received 0 arrays"),
        ("flat", rf"The parameters have {FEATURES} elements, but received an array of shape \({FEATURES + 1},\)"),
    ],
)
@pytest.mark.parametrize("framework", ["torch", "jax", "keras on torch"])
def test_what_it_writes_must_have_the_shapes(
    framework: str, wrong: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "keras" not in sys.modules:
        monkeypatch.setenv("KERAS_BACKEND", "torch")
    with pytest.raises((ValueError, RuntimeError), match=message):  # JAX makes a RuntimeError of what a step raises
        fit(framework, tmp_path, 0, Broadcasts(wrong), backend=None)


class Number(train.strategies.Strategy):
    """Opens what nobody can drive."""

    def open(self, ranks: train.strategies.Ranks) -> Any:
        return 3


@pytest.mark.parametrize("framework", ["torch", "jax", "keras on torch"])
def test_what_is_opened_must_be_a_runtime(framework: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "keras" not in sys.modules:
        monkeypatch.setenv("KERAS_BACKEND", "torch")
    with pytest.raises(TypeError, match=r"Number\.open\(\) must return a StrategyRuntime, .* but returned 3\. Use"):
        fit(framework, tmp_path, 0, Number(), backend=None)


class Fails(train.strategies.Strategy):
    """Cannot open."""

    def open(self, ranks: train.strategies.Ranks) -> Any:
        raise KeyError("no such setting")


@pytest.mark.usefixtures("session")
def test_error_of_open_shows_the_users_frames_only(tmp_path: Path) -> None:
    with pytest.raises(train.TrainingFailedError) as caught:
        fit("torch", tmp_path, 2, Fails())
    text = str(caught.value)
    assert 'raise KeyError("no such setting")' in text
    assert text.count("File ") == 1


class FailsToClose(train.strategies.Strategy):
    """Cannot be closed."""

    def open(self, ranks: train.strategies.Ranks) -> train.strategies.StrategyRuntime:
        return _FailsToClose()


class _FailsToClose(train.strategies.StrategyRuntime):
    def close(self) -> None:
        raise OSError("cannot close")


def test_error_of_close_does_not_hide_the_functions_own(tmp_path: Path) -> None:
    def fail() -> None:
        raise ValueError("the one to see")

    FRAMEWORKS["fails"] = ("torch", "TorchTrainer", fail, {})
    with pytest.raises(ValueError, match="the one to see") as caught:
        fit("fails", tmp_path, 0, FailsToClose())
    assert caught.value.__notes__ == ["After that, the strategy could not be closed: OSError: cannot close"]
    with pytest.raises(OSError, match="cannot close"):
        fit("torch", tmp_path, 0, FailsToClose())
    del FRAMEWORKS["fails"]


@dataclass(frozen=True)
class Returns(train.strategies.Strategy):
    """Returns results where arrays should be changed, and nothing where a runtime should be returned."""

    method: str

    def open(self, ranks: train.strategies.Ranks) -> train.strategies.StrategyRuntime:
        return _Returns(self.method)


class _Returns(train.strategies.StrategyRuntime):
    def __init__(self, method: str) -> None:
        self._method = method
        self.takes_steps = method == "take_step"

    def average(self, flat: Any, rows: float) -> Any:
        return flat / 2 if self._method == "average" else None

    def take_step(self, flat: Any, rate: float, *, counts: bool) -> Any:
        return flat / 2

    def open_next(self) -> Any:
        return None if self._method == "open_next" else self


@pytest.mark.parametrize(
    ("framework", "method"),
    [
        *itertools.product(["torch", "jax", "keras on torch"], ["average", "open_next"]),
        *itertools.product(["torch", "keras on torch"], ["take_step"]),
    ],
)
def test_what_its_methods_return_is_looked_at(
    framework: str, method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "keras" not in sys.modules:
        monkeypatch.setenv("KERAS_BACKEND", "torch")
    message = {
        "open_next": r"_Returns\.open_next\(\) must return a StrategyRuntime, but returned None. Return self",
    }.get(
        method, rf"_Returns\.{method}\(\) must change the array that it is given and return nothing, but returned array"
    )
    with pytest.raises((TypeError, RuntimeError), match=message):  # JAX makes a RuntimeError of what a step raises
        fit(framework, tmp_path, 0, Returns(method), backend=None)


def test_what_it_cannot_see_is_refused(tmp_path: Path) -> None:
    import torch

    from hocket.train import torch as adapter

    def forget() -> None:
        model = adapter.prepare_model(torch.nn.Linear(1, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=LR)
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step()

    def foreign() -> None:
        adapter.prepare_optimizer(torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=LR))

    def run(function: Any, strategy: Any = STRATEGY) -> None:
        adapter.TorchTrainer(
            function,
            strategy=strategy,
            scaling_config=train.ScalingConfig(num_workers=0),
            run_config=train.RunConfig(storage_path=tmp_path),
        ).fit()

    with pytest.raises(
        RuntimeError, match="ElasticAveraging works in the optimizer's step, but this SGD was not prepared"
    ):
        run(forget)
    with pytest.raises(ValueError, match="ElasticAveraging works on parameters of prepared models"):
        run(foreign)
    with pytest.raises(TypeError, match=r"The strategy .* has no open\(\)"):
        run(forget, train.strategies.Strategy())


class Program:
    """A training function that is an object, with attributes named like those of what carries it."""

    def __init__(self) -> None:
        self.strategy = self._function = "mine"

    def __call__(self) -> str:
        return self._function


def test_a_training_function_may_be_an_object_with_attributes_of_any_name() -> None:
    carried = hosting.add_strategy(Program(), train.strategies.LocalSGD(2), lambda strategy: contextlib.nullcontext())
    assert carried.strategy == train.strategies.LocalSGD(2)
    assert carried() == "mine"
