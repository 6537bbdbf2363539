"""Each framework keeps the promises of `hocket.train.frameworks.contract`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import hocket
from hocket.testing import framework_programs as programs
from hocket.testing.framework_contract import FrameworkContract
from tests.train import specimens

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.about_local("sessions of its own; the matrix of frameworks runs on Ray"),
    pytest.mark.filterwarnings(
        "ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"
    ),  # Keras's own
]


class TestTorch(FrameworkContract):
    specimen = specimens.Torch()


class TestJax(FrameworkContract):
    specimen = specimens.Jax()


class TestKerasOnTensorflow(FrameworkContract):
    specimen = specimens.Keras("tensorflow")


class TestKerasOnTorch(FrameworkContract):
    specimen = specimens.Keras("torch")


class TestKerasOnJax(FrameworkContract):
    specimen = specimens.Keras("jax")


class TestTfKeras(FrameworkContract):
    specimen = specimens.TfKeras()


class TestNumpy(FrameworkContract):
    specimen = specimens.Numpy()


class Hasty(specimens.Numpy):
    """An adapter that takes the strategy as it was opened, and leaves each rank its own first parameters."""

    def train(self, model: Any, rows: Any, labels: Any, steps: int, *, on_servers: bool) -> Any:
        model.runtime = self.get_framework().get_state("train").runtime
        model.runtime.begin(model)
        for _ in range(steps):
            model.take(rows, 2 * (rows @ model.kernel + model.bias - labels) / programs.OUTPUTS, len(rows))
        model.runtime.synchronize(model)
        return model


@pytest.mark.parametrize(
    ("test", "args"),
    [
        ("test_two_ranks_take_the_steps_of_one_with_all_rows_from_what_rank_0_has", 0),
        ("test_a_strategy_sees_each_step_and_the_end", 1),
    ],
)
def test_mistakes_are_found(test: str, args: int, tmp_path: Path) -> None:
    judge: Any = type("Judge", (FrameworkContract,), {"specimen": Hasty(), "_folder": tmp_path})()
    with hocket.init(num_cpus=2), pytest.raises(AssertionError):
        getattr(judge, test)(*[tmp_path] * args)
