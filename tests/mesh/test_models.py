"""All values of a model on a mesh: spread, told of, saved and loaded onto another one."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hocket
from hocket import mesh
from hocket.mesh import UNSHARDED, Layout, LayoutMap, Mesh
from tests.mesh import saving_programs
from tests.mesh.test_jax import Runner

pytestmark = pytest.mark.about_local("JAX in a worker of its own")

KILLS = int(os.environ.get("HOCKET_TEST_KILLS", "3"))


@pytest.fixture(scope="module")
def run() -> Iterator[Callable[..., Any]]:
    with hocket.init(num_cpus=1):
        runner = hocket.remote(Runner).remote()
        yield lambda function, *args: hocket.get(runner.run.remote(function, *args), timeout=300)


def test_a_model_is_spread_as_its_map_says(run: Callable[..., Any]) -> None:
    run(saving_programs.distribute_all)


@pytest.mark.parametrize(
    "program",
    [
        saving_programs.load_everywhere,
        saving_programs.write_each_part_once,
        saving_programs.export_whole,
        saving_programs.save_sums,
        saving_programs.refuse,
        saving_programs.load_wide,
    ],
    ids=lambda program: program.__name__,
)
def test_saved_models(run: Callable[..., Any], program: Callable[[str], None], tmp_path: Path) -> None:
    run(program, str(tmp_path))


def test_a_save_that_is_killed_is_not_seen(run: Callable[..., Any], tmp_path: Path) -> None:
    folder, pid_file = tmp_path / "saved", tmp_path / "pid"
    saver = hocket.remote(num_cpus=0, max_retries=0)(_save_until_killed)
    for _ in range(KILLS):
        result = saver.remote(folder, pid_file)
        while not pid_file.exists():
            assert hocket.wait([result], timeout=0.01)[0] == []
        os.kill(int(pid_file.read_text()), signal.SIGKILL)
        with pytest.raises(hocket.exceptions.WorkerCrashedError):
            hocket.get(result, timeout=60)
        pid_file.unlink()
        assert run(saving_programs.read_turn, str(folder)) >= 0


def _save_until_killed(folder: Path, pid_file: Path) -> None:
    """Save, and ask for the kill at some moment of the third save or a later one."""

    def tell() -> None:
        names: set[str] = set()
        while len(names) < 3 + random.randrange(9):
            names.update(file.name[:8] for file in folder.glob("*-0.safetensors"))
        pid_file.with_suffix(".new").write_text(str(os.getpid()))
        pid_file.with_suffix(".new").rename(pid_file)

    threading.Thread(target=tell, daemon=True).start()
    saving_programs.save_again_and_again(str(folder))


def test_explain_tells_what_a_step_moves() -> None:
    model = {"bias": np.ones(8, "float32"), "kernel": np.ones((8, 16), "float32"), "norm": np.ones(16, "float32")}
    rules = LayoutMap(Mesh({"data": 2, "model": 4}), {"kernel": ["data", "model"], "bias": ["model"]})
    told = mesh.explain(model, rules, batch_dims=["data"])
    assert [row.name for row in told.rows] == ["bias", "kernel", "norm"]
    bias, kernel, norm = told.rows
    assert (kernel.shape, kernel.local_shape, kernel.local_bytes) == ((8, 16), (4, 4), 64)
    assert kernel.forward.describe() == "all-gather of dim 0 along data (64 B)"
    assert kernel.backward.describe() == "reduce-scatter of dim 0 along data (64 B)"
    assert (bias.local_bytes, bias.forward.num_bytes, bias.backward.num_bytes) == (8, 0, 8)
    assert (norm.local_bytes, norm.backward.num_bytes) == (64, 64)
    assert (told.local_bytes, told.global_bytes, told.moved_bytes) == (136, 608, 200)
    assert "kernel     8 x 16  [data, model]  4 x 4" in str(told)
    assert mesh.explain(model, rules).moved_bytes == 0


def test_visualize_shows_which_device_holds_what(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    grid = Mesh({"x": 2, "y": 2})
    mesh.visualize(Layout(["x", UNSHARDED], grid), (8, 4))
    shown = capsys.readouterr().out
    assert "8 x 4 as ['x', 'unsharded']" in shown
    assert "dim 0: 0 to 3 │ devices 0, 1" in shown
    assert "dim 0: 4 to 7 │ devices 2, 3" in shown
    mesh.visualize(Layout([], grid), ())
    mesh.visualize(Layout(["y"], grid, partial=["x"]), (2,))
    mesh.visualize(Layout([UNSHARDED, UNSHARDED, "x", "y"], grid), (3, 3, 4, 4))
    shown = capsys.readouterr().out
    assert "devices 0, 1, 2, 3" in shown
    assert "terms of a sum along x" in shown
    assert "dim 3: 2 to 3" in shown
    picture = mesh.visualize(Layout(["x", "y"], grid), (8, 4), path=tmp_path / "who.png")
    assert picture is not None
    assert picture.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(TypeError, match=r"takes a DTensor, or a layout and a shape, but received 3 and None"):
        mesh.visualize(3)
    with pytest.raises(ValueError, match="cannot cut into 2 equal parts"):
        mesh.visualize(Layout(["x"], grid), (3,))
