"""Fail where a page that was made from results is too old: it says from which commit, and this counts those since.

    python tools/ages.py [PAGE...]

`make parity` and `make frameworks` make such pages. They run for an hour and for ten minutes, so not with each change.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]

PAGES = (ROOT / "docs" / "parity.md", ROOT / "docs" / "frameworks.md")

MOST_COMMITS = 300
"""How many commits a page may be behind. Commits change what passes, and days do not. 300 are two days of work at its
fastest so far, 150 commits a day (counted), and `make parity` takes a machine for an hour."""

MADE_FROM = re.compile(r"\bcommit\s+`([0-9a-f]{7,40})`")


def run_git(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run git in a folder."""
    return subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=False)  # noqa: S607 (git is looked up on PATH)


def judge(page: Path) -> tuple[str, bool]:
    """Return how old a page is, in words, and whether it may be."""
    found = MADE_FROM.search(page.read_text())
    if found is None:
        return f"{page.name} does not say from which commit it was made. Write: commit `0123abcd`.", False
    counted = run_git("rev-list", "--count", f"{found[1]}..HEAD", folder=page.parent)
    if counted.returncode != 0:
        is_shallow = run_git("rev-parse", "--is-shallow-repository", folder=page.parent).stdout.strip() == "true"
        why = "this clone is shallow, so its age is unknown" if is_shallow else "it is no commit of this repository"
        return f"{page.name} is of commit {found[1]}: {why}.", is_shallow
    age = int(counted.stdout)
    told = f"{page.name} is of commit {found[1]}, {age} commits ago"
    if age > MOST_COMMITS:
        return f"{told}; the most is {MOST_COMMITS}. Make it again: make {page.stem}.", False
    return f"{told}.", True


def main() -> int:
    """Judge the pages."""
    judged = [judge(page) for page in [Path(name) for name in sys.argv[1:]] or PAGES]
    for text, _ in judged:
        print(text)
    return int(not all(may_be for _, may_be in judged))


if __name__ == "__main__":
    sys.exit(main())
