"""Tells the ranks of each other as TensorFlow wants it: in the environment variable TF_CONFIG.

It imports no TensorFlow: the training function does, and finds the variable. TensorFlow's ranks talk to each other over gRPC. What they *connect* to is
loopback if all ranks are on one machine, else the address under which the cluster knows the machine. What they *listen* on is not ours to say:
TensorFlow opens its port on all interfaces, and does not ask who connects. So the network must be one's own; `hocket.train.keras` opens no port.
"""

from __future__ import annotations

import json
import os
import socket
from typing import Final

from hocket.core import api
from hocket.train import worker_group

LOOPBACK: Final = "127.0.0.1"
"""Where ranks of one machine connect to each other."""

LEGACY_KERAS: Final = "TF_USE_LEGACY_KERAS"
"""The environment variable with which ``tf.keras`` is Keras 2 (tf-keras), the last that has MultiWorkerMirroredStrategy."""

_INTRA_THREADS: Final = "TF_NUM_INTRAOP_THREADS"
"""How many threads an operation may use. TensorFlow's default is one a core, in each rank."""

_LOG_LEVEL: Final = "TF_CPP_MIN_LOG_LEVEL"
_ERRORS_ONLY: Final = "2"


def arrange(group: worker_group.WorkerGroup, task_types: list[str], *, legacy_keras: bool | None) -> None:
    """Pick a port in each rank, and give all of them the list. Called by the controller.

    Args:
        group: The ranks.
        task_types: What each rank is, by rank: ``"worker"``, ``"chief"``, ``"evaluator"``.
        legacy_keras: Whether ``tf.keras`` shall be tf-keras; None leaves it to the user's environment.
    """
    addresses = find_addresses(group)
    ports = group.execute(_pick_port, [(address,) for address in addresses])
    cluster: dict[str, list[str]] = {}
    tasks = []
    for kind, address, port in zip(task_types, addresses, ports, strict=True):
        members = cluster.setdefault(kind, [])
        tasks.append({"type": kind, "index": len(members)})
        members.append(f"{address}:{port}")
    num_threads = max(1, int(group.scaling.bundle.get("CPU", 1)))
    group.execute(
        _configure,
        [(json.dumps({"cluster": cluster, "task": task}), legacy_keras, num_threads) for task in tasks],
    )


def find_addresses(group: worker_group.WorkerGroup) -> list[str]:
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


def _configure(tf_config: str, legacy_keras: bool | None, num_threads: int) -> None:
    os.environ["TF_CONFIG"] = tf_config
    os.environ["KERAS_BACKEND"] = (
        "tensorflow"  # a Keras 3 on another one would not notice the strategy, and train each rank alone
    )
    if legacy_keras is not None:
        os.environ[LEGACY_KERAS] = "1" if legacy_keras else "0"
    set_threads(num_threads)
    be_quiet()


def set_threads(num_threads: int) -> None:
    """Say how many threads an operation of TensorFlow may use, unless the user's environment does."""
    os.environ.setdefault(_INTRA_THREADS, str(num_threads))


def be_quiet() -> None:
    """Have TensorFlow print errors only, unless the user's environment says otherwise: its notices and warnings are of what no user can change."""
    os.environ.setdefault(_LOG_LEVEL, _ERRORS_ONLY)
