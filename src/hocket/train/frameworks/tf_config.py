"""Introduces TensorFlow's ranks to each other, through the environment variable TF_CONFIG.

This module imports no TensorFlow: the training function imports it, and TensorFlow reads the variable. TensorFlow's
ranks talk over gRPC. They *connect* to loopback if all ranks are on one machine, otherwise to the machine's address in
the cluster. Hocket cannot choose where they *listen*: TensorFlow opens its port on all interfaces and authenticates no
peer. So the network must be private; `hocket.train.keras` opens no port.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, final

from hocket import exceptions
from hocket._base.internals import keras as keras_internals
from hocket.engine import values
from hocket.train.run import joining, worker_group

LEGACY_KERAS: Final = "TF_USE_LEGACY_KERAS"
"""The environment variable that makes ``tf.keras`` Keras 2 (tf-keras), the last version with
MultiWorkerMirroredStrategy."""

_INTRA_THREADS: Final = "TF_NUM_INTRAOP_THREADS"
"""The variable for the threads of one operation. TensorFlow's default is one per core, in each rank."""

_LOG_LEVEL: Final = "TF_CPP_MIN_LOG_LEVEL"
_ERRORS_ONLY: Final = "2"

EVALUATOR: Final = "evaluator"
"""The task type of a process outside the cluster: no connection leads to it or from it."""


@final
@dataclass(frozen=True, kw_only=True)
class Setting:
    """The environment of a rank."""

    tf_config: str
    """The value of TF_CONFIG."""
    legacy_keras: bool | None
    """Whether ``tf.keras`` is tf-keras; None leaves the choice to the user's environment."""
    num_threads: int
    """The number of threads that an operation may use."""
    defaults: Mapping[str, str] = field(default_factory=dict)
    """Further variables. The user's environment takes precedence."""

    def apply(self) -> None:
        """Set the environment of this process."""
        os.environ["TF_CONFIG"] = self.tf_config
        os.environ["KERAS_BACKEND"] = (
            "tensorflow"  # Keras 3 on another backend would ignore the strategy, and train each rank alone
        )
        if self.legacy_keras is not None:
            os.environ[LEGACY_KERAS] = "1" if self.legacy_keras else "0"
        for name, value in self.defaults.items():
            os.environ.setdefault(name, value)
        set_threads(self.num_threads)
        be_quiet()


def arrange(
    group: worker_group.WorkerGroup,
    task_types: Sequence[str],
    *,
    legacy_keras: bool | None,
    defaults: Mapping[str, str] | None = None,
) -> list[Setting]:
    """Pick a port in each rank, and send all addresses to each; return the ranks' settings. Called by the controller.

    Args:
        group: The ranks.
        task_types: The task type of each rank, by rank: ``"worker"``, ``"chief"``, ``"ps"``, ``"evaluator"``.
        legacy_keras: See `Setting`.
        defaults: See `Setting`.
    """
    addresses = joining.find_addresses(group)
    ports = group.execute(_pick_port, [(address,) for address in addresses])
    members: dict[str, list[str]] = {}
    tasks = []
    for kind, address, port in zip(task_types, addresses, ports, strict=True):
        same = members.setdefault(kind, [])
        tasks.append({"type": kind, "index": len(same)})
        same.append(f"{address}:{port}")
    cluster = {kind: same for kind, same in members.items() if kind != EVALUATOR}
    bundles = [role.bundle for role in group.roles] or [group.scaling.bundle] * len(group)
    settings = [
        Setting(
            tf_config=json.dumps({"cluster": cluster, "task": task}),
            legacy_keras=legacy_keras,
            num_threads=max(1, int(bundle.get("CPU", 1))),
            defaults=defaults or {},
        )
        for task, bundle in zip(tasks, bundles, strict=True)
    ]
    group.execute(Setting.apply, [(setting,) for setting in settings])
    return settings


def _pick_port(address: str) -> int:
    """Return a port that is free now. TensorFlow opens it later, so another program may take it first."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def set_threads(num_threads: int) -> None:
    """Set the number of threads of a TensorFlow operation, unless the user's environment does."""
    os.environ.setdefault(_INTRA_THREADS, str(num_threads))


def be_quiet() -> None:
    """Have TensorFlow print only errors, unless the user's environment says otherwise. Users cannot act on its notices
    and warnings."""
    os.environ.setdefault(_LOG_LEVEL, _ERRORS_ONLY)


_KERAS_3: Final = re.compile(keras_internals.CLASSES)


def refuse_keras_3(work: object) -> None:
    """Raise if a training function carries objects or classes of Keras 3: in the ranks ``tf.keras`` is Keras 2.

    An example is a callback of a class that is defined beside the function.

    Args:
        work: The function and its arguments.
    """
    if keras_internals.PACKAGE not in sys.modules:
        return
    try:
        found = _KERAS_3.search(bytes(values.encode_whole(work).data))
    except exceptions.SerializationError:  # sending the function, which comes next, explains the error
        return
    if found is not None:
        raise TypeError(
            f"The training function refers to an object of Keras 3 ({found[0].decode()}), but `tf.keras` is Keras 2 "
            f"(tf-keras) in the ranks of a TensorFlow trainer. Write os.environ['{LEGACY_KERAS}'] = '1' at the top of "
            "the program, above `import tensorflow`; or make the objects of Keras inside the training function; or "
            "train with hocket.train.keras.KerasTrainer, which is for Keras 3. TensorflowConfig(legacy_keras=False) "
            "makes `tf.keras` Keras 3 in the ranks, too."
        )


def choose_keras_backend(name: str, num_threads: int, use_gpu: bool) -> None:
    """Make the calling process's Keras 3 compute with a backend, with at most `num_threads` threads per operation.

    On PyTorch, Keras computes on the GPU that it saw at its import. A rank may be a fork of a process that imported
    Keras and saw other GPUs, so the rank's own device is set.

    Keras fixes its backend at import. So this function cannot be in `hocket.train.keras`, which imports Keras.
    """
    keras = sys.modules.get("keras")
    if keras is not None and keras.backend.backend() != name:
        found = keras.backend.backend()
        raise RuntimeError(
            f"KerasConfig asks for backend={name!r}, but the processes of this session have imported Keras with "
            f"{found!r}, and a process cannot change its backend. Use one backend in a session: call hocket.shutdown() "
            "before the next."
        )
    os.environ["KERAS_BACKEND"] = name
    if name == "torch":
        device = os.environ.setdefault("KERAS_TORCH_DEVICE", "cuda" if use_gpu else "cpu")
        keras_internals.set_torch_device(device)
    set_threads(num_threads)
    be_quiet()
