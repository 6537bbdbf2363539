"""What the guardian loads for all workers."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.core import session as sessions

pytestmark = [pytest.mark.about_local("a process that forks the workers"), pytest.mark.usefixtures("session")]


@hocket.remote
def look(name: str) -> tuple[int, Any, list[str]]:
    module = sys.modules.get(name)
    return os.getpid(), getattr(module, "LOADED_BY", module and module.__name__), sys.path


def expect(*modules: str) -> None:
    sessions.get_engine().tasks.expect_work(modules)


def test_workers_have_what_was_loaded_before_they_were_forked() -> None:
    before, found, path = hocket.get(look.remote("colorsys"))
    assert found is None, "nothing else loads this module of the standard library"
    expect("colorsys")
    pid, found, path_after = hocket.get(look.remote("colorsys"))
    assert found == "colorsys"
    assert pid != before, "the idle worker that had not got it is gone"
    assert path_after == path
    expect("colorsys")
    assert hocket.get(look.remote("colorsys"))[0] == pid, "it is told once"


def test_modules_come_from_where_the_driver_would_import_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "only_here.py").write_text("import os\nLOADED_BY = os.getpid()\n")
    monkeypatch.syspath_prepend(tmp_path)
    expect("only_here")
    pid, loaded_by, _ = hocket.get(look.remote("only_here"))
    assert loaded_by != pid
    assert loaded_by == sessions.get_engine().view.statistics()["guardian_pid"]


@pytest.mark.parametrize("text", ["raise SystemExit(3)", "import no_such_module", "1 +"])
def test_what_cannot_be_loaded_is_left_to_the_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    (tmp_path / "broken.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    expect("broken", "colorsys")
    assert hocket.get(look.remote("broken"))[1] is None
    assert hocket.get(look.remote("colorsys"))[1] == "colorsys"


def test_torch_answers_without_cuda_while_modules_are_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA would not work in the workers, which are forks of the process that loads."""
    (tmp_path / "asking.py").write_text(
        "import os\nLOADED_BY = os.getpid(), os.environ.get('PYTORCH_NVML_BASED_CUDA_CHECK')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    expect("asking")
    _, (loaded_by, asked), _ = hocket.get(look.remote("asking"))
    assert loaded_by == sessions.get_engine().view.statistics()["guardian_pid"]
    assert asked == "1"
    assert hocket.get(hocket.remote(os.getenv).remote("PYTORCH_NVML_BASED_CUDA_CHECK")) is None


def test_no_worker_is_forked_from_a_process_that_uses_a_gpu(tmp_path: Path) -> None:
    """The file stands for the GPU's: it is open in each process that uses CUDA."""
    (tmp_path / "eager.py").write_text("import os\nkept = open(os.environ['HOCKET_GPU_FILE'])\n")
    (tmp_path / "gpu").write_text("")
    program = tmp_path / "program.py"
    program.write_text(
        """
import hocket
from hocket.core import session
with hocket.init(num_cpus=1):
    assert hocket.get(hocket.remote(abs).remote(-1)) == 1
    session.get_engine().tasks.expect_work(["eager"])
    try:
        hocket.get(hocket.remote(abs).options(max_retries=0).remote(-1))
    except hocket.exceptions.WorkerCrashedError as error:
        print(error)
"""
    )
    ran = subprocess.run(
        [sys.executable, program],
        env={**os.environ, "HOCKET_GPU_FILE": str(tmp_path / "gpu")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "the import of eager used a GPU in the process that workers are forks of" in ran.stdout, ran.stderr
    assert "Let functions and constructors use the GPU" in ran.stdout


def test_random_numbers_are_not_shared() -> None:
    class Drawer:
        def draw(self) -> tuple[float, float]:
            return random.random(), float(np.random.rand())  # noqa: NPY002 (the state that would be shared)

    expect("numpy.random")
    drawers = [hocket.remote(num_cpus=0)(Drawer).remote() for _ in range(3)]
    drawn = hocket.get([drawer.draw.remote() for drawer in drawers])
    assert len({number for pair in drawn for number in pair}) == 6


def test_a_program_that_is_called_like_a_library_starts_no_chain_of_sessions(tmp_path: Path) -> None:
    """It is imported instead of the library, where workers are forked from, and opens a session again."""
    program = tmp_path / "library.py"
    program.write_text(
        """
import hocket
from hocket.core import session

hocket.init(num_cpus=1)
session.get_engine().tasks.expect_work(["library"])

@hocket.remote
def look():
    import os
    return os.environ.get("HOCKET_LOADING")

print(hocket.get(look.remote()))
"""
    )
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "None\n", "")


def test_a_session_that_an_import_opens_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_LOADING", "keras")
    with pytest.raises(RuntimeError, match=r"Importing 'keras' for the workers opened a session.*Rename the program"):
        hocket.get(hocket.remote(int).remote())  # type: ignore[call-overload]
