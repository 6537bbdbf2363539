"""The page of frameworks says what the results say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def write_results(path: Path, **cells: str) -> None:
    properties = "".join(
        f'<property name="{name.replace("_", " ")}" value="{value}"/>' for name, value in cells.items()
    )
    path.write_text(
        f'<testsuites><testsuite><testcase name="test_cells[Keras 3 on JAX-LocalSGD]"><properties>{properties}</properties></testcase>'
        "</testsuite></testsuites>"
    )


def test_cells_pass_fail_or_state_their_reason(tmp_path: Path) -> None:
    seconds = {"seconds_to_the_name_of_the_killed_rank": "0.2"}
    all_features = dict.fromkeys(("report", "checkpoint", "resume", "kill_a_rank"), "passes")
    write_results(tmp_path / "local-matrix.xml", **all_features, exact_evaluation="it counts in its own way", **seconds)
    write_results(tmp_path / "ray-matrix.xml", report="passes")
    command = [sys.executable, str(ROOT / "tools" / "frameworks.py"), str(tmp_path), str(tmp_path / "page.md")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout.endswith("10 cells, 4 failed\n")
    page = (tmp_path / "page.md").read_text()
    assert "| Keras 3 on JAX | LocalSGD | local | ✓ | ✓ | ✓ | ✓ (0.2) | (1) |" in page
    assert "| Keras 3 on JAX | LocalSGD | ray | ✓ | **fails** | **fails** | **fails** | **fails** |" in page
    assert "\n1. it counts in its own way.\n" in page
