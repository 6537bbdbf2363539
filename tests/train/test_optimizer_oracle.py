"""Every optimizer with every strategy in every framework ends where one process without us does: on random small
models, by the public trainers.

What one process computes is in `oracle_torch`, `oracle_jax` and `oracle_keras`, beside the training functions.

- AllReduce: each step takes the rows of all ranks.
- LocalSGD: the ranks are simulated one after the other.
- ParameterServer: one rank's steps are those of plain training. With several ranks and ``max_staleness=0`` one computes
  at a time, so one process takes the same steps in the same order. Ranks of PyTorch are made to take turns; elsewhere
  the order is the servers' to choose, and the result must be that of one of all orders.

How far results may lie apart: ranks add up in another order than one process does, which changes the last digit of a
gradient, and each step carries that on. PyTorch's models are of float64, so `EXACT` leaves nothing to chance. The
others' are of float32, whose last digit is 6e-8 of a weight of 1: measured were at most 3e-7 after seven steps, and
`CLOSE` is some thirty times that. A wrong step is a hundredth or more. What divides a gradient by its own size gets an
epsilon of 1e-4 in the cases: without it a gradient of 1e-8, which is nothing but rounding, would make a whole step.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import torch

with pytest.MonkeyPatch.context() as _patch:
    if "KERAS_BACKEND" not in os.environ:
        _patch.setenv("KERAS_BACKEND", "torch")  # for this process, in which torch is loaded anyway
    import keras

from hocket import train
from hocket.train import jax as hocket_jax
from hocket.train import keras as hocket_keras
from hocket.train import torch as hocket_torch
from hocket.train.strategies import AllReduce, LocalSGD, Nesterov, ParameterServer
from tests.train import oracle_jax, oracle_keras, oracle_torch

EXACT: Final = 1e-9
CLOSE: Final = 1e-5

ONE_AT_A_TIME: Final = ParameterServer(num_servers=2, max_staleness=0)
OUTER: Final = Nesterov(lr=0.7, momentum=0.5)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore:Sparse invariant checks"),  # torch's own Adagrad causes it
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),  # Keras's
]


def fit(trainer: Any, path: Path, function: Any, strategy: Any, num_workers: int, config: Any, **given: Any) -> Any:
    return (
        trainer(
            function,
            train_loop_config=config,
            strategy=strategy,
            scaling_config=train.ScalingConfig(num_workers=num_workers, resources_per_worker={"CPU": 0.5}),
            run_config=train.RunConfig(storage_path=str(path)),
            **given,
        )
        .fit()
        .return_value
    )


def measure(found: Any, expected: Any) -> float:
    """Return how far two models lie apart: the largest difference of two weights, beside the largest weight if that
    is above 1."""
    keys: Sequence[Any] = list(expected) if isinstance(expected, Mapping) else range(len(expected))
    assert len(found) == len(keys)
    scale = max(1.0, *(np.abs(expected[key]).max() for key in keys))
    return float(max(np.abs(found[key] - expected[key]).max() for key in keys) / scale)


def list_wrong(ranks: Sequence[Mapping[Any, Any]], expected: Mapping[Any, Any], tolerance: float) -> dict[Any, float]:
    """Return what differs in some rank, and by how much."""
    assert all(found.keys() == expected.keys() for found in ranks)
    apart = {name: max(measure(found[name], one) for found in ranks) for name, one in expected.items()}
    return {name: value for name, value in apart.items() if not value < tolerance}


# --- PyTorch ----------------------------------------------------------------------------------------------------------


def check_torch(path: Path, strategy: Any, num_workers: int, cases: Mapping[str, oracle_torch.Case]) -> None:
    config = {"cases": cases, "takes_turns": isinstance(strategy, ParameterServer) and num_workers > 1}
    ranks = fit(hocket_torch.TorchTrainer, path, oracle_torch.train_in_rank, strategy, num_workers, config)
    compute: Any = oracle_torch.train_together
    if isinstance(strategy, LocalSGD):
        compute = functools.partial(oracle_torch.train_apart, strategy=strategy)
    elif isinstance(strategy, ParameterServer):
        compute = oracle_torch.train_in_turns
    expected = {name: compute(case, num_workers) for name, case in cases.items()}
    assert len(ranks) == num_workers
    assert list_wrong(ranks, expected, EXACT) == {}


TORCH: Final[Mapping[str, tuple[Any, int, Mapping[str, oracle_torch.Case]]]] = {
    "all-reduce": (AllReduce(bucket_mb=1e-4), 2, oracle_torch.EVERYWHERE),
    "all-reduce of three": (AllReduce(), 3, oracle_torch.SAMPLE),
    "local SGD": (LocalSGD(3), 2, oracle_torch.EVERYWHERE),
    "DiLoCo": (LocalSGD(2, outer=OUTER), 2, oracle_torch.EVERYWHERE),
    "local SGD of three": (LocalSGD(2), 3, oracle_torch.SAMPLE),
    "Adam outside": (LocalSGD(2, outer=functools.partial(torch.optim.Adam, lr=0.01)), 2, oracle_torch.SAMPLE),
    "post-local SGD": (LocalSGD(2, begin_after=3, outer=OUTER), 2, oracle_torch.MEETING_LATE),
    "one rank and servers": (ParameterServer(num_servers=2), 1, oracle_torch.ON_SERVERS),
    "two ranks and servers": (ONE_AT_A_TIME, 2, oracle_torch.ON_SERVERS),
    "three ranks and servers": (ONE_AT_A_TIME, 3, oracle_torch.SAMPLE),
}


@pytest.mark.long
@pytest.mark.usefixtures("session")
@pytest.mark.parametrize("name", TORCH)
def test_torch(tmp_path: Path, name: str) -> None:
    check_torch(tmp_path, *TORCH[name])


@pytest.mark.usefixtures("session")
def test_a_sample_of_torch(tmp_path: Path) -> None:
    """A line search compares losses, and must compare the same in all ranks; early steps of local SGD average sparse
    gradients, and those of closures."""
    search = {"lbfgs search/0": oracle_torch.EVERYWHERE["lbfgs search/0"]}
    check_torch(tmp_path, AllReduce(), 2, oracle_torch.SAMPLE | search)
    late = LocalSGD(2, begin_after=3, outer=OUTER)
    check_torch(tmp_path, late, 2, oracle_torch.SAMPLE | search | {"closure/0": oracle_torch.EVERYWHERE["closure/0"]})
    check_torch(tmp_path, ONE_AT_A_TIME, 2, oracle_torch.SAMPLE)


def test_what_servers_refuse_of_torch_is_refused_with_what_to_write_instead(here: None, tmp_path: Path) -> None:
    cases = {name: case for name, case in oracle_torch.EVERYWHERE.items() if name not in oracle_torch.ON_SERVERS}
    said = fit(hocket_torch.TorchTrainer, tmp_path, oracle_torch.refuse_in_rank, ParameterServer(), 0, {"cases": cases})
    assert said.keys() == cases.keys()
    assert {name.rpartition("/")[0] for name in said} == oracle_torch.REFUSED_BY_SERVERS.keys()
    for name, message in said.items():
        assert oracle_torch.REFUSED_BY_SERVERS[name.rpartition("/")[0]] in message


@pytest.mark.parametrize("name", oracle_torch.LAZY)
def test_rows_of_a_table_move_alone(here: None, tmp_path: Path, name: str) -> None:
    """Torch has no such step for sparse gradients, or another one: its momentum carries rows on that a batch does
    not name."""
    steps = fit(
        hocket_torch.TorchTrainer, tmp_path, oracle_torch.move_rows_in_rank, ParameterServer(), 0, {"name": name}
    )
    rows = oracle_torch.LazyRows(steps[0][2], **oracle_torch.LAZY[name][1])
    for ids, gradient, found in steps[1:]:
        rows.step(gradient, ids)
        np.testing.assert_allclose(found, rows.table, rtol=0, atol=EXACT)


# --- JAX --------------------------------------------------------------------------------------------------------------


def check_jax(path: Path, strategy: Any, num_workers: int, names: Sequence[str]) -> None:
    is_served = isinstance(strategy, ParameterServer)
    trees = [tuple(names)] if is_served else oracle_jax.split_names(names)
    steps = 2 if is_served and num_workers > 1 else oracle_jax.STEPS
    config = {"names": trees, "steps": steps}
    ranks = fit(hocket_jax.JaxTrainer, path, oracle_jax.train_in_rank, strategy, num_workers, config)
    assert len(ranks) == num_workers
    if is_served:
        orders = oracle_jax.list_orders(num_workers, steps)
        wrong = [list_wrong(ranks, oracle_jax.train_in_order(names, order), CLOSE) for order in orders]
        assert {} in wrong, dict(zip(orders, wrong, strict=True))
        return
    compute: Any = oracle_jax.train_together
    if isinstance(strategy, LocalSGD):
        compute = functools.partial(oracle_jax.train_apart, strategy=strategy)
    expected = {name: one for tree in trees for name, one in compute(tree, num_workers).items()}
    assert list_wrong(ranks, expected, CLOSE) == {}


_OPTAX: Final = tuple(oracle_jax.OPTIMIZERS)
_SOME_OPTAX: Final = ("adamw", "sgd", "MultiSteps", "clip norm")

JAX: Final[Mapping[str, tuple[Any, int, Sequence[str]]]] = {
    "all-reduce": (AllReduce(), 2, _OPTAX),
    "all-reduce of three": (AllReduce(), 3, _SOME_OPTAX),
    "local SGD": (LocalSGD(3), 2, _OPTAX[::2]),
    "post-local SGD and DiLoCo": (LocalSGD(2, begin_after=2, outer=OUTER), 2, _OPTAX[1::2]),
    "one rank and servers": (ParameterServer(num_servers=2), 1, _OPTAX[::4]),
    "two ranks and servers": (ONE_AT_A_TIME, 2, _OPTAX[1::8]),
    "three ranks and servers": (ONE_AT_A_TIME, 3, _SOME_OPTAX),
}


@pytest.mark.long
@pytest.mark.usefixtures("session")
@pytest.mark.parametrize("name", JAX)
def test_jax(tmp_path: Path, name: str) -> None:
    check_jax(tmp_path, *JAX[name])


@pytest.mark.usefixtures("session")
def test_a_sample_of_jax(tmp_path: Path) -> None:
    """A loss that an optimizer is given is averaged; and on servers, too, the first step is taken from what others
    have made of the parameters."""
    check_jax(tmp_path, AllReduce(), 2, ("polyak_sgd",))
    check_jax(tmp_path, ONE_AT_A_TIME, 2, ("adam",))


@pytest.mark.usefixtures("session")
@pytest.mark.parametrize("strategy", [AllReduce(), LocalSGD(2, begin_after=1)])
def test_a_line_search_of_jax_is_refused_in_several_ranks(tmp_path: Path, strategy: Any) -> None:
    with pytest.raises(train.TrainingFailedError, match=r"Leave the line search out: optax.lbfgs\(learning_rate, lin"):
        fit(hocket_jax.JaxTrainer, tmp_path, oracle_jax.search_in_rank, strategy, 2, {})


# --- Keras ------------------------------------------------------------------------------------------------------------

_KERAS: Final = tuple(oracle_keras.OPTIMIZERS)
_APART: Final = tuple(name for name in _KERAS if name != "ema")
_SOME_KERAS: Final = ("Adam", "RMSprop", "Adagrad", "SGD nesterov")
_TENSORFLOW: Final = ("Adamax", "Nadam", "Ftrl", "Lamb", "Adadelta", "clipnorm", "global_clipnorm", "ema", "AdamW")


def list_wrong_of_keras(
    path: Path,
    backend: str,
    strategy: Any,
    num_workers: int,
    names: Sequence[str],
    *,
    is_eager: bool = False,
    function: Any = oracle_keras.train_in_rank,
) -> dict[tuple[str, bool], float]:
    pytest.importorskip(backend, reason=f"needs {backend}: pip install 'hocket[{backend}]'")
    compute: Any = oracle_keras.train_together
    if isinstance(strategy, LocalSGD):
        compute = oracle_keras.train_apart
    elif isinstance(strategy, ParameterServer):
        compute = oracle_keras.train_in_some_order
    cases = [(name, has_table) for name in names for has_table in (False, True)]
    config = {
        "steps": 2 if isinstance(strategy, ParameterServer) and num_workers > 1 else oracle_keras.STEPS,
        "is_eager": is_eager,
        "oracle": compute,
        "strategy": strategy,
    }
    wrong = {}
    # Servers have one model of Keras.
    for some in [[case] for case in cases] if isinstance(strategy, ParameterServer) else [cases]:
        used, ranks, expected = fit(
            hocket_keras.KerasTrainer,
            path,
            function,
            strategy,
            num_workers,
            {**config, "cases": some},
            keras_config=hocket_keras.KerasConfig(backend=backend),
        )
        assert (used, len(ranks), list(expected)) == (backend, num_workers, some)
        for case, ways in expected.items():
            apart = min(max(measure(found[case], way) for found in ranks) for way in ways)
            if not apart < CLOSE:
                wrong[case] = apart
    return wrong


KERAS: Final[Mapping[str, tuple[str, Any, int, Sequence[str]]]] = {
    "all-reduce on torch": ("torch", AllReduce(), 2, _KERAS),
    "all-reduce of three on torch": ("torch", AllReduce(), 3, _SOME_KERAS),
    "local SGD on torch": ("torch", LocalSGD(4), 2, _APART),
    "post-local SGD and DiLoCo on torch": ("torch", LocalSGD(2, begin_after=2, outer=OUTER), 2, _APART),
    "one rank and servers on torch": ("torch", ParameterServer(num_servers=2), 1, oracle_keras.ON_SERVERS),
    # A schedule is each rank's own, by its own steps, which one optimizer in one process cannot follow.
    "two ranks and servers on torch": ("torch", ONE_AT_A_TIME, 2, oracle_keras.ON_SERVERS[:-1:2]),
    "all-reduce on JAX": ("jax", AllReduce(), 2, _SOME_KERAS),
    "all-reduce on TensorFlow": ("tensorflow", AllReduce(), 2, _SOME_KERAS),
    "post-local SGD on TensorFlow": ("tensorflow", LocalSGD(2, begin_after=2), 2, ("Adam", "RMSprop")),
}


@pytest.mark.long
@pytest.mark.usefixtures("session")
@pytest.mark.parametrize("name", KERAS)
def test_keras(tmp_path: Path, name: str) -> None:
    assert list_wrong_of_keras(tmp_path, *KERAS[name]) == {}


@pytest.mark.long
@pytest.mark.usefixtures("session")
def test_keras_on_tensorflow_that_is_not_compiled(tmp_path: Path) -> None:
    assert list_wrong_of_keras(tmp_path, "tensorflow", AllReduce(), 2, _TENSORFLOW, is_eager=True) == {}


@pytest.mark.long
@pytest.mark.usefixtures("session")
@pytest.mark.parametrize("backend", ["torch", "tensorflow"])
def test_prepared_arrays_of_keras(tmp_path: Path, backend: str) -> None:
    """In the last step of an epoch one rank has a row, and the other one has none."""
    names, function = ("Adam", "RMSprop"), oracle_keras.train_on_arrays
    wrong = list_wrong_of_keras(tmp_path, backend, AllReduce(), 2, names, is_eager=True, function=function)
    assert wrong == {}


@pytest.mark.long
@pytest.mark.usefixtures("session")
def test_servers_differ_from_plain_keras_where_tensorflow_has_embeddings(tmp_path: Path) -> None:
    """As docs/keras.md says: servers square the sum of a row's gradients, and Keras there each of them.

    Neither is seen without a square.
    """
    servers = ParameterServer(num_servers=2)
    wrong = list_wrong_of_keras(tmp_path, "tensorflow", servers, 1, ("SGD", "Adam", "Adagrad"), is_eager=True)
    assert wrong.keys() == {("Adam", True), ("Adagrad", True)}
    assert max(wrong.values()) < 0.1


@pytest.mark.usefixtures("session")
def test_an_embedding_of_keras_on_tensorflow(tmp_path: Path) -> None:
    """Keras squares the gradients of a row that a batch names twice one by one there, so they must reach it as they
    are."""
    assert list_wrong_of_keras(tmp_path, "tensorflow", AllReduce(), 2, ("Adam",), is_eager=True) == {}


@pytest.mark.parametrize("name", oracle_keras.REFUSED_BY_SERVERS)
def test_what_servers_refuse_of_keras_is_refused_with_what_to_write_instead(
    here: None, tmp_path: Path, name: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(oracle_keras.REFUSED_BY_SERVERS[name])):
        fit(hocket_keras.KerasTrainer, tmp_path, oracle_keras.train_once, ParameterServer(), 0, {"name": name})


@pytest.mark.filterwarnings("ignore:fit.. of 'sequential.*' received the same rows in all 2 ranks")
@pytest.mark.skipif(keras.backend.backend() != "torch", reason="needs ranks in one process")
def test_ranks_that_step_apart_have_no_averages_of_their_own(here: None, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"use_ema=True\) would put .* Leave it out, or use the strategy AllReduce"):
        fit(hocket_keras.KerasTrainer, tmp_path, oracle_keras.train_once, LocalSGD(2), 2, {"name": "ema"})


def test_servers_have_one_model_of_keras(here: None, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"received a second model, .* Make one model of both"):
        fit(hocket_keras.KerasTrainer, tmp_path, oracle_keras.prepare_twice, ParameterServer(), 0, {})


def test_all_of_keras_is_in_the_table() -> None:
    """New optimizers of the frameworks are to be added."""
    assert {*oracle_keras.ON_SERVERS, *oracle_keras.REFUSED_BY_SERVERS} == oracle_keras.OPTIMIZERS.keys()
    skipped = {"Optimizer", "MultiOptimizer", "OptimizerMap"}
    kinds = {name for name in vars(keras.optimizers) if name[0].isupper()} - skipped
    assert kinds <= {type(make()).__name__ for make in oracle_keras.OPTIMIZERS.values()}


def test_all_of_torch_is_in_the_table() -> None:
    parameters = [torch.nn.Parameter(torch.ones(2, 2))]
    made = [make(parameters) for case in oracle_torch.EVERYWHERE.values() for make in case.optimize.values()]
    kinds = {name for name in vars(torch.optim) if name[0].isupper()} - {"Optimizer"}
    assert kinds == {type(one).__name__ for one in made}
