"""The dashboard on a Unix socket: for one user, reached by `ssh -L`."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import hocket
from tests.engine.test_events import double
from tests.observe.test_dashboard import list_listeners

pytest.importorskip("starlette", reason="needs hocket[dashboard]")
pytest.importorskip("uvicorn", reason="needs hocket[dashboard]")

pytestmark = pytest.mark.about_local("sessions that are looked at from outside")

OTHER_USER = """
import os, socket, sys
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
with socket.socket(socket.AF_UNIX) as asked:
    try:
        asked.connect(sys.argv[1])
        asked.sendall(sys.argv[2].encode())
        print(asked.recv(1000))
    except OSError as error:
        print(type(error).__name__)
"""


@dataclass
class Served:
    """A dashboard."""

    process: subprocess.Popen[str]
    path: Path
    token: str

    def ask(self, path: str = "/api/sessions", host: str = "localhost:8265", token: str = "", more: str = "") -> str:
        """Send a request; return the whole answer."""
        with socket.socket(socket.AF_UNIX) as asked:
            asked.settimeout(10)
            asked.connect(str(self.path))
            asked.sendall(self.build_request(path, host, token or self.token, more).encode())
            answer = b""
            while part := asked.recv(65536):
                answer += part
            return answer.decode()

    def build_request(self, path: str, host: str, token: str, more: str = "") -> str:
        lines = [f"GET {path} HTTP/1.1", f"Host: {host}", f"Authorization: Bearer {token}", "Connection: close"]
        return "\r\n".join([*lines, *([more] if more else []), "", ""])


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    folder = Path(tempfile.mkdtemp(prefix="hocket-"))  # a path of a socket is 107 letters at most
    with hocket.init(num_cpus=1):
        hocket.get(double.remote(1))
        process = start(folder / "{socket}", str(os.getpid()))
        assert process.stdout is not None
        told = "".join(process.stdout.readline() for _ in range(4))
        token = re.findall(r"127.0.0.1:8265/#([0-9a-f]{64})\n", told)
        assert f"-L 8265:{folder}/{{socket}} " in told
        yield Served(process, folder / "{socket}", token[0])
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
        assert not (folder / "{socket}").exists()
    shutil.rmtree(folder)


def start(path: Path, *what: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "hocket", "dashboard", *what, "--socket", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_it_answers_its_user(served: Served) -> None:
    assert served.ask().startswith("HTTP/1.1 200")
    assert f'"pid":{os.getpid()}' in served.ask(host="127.0.0.1:1")
    assert served.ask(more="Origin: http://localhost:8265").startswith("HTTP/1.1 200")


def test_only_its_user_may_open_it_and_no_port_is_there(served: Served) -> None:
    mode = served.path.stat().st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600
    assert not list_listeners(served.process.pid)


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example:80", "127.0.0.1:", "localhost:123456", ""])
def test_foreign_host(served: Served, host: str) -> None:
    assert served.ask(host=host).startswith(("HTTP/1.1 403", "HTTP/1.1 400"))


def test_foreign_origin_and_token(served: Served) -> None:
    assert served.ask(more="Origin: http://127.0.0.1:8265").startswith("HTTP/1.1 403"), "another name of the same"
    assert served.ask(token="0" * 64).startswith("HTTP/1.1 401")


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user, which root alone may")
@pytest.mark.parametrize("is_open", [False, True])
def test_another_user_gets_nothing_even_with_the_token(served: Served, *, is_open: bool) -> None:
    """Nor if the file's permissions were changed."""
    served.path.parent.chmod(0o755)
    served.path.chmod(0o777 if is_open else 0o600)
    request = served.build_request("/api/sessions", "localhost:8265", served.token)
    command = [sys.executable, "-c", OTHER_USER, str(served.path), request]
    found = subprocess.run(command, capture_output=True, text=True, check=True, cwd="/").stdout
    served.path.chmod(0o600)
    assert found.strip() in (["b''", "ConnectionResetError", "BrokenPipeError"] if is_open else ["PermissionError"])


def test_path_that_is_taken(served: Served, tmp_path: Path) -> None:
    for path, why in [(served.path, "Address already in use"), (tmp_path / "none" / "socket", "No such file")]:
        process = start(path, str(os.getpid()))
        told, _ = process.communicate(timeout=30)
        assert process.returncode == 1
        assert why in told
        assert "Give a path that does not exist yet, in a folder of yours" in told
        assert "Traceback" not in told
    assert served.path.exists()
