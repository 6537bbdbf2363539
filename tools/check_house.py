"""Fail where the sources are hard to hold in mind, by figures that cutting a file in two does not improve.

- A class counts with all its ancestors here: a reader needs them all to know what ``self`` is.
- A folder has few modules side by side.
- A small module that one other module imports belongs into that one; some are allowed.
- An object's attributes are set by its own class.
- A docstring or comment begins with its subject, and names who acts: no "What is told".
- Names of other libraries that these do not document stand in ``hocket._base.internals``.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

CLASS_LINES: Final = 500
"""A class has so many lines at most, its ancestors included."""
FOLDER_MODULES: Final = 28
SMALL_LINES: Final = 80
SMALL_MODULES: Final = 30
"""So many modules may have fewer lines than `SMALL_LINES` and one importer."""
SET_FROM_OUTSIDE: Final = 10
SUBJECTLESS: Final = re.compile(
    r"^(?:What|Who|Whose|Whoever|Of what|Those|That which)\b(?!.*\?)"
    r"|\b(?:is|are|was|were) (?:told|asked|said|heard of|looked at|had)\b|\bnobody's\b|\bmanieth\b"
)

INTERNALS: Final = "hocket._base.internals"
STANDARD: Final = frozenset(
    [
        "_actions",
        "_asdict",
        "_choices_actions",
        "_fields",
        "_get_running_loop",
        "_make",
        "_replace",
        "_scheduled",
        "_selector",
    ]
)
"""Private names of Python's own library, and the public ones of named tuples."""

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class Module(NamedTuple):
    """A module of the package."""

    name: str
    path: Path
    text: str
    tree: ast.Module

    @property
    def package(self) -> str:
        """The package that relative names start from."""
        return self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]


def read_modules(root: Path) -> dict[str, Module]:
    """Return the modules below a package's folder, by their names."""
    modules = {}
    for path in sorted(root.rglob("*.py")):
        name = ".".join(path.relative_to(root.parent).with_suffix("").parts).removesuffix(".__init__")
        text = path.read_text()
        modules[name] = Module(name, path, text, ast.parse(text, str(path)))
    return modules


def list_imports(module: Module) -> Iterator[tuple[str, str]]:
    """Yield each imported name as it is called here, and in full."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from ((alias.asname or alias.name.partition(".")[0], alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)


def count_class_lines(modules: Mapping[str, Module]) -> dict[str, int]:
    """Return the lines of each class that has no subclass here, those of its ancestors included."""
    classes: dict[str, tuple[Module, ast.ClassDef]] = {}
    names: dict[str, dict[str, str]] = {}
    for module in modules.values():
        own = {node.name: f"{module.name}.{node.name}" for node in module.tree.body if isinstance(node, ast.ClassDef)}
        names[module.name] = dict(list_imports(module)) | own
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                classes[f"{module.name}.{node.name}"] = module, node

    def find_bases(name: str) -> set[str]:
        module, node = classes[name]
        found = set()
        for base in node.bases:
            plain = base.value if isinstance(base, ast.Subscript) else base
            first, _, rest = ast.unparse(plain).partition(".")
            full = ".".join(filter(None, [names[module.name].get(first, ""), rest]))
            seen: set[str] = set()
            while full not in classes and full not in seen:  # a package may re-export it
                seen.add(full)
                owner, _, last = full.rpartition(".")
                full = names.get(owner, {}).get(last, full)
            if full in classes:
                found |= {full} | (find_bases(full) if full != name else set())
        return found

    bases = {name: find_bases(name) for name in classes}
    parents = set().union(*bases.values())

    def count(name: str) -> int:
        node = classes[name][1]
        return (node.end_lineno or node.lineno) - node.lineno + 1

    return {name: sum(map(count, {name} | bases[name])) for name in classes if name not in parents}


def check_classes(modules: Mapping[str, Module]) -> Iterator[str]:
    """Yield the classes that are too large; suites of tests are lists, and may be."""
    for name, lines in count_class_lines(modules).items():
        if lines > CLASS_LINES and ".testing." not in name:
            yield f"{name} has {lines} lines with its ancestors, of {CLASS_LINES}: divide it into parts"


def check_folders(modules: Mapping[str, Module]) -> Iterator[str]:
    """Yield the folders that have too many modules side by side."""
    for folder, count in Counter(module.path.parent for module in modules.values()).items():
        if count > FOLDER_MODULES:
            yield f"{folder} has {count} modules, of {FOLDER_MODULES}: give those that belong together a folder"


def check_small_modules(modules: Mapping[str, Module]) -> Iterator[str]:
    """Yield the small modules with one importer, if there are too many."""
    importers: dict[str, set[str]] = defaultdict(set)
    for module in modules.values():
        for _, full in list_imports(module):
            for name in (full, full.rpartition(".")[0]):
                if name in modules and name != module.name:
                    importers[name].add(module.name)
    small = [
        f"{name} (by {min(found)})"
        for name, found in importers.items()
        if len(found) == 1 and modules[name].text.count("\n") < SMALL_LINES and modules[name].path.name != "__init__.py"
    ]
    if len(small) > SMALL_MODULES:
        yield (
            f"{len(small)} modules have fewer than {SMALL_LINES} lines and one importer, of {SMALL_MODULES}: move some "
            f"into that: {', '.join(small)}"
        )


def is_set_from_outside(node: ast.AST, made_here: set[str]) -> bool:
    """Tell whether a statement puts a method or a function of one object into another one."""
    if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Attribute):
        return False
    owner, value = node.targets[0].value, node.value
    is_part = isinstance(owner, ast.Attribute) and ast.unparse(owner.value) == "self"
    if not is_part and not (isinstance(owner, ast.Name) and owner.id in made_here):
        return False
    return isinstance(value, ast.Lambda) or (isinstance(value, ast.Attribute) and ast.unparse(value.value) == "self")


def check_attributes(modules: Mapping[str, Module]) -> Iterator[str]:
    """Yield the places that set attributes of other objects, if there are too many."""
    places = set()
    for module in modules.values():
        for function in ast.walk(module.tree):
            if isinstance(function, ast.FunctionDef):
                made = {
                    target.id
                    for node in ast.walk(function)
                    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
                    for target in node.targets
                    if isinstance(target, ast.Name)
                }
                for node in ast.walk(function):
                    if is_set_from_outside(node, made):
                        places.add(f"{module.path}:{getattr(node, 'lineno', 0)}")
    if len(places) > SET_FROM_OUTSIDE:
        yield (
            f"{len(places)} places set attributes of other objects, of {SET_FROM_OUTSIDE}: give the values to their "
            f"constructors: {', '.join(sorted(places))}"
        )


def check_words(modules: Mapping[str, Module]) -> Iterator[str]:
    """Yield the docstrings and comments without a subject, or whose verb has no agent."""
    for module in modules.values():
        documented = (node for node in ast.walk(module.tree) if isinstance(node, Definition | ast.Module))
        texts = [
            (node.body[0].lineno, re.split(r"(?:Args|Example):\n", found)[0])
            for node in documented
            if (found := ast.get_docstring(node))
        ]
        tokens = tokenize.generate_tokens(io.StringIO(module.text).readline)
        texts += [(one.start[0], one.string.lstrip("#: ")) for one in tokens if one.type == tokenize.COMMENT]
        for line, text in texts:
            if match := SUBJECTLESS.search(" ".join(text.split())):
                yield f"{module.path}:{line}: {match[0]!r}: name the thing as the subject, and who acts"


def list_own_names(modules: Mapping[str, Module]) -> set[str]:
    """Return the names that the package defines, stores or mentions in `__slots__`."""
    own = set()
    for module in modules.values():
        for node in ast.walk(module.tree):
            if isinstance(node, Definition):
                own.add(node.name)
            elif isinstance(node, ast.arg):
                own.add(node.arg)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                own.add(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                own.add(node.attr)
    return own


def is_private(dotted: str) -> bool:
    """Tell whether a part of a name is not for others, by its underscore or by being a library's ``src``."""
    return any(part == "src" or (part.startswith("_") and not part.startswith("__")) for part in dotted.split("."))


def check_internals(modules: Mapping[str, Module]) -> Iterator[str]:
    """Yield the uses of names of other libraries that these do not document."""
    own = list_own_names(modules) | STANDARD
    for module in modules.values():
        if module.name.startswith(INTERNALS):
            continue
        imports = dict(list_imports(module))
        for _, full in list_imports(module):
            root = full.partition(".")[0]
            if root != "hocket" and root not in sys.stdlib_module_names and is_private(full):
                yield f"{module.path}: {full} is no public name: move its use into {INTERNALS}"
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in own:
                root = imports.get(ast.unparse(node).partition(".")[0], "").partition(".")[0]
                if root not in sys.stdlib_module_names and root != "hocket":
                    yield (
                        f"{module.path}:{node.lineno}: {ast.unparse(node)} is no public name of another library: move "
                        f"its use into {INTERNALS}"
                    )


def main(root: Path = Path("src/hocket")) -> int:
    modules = read_modules(root)
    checks = check_classes, check_folders, check_small_modules, check_attributes, check_words, check_internals
    problems = [problem for check in checks for problem in check(modules)]
    print("\n".join(problems), end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
