"""Ray's private parts that a connection needs. Each has no public counterpart in Ray 2.60.

- Its settings and its token are read from the environment once a process, and a session needs to read them again.
- It takes 127.0.0.1 for "any address of this machine", unless a constant says that this is no cluster.
- It asks for a cluster's versions, and learns whether its token is taken, only on the way in, where it also waits for
  minutes.
- It has a fixed port for each machine's agent. A second Ray on a machine tries it for some four seconds (measured: 6.5
  seconds to start instead of 2.5) and then goes without, so that no job can be submitted to it.
- It says nothing of the size of what it is about to upload.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hocket import exceptions
from hocket.engine.ray import adapter, addresses
from hocket.stores import local_files

grpc, ray = adapter.grpc, adapter.ray

from ray._private import grpc_utils, parameter, ray_constants, services, utils
from ray._private.runtime_env import packaging
from ray.core.generated import gcs_pb2

_raylet: Any = ray._raylet

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


def reload_settings() -> None:
    """Have Ray read its settings and its token from the environment again."""
    _raylet.Config.initialize("")
    _raylet.AuthenticationTokenLoader.instance().reset_cache()


@contextlib.contextmanager
def settings(changes: dict[str, str], *, loopback: bool) -> Iterator[None]:
    """Have these environment variables count for Ray inside, and for the processes that it starts."""
    constant = ray_constants.ENABLE_RAY_CLUSTER
    if loopback:
        changes = {**changes, LOOPBACK_VARIABLE: "0"}
        ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        with _changed_environment(changes), _kept_signal_handler():
            reload_settings()
            yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = constant


@contextlib.contextmanager
def free_agent_port() -> Iterator[None]:
    """Have the agent of a node that is started inside listen at any free port."""
    before = parameter.RayParams
    parameter.RayParams = functools.partial(before, dashboard_agent_listen_port=None)
    try:
        yield
    finally:
        parameter.RayParams = before


def has_token() -> bool:
    """Tell whether this user has a token: in the environment, or in ``~/.ray/auth_token``."""
    return bool(_raylet.AuthenticationTokenLoader.instance().has_token(ignore_auth_mode=True))


def needs_token() -> bool:
    """Tell whether Ray is set to send a token. Without one it would then end the process."""
    return bool(_raylet.get_authentication_mode() == _raylet.AuthenticationMode.TOKEN)


def read_running_address() -> str:
    """Return the address of the cluster that ``ray start`` has started on this machine; empty if there is none."""
    path = utils.get_ray_address_file(None)
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
    channel = grpc_utils.init_grpc_channel(target, options=[("grpc.enable_http_proxy", 0)])
    try:
        channel.unary_unary(method)(question, timeout=addresses.ANSWER_SECONDS)
    except grpc.RpcError as error:
        return str(error.code().name)
    finally:
        channel.close()
    return "OK"


def read_versions(address: addresses.Address) -> dict[str, str]:
    """Ask a cluster for the versions of Ray and Python that it was started with. Empty if it does not know yet."""
    client = _raylet.GcsClient(address=str(address))
    text = client.internal_kv_get(b"CLUSTER_METADATA", b"cluster", timeout=addresses.ANSWER_SECONDS)
    if not text:
        return {}
    facts = json.loads(text)
    return {"Ray": str(facts["ray_version"]), "Python": str(facts["python_version"])}


def has_node_here(address: addresses.Address) -> bool:
    """Tell whether a node of the cluster runs on this machine. Only then a driver can join by ``host:port``."""
    here = set(services.find_node_ids())
    nodes = _raylet.GcsClient(address=str(address)).get_all_node_info(timeout=addresses.ANSWER_SECONDS)
    alive = gcs_pb2.GcsNodeInfo.GcsNodeState.ALIVE
    return any(node_id.hex() in here for node_id, facts in nodes.items() if facts.state == alive)


def walk_package(folder: Path, excludes: Iterable[str]) -> list[Path]:
    """Return the files of a folder that Ray would upload as a working directory: without what .gitignore, .rayignore
    and it leave out."""
    found: list[Path] = []
    left_out = [*ray_constants.get_runtime_env_default_excludes(), *excludes]
    ignored = os.environ.get(ray_constants.RAY_RUNTIME_ENV_IGNORE_GITIGNORE, "0") != "1"
    packaging._dir_travel(
        folder,
        [packaging._get_excludes(folder, left_out)],
        lambda path: found.append(path) if path.is_file() else None,
        include_gitignore=ignored,
    )
    return found


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
