"""Undocumented names of Ray. None of them has a public counterpart in Ray 2.60."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import ray
from ray._common import utils as common_utils
from ray._private import client_mode_hook, node, parameter, ray_constants, services, utils
from ray._private.runtime_env import packaging
from ray._private.runtime_env.py_modules import upload_py_modules_if_needed
from ray._private.runtime_env.working_dir import upload_working_dir_if_needed
from ray.core.generated import gcs_pb2
from ray.experimental import internal_kv

Row = dict[str, Any]

_raylet: Any = ray._raylet


# --- this process -----------------------------------------------------------------------------------------------------


def is_outside() -> bool:
    """Return whether this process uses its cluster through Ray Client."""
    return bool(client_mode_hook.client_mode_should_convert())


def get_serializer() -> Any:
    """Return this process's serialization context, which has ``serialize`` and ``is_in_band_serialization``."""
    return ray._private.worker.global_worker.get_serialization_context()


def count_references() -> dict[bytes, Row]:
    """Return the counts of each object that this process refers to, by id."""
    found: dict[bytes, Row] = ray._private.worker.global_worker.core_worker.get_all_reference_counts()
    return found


def never_warn_of_blocking() -> None:
    """Have Ray not warn of a `get` in an asynchronous actor. Hocket calls it only for values that have arrived."""
    ray._private.worker.blocking_get_inside_async_warned = True


# --- handles ----------------------------------------------------------------------------------------------------------


def get_actor_id(handle: Any) -> str:
    """Return an actor's id in hexadecimal."""
    return str(handle._actor_id.hex())


def describe_handle(handle: Any) -> tuple[str, list[str]]:
    """Return the name of an actor's class, and the names of its methods."""
    return str(handle._ray_actor_creation_function_descriptor.class_name), list(handle._ray_method_signatures)


def call_method(actor: object, name: str, args: object, kwargs: object, keywords: Mapping[str, object]) -> object:
    """Call a method of an actor with keywords that ``options`` would take."""
    return getattr(actor, name)._remote(args, kwargs, **keywords)


def take_reference(generator: Any) -> Any:
    """Return a reference that will hold a generator's next item, an error, or the generator's end."""
    return generator._get_next_ref_n(1)[0]


def take_item(generator: Any, timeout_s: float | None) -> Any:
    """Wait for a generator's next item; return its reference, which is nil after the time-out.

    Raises:
        StopIteration: The generator has no further item.
    """
    return generator._next_sync(timeout_s)


def set_options(call: Any, keywords: Mapping[str, object]) -> None:
    """Have a call through Ray Client use options, without its checks."""
    call._options = keywords


def find_function(task: Any) -> bytes | None:
    """Return the id of the object in which Ray Client keeps a task's function; None if it keeps none."""
    return None if task._ref is None else bytes(task._ref.id)


# --- tables of the cluster --------------------------------------------------------------------------------------------


def list_actors(job_id: Any = None) -> dict[str, Row]:
    """Return the rows of all actors, or of the actors of one job, by id."""
    found: dict[str, Row] = ray._private.state.actors(job_id=job_id)
    return found


def list_namespaces() -> dict[str, str]:
    """Return the namespace of each actor, by the actor's id."""
    rows = map(
        gcs_pb2.ActorTableData.FromString,
        ray._private.state.state._connect_and_get_accessor().get_actor_table(None, None),
    )
    return {row.actor_id.hex(): row.ray_namespace for row in rows}


def find_actor(actor_id: str) -> Row:
    """Return an actor's row; empty if there is none."""
    found: Row = ray._private.state.actors(actor_id)
    return found


def list_jobs() -> list[Row]:
    """Return a row for each driver."""
    return list(ray._private.state.jobs())


def list_tasks() -> list[Row]:
    """Return the rows of all tasks from Ray's state service."""
    from ray.util.state.common import protobuf_to_task_state_dict  # here, to spare every worker half a second

    return [protobuf_to_task_state_dict(event) for event in ray._private.state.state._get_all_task_events()]


def list_groups() -> Iterator[tuple[Any, bool]]:
    """Yield the message of each placement group, and whether it is removed."""
    for text in ray._private.state.state._connect_and_get_accessor().get_placement_group_table():
        found = gcs_pb2.PlacementGroupTableData.FromString(text)
        yield found, found.state == gcs_pb2.PlacementGroupTableData.REMOVED


def read_most_resources() -> Mapping[str, float]:
    """Return the most resources that the cluster's autoscaler may add; empty if there is no autoscaler."""
    return ray._private.state.state.get_max_resources_from_cluster_config() or {}


# --- the key-value store of the cluster -------------------------------------------------------------------------------


def put_value(key: str | bytes, value: bytes, namespace: bytes) -> None:
    """Write a value."""
    internal_kv._internal_kv_put(key, value, namespace=namespace)


def get_value(key: str | bytes, namespace: str | bytes) -> bytes | None:
    """Read a value; return None if the key has none."""
    found: bytes | None = internal_kv._internal_kv_get(key, namespace=namespace)
    return found


def list_keys(prefix: str, namespace: bytes) -> list[bytes]:
    """Return the keys that begin with a prefix."""
    return list(internal_kv._internal_kv_list(prefix, namespace=namespace))


def remove_values(prefix: str, namespace: bytes) -> None:
    """Remove the values of all keys that begin with a prefix."""
    internal_kv._internal_kv_del(prefix, del_by_prefix=True, namespace=namespace)


# --- before a connection ----------------------------------------------------------------------------------------------


def reload_settings() -> None:
    """Have Ray read its settings and its token from the environment again. By itself it reads them once per process."""
    _raylet.Config.initialize("")
    _raylet.AuthenticationTokenLoader.instance().reset_cache()


def has_token() -> bool:
    """Return whether this user has a token: in the environment, or in ``~/.ray/auth_token``."""
    return bool(_raylet.AuthenticationTokenLoader.instance().has_token(ignore_auth_mode=True))


def needs_token() -> bool:
    """Return whether Ray's settings make it send a token. If it then has none, it ends the process."""
    return bool(_raylet.get_authentication_mode() == _raylet.AuthenticationMode.TOKEN)


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Keep a node that starts inside this block out of clusters: else Ray takes 127.0.0.1 for "any address of this
    machine"."""
    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


@contextlib.contextmanager
def free_agent_port() -> Iterator[None]:
    """Have the agent of a node that starts inside this block listen at any free port. Ray's default is one fixed port
    per machine. A second Ray tries it for some four seconds (measured: 6.5 seconds to start instead of 2.5), then runs
    without an agent, and accepts no jobs."""
    before = parameter.RayParams
    parameter.RayParams = functools.partial(before, dashboard_agent_listen_port=None)
    try:
        yield
    finally:
        parameter.RayParams = before


def open_channel(target: str) -> Any:
    """Open a gRPC channel to a server of Ray's. The channel sends the token if Ray's settings ask for it."""
    from ray._private import grpc_utils  # here, because only a process that connects needs it, and not each worker

    return grpc_utils.init_grpc_channel(target, options=[("grpc.enable_http_proxy", 0)])


def read_facts(address: str, timeout_s: float) -> Row:
    """Return the metadata of a cluster, such as its versions of Ray and Python; empty if it has stored none yet."""
    client = _raylet.GcsClient(address=address)
    text = client.internal_kv_get(b"CLUSTER_METADATA", b"cluster", timeout=timeout_s)
    found: Row = json.loads(text) if text else {}
    return found


def list_living_nodes(address: str, timeout_s: float) -> list[str]:
    """Return the ids of a cluster's living nodes, in hexadecimal."""
    nodes = _raylet.GcsClient(address=address).get_all_node_info(timeout=timeout_s)
    alive = gcs_pb2.GcsNodeInfo.GcsNodeState.ALIVE
    return [str(node_id.hex()) for node_id, facts in nodes.items() if facts.state == alive]


def list_nodes_here() -> set[str]:
    """Return the ids of the nodes that run on this machine, in hexadecimal."""
    return set(services.find_node_ids())


def find_address_file() -> str:
    """Return the path of the file to which ``ray start`` writes the address of this machine's cluster."""
    return str(utils.get_ray_address_file(None))


# --- folders that travel ----------------------------------------------------------------------------------------------


def walk_package(folder: Path, excludes: Iterable[str], *, reads_gitignore: bool) -> list[Path]:
    """Return the files of a folder that Ray would upload as a working directory."""
    found: list[Path] = []
    left_out = [*ray_constants.get_runtime_env_default_excludes(), *excludes]
    packaging._dir_travel(
        folder,
        [packaging._get_excludes(folder, left_out)],
        lambda path: found.append(path) if path.is_file() else None,
        include_gitignore=reads_gitignore,
    )
    return found


def get_gitignore_variable() -> str:
    """Return the name of the environment variable that makes Ray ignore ``.gitignore``."""
    return str(ray_constants.RAY_RUNTIME_ENV_IGNORE_GITIGNORE)


def upload(given: Row, logger: logging.Logger) -> Row:
    """Upload the folders that a runtime environment names; return it with the addresses of the uploads."""
    steps: list[tuple[str, Callable[..., Row]]] = [
        ("working_dir", upload_working_dir_if_needed),
        ("py_modules", upload_py_modules_if_needed),
    ]
    with tempfile.TemporaryDirectory(prefix="hocket-") as scratch:
        for name, step in steps:
            if name in given:
                given = step(given, include_gitignore=True, scratch_dir=scratch, logger=logger)
    return given


# --- nodes for tests --------------------------------------------------------------------------------------------------


def start_node(params: Row) -> tuple[Any, Any]:
    """Start a further node, which the caller must end; return the node, and the process of its raylet."""
    started = node.Node(parameter.RayParams(**params), head=False, shutdown_at_exit=False, spawn_reaper=False)
    (raylet,) = started.all_processes[ray_constants.PROCESS_TYPE_RAYLET]
    return started, raylet.process


def find_living_nodes(cluster: Any) -> set[str]:
    """Return the ids of the nodes that a cluster of `ray.cluster_utils` considers alive, in hexadecimal."""
    return set(cluster.global_state._live_node_ids())


def get_own_host() -> str:
    """Return the address that Ray's nodes use for this machine."""
    return str(services.get_node_ip_address())


def write_address(address: str) -> None:
    """Have ``address="auto"`` find the cluster at an address."""
    utils.write_ray_address(address)


def forget_address() -> None:
    """Have ``address="auto"`` find no cluster."""
    common_utils.reset_ray_address()
