"""The preparation of a connection to a Ray cluster: settings, token, and questions to a server.

Ray itself checks a cluster's versions and its own token only while it connects, and may then wait for minutes. It also
does not report the size of a folder before it uploads it.
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
"""Ray's switch for systems with a firewall that asks about each open port: with 0, a node serves only this machine, and
binds to loopback."""

_QUESTIONS = {
    False: ("/ray.rpc.NodeInfoGcsService/GetClusterId", b""),
    True: ("/ray.rpc.RayletDriver/ClusterInfo", b"\x08\x06"),  # its type is PING
}
"""Questions that only a head answers (False), or only Ray Client (True): the method, and the message."""


@contextlib.contextmanager
def settings(changes: dict[str, str], *, loopback: bool) -> Iterator[None]:
    """Apply environment variables inside this block, to Ray and to the processes that it starts."""
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
            f"{path!r} names a Ray at {found!r}, but the file belongs to another user (uid {owner}), to whose Ray "
            f"your functions would be sent. If you trust this user, write hocket.init(address={found!r})."
        )
    return found


def ask(address: addresses.Address) -> str:
    """Ask a server whether it is of the kind that the address names; send the token if Ray's settings ask for it.

    Returns:
        gRPC's status: ``OK``; ``UNAUTHENTICATED`` if the token is wrong or missing; ``UNIMPLEMENTED`` for a server of
        another kind; or any other.
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
    """Return the versions of Ray and Python with which a cluster was started; empty if it has not stored them yet."""
    facts = ray_internals.read_facts(str(address), addresses.ANSWER_SECONDS)
    return {"Ray": str(facts["ray_version"]), "Python": str(facts["python_version"])} if facts else {}


def has_node_here(address: addresses.Address) -> bool:
    """Return whether a node of the cluster runs on this machine. Only then can a driver join by ``host:port``."""
    nodes = ray_internals.list_living_nodes(str(address), addresses.ANSWER_SECONDS)
    return not ray_internals.list_nodes_here().isdisjoint(nodes)


def walk_package(folder: Path, excludes: Iterable[str]) -> list[Path]:
    """Return the files of a folder that Ray would upload as a working directory, without those that .gitignore,
    .rayignore and Ray itself exclude."""
    ignores = os.environ.get(ray_internals.get_gitignore_variable(), "0") == "1"
    return ray_internals.walk_package(folder, excludes, reads_gitignore=not ignores)


@contextlib.contextmanager
def _changed_environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables inside this block, and restore all variables afterwards. Ray itself changes some, such
    as ``PYTHONBREAKPOINT``."""
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
    """Restore the handler of SIGTERM, which `ray.init` replaces."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        # None stands for a handler that was not set from Python; Python cannot restore it.
        if threading.current_thread() is threading.main_thread() and before is not None:
            signal.signal(signal.SIGTERM, before)
