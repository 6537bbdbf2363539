"""Clusters: the processes that take part in training with parameter servers, and their roles.

- The **chief** makes the variables and schedules steps. At most one; none is needed where the driver does that work.
- **Workers** compute steps.
- **Servers** hold the variables. TensorFlow's name for them, "ps", is understood everywhere.
- The **evaluator** evaluates snapshots. A cluster has at most one. It and the other members need not know each other.

As in TensorFlow, the members of a cluster are called tasks here, and each task has an index in its role. `Cluster`
reads like TensorFlow's ``ClusterSpec``. These tasks have nothing to do with remote functions.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, final

from hocket import keywords
from hocket.ps import checks

ROLES: Final = ("chief", "worker", "server", "evaluator")
_SPELLINGS: Final = {**{role: role for role in ROLES}, "ps": "server"}
_AT_MOST_ONE: Final = ("chief", "evaluator")

Tasks: TypeAlias = int | Sequence[str] | Mapping[int, str]
"""A role's tasks: their number, or their addresses, or the addresses of some tasks by index."""


@final
@dataclass(frozen=True)
class ClusterTask:
    """One member of a cluster.

    Args:
        role: One of "chief", "worker", "server" and "evaluator". "ps" becomes "server".
        index: The member's index in its role.

    Raises:
        ValueError: The role is unknown, or the index is not a whole number from 0.

    Example:
        >>> from hocket.ps import cluster
        >>> cluster.ClusterTask("ps", 1)
        ClusterTask(role='server', index=1)
    """

    role: str
    index: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "role", _parse_role(self.role))
        index = checks.require_count("index", self.index, f"Give which {self.role} it is, 0 for the first.", least=0)
        object.__setattr__(self, "index", index)


@final
@keywords.explained(
    aliases={
        "worker": "workers",
        "server": "servers",
        "ps": "servers",
        "num_workers": "workers",
        "num_servers": "servers",
    }
)
class Cluster:
    """The tasks of a cluster and their addresses. It is immutable.

    Args:
        jobs: The tasks of each role, as a dict. Each value may be a number, a list of addresses, or a dict of the
            addresses of some tasks by index. TensorFlow's ``ClusterSpec`` and cluster resolvers are accepted, too.
        chief: The number of chiefs, 0 or 1, if `jobs` is not given.
        workers: The number of workers.
        servers: The number of servers.
        evaluator: The number of evaluators: 0 or 1.
        task: The task that this process is, if it is one.

    Two clusters are equal if their tasks and addresses are, whatever `task` is. A cluster without tasks is false.

    Raises:
        ValueError: A role, number, index or address is invalid; there are two chiefs or evaluators; `task` is unknown.

    Example:
        >>> from hocket import ps
        >>> cluster = ps.Cluster(workers=3, servers=2)
        >>> cluster.num_tasks("worker"), cluster.num_tasks("ps")
        (3, 2)
        >>> ps.Cluster({"worker": ["a:1", "b:1"], "ps": {1: "c:1"}}).task_address("server", 1)
        'c:1'
    """

    __slots__ = ("_task", "_tasks")

    def __init__(
        self,
        jobs: Mapping[str, Tasks] | Cluster | object | None = None,
        *,
        chief: int = 0,
        workers: int = 0,
        servers: int = 0,
        evaluator: int = 0,
        task: ClusterTask | None = None,
    ) -> None:
        jobs, task = _read_foreign(jobs, task)
        counts = {"chief": chief, "worker": workers, "server": servers, "evaluator": evaluator}
        if jobs is None:
            jobs = counts
        elif any(counts.values()):
            raise ValueError(
                f"Cluster takes a dict or numbers of tasks, but received both: {jobs!r} and {counts!r}. Put the "
                "numbers into the dict."
            )
        parsed = _parse_jobs(jobs)
        #: The address of each task by role and index, None where unknown. In the order of ROLES and of indices.
        self._tasks = {role: parsed[role] for role in ROLES if parsed.get(role)}
        for role in _AT_MOST_ONE:
            if len(self._tasks.get(role, ())) > 1:
                raise ValueError(
                    f"There must be at most one {role}, but received {len(self._tasks[role])}: {jobs!r}. Make the "
                    "others workers, or leave them out."
                )
        self._task = task
        if task is not None:
            self._check_task(task)

    @classmethod
    def from_tf_config(cls, environ: Mapping[str, str] | None = None) -> Cluster:
        """Return the cluster that TensorFlow's environment variable ``TF_CONFIG`` describes, in JSON.

        Args:
            environ: The mapping that holds the variable. Default: this process's environment.

        Returns:
            The cluster, with this process's task; a cluster without tasks if the variable is missing or empty.

        Raises:
            ValueError: The variable is not JSON, or does not describe a cluster.

        Example:
            >>> from hocket import ps
            >>> config = '{"cluster": {"worker": ["a:1"], "ps": ["b:1"]}, "task": {"type": "ps", "index": 0}}'
            >>> ps.Cluster.from_tf_config({"TF_CONFIG": config}).task
            ClusterTask(role='server', index=0)
        """
        text = (os.environ if environ is None else environ).get("TF_CONFIG", "")
        if not text.strip():
            return cls()
        example = '{"cluster": {"worker": ["host:1"], "ps": ["host:2"]}, "task": {"type": "worker", "index": 0}}'
        try:
            config = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(
                f"TF_CONFIG must be JSON, but received {text!r} ({error}). Write it like this: {example}"
            ) from error
        if not isinstance(config, dict):
            raise ValueError(f"TF_CONFIG must be a JSON object, but received {text!r}. Write it like this: {example}")
        jobs, task = config.get("cluster") or {}, config.get("task") or {}
        for name, value in (("cluster", jobs), ("task", task)):
            if not isinstance(value, dict):
                raise ValueError(
                    f"{name!r} in TF_CONFIG must be a JSON object, but received {value!r}. Write it like this: "
                    f"{example}"
                )
        if task.get("type") is None:
            return cls(jobs)
        return cls(jobs, task=ClusterTask(task["type"], _parse_index(task.get("index", 0))))

    @property
    def jobs(self) -> tuple[str, ...]:
        """The roles that have tasks."""
        return tuple(self._tasks)

    @property
    def task(self) -> ClusterTask | None:
        """The task that this process is; None if it is no task, or its task is unknown."""
        return self._task

    @property
    def num_workers(self) -> int:
        """Number of workers; may be 0."""
        return len(self._tasks.get("worker", ()))

    @property
    def num_servers(self) -> int:
        """Number of servers; may be 0."""
        return len(self._tasks.get("server", ()))

    def num_tasks(self, role: str) -> int:
        """Return the number of a role's tasks.

        Raises:
            ValueError: The role is unknown, or has no tasks.
        """
        return len(self._find(role))

    def task_indices(self, role: str) -> list[int]:
        """Return the indices of a role's tasks, in order. They have gaps if the cluster was made from some tasks only.

        Raises:
            ValueError: The role is unknown, or has no tasks.
        """
        return list(self._find(role))

    def task_address(self, role: str, index: int) -> str | None:
        """Return a task's address; None if the cluster was made from numbers.

        Raises:
            ValueError: There is no such task.
        """
        tasks = self._find(role)
        if index not in tasks:
            raise ValueError(
                f"There is no {_parse_role(role)} {index!r} in this cluster. Use one of its indices: "
                f"{', '.join(map(str, tasks))}."
            )
        return tasks[index]

    def job_tasks(self, role: str) -> list[str | None]:
        """Return the addresses of a role's tasks by index, None where there is no task or its address is unknown.

        Raises:
            ValueError: The role is unknown, or has no tasks.
        """
        tasks = self._find(role)
        return [tasks.get(index) for index in range(max(tasks) + 1)]

    def as_dict(self) -> dict[str, int | list[str] | dict[int, str]]:
        """Return the tasks of each role as `Cluster` accepts them: numbers, lists without gaps, or dicts.

        Example:
            >>> from hocket import ps
            >>> ps.Cluster({"ps": {0: "a:1", 2: "b:1"}, "worker": ["c:1"], "chief": 1}).as_dict()
            {'chief': 1, 'worker': ['c:1'], 'server': {0: 'a:1', 2: 'b:1'}}
        """
        return {role: _write_tasks(tasks) for role, tasks in self._tasks.items()}

    def as_tf_config(self, task: ClusterTask) -> str:
        """Return the value of ``TF_CONFIG`` for a task, with TensorFlow's names.

        Args:
            task: A task of this cluster, or an evaluator.

        Raises:
            ValueError: The task is not in the cluster, or some tasks have no address.

        Example:
            >>> from hocket import ps
            >>> cluster = ps.Cluster({"worker": ["a:1"], "server": ["b:1"]})
            >>> cluster.as_tf_config(ps.ClusterTask("server", 0))
            '{"cluster": {"worker": ["a:1"], "ps": ["b:1"]}, "task": {"type": "ps", "index": 0}}'
        """
        self._check_task(task)
        missing = [role for role, tasks in self._tasks.items() if None in tasks.values()]
        if missing:
            raise ValueError(
                f"TF_CONFIG needs the address of each task, but the tasks of {', '.join(missing)} have none in "
                f"{self!r}. Make the cluster from a dict of addresses."
            )
        jobs = {_foreign(role): tasks for role, tasks in self.as_dict().items()}
        return json.dumps({"cluster": jobs, "task": {"type": _foreign(task.role), "index": task.index}})

    def check_trainable(self) -> None:
        """Raise an error unless the cluster can train: it needs a server and a worker.

        Raises:
            ValueError: There is no server, or no worker.

        Example:
            >>> from hocket import ps
            >>> ps.Cluster(workers=2, servers=1).check_trainable()
        """
        for role, what in (("server", "holds the variables"), ("worker", "computes")):
            if role not in self._tasks:
                raise ValueError(
                    f"There must be at least one {role}, which {what}, but received {self!r}. Write "
                    "Cluster(workers=2, servers=1), say."
                )

    def _find(self, role: str) -> dict[int, str | None]:
        tasks = self._tasks.get(_parse_role(role))
        if tasks is None:
            known = ", ".join(self._tasks) or "none"
            raise ValueError(f"There is no {role!r} in this cluster. Its roles: {known}.")
        return tasks

    def _check_task(self, task: ClusterTask) -> None:
        """Raise unless the task is in the cluster. An evaluator may be outside it, and then has the index 0."""
        tasks = self._tasks.get(task.role, {0: None} if task.role == "evaluator" else {})
        if task.index not in tasks:
            there = f"indices {', '.join(map(str, tasks))}" if tasks else "none"
            raise ValueError(
                f"The task must be one of the cluster's tasks, but received {task.role} {task.index}. {self!r} has "
                f"{there} of that role. Correct the index, or add the task to the cluster."
            )

    def __bool__(self) -> bool:
        return bool(self._tasks)

    def __eq__(self, other: object) -> bool:
        return self._tasks == other._tasks if isinstance(other, Cluster) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple((role, tuple(tasks.items())) for role, tasks in self._tasks.items()))

    def __repr__(self) -> str:
        return f"Cluster({self.as_dict()!r}" + (f", task={self._task!r})" if self._task else ")")


# ---------------------------------------------------------------------------------------------------------------------


# TensorFlow's cluster resolvers, for programs that use them.
def SimpleClusterResolver(  # noqa: N802 (TensorFlow's name)
    cluster_spec: object, task_type: str | None = None, task_id: int | None = None, **ignored: object
) -> Cluster:
    """Return the cluster that the arguments describe.

    Args:
        cluster_spec: Any value that `Cluster` accepts.
        task_type: The role of this process, if it has one.
        task_id: The index of this process in its role.
        **ignored: ``master``, ``environment``, ``num_accelerators`` and ``rpc_layer``, which have no effect here.

    Raises:
        ValueError: See `Cluster`.

    Example:
        >>> from hocket import ps
        >>> ps.SimpleClusterResolver(ps.ClusterSpec({"worker": ["a:1"], "ps": ["b:1"]})).num_servers
        1
    """
    task = ClusterTask(task_type, task_id or 0) if task_type else None
    return Cluster(cluster_spec, task=task)


def TFConfigClusterResolver(**ignored: object) -> Cluster:  # noqa: N802 (the same)
    """Return the cluster that the variable ``TF_CONFIG`` describes; see `Cluster.from_tf_config`.

    Args:
        **ignored: ``task_type``, ``task_id``, ``rpc_layer`` and ``environment``, which have no effect here.

    Raises:
        ValueError: The variable does not describe a cluster.

    Example:
        >>> import os
        >>> from hocket import ps
        >>> os.environ["TF_CONFIG"] = '{"cluster": {"worker": ["a:1", "b:1"], "ps": ["c:1"]}}'
        >>> ps.TFConfigClusterResolver().num_workers
        2
        >>> del os.environ["TF_CONFIG"]
    """
    return Cluster.from_tf_config()


def parse_cluster(given: object) -> Cluster:
    """Return the cluster of a strategy's argument: a cluster, a dict, or a TensorFlow object; None reads TF_CONFIG."""
    if given is None:
        return Cluster.from_tf_config()
    if isinstance(given, Cluster):
        return given
    if isinstance(given, Mapping) or hasattr(given, "cluster_spec") or hasattr(given, "as_dict"):  # or TensorFlow's
        return Cluster(given)
    raise TypeError(
        f"cluster must be a ps.Cluster or a dict, but received {given!r}. Write ps.Cluster(workers=2, servers=1)."
    )


def _read_foreign(jobs: object, task: ClusterTask | None) -> tuple[object, ClusterTask | None]:
    """Return the tasks as a dict, also from another cluster or TensorFlow's objects; and this process's task."""
    if hasattr(jobs, "cluster_spec"):  # a resolver
        kind, index = getattr(jobs, "task_type", None), getattr(jobs, "task_id", None)
        if task is None and kind:
            task = ClusterTask(kind, index or 0)
        jobs = jobs.cluster_spec()
    if isinstance(jobs, Cluster):
        task, jobs = task or jobs.task, jobs._tasks
        if all(address is None for tasks in jobs.values() for address in tasks.values()):  # made from numbers
            jobs = {role: len(tasks) for role, tasks in jobs.items()}
    if hasattr(jobs, "as_dict"):
        jobs = jobs.as_dict()
    return jobs, task


def _parse_role(name: object) -> str:
    if isinstance(name, str) and name in _SPELLINGS:
        return _SPELLINGS[name]
    raise ValueError(
        f"A role must be chief, worker, server (or ps) or evaluator, but received {name!r}. Use one of these."
    )


def _foreign(role: str) -> str:
    return "ps" if role == "server" else role


def _parse_jobs(jobs: object) -> dict[str, dict[int, str | None]]:
    if not isinstance(jobs, Mapping):
        raise ValueError(
            f"A cluster's jobs must be a dict, but received {jobs!r}. Write {{'worker': 2, 'server': 1}}, say."
        )
    parsed: dict[str, dict[int, str | None]] = {}
    for name, tasks in jobs.items():
        role = _parse_role(name)
        if role in parsed:
            raise ValueError(
                f"Each role must be named once, but received {role!r} twice, as 'server' and 'ps': {jobs!r}. Put them "
                "together."
            )
        parsed[role] = _parse_tasks(role, tasks)
    return parsed


def _parse_tasks(role: str, tasks: object) -> dict[int, str | None]:
    if isinstance(tasks, Mapping):
        found = {_parse_index(index): _parse_address(role, address) for index, address in tasks.items()}
        if len(found) < len(tasks):
            raise ValueError(f"Each {role} must have its own index, but received {tasks!r}. Number them from 0.")
        return dict(sorted(found.items()))
    if isinstance(tasks, list | tuple):
        return {index: _parse_address(role, address) for index, address in enumerate(tasks)}
    remedy = "Give a number, a list of addresses, or a dict of addresses by index."
    return dict.fromkeys(range(checks.require_count(f"The number of tasks of {role}", tasks, remedy, least=0)))


def _parse_index(index: object) -> int:
    """Return an index. A string of digits is accepted, because JSON's keys are strings."""
    number = int(index) if isinstance(index, str) and index.isdecimal() else index
    return checks.require_count("A task's index", number, "Number the tasks of each role from 0.", least=0)


def _parse_address(role: str, address: object) -> str:
    if isinstance(address, str) and address:
        return address
    raise ValueError(
        f"The address of a {role} must be a string, but received {address!r}. Write 'host:port', or give only the "
        "number of tasks."
    )


def _write_tasks(tasks: dict[int, str | None]) -> int | list[str] | dict[int, str]:
    addresses = {index: address for index, address in tasks.items() if address is not None}
    if not addresses:
        return len(tasks)
    if list(addresses) == list(range(len(addresses))):
        return list(addresses.values())
    return addresses
