"""The first program of each page runs without `init`, and a second time, on each engine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hocket.core import engines

ROOT = Path(__file__).parents[1]

PAGES = [ROOT / "README.md", *sorted(path for path in (ROOT / "docs").rglob("*.md") if "design" not in path.parts)]

NEEDS = dict.fromkeys([f"docs/{name}.md" for name in ("classic", "jax", "keras", "tensorflow")], "processes")
"""What a page's first program needs of an engine, where not all have it."""

ENGINES = ("local", "inprocess", "ray")

pytestmark = [pytest.mark.long, pytest.mark.timeout(600), pytest.mark.about_local("engines that each test names")]


def read_first_program(page: Path) -> str:
    """Return the first block of Python of a page that runs, without the line that opens a session; empty if none."""
    found = re.search(r"(?:\A|\n)```python\n(.*?)\n```", page.read_text(), re.DOTALL)
    return "" if found is None else re.sub(r"^hocket\.init\(.*\)$", "", found[1], flags=re.MULTILINE)


FIRST = {str(page.relative_to(ROOT)): read_first_program(page) for page in PAGES}

RUNS = [
    pytest.param(
        engine,
        page,
        marks=[pytest.mark.skip(reason=engines.get_limits(engine)[NEEDS[page]])]
        if NEEDS.get(page) in engines.get_limits(engine)
        else [],
    )
    for engine in ENGINES
    for page, program in FIRST.items()
    if program
]


def test_no_page_opens_its_session_in_another_way() -> None:
    assert [page for page, program in FIRST.items() if "hocket.init(" in program] == []


@pytest.mark.parametrize(("engine", "page"), RUNS)
def test_a_first_program_runs_twice(engine: str, page: str, tmp_path: Path) -> None:
    script = tmp_path / f"{Path(page).name}.py"  # as jax.py it would be what `import jax` finds
    script.write_text(FIRST[page])
    environment = {**os.environ, "HOCKET_ENGINE": engine, "HOME": str(tmp_path), "HOCKET_PROGRESS": "off"}
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, script.name],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=280,
        )
        assert done.returncode == 0, done.stderr
