"""A store that speaks S3, on loopback: read and written by tasks, and what is said when it fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from http import server
from typing import Any

import numpy as np
import pytest
from pyarrow import fs

import hocket
from hocket import data
from hocket.data.sources import writing

pytest.importorskip("moto.server", reason="needs a store that speaks S3: pip install 'moto[server]'")

pytestmark = pytest.mark.timeout(180)

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
def port() -> Iterator[int]:
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


def open_store(port: int, **more: Any) -> fs.S3FileSystem:
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
def store(port: int, request: pytest.FixtureRequest) -> tuple[fs.S3FileSystem, str]:
    made = open_store(port)
    bucket = f"bucket-{abs(hash(request.node.name))}"
    made.create_dir(bucket)
    return made, bucket


def test_rows_go_there_and_back(store: tuple[fs.S3FileSystem, str], session: hocket.SessionContext) -> None:
    filesystem, bucket = store
    rows = data.range(1000, override_num_blocks=4).map_batches(lambda batch: {**batch, "y": batch["id"] % 3})
    rows.write_parquet(f"{bucket}/rows", filesystem=filesystem, partition_cols=["y"])
    found = data.read_parquet(f"{bucket}/rows", filesystem=filesystem)
    assert found.groupby("y").count().take_all() == [
        {"y": "0", "count()": 334},
        {"y": "1", "count()": 333},
        {"y": "2", "count()": 333},
    ]
    assert filesystem.get_file_info(f"{bucket}/rows/{writing.MANIFEST}").size
    assert sorted(row["id"] for row in found.take_all()) == list(range(1000))
    rows.write_json(f"{bucket}/json", filesystem=filesystem)
    assert data.read_json(f"{bucket}/json", filesystem=filesystem).sum("id") == 499_500


def test_an_address_says_where(port: int, store: tuple[fs.S3FileSystem, str], monkeypatch: pytest.MonkeyPatch) -> None:
    _, bucket = store
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    where = f"?endpoint_override=127.0.0.1:{port}&scheme=http&region=us-east-1"
    with hocket.init(num_cpus=2):
        data.range(10).write_csv(f"s3://{bucket}/rows{where}")
        assert data.read_csv(f"s3://{bucket}/rows{where}").sum("id") == 45
    with pytest.raises(FileNotFoundError, match=r"there is no file or folder 's3://.*gone"):
        data.read_csv(f"s3://{bucket}/gone{where}")


def test_what_is_gone_in_between_is_named(store: tuple[fs.S3FileSystem, str]) -> None:
    filesystem, bucket = store
    with hocket.init(num_cpus=2, engine="inprocess"):
        data.range(10).write_parquet(f"{bucket}/rows", filesystem=filesystem)
        rows = data.read_parquet(f"{bucket}/rows", filesystem=filesystem)
        filesystem.delete_dir_contents(f"{bucket}/rows")
        with pytest.raises((FileNotFoundError, OSError), match=r"read_parquet\(\).*rows/"):
            rows.take_all()


class Proxy:
    """Stands before a store, and fails as it is told."""

    def __init__(self, port: int) -> None:
        self.fault = ""
        self.count = 0
        outer = self

        class Handler(server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0) or 0))
                is_fault = outer.fault and (self.command != "HEAD" or outer.fault == "denied")
                if is_fault:
                    outer.count += 1
                if is_fault and outer.fault == "denied":
                    self._answer(403, b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>")
                    return
                if is_fault and outer.fault == "once" and outer.count <= 2:
                    self._answer(503, b"<Error><Code>SlowDown</Code><Message>Slow down</Message></Error>")
                    return
                request = urllib.request.Request(
                    f"http://127.0.0.1:{port}{self.path}",
                    data=body or None,
                    method=self.command,
                    headers={name: value for name, value in self.headers.items() if name != "Host"},
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

        self.server = server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    @property
    def port(self) -> int:
        return int(self.server.server_address[1])

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def proxy(port: int) -> Iterator[Proxy]:
    made = Proxy(port)
    yield made
    made.close()


def test_a_store_that_is_slow_for_a_moment_is_asked_again(proxy: Proxy, store: tuple[fs.S3FileSystem, str]) -> None:
    direct, bucket = store
    filesystem = open_store(proxy.port)
    with hocket.init(num_cpus=2, engine="inprocess"):
        data.range(10).write_parquet(f"{bucket}/rows", filesystem=direct)
        proxy.fault = "once"
        assert data.read_parquet(f"{bucket}/rows", filesystem=filesystem).sum("id") == 45
    assert proxy.count > 2, "the fault fired"


def test_refused_credentials_are_told(proxy: Proxy, store: tuple[fs.S3FileSystem, str]) -> None:
    direct, bucket = store
    filesystem = open_store(proxy.port, retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=1))
    with hocket.init(num_cpus=2, engine="inprocess"):
        data.range(10).write_parquet(f"{bucket}/rows", filesystem=direct)
        rows = data.read_parquet(f"{bucket}/rows", filesystem=filesystem)
        proxy.fault = "denied"
        with pytest.raises(PermissionError, match=r"read_parquet\(\) may not read .*Check the credentials"):
            rows.take_all()
        with pytest.raises(PermissionError, match=r"read_csv\(\) may not read .*Check the credentials"):
            data.read_csv(f"{bucket}/rows", filesystem=filesystem)
        with pytest.raises(PermissionError, match=r"write_csv\(\) cannot write .*check who may write there"):
            data.range(3).write_csv(f"{bucket}/other", filesystem=filesystem)
    assert proxy.count, "the fault fired"


PROGRAM = """
import sys, time
import hocket
from hocket import data
from pyarrow import fs

filesystem = fs.S3FileSystem(access_key="key", secret_key="secret", region="us-east-1", scheme="http",
                             endpoint_override="127.0.0.1:" + sys.argv[1])

def slow(batch):
    time.sleep(0.02)
    return batch

hocket.init(num_cpus=2)
data.range(10_000, override_num_blocks=100).map_batches(slow).write_parquet(sys.argv[2], filesystem=filesystem)
"""


def test_what_a_killed_writer_leaves_is_whole(port: int, store: tuple[fs.S3FileSystem, str]) -> None:
    filesystem, bucket = store
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(port), f"{bucket}/rows"], stdout=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    infos: list[Any] = []
    while len(infos) < 5:
        assert time.monotonic() < deadline
        infos = filesystem.get_file_info(fs.FileSelector(f"{bucket}/rows", allow_not_found=True))
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    infos = filesystem.get_file_info(fs.FileSelector(f"{bucket}/rows"))
    assert not any(info.base_name == writing.MANIFEST for info in infos), "it was not finished"
    with hocket.init(num_cpus=2, engine="inprocess"):
        rows = [row["id"] for row in data.read_parquet(f"{bucket}/rows", filesystem=filesystem).take_all()]
    assert len(rows) == len(set(rows))
    assert len(rows) % 100 == 0
    assert (np.diff(np.sort(np.asarray(rows)).reshape(-1, 100)) == 1).all(), "each file is whole"
