"""Write docs/frameworks.md: what each framework does with each strategy on each engine, from the results of
tests/matrix.

Each engine's results are in a junit file that pytest wrote: ``FOLDER/local-matrix.xml`` and ``FOLDER/ray-matrix.xml``.
The properties of a test are its cells.

    python tools/frameworks.py FOLDER docs/frameworks.md
"""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as ET

import prose

ENGINES = ("local", "ray")

FEATURES = ("report", "checkpoint", "resume", "kill a rank", "exact evaluation")

PACKAGES = ("torch", "tensorflow-cpu", "tf-keras", "keras", "jax", "ray")


class Row(NamedTuple):
    """What one test found."""

    framework: str
    strategy: str
    engine: str
    cells: dict[str, str]
    """By feature: ``passes``, ``fails``, or why it is not there."""
    seconds: str
    """How long after a rank was killed its name was told; empty if none was."""


def read_rows(path: Path, engine: str) -> Iterator[Row]:
    """Give the rows of a junit file."""
    for case in ET.parse(path).iter("testcase"):  # noqa: S314 (our own results)
        match = re.fullmatch(r"test_cells\[(.+)-(\w+)\]", case.get("name", ""))
        if match is None:
            continue
        found = {str(one.get("name")): str(one.get("value")) for one in case.iter("property")}
        whole = found.get("reason")
        cells = {feature: whole or found.get(feature, "fails") for feature in FEATURES}
        yield Row(match[1], match[2], engine, cells, found.get("seconds to the name of the killed rank", ""))


def build_page(rows: list[Row]) -> str:
    """Return the page."""
    reasons = list(
        dict.fromkeys(cell for row in rows for cell in row.cells.values() if cell not in ("passes", "fails"))
    )
    lines = [
        "# Frameworks",
        "",
        (
            "The same training function, one for each framework (`tests/matrix/programs.py`), with two ranks: it "
            "reports after each epoch with a checkpoint, in the second epoch rank 1 is killed with"
        ),
        (
            "SIGKILL, the run goes on from the last checkpoint, and in the end all ranks evaluate together. A cell "
            "says whether that feature did what it should."
        ),
        "",
        "- *report*: the result has the metrics of each epoch, once;",
        "- *checkpoint*: numpy alone reads the weights from it, and they are the model's;",
        "- *resume*: the second attempt begins with the epoch that was not done;",
        (
            "- *kill a rank*: the failure names the rank, and on the local engine the signal; in brackets how many "
            "seconds after it was killed;"
        ),
        "- *exact evaluation*: the accuracy over all ranks' rows is that of one process, to the last digit.",
        "",
        f"| framework | strategy | engine | {' | '.join(FEATURES)} |",
        f"|---|---|---|{'---|' * len(FEATURES)}",
    ]
    for row in rows:
        shown = [_show(row, feature, reasons) for feature in FEATURES]
        lines.append(f"| {row.framework} | {row.strategy} | {row.engine} | {' | '.join(shown)} |")
    lines += ["", *(f"{number}. {reason}." for number, reason in enumerate(reasons, start=1)), "", _tell_origin(), ""]
    return prose.wrap("\n".join(lines))


def _show(row: Row, feature: str, reasons: list[str]) -> str:
    cell = row.cells[feature]
    if cell == "passes":
        return f"✓ ({row.seconds})" if feature == "kill a rank" else "✓"
    return "**fails**" if cell == "fails" else f"({reasons.index(cell) + 1})"


def _tell_origin() -> str:
    commit = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True)  # noqa: S607 (git is looked up on PATH)
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)
    return (
        f"`make frameworks` made this page from the results of commit `{commit.stdout.strip()}` with Python "
        f"{platform.python_version()}, {versions} on {platform.system()}. It is never edited by hand."
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the page of frameworks from junit results.")
    parser.add_argument("folder", type=Path, help="where the results are: local-matrix.xml, ray-matrix.xml")
    parser.add_argument("page", type=Path, help="the page to write")
    given = parser.parse_args()
    by_engine = {engine: list(read_rows(given.folder / f"{engine}-matrix.xml", engine)) for engine in ENGINES}
    rows = [row for pair in zip(*by_engine.values(), strict=True) for row in pair]
    given.page.write_text(build_page(rows))
    failed = sum(cell == "fails" for row in rows for cell in row.cells.values())
    print(f"{given.page}: {len(rows) * len(FEATURES)} cells, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
