"""Fail when a function imports one of our own modules.

import-linter sees such an import too, but a local one is how a cycle is dodged at run time: the layers hold on paper
and the program still depends on the order of calls. A framework's import may be deferred; ours may not.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def imported_names(node: ast.AST) -> list[str]:
    """The modules that an import statement names; a relative one starts with a dot."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return ["." * node.level + (node.module or "")]
    return []


def local_imports(tree: ast.Module, package: str) -> Iterator[tuple[int, str]]:
    """Line and name of each import of `package` inside a function body."""
    functions = (node for node in ast.walk(tree) if isinstance(node, FUNCTION))
    found = {
        (node.lineno, name)
        for function in functions
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in imported_names(node)
        if name.startswith(".") or name.split(".")[0] == package
    }
    yield from sorted(found)


def main(root: Path = Path("src")) -> int:
    count = 0
    for path in sorted(root.rglob("*.py")):
        package = path.relative_to(root).parts[0]
        for line, name in local_imports(ast.parse(path.read_text(), str(path)), package):
            print(f"{path}:{line}: {name} is imported inside a function; move it to the top of the module")
            count += 1
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
