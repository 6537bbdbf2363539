"""A wrong call is found by mypy and by pyright, on its own line, and no right one is complained of."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import hocket

PROGRAM = Path(__file__).with_name("program.py")
MARK = "# wrong"
SOURCES = Path(hocket.__file__).parent.parent


def list_wrong() -> set[int]:
    return {number for number, line in enumerate(PROGRAM.read_text().splitlines(), 1) if MARK in line}


def ask_mypy(folder: Path) -> set[int]:
    Path(folder, "mypy.ini").write_text("[mypy]\nstrict = True\n[mypy-cloudpickle.*]\nignore_missing_imports = True\n")
    command = [sys.executable, "-m", "mypy", "--no-pretty", PROGRAM.name]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=folder, env={**os.environ, "MYPYPATH": str(SOURCES)}
    )
    assert "Found" in done.stdout, done.stdout + done.stderr
    return {
        int(found[1]) for found in re.finditer(rf"^{re.escape(PROGRAM.name)}:(\d+): error", done.stdout, re.MULTILINE)
    }


def ask_pyright(folder: Path) -> set[int]:
    settings = {"include": [PROGRAM.name], "typeCheckingMode": "standard", "extraPaths": [str(SOURCES)]}
    Path(folder, "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    found = json.loads(done.stdout)
    assert found["summary"]["filesAnalyzed"] == 1, done.stdout
    return {one["range"]["start"]["line"] + 1 for one in found["generalDiagnostics"] if one["severity"] == "error"}


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("ask", [ask_mypy, ask_pyright])
def test_what_is_wrong_is_found_and_nothing_else(ask, tmp_path):
    wrong = list_wrong()
    assert len(wrong) > 15
    shutil.copy(PROGRAM, tmp_path)
    assert ask(tmp_path) == wrong
