"""The page of which tests pass on which engine says what the results say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from hocket.testing import contract

ROOT = Path(__file__).parents[1]

CASE = '<testcase classname="tests.{module}" name="{name}">{inside}</testcase>'


def write_results(path: Path, *cases: tuple[str, str, str]) -> None:
    text = "".join(CASE.format(module=module, name=name, inside=inside) for module, name, inside in cases)
    path.write_text(f"<testsuites><testsuite>{text}</testsuite></testsuites>")


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "parity.py"), str(folder), str(folder / "page.md")]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def skip(reason: str) -> str:
    return f'<skipped message="{reason}"/>'


def test_the_page_counts_and_says_why(tmp_path: Path) -> None:
    queue, suite = "util.test_queue", "engine.test_contract"
    write_results(
        tmp_path / "local.xml",
        (queue, "test_a[local]", ""),
        (queue, "test_a[inprocess]", "<failure/>"),  # of another engine: not this file's
        (queue, "test_b", ""),
        (queue, "test_guardian", ""),
        (f"{suite}.TestLocal", "test_no_returns", ""),
    )
    own = skip("It tests what only the local engine has: its guardian.")
    write_results(
        tmp_path / "inprocess.xml",
        (queue, "test_a[inprocess]", ""),
        (queue, "test_b", skip("There are no processes.")),
        (queue, "test_guardian", own),
        (f"{suite}.TestInProcess", "test_no_returns", ""),
    )
    write_results(
        tmp_path / "ray.xml",
        (queue, "test_a[ray]", "<failure/>"),
        (queue, "test_b", ""),
        (queue, "test_guardian", own),
        (f"engine.ray.{suite.rpartition('.')[2]}.TestRay", "test_no_returns", skip("ray: It cannot.")),
    )
    assert build(tmp_path).returncode == 0
    page = (tmp_path / "page.md").read_text()
    assert "| Queue | all 2 | 1 of 2 [2] | 1 of 2, **1 failed** |" in page
    assert "| Contract: tasks | all 1 | all 1 | 0 of 1 [1] |" in page
    assert "\n1. It cannot.\n2. There are no processes.\n" in page
    write_results(tmp_path / "ray-again.xml", (queue, "test_a[ray]", ""))
    assert build(tmp_path).returncode == 0
    assert "| Queue | all 2 | 1 of 2 [2] | all 2, 1 at the second try |" in (tmp_path / "page.md").read_text()


def test_each_test_of_the_contract_has_its_row(tmp_path: Path) -> None:
    names = [name for name in dir(contract.ProcessEngineContract) if name.startswith("test_")]
    write_results(tmp_path / "local.xml", *[("engine.test_contract.TestLocal", name, "") for name in names])
    for engine in ("inprocess", "ray"):
        write_results(tmp_path / f"{engine}.xml", ("util.test_queue", "test_a", ""))
    done = build(tmp_path)
    assert done.returncode == 0, done.stderr
    counts = re.findall(r"^\| Contract: .*? \| all (\d+) \|", (tmp_path / "page.md").read_text(), re.MULTILINE)
    assert sum(map(int, counts)) == len(names)


def test_missing_results_are_an_error(tmp_path: Path) -> None:
    write_results(tmp_path / "local.xml", ("util.test_queue", "test_a", ""))
    done = build(tmp_path)
    assert done.returncode == 1
    assert "No results of inprocess, ray in" in done.stdout
