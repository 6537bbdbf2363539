"""The page on security lists each place that touches what other users of a machine can reach: temporary files, folders
that are removed, locks and sockets. Each has its reason there, and a new one needs one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import hocket

PAGE = Path(__file__).parent.parent / "docs" / "security.md"
HEADING = "## Temporary folders, locks and sockets"
SOURCE = Path(hocket.__file__).parent

TEMPORARY = (
    *("mkdtemp", "mkstemp", "mktemp", "TemporaryDirectory", "TemporaryFile", "NamedTemporaryFile"),
    *("SpooledTemporaryFile", "gettempdir", "WorkingFolder"),
)
LOCKS = ("flock", "lockf")
SOCKETS = (
    *("create_server", "create_connection", "listen", "accept", "socketpair", "mkfifo", "Listener", "TCPStore"),
    *("get_distributed_runtime_service", "make_gloo_tcp_collectives"),
)
ENDS = ("bind", "connect", "Client")
"""Methods of sockets, and of much else: they count in modules that import sockets."""

CALLS = frozenset((*TEMPORARY, *LOCKS, *SOCKETS))
SHARED = re.compile(r"/(var/)?tmp\b|/dev/shm\b")
WORDS = re.compile(rf"{SHARED.pattern}|\b({'|'.join([*sorted(CALLS), 'socket', 'connection'])})\b")
"""One of these is in each module that has such a place."""
ROW = re.compile(r"\| `(?P<file>[\w/]+\.py)` (?P<functions>[^|]+) \| (?P<what>[^|]+) \| (?P<reason>[^|]+) \|")


def list_places() -> set[tuple[str, str, str]]:
    """Return file, function and call of each place."""
    texts = {path: path.read_text() for path in SOURCE.rglob("*.py")}
    return {
        (path.relative_to(SOURCE).as_posix(), function, call)
        for path, text in texts.items()
        if WORDS.search(text)  # most have none, and to parse all of them takes seconds
        for function, call in walk(ast.parse(text))
    }


def walk(module: ast.Module) -> Iterator[tuple[str, str]]:
    names = {alias.name for node in ast.walk(module) if isinstance(node, ast.Import) for alias in node.names}
    names |= {
        alias.name
        for node in ast.walk(module)
        if isinstance(node, ast.ImportFrom) and node.module in ("multiprocessing", "socket")
        for alias in node.names
    }
    calls = CALLS | set(ENDS) if names & {"socket", "connection"} else CALLS
    yield from walk_part(module, "", calls)


def walk_part(part: ast.AST, function: str, calls: frozenset[str] | set[str]) -> Iterator[tuple[str, str]]:
    for node in ast.iter_child_nodes(part):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue  # a docstring
        inner = function
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = f"{function}.{node.name}".lstrip(".")
        if isinstance(node, ast.Call):
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            if name in calls:
                yield function, name
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and SHARED.match(node.value):
            yield function, node.value
        yield from walk_part(node, inner, calls)


def list_rows() -> dict[tuple[str, str, str], str]:
    """Return the reason of each place that the page has."""
    text = PAGE.read_text(encoding="utf-8")
    section = text[text.index(HEADING) :].partition("\n## ")[0]
    rows = {}
    for found in ROW.finditer(section):
        for function in re.findall(r"`([\w.]*)`", found["functions"]) or [""]:
            for call in re.findall(r"`([^`]+)`", found["what"]):
                rows[found["file"], function, call] = found["reason"].strip()
    return rows


def test_each_place_has_its_reason_on_the_page() -> None:
    places, rows = list_places(), list_rows()
    assert places - rows.keys() == set(), "say on docs/security.md why nobody else can use them"
    assert rows.keys() - places == set(), "they are no more"
    assert all(rows.values())


def test_a_new_place_is_found() -> None:
    source = '''
import socket, tempfile
class A:
    def f(self):
        """Say /tmp."""
        with tempfile.TemporaryDirectory() as folder:
            socket.socket().bind(("", 0))
        open("/tmp/a")
def g(op):
    fcntl.flock(1, 2)
'''
    found = set(walk(ast.parse(source)))
    assert found == {
        ("A.f", "TemporaryDirectory"),
        ("A.f", "bind"),
        ("A.f", "/tmp/a"),
        ("g", "flock"),
    }
    assert set(walk(ast.parse("def g(op):\n    return op.bind(1)"))) == set(), "it has no socket"
