"""Addresses of clusters: their form, and a check that a Ray answers there.

Ray waits for minutes if nothing answers, and in some cases ends the process. So `knock` first opens a TCP connection,
and sends the beginning of HTTP/2, which each of Ray's servers speaks. This module needs no Ray.
"""

from __future__ import annotations

import ipaddress
import socket
import time
from dataclasses import dataclass

from hocket import exceptions

ANSWER_SECONDS = 4.0
"""How many seconds a server may take to answer, the connection included. A guess: far above a round trip around the
world, and two answers take less than ten seconds, after which an unreachable cluster must be reported."""

CLIENT = "ray://"

_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
"""The preface of an HTTP/2 client, with empty settings."""

_SETTINGS = 4
"""The type of the first frame from an HTTP/2 server."""


@dataclass(frozen=True, slots=True)
class Address:
    """The address at which a cluster listens."""

    host: str
    port: int
    #: Whether it is the address of Ray Client, for drivers outside of the cluster.
    by_client: bool = False

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{CLIENT if self.by_client else ''}{host}:{self.port}"

    def is_loopback(self) -> bool:
        """Return whether the host is this machine's loopback address."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def parse_address(text: str) -> Address:
    """Return the parts of ``host:port`` or ``ray://host:port``."""
    by_client = text.startswith(CLIENT)
    host, colon, port = text.removeprefix(CLIENT).rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or "/" in host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 2**16:
        raise ValueError(
            f"address must be 'auto', 'local', 'host:port' or 'ray://host:port', but received {text!r}. The port of a "
            "cluster is 6379 unless it was started with another one; that of ray:// is 10001."
        )
    return Address(host, int(port), by_client)


def knock(address: Address) -> None:
    """Raise ConnectionFailedError unless an HTTP/2 server, such as Ray's, listens at the address."""
    deadline = time.monotonic() + ANSWER_SECONDS
    try:
        with socket.create_connection((address.host, address.port), timeout=ANSWER_SECONDS) as connection:
            answer = _greet(connection, deadline)
    except TimeoutError:
        raise build_error(address, f"nothing answered within {ANSWER_SECONDS:g} seconds") from None
    except OSError as error:
        raise build_error(address, error.strerror or str(error)) from None
    if len(answer) < 9 or answer[3] != _SETTINGS:
        raise build_error(address, "the server there does not speak Ray's protocol")


def _greet(connection: socket.socket, deadline: float) -> bytes:
    """Return the head of the server's first frame; fewer bytes if the server closes the connection."""
    connection.sendall(_GREETING)
    answer = b""
    while len(answer) < 9:
        connection.settimeout(max(0.01, deadline - time.monotonic()))
        more = connection.recv(9 - len(answer))
        if not more:
            break
        answer += more
    return answer


def build_error(address: Address, why: str) -> exceptions.ConnectionFailedError:
    """Return the error for an address that cannot be joined."""
    if address.by_client:
        advice = (
            "Check that the port is that of Ray Client (10001 unless the head was started with another "
            "--ray-client-server-port; the head needs ray[client]), and that no firewall blocks it. On a machine of "
            "the cluster, write the address without ray://, with the port of the head (6379)."
        )
    else:
        advice = (
            "Check that `ray start --head` runs there and that the port is the head's (6379 unless it was started "
            "with another --port). From a machine that is not part of the cluster, use 'ray://host:10001'."
        )
    return exceptions.ConnectionFailedError(
        f"No Ray cluster can be joined at {str(address)!r}: {why.strip().rstrip('.')}. {advice}"
    )
