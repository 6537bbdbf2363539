"""A store that speaks S3, on loopback, and what stands before it to fail as it is told."""

from __future__ import annotations

import importlib
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator
from http import server
from pathlib import Path
from typing import Any

import pytest

SERVER = """
import sys
from moto.server import ThreadedMotoServer

server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
server.stop()
"""


@pytest.fixture(scope="module")
def s3_port() -> Iterator[int]:
    """The port of a store, for the tests of a module."""
    pytest.importorskip("moto.server", reason="needs a store that speaks S3: pip install 'moto[server]'")
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    found = int(process.stdout.readline())
    yield found
    process.communicate("")


def open_store(port: int, **more: Any) -> Any:
    """Return Arrow's file system of the store at a port."""
    fs: Any = importlib.import_module("pyarrow.fs")
    return fs.S3FileSystem(
        access_key="key",
        secret_key="secret",
        region="us-east-1",
        endpoint_override=f"127.0.0.1:{port}",
        scheme="http",
        allow_bucket_creation=True,
        **more,
    )


@pytest.fixture
def s3_store(s3_port: int, request: pytest.FixtureRequest) -> tuple[Any, str]:
    """A store, and a bucket in it that no other test has."""
    made = open_store(s3_port)
    bucket = f"bucket-{zlib.crc32(request.node.nodeid.encode())}"
    made.create_dir(bucket)
    return made, bucket


@pytest.fixture
def own_temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder for temporary files that no other test uses: what is left there is this one's."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))


def list_names(filesystem: Any, path: str) -> list[str]:
    """Return the files in a folder and what is in it, by path relative to it."""
    fs: Any = importlib.import_module("pyarrow.fs")
    infos = filesystem.get_file_info(fs.FileSelector(path, recursive=True, allow_not_found=True))
    return sorted(info.path[len(path) + 1 :] for info in infos if info.type == fs.FileType.File)


class Handler(server.BaseHTTPRequestHandler):
    """Passes requests on, or fails them."""

    protocol_version = "HTTP/1.1"
    outer: Proxy
    at: int

    def handle_one(self) -> None:
        body = self._read_body()
        fault = self.outer.choose(f"{self.command} {self.path}")
        if fault in ("hang", "cut"):
            if fault == "hang":
                self.outer.released.wait(60)
            self.close_connection = True
        elif fault == "denied":
            self._answer(403, b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>")
        elif fault == "once":
            self._answer(503, b"<Error><Code>SlowDown</Code><Message>Slow down</Message></Error>")
        else:
            self._pass_on(body)

    def _read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0) or 0))
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _pass_on(self, body: bytes) -> None:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.at}{self.path}",
            data=body or None,
            method=self.command,
            headers={
                name: value
                for name, value in self.headers.items()
                if name not in ("Host", "Transfer-Encoding", "Expect")
            },
        )
        try:
            with urllib.request.urlopen(request) as found:
                self._forward(found.status, found.headers, found.read())
        except urllib.error.HTTPError as error:
            self._forward(error.code, error.headers, error.read())

    def _forward(self, status: int, headers: Any, content: bytes) -> None:
        self.send_response(status)
        length = headers.get("Content-Length", len(content)) if self.command == "HEAD" else len(content)
        for name, value in headers.items():
            if name not in ("Content-Length", "Transfer-Encoding", "Connection", "Server", "Date"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(content)

    def _answer(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_one  # noqa: N815 (the library's names)

    def log_message(self, *_: object) -> None:
        pass


class Proxy:
    """Stands before a store, and fails as it is told."""

    def __init__(self, port: int) -> None:
        self.fault = ""
        """``"denied"``, ``"once"`` (busy, twice), ``"hang"`` (until `released`), ``"cut"`` (the line is closed)."""
        self.only = ""
        """Which requests fail: those whose line has this."""
        self.count = 0
        self.reached = threading.Event()
        self.released = threading.Event()
        self.server = server.ThreadingHTTPServer(
            ("127.0.0.1", 0), type("Bound", (Handler,), {"outer": self, "at": port})
        )
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def choose(self, request: str) -> str:
        """Return what is wrong with a request; nothing if it is empty."""
        if not self.fault or self.only not in request or (request.startswith("HEAD") and self.fault == "once"):
            return ""
        self.count += 1
        self.reached.set()
        return "" if self.fault == "once" and self.count > 2 else self.fault

    @property
    def port(self) -> int:
        return int(self.server.server_address[1])

    def close(self) -> None:
        self.released.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def s3_proxy(s3_port: int) -> Iterator[Proxy]:
    """What stands before the store."""
    made = Proxy(s3_port)
    yield made
    made.close()
