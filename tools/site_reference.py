"""What the site has besides the pages of ``docs``: a page of reference for each public module, made of the docstrings,
and the programs of ``examples``. A hook of MkDocs, and an extension of Griffe, which reads docstrings for it.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import Any

import griffe
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))  # a hook is loaded by its path

import reference
from hocket.cli import main
from hocket.train import trainer_docs

ROOT = reference.ROOT

COMMANDS = "reference/command_line.md"

TRAINER = "hocket.train.data_parallel_trainer.DataParallelTrainer"
"""The base of the frameworks' trainers, which complete their documentation from it."""

STYLE = ".md-grid { max-width: 76rem; }\n.md-typeset pre > code { font-size: 0.72em; }\n"
"""Programs have up to 120 columns, and are shown whole where the window is wide."""

PICTURE = re.compile(r'<picture>\s*<source [^>]*srcset="([^"]+)">\s*<img src="([^"]+)" alt="([^"]*)">\s*</picture>')
"""A picture for light and for dark pages, as GitHub takes it. On the site the reader's switch decides."""


def on_config(config: Any) -> Any:
    """Add the pages to the navigation."""
    pages = [{title: f"reference/{module}.md"} for module, title in reference.MODULES.items()]
    config.nav.append({"Reference": ["reference/index.md", {"The command line": COMMANDS}, *pages]})
    programs = sorted(path.stem for path in ROOT.glob("examples/*.py"))
    config.nav.append({"Examples": ["examples/index.md", *(f"examples/{name}.md" for name in programs)]})
    notes = sorted(path.name for path in Path(config.docs_dir, "design").glob("0*.md"))
    config.nav.append({"Design": ["design/README.md", *(f"design/{name}" for name in notes)]})
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages to those of ``docs``."""
    rows = []
    for module, title in reference.MODULES.items():
        names = reference.list_public(module)
        text = f"# {title}\n\n`import {module}`\n\n" + "\n".join(_show(module, name) for name in names)
        files.append(File.generated(config, f"reference/{module}.md", content=text))
        rows.append(f"| [{title}]({module}.md) | `{module}` | {len(names)} |")
    shown = ["# Examples", "", "Programs to run; tests run them.", "", "| program | what it shows |", "|---|---|"]
    for program in sorted(ROOT.glob("examples/*.py")):
        said = (ast.get_docstring(ast.parse(program.read_text())) or "").partition("\n\n")[0]
        shown.append(f"| [{program.name}]({program.stem}.md) | {' '.join(said.split())} |")
        text = f"# {program.name}\n\n```python\n{program.read_text()}```\n"
        files.append(File.generated(config, f"examples/{program.stem}.md", content=text))
    files.append(File.generated(config, COMMANDS, content=reference.build_command_page(main.build_parser())))
    files.append(File.generated(config, "site.css", content=STYLE))
    files.append(File.generated(config, "examples/index.md", content="\n".join(shown)))
    head = "# Reference\n\nMade of the docstrings; [the commands](command_line.md) of what they say with `--help`.\n\n"
    index = head + "| page | module | names |\n|---|---|--:|\n" + "\n".join(rows) + "\n"
    files.append(File.generated(config, "reference/index.md", content=index))
    return files


def _show(module: str, name: str) -> str:
    path, foreign = f"{module}.{name}", reference.find_foreign(module, name)
    return f"## {path} {{#{path}}}\n\nThat of `{foreign}`.\n" if foreign is not None else f"::: {path}\n"


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Let links to programs lead to their pages, and leave out of a block's first line what `run_docs.py` reads there,
    with which the block would be no code. The search finds design notes last: they are for those who change the code.
    """
    markdown = PICTURE.sub(r"![\3](\2#only-light)\n![The same in the dark](\1#only-dark)", markdown)
    if page.file.src_uri.startswith("design/"):
        page.meta["search"] = {"boost": 0.2}
    markdown = re.sub(
        r"^```(python no-run|console fails)$", lambda line: line[0].split()[0], markdown, flags=re.MULTILINE
    )
    return re.sub(r"\]\((?:\.\./)?\.\./examples/(\w+)\.py\)", r"](examples/\1.md)", markdown)


def on_post_build(config: Any) -> None:
    """Fail if a page that was built lacks a name that is public."""
    missing = []
    for module, names in reference.list_expected().items():
        html = Path(config.site_dir, "reference", f"{module}.html").read_text()
        shown = set(re.findall(r'\bid="([\w.]+)"', html))
        missing += [name for name in names if name not in shown]
    if missing:
        raise PluginError(f"{len(missing)} public names are on no page of the reference: {', '.join(missing)}")


class PublicNames(griffe.Extension):
    """Has the reference show all that is public, and examples as programs: Griffe knows that section by its plural.

    Griffe shows what has a docstring. A method that overrides another one has its docstring, a name that is another
    function's second one is that function, and a test of a contract is what its name says.
    """

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the heading of examples, and describe tests."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r"^( *)Example:$", r"\1Examples:", obj.docstring.value, flags=re.MULTILINE)
        elif obj.is_function and obj.name.startswith("test_"):
            obj.docstring = griffe.Docstring(f"{obj.name[5:].replace('_', ' ').capitalize()}.", parent=obj)

    def on_package(self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **_: Any) -> None:
        """Give second names their functions, and overriding methods their docstrings."""
        for module in reference.MODULES:
            for name in reference.list_public(module):
                found = reference.resolve(module, name)
                kind = type(found.node).__name__ if found is not None else ""
                if found is None or kind not in ("FunctionDef", "ClassDef"):
                    continue
                parent = _get_member(pkg, module)
                if name in parent.members and parent.members[name].is_attribute:
                    parent.set_member(name, griffe.Alias(name, target=found.path, parent=parent))
                if kind == "ClassDef":
                    self._describe_members(pkg, found)
                    self._complete_trainer(pkg, found)

    def _complete_trainer(self, pkg: griffe.Module, found: reference.Found) -> None:
        """Give a framework's trainer the documentation that it completes when it is imported."""
        base = next((one for one in reference.list_classes(found)[1:] if one.path == TRAINER), None)
        shown = _get_member(pkg, found.path)
        if base is not None and shown.docstring is not None:
            common = _get_member(pkg, base.path)
            own, shared = (
                [one.name for one in kind.members["__init__"].parameters if one.name not in ("self", "options")]
                for kind in (shown, common)
            )
            names = list(dict.fromkeys([*shared[:2], *own, *shared]))
            text = trainer_docs.complete(shown.docstring.value, common.docstring.value, names)
            shown.docstring = griffe.Docstring(text, parent=shown)

    def _describe_members(self, pkg: griffe.Module, found: reference.Found) -> None:
        shown = _get_member(pkg, found.path)
        for name, one in reference.list_members(found).items():
            text = reference.get_docstring(one)
            if text is None and found.path in reference.FOREIGN:
                text = f"As `{reference.FOREIGN[found.path]}.{name}`."
            for owner in reference.list_classes(found):
                members = _get_member(pkg, owner.path).members
                if name in members and not members[name].is_alias and members[name].docstring is None:
                    members[name].docstring = griffe.Docstring(text, parent=members[name]) if text is not None else None
            known = shown.all_members.get(
                name
            )  # Griffe looks for a base in the class itself, where a field may hide it
            if known is None or (known.is_attribute and "property" not in known.labels):
                owner = _get_member(pkg, f"{one.module}.{one.owner}") if one.owner else _get_member(pkg, one.module)
                defined = owner.members.get(one.path.split(".")[-1])
                made: Any = griffe.Alias(name, target=one.path, parent=shown)
                if defined is None or not defined.is_function:  # a method that is built
                    made = griffe.Function(name, docstring=griffe.Docstring(text or ""), parent=shown)
                shown.set_member(name, made)


def _get_member(pkg: griffe.Module, path: str) -> Any:
    found: Any = pkg
    for name in path.split(".")[1:]:
        found = found.members[name]
    return found
