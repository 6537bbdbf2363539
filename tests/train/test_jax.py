"""Training with JAX: the ranks compute what one process would."""

from __future__ import annotations

import functools
import os
import signal
import stat
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import psutil
import pytest

from hocket import train
from hocket.collective import meeting
from hocket.testing.suites.programs import wait_until
from hocket.train import jax as hocket_jax
from hocket.train.frameworks.jax import host_calls
from tests import conftest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.fixture(autouse=True, scope="module")
def _session(shared_ray: conftest.SharedRay) -> Iterator[None]:
    """One for all tests here, so that JAX is loaded once; it leaves nothing behind."""
    with conftest.open_session(conftest.ENGINE, shared_ray):
        yield


ROWS = 20


def fit(function: Any, path: Path, num_workers: int = 2, config: Any = None, **given: Any) -> train.Result:
    run_config = given.pop("run_config", {})
    return hocket_jax.JaxTrainer(
        function,
        train_loop_config=config,
        scaling_config=train.ScalingConfig(num_workers=num_workers, resources_per_worker={"CPU": 0.5}),
        run_config=train.RunConfig(storage_path=str(path), **run_config),
        **given,
    ).fit()


def get_rank() -> int:
    return train.get_context().get_world_rank()


class Collect(train.UserCallback):
    def __init__(self) -> None:
        self.metrics: list[list[dict[str, Any]]] = []

    def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
        self.metrics.append(metrics)


def build_data() -> tuple[Any, Any]:
    inputs = np.random.default_rng(1).normal(size=(ROWS, 5)).astype(np.float32)
    return inputs, np.sin(inputs.sum(1))


def compute_loss(params: Any, inputs: Any, targets: Any, weights: Any) -> Any:
    hidden = jnp.tanh(inputs @ params["in"])
    return jnp.mean(jnp.square(hidden @ params["out"] - targets) * weights)


def take_steps(config: dict[str, Any]) -> None:
    """Train a small network in two ways; report the parameters of each rank."""
    keys = jax.random.split(jax.random.key(get_rank()))  # prepare_params must make the ranks equal
    start = {"in": jax.random.normal(keys[0], (5, 8)), "out": jax.random.normal(keys[1], (8,))}
    start = hocket_jax.prepare_params({**start, "key": jax.random.key(get_rank())})
    assert (start.pop("key") == jax.random.key(0)).all()
    gradient = jax.grad(compute_loss)
    optimizer = hocket_jax.prepare_optimizer(optax.adam(0.05))

    def step(params: Any, state: Any, *batch: Any) -> Any:
        updates, state = optimizer.update(gradient(params, *batch), state, params)
        return optax.apply_updates(params, updates), state

    def descend(params: Any, state: Any, *batch: Any) -> Any:
        found = hocket_jax.average_gradients(gradient(params, *batch))
        return jax.tree.map(lambda param, slope: param - 0.1 * slope, params, found), state

    found = {}
    for name, way in (("optax", jax.jit(step)), ("by hand", jax.jit(descend))):
        params, state = start, jax.jit(optimizer.init)(start)
        loader = hocket_jax.prepare_arrays(build_data(), config["batch_size"], name=name)
        for _ in range(2):
            for batch, weights in loader:  # the last batch is short
                params, state = way(params, state, *batch, weights)
        params, state = hocket_jax.synchronize(params, state)
        found[name] = np.concatenate([np.ravel(value) for value in params.values()]).tolist()
    train.report(found)


def test_two_ranks_learn_what_one_does_with_batches_of_twice_the_size(tmp_path: Path) -> None:
    collect = Collect()
    fit(take_steps, tmp_path, 2, {"batch_size": 4}, run_config={"callbacks": [collect]})
    first, second = collect.metrics[0]
    assert first == second
    alone = fit(take_steps, tmp_path, 0, {"batch_size": 8}).metrics
    assert alone is not None
    for name, expected in alone.items():
        assert first[name] == pytest.approx(expected, rel=1e-5, abs=1e-6), name


def drift() -> Any:
    """Each rank goes its own way; return where rank 0 was after each step, and at last."""
    optimizer = hocket_jax.prepare_optimizer(optax.sgd(1.0, momentum=0.5))
    params = {"w": jnp.array([1.0, -2.0])}
    state = optimizer.init(params)
    slope = {"w": jnp.array([0.25, 0.5]) * (1 + get_rank())}

    @jax.jit
    def step(params: Any, state: Any) -> Any:
        updates, state = optimizer.update(slope, state, params)
        return optax.apply_updates(params, updates), state

    seen = []
    for _ in range(7):
        params, state = step(params, state)
        seen.append(params["w"].tolist())
    params, state = jax.jit(hocket_jax.synchronize)(params, state)
    again, _ = hocket_jax.synchronize(params, state)
    assert again["w"].tolist() == params["w"].tolist(), "a second meeting changes nothing"
    return [*seen, params["w"].tolist()]


def simulate(sync_every: int, lr: float, momentum: float, begin_after: int) -> list[list[float]]:
    """What the papers say, for both ranks, with numpy."""
    params = [np.array([1.0, -2.0])] * 2
    pace = [np.zeros(2), np.zeros(2)]
    anchor, velocity = params[0], np.zeros(2)
    apart, seen = 0, []

    def meet() -> None:
        nonlocal anchor, velocity, params, apart
        slope = anchor - np.mean(params, axis=0)
        velocity = momentum * velocity + slope
        anchor = anchor - lr * (slope + momentum * velocity)
        params, apart = [anchor, anchor], 0

    for step in range(7):
        slopes = [np.array([0.25, 0.5]), np.array([0.5, 1.0])]
        if step < begin_after:
            slopes = [np.mean(slopes, axis=0)] * 2
        pace = [0.5 * old + new for old, new in zip(pace, slopes, strict=True)]
        params = [param - own for param, own in zip(params, pace, strict=True)]
        if step < begin_after:
            anchor = params[0]
        else:
            apart += 1
        if apart == sync_every:
            meet()
        seen.append(params[0].tolist())
    if apart:
        meet()
    return [*seen, params[0].tolist()]


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (hocket_jax.LocalSGD(2), simulate(2, 1.0, 0.0, 0)),
        (hocket_jax.LocalSGD(3, begin_after=2), simulate(3, 1.0, 0.0, 2)),
        (hocket_jax.LocalSGD(2, outer=hocket_jax.Nesterov(lr=0.5, momentum=0.8)), simulate(2, 0.5, 0.8, 0)),
        (
            hocket_jax.LocalSGD(3, outer=hocket_jax.Nesterov(lr=0.5, momentum=0.8), begin_after=1),
            simulate(3, 0.5, 0.8, 1),
        ),
    ],
    ids=["mean", "later", "outer", "outer later"],
)
def test_local_sgd_meets_as_the_papers_say(tmp_path: Path, strategy: Any, expected: list[list[float]]) -> None:
    found = fit(drift, tmp_path, strategy=strategy).return_value
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_local_sgd_that_meets_at_each_step_is_all_reduce_for_plain_descent(tmp_path: Path) -> None:
    def descend() -> Any:
        optimizer = hocket_jax.prepare_optimizer(optax.sgd(0.1))
        params = {"in": jnp.ones((5, 8)), "out": jnp.linspace(0, 1, 8)}
        state = optimizer.init(params)

        @jax.jit
        def step(params: Any, state: Any, *batch: Any) -> Any:
            updates, state = optimizer.update(jax.grad(compute_loss)(params, *batch), state, params)
            return optax.apply_updates(params, updates), state

        for batch, weights in hocket_jax.prepare_arrays(build_data(), 4):
            params, state = step(params, state, *batch, weights)
        return np.concatenate([np.ravel(value) for value in params.values()]).tolist()

    results = [fit(descend, tmp_path, strategy=one).return_value for one in (None, hocket_jax.LocalSGD(1))]
    assert results[0] == pytest.approx(results[1], rel=1e-5)


def accumulate() -> list[float]:
    """Two small steps make one: what each rank has, averaged over steps and ranks."""
    optimizer = hocket_jax.prepare_optimizer(optax.MultiSteps(optax.sgd(1.0), every_k_schedule=2))
    params = jnp.zeros(())
    state = optimizer.init(params)
    found = []
    for step in range(4):
        updates, state = optimizer.update(jnp.array(float(get_rank() + step)), state, params)
        params = optax.apply_updates(params, updates)
        found.append(float(params))
    return found


def test_an_optimizer_that_accumulates_is_prepared(tmp_path: Path) -> None:
    assert fit(accumulate, tmp_path).return_value == pytest.approx([0.0, -1.0, -1.0, -4.0])


def call_everything() -> dict[str, Any]:
    rank = get_rank()
    found: dict[str, Any] = {}
    mine = {"big": jnp.full((600, 500), 1.0 + rank), "small": jnp.ones(3) * rank, "none": jnp.zeros((0, 2))}
    half = {"half": jnp.full(2, 1.0 + 2 * rank, jnp.bfloat16), "complex": jnp.array([1j * rank])}

    def average_twice(x: Any) -> Any:
        """Two averages that do not need each other: they are made in one order in all ranks."""
        first = hocket_jax.average_gradients({"first": jnp.tanh(x @ x) + rank})
        return first, hocket_jax.average_gradients({"second": x[0] * rank})

    for name, transform in (("jit", jax.jit), ("eager", lambda function: function)):
        means = transform(hocket_jax.average_gradients)(mine | half)
        found[name] = {key: (np.unique(np.asarray(mean)).tolist(), str(mean.dtype)) for key, mean in means.items()}
    twice = jax.jit(average_twice)
    first, second = [twice(jnp.ones((60, 60))) for _ in range(10)][-1]
    found["twice"] = [float(first["first"][0, 0]), float(second["second"][0])]
    found["scan"] = jax.lax.scan(
        lambda carry, _: (hocket_jax.average_gradients(carry) * 0.5, None), jnp.ones(3) * rank, None, length=3
    )[0].tolist()
    assert jnp.array_equal(mine["small"], jnp.ones(3) * rank), "what is averaged stays as it was"
    shared, own = hocket_jax.split_key(jax.random.key(1))
    keys = [hocket_jax.fold_in_rank(jax.random.key(0)), own, shared]
    sums = hocket_jax.average_gradients([jax.random.uniform(key) for key in keys])
    found["are keys equal"] = [bool(jax.random.uniform(key) == mean) for key, mean in zip(keys, sums, strict=True)]
    found["threads"] = os.environ["PJRT_NPROC"]
    found["device"] = hocket_jax.get_device().platform
    return found


def call_everything_as_on_a_gpu() -> dict[str, Any]:
    host_calls.computes_here = lambda: False  # this process is the rank's alone
    return call_everything()


@pytest.mark.parametrize(
    ("function", "hosts"),
    [(call_everything, [[0, 1]]), (call_everything_as_on_a_gpu, [[0], [1]])],
    ids=["one machine", "GPUs of two machines"],
)
def test_averages_in_and_out_of_compiled_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: Any, hosts: list[list[int]]
) -> None:
    monkeypatch.setattr(meeting, "group_by_host", lambda found: hosts)
    found = fit(function, tmp_path).return_value
    means = {
        "big": ([1.5], "float32"),
        "small": ([0.5], "float32"),
        "none": ([], "float32"),
        "half": ([2.0], "bfloat16"),
        "complex": ([0.5j], "complex64"),
    }
    assert found["jit"] == found["eager"] == means
    assert found["twice"] == [1.5, 0.5]
    assert found["scan"] == [0.0625] * 3
    assert found["are keys equal"] == [False, False, True]
    assert (found["threads"], found["device"]) == ("1", "cpu")


def test_compressed_gradients_travel_in_half_the_bytes(tmp_path: Path) -> None:
    def average() -> Any:
        return hocket_jax.average_gradients(jnp.array([1.0, 1 / 3]) * (1 + 2 * get_rank())).tolist()

    exact, short, digits = (
        fit(average, tmp_path, strategy=hocket_jax.AllReduce(compression=name)).return_value
        for name in (None, "bf16", "fp16")
    )
    assert exact == pytest.approx([2.0, 2 / 3], rel=1e-6)
    assert short == pytest.approx([2.0, 2 / 3], rel=1e-2)
    assert digits == pytest.approx([2.0, 2 / 3], rel=1e-3)
    assert short[1] != exact[1] != digits[1]


def test_jax_distributed_on_request(tmp_path: Path) -> None:
    def count() -> list[int]:
        return [jax.device_count(), jax.local_device_count(), jax.process_count()]

    assert fit(count, tmp_path, jax_config=hocket_jax.JaxConfig(distributed=True)).return_value == [2, 1, 2]


# --- failures and restarts --------------------------------------------------------------------------------------------


@pytest.mark.needs("death_evidence")
def test_a_killed_rank_is_named_and_the_others_end(tmp_path: Path) -> None:
    def die() -> None:
        train.report({"pid": os.getpid()})
        step, x = jax.jit(hocket_jax.average_gradients), jnp.ones(10)
        for number in range(1_000_000):
            x = step(x)
            if number == 20 and get_rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)

    collect = Collect()
    with pytest.raises(train.WorkerGroupError, match=r"Rank 1 of 2 died: .* killed by signal 9 \(SIGKILL\)"):
        fit(die, tmp_path, run_config={"callbacks": [collect]})
    pids = [one["pid"] for one in collect.metrics[0]]
    assert len(pids) == 2
    wait_until(lambda: not any(map(psutil.pid_exists, pids)))


def see_rows(config: dict[str, Any]) -> Any:
    """Report the rows of each step with a checkpoint; fail at one step of the first run."""
    loader = hocket_jax.prepare_arrays(np.arange(ROWS), config["batch_size"])
    params = {"w": jnp.zeros(2)}
    saved = train.get_checkpoint()
    if saved is not None:
        params = hocket_jax.load_pytree(Path(saved.path) / "params.npz", like=params)
    for step, (rows, weights) in enumerate(loader, 1):
        params = hocket_jax.average_gradients({"w": params["w"] + 1})
        folder = Path(config["folder"], f"{config['name']}-{get_rank()}-{step}")
        folder.mkdir()
        if get_rank() == 0:
            hocket_jax.save_pytree(folder / "params.npz", params)
        train.report({"rows": rows[weights > 0].tolist()}, train.Checkpoint(folder))
        if step == config["fail_at"]:
            raise RuntimeError("as planned")
    return params["w"].tolist()


def test_a_run_goes_on_with_another_number_of_ranks(tmp_path: Path) -> None:
    collect = Collect()
    given = {"run_config": {"name": "run", "callbacks": [collect]}}
    config = {"batch_size": 4, "folder": str(tmp_path), "name": "a", "fail_at": 1}
    with pytest.raises(train.WorkerGroupError, match="as planned"):
        fit(see_rows, tmp_path, 2, config, **given)
    given = {"run_config": {"name": "run", "callbacks": [collect]}}
    ended = fit(see_rows, tmp_path, 3, config | {"batch_size": 2, "name": "b", "fail_at": 0}, **given)
    rows = [row for metrics in collect.metrics for one in metrics for row in one["rows"]]
    assert sorted(rows) == list(range(ROWS))
    assert ended.return_value == [3.0, 3.0], "1 step before, and 2 with six of the other twelve rows"


def evaluate() -> float:
    mean = hocket_jax.GlobalMean()
    for values, weights in hocket_jax.prepare_arrays(build_data()[1], 4, shuffle=False):
        mean.add(values, weights)
    return mean.compute()


def test_evaluation_is_exact_with_any_number_of_ranks(tmp_path: Path) -> None:
    found = [fit(evaluate, tmp_path, count).return_value for count in (1, 2, 3)]
    assert found == [float(np.mean(build_data()[1].astype(np.longdouble)))] * 3


# --- bad input, of which other ranks must hear ------------------------------------------------------------------------


def differ_in_shape() -> None:
    jax.jit(lambda: hocket_jax.average_gradients({"a": jnp.ones(3 + get_rank()), "b": jnp.ones(2)}))()


def differ_in_shape_only() -> None:
    hocket_jax.average_gradients({"a": jnp.ones((2, 3) if get_rank() else (3, 2))})


def differ_in_structure() -> None:
    hocket_jax.prepare_params({"a": jnp.ones(2), ("b" if get_rank() else "c"): jnp.ones(2)})


def differ_later() -> None:
    hocket_jax.average_gradients({"a": jnp.ones(3)})
    hocket_jax.average_gradients({"a": jnp.ones(3)} | ({"b": jnp.ones(3)} if get_rank() else {}))


def step_more_often() -> None:
    for _ in range(3 + get_rank()):
        hocket_jax.average_gradients(jnp.ones(3))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (differ_in_shape, r"average_gradients\(\) received different arrays .* 'a' is float32\[4\] in rank 1 and float32\[3\] in rank 0"),
        (differ_in_shape_only, r"'a' is float32\[2,3\] in rank 1 and float32\[3,2\] in rank 0"),
        (differ_in_structure, r"prepare_params\(\) received .* rank 1 has no 'c'; rank 1 has 'b', which rank 0 does not have"),
        (differ_later, r"calls all_(reduce|gather)\(.*All ranks must call the same operations"),
        (step_more_often, r"Rank 0 \(pid \d+\) has left the group, but rank 1 waits for it in all_reduce"),
    ],
)  # fmt: skip
def test_ranks_that_differ_are_named(tmp_path: Path, function: Any, message: str) -> None:
    with pytest.raises(train.WorkerGroupError, match=message):
        fit(function, tmp_path)


def list_sockets(config: dict[str, Any]) -> None:
    held = {str(entry.readlink()) for entry in Path(f"/proc/{config['driver']}/fd").iterdir()}
    rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    paths = [row[7] for row in rows if len(row) > 7 and f"socket:[{row[6]}]" in held]
    own = [path for path in paths if "hocket-jax" in path and path.startswith("/")]
    modes = [stat.S_IMODE(Path(path).parent.stat().st_mode) for path in own]
    train.report({"paths": sorted(set(paths)), "modes": sorted(set(modes))})


@pytest.mark.about_local("the sockets of this machine")
def test_the_service_is_where_no_other_user_reaches_it(tmp_path: Path) -> None:
    result = fit(
        list_sockets, tmp_path, config={"driver": os.getpid()}, jax_config=hocket_jax.JaxConfig(distributed=True)
    )
    assert result.metrics is not None
    (path,) = [Path(path) for path in result.metrics["paths"] if "hocket-jax" in path]
    assert result.metrics["modes"] == [0o700]
    assert path.is_absolute(), "an abstract socket begins with @"
    assert not path.parent.exists(), "it is gone with the run"


def forget_to_average(told: Path, averages: bool) -> None:
    def note(message: Warning | str, *_: object, **__: object) -> None:
        told.write_text(str(message))

    warnings.showwarning = note  # this process is the rank's alone
    params = hocket_jax.prepare_params(jnp.ones(2))
    gradient = jax.grad(lambda weights: jnp.sum(weights * get_rank()))(params)
    params -= 0.1 * (hocket_jax.average_gradients(gradient) if averages else gradient)


@pytest.mark.parametrize("averages", [False, True])
def test_gradients_that_nobody_averages_are_told(tmp_path: Path, averages: bool) -> None:
    told = tmp_path / "told"
    fit(functools.partial(forget_to_average, told, averages), tmp_path)
    assert told.exists() is not averages
    assert averages or "neither prepare_optimizer() nor average_gradients()" in told.read_text()
