"""A strategy that a user has written, in every framework: what it computes is what numpy says."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hocket
from hocket import train
from tests.train.elastic_averaging import ElasticAveraging

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

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
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(batch), targets).backward()
        optimizer.step()
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
    "jax": ("jax", "JaxTrainer", train_jax, {}),
    **{
        f"keras on {backend}": ("keras", "KerasTrainer", train_keras, {"backend": backend})
        for backend in ("tensorflow", "torch", "jax")
    },
}


def fit(name: str, path: Path, num_workers: int) -> Any:
    module, trainer, function, options = FRAMEWORKS[name]
    adapter = importlib.import_module(f"hocket.train.{module}")
    given: dict[str, Any] = {"keras_config": adapter.KerasConfig(**options)} if options else {}
    return getattr(adapter, trainer)(
        function,
        strategy=STRATEGY,
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
