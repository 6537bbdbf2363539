"""What the reference has to show: the public modules, their names, and the public methods of their classes.

It reads the sources, so that it needs none of the frameworks; inherited methods count where the base class is one of
ours. `tools/site_reference.py` makes the pages from it, and fails where a page that it has built lacks a name;
``tests/test_reference.py`` compares it with what Python itself finds in the modules.

    python tools/reference.py [--check]
"""

from __future__ import annotations

import argparse
import ast
import functools
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src"

MODULES = {
    "hocket": "Core",
    "hocket.exceptions": "Exceptions",
    "hocket.actor": "Core: types of actors",
    "hocket.runtime_env": "Core: runtime environments",
    "hocket.dag": "Core: graphs of calls",
    "hocket.cloudpickle": "Core: pickles",
    "hocket.train": "Training",
    "hocket.train.torch": "Training: PyTorch",
    "hocket.train.keras": "Training: Keras",
    "hocket.train.jax": "Training: JAX",
    "hocket.train.tensorflow": "Training: TensorFlow",
    "hocket.train.tensorflow.keras": "Training: Keras of TensorFlow",
    "hocket.train.lightning": "Training: Lightning",
    "hocket.train.huggingface.transformers": "Training: Hugging Face",
    "hocket.train.xgboost": "Training: XGBoost",
    "hocket.train.lightgbm": "Training: LightGBM",
    "hocket.train.horovod.torch": "Training: Horovod's verbs for PyTorch",
    "hocket.train.horovod.keras": "Training: Horovod's verbs for Keras",
    "hocket.train.horovod.jax": "Training: Horovod's verbs for JAX",
    "hocket.train.strategies": "Training: strategies",
    "hocket.train.callbacks": "Training: callbacks",
    "hocket.train.loggers": "Training: loggers",
    "hocket.train.backend": "Training: backends",
    "hocket.train.collective": "Training: meetings of ranks",
    "hocket.ps": "Parameter servers",
    "hocket.data": "Data",
    "hocket.data.preprocessors": "Data: preprocessors",
    "hocket.data.preprocessor": "Data: the base of preprocessors",
    "hocket.data.aggregate": "Data: aggregates",
    "hocket.data.expressions": "Data: expressions",
    "hocket.data.grouped_data": "Data: groups",
    "hocket.data.iterator": "Data: iterators",
    "hocket.data.block": "Data: blocks",
    "hocket.data.context": "Data: settings",
    "hocket.data.datasource": "Data: sources and sinks",
    "hocket.collective": "Collectives",
    "hocket.collective.torch": "Collectives: PyTorch's backend",
    "hocket.mesh": "Meshes",
    "hocket.mesh.tensorflow": "Meshes: TensorFlow's own",
    "hocket.tune": "Searches",
    "hocket.tune.schedulers": "Searches: schedulers",
    "hocket.tune.search": "Searches: searchers",
    "hocket.tune.search.optuna": "Searches: Optuna",
    "hocket.tune.search.sample": "Searches: kinds of domains",
    "hocket.tune.search.space": "Searches: spaces",
    "hocket.tune.simulation": "Searches: simulation",
    "hocket.tune.stopper": "Searches: stoppers",
    "hocket.tune.logger": "Searches: loggers",
    "hocket.tune.integration.ray_train": "Searches: trainers in trials",
    "hocket.tune.integration.pytorch_lightning": "Searches: Lightning in trials",
    "hocket.tune.integration.lightgbm": "Searches: LightGBM in trials",
    "hocket.tune.integration.xgboost": "Searches: XGBoost in trials",
    "hocket.util": "Util",
    "hocket.util.multiprocessing": "Util: pools",
    "hocket.util.joblib": "Util: joblib",
    "hocket.util.queue": "Util: queues",
    "hocket.util.metrics": "Util: metrics",
    "hocket.util.prometheus": "Util: Prometheus",
    "hocket.util.state": "Util: state",
    "hocket.util.placement_group": "Util: placement groups",
    "hocket.util.scheduling_strategies": "Util: scheduling strategies",
    "hocket.util.collective": "Util: collectives under Ray's names",
    "hocket.observe.notebook": "Looking: curves in notebooks",
    "hocket.observe.report": "Looking: reports",
    "hocket.observe.telemetry": "Looking: OpenTelemetry",
    "hocket.spark": "Spark",
    "hocket.testing": "Testing",
    "hocket.testing.cluster": "Testing: clusters",
}
"""The modules that users import, and what their pages are called."""

FOREIGN = {"hocket.collective.torch.process_group.ProcessGroup": "torch.distributed.ProcessGroup"}
"""Classes whose methods a framework declares, documents and calls."""


_MOMENTS = ("epoch", "train", "test", "predict", "train_batch", "test_batch", "predict_batch")

BUILT = {
    "hocket.train.frameworks.report_callback.ReportMixin": (
        tuple(f"on_{moment}_{end}" for moment in _MOMENTS for end in ("begin", "end")),
        "Keras calls it. It reports if the moment was chosen.",
    )
}
"""Methods that a loop builds, which the sources do not show, and what is to be said of them."""


class Found(NamedTuple):
    """Where a name leads: a module, or a definition in one."""

    module: str
    node: ast.AST | None
    owner: str | None = None
    """The class that has it."""

    @property
    def path(self) -> str:
        """Its full name."""
        names = (self.module, self.owner, getattr(self.node, "name", None))
        return ".".join(name for name in names if name is not None)


@functools.cache
def parse(module: str) -> ast.Module | None:
    """Return a module's program, or None if there is no such module."""
    path = SOURCES.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text()) if file.exists() else None


def walk(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a body, and of what is in an ``if`` or ``try`` of it."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try):
            yield from walk([*node.body, *node.orelse])


def assigned(node: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement gives a value."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    yield from (target.id for target in targets if isinstance(target, ast.Name))


def list_public(module: str) -> list[str]:
    """Return the names of a module that are for use: what it re-exports with ``as``, and what it defines itself."""
    tree = parse(module)
    assert tree is not None, module
    names = {name for node in walk(tree.body) for name in _list_names(node) if not name.startswith("_")}
    return sorted(names, key=str.lower)


def _list_names(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.ImportFrom) and node.module is not None:
        for one in node.names:
            if one.asname == one.name and parse(f"{node.module}.{one.name}") is None:
                yield one.name
    elif isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
        yield node.name
    else:
        yield from assigned(node)


@functools.cache
def resolve(module: str, name: str) -> Found | None:
    """Return where a dotted name leads, as a module sees it; None if it is not ours."""
    first, _, rest = name.partition(".")
    found = _resolve_first(module, first)
    while rest and found is not None:
        first, _, rest = rest.partition(".")
        if found.node is None:
            found = _resolve_first(found.module, first) or _as_module(f"{found.module}.{first}")
        else:
            found = _resolve_member(found, first)
    return found


def _as_module(name: str) -> Found | None:
    return Found(name, None) if name.startswith("hocket") and parse(name) is not None else None


def _resolve_first(module: str, name: str) -> Found | None:
    tree = parse(module)
    # The last definition is the one that counts: those before it are overloads.
    for node in reversed(list(walk(tree.body if tree is not None else []))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef) and node.name == name:
            return Found(module, node)
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for one in node.names:
                if (one.asname or one.name) == name:
                    return _as_module(f"{node.module}.{one.name}") or (
                        resolve(node.module, one.name) if node.module.startswith("hocket") else None
                    )
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None and name in assigned(node):
            value = node.value.func if isinstance(node.value, ast.Call) else node.value
            found = resolve(module, ast.unparse(value)) if isinstance(value, ast.Name | ast.Attribute) else None
            return found or Found(module, node)
    return None


def _resolve_member(found: Found, name: str) -> Found | None:
    return list_members(found).get(name) if isinstance(found.node, ast.ClassDef) else None


def list_members(found: Found) -> dict[str, Found]:
    """Return the public functions of a class, inherited ones too: by each name, the definition with a docstring.

    What the class inherits from elsewhere, such as `dict` or a framework, is not ours to document.
    """
    members: dict[str, Found] = {}
    for one in list_classes(found):
        assert isinstance(one.node, ast.ClassDef)
        names, said = BUILT.get(one.path, ((), ""))
        members |= {name: _build(one, name, said) for name in names if name not in members}
        for node in walk(one.node.body):
            if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("refusals.build_method("):
                members |= {name: _build(one, name, "Not here, as in Ray: it raises.") for name in assigned(node)}
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
                known = members.get(node.name)
                if known is None or (get_docstring(known) is None and ast.get_docstring(node) is not None):
                    members[node.name] = Found(one.module, node, one.node.name)
            elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Name | ast.Attribute):
                other = ast.unparse(node.value)
                value = members.get(other) or resolve(one.module, other)
                if value is not None and isinstance(value.node, ast.FunctionDef):
                    members |= {name: value for name in assigned(node) if name[0] != "_" and name not in members}
    return members


def _build(owner: Found, name: str, text: str) -> Found:
    return Found(owner.module, ast.parse(f'def {name}(self):\n    """{text}"""').body[0], owner.path.split(".")[-1])


def list_classes(found: Found) -> list[Found]:
    """Return a class and its bases that are ours, nearest first."""
    classes = [found]
    assert isinstance(found.node, ast.ClassDef)
    for base in found.node.bases:
        plain = base.value if isinstance(base, ast.Subscript) else base
        other = resolve(found.module, ast.unparse(plain))
        if other is not None and isinstance(other.node, ast.ClassDef) and other != found:
            classes += [one for one in list_classes(other) if one not in classes]
    return classes


def find_foreign(module: str, name: str) -> str | None:
    """Return which module a public name comes from if it is somebody else's."""
    tree = parse(module)
    for node in walk(tree.body if tree is not None else []):
        if not isinstance(node, ast.ImportFrom) or str(node.module).startswith("hocket"):
            continue
        if any(one.asname == name for one in node.names):
            return node.module
    return None


def get_docstring(found: Found) -> str | None:
    """Return the docstring of a definition."""
    has = isinstance(found.node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef)
    return ast.get_docstring(found.node) if has else None  # type: ignore[arg-type]  # `has` says that it can have one


def list_expected() -> dict[str, list[str]]:
    """Return for each public module the full names that its page has to show."""
    expected = {}
    for module in MODULES:
        names = []
        for name in list_public(module):
            names.append(f"{module}.{name}")
            found = resolve(module, name)
            if found is not None and isinstance(found.node, ast.ClassDef):
                names += [f"{module}.{name}.{member}" for member in list_members(found)]
        expected[module] = names
    return expected


def list_undocumented() -> list[str]:
    """Return the classes, functions and methods that a page shows without a word."""
    shown = [found for module in MODULES for name in list_public(module) if (found := resolve(module, name))]
    classes = [found for found in shown if isinstance(found.node, ast.ClassDef) and found.path not in FOREIGN]
    shown += [
        one
        for found in classes
        for one in list_members(found).values()
        if not one.path.split(".")[-1].startswith("test_")
    ]
    can = ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef
    return sorted({one.path for one in shown if isinstance(one.node, can) and get_docstring(one) is None})


def list_imports() -> dict[str, str]:
    """Return what pages and programs import of this package, or name in full in backticks, and one place that does."""
    imports: dict[str, str] = {}
    folders = ("", "tutorials/", "coming_from/")
    pages = [ROOT / "README.md", *(page for folder in folders for page in ROOT.glob(f"docs/{folder}*.md"))]
    for path in [*pages, *ROOT.glob("examples/*.py")]:
        text = path.read_text()
        blocks = re.findall(r"^```python[^\n]*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        written = re.findall(r"`(hocket(?:\.\w+)+)", text) if path.suffix == ".md" else []
        imports |= {name: path.name for name in written if parse(name) is None}
        for block in blocks if path.suffix == ".md" else [text]:
            for node in ast.walk(ast.parse(block)):
                if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "hocket":
                    imports |= {f"{node.module}.{one.name}": path.name for one in node.names}
                elif isinstance(node, ast.Import):
                    imports |= {one.name: path.name for one in node.names if one.name.startswith("hocket.")}
    return imports


def build_command_page(parser: argparse.ArgumentParser) -> str:
    """Return the page of the command line: what each command says of itself and of its arguments."""
    lines = ["# The command line", "", str(parser.description), ""]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                lines += [f"## hocket {name}", "", *_describe_command(command)]
    return "\n".join(lines)


def _describe_command(command: argparse.ArgumentParser) -> Iterator[str]:
    yield from (str(command.description), "", "```text", command.format_usage().strip(), "```", "")
    nested = []
    rows = []
    for action in command._actions:
        if isinstance(action, argparse._SubParsersAction):
            nested = list(action.choices.items())
        elif action.help != argparse.SUPPRESS:
            words = action.option_strings or [str(action.metavar or action.dest)]
            value = f" {action.metavar or action.dest.upper()}" if action.option_strings and action.nargs != 0 else ""
            text = " ".join(str(action.help or "").split()) % {**vars(action), "prog": command.prog}
            cells = (", ".join(f"`{word}{value}`" for word in words), text)
            rows.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    yield from ("| argument | what it does |", "|---|---|", *rows, "")
    for name, below in nested:
        yield from (f"### {command.prog} {name}", "", *_describe_command(below))


def list_faults() -> list[str]:
    """Return what is wrong: empty pages, names without a docstring, and imports that no page shows."""
    expected = list_expected()
    shown = {name for names in expected.values() for name in names} | set(MODULES)
    faults = [f"{module} has no public name" for module, names in expected.items() if not names]
    faults += [f"{name} has no docstring" for name in list_undocumented()]
    parents = {module[: dot.start()] for module in MODULES for dot in re.finditer(r"\.", module)}
    named = list_imports().items()
    return faults + [f"{name} of {page} is on no page" for name, page in named if name not in shown | parents]


def main() -> int:
    """Print the names, or what is wrong."""
    if "--check" not in sys.argv[1:]:
        print(*(name for names in list_expected().values() for name in names), sep="\n")
        return 0
    faults = list_faults()
    print(*faults, sep="\n")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
