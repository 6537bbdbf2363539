"""Programs for torchrun, and for the launchers that set its variables, as they are under ``hocket run``."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.programs import running

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.about_local("programs of their own"),
]


def test_a_run_that_goes_on_from_its_snapshot(tmp_path: Path) -> None:
    script = running.SCRIPTS / "torchrun_snapshot.py"
    # torchrun 2.13 keeps one store for all attempts, in which gloo finds the addresses of ranks that have ended.
    fresh_store = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    original = running.run(tmp_path / "torchrun", *running.TORCHRUN, "--max-restarts", "1", script, **fresh_store)
    ours = running.run(tmp_path / "hocket", *running.HOCKET_RUN, "--max-restarts", "1", script)
    found = running.read_result(ours)
    assert (found["attempt"], found["begin"]) == (1, 2)
    assert found == running.read_result(original)


@pytest.mark.parametrize("script", ["torchrun_fsdp2.py", "torchrun_rpc.py"])
def test_programs_of_pytorch_tutorials(tmp_path: Path, script: str) -> None:
    original = running.run(tmp_path / "torchrun", *running.TORCHRUN, running.SCRIPTS / script)
    ours = running.run(tmp_path / "hocket", *running.HOCKET_RUN, running.SCRIPTS / script)
    assert running.read_result(ours) == running.read_result(original)


@pytest.mark.parametrize(
    ("script", "only_in_ranks"),
    [("test_script.py", "MULTI_CPU"), ("test_sync.py", "Distributed `no_sync`")],
    ids=["test_script.py", "test_sync.py"],
)
def test_programs_that_accelerate_ships(tmp_path: Path, script: str, only_in_ranks: str) -> None:
    shipped = running.find_shipped("accelerate", f"test_utils/scripts/{script}")
    on_cpus = {"ACCELERATE_USE_CPU": "true"}  # else each rank trains alone; `accelerate launch` needs MPI on CPUs
    outputs = []
    for side, launcher in (("torchrun", running.TORCHRUN), ("hocket", running.HOCKET_RUN)):
        # A file for each rank: torchrun lets two ranks write into one line.
        running.run(tmp_path / side, *launcher, "--log-dir", "logs", "--redirects", "1", shipped, **on_cpus)
        files = (tmp_path / side / "logs").rglob("stdout.log")
        outputs.append({path.parent.name: path.read_text() for path in files})
    # They check their own numbers, and print what they have found.
    assert outputs[0].keys() == {"0", "1"}
    assert outputs[1] == outputs[0]
    assert only_in_ranks in outputs[1]["0"]


def test_a_trainer_of_hugging_face(tmp_path: Path) -> None:
    script = running.SCRIPTS / "transformers_trainer.py"
    original = running.run(tmp_path / "torchrun", *running.TORCHRUN, script)
    ours = running.run(tmp_path / "hocket", *running.HOCKET_RUN, script)
    found = running.read_result(ours)
    assert found["first"]["ranks"] == 2
    assert found == running.read_result(original)


def test_a_model_that_lightning_ships(tmp_path: Path) -> None:
    script = running.SCRIPTS / "lightning_boring.py"
    original = running.run(tmp_path / "lightning", sys.executable, script)  # Lightning starts the other rank itself
    ours = running.run(tmp_path / "hocket", *running.HOCKET_RUN, script)
    found = running.read_result(ours)
    assert (found["ranks"], found["steps"]) == (2, 16)
    assert found == running.read_result(original)


def test_a_transformer_that_lightning_ships(tmp_path: Path) -> None:
    script = running.SCRIPTS / "lightning_transformer.py"
    for side in ("fabric", "hocket"):
        text = tmp_path / side / "data" / "wikitext-2.txt"
        text.parent.mkdir(parents=True)
        text.write_text((running.SCRIPTS.parents[2] / "README.md").read_text())
    original = running.run(tmp_path / "fabric", sys.executable, script)  # Fabric starts the other rank itself
    ours = running.run(tmp_path / "hocket", *running.HOCKET_RUN, script)
    found = running.read_result(ours)
    assert found["ranks"] == 2
    assert found == running.read_result(original)
