"""The page of programs names the tests that there are, what they run, and how closely they compare."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "tests" / "programs"


def read_rows() -> list[list[str]]:
    lines = (ROOT / "docs" / "programs.md").read_text().splitlines()
    table = [line for line in lines if line.startswith("| ")]
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in table[1:]]


@pytest.mark.slow
def test_each_row_names_a_test_and_each_test_has_a_row() -> None:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", str(FOLDER)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    collected = re.findall(r"^tests/programs/(\S+::\S+)$", done.stdout, re.MULTILINE)
    assert len(collected) >= 12, (done.stdout, done.stderr)
    assert sorted(row[-1].strip("`") for row in read_rows()) == sorted(collected)


def test_the_programs_are_where_the_page_says_under_the_licence_that_it_says() -> None:
    for row in read_rows():
        for path in re.findall(r"`(\S+\.py)`", row[0]):
            package = path.split("/")[0]
            if package == path:
                assert row[2] in (ast.get_docstring(ast.parse((FOLDER / "scripts" / path).read_text())) or ""), path
            elif (found := importlib.util.find_spec(package)) is not None and found.origin is not None:
                assert Path(found.origin).parents[1].joinpath(path).exists(), path
                told = importlib.metadata.metadata(package)
                assert "Apache" in str([*told.get_all("License", []), *told.get_all("License-Expression", [])]), path
                assert row[2] == "Apache-2.0", path


def test_only_what_is_compared_with_a_tolerance_is_said_to_be() -> None:
    for row in read_rows():
        file, name = row[-1].strip("`").split("[")[0].split("::")
        text = (FOLDER / file).read_text()
        function = next(node for node in ast.parse(text).body if getattr(node, "name", None) == name)
        source = ast.get_source_segment(text, function) or ""
        tolerances = set(re.findall(r"rel=(1e-\d)", source))
        assert row[5] == (f"to {tolerances.pop()}" if tolerances else row[5]), name
        assert ("approx" in source) == row[5].startswith("to "), name
        assert not tolerances, name
