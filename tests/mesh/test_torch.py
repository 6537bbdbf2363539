"""Meshes of ranks on PyTorch: what is spread is the same as in one process."""

from __future__ import annotations

import functools
import math
import re
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import hocket

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'hocket[torch]'")

from tests.collective.test_torch import run_rank  # noqa: E402 (torch may be missing)
from tests.mesh import module_programs, operations, torch_programs  # noqa: E402 (the same)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.usefixtures("shared_session"),
    pytest.mark.about_local("memory that the processes of one machine share"),
]

MESHES = [{"x": 1}, {"x": 2}, {"x": 4}, {"x": 2, "y": 2}]


@pytest.fixture(scope="module")
def session_cpus() -> int:
    return 4


@pytest.fixture(scope="module")
def worker_imports() -> list[str]:
    return [torch_programs.__name__]


def run_program(
    program: Callable[..., Any], dims: dict[str, int], path: Path, *args: Any, is_new: bool = False
) -> list[Any]:
    """Run a program in as many ranks as the mesh has places; return what they return.

    torch's rules for operations keep the meshes that they have seen, and take one of an earlier process group, which is
    gone, for one with the same names and sizes. So programs with many operations have axes of their own, or run in new
    processes (`is_new`), which have to import torch.
    """
    size = math.prod(dims.values())
    options: dict[str, Any] = {"max_calls": 1} if is_new else {}
    rank_task = hocket.remote(num_cpus=0.5, max_retries=0, **options)(run_rank)
    store = str(path / f"store-{uuid.uuid4().hex}")
    body = functools.partial(_run_without_numbers, program, args)
    found: list[Any] = hocket.get([rank_task.remote(body, store, rank, size, 60.0) for rank in range(size)])
    return found


def _run_without_numbers(program: Callable[..., Any], args: tuple[Any, ...], rank: int, size: int) -> Any:
    return program(*args)


@pytest.mark.parametrize("dims", MESHES, ids=str)
def test_relayouts_are_what_the_algebra_says(dims: dict[str, int], tmp_path: Path) -> None:
    found = run_program(torch_programs.relayout_all, dims, tmp_path, dims, 2 if len(dims) > 1 else 1)
    assert min(found) > 0


def load_in_jax(folder: str) -> None:
    from tests.mesh import saving_programs  # which imports JAX

    saving_programs.load_from_torch(folder)


def compare_all(dims: dict[str, int], names: Sequence[str], most: int) -> int:
    return sum(torch_programs.compare_operation(dims, name, most) for name in names)


@pytest.mark.parametrize("most", [1, 3])
def test_operations_and_gradients_are_those_of_one_process(most: int, tmp_path: Path) -> None:
    dims = {f"row {most}": 2, f"column {most}": 2}
    assert min(run_program(compare_all, dims, tmp_path, dims, operations.SAMPLE, most)) > 0


@pytest.mark.parametrize("dims", [{"cut": 2}, {"major": 2, "minor": 2}], ids=str)
def test_reductions_of_cut_values_are_those_of_one_process(dims: dict[str, int], tmp_path: Path) -> None:
    for count, wrong in run_program(torch_programs.compare_reductions, dims, tmp_path, dims):
        assert count > 100
        assert wrong == []


@pytest.mark.long
@pytest.mark.timeout(600)  # matmul on eight ranks takes minutes
@pytest.mark.parametrize("names", operations.FAMILIES, ids=lambda names: names[0])
@pytest.mark.parametrize("dims", operations.SIZES, ids=str)
def test_operations_for_every_pair_of_layouts(dims: dict[str, int], names: Sequence[str], tmp_path: Path) -> None:
    assert min(run_program(compare_all, dims, tmp_path, dims, names, 10_000, is_new=True)) > 0


@pytest.mark.parametrize("program", ["differentiate_relayouts", "take_steps", "behave_as_arrays"])
@pytest.mark.parametrize("dims", MESHES[1::2], ids=str)
def test_values_and_variables(dims: dict[str, int], program: str, tmp_path: Path) -> None:
    run_program(getattr(torch_programs, program), dims, tmp_path, dims)


def test_saved_models(tmp_path: Path) -> None:
    meshes = [{"x": 4}, {"x": 2, "y": 2}, {"x": 1, "y": 4}]
    run_program(torch_programs.save_everywhere, {"x": 4}, tmp_path, str(tmp_path), meshes)
    pytest.importorskip("jax", reason="needs JAX: pip install 'hocket[jax]'")
    hocket.get(hocket.remote(load_in_jax).remote(str(tmp_path)), timeout=120)


def test_modules(tmp_path: Path) -> None:
    """In one start: they train as in one process, are spread in place, and saved."""
    run_program(module_programs.run_all, module_programs.GRID, tmp_path, str(tmp_path))


def test_relayouts_move_the_bytes_of_their_plans(tmp_path: Path) -> None:
    dims = {"x": 2, "y": 2}
    assert min(run_program(torch_programs.count_moved_bytes, dims, tmp_path, dims, 5)) > 50


@pytest.mark.parametrize("step", [pytest.param(0, marks=pytest.mark.long), 1])
def test_a_rank_that_dies_in_a_relayout_is_named(step: int, tmp_path: Path) -> None:
    """Before it begins, and between two of its steps."""
    dims = {"x": 2, "y": 2}
    rank_task = hocket.remote(max_retries=0, max_calls=1)(run_rank)
    body = functools.partial(_run_without_numbers, torch_programs.die_in_a_relayout, (dims, step))
    started = [rank_task.remote(body, str(tmp_path / "store"), rank, 4, 60.0) for rank in range(4)]
    with pytest.raises(hocket.exceptions.WorkerCrashedError, match="SIGKILL"):
        hocket.get(started[1], timeout=50)
    blamed: dict[int, int] = {}
    for number in (0, 2, 3):
        text, seconds = hocket.get(started[number], timeout=50)
        named = re.match(r"Rank (\d) \(pid \d+\) (died|has left the group)", text)
        assert named
        along = {int(inner): int(rank) for inner, rank in re.findall(r"(\d) is (\d)", text)}
        blamed[number] = along.get(int(named[1]), int(named[1]))
        assert seconds < 20
    assert 1 in blamed.values()
    # A rank that needs nothing of the dead one may name one that gave up because of it.
    assert all(1 in (one, blamed.get(one), blamed.get(blamed.get(one, 1))) for one in blamed.values())
