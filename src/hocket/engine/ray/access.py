"""The way into a cluster of Ray: its settings, its token, and questions to a server before a connection.

Ray asks for a cluster's versions, and learns whether its token is taken, only on the way in, where it also waits for
minutes. And it says nothing of the size of a folder that it is about to upload.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from hocket import exceptions
from hocket._base.internals import ray as ray_internals
from hocket.engine.ray import adapter, addresses
from hocket.stores import local_files

grpc = adapter.grpc

MODE_VARIABLE = "RAY_AUTH_MODE"
TOKEN_VARIABLE = "RAY_AUTH_TOKEN"  # noqa: S105 (a name)
TOKEN_PATH_VARIABLE = "RAY_AUTH_TOKEN_PATH"  # noqa: S105 (a name)
LOOPBACK_VARIABLE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Ray's switch for systems whose firewall asks about each open port: with 0, a node is this machine's own and binds to
loopback."""

_QUESTIONS = {
    False: ("/ray.rpc.NodeInfoGcsService/GetClusterId", b""),
    True: ("/ray.rpc.RayletDriver/ClusterInfo", b"\x08\x06"),  # its type is PING
}
"""What only a head answers, and what only Ray Client does: the method, and the message."""


@contextlib.contextmanager
def settings(changes: dict[str, str], *, loopback: bool) -> Iterator[None]:
    """Have these environment variables count for Ray inside, and for the processes that it starts."""
    if loopback:
        changes = {**changes, LOOPBACK_VARIABLE: "0"}
    with (
        ray_internals.alone() if loopback else contextlib.nullcontext(),
        _changed_environment(changes),
        _kept_signal_handler(),
    ):
        ray_internals.reload_settings()
        yield


def read_running_address() -> str:
    """Return the address of the cluster that ``ray start`` has started on this machine; empty if there is none."""
    path = ray_internals.find_address_file()
    try:
        with local_files.open_regular(path) as file:
            owner, found = os.fstat(file.fileno()).st_uid, file.read(1000).decode("utf-8", "replace").strip()
    except OSError:
        return ""
    if owner not in (0, os.geteuid()):
        raise exceptions.ConnectionFailedError(
            f"{path!r} says that a Ray runs at {found!r}, but another user (uid {owner}) has written that, and a "
            f"program's functions would go there. If you trust it, write hocket.init(address={found!r})."
        )
    return found


def ask(address: addresses.Address) -> str:
    """Ask a server whether it is what the address says, with the token if one is to be sent.

    Returns:
        gRPC's word: ``OK``; ``UNAUTHENTICATED`` if the token is wrong or missing; ``UNIMPLEMENTED`` if it is something
        else; or another.
    """
    method, question = _QUESTIONS[address.by_client]
    target = str(address).removeprefix(addresses.CLIENT)
    channel = ray_internals.open_channel(target)
    try:
        channel.unary_unary(method)(question, timeout=addresses.ANSWER_SECONDS)
    except grpc.RpcError as error:
        return str(error.code().name)
    finally:
        channel.close()
    return "OK"


def read_versions(address: addresses.Address) -> dict[str, str]:
    """Ask a cluster for the versions of Ray and Python that it was started with. Empty if it does not know yet."""
    facts = ray_internals.read_facts(str(address), addresses.ANSWER_SECONDS)
    return {"Ray": str(facts["ray_version"]), "Python": str(facts["python_version"])} if facts else {}


def has_node_here(address: addresses.Address) -> bool:
    """Tell whether a node of the cluster runs on this machine. Only then a driver can join by ``host:port``."""
    nodes = ray_internals.list_living_nodes(str(address), addresses.ANSWER_SECONDS)
    return not ray_internals.list_nodes_here().isdisjoint(nodes)


def walk_package(folder: Path, excludes: Iterable[str]) -> list[Path]:
    """Return the files of a folder that Ray would upload as a working directory: without what .gitignore, .rayignore
    and it leave out."""
    ignores = os.environ.get(ray_internals.get_gitignore_variable(), "0") == "1"
    return ray_internals.walk_package(folder, excludes, reads_gitignore=not ignores)


@contextlib.contextmanager
def _changed_environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for what is started inside; afterwards all is as before, also what others have set. Ray
    itself sets some, among them ``PYTHONBREAKPOINT``."""
    before = dict(os.environ)
    os.environ.update(changes)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        for name, text in before.items():
            if os.environ.get(name) != text:
                os.environ[name] = text


@contextlib.contextmanager
def _kept_signal_handler() -> Iterator[None]:
    """Put the handler of SIGTERM back: `ray.init` takes it, and nobody asked for that."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        # None is a handler that was not set from Python and cannot be put back from there
        if threading.current_thread() is threading.main_thread() and before is not None:
            signal.signal(signal.SIGTERM, before)
