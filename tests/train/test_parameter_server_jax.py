"""JAX on parameter servers: plain JAX's steps with one rank, and one model for two."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import hocket
from hocket import ps, train
from hocket.train import jax as hocket_jax
from hocket.train.strategies import ParameterServer
from tests.train.on_servers import fit, make_digits


def learn_with_jax(config: dict[str, Any]) -> float:
    rank = train.get_context().get_world_rank()
    keys = jax.random.split(jax.random.key(rank))
    params = {"in": jax.random.normal(keys[0], (16, 8)) / 4, "out": jax.random.normal(keys[1], (8, 4)) / 4}
    params = hocket_jax.prepare_params(params)
    optimizer = hocket_jax.prepare_optimizer(config.get("optimizer", optax.adam(0.02)))
    state = optimizer.init(params)

    @jax.jit
    def step_once(params: Any, state: Any, x: Any, y: Any) -> Any:
        def compute(params: Any) -> Any:
            scores = jax.nn.relu(x @ params["in"]) @ params["out"]
            return optax.softmax_cross_entropy_with_integer_labels(scores, y).mean()

        loss, gradients = jax.value_and_grad(compute)(params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss

    losses = []
    for step in range(config["steps"]):
        if rank == 1 and step == 10 and "folder" in config and not (Path(config["folder"]) / "died").exists():
            (Path(config["folder"]) / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        params, state, loss = step_once(params, state, *make_digits(rank, step))
        losses.append(float(loss))
    return losses[-1] / losses[0]


def test_two_ranks_that_are_processes_learn_together(session: hocket.SessionContext, tmp_path: Path) -> None:
    """JAX's ranks are never threads. One is killed, and begins anew: the servers drop the steps that they have had."""
    settings = ParameterServer(num_servers=2, max_staleness=0)
    config = {"steps": 40, "folder": str(tmp_path)}
    result = fit(hocket_jax.JaxTrainer, tmp_path, learn_with_jax, settings, 2, config=config, max_failures=1)
    assert (tmp_path / "died").exists()
    assert result.return_value < 0.5
    assert result.statistics["staleness"] == {0: 80}
    assert result.statistics["updates"] == [80, 80]


@pytest.mark.parametrize("name", ["sgd", "adam"])
@pytest.mark.parametrize("is_applied_by_servers", [False, True])
def test_one_rank_takes_the_steps_of_plain_jax(
    here: None, tmp_path: Path, name: str, is_applied_by_servers: bool
) -> None:
    plain = {"sgd": optax.sgd(0.1), "adam": optax.adam(0.02)}[name]
    ours = {"sgd": ps.SGD(lr=0.1), "adam": ps.Adam(lr=0.02)}[name] if is_applied_by_servers else plain

    def loop(config: dict[str, Any]) -> Any:
        params = hocket_jax.prepare_params({"w": jnp.ones((3, 2)), "b": jnp.zeros((), jnp.float32)})
        optimizer = hocket_jax.prepare_optimizer(config["optimizer"])
        state = optimizer.init(params)

        @jax.jit
        def step_once(params: Any, state: Any, x: Any) -> Any:
            gradients = jax.grad(lambda params: jnp.square(jnp.tanh(x @ params["w"]) + params["b"]).sum())(params)
            updates, state = optimizer.update(gradients, state, params)
            return optax.apply_updates(params, updates), state

        for step in range(10):
            params, state = step_once(params, state, np.random.default_rng(step).normal(size=(4, 3)).astype("float32"))
        params, state = hocket_jax.synchronize(params, state)
        return {key: np.asarray(value) for key, value in params.items()}

    expected, found = (
        fit(hocket_jax.JaxTrainer, tmp_path, loop, strategy, config={"optimizer": optimizer}).return_value
        for strategy, optimizer in ((None, plain), (ParameterServer(2), ours))
    )
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, rtol=0, atol=5e-6 if is_applied_by_servers else 1e-6)


def init_when_traced(optimizer: Any) -> None:
    jax.jit(optimizer.init)(jnp.ones(2))


def init_twice(optimizer: Any) -> None:
    optimizer.init(jnp.ones(2))
    optimizer.init(jnp.ones(2))


def step_without_params(optimizer: Any) -> None:
    optimizer.update(jnp.ones(2), optimizer.init(jnp.ones(2)))


def step_with_another_state(optimizer: Any) -> None:
    optimizer.update(jnp.ones(2), (), jnp.ones(2))


def synchronize_when_traced(optimizer: Any) -> None:
    state = optimizer.init(jnp.ones(2))
    jax.jit(hocket_jax.synchronize)(jnp.ones(2), state)


def change_params(optimizer: Any) -> None:
    params = jnp.ones(2)
    state = optimizer.init(params)
    for _ in range(2):
        updates, state = optimizer.update(jnp.ones(2), state, params)
        params = optax.apply_updates(params, updates) / 2


@pytest.mark.parametrize(
    ("loop", "message"),
    [
        (change_params, r"changed the weights `params` .*their norm was 1.27279, and is now 0.636396"),
        (init_when_traced, r"puts the parameters on servers, .* Call it outside of jax.jit"),
        (init_twice, r"was called a second time in this training function"),
        (step_without_params, r"was called without them. Write optimizer.update\(gradients, state, params\)"),
        (step_with_another_state, r"needs the state of a prepared optimizer, but received a tuple"),
        (synchronize_when_traced, r"synchronize\(\) reads from the servers, .* Call it outside of jax.jit"),
    ],
)
def test_what_jax_cannot_do_is_refused(here: None, tmp_path: Path, loop: Any, message: str) -> None:
    def run() -> None:
        loop(hocket_jax.prepare_optimizer(optax.sgd(0.1)))

    with pytest.raises((TypeError, ValueError, jax.errors.JaxRuntimeError), match=message):
        fit(hocket_jax.JaxTrainer, tmp_path, run, ParameterServer())


def test_optimizers_of_servers_need_servers(here: None, tmp_path: Path) -> None:
    with pytest.raises(
        TypeError, match=r"received SGD\(.*\), an optimizer for servers, but the strategy has no servers"
    ):
        fit(hocket_jax.JaxTrainer, tmp_path, lambda: hocket_jax.prepare_optimizer(ps.SGD(lr=0.1)), None)
