"""The semantics of TensorFlow's DTensor, on JAX and on PyTorch: one test for each."""

from __future__ import annotations

import functools
import importlib.util
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import hocket
from hocket.core import session
from tests.mesh import semantics_programs
from tests.mesh.test_jax import Runner

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.about_local("memory that the processes of one machine share"),
]

Check = Callable[[str, Path], None]


@pytest.fixture(scope="module", params=["jax", "torch"])
def check(request: pytest.FixtureRequest) -> Iterator[Check]:
    """Does a check with a framework: JAX in one process, PyTorch in four."""
    if importlib.util.find_spec(request.param) is None:
        pytest.skip(f"needs {request.param}: pip install 'hocket[{request.param}]'")
    with hocket.init(num_cpus=4):
        if request.param == "jax":
            yield _check_jax()
        else:
            session.get_engine().tasks.expect_work(["tests.mesh.torch_programs"])
            yield _check_torch


def _check_jax() -> Check:
    runner = hocket.remote(Runner).remote()
    return lambda name, folder: hocket.get(
        runner.run.remote(semantics_programs.check, name, "jax", str(folder)), timeout=100
    )


def _check_torch(name: str, folder: Path) -> None:
    task = hocket.remote(max_retries=0)(_run_rank)
    store = str(folder / f"store-{uuid.uuid4().hex}")
    hocket.get([task.remote(name, str(folder), store, rank) for rank in range(4)], timeout=100)


def _run_rank(name: str, folder: str, store: str, rank: int) -> Any:
    from tests.collective.test_torch import run_rank  # which imports torch

    body = functools.partial(_check_in_rank, name, folder)
    return run_rank(body, store, rank, 4, 60.0)


def _check_in_rank(name: str, folder: str, rank: int, size: int) -> None:
    semantics_programs.check(name, "torch", folder)


@pytest.mark.parametrize("name", semantics_programs.CHECKS)
def test_semantics(check: Check, name: str, tmp_path: Path) -> None:
    check(name, tmp_path)
