"""A cluster of several nodes on this machine, for tests of programs: nodes come, go, and lose their power.

Each node is a raylet of its own, with its own folder and resources, as if it were a machine. All bind to loopback and
share a secret token. `Node.kill` simulates a machine that loses its power. `Cluster.fail_at` does so at a moment that
the program under test names with `reach`. ``private_paths`` gives a node folders that no other node sees, to detect
programs that wrongly rely on a shared folder.

Needs ``hocket[ray]``.

::

    with Cluster(nodes=[{"num_cpus": 2}, {"num_cpus": 2, "labels": {"disk": "ssd"}}]) as cluster:
        with hocket.init(address=cluster.address):
            ...
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import signal
import sys
import tempfile
import time
import urllib.parse
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from hocket.core import session
from hocket.engine import faults
from hocket.engine.ray import access, adapter, folders
from hocket.testing import cluster_nodes, machine_node, machines, mounts

ray = adapter.ray

from ray import cluster_utils

from hocket._base.internals import ray as ray_internals

Node = cluster_nodes.Node
can_have_private_paths = cluster_nodes.can_have_private_paths

_LOOPBACK = "127.0.0.1"

_FAULTS_VARIABLE = "HOCKET_CLUSTER_FAULTS"
"""The environment variable that holds the folder of armed faults, for all processes of all nodes."""

_RAYLET_VARIABLE = "RAY_RAYLET_PID"
"""The environment variable that has the process id of a worker's raylet."""

_HEALTH = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 2_000,
    "health_check_failure_threshold": 4,
    "grpc_client_keepalive_time_ms": 2_000,
    "grpc_client_keepalive_timeout_ms": 2_000,
}
"""Settings by which Ray finds a dead node after some two seconds, in place of fifteen. They also make it give up sooner
on a request to a machine that has vanished. By default that takes 136 seconds (measured), during which Ray reserves
nothing. The values are guesses that leave room for a busy machine."""

_STORE_BYTES = 100 * 2**20
"""The size of a node's object store. Ray requires 75 MiB or more."""


_START_SECONDS = 60
"""Seconds that a node on a machine of its own may take to start. A guess: it takes three on a quiet machine."""


_LOOK_SECONDS = 0.02
"""Seconds between checks in `reach` whether another node is lost. A guess."""


def reach(moment: str, *, wait_seconds: float = 0.0) -> None:
    """Mark a moment in the program under test. This has an effect only if `Cluster.fail_at` has armed the moment.

    Args:
        moment: The moment's name, of the program's own choice, such as ``"after step 3"``.
        wait_seconds: Seconds that callers on other nodes wait until the chosen node is lost. Otherwise a node that
            joins late might start its workers after the others have finished short work, and its loss would have no
            effect. Default: callers do not wait.

    Raises:
        TimeoutError: The chosen node did not reach the moment in this time.
    """
    folder, raylet = os.environ.get(_FAULTS_VARIABLE), os.environ.get(_RAYLET_VARIABLE)
    if not folder or not raylet:
        return
    here = str(ray.get_runtime_context().get_node_id())
    for place in ("any", here):
        file = Path(folder, _name_fault(moment, place))
        for armed in file.parent.glob(f"{file.name}.*"):
            if faults.Fault(moment, "kill", int(armed.suffix[1:]), 1, str(armed)).note_hit():
                _kill_tree(int(raylet))
    deadline = time.monotonic() + wait_seconds
    while wait_seconds and (waiting := _list_armed(Path(folder), moment, here)):
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"No task or actor on node {waiting[0]} reached {moment!r} within {wait_seconds:g} seconds, so the "
                "node was not killed there. Give that node something to do, or arm the fault for another node."
            )
        time.sleep(_LOOK_SECONDS)


def _list_armed(folder: Path, moment: str, here: str) -> list[str]:
    """Return the other nodes with an armed fault for a moment that has not fired."""
    found = []
    for file in folder.glob(f"{_name_fault(moment, '*')}.*"):
        place = file.stem.rpartition("@")[2]
        with contextlib.suppress(FileNotFoundError):  # the fault is no longer armed
            if place not in ("any", here) and file.stat().st_size < int(file.suffix[1:]):
                found.append(place)
    return found


def _name_fault(moment: str, place: str) -> str:
    return f"{urllib.parse.quote(moment, safe=' ').replace('.', '%2E')}@{place}"


def _kill_tree(pid: int) -> None:
    """Kill a process and all its descendants at once, this process last.

    On a machine of its own, the cable is cut first.
    """
    machines.cut_own_cable()
    try:
        root = psutil.Process(pid)
        below = root.children(recursive=True)
    except psutil.NoSuchProcess:
        return
    for process in [root, *sorted(below, key=lambda one: one.pid == os.getpid())]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)


class _Fault:
    """A fault for a moment. A context manager; made by `Cluster.fail_at`."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._hit = int(file.suffix[1:])
        self._last = 0

    @property
    def hits(self) -> int:
        """How often the moment was reached while the fault was armed, on all nodes."""
        return self._file.stat().st_size if self._file.exists() else self._last

    @property
    def fired(self) -> int:
        """How often a node was killed: 0 or 1."""
        return int(self.hits >= self._hit)

    def __enter__(self) -> Self:
        self._file.touch(exist_ok=False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._last = self.hits
        self._file.unlink()


class Cluster:
    """A Ray cluster on this machine, for tests.

    A context manager: opening starts the nodes, and closing leaves nothing behind.

    While the cluster is open, its token is in the environment of this process and of processes that it starts, so
    ``hocket.init(address=cluster.address)`` joins the cluster. The nodes do not get this process's ``PYTHONPATH``. Like
    other machines, they find only modules that are installed or sent to them.

    Args:
        nodes: For each node its ``num_cpus`` (1), ``num_gpus`` (0), ``resources``, ``labels``, ``object_store_memory``,
            or another field of Ray's ``RayParams``, and ``private_paths``: folders that are private and empty on this
            node. The first node is the head, through which a driver on this machine joins.
        system_config: Ray's internal settings, added to those by which it soon finds a dead node.
        apart: Whether each node but the head is on a machine of its own, made of namespaces (`machines`). Such a node
            has its own address, and sees neither processes nor shared memory of others. When it is killed, its
            connections end silently. The nodes then listen on this machine's address and their own, not on loopback.
            Default: all nodes are processes side by side, on loopback.

    Raises:
        ValueError: There is no node, or the head has private paths.
        PermissionError: ``apart`` needs root and ``iproute2``; see `machines.can_have_machines`.
        PermissionError: ``private_paths`` needs the right to mount; see `can_have_private_paths`.
    """

    def __init__(
        self,
        nodes: Sequence[Mapping[str, Any]] = ({},),
        *,
        system_config: Mapping[str, Any] | None = None,
        apart: bool = False,
    ) -> None:
        if not nodes:
            raise ValueError(
                "nodes must have at least one entry, the head, but received none. Write nodes=[{'num_cpus': 2}]."
            )
        if nodes[0].get("private_paths"):
            raise ValueError(
                "The first node is the head, through which the driver joins, so it cannot have private_paths. Give "
                "them to another node."
            )
        self._wanted = nodes
        self._is_apart = apart
        self._network: machines.Network | None = None
        self._host = _LOOPBACK
        self._system_config = {**_HEALTH, **(system_config or {})}
        self._native: Any = None
        self._nodes: list[Node] = []
        self._open = contextlib.ExitStack()

    @property
    def address(self) -> str:
        """The address for drivers: ``host:port``."""
        return str(self._native.address)

    @property
    def nodes(self) -> list[Node]:
        """The nodes that were started and not removed, the head first."""
        return list(self._nodes)

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            place = folders.Folder()
            stack.callback(place.clear)
            faults_folder = Path(place.path, "faults")
            faults_folder.mkdir()
            self._place = place.path
            stack.callback(ray_internals.reload_settings)
            settings = {
                **place.environment,
                access.MODE_VARIABLE: "token",
                access.TOKEN_VARIABLE: secrets.token_hex(32),
                _FAULTS_VARIABLE: str(faults_folder),
                "RAY_USAGE_STATS_ENABLED": "0",
                "AUTOSCALER_METRIC_PORT": "0",
                "DASHBOARD_METRIC_PORT": "0",
            }
            if self._is_apart:
                if not machines.can_have_machines():
                    raise PermissionError(
                        "apart=True needs root and iproute2, to make machines of namespaces. Leave it out: all nodes "
                        "then run side by side on loopback."
                    )
                self._network = stack.enter_context(machines.Network())
                self._host = ray_internals.get_own_host()
            stack.enter_context(access.settings(settings, loopback=not self._is_apart))
            self._native = cluster_utils.Cluster(shutdown_at_exit=False)
            stack.callback(self._end_nodes)
            for node in self._wanted:
                self.add_node(**node)
            self._open = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        session.shutdown()
        self._open.close()

    def _end_nodes(self) -> None:
        for node in reversed(self._nodes):
            self.remove_node(node)
        with _kept_address():
            self._native.shutdown()

    def add_node(self, *, private_paths: Sequence[str] = (), **resources: Any) -> Node:
        """Start a node, and wait until the cluster has it.

        Args:
            private_paths: Folders that are private and empty on this node.
            **resources: The node's settings, as in the entries of `nodes`.
        """
        folder = tempfile.mkdtemp(prefix="n", dir=self._place)
        wanted = {
            "node_ip_address": self._host,
            "object_store_memory": _STORE_BYTES,
            "include_log_monitor": True,  # one per node, because each node has its own folder
            "temp_dir": folder,
            "dashboard_agent_listen_port": None,  # any free port
            **resources,
        }
        if self._network is not None and self._nodes:
            node = self._add_apart(self._network, wanted, private_paths)
        else:
            node = self._add_here(wanted, private_paths)
        self._nodes.append(node)
        return node

    def _add_here(self, wanted: dict[str, Any], private_paths: Sequence[str]) -> Node:
        if not self._nodes:
            wanted = {
                "include_dashboard": False,
                "dashboard_port": None,
                "no_monitor": True,
                "_system_config": self._system_config,
                **wanted,
            }
        home, folder = cluster_nodes.open_home(), wanted["temp_dir"]

        def start() -> object:
            if private_paths:
                mounts.hide(private_paths)
                Path(folder).mkdir(parents=True, exist_ok=True)
            return self._native.add_node(**wanted)

        try:
            with _kept_address(), _without("PYTHONPATH"), warnings.catch_warnings():
                warnings.simplefilter("ignore", ResourceWarning)  # Ray leaves log files of its client's server open
                native = home.submit(start).result()
        except BaseException:
            home.shutdown()
            raise
        return cluster_nodes.NodeHere(self._native, native, home, folder)

    def _add_apart(self, network: machines.Network, wanted: dict[str, Any], private_paths: Sequence[str]) -> Node:
        environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
        machine = network.start_machine([sys.executable, "-c", machine_node.PROGRAM], environment)
        try:
            params = {
                "num_cpus": 1,
                "num_gpus": 0,
                "min_worker_port": 0,
                "max_worker_port": 0,
                "gcs_address": self.address,
                "redis_address": self.address,
                "node_manager_port": 0,
                **wanted,
                "node_ip_address": machine.address,
            }
            machine.stdin.write(json.dumps({"hide": list(private_paths), "params": params}).encode() + b"\n")
            machine.stdin.flush()
            there, _, _ = select.select([machine.stdout], [], [], _START_SECONDS)
            node_id = machine.stdout.readline().decode().strip() if there else ""
            if not node_id:
                raise RuntimeError(
                    f"A node on a machine of its own did not start within {_START_SECONDS} seconds; see what it "
                    f"printed. Can {machine.address} reach {self._host}?"
                )
            self._wait_for_node(node_id)
        except BaseException:
            machine.end(0.0)
            raise
        return cluster_nodes.NodeApart(machine, node_id, wanted["temp_dir"])

    def _wait_for_node(self, node_id: str, timeout: float = 30.0) -> None:
        deadline = time.monotonic() + timeout
        while node_id not in ray_internals.find_living_nodes(self._native):
            if time.monotonic() > deadline:
                raise TimeoutError(f"The node {node_id[:8]} has not joined the cluster after {timeout:g} seconds.")
            time.sleep(0.05)

    def remove_node(self, node: Node) -> None:
        """Remove a node: end its processes, and inform the cluster."""
        self._nodes.remove(node)
        node._end()

    def count_nodes(self) -> int:
        """Return the number of nodes that the cluster considers alive."""
        return len(ray_internals.find_living_nodes(self._native))

    def wait_for_nodes(self, count: int, timeout: float = 30.0) -> None:
        """Wait until the cluster considers this number of nodes alive. It needs a while to notice `Node.kill`.

        Raises:
            TimeoutError: The number was not reached within `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        while (found := self.count_nodes()) != count:
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"The cluster has {found} living nodes after {timeout:g} seconds, but {count} were expected."
                )
            time.sleep(0.05)

    def fail_at(self, moment: str, *, node: Node | None = None, hit: int = 1) -> _Fault:
        """Cut a node's power when a program on it reaches a moment, by calling `reach` with the moment's name.

        Args:
            moment: The moment's name.
            node: The node that must reach the moment, and is killed; None for any node.
            hit: The hit of the moment that kills, counted from 1 over all nodes.

        Returns:
            A context manager that arms the fault. Its ``hits`` and ``fired`` are counters.

        Raises:
            ValueError: `hit` is below 1.
        """
        if hit < 1:
            raise ValueError(f"hit must be 1 or more, but received {hit!r}. Leave it out for 1.")
        place = "any" if node is None else node.node_id
        return _Fault(Path(os.environ[_FAULTS_VARIABLE], f"{_name_fault(moment, place)}.{hit}"))


@contextlib.contextmanager
def _kept_address() -> Iterator[None]:
    """Restore the file in which ``auto`` looks for a cluster's address, because Ray's test cluster writes to it."""
    before = access.read_running_address()
    Path(ray_internals.find_address_file()).parent.mkdir(parents=True, exist_ok=True)  # Ray expects the folder to exist
    try:
        yield
    finally:
        ray_internals.forget_address()
        if before:
            ray_internals.write_address(before)


@contextlib.contextmanager
def _without(name: str) -> Iterator[None]:
    before = os.environ.pop(name, None)
    try:
        yield
    finally:
        if before is not None:
            os.environ[name] = before
