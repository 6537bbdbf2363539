"""The store of `hocket run`: it serves this user, and nobody else reaches it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from tests import strangers

from hocket.cli.launch import store

pytestmark = pytest.mark.slow

ADDRESSES = ("127.0.0.1", "127.0.0.2")
"""Of the gate, and of the store behind it."""

PING = b"\x0d\x3c\x85\xf7\xce"
"""How a client of torch's store begins."""

CLIENT = """
import datetime, os, sys
import torch.distributed as dist
store = dist.TCPStore(sys.argv[1], int(sys.argv[2]), is_master=False, timeout=datetime.timedelta(seconds=30))
print("here", flush=True)
for line in sys.stdin:
    name, _, value = line.strip().partition("=")
    if value:
        store.set(name, value)
    print(store.get(name).decode(), flush=True)
"""


@dataclass
class Served:
    pid: int
    port: int

    def open_client(self) -> subprocess.Popen[str]:
        client = subprocess.Popen(
            [sys.executable, "-c", CLIENT, ADDRESSES[0], str(self.port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert client.stdout is not None
        assert client.stdout.readline() == "here\n"
        return client


def ask(client: subprocess.Popen[str], line: str) -> str:
    assert client.stdin is not None
    assert client.stdout is not None
    client.stdin.write(f"{line}\n")
    client.stdin.flush()
    return client.stdout.readline().strip()


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    pytest.importorskip("torch", reason="needs hocket[torch]")
    listener = store.listen()
    port = listener.getsockname()[1]
    pid = os.fork()
    if not pid:
        try:
            store.serve(listener)
        finally:
            os._exit(1)
    listener.close()
    yield Served(pid, port)
    os.kill(pid, signal.SIGKILL)
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL, "it served until now"


def knock(address: tuple[str, int], seconds: float = 1.0) -> str:
    """Return what comes of a connection that speaks as a client does."""
    with socket.socket() as caller:
        caller.settimeout(seconds)
        try:
            caller.connect(address)
            caller.sendall(PING)
            return repr(caller.recv(100))
        except OSError as error:
            return type(error).__name__


@strangers.needs_root
def test_another_user_gets_nothing_and_delays_nobody(served: Served) -> None:
    client = served.open_client()
    assert ask(client, "color=red") == "red"

    def call() -> None:
        for address in ADDRESSES:
            for _ in range(2):
                found = knock((address, served.port))
                assert found in ("ConnectionResetError", "BrokenPipeError", "TimeoutError", "b''"), (address, found)
        crowd = [socket.socket() for _ in range(200)]
        for one in crowd:
            one.setblocking(False)
            one.connect_ex((ADDRESSES[0], served.port))

    strangers.run_as_other(call)
    assert ask(client, "color") == "red"
    other = served.open_client()
    assert ask(other, "color") == "red"
    assert ask(other, "color=blue") == ask(client, "color") == "blue"
    for one in (client, other):
        one.communicate()


def test_this_user_cannot_pass_by_the_gate(served: Served) -> None:
    assert knock((ADDRESSES[1], served.port)) == "TimeoutError", "the kernel drops what is not signed"


def test_connections_are_let_go(served: Served) -> None:
    def count() -> int:
        return len(os.listdir(f"/proc/{served.pid}/fd"))  # noqa: PTH208

    before = count()
    callers = [socket.create_connection((ADDRESSES[0], served.port)) for _ in range(20)]
    for caller in callers:
        caller.sendall(PING[:1])
        caller.close()
    moment = threading.Event()
    for _ in range(1000):  # torch and two threads have to see it
        if count() <= before:
            return
        moment.wait(0.01)
    raise AssertionError((before, count()))


@strangers.needs_root
@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6], ids=["IPv4", "IPv6"])
def test_whose_a_connection_is(family: socket.AddressFamily) -> None:
    with store.listen() as listener:
        host, port = listener.getsockname()
        host = host if family == socket.AF_INET else f"::ffff:{host}"

        def call() -> None:
            with socket.socket(family) as caller:
                caller.connect((host, port))
                caller.recv(1)

        child = os.fork()
        if not child:
            os.setuid(strangers.OTHER)
            call()
            os._exit(0)
        with socket.socket(family) as own:
            answers = {}
            accepted = [listener.accept()[0]]
            answers["other"] = store.is_own(accepted[0])
            own.connect((host, port))
            accepted.append(listener.accept()[0])
            answers["own"] = store.is_own(accepted[1])
        assert answers == {"other": False, "own": True}
        assert not store.is_own(accepted[1]), "a socket that is closed is nobody's"
        for one in accepted:
            one.close()
        assert os.waitpid(child, 0)[1] == 0
