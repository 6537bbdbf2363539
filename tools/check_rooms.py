"""Fail when the docstring of a package names a module that is not there.

Such a docstring is the plan of a room. A word in single backticks there is a module or package below it, or a name that
it offers; what is somebody else's stands in double backticks, or has its package before it.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

WORD = re.compile(r"(?<!`)`([a-z][a-z0-9_]*)`(?!`)")


def list_names(tree: ast.Module) -> Iterator[str]:
    """Yield the names that a module defines or imports at its top."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value  # in `__all__`, or a table of what is imported on use


def list_modules(folder: Path) -> set[str]:
    """Return the modules and packages below a folder."""
    return {path.stem for path in folder.rglob("*") if path.suffix == ".py" or path.is_dir()}


def main(root: Path = Path("src/hocket")) -> int:
    frameworks = list_modules(root / "train" / "frameworks")  # a framework's package of public names says what is there
    count = 0
    for path in sorted(root.rglob("__init__.py")):
        tree = ast.parse(path.read_text(), str(path))
        known = {*list_modules(path.parent), *list_names(tree), *(frameworks if path.parts[-3] == "train" else ())}
        for word in WORD.findall(ast.get_docstring(tree) or ""):
            if word not in known:
                print(f"{path}:1: `{word}` is no module here, and no name that the package offers")
                count += 1
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
