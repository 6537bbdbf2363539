"""The way in which the ranks of a group find each other.

On the driver's own machine they use torch's `FileStore`, so nothing listens for that. The file has no name: it is a
memfd of the driver, which the ranks open below ``/proc``. It is gone when that process is gone, however it ends. Ranks
check whether all of them see the same file, by its inode and the kernel's boot id: the same path below ``/proc`` may be
another file elsewhere.

Ranks that take turns in one process have torch's `HashStore`, which is in that process. (A `FileStore` writes once more
when it is released, which may be after the end of its file.)

All other ranks use torch's `TCPStore` in rank 0's process. It listens on one address only: loopback if all ranks are on
one machine, otherwise the address of rank 0's node in the cluster. The system picks the port. The store authenticates
no peer, as always in torch; the network between the nodes must be private.
"""

from __future__ import annotations

import datetime as dt
import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist

from hocket.train.run import joining, worker_group


@dataclass(frozen=True, slots=True)
class Meeting:
    """The ranks' meeting place: a file, an address, or a store in their own process."""

    path: str = ""
    address: str = ""
    port: int = 0
    store: Any = None


_servers: list[object] = []  # rank 0's one store, which serves the others as long as the process lives


def arrange(group: worker_group.WorkerGroup, timeout_s: float) -> Meeting:
    """Choose a meeting place that all ranks can reach."""
    if group.shares_process:
        return Meeting(store=dist.HashStore())  # type: ignore[attr-defined]  # exported at run time
    descriptor = os.memfd_create("hocket-rendezvous")
    group.resources.callback(os.close, descriptor)
    path = f"/proc/{os.getpid()}/fd/{descriptor}"  # other processes of the same user can open it
    mine = identify(path)
    if all(found == mine for found in group.execute(identify, [(path,)] * len(group))):
        return Meeting(path=path)
    address = joining.find_addresses(group)[0]
    port = group.call(0, _serve, address, len(group), timeout_s)
    return Meeting(address=address, port=port)


def identify(path: str) -> tuple[str, int, int] | None:
    """Return values that distinguish a file from all files of all machines; None if it cannot be opened."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 (pathlib would resolve the link to a name that does not exist)
            found = os.fstat(file.fileno())
        return Path("/proc/sys/kernel/random/boot_id").read_text(), found.st_dev, found.st_ino
    except OSError:
        return None


def _serve(address: str, world_size: int, timeout_s: float) -> int:
    """Start the store in rank 0; return its port."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.create_server((address, 0), family=family, backlog=world_size + 8)
    port: int = listener.getsockname()[1]
    server = dist.TCPStore(  # type: ignore[attr-defined]
        address,
        port,
        world_size,
        is_master=True,
        timeout=dt.timedelta(seconds=timeout_s),
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )
    _servers[:] = [server]
    return port


def open_store(meeting: Meeting, world_size: int, timeout_s: float) -> Any:
    """Return the store through which a rank finds the others. Called in each rank."""
    if meeting.store is not None:
        return meeting.store
    if meeting.path:
        return dist.FileStore(meeting.path, world_size)  # type: ignore[attr-defined]  # exported at run time
    return dist.TCPStore(  # type: ignore[attr-defined]
        meeting.address,
        meeting.port,
        world_size,
        is_master=False,
        timeout=dt.timedelta(seconds=timeout_s),
        wait_for_workers=False,
    )


def choose_interface(address: str) -> str | None:
    """Return the network interface of this machine that has an address; None if none has."""
    if not address or address == joining.LOOPBACK:
        return "lo" if sys.platform.startswith("linux") else "lo0"
    import psutil  # here, because ranks of one machine never need it

    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address == address for entry in entries):
            return name
    return None
