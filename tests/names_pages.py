"""Pages that say which of another system's names are there, and which are not, with the reason."""

from __future__ import annotations

import re
from pathlib import Path


def read(page: Path, heading: str) -> dict[str, tuple[list[str], list[str]]]:
    """Return of each section which names are there, and which are not."""
    found = {}
    for section in page.read_text().split(f"\n{heading} ")[1:]:
        title, _, text = section.partition("\n")
        there = " ".join(re.findall(r"^There: (.*?)\.$", text, re.DOTALL | re.MULTILINE))
        gone = " ".join(re.findall(r"^\| (`.*?) \|", text, re.MULTILINE))
        found[title.strip("`")] = (re.findall(r"`(\w+)`", there), re.findall(r"`(\w+)`", gone))
    return found
