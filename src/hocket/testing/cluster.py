"""A cluster of several nodes on this machine, to test what a program does on one: nodes that come, go, and lose their power.

Each node is a raylet of its own, with its own folder and resources, as if it were a machine. All bind to loopback and share a token that nobody
else has. `Node.kill` is a machine that loses its power; `Cluster.fail_at` has it lose it at a moment that the program under test names
with `reach`. ``private_paths`` gives a node folders that no other node sees, so that a program that relies on a shared one is found out.

Needs ``hocket[ray]``.

::

    with Cluster(nodes=[{"num_cpus": 2}, {"num_cpus": 2, "labels": {"disk": "ssd"}}]) as cluster:
        with hocket.init(address=cluster.address):
            ...
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import secrets
import signal
import tempfile
import threading
import time
import urllib.parse
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import psutil

from hocket.core import session
from hocket.engine import faults
from hocket.engine.ray import access, adapter, folders

ray = adapter.ray

from ray import cluster_utils  # noqa: E402 (after the adapter, which explains a missing Ray)
from ray._common.utils import reset_ray_address  # noqa: E402
from ray._private.utils import get_ray_address_file, write_ray_address  # noqa: E402

T = TypeVar("T")

_FAULTS_VARIABLE = "HOCKET_CLUSTER_FAULTS"
"""The environment variable that holds the folder of armed faults, for all processes of all nodes."""

_RAYLET_VARIABLE = "RAY_RAYLET_PID"
"""Where a worker of Ray finds its node's process."""

_HEALTH = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 2_000,
    "health_check_failure_threshold": 4,
}
"""How soon Ray finds a node dead: some two seconds, where it takes fifteen by itself. A guess that leaves room for a busy machine."""

_STORE_BYTES = 100 * 2**20
"""The object store of a node. Ray takes no less than 75 MiB."""

_NEW_MOUNTS, _RECURSIVE_AND_PRIVATE = 0x20000, 0x4000 | 0x40000
"""CLONE_NEWNS of unshare(2); MS_REC and MS_PRIVATE of mount(2)."""


def reach(moment: str) -> None:
    """Say that the program under test has come to a moment. Does nothing unless `Cluster.fail_at` waits for it.

    Args:
        moment: Its name, of the program's own choice, such as ``"after step 3"``.
    """
    folder, raylet = os.environ.get(_FAULTS_VARIABLE), os.environ.get(_RAYLET_VARIABLE)
    if not folder or not raylet:
        return
    for place in ("any", str(ray.get_runtime_context().get_node_id())):
        file = Path(folder, _name_fault(moment, place))
        for armed in file.parent.glob(f"{file.name}.*"):
            if faults.Fault(moment, "kill", int(armed.suffix[1:]), 1, str(armed)).note_hit():
                _kill_tree(int(raylet))


def _name_fault(moment: str, place: str) -> str:
    return f"{urllib.parse.quote(moment, safe=' ').replace('.', '%2E')}@{place}"


def _kill_tree(pid: int) -> None:
    """Kill a process and all below it at once; last this one, if it is among them."""
    try:
        root = psutil.Process(pid)
        below = root.children(recursive=True)
    except psutil.NoSuchProcess:
        return
    for process in [root, *sorted(below, key=lambda one: one.pid == os.getpid())]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)


def can_have_private_paths() -> bool:
    """Tell whether ``private_paths`` works here: on Linux, with the right to mount."""
    home = _Home([])
    try:
        with tempfile.TemporaryDirectory() as folder:
            home.run(lambda: _hide([folder]))
    except OSError:
        return False
    finally:
        home.end()
    return True


def _hide(paths: Sequence[str]) -> None:
    """Give this thread, and what it starts from now on, an empty folder of its own in the place of each of these."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "unshare"):
        raise OSError("this system has no unshare(2)")
    _check_call(libc.unshare(_NEW_MOUNTS), "unshare")
    _check_call(libc.mount(b"none", b"/", None, _RECURSIVE_AND_PRIVATE, None), "mount")
    for path in paths:
        _check_call(libc.mount(b"tmpfs", os.fsencode(path), b"tmpfs", 0, None), path)


def _check_call(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


class _Home:
    """A thread that starts a node and stays for as long as the node does: Linux ends what a thread has started when that thread ends, if
    Ray asks it to, and folders can be hidden from a thread and its children alone.
    """

    def __init__(self, private_paths: Sequence[str]) -> None:
        self._private_paths = private_paths
        self._work: queue.SimpleQueue[tuple[futures.Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._live, name="hocket-cluster-node", daemon=True)
        self._thread.start()

    def run(self, function: Callable[[], T]) -> T:
        """Run a function in the thread and return what it returns."""
        future: futures.Future[T] = futures.Future()
        self._work.put((future, function))
        return future.result()

    def end(self) -> None:
        """End the thread, and with it what is left of the node."""
        self._work.put(None)
        self._thread.join()

    def _live(self) -> None:
        while (work := self._work.get()) is not None:
            future, function = work
            try:
                future.set_result(function())
            except BaseException as error:  # noqa: BLE001 (it is raised where somebody waits for it)
                future.set_exception(error)


class Node:
    """A node of a `Cluster`. Made by it."""

    def __init__(self, cluster: Cluster, native: Any, home: _Home, folder: str) -> None:
        self.node_id: str = native.node_id
        #: Where the node has its logs, sockets and spilled values.
        self.folder = folder
        self._cluster = cluster
        self._native = native
        self._home = home

    def list_pids(self) -> list[int]:
        """Return the processes of the node: Ray's own, the workers, and what these have started."""
        found: dict[int, None] = {}
        for infos in self._native.all_processes.values():
            for info in infos:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process = psutil.Process(info.process.pid)
                    if process.status() != psutil.STATUS_ZOMBIE:
                        found |= dict.fromkeys(
                            [process.pid, *(child.pid for child in process.children(recursive=True))]
                        )
        return list(found)

    def is_alive(self) -> bool:
        """Tell whether the node's main process runs."""
        return bool(self._native.all_processes) and any(
            info.process.poll() is None for info in self._native.all_processes.get("raylet", ())
        )

    def kill(self) -> None:
        """End all processes of the node at once, as if the machine had lost its power. Ray learns of it by itself, after some two seconds."""
        for pid in self.list_pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for infos in self._native.all_processes.values():
            for info in infos:
                info.process.wait()

    def __repr__(self) -> str:
        return f"Node({self.node_id[:8]})"


class _Fault:
    """A fault that waits for a moment. A context manager; made by `Cluster.fail_at`."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._hit = int(file.suffix[1:])
        self._last = 0

    @property
    def hits(self) -> int:
        """How often the moment was reached while the fault was armed."""
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
    """A Ray cluster on this machine, for tests. A context manager: opening starts the nodes, closing leaves nothing behind.

    While it is open, this process and those that it starts have its token in their environment, so ``hocket.init(address=cluster.address)``
    joins it. The nodes do not have this process's ``PYTHONPATH``: as other machines, they find only what is installed and what is sent to them.

    Args:
        nodes: For each node its ``num_cpus`` (1), ``num_gpus`` (0), ``resources``, ``labels``, ``object_store_memory``, or another field of
            Ray's ``RayParams``; and ``private_paths``: folders in whose place the node alone has an empty one. The first node is the head; a
            driver on this machine joins through it.
        system_config: Ray's internal settings, beside those that have it find a dead node soon.

    Raises:
        ValueError: There is no node, or the head has private paths.
        PermissionError: ``private_paths`` needs the right to mount; `can_have_private_paths` tells.
    """

    def __init__(
        self, nodes: Sequence[Mapping[str, Any]] = ({},), *, system_config: Mapping[str, Any] | None = None
    ) -> None:
        if not nodes:
            raise ValueError(
                "nodes must have at least one entry, the head, but received none. Write nodes=[{'num_cpus': 2}]."
            )
        if nodes[0].get("private_paths"):
            raise ValueError(
                "The first node is the head, through which the driver joins, so it cannot have private_paths. Give them to another node."
            )
        self._wanted = nodes
        self._system_config = {**_HEALTH, **(system_config or {})}
        self._native: Any = None
        self._nodes: list[Node] = []
        self._open = contextlib.ExitStack()

    @property
    def address(self) -> str:
        """Where drivers join: ``host:port``."""
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
            stack.callback(access.reload_settings)
            settings = {
                **place.environment,
                access.MODE_VARIABLE: "token",
                access.TOKEN_VARIABLE: secrets.token_hex(32),
                _FAULTS_VARIABLE: str(faults_folder),
                "RAY_USAGE_STATS_ENABLED": "0",
                "AUTOSCALER_METRIC_PORT": "0",
                "DASHBOARD_METRIC_PORT": "0",
            }
            stack.enter_context(access.settings(settings, loopback=True))
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
        """Start a node and wait until the cluster has it.

        Args:
            private_paths: Folders in whose place the node alone has an empty one.
            **resources: As in the entries of `nodes`.
        """
        folder = tempfile.mkdtemp(prefix="n", dir=self._place)
        wanted = {
            "node_ip_address": "127.0.0.1",
            "object_store_memory": _STORE_BYTES,
            "include_log_monitor": True,  # each node has its own folder, so one for all would see one of them
            "temp_dir": folder,
            "dashboard_agent_listen_port": None,  # any free one
            **resources,
        }
        if not self._nodes:
            wanted = {
                "include_dashboard": False,
                "dashboard_port": None,
                "no_monitor": True,
                "_system_config": self._system_config,
                **wanted,
            }
        home = _Home(private_paths)

        def start() -> Any:
            if private_paths:
                _hide(private_paths)
                Path(folder).mkdir(parents=True, exist_ok=True)
            return self._native.add_node(**wanted)

        try:
            with _kept_address(), _without("PYTHONPATH"), warnings.catch_warnings():
                warnings.simplefilter("ignore", ResourceWarning)  # Ray leaves the logs of its client's server open
                native = home.run(start)
        except BaseException:
            home.end()
            raise
        node = Node(self, native, home, folder)
        self._nodes.append(node)
        return node

    def remove_node(self, node: Node) -> None:
        """Take a node away: its processes are asked to end, and the cluster is told."""
        self._nodes.remove(node)
        node._native.kill_all_processes(check_alive=False, allow_graceful=True, wait=True)
        self._native.worker_nodes.discard(node._native)
        if self._native.head_node is node._native:
            self._native.head_node = None
        node._home.end()

    def count_nodes(self) -> int:
        """Return how many nodes the cluster takes for alive."""
        return len(self._native.global_state._live_node_ids())

    def wait_for_nodes(self, count: int, timeout: float = 30.0) -> None:
        """Wait until the cluster takes so many nodes for alive: after `Node.kill` it needs a while to learn of it.

        Raises:
            TimeoutError: It does not within `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        while (found := self.count_nodes()) != count:
            if time.monotonic() > deadline:
                raise TimeoutError(f"The cluster has {found} nodes alive after {timeout:g} seconds, and not {count}.")
            time.sleep(0.05)

    def fail_at(self, moment: str, *, node: Node | None = None, hit: int = 1) -> _Fault:
        """Have a node lose its power when a program on it reaches a moment, that is, calls `reach` with its name.

        Args:
            moment: The name.
            node: Which node has to reach it; None for any. It is the one that is killed.
            hit: At which time that it is reached, on all nodes together, counted from 1.

        Returns:
            A context manager, during which the fault is armed; its ``hits`` and ``fired`` count.

        Raises:
            ValueError: `hit` is below 1.
        """
        if hit < 1:
            raise ValueError(f"hit must be 1 or more, but received {hit!r}.")
        place = "any" if node is None else node.node_id
        return _Fault(Path(os.environ[_FAULTS_VARIABLE], f"{_name_fault(moment, place)}.{hit}"))


@contextlib.contextmanager
def _kept_address() -> Iterator[None]:
    """Ray's test cluster notes its address where ``auto`` looks for it. It is for nobody else."""
    before = access.read_running_address()
    Path(get_ray_address_file(None)).parent.mkdir(parents=True, exist_ok=True)  # Ray expects it to be there
    try:
        yield
    finally:
        reset_ray_address()
        if before:
            write_ray_address(before)


@contextlib.contextmanager
def _without(name: str) -> Iterator[None]:
    before = os.environ.pop(name, None)
    try:
        yield
    finally:
        if before is not None:
            os.environ[name] = before
