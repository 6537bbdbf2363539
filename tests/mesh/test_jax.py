"""Meshes of virtual devices on JAX: what is spread is the same as on one device.

All of it runs in one worker, which nothing but these tests has used JAX in.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import hocket
from tests.mesh import jax_programs, jax_step_programs, operations

pytestmark = pytest.mark.about_local("JAX in a worker of its own")


class Runner:
    """Runs functions in its process."""

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)


@pytest.fixture(scope="module")
def run() -> Iterator[Callable[..., Any]]:
    with hocket.init(num_cpus=1):
        runner = hocket.remote(Runner).remote()
        yield lambda function, *args: hocket.get(runner.run.remote(function, *args), timeout=300)


def test_the_first_mesh_of_a_program_may_name_its_devices() -> None:
    program = """
from hocket import mesh
import jax

grid = mesh.create_mesh([("x", 6)], devices=[f"CPU:{number}" for number in range(6)])
print(grid.size, len(jax.devices()))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["6", "6"]


@pytest.mark.parametrize("dims", jax_programs.MESHES, ids=str)
def test_relayouts_are_what_the_algebra_says(run: Callable[..., Any], dims: dict[str, int]) -> None:
    assert run(jax_programs.relayout_all, dims, 7 if len(dims) > 1 else 1) > 0


def test_three_axes_may_cut_a_dim_in_any_order(run: Callable[..., Any]) -> None:
    assert run(jax_programs.relayout_three_axes) == 15


def test_values_without_elements_are_moved(run: Callable[..., Any]) -> None:
    run(jax_programs.relayout_nothing)


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("dims", [dims for dims in jax_programs.MESHES if len(dims) > 1], ids=str)
def test_every_relayout_is_what_the_algebra_says(run: Callable[..., Any], dims: dict[str, int]) -> None:
    assert run(jax_programs.relayout_all, dims, 1) > 0
    run(jax_programs.count_moved_bytes, 1)


@pytest.mark.parametrize("dims", jax_programs.MESHES, ids=str)
def test_what_is_packed_is_unpacked(run: Callable[..., Any], dims: dict[str, int]) -> None:
    run(jax_programs.pack_all, dims)


@pytest.mark.parametrize("name", operations.SAMPLE)
@pytest.mark.parametrize("dims", jax_programs.MESHES, ids=str)
def test_operations_and_gradients_are_those_of_one_device(
    run: Callable[..., Any], dims: dict[str, int], name: str
) -> None:
    assert run(jax_programs.compare_operation, dims, name, 2) > 0


@pytest.mark.long
@pytest.mark.timeout(580)
@pytest.mark.parametrize("name", operations.OPERATIONS)
@pytest.mark.parametrize("dims", operations.SIZES, ids=str)
def test_operations_for_every_pair_of_layouts(run: Callable[..., Any], dims: dict[str, int], name: str) -> None:
    assert run(jax_programs.compare_operation, dims, name, 10_000) > 0


def test_a_relayout_moves_what_its_plan_says(run: Callable[..., Any]) -> None:
    run(jax_programs.count_moved_bytes, 11)


def test_a_spread_value_is_not_read_in_silence(run: Callable[..., Any]) -> None:
    run(jax_programs.read_spread)


def test_values_behave_as_arrays(run: Callable[..., Any]) -> None:
    run(jax_programs.use_as_arrays)


def test_rows_and_captured_values(run: Callable[..., Any]) -> None:
    run(jax_programs.iterate_and_capture)


def test_bad_input_is_refused(run: Callable[..., Any]) -> None:
    run(jax_programs.refuse_bad_input)


def test_variables_keep_their_layout(run: Callable[..., Any]) -> None:
    run(jax_programs.assign_variables)


@pytest.mark.parametrize("dims", jax_programs.MESHES[1::2], ids=str)
def test_steps_assign_variables(run: Callable[..., Any], dims: dict[str, int]) -> None:
    run(jax_programs.take_steps, dims)


def test_values_have_memory_of_their_own(run: Callable[..., Any]) -> None:
    run(jax_step_programs.fill_a_buffer_again)


def test_products_are_not_transposed(run: Callable[..., Any]) -> None:
    run(jax_step_programs.count_transpositions)


def test_a_loop_may_read_no_result(run: Callable[..., Any]) -> None:
    assert run(jax_step_programs.read_nothing, 200) == 256.0**2


def test_steps_that_fail_leave_variables_as_they_are(run: Callable[..., Any]) -> None:
    run(jax_programs.fail_in_steps)


def test_batches_are_spread(run: Callable[..., Any]) -> None:
    run(jax_programs.go_through_batches)
