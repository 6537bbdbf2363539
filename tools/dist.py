"""Builds the wheel and the sdist in dist/, from a copy of what git has: `python tools/dist.py [URL]`.

With the address of the repository, the README's links lead there, so that they work on a package index, and the address
is among the package's links. Without it the links stay as they are, for a trial.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def link(text: str, url: str, version: str) -> str:
    """Return a page whose links lead to a repository: pictures as they are, all else as pages."""

    def replace(found: re.Match[str]) -> str:
        kind = "raw" if found["mark"] else "blob"
        return f"{found['mark']}[{found['text']}]({url}/{kind}/v{version}/{found['target']})"

    return re.sub(r"(?P<mark>!?)\[(?P<text>[^\]]*)\]\((?!https?:|#)(?P<target>[^)]+)\)", replace, text)


def name_urls(project: str, url: str) -> str:
    """Return a pyproject.toml with the package's links."""
    urls = f'[project.urls]\nSource = "{url}"\nIssues = "{url}/issues"\nChanges = "{url}/blob/main/CHANGELOG.md"\n\n'
    return project.replace("[project.scripts]", f"{urls}[project.scripts]", 1)


def build(url: str, target: Path) -> list[Path]:
    """Build both; return where they are."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "hocket")
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(copy)], check=True)  # noqa: S607 (git is looked up on PATH)
        if url:
            project = copy / "pyproject.toml"
            version = re.search(r'^version = "(.*)"$', project.read_text(), re.MULTILINE)
            assert version is not None, "pyproject.toml has a version"
            readme = copy / "README.md"
            readme.write_text(link(readme.read_text(), url.rstrip("/"), version[1]))
            project.write_text(name_urls(project.read_text(), url.rstrip("/")))
        subprocess.run([sys.executable, "-m", "build", "--outdir", str(target), str(copy)], check=True)
    return sorted(target.iterdir())


if __name__ == "__main__":
    print(*build(sys.argv[1] if len(sys.argv) > 1 else "", ROOT / "dist"), sep="\n")
