"""Chief, workers, servers and evaluator: programs for ``tf.distribute.ParameterServerStrategy`` run unchanged.

The training function runs in the chief, rank 0, which is TensorFlow's coordinator. The chief alone reports, and `fit`
returns when it has returned. Each worker and each server of variables is a rank after it, which runs a
``tf.distribute.Server`` and none of the user's code. Such a server cannot be stopped, so those processes are killed
when the chief is done. A program for all roles, which starts a server where TF_CONFIG says so, works too: it only ever
runs as the chief. With `ParameterServers.own_servers` it runs in all roles.

A death has these effects:

- A worker: TensorFlow's coordinator waits until a server answers at the same address, and gives the lost work to
  another worker. So the process is started again with the same TF_CONFIG. The other processes notice only that some
  steps run twice, and that data sets begin again there.
- A server: its variables are lost, and TensorFlow cannot go on. The chief gets an UnavailableError at about the time
  when the driver notices. It is a failure of the group: with `FailureConfig` all start again, and the program restores
  its checkpoint.
- The chief, or the evaluator: a failure of the group too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

from hocket import keywords
from hocket.train import configs
from hocket.train.frameworks import tf_config
from hocket.train.frameworks.tf_keras import config
from hocket.train.run import backend, roles, worker_group

NAME: Final = "parameter_server"
"""Short for ``ParameterServers()``."""

_FAIL_FAST: Final = ("GRPC_FAIL_FAST", "use_caller")
"""Without it a call to a process that is gone waits for it, in every role, and failures go unnoticed."""

_INTER_THREADS: Final = "TF_NUM_INTEROP_THREADS"
"""The variable for the number of operations that a process runs at once. A worker's function waits for the servers in
one of these threads. On a machine with few cores, TensorFlow's default, one per core, may be too few to go on."""

_SETTINGS: Final = "tf_config.settings"
_LEAST: Final = 0.001  # a bundle must hold something


@final
@keywords.explained()
@dataclass(frozen=True, kw_only=True)
class ParameterServers:
    """The servers, and other processes beside the workers, for ``TensorflowTrainer(strategy=...)``.

    ``"parameter_server"`` is short for one server.

    ``ScalingConfig.num_workers`` is the number of workers. The chief, the servers and the evaluator come on top:
    ``num_workers=2`` with one server makes four processes. Those on top hold a worker's CPUs, and no GPU.

    Raises:
        ValueError: A number breaks a rule.
        TypeError: A value has the wrong type.

    Example:
        >>> from hocket import train
        >>> from hocket.train.tensorflow import ParameterServers
        >>> cluster = ParameterServers(num_servers=2)
        >>> [role.name for role in cluster.list_roles(train.ScalingConfig(num_workers=3))]
        ['chief', 'worker 0', 'worker 1', 'worker 2', 'ps 0', 'ps 1']
    """

    num_servers: int = 1
    """The number of processes that hold the variables."""
    num_evaluators: int = 0
    """0 or 1. An evaluator runs the training function, with the task type ``"evaluator"`` in TF_CONFIG. The program
    reads that, and evaluates the checkpoints that it finds. `fit` waits for its end too."""
    own_servers: bool = False
    """Whether the training function runs in workers and servers too, and starts a ``tf.distribute.Server`` there. For
    programs that configure their own servers."""
    max_worker_restarts: int = 10
    """How often each worker alone is started again after its death; -1 for no limit. One more death is a failure of the
    group, which starts the count again. A guess: enough for a day of machines that come and go, and an end for a worker
    that dies at once."""

    def __post_init__(self) -> None:
        for name, least, most in (
            ("num_servers", 1, None),
            ("num_evaluators", 0, 1),
            ("max_worker_restarts", -1, None),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(
                    f"{name} must be an int, but received {value!r}. Leave it out for {getattr(type(self), name)}."
                )
            if value < least or (most is not None and value > most):
                raise ValueError(
                    f"{name} must be {f'{least} or {most}' if most else f'{least} or more'}, but received {value}. "
                    f"Leave it out for {getattr(type(self), name)}."
                )
        own: Any = self.own_servers
        if not isinstance(own, bool):
            raise TypeError(f"own_servers must be True or False, but received {own!r}. Leave it out for False.")

    def list_task_types(self, num_workers: int) -> list[str]:
        """Return each rank's task type, by rank."""
        others = ["ps"] * self.num_servers + [tf_config.EVALUATOR] * self.num_evaluators
        return ["chief"] + ["worker"] * num_workers + others

    def list_roles(self, scaling: configs.ScalingConfig) -> list[roles.Role]:
        """Return each rank's role, by rank: its name, its resources and its work."""
        check_scaling(scaling)
        others = {name: amount for name, amount in scaling.bundle.items() if name == "CPU"} or {"CPU": _LEAST}
        built: list[roles.Role] = []
        counts: dict[str, int] = {}
        for kind in self.list_task_types(scaling.max_workers):
            index = counts.get(kind, 0)
            counts[kind] = index + 1
            is_server = kind in ("worker", "ps")
            role = roles.Role(
                name=f"{kind} {index}" if is_server else kind,
                bundle=scaling.bundle if kind == "worker" else others,
                runs=self.own_servers or not is_server,
                reports=kind == "chief",
                is_awaited=not is_server,
                max_restarts=self.max_worker_restarts if kind == "worker" else 0,
            )
            built.append(role)
        return built


def parse(strategy: object) -> ParameterServers | None:
    """Return the servers that a strategy describes; None if it describes none."""
    if isinstance(strategy, ParameterServers):
        return strategy
    if isinstance(strategy, str):
        if strategy != NAME:
            raise ValueError(
                f"TensorFlow has no strategy={strategy!r}. Write strategy={NAME!r}, which is "
                "ParameterServers(num_servers=1), or leave it out for tf.distribute.MultiWorkerMirroredStrategy."
            )
        return ParameterServers()
    return None


def check_scaling(scaling: configs.ScalingConfig) -> None:
    """Refuse numbers of workers that make no cluster."""
    if scaling.elasticity_enabled:
        raise ValueError(
            "The number of workers in TensorFlow's cluster cannot change, but received "
            f"num_workers={scaling.num_workers}. Write num_workers={scaling.max_workers}; a worker that dies is "
            "started again."
        )
    if scaling.max_workers < 1:
        raise ValueError(
            "ParameterServerStrategy needs one worker process or more, but received "
            f"num_workers={scaling.num_workers}. Write ScalingConfig(num_workers=1)."
        )


@final
@dataclass(frozen=True, kw_only=True)
class ParameterServerBackend(backend.BackendConfig):
    """Settings that make a group the described cluster. The trainer makes them."""

    cluster: ParameterServers
    """The roles."""
    legacy_keras: bool
    """See `TensorflowConfig.legacy_keras`."""

    def list_modules(self, function: Callable[..., object]) -> Sequence[str]:
        """Return the module that imports TensorFlow."""
        return (config.PRELOADED,)

    def check_work(self, work: object) -> None:
        """Refuse objects of Keras 3 if ``tf.keras`` is Keras 2."""
        if self.legacy_keras:
            tf_config.refuse_keras_3(work)

    def list_roles(self, scaling: configs.ScalingConfig) -> Sequence[roles.Role]:
        """Return the roles."""
        return self.cluster.list_roles(scaling)

    def on_start(self, group: worker_group.WorkerGroup) -> None:
        """Set TF_CONFIG in each rank, and start the servers."""
        num_workers = group.scaling.max_workers
        kinds = self.cluster.list_task_types(num_workers)
        defaults = dict([_FAIL_FAST, (_INTER_THREADS, str(max(num_workers + 1, os.cpu_count() or 1)))])
        settings = tf_config.arrange(group, kinds, legacy_keras=self.legacy_keras, defaults=defaults)
        group.notes[_SETTINGS] = settings
        serving = [not role.runs for role in group.roles]
        group.execute(_serve_if, [(is_server,) for is_server in serving])

    def on_replace(self, group: worker_group.WorkerGroup, rank: int) -> None:
        """Give a worker's new process the address of the old one, and start its server."""
        settings: list[tf_config.Setting] = group.notes[_SETTINGS]
        group.call(rank, settings[rank].apply)
        group.call(rank, _serve_if, not group.roles[rank].runs)

    def on_shutdown(self, group: worker_group.WorkerGroup) -> None:
        """Do nothing: a server ends with its process."""


# --- in the ranks ----------------------------------------------------------------------------------------------------

_servers: list[object] = []
"""This process's server. It serves as long as the list refers to it."""


def _serve_if(is_server: bool) -> None:
    """Start a server, by TF_CONFIG, if this rank is a server."""
    if not is_server:
        return
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    server = tf.distribute.Server(
        resolver.cluster_spec(),
        job_name=resolver.task_type,
        task_index=resolver.task_id,
        protocol=resolver.rpc_layer or "grpc",
    )
    _servers[:] = [server]
