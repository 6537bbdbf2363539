"""Whether an address can be joined is known at once, without Ray."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from hocket import exceptions
from hocket.engine.ray import addresses, connection


@pytest.mark.parametrize(
    ("text", "host", "port", "by_client", "is_loopback"),
    [
        ("10.0.0.1:6379", "10.0.0.1", 6379, False, False),
        ("ray://head.example:10001", "head.example", 10001, True, False),
        ("localhost:6379", "localhost", 6379, False, True),
        ("127.0.0.9:1", "127.0.0.9", 1, False, True),
        ("[::1]:6379", "::1", 6379, False, True),
    ],
)
def test_parsing(text: str, host: str, port: int, by_client: bool, is_loopback: bool) -> None:
    address = addresses.parse_address(text)
    assert (address.host, address.port, address.by_client) == (host, port, by_client)
    assert address.is_loopback() is is_loopback
    assert str(address) == text


@pytest.mark.parametrize(
    "text", ["head", "head:", ":6379", "head:six", "head:0", "head:70000", "http://head:6379", "ray://head"]
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(
        ValueError, match=r"must be 'auto', 'local', 'host:port' or 'ray://host:port', but received '.*6379"
    ):
        addresses.parse_address(text)


@contextlib.contextmanager
def serve(answer: bytes | None) -> Iterator[addresses.Address]:
    """A server that answers the first words of whoever connects; with None it says nothing."""
    held = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def run() -> None:
            with contextlib.suppress(OSError):
                connection, _ = server.accept()
                held.append(connection)
                connection.recv(1000)
                if answer is not None:
                    connection.sendall(answer)
                    connection.close()

        thread = threading.Thread(target=run)
        thread.start()
        yield addresses.Address("127.0.0.1", server.getsockname()[1])
        thread.join()
        for connection in held:
            connection.close()


def test_server_that_speaks_the_protocol() -> None:
    with serve(b"\x00\x00\x00\x04\x00\x00\x00\x00\x00") as address:
        addresses.knock(address)


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH", b""])
def test_server_of_another_kind(answer: bytes) -> None:
    with (
        serve(answer) as address,
        pytest.raises(exceptions.ConnectionFailedError, match="does not speak Ray's protocol") as caught,
    ):
        addresses.knock(address)
    assert repr(str(address)) in str(caught.value)
    assert "ray start --head" in str(caught.value)


def test_server_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "ANSWER_SECONDS", 0.1)
    with (
        serve(None) as address,
        pytest.raises(exceptions.ConnectionFailedError, match=r"nothing answered within 0\.1 seconds"),
    ):
        addresses.knock(address)


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(ConnectionError, match=f"'127.0.0.1:{port}': Connection refused. .*'ray://host:10001'"):
        addresses.knock(addresses.Address("127.0.0.1", port))
    with pytest.raises(
        ConnectionError, match=f"'ray://127.0.0.1:{port}': Connection refused. .*--ray-client-server-port"
    ):
        addresses.knock(addresses.Address("127.0.0.1", port, by_client=True))


def test_host_that_does_not_exist() -> None:
    with pytest.raises(exceptions.ConnectionFailedError, match=r"'nowhere\.invalid:6379': "):
        addresses.knock(addresses.Address("nowhere.invalid", 6379))


def test_versions() -> None:
    ours = {"Ray": "2.60.0", "Python": "3.11.7"}
    connection.compare_versions("head:6379", ours, ours)
    connection.compare_versions("head:6379", ours, {})
    with pytest.raises(
        exceptions.VersionMismatchError,
        match=r"has Ray 2\.40\.0, but this process has Ray 2\.60\.0\. .*pip install ray==2\.40\.0",
    ):
        connection.compare_versions("head:6379", ours, {"Ray": "2.40.0", "Python": "3.11.7"})
    with pytest.raises(
        RuntimeError,
        match=r"'head:6379' has Python 3\.12\.1, but this process has Python 3\.11\.7.*conda create python=3\.12\.1",
    ):
        connection.compare_versions("head:6379", ours, {"Ray": "2.60.0", "Python": "3.12.1"})
