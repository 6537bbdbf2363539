"""Meshes over the devices of several processes of JAX: two ranks of a `JaxTrainer`, each with two virtual devices."""

from __future__ import annotations

import importlib
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hocket import mesh, train
from hocket.mesh import UNSHARDED, Layout

pytest.importorskip("jax", reason="needs JAX: pip install 'hocket[jax]'")
pytest.importorskip("safetensors", reason="needs safetensors: pip install safetensors")

from hocket.train.jax import JaxConfig, JaxTrainer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.usefixtures("shared_session"),
    pytest.mark.about_local("what the processes of one machine print"),
]

DIMS = {"data": 2, "model": 2}
WHOLE = np.arange(32.0, dtype="float32").reshape(8, 4)


def fit(function: Any, path: Path, joined: bool = True, **config: Any) -> Any:
    trainer = JaxTrainer(
        function,
        jax_config=JaxConfig(distributed=joined),
        train_loop_config=config,
        scaling_config=train.ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5}),
        run_config=train.RunConfig(storage_path=str(path)),
    )
    return trainer.fit().return_value


def read_error(call: Any) -> str:
    try:
        call()
    except (TypeError, ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def do_everything(config: dict[str, Any]) -> dict[str, Any]:
    """Return what was computed in two processes, for those who know what one would have."""
    odd = read_error(lambda: mesh.create_distributed_mesh({"x": 3}, framework="jax"))  # before JAX has any devices
    grid = mesh.create_distributed_mesh(DIMS, framework="jax")
    value = mesh.copy_to_mesh(WHOLE, Layout(["data", "model"], grid))
    parts = mesh.unpack(value)
    packed = mesh.pack(parts, value.layout)
    targets = [Layout(["model", UNSHARDED], grid), Layout([UNSHARDED, "model,data"], grid), Layout.replicated(grid, 2)]
    terms = mesh.relayout(packed, Layout([UNSHARDED, "data"], grid, partial=["model"]))
    moved = [mesh.relayout(one, target).gather() for target in targets for one in (packed, terms)]
    mesh.barrier(grid)

    weights = mesh.DVariable(np.ones((4, 2), "float32"), layout=Layout(["model", UNSHARDED], grid))

    @mesh.function(variables=[weights])
    def take_step(x: Any) -> Any:
        def compute_loss() -> Any:
            return ((x @ weights) ** 2).mean()

        loss, (slope,) = mesh.value_and_gradients(compute_loss, [weights])
        weights.assign_sub(0.001 * slope)
        return loss

    losses = [float(take_step(value)) for _ in range(2)]
    zeros = mesh.call_with_layout(np.zeros, Layout(["data,model"], grid), 8, "float32")
    folder = mesh.save({"value": value, "weights": weights.value, "number": np.float32(3)}, config["folder"])
    loaded = mesh.load(folder, mesh.LayoutMap(grid, {"value": [UNSHARDED, "model"]}))
    mine = mesh.create_mesh({"own": 2}, framework="jax")
    own = mesh.copy_to_mesh(WHOLE, Layout(["own", UNSHARDED], mine))
    return {
        "parts": [np.asarray(part) for part in parts],
        "moved": moved,
        "losses": losses,
        "weights": weights.value.gather(),
        "zeros": [part.shape for part in mesh.unpack(zeros)],
        "loaded": {name: one.gather() for name, one in loaded.items()},
        "devices": [len(set(grid.devices)), len(set(mine.devices) & set(grid.devices))],
        "own": own.gather(),
        "leads": importlib.import_module("jax._src.distributed").global_state.service is not None,
        "errors": [odd, read_error(lambda: np.asarray(value)), read_error(lambda: mesh.create_mesh({"x": 4}))],
    }


def test_everything_on_a_mesh_of_two_processes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    found = fit(do_everything, tmp_path, folder=str(tmp_path / "saved"))
    for part, (rows, columns) in zip(found["parts"], [(0, 0), (0, 2)], strict=True):  # rank 0's two devices
        np.testing.assert_array_equal(part, WHOLE[rows : rows + 4, columns : columns + 2])
    for moved in found["moved"]:
        np.testing.assert_array_equal(moved, WHOLE)
    weights, losses = np.ones((4, 2)), []
    for _ in range(2):
        losses.append(((WHOLE @ weights) ** 2).mean())
        weights -= 0.001 * 2 * WHOLE.T @ (WHOLE @ weights) / 16
    assert found["losses"] == pytest.approx(losses, rel=1e-5)
    np.testing.assert_allclose(found["weights"], weights, rtol=1e-5)
    assert found["zeros"] == [(2,), (2,)]
    np.testing.assert_array_equal(found["loaded"]["value"], WHOLE)
    np.testing.assert_array_equal(found["loaded"]["weights"], found["weights"])
    assert found["loaded"]["number"] == 3
    assert found["devices"] == [4, 2]
    np.testing.assert_array_equal(found["own"], WHOLE)
    assert not found["leads"], "the driver does, since JAX ends all processes when the one that leads has died"
    odd, spread, many = found["errors"]
    assert odd.startswith("ValueError: A mesh of 3 devices cannot be shared equally by 2 processes")
    assert "To move all of it here, call its gather()" in spread
    assert "needs 4 devices, but there are 2 of the type" in many
    assert "Gloo" not in capfd.readouterr().out


@pytest.mark.needs("death_evidence")
def test_a_process_that_dies_in_a_relayout_is_named(tmp_path: Path) -> None:
    """Rank 0: JAX itself would end all processes then, because they cannot reach its coordinator any more."""

    def die(config: dict[str, Any]) -> None:
        grid = mesh.create_distributed_mesh({"data": 2}, framework="jax")
        value = mesh.copy_to_mesh(WHOLE, Layout(["data", UNSHARDED], grid))
        for number in range(1_000_000):
            if number == 20 and train.get_context().get_world_rank() == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            value = mesh.relayout(mesh.relayout(value, [UNSHARDED, "data"]), ["data", UNSHARDED])

    with pytest.raises(train.WorkerGroupError, match=r"Rank 0 of 2 died: .* killed by signal 9 \(SIGKILL\)") as raised:
        fit(die, tmp_path)
    assert "SIGABRT" not in str(raised.value)


def test_ranks_whose_jax_is_not_joined(tmp_path: Path) -> None:
    def make(config: dict[str, Any]) -> str:
        return read_error(lambda: mesh.create_distributed_mesh({"data": 2}, framework="jax"))

    assert "JaxTrainer(..., jax_config=JaxConfig(distributed=True))" in fit(make, tmp_path, joined=False)
