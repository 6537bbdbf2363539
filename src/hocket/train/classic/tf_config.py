"""Tells the ranks of each other as TensorFlow wants it: in the environment variable TF_CONFIG."""

from __future__ import annotations

import json
import os
import socket
from typing import final

from hocket.core import api
from hocket.train import backend, worker_group

LOOPBACK = "127.0.0.1"


@final
class TFConfigBackend(backend.BackendConfig):
    """What ``Trainer(backend="tensorflow")`` means. It imports no TensorFlow: the training function does, and finds TF_CONFIG.

    TensorFlow's ranks talk to each other over TCP: on one machine on the loopback interface, between machines on the address under which the
    cluster knows the machine, and it does not ask who connects. The network between the machines must be your own.
    """

    def on_start(self, group: worker_group.WorkerGroup) -> None:
        """Pick a port in each rank, and give all of them the list."""
        addresses = _find_addresses(group)
        ports = group.execute(_pick_port, [(address,) for address in addresses])
        workers = [f"{address}:{port}" for address, port in zip(addresses, ports, strict=True)]
        group.execute(_configure, [(workers, rank) for rank in range(len(group))])

    def on_shutdown(self, group: worker_group.WorkerGroup) -> None:
        """Do nothing: what TensorFlow has opened ends with its process."""


def _find_addresses(group: worker_group.WorkerGroup) -> list[str]:
    """Return where each rank is reached by the others."""
    if len({place.node_id for place in group.places}) == 1:
        return [LOOPBACK] * len(group)
    addresses = {node["NodeID"]: str(node["NodeManagerAddress"]) for node in api.nodes()}
    return [addresses[place.node_id] for place in group.places]


def _pick_port(address: str) -> int:
    """Return a port that is free now. TensorFlow opens it itself, so another program may be faster."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def _configure(workers: list[str], rank: int) -> None:
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}})
