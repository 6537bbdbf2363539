"""What the site has besides the pages of ``docs``: a page of reference for each public module, made of the docstrings,
and the programs of ``examples``. A hook of MkDocs, and an extension of Griffe, which reads docstrings for it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src"

MODULES = {
    "hocket": "Core",
    "hocket.exceptions": "Exceptions",
    "hocket.train": "Training",
    "hocket.train.torch": "Training: PyTorch",
    "hocket.train.keras": "Training: Keras",
    "hocket.train.jax": "Training: JAX",
    "hocket.train.tensorflow": "Training: TensorFlow",
    "hocket.train.lightning": "Training: Lightning",
    "hocket.train.huggingface": "Training: Hugging Face",
    "hocket.train.xgboost": "Training: XGBoost",
    "hocket.train.lightgbm": "Training: LightGBM",
    "hocket.train.horovod": "Training: Horovod's verbs",
    "hocket.ps": "Parameter servers",
    "hocket.data": "Data",
    "hocket.data.preprocessors": "Data: preprocessors",
    "hocket.data.aggregate": "Data: aggregates",
    "hocket.collective": "Collectives",
    "hocket.mesh": "Meshes",
    "hocket.tune": "Searches",
    "hocket.tune.schedulers": "Searches: schedulers",
    "hocket.tune.search": "Searches: searchers",
    "hocket.util": "Util",
    "hocket.util.multiprocessing": "Util: pools",
    "hocket.util.queue": "Util: queues",
    "hocket.util.metrics": "Util: metrics",
    "hocket.dag": "Graphs of calls",
    "hocket.spark": "Spark",
    "hocket.testing": "Testing",
}
"""The modules that users import, and what their pages are called."""


def list_public(module: str) -> list[str]:
    """Return the names of a module that are for use: what it re-exports with ``as``, and what it defines itself."""
    path = SOURCES.joinpath(*module.split("."))
    tree = ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text())
    return sorted({name for name in _list_names(tree) if not name.startswith("_")}, key=str.lower)


def _list_names(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.count("."):
            yield from (one.asname for one in node.names if one.asname is not None)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            yield node.name


def on_config(config: Any) -> Any:
    """Add the pages to the navigation."""
    pages = [{title: f"reference/{module}.md"} for module, title in MODULES.items()]
    config.nav.append({"Reference": ["reference/index.md", *pages]})
    programs = sorted(path.stem for path in ROOT.glob("examples/*.py"))
    config.nav.append({"Examples": [f"examples/{name}.md" for name in programs]})
    notes = sorted(path.name for path in Path(config.docs_dir, "design").glob("0*.md"))
    config.nav.append({"Design": ["design/README.md", *(f"design/{name}" for name in notes)]})
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages to those of ``docs``."""
    rows = []
    for module, title in MODULES.items():
        names = list_public(module)
        text = f"# {title}\n\n`import {module}`\n\n" + "\n".join(f"::: {module}.{name}\n" for name in names)
        files.append(File.generated(config, f"reference/{module}.md", content=text))
        rows.append(f"| [{title}]({module}.md) | `{module}` | {len(names)} |")
    for program in sorted(ROOT.glob("examples/*.py")):
        text = f"# {program.name}\n\n```python\n{program.read_text()}```\n"
        files.append(File.generated(config, f"examples/{program.stem}.md", content=text))
    index = (
        "# Reference\n\nMade of the docstrings.\n\n| page | module | names |\n|---|---|--:|\n" + "\n".join(rows) + "\n"
    )
    files.append(File.generated(config, "reference/index.md", content=index))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Let links to programs lead to their pages, and leave out of a block's first line what `run_docs.py` reads there,
    with which the block would be no code."""
    markdown = re.sub(
        r"^```(python no-run|console fails)$", lambda line: line[0].split()[0], markdown, flags=re.MULTILINE
    )
    return re.sub(r"\]\((?:\.\./)?\.\./examples/(\w+)\.py\)", r"](examples/\1.md)", markdown)


class PlainExamples(griffe.Extension):
    """Has examples shown as programs: Griffe knows the section by its plural."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the heading."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r"^( *)Example:$", r"\1Examples:", obj.docstring.value, flags=re.MULTILINE)
