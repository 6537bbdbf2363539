"""Names that somebody chose: whatever stands in them, commands show them, and end well."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hocket
from hocket._base import showing, texts
from hocket.cli import main
from hocket.observe.runs import log

pytestmark = pytest.mark.about_local("sessions that are looked at from outside, and files")

NAMES = {
    "half of a character": "\ud800x",
    "a megabyte": "m" * 1_000_000,
    "a megabyte of halves": "\udc80" * 1_000_000,
    "colours": "\x1b[31mred\x07",
    "colours in one byte": "\x9b31mred",
    "lines": "a\nb\r\x0bc\u2028d",
    "the other direction": "a\u202eb\u2066c",
    "nothing and backspaces": "a\x00b\x08\x08\x7f",
    "tags of HTML and of rich": "</script><b>[red]x[/red][/]",
    "letters": "é日𝄞",
}

MOST_SHOWN = 60_000
"""Letters that a command may print of the session: without cuts it would be millions."""

HARM = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def build_part(text: str, part: object) -> dict[str, Any]:
    return {"name": text, text: 1}


class Part:
    """What shows all names to viewers."""


@pytest.fixture(scope="module")
def session() -> Iterator[None]:
    """A session in which tasks, actors, resources and errors have these names."""
    hocket.init(num_cpus=2, resources=dict.fromkeys(NAMES.values(), 1))
    actor = hocket.remote(Named)
    handles = [actor.options(name=name, num_cpus=0).remote() for name in NAMES.values()]
    for handle, name in zip(handles, NAMES.values(), strict=True):
        with pytest.raises(ValueError, match="it is called"):
            hocket.get(handle.fail.remote(f"{name}: it is called so"))
    release = [hocket.remote(wait).options(name=name, num_cpus=0).remote(handles[0]) for name in NAMES.values()]
    parts = [Part() for _ in NAMES]
    for part, name in zip(parts, NAMES.values(), strict=True):
        showing.show("oddities", part, functools.partial(build_part, name))
    yield
    del release
    hocket.shutdown()


class Named:
    def fail(self, text: str) -> None:
        raise ValueError(text)


def wait(handle: Any) -> None:
    import threading

    threading.Event().wait()


COMMANDS = {
    "status": ["status"],
    "status for programs": ["status", "--json"],
    "top": ["top", str(os.getpid()), "--plain", "--count", "1"],
}


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize("command", COMMANDS)
def test_commands_show_a_session_with_odd_names(session: None, command: str, encoding: str) -> None:
    found = run(COMMANDS[command], encoding)
    if command == "status for programs":
        (one,) = [one for one in json.loads(found) if one["driver_pid"] == os.getpid()]
        assert len(one["snapshot"]["actors"]) == len(NAMES)
        assert len(json.dumps(one)) < 10 * MOST_SHOWN
        return
    if command == "status":  # there may be sessions beside this one
        (found,) = [part for part in found.split("Session of pid ") if part.startswith(str(os.getpid()))]
    assert len(found) < MOST_SHOWN
    for shown in ("\\ud800x", "\\x1b[31mred\\x07", "a\\nb", "a\\u202eb", "<b>[red]x"):
        assert shown in found.replace("\n", ""), shown


@pytest.mark.slow
def test_the_dashboard_answers_with_odd_names(session: None) -> None:
    pytest.importorskip("starlette", reason="needs hocket[dashboard]")
    from starlette import requests

    from hocket.observe import searches, training, watching
    from hocket.observe.dashboard import app

    watch = watching.Watch(os.getpid())
    pages = app.Pages(watch, training.Runs(), searches.Searches())
    query = f"pid={os.getpid()}&seconds=0&width=100&process={os.getpid()}".encode()
    request = requests.Request({"type": "http", "query_string": query, "headers": [], "method": "GET", "path": "/"})
    for answer in (pages.list_sessions, pages.show_now, pages.draw, pages.show_parts, pages.show_stack):
        found = answer(request)
        assert found.status_code == 200
        json.loads(bytes(found.body))
        assert len(found.body) < 10 * MOST_SHOWN, answer.__name__
    watch.close()


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize("command", ["runs", "runs for programs", "runs by a metric that is not there", "report"])
@pytest.mark.parametrize("odd", NAMES)
def test_commands_show_runs_with_odd_names(
    tmp_path: Path,
    capfdbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
    odd: str,
    command: str,
    encoding: str,
) -> None:
    folder = tmp_path / f"run{NAMES[odd][:20]}".replace("/", "").replace("\0", "")
    try:
        folder.mkdir()
    except UnicodeEncodeError:  # no file can have that name
        folder = tmp_path / "run"
        folder.mkdir()
    write_log(folder, NAMES[odd])
    arguments = {
        "runs": ["runs", str(folder), "--metric", NAMES[odd]],
        "runs for programs": ["runs", str(folder), "--json"],
        "runs by a metric that is not there": ["runs", str(folder), "--sort", "none"],
        "report": ["report", str(folder), "--output", str(tmp_path / "report.html")],
    }[command]
    monkeypatch.setattr(sys, "stdout", open(os.dup(1), "w", encoding=encoding))  # noqa: SIM115, PTH123
    code = main.main(arguments)
    sys.stdout.close()
    out, err = capfdbinary.readouterr()
    assert code == (1 if "not there" in command else 0), err[:1000]
    assert len(out) + len(err) < (10 if command == "runs for programs" else 1) * MOST_SHOWN
    assert not HARM.search(out.decode(encoding) + err.decode())
    if command == "report":
        page = (tmp_path / "report.html").read_text(encoding="utf-8")
        assert len(page) < 1_000_000
        assert "</script><b>" not in page


def write_log(folder: Path, name: str) -> None:
    """Write a log such as anybody may leave."""
    lines: list[dict[str, object]] = [
        {"is": "run", "at": 1.0, "name": name, "pid": 0, "config": {name: name}, "start": None},
        {"is": "attempt", "at": 1.0, "number": 0, "ranks": 1, "kept": 0},
        {"is": "row", "at": 2.0, "metrics": [{name: 1.0, "text": name}], "late": [0.0], "checkpoint": name},
        {"is": "failure", "at": 3.0, "errors": {"0": name}},
        {"is": "end", "at": 3.0, "error": name},
    ]
    (folder / log.NAME).write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def run(arguments: list[str], encoding: str) -> str:
    """Return what a command prints, in an encoding."""
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run(
        [sys.executable, "-m", "hocket", *arguments], capture_output=True, check=False, env=environment, timeout=50
    )
    assert (done.returncode, done.stderr) == (0, b"")
    found = done.stdout.decode(encoding)
    assert not HARM.search(found)
    return found


@pytest.mark.parametrize("odd", NAMES)
def test_a_name_in_a_line_is_short_harmless_and_can_be_written(odd: str) -> None:
    for shown in (texts.show_name(NAMES[odd]), texts.escape(NAMES[odd], one_line=True)):
        assert not HARM.search(shown)
        assert "\n" not in shown
        shown.encode("utf-8")
    assert len(texts.show_name(NAMES[odd])) <= 10 * texts.MOST_NAME


def test_answers_are_short_where_somebody_chose_long_names() -> None:
    class Odd:
        def __str__(self) -> str:
            raise SystemExit

    long = "m" * 1_000_000
    found = json.loads(showing.encode({"short": "a", long: [long, {"deep": (long, 1.5, float("inf"))}], "odd": Odd()}))
    assert found["short"] == "a"
    assert "without a text: its __str__ raised SystemExit" in found["odd"]
    assert all(len(name) < 2_100 for name in found)
    (inner,) = [value for name, value in found.items() if name.startswith("mmm")]
    assert inner[1]["deep"][1:] == [1.5, "inf"]
    assert len(json.dumps(found)) < 10_000
    exact = {"text": "m" * 100_000}
    assert json.loads(showing.encode(exact)) == exact, "a long text alone is whole"
