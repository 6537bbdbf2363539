"""How the programs are run: as processes of their own, in an empty folder that is also their user's home."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

SCRIPTS: Final = Path(__file__).with_name("scripts")

HOCKET_RUN: Final = (sys.executable, "-m", "hocket.cli", "run", "--workers", "2")
TORCHRUN: Final = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")

_CHOICES: Final = ("TF_USE_LEGACY_KERAS", "KERAS_BACKEND", "HOCKET_ENGINE", "OMP_NUM_THREADS")
"""What the tests' own environment may have chosen."""

_QUIET: Final = {
    "CUDA_VISIBLE_DEVICES": "",
    "JAX_PLATFORMS": "cpu",
    "OMP_NUM_THREADS": "1",  # torchrun's own choice; Hocket would take the cores' share, and sums would round otherwise
    "RAY_TRAIN_V2_ENABLED": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "TF_CPP_MIN_LOG_LEVEL": "2",
}


def find_shipped(package: str, path: str) -> Path:
    """Return where an installed package has this program of its own; without the package the test is skipped."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        pytest.skip(f"needs {package}, which ships {path}")
    return Path(found.origin).parent / path


def run(folder: Path, *command: str | Path, **environment: str) -> list[str]:
    """Run a command that ends well in a folder of its own, and return the lines that it has printed."""
    folder.mkdir(exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if name not in _CHOICES}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env=kept | _QUIET | {"HOME": str(folder)} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout.splitlines()


def read_result(lines: list[str]) -> Any:
    """Return what the one line of a program's output holds that is a JSON object."""
    found = [line[line.index("{") :] for line in lines if re.match(r"(\(.*\) )?\{\"", line)]
    assert len(found) == 1, lines
    return json.loads(found[0])


_RAY_IMPORTS: Final = (
    (r"import ray\.train\.torch$", "import hocket as ray; import hocket.train.torch"),
    (r"import ray$", "import hocket as ray"),
    (r"import ray\.train$", "import hocket as ray; import hocket.train"),
    (r"import ray\.train as train$", "import hocket.train as train"),
    (r"from ray import ", "from hocket import "),
    (r"from ray\.air\.integrations\.keras import ", "from hocket.train.tensorflow.keras import "),
    (
        r"from ray\.train\.horovod import HorovodTrainer$",
        "from hocket.train.torch import TorchTrainer as HorovodTrainer",
    ),
    (r"from ray\.(train|data)\b", r"from hocket.\2"),
    (r"import horovod\.torch as hvd$", "import hocket.train.horovod.torch as hvd"),
)
"""The changes that docs/porting.md asks for: imports, and nothing else."""


def change_imports(text: str) -> str:
    """Return a program of Ray Train, or of Horovod, with its imports changed for Hocket."""
    for pattern, replacement in _RAY_IMPORTS:
        text = re.sub(rf"(?m)^(\s*){pattern}", rf"\1{replacement}", text)
    left = re.findall(r"(?m)^\s*(?:import|from) (?:ray|horovod)\b.*$", text)
    assert not left, f"imports that nobody has changed: {left}"
    return text


def run_on_ray_and_hocket(folder: Path, shipped: Path, driver: str) -> tuple[Any, Any]:
    """Run a driver of `scripts` beside a program that Ray ships: on Ray as they are, and both with their imports
    changed on Hocket. Return both results."""
    results = []
    for side in ("ray", "hocket"):
        place = folder / side
        place.mkdir()
        for path in (shipped, SCRIPTS / driver):
            text = path.read_text()
            (place / path.name).write_text(change_imports(text) if side == "hocket" else text)
        results.append(read_result(run(place, sys.executable, driver)))
    return results[0], results[1]
