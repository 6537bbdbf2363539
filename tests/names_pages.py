"""Pages that say which of another system's names are there, and which are not, with the reason."""

from __future__ import annotations

import ast
import contextlib
import inspect
import re
import textwrap
from pathlib import Path
from typing import Any


def read(page: Path, heading: str) -> dict[str, tuple[list[str], list[str]]]:
    """Return of each section which names are there, and which are not."""
    found = {}
    for section in page.read_text().split(f"\n{heading} ")[1:]:
        title, _, text = section.partition("\n")
        there = " ".join(re.findall(r"^There: (.*?)\.$", text, re.DOTALL | re.MULTILINE))
        gone = " ".join(re.findall(r"^\| (`.*?) \|", text, re.MULTILINE))
        found[title.strip("`")] = (re.findall(r"`(\w+)`", there), re.findall(r"`(\w+)`", gone))
    return found


def is_there(owner: object, name: str) -> bool:
    """Return whether a name is there for use: one that does nothing but refuse is not."""
    with contextlib.suppress(AttributeError, ImportError):
        return not only_refuses(getattr(owner, name))
    return False


def only_refuses(value: Any) -> bool:
    """Return whether all that a function does, or the constructor that a class has itself, is to raise."""
    made = value
    if isinstance(value, type):
        made = next((vars(value)[name] for name in ("__init__", "__new__") if name in vars(value)), None)
    made = inspect.unwrap(getattr(made, "__func__", made)) if made is not None else None
    if not inspect.isfunction(made) or not made.__module__.startswith("hocket") or made.__name__ == "<lambda>":
        return False
    try:
        (found,) = ast.parse(textwrap.dedent(inspect.getsource(made))).body
    except (OSError, SyntaxError):  # it was built, as by a dataclass
        return False
    body = found.body if isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef) else []
    if inspect.getdoc(made) is not None and body and isinstance(body[0], ast.Expr):
        body = body[1:] if isinstance(body[0].value, ast.Constant) else body
    return bool(body) and (isinstance(body[0], ast.Raise) or _calls_what_raises(made, body[0]))


def _calls_what_raises(made: Any, line: ast.stmt) -> bool:
    if not isinstance(line, ast.Expr) or not isinstance(line.value, ast.Call):
        return False
    called = made.__globals__.get(ast.unparse(line.value.func))
    return getattr(called, "__annotations__", {}).get("return") == "NoReturn"


def read_reasons(page: Path, heading: str) -> dict[str, dict[str, str]]:
    """Return of each section what is said of the names that are not there, as plain text."""
    found: dict[str, dict[str, str]] = {}
    for section in re.split(rf"^{heading} ", page.read_text(), flags=re.MULTILINE)[1:]:
        title, _, text = section.partition("\n")
        text = re.split(r"^#+ ", text, maxsplit=1, flags=re.MULTILINE)[0]
        said = ""
        for names, reason in re.findall(r"^\| (`.*?) \| (.*) \|$", text, re.MULTILINE):
            said = said if reason == "the same" else make_plain(reason)
            found.setdefault(title.strip("`"), {}).update(dict.fromkeys(re.findall(r"`([\w.]+)`", names), said))
    return found


def make_plain(text: str) -> str:
    """Return text of a page without its marks, as a message has it."""
    return re.sub(r"\[(.*?)\]\(.*?\)", r"\1", text).replace("`", "")
