"""The nodes of a test cluster (`hocket.testing.cluster`): processes of this machine, or machines made of namespaces."""

from __future__ import annotations

import abc
import contextlib
import os
import signal
import tempfile
from concurrent import futures
from typing import Any, final

import psutil

from hocket.testing import machines, mounts


def can_have_private_paths() -> bool:
    """Return whether ``private_paths`` works here: on Linux, with the right to mount."""
    with open_home() as home, tempfile.TemporaryDirectory() as folder:
        try:
            home.submit(mounts.hide, [folder]).result()
        except OSError:
            return False
    return True


def open_home() -> futures.ThreadPoolExecutor:
    """Return a thread that starts a node, and stays as long as the node does.

    If Ray requests it, Linux ends a thread's processes together with the thread. And folders can be hidden from a
    single thread and its children.
    """
    return futures.ThreadPoolExecutor(1, "hocket-cluster-node")


class Node(abc.ABC):
    """A node of a `Cluster`, which makes it."""

    def __init__(self, node_id: str, folder: str) -> None:
        self.node_id = node_id
        #: The folder of the node's logs, sockets and spilled values.
        self.folder = folder

    @abc.abstractmethod
    def list_pids(self) -> list[int]:
        """Return the processes of the node: Ray's own, the workers, and processes that these have started."""

    @abc.abstractmethod
    def is_alive(self) -> bool:
        """Return whether the node's main process runs."""

    @abc.abstractmethod
    def kill(self) -> None:
        """End all processes of the node at once, as if the machine had lost its power.

        Ray notices by itself, after some two seconds.
        """

    @abc.abstractmethod
    def _end(self) -> None:
        """End the node in order, and wait for it."""

    def __repr__(self) -> str:
        return f"Node({self.node_id[:8]})"


@final
class NodeHere(Node):
    """A node among the processes of this machine."""

    def __init__(self, cluster: Any, native: Any, home: futures.ThreadPoolExecutor, folder: str) -> None:
        super().__init__(native.node_id, folder)
        self._cluster = cluster
        self._native = native
        self._home = home

    def list_pids(self) -> list[int]:
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
        return bool(self._native.all_processes) and any(
            info.process.poll() is None for info in self._native.all_processes.get("raylet", ())
        )

    def kill(self) -> None:
        for pid in self.list_pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for infos in self._native.all_processes.values():
            for info in infos:
                info.process.wait()

    def _end(self) -> None:
        cluster = self._cluster
        self._native.kill_all_processes(check_alive=False, allow_graceful=True, wait=True)
        cluster.worker_nodes.discard(self._native)
        if cluster.head_node is self._native:
            cluster.head_node = None
        self._home.shutdown()


@final
class NodeApart(Node):
    """A node on a machine of its own."""

    def __init__(self, machine: machines.Machine, node_id: str, folder: str) -> None:
        super().__init__(node_id, folder)
        self._machine = machine

    def list_pids(self) -> list[int]:
        return self._machine.list_pids()

    def is_alive(self) -> bool:
        return self._machine.is_on()

    def kill(self) -> None:
        self._machine.kill()

    def _end(self) -> None:
        self._machine.end()
