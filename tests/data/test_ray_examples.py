"""Programs after Ray Data's examples: what they compute is known, and Ray computes the same with imports changed."""

from __future__ import annotations

import importlib
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hocket

pytestmark = [pytest.mark.timeout(300), pytest.mark.needs("parallelism")]

FOLDER = Path(__file__).parent / "examples"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py"))

NEEDS = {"orders": ("polars",)}
"""What Ray needs for a program, and this package does not."""

ON_RAY = """
import logging, pathlib, pickle, sys

import ray

ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
ray.data.DataContext.get_current().enable_progress_bars = False
ray.data.DataContext.get_current().execution_options.preserve_order = True
found = {}
for path in sys.argv[2:]:
    folder = pathlib.Path(sys.argv[1], pathlib.Path(path).stem)
    folder.mkdir()
    program = {"__name__": "program"}
    exec(compile(pathlib.Path(path).read_text(), path, "exec"), program)
    try:
        found[folder.name] = program["main"](str(folder))
    except Exception as error:
        found[folder.name] = repr(error)
pathlib.Path(sys.argv[1], "found.pickle").write_bytes(pickle.dumps(found))
ray.shutdown()
"""


def change_imports(text: str) -> str:
    """Return a program as it is written for Ray."""
    return re.sub(r"^from hocket\b", "from ray", text.replace("import hocket as ray", "import ray"), flags=re.MULTILINE)


@pytest.fixture(scope="module")
def four_cpus() -> Iterator[hocket.SessionContext]:
    with hocket.init(num_cpus=4) as context:
        yield context


@pytest.fixture(scope="module")
def on_ray(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What Ray computes: all programs in one process, as it takes long to start."""
    pytest.importorskip("ray")
    folder = tmp_path_factory.mktemp("ray")
    programs = []
    for name in NAMES:
        path = folder / f"{name}.py"
        path.write_text(change_imports((FOLDER / f"{name}.py").read_text()))
        programs.append(str(path))
    made = tmp_path_factory.mktemp("found")
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ON_RAY, str(made), *programs],
        check=True,
        capture_output=True,
        env={**os.environ, "RAY_DATA_DISABLE_PROGRESS_BARS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"},
    )
    found: dict[str, Any] = pickle.loads((made / "found.pickle").read_bytes())
    return found


@pytest.mark.slow
@pytest.mark.usefixtures("four_cpus")
@pytest.mark.parametrize("name", NAMES)
def test_an_example_computes_what_is_known(name: str, tmp_path: Path) -> None:
    program = importlib.import_module(f"tests.data.examples.{name}")
    assert program.main(str(tmp_path)) == program.EXPECTED


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_ray_computes_the_same(name: str, on_ray: dict[str, Any]) -> None:
    for module in NEEDS.get(name, ()):
        pytest.importorskip(module)
    program = importlib.import_module(f"tests.data.examples.{name}")
    assert on_ray[name] == program.EXPECTED
