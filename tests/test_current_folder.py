"""A program that is started in a folder where others may write imports nothing from there, as it would not without us:
Python looks for a script's modules beside the script.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

JOB = """
import hocket
hocket.init(num_cpus=1)
print(hocket.get(hocket.remote(lambda: 1).remote()))
"""
COMMANDS = {
    "script": [sys.executable, "job"],
    "doctor": [str(Path(sys.executable).with_name("hocket")), "doctor"],
    "run": [str(Path(sys.executable).with_name("hocket")), "run", "job"],
}


@pytest.mark.parametrize("name", [*COMMANDS])
def test_nothing_is_imported_from_the_current_folder(name: str, tmp_path: Path) -> None:
    folder, home = tmp_path / "shared", tmp_path / "own"
    folder.mkdir()
    home.mkdir()
    (home / "job.py").write_text(JOB)
    mark = tmp_path / "mark"
    for module in sys.stdlib_module_names | {"hocket", "cloudpickle", "numpy", "rich", "psutil"}:
        (folder / f"{module}.py").write_text(
            f"import os\nwith open({str(mark)!r}, 'a') as file:\n    file.write({module!r} + '\\n')\nos._exit(3)\n"
        )
    (folder / "os.py").unlink()  # the trap itself needs it
    command = [str(home / "job.py") if part == "job" else part for part in COMMANDS[name]]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=50)
    assert not mark.exists(), mark.read_text()
    assert done.returncode == 0, done.stderr
