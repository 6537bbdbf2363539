"""What each framework does with each strategy on the engine: a cell for each feature, all of them seen in one run.

``make frameworks`` runs this on both engines and writes docs/frameworks.md.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hocket import train
from hocket.train.strategies import AllReduce, LocalSGD, ParameterServer, Sharded
from tests import conftest
from tests.matrix import programs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

FRAMEWORKS = {
    "PyTorch": ("torch", "TorchTrainer", programs.train_torch, {}),
    "JAX": ("jax", "JaxTrainer", programs.train_jax, {}),
    "Keras 3 on TensorFlow": ("keras", "KerasTrainer", programs.train_keras, {"backend": "tensorflow"}),
    "Keras 3 on PyTorch": ("keras", "KerasTrainer", programs.train_keras, {"backend": "torch"}),
    "Keras 3 on JAX": ("keras", "KerasTrainer", programs.train_keras, {"backend": "jax"}),
    "TensorFlow with tf-keras": ("tensorflow", "TensorflowTrainer", programs.train_tf_keras, {}),
    "numpy (a framework of the tests)": ("", "NumpyTrainer", programs.train_numpy, {}),
}

STRATEGIES = {
    "AllReduce": AllReduce(),
    "LocalSGD": LocalSGD(3),
    "ParameterServer": ParameterServer(2),
    "Sharded": Sharded(mesh={"data": 2}, shard_along=["data"]),
}

REASONS: dict[tuple[str, str | None, str | None], str] = {
    (
        "TensorFlow with tf-keras",
        "LocalSGD",
        None,
    ): "TensorFlow's MultiWorkerMirroredStrategy averages each step itself; use Keras 3",
    (
        "TensorFlow with tf-keras",
        "ParameterServer",
        None,
    ): (
        "TensorFlow has a ParameterServerStrategy of its own, which "
        "TensorflowTrainer(strategy='parameter_server') runs; use Keras 3 for Hocket's servers"
    ),
    (
        "TensorFlow with tf-keras",
        None,
        "exact evaluation",
    ): "MultiWorkerMirroredStrategy evaluates in its own way; use Keras 3",
    **{
        (framework, "Sharded", None): "It cuts PyTorch's modules, JAX's arrays, and Keras's models on JAX"
        for framework in FRAMEWORKS
        if framework not in ("PyTorch", "JAX", "Keras 3 on JAX")
    },
}
"""What a framework does not do, and why: by framework, strategy and feature. None stands for all."""


class Follow(train.UserCallback):
    """Notes when a failure was told, and what it was."""

    def __init__(self) -> None:
        self.failures: list[tuple[float, str]] = []

    def after_exception(self, run_context: Any, worker_exceptions: Any) -> None:
        self.failures.append((time.time(), str(worker_exceptions)))


@pytest.fixture
def fresh_session(shared_ray: conftest.SharedRay) -> Iterator[None]:
    """One for each framework: a session has one Keras backend."""
    with conftest.open_session(conftest.ENGINE, shared_ray):
        yield


def fit(framework: str, strategy: str, path: Path, follow: Follow) -> train.Result:
    module, name, function, options = FRAMEWORKS[framework]
    adapter = importlib.import_module(f"hocket.train.{module}" if module else "tests.matrix.numpy_framework")
    given: dict[str, Any] = {}
    if module == "keras":
        given["keras_config"] = adapter.KerasConfig(**options)
    if module != "tensorflow":
        given["strategy"] = STRATEGIES[strategy]
    trainer: train.DataParallelTrainer = getattr(adapter, name)(
        function,
        train_loop_config={"folder": str(path)},
        scaling_config=train.ScalingConfig(num_workers=2),
        run_config=train.RunConfig(
            storage_path=str(path), failure_config=train.FailureConfig(max_failures=1), callbacks=[follow]
        ),
        **given,
    )
    return trainer.fit()


@pytest.mark.usefixtures("fresh_session")
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_cells(framework: str, strategy: str, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    def find_reason(feature: str | None) -> str | None:
        keys = [(framework, name, of) for name in (strategy, None) for of in (feature, None)]
        return next((REASONS[key] for key in keys if key in REASONS), None)

    whole = find_reason(None)
    if whole is not None:
        record_property("reason", whole)
        pytest.skip(whole)
    follow = Follow()
    result = fit(framework, strategy, tmp_path, follow)
    returned = result.return_value
    assert returned is not None
    assert result.checkpoint is not None
    [(told, text)] = follow.failures
    seconds = told - float((tmp_path / "killed").read_text())
    with np.load(Path(result.checkpoint.path, "weights.npz")) as file:
        saved = list(file.values())
    expected = programs.compute_accuracy(returned["kernel"], returned["bias"])
    cells = {
        "report": [row["epoch"] for row in result.metrics_history] == [0, 1, 2],
        "checkpoint": any(np.array_equal(value, returned["kernel"]) for value in saved),
        "resume": (tmp_path / "began").read_text().split() == ["0", "1"],
        "kill a rank": text.startswith("{1:") and ("SIGKILL" in text or conftest.ENGINE == "ray"),
        "exact evaluation": returned["accuracy"] in (expected, float(np.float32(expected))),  # as Keras counts
    }
    record_property("seconds to the name of the killed rank", f"{seconds:.1f}")
    for feature, passes in cells.items():
        record_property(feature, find_reason(feature) or ("passes" if passes else "fails"))
    assert [feature for feature, passes in cells.items() if not passes and find_reason(feature) is None] == [], text
