"""What a training function with JAX calls, one rank at a time in this process: loaders, checkpoints, keys, and what
they refuse."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import strategies as st

import hocket
from hocket import train
from hocket.train import jax as hocket_jax
from hocket.train.frameworks import weights
from hocket.train.frameworks.jax import strategies as jax_strategies
from tests.train.ranks import be_rank

# --- loaders ----------------------------------------------------------------------------------------------------------


def read_epoch(rank: int, world_size: int, rows: int, **options: Any) -> list[tuple[list[int], list[float]]]:
    with be_rank(rank, world_size):
        loader = hocket_jax.prepare_arrays({"row": np.arange(rows)}, **options)
        return [(batch["row"].tolist(), weights.tolist()) for batch, weights in loader]


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(
    rows=st.integers(1, 40),
    batch_size=st.integers(1, 9),
    world_size=st.integers(1, 4),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
)
def test_ranks_take_equal_steps_of_one_shape_and_each_row_once(
    rows: int, batch_size: int, world_size: int, shuffle: bool, drop_last: bool
) -> None:
    options = {"batch_size": batch_size, "shuffle": shuffle, "drop_last": drop_last}
    if drop_last and rows < batch_size * world_size:
        with pytest.raises(ValueError, match="so an epoch would have no step"):
            read_epoch(0, world_size, rows, **options)
        return
    epochs = [read_epoch(rank, world_size, rows, **options) for rank in range(world_size)]
    steps = {len(epoch) for epoch in epochs}
    assert len(steps) == 1
    seen: list[int] = []
    for step in range(steps.pop()):
        batches = [epoch[step] for epoch in epochs]
        assert {len(numbers) for numbers, _ in batches} == {batch_size}
        counted = [row for numbers, weights in batches for row, weight in zip(numbers, weights, strict=True) if weight]
        mean = np.mean([np.mean(np.multiply(numbers, weights)) for numbers, weights in batches])
        assert mean == pytest.approx(np.mean(counted), rel=1e-5), "the mean over the global batch"
        seen += counted
    expected = rows - rows % (batch_size * world_size) if drop_last else rows
    assert len(seen) == len(set(seen)) == expected


def test_a_loader_goes_on_where_its_checkpoint_says() -> None:
    with be_rank():
        loader = hocket_jax.prepare_arrays(np.arange(10), 3, seed=5)
        assert (len(loader), loader.steps_left, loader.epoch) == (4, 4, 0)
        loop = iter(loader)
        first = [next(loop)[0].tolist() for _ in range(2)]
        state = loader.state_dict()
    with be_rank(positions={"#0": state}):
        resumed = hocket_jax.prepare_arrays(np.arange(10), 3, seed=5)
        assert resumed.steps_left == 2
        rest = [rows[weights > 0].tolist() for rows, weights in resumed]
        assert sorted(row for rows in first + rest for row in rows) == list(range(10))
        resumed.load_state_dict(state)
        assert [rows[weights > 0].tolist() for rows, weights in resumed] == rest
        for _ in resumed:
            break
        assert resumed.epoch == 2, "a loop that is broken off leaves its epoch behind"
        assert hocket_jax.prepare_arrays(np.arange(10), 3, name="fresh", resume=False).steps_left == 4
    with (
        be_rank(positions={"#0": state}),
        pytest.raises(ValueError, match=r"does not fit it: .*pass resume=False to prepare_arrays\(\)"),
    ):
        hocket_jax.prepare_arrays(np.arange(11), 3, seed=5)


# --- checkpoints ------------------------------------------------------------------------------------------------------


def build_state() -> dict[str, Any]:
    params = {"dense": {"kernel": jnp.arange(6.0).reshape(2, 3), "bias": jnp.ones(3, jnp.bfloat16)}}
    state = optax.adam(0.1).init(params)
    return {"params": params, "optimizer": state, "key": jax.random.key(3), "old": jax.random.PRNGKey(4), "step": 7}


def test_a_checkpoint_is_read_with_and_without_jax(tmp_path: Path) -> None:
    path = tmp_path / "state.npz"
    state = build_state()
    hocket_jax.save_pytree(path, state)
    assert [file.name for file in tmp_path.iterdir()] == ["state.npz"]
    loaded = hocket_jax.load_pytree(path, like=jax.eval_shape(build_state))
    assert jax.tree.structure(loaded) == jax.tree.structure(state)
    assert loaded["key"] == state["key"]
    for mine, other in zip(jax.tree.leaves(loaded), jax.tree.leaves(state), strict=True):
        assert jnp.array_equal(mine, other)
    hocket_jax.save_pytree(tmp_path / "one.npz", jnp.arange(3))
    assert hocket_jax.load_pytree(tmp_path / "one.npz", like=jnp.arange(3)).tolist() == [0, 1, 2]
    program = f"""
import sys, numpy
file = numpy.load({str(path)!r})
print(file["params/dense/kernel"].tolist(), file["params/dense/bias"].dtype, "jax" in sys.modules)
print(sorted(name for name in file if name.startswith("optimizer/0/mu")))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "[[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]] uint16 False",
        "['optimizer/0/mu/dense/bias', 'optimizer/0/mu/dense/kernel']",
    ]


def test_arrays_may_be_called_as_arguments_of_numpys_are(tmp_path: Path) -> None:
    tree = {"file": jnp.arange(2.0), "allow_pickle": jnp.arange(3)}
    hocket_jax.save_pytree(tmp_path / "tree.npz", tree)
    loaded = hocket_jax.load_pytree(tmp_path / "tree.npz", like=tree)
    assert {name: value.tolist() for name, value in loaded.items()} == {"file": [0, 1], "allow_pickle": [0, 1, 2]}
    saved = weights.load(weights.save(tmp_path, [("file", [1.0]), ("allow_pickle", [2.0])]).parent)
    assert {name: value.tolist() for name, value in saved.items()} == {"file": [1.0], "allow_pickle": [2.0]}


def test_checkpoints_refuse_what_they_cannot_keep(tmp_path: Path) -> None:
    path = tmp_path / "file.npz"
    params = {"a": jnp.ones(3), "b": jnp.ones(2)}
    hocket_jax.save_pytree(path, params)
    for other, message in (
        ({"a": jnp.ones(3)}, "file.npz' does not fit this model or this optimizer: the file has 'b', which the model does not have"),
        ({**params, "c": jnp.ones(1)}, "the file has no 'c'. Build the model that was saved"),
        ({**params, "b": jnp.ones(4)}, r"'b' is float32\[2\] in the file and float32\[4\] in the model"),
        ({**params, "b": jnp.ones(2, jnp.int32)}, r"'b' is float32\[2\] in the file and int32\[2\] in the model"),
        ({str(number): jnp.ones(1) for number in range(5)}, "and 4 more"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            hocket_jax.load_pytree(path, like=other)
    with pytest.raises(FileNotFoundError):
        hocket_jax.load_pytree(tmp_path / "none.npz", like=params)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"cannot be read as a pytree: .*Pass a file that save_pytree\(\) has written"):
        hocket_jax.load_pytree(path, like=params)
    np.savez(tmp_path / "other.npz", a=np.ones(3))
    with pytest.raises(ValueError, match="cannot be read as a pytree"):
        hocket_jax.load_pytree(tmp_path / "other.npz", like=params)
    for tree, message in (
        ({"act": "relu"}, r"save_pytree\(\) takes a pytree of arrays, but 'act' is a str: 'relu'. Keep values that are not arrays"),
        ({"f": len}, "'f' is a builtin_function_or_method"),
    ):  # fmt: skip
        with pytest.raises(TypeError, match=message):
            hocket_jax.save_pytree(path, tree)
    with pytest.raises(ValueError, match=r"two arrays are called 'a/b'\. Use keys without '/' in dicts"):
        hocket_jax.save_pytree(path, {"a/b": jnp.ones(1), "a": {"b": jnp.ones(1)}})
    with pytest.raises(ValueError, match=r"an array called '\.dtypes', but names that begin with"):
        hocket_jax.save_pytree(path, {".dtypes": jnp.ones(1)})
    with pytest.raises(TypeError, match=r"save_pytree\(\) was called inside jax.jit"):
        jax.jit(lambda x: hocket_jax.save_pytree(path, x))(jnp.ones(1))


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        lambda: hocket_jax.prepare_params({}),
        lambda: hocket_jax.average_gradients({}),
        lambda: hocket_jax.prepare_optimizer(optax.sgd(0.1)),
        lambda: hocket_jax.synchronize({}, ()),
        lambda: hocket_jax.prepare_arrays(np.ones(3), 1),
        lambda: hocket_jax.fold_in_rank(jax.random.key(0)),
        lambda: hocket_jax.split_key(jax.random.key(0)),
        hocket_jax.get_device,
    ],
)
def test_outside_of_a_training_function(call: Any) -> None:
    with pytest.raises(RuntimeError, match=r"hocket.train.jax\.\w+\(\) was called outside a training function"):
        call()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: hocket_jax.average_gradients({"a": {"b": "x"}}), TypeError, "'a/b' is a str: 'x'"),
        (lambda: hocket_jax.average_gradients("x"), TypeError, "'the tree itself' is a str"),
        (lambda: hocket_jax.average_gradients({"n": jnp.arange(3)}), TypeError, r"takes arrays of floats, but 'n' is int32\[3\]"),
        (lambda: hocket_jax.average_gradients(jax.random.key(0)), TypeError, r"takes arrays of floats, but 'the tree itself' is key<fry>\[\]"),
        (lambda: hocket_jax.prepare_params({"name": "model"}), TypeError, "prepare_params.*'name' is a str"),
        (lambda: jax.jit(hocket_jax.prepare_params)(jnp.ones(2)), TypeError, "prepare_params.. was called inside jax.jit"),
        (lambda: hocket_jax.prepare_optimizer(0.1), TypeError, "takes a gradient transformation of optax, but received 0.1"),
        (lambda: hocket_jax.prepare_optimizer(hocket_jax.prepare_optimizer(optax.sgd(1.0))), ValueError, "that is prepared already"),
        (lambda: hocket_jax.fold_in_rank(0), TypeError, r"takes one random key, equal in all ranks, but received 0. Write fold_in_rank\(jax.random.key"),
        (lambda: hocket_jax.split_key(jnp.ones(2)), TypeError, r"received an array of shape \(2,\) and float32"),
        (lambda: hocket_jax.split_key(jax.random.split(jax.random.key(0))), TypeError, r"received an array of shape \(2,\) and key<fry>"),
        (lambda: hocket_jax.prepare_arrays(np.ones(3), 0), ValueError, "batch_size must be 1 row or more, but received 0"),
        (lambda: hocket_jax.prepare_arrays((np.ones(3), np.ones(4)), 1), ValueError, "'0' has 3 and '1' has 4"),
        (lambda: hocket_jax.prepare_arrays({"x": np.ones(3), "n": 5}, 1), ValueError, "but 'n' is one number"),
        (lambda: hocket_jax.prepare_arrays({}, 1), ValueError, "a pytree without arrays"),
        (lambda: hocket_jax.prepare_arrays(["a", "b"], 1), TypeError, "'0' is a str"),
        (lambda: hocket_jax.prepare_arrays(np.ones((0, 2)), 1), ValueError, "have 0 rows, .* Check the data"),
        (lambda: hocket_jax.prepare_arrays(np.ones(3), 4, drop_last=True), ValueError, "have 3 rows, .* needs 4 or more"),
        (lambda: hocket_jax.GlobalMean().add([1.0]), TypeError, r"received \[1.0\]. Write jnp.array"),
        (lambda: hocket_jax.GlobalMean().add(jnp.ones((2, 2))), ValueError, r"received one of shape \(2, 2\)"),
        (lambda: jax.jit(hocket_jax.GlobalMean().add)(jnp.ones(2)), TypeError, "GlobalMean.add.. was called inside jax.jit"),
        (lambda: hocket_jax.GlobalMean().compute(), ValueError, "An ExactMean without values"),
        (lambda: hocket_jax.enable_reproducibility(-1), ValueError, "seed must lie between 0"),
    ],
)  # fmt: skip
def test_bad_input_is_named(call: Any, error: type[Exception], message: str) -> None:
    with be_rank(), pytest.raises(error, match=message):
        call()


def open_local_sgd(**options: Any) -> jax_strategies.JaxStrategy:
    return jax_strategies.open_exchange(hocket_jax.LocalSGD(2, **options), train.strategies.Ranks(0, 1))


def test_strategies_refuse_what_they_cannot_do() -> None:
    alone = train.strategies.Ranks(0, 1)
    with pytest.raises(ValueError, match=r"cannot compress with PowerSGD\(.*Use compression='bf16'"):
        jax_strategies.open_exchange(hocket_jax.AllReduce(compression=train.strategies.PowerSGD()), alone)
    with pytest.warns(UserWarning, match="bucket_mb=3 is ignored"):
        jax_strategies.open_exchange(hocket_jax.AllReduce(bucket_mb=3), alone)
    with pytest.raises(TypeError, match=r"has no open\(\)"):
        jax_strategies.open_exchange(train.strategies.Strategy(), alone)
    with pytest.raises(TypeError, match="outer optimizer must be a Nesterov"):
        open_local_sgd(outer=list)
    with pytest.raises(ValueError, match=r"With LocalSGD the ranks meet .* Write optimizer = prepare_optimizer"):
        open_local_sgd().average(jnp.ones(1), "average_gradients")
    early = open_local_sgd(begin_after=3)
    early.adapt_optimizer(optax.sgd(0.1))
    with pytest.raises(ValueError, match=r"in the first steps alone, and average_gradients\(\) does not know"):
        early.average(jnp.ones(1), "average_gradients")
    exchange = open_local_sgd()
    optimizer = exchange.adapt_optimizer(optax.sgd(0.1))
    assert exchange.average("the rank's own", "average_gradients") == "the rank's own"
    state = optimizer.init(jnp.ones(1))
    with pytest.raises(ValueError, match=r"Write optimizer.update\(gradients, state, params\)"):
        optimizer.update(jnp.ones(1), state)
    with pytest.raises(ValueError, match="needs the state of a prepared optimizer, but received a tuple"):
        optimizer.update(jnp.ones(1), (), jnp.ones(1))
    with pytest.raises(ValueError, match="needs the state of a prepared optimizer"):
        open_local_sgd().synchronize(jnp.ones(1), ())


def test_the_trainer_refuses_what_is_no_setting() -> None:
    with pytest.raises(TypeError, match="strategy must be a Strategy, but received 'all'"):
        hocket_jax.JaxTrainer(lambda: None, strategy="all")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="timeout_s must be more than 0 seconds, but received 0"):
        hocket_jax.JaxConfig(timeout_s=0)
    with pytest.raises(TypeError, match="train_loop_per_worker must be a function"):
        hocket_jax.JaxTrainer(3)  # type: ignore[arg-type]
    modules = hocket_jax.JaxConfig().list_modules(lambda: None)
    assert list(modules) == [
        *("hocket.train.rank.rank_actor", "hocket.train.rank.context", "hocket.train.strategies.hosting"),
        *("hocket.train.jax", "optax"),
    ]


def test_ranks_that_take_turns_in_one_process_are_refused(tmp_path: Path) -> None:
    trainer = hocket_jax.JaxTrainer(
        lambda: None,
        scaling_config=train.ScalingConfig(num_workers=2),
        run_config=train.RunConfig(storage_path=str(tmp_path)),
    )
    with (
        hocket.init(engine="inprocess", num_cpus=2),
        pytest.raises(
            ValueError, match=r"JaxTrainer needs ranks that are processes.*Use ScalingConfig\(num_workers=1\)"
        ),
    ):
        trainer.fit()


def test_a_missing_jax_names_the_extra() -> None:
    program = "import sys; sys.modules['jax'] = None; import hocket.train.jax"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    said = r"hocket\.train\.jax needs JAX 0\.5 or newer, and 'jax(\.ffi)?' cannot be imported\. Run pip install 'hocket\[jax\]'\."
    assert re.search(said, done.stderr)


def test_what_ranks_load_before_they_fork_starts_no_thread() -> None:
    """Threads do not survive a fork, and their locks do. Two are there before: OpenBLAS's, which knows how to fork."""
    program = """
import os, numpy
before = len(os.listdir("/proc/self/task"))
import hocket.train.jax, optax
from jax._src import xla_bridge
print(len(os.listdir("/proc/self/task")) - before, xla_bridge.backends_are_initialized())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "False"]


def test_what_jax_has_no_64_bits_for_stays_numpys(tmp_path: Path) -> None:
    tree = {"count": np.asarray(2**40 + 1), "half": jnp.ones(2, "bfloat16"), "scale": np.float64(0.1), "w": jnp.ones(3)}
    hocket_jax.save_pytree(tmp_path / "tree.npz", tree)
    loaded = hocket_jax.load_pytree(tmp_path / "tree.npz", like=tree)
    assert (loaded["count"].dtype, int(loaded["count"])) == (np.int64, 2**40 + 1)
    assert (loaded["scale"].dtype, float(loaded["scale"])) == (np.float64, 0.1)
    assert isinstance(loaded["w"], jax.Array)
    assert loaded["half"].dtype == jnp.bfloat16
