"""The session's tasks, actors, objects and workers: Ray's state API, answered at once from memory.

Functions such as `list_tasks` and `get_task` return records; functions such as `summarize_tasks` return counts. They
work in the driver and inside tasks and actors. The latest finished ones are remembered: 10,000 tasks, 1,000 actors and
workers. Of a function's runs under a millisecond, the first 1,000 are remembered and then one in 64; `summarize_tasks`
counts all of them.

Filters are ``(field, "=" or "!=", value)``, and all of them must hold. Fields and text values ignore case. Fields that
Ray fills in only with ``detail=True`` are None without it; `get_task` and the other ``get`` functions fill in all.

Example:
    >>> import hocket
    >>> from hocket.util import state
    >>> @hocket.remote
    ... def double(x):
    ...     return 2 * x
    >>> hocket.get([double.remote(1), double.remote(2)])
    [2, 4]
    >>> [(task.name, task.state) for task in state.list_tasks(filters=[("state", "=", "FINISHED")])]
    [('double', 'FINISHED'), ('double', 'FINISHED')]
"""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from hocket._base import missing as _missing
from hocket.core import session

DEFAULT_LIMIT = 100
"""How many records to list by default; Ray's number."""

Filter = tuple[str, str, Any]
"""A condition: ``(field, "=" or "!=", value)``."""

_DETAIL: dict[str, object] = {"detail": True}
"""Metadata of fields that are filled in only on request."""

S = TypeVar("S", bound="StateRecord")
S_co = TypeVar("S_co", bound="StateRecord", covariant=True)
F = TypeVar("F", bound=Callable[..., object])


@dataclass(frozen=True, kw_only=True)
class StateRecord:
    """A record of the state API. Its fields are attributes and, as in Ray, keys."""

    def asdict(self) -> dict[str, Any]:
        """Return the fields as a dictionary."""
        return dataclasses.asdict(self)

    def get(self, name: str, default: Any = None) -> Any:
        """Return a field, or the default if there is no such field."""
        return getattr(self, name) if name in self.list_fields() else default

    def __getitem__(self, name: str) -> Any:
        if name not in self.list_fields():
            raise KeyError(f"{type(self).__name__} has no field {name!r}. It has {sorted(self.list_fields())}.")
        return getattr(self, name)

    @classmethod
    def list_fields(cls) -> frozenset[str]:
        """Return the names of all fields."""
        return frozenset(one.name for one in dataclasses.fields(cls))

    @classmethod
    def list_details(cls) -> frozenset[str]:
        """Return the names of the fields that are filled in only on request."""
        return frozenset(one.name for one in dataclasses.fields(cls) if one.metadata.get("detail"))


@dataclass(frozen=True, kw_only=True)
class TaskState(StateRecord):
    """A task, call or constructor, as of its last attempt."""

    task_id: str
    attempt_number: int
    name: str
    state: str
    """``PENDING_ARGS_AVAIL``, ``PENDING_NODE_ASSIGNMENT``, ``PENDING_ACTOR_TASK_ORDERING_OR_CONCURRENCY``,
    ``SUBMITTED_TO_WORKER``, ``RUNNING``, ``RUNNING_IN_RAY_GET``, ``FINISHED`` or ``FAILED``."""
    job_id: str
    actor_id: str | None
    type: str
    """``NORMAL_TASK``, ``ACTOR_CREATION_TASK`` or ``ACTOR_TASK``."""
    func_or_class_name: str
    parent_task_id: str
    """All zeros for the driver's main program."""
    node_id: str | None
    worker_id: str | None
    worker_pid: int | None
    error_type: str | None
    required_resources: dict[str, float] | None = dataclasses.field(default=None, metadata=_DETAIL)
    placement_group_id: str | None = dataclasses.field(default=None, metadata=_DETAIL)
    start_time_ms: int | None = dataclasses.field(default=None, metadata=_DETAIL)
    """Unix time; None if the task has not started."""
    end_time_ms: int | None = dataclasses.field(default=None, metadata=_DETAIL)
    error_message: str | None = dataclasses.field(default=None, metadata=_DETAIL)


@dataclass(frozen=True, kw_only=True)
class ActorState(StateRecord):
    """An actor."""

    actor_id: str
    class_name: str
    state: str
    """``DEPENDENCIES_UNREADY``, ``PENDING_CREATION``, ``ALIVE``, ``RESTARTING`` or ``DEAD``."""
    job_id: str
    name: str
    node_id: str
    pid: int
    """0 while the actor has no process, and after its death."""
    namespace: str
    required_resources: dict[str, float] | None = dataclasses.field(default=None, metadata=_DETAIL)
    death_cause: dict[str, str] | None = dataclasses.field(default=None, metadata=_DETAIL)
    is_detached: bool | None = dataclasses.field(default=None, metadata=_DETAIL)
    placement_group_id: str | None = dataclasses.field(default=None, metadata=_DETAIL)
    num_restarts: int | None = dataclasses.field(default=None, metadata=_DETAIL)
    pending_calls: int | None = dataclasses.field(default=None, metadata=_DETAIL)
    """Calls without an answer yet."""

    @property
    def ray_namespace(self) -> str:
        """The namespace, under Ray's name for it."""
        return self.namespace


@dataclass(frozen=True, kw_only=True)
class WorkerState(StateRecord):
    """A process of the session."""

    worker_id: str
    is_alive: bool
    worker_type: str
    """``DRIVER`` or ``WORKER``."""
    exit_type: str | None
    """``INTENDED_SYSTEM_EXIT`` or ``SYSTEM_ERROR``; None while the process lives."""
    node_id: str
    ip: str
    pid: int
    state: str
    """``DRIVER``, ``IDLE``, ``LEASED`` (it runs tasks), ``ACTOR`` or ``DEAD``."""
    exit_detail: str | None = dataclasses.field(default=None, metadata=_DETAIL)
    end_time_ms: int | None = dataclasses.field(default=None, metadata=_DETAIL)
    actor_id: str | None = dataclasses.field(default=None, metadata=_DETAIL)
    task_name: str | None = dataclasses.field(default=None, metadata=_DETAIL)
    """The task that the worker runs now."""
    task_seconds: float | None = dataclasses.field(default=None, metadata=_DETAIL)
    """How long the task has run."""
    queued_tasks: int | None = dataclasses.field(default=None, metadata=_DETAIL)
    """How many tasks wait in this worker's queue behind the running one."""


@dataclass(frozen=True, kw_only=True)
class ObjectState(StateRecord):
    """An object that the session holds."""

    object_id: str
    object_size: int
    """Bytes; 0 until the object exists."""
    task_status: str
    """The state of the task that makes it."""
    reference_type: str
    """``ACTOR_HANDLE``, ``USED_BY_PENDING_TASK`` or ``LOCAL_REFERENCE``."""
    call_site: str
    """The source line that made the object, such as ``train.py:12``; empty for small values, which do not keep it."""
    type: str
    """The holder of the reference: ``DRIVER`` or ``WORKER``."""
    pid: int
    ip: str
    reference_count: int


@dataclass(frozen=True, kw_only=True)
class NodeState(StateRecord):
    """This machine."""

    node_id: str
    node_ip: str
    is_head_node: bool
    state: str
    state_message: str | None
    node_name: str
    resources_total: dict[str, float]
    labels: dict[str, str]
    start_time_ms: int | None = dataclasses.field(default=None, metadata=_DETAIL)
    end_time_ms: int | None = dataclasses.field(default=None, metadata=_DETAIL)


@dataclass(frozen=True, kw_only=True)
class JobState(StateRecord):
    """This session."""

    job_id: str
    submission_id: str | None
    entrypoint: str
    type: str
    status: str
    message: str | None
    error_type: str | None
    driver_info: dict[str, str]
    start_time_ms: int | None = dataclasses.field(default=None, metadata=_DETAIL)
    namespace: str | None = dataclasses.field(default=None, metadata=_DETAIL)


@dataclass(frozen=True, kw_only=True)
class PlacementGroupState(StateRecord):
    """A placement group."""

    placement_group_id: str
    name: str
    creator_job_id: str
    state: str
    """``PENDING`` or ``CREATED``."""
    bundles: dict[int, dict[str, float]] | None = dataclasses.field(default=None, metadata=_DETAIL)
    is_detached: bool | None = dataclasses.field(default=None, metadata=_DETAIL)
    strategy: str | None = dataclasses.field(default=None, metadata=_DETAIL)


@dataclass(frozen=True, kw_only=True)
class RuntimeEnvState(StateRecord):
    """A runtime environment."""

    runtime_env: dict[str, Any]
    success: bool
    node_id: str


@dataclass(frozen=True, kw_only=True)
class ClusterEventState(StateRecord):
    """A failure of a task or a worker."""

    severity: str
    time: str
    source_type: str
    message: str
    event_id: str


def _list(
    kind: str, record_type: type[S], filters: Sequence[Filter] | None, limit: int, detail: bool, address: str | None
) -> list[S]:
    _check_address(address)
    if type(limit) is not int or limit < 1:
        raise ValueError(f"limit must be a whole number of 1 or more, but received {limit!r}.")
    checked = [_check_filter(one, record_type) for one in filters or ()]
    found = session.get_open_engine().view.list_records(kind, checked, min(limit, sys.maxsize))
    names = record_type.list_fields() - (frozenset() if detail else record_type.list_details())
    return [record_type(**{name: value for name, value in record.items() if name in names}) for record in found]


def _check_address(address: str | None) -> None:
    if address not in (None, "auto", "local"):
        raise ValueError(
            f"address must be None, 'auto' or 'local', but received {address!r}: the state API shows the session of "
            "this process. For the sessions of other processes, run `hocket status`."
        )


def _check_filter(one: Any, record_type: type[StateRecord]) -> Filter:
    try:
        name, sign, value = one
    except (TypeError, ValueError):
        raise ValueError(
            f"A filter is a tuple (field, '=' or '!=', value), but received {one!r}. Write ('state', '=', 'RUNNING')."
        ) from None
    if sign not in ("=", "!="):
        raise ValueError(f"A filter compares with '=' or '!=', but received {sign!r} in {one!r}. Use one of these two.")
    name = str(name).lower()
    if name not in record_type.list_fields():
        raise ValueError(
            f"{name!r} is not a field of {record_type.__name__}. Filter by one of {sorted(record_type.list_fields())}."
        )
    return name, sign, value


class _ListRecords(Protocol[S]):
    """The arguments of `list_tasks` and the other list functions."""

    def __call__(
        self,
        address: str | None = None,
        filters: Sequence[Filter] | None = None,
        limit: int = DEFAULT_LIMIT,
        timeout: float = 30,
        detail: bool = False,
        raise_on_missing_output: bool = True,
    ) -> list[S]: ...


class _GetRecord(Protocol[S_co]):
    """The arguments of `get_task` and the other get functions."""

    def __call__(self, id: str, address: str | None = None, timeout: float = 30) -> S_co | None: ...


def _build_list(kind: str, record_type: type[S], field: str, what: str) -> _ListRecords[S]:
    """Return the function `list_<kind>`.

    Args:
        kind: The engines' name for the kind of records.
        record_type: The type of the records.
        field: The field in the docstring's example of a filter.
        what: The start of the docstring.
    """

    def list_records(
        address: str | None = None,
        filters: Sequence[Filter] | None = None,
        limit: int = DEFAULT_LIMIT,
        timeout: float = 30,
        detail: bool = False,
        raise_on_missing_output: bool = True,
    ) -> list[S]:
        return _list(kind, record_type, filters, limit, detail, address)

    return _named(
        list_records,
        f"list_{kind}",
        list[record_type],  # type: ignore[valid-type]
        f"""Return {what}.

    Args:
        address: For Ray programs; the session of this process is shown.
        filters: Conditions that each record must meet, such as ``[("{field}", "=", ...)]``.
        limit: The most records to return.
        timeout: For Ray programs; the answer comes from memory.
        detail: Fill in all fields.
        raise_on_missing_output: For Ray programs; nothing is ever missing.

    Raises:
        ValueError: A filter names an unknown field, or has another operator than ``=`` and ``!=``; the limit
            is below 1.
    """,
    )


def _build_get(noun: str, record_type: type[S]) -> _GetRecord[S]:
    """Return the function `get_<noun>`."""

    def get_record(id: str, address: str | None = None, timeout: float = 30) -> S | None:
        found = _list(f"{noun}s", record_type, [(f"{noun}_id", "=", id)], 1, True, address)
        return found[0] if found else None

    words = noun.replace("_", " ")
    doc = f"Return the {words} with that id and all its fields; None if the id is unknown."
    return _named(get_record, f"get_{noun}", record_type | None, doc)


def _named(function: F, name: str, returns: object, doc: str) -> F:
    function.__name__ = function.__qualname__ = name
    function.__annotations__["return"] = returns
    function.__doc__ = doc
    return function


list_tasks = _build_list(
    "tasks",
    TaskState,
    "state",
    "the tasks, calls and constructors; the living first, then the last that are over, latest first",
)
list_actors = _build_list("actors", ActorState, "state", "the actors, the dead ones last")
list_objects = _build_list("objects", ObjectState, "type", "the objects that the session holds")
list_workers = _build_list(
    "workers", WorkerState, "state", "the processes of the session: the driver, its workers, and those that have ended"
)
list_nodes = _build_list("nodes", NodeState, "state", "the machines: this one")
list_jobs = _build_list("jobs", JobState, "status", "the jobs: this session")
list_placement_groups = _build_list("placement_groups", PlacementGroupState, "state", "the placement groups")
list_runtime_envs = _build_list(
    "runtime_envs",
    RuntimeEnvState,
    "success",
    "the runtime environments that were set up; workers share the driver's, so there are none",
)
list_cluster_events = _build_list(
    "cluster_events", ClusterEventState, "severity", "the failures of this session, oldest first"
)

get_task = _build_get("task", TaskState)
get_actor = _build_get("actor", ActorState)
get_worker = _build_get("worker", WorkerState)
get_node = _build_get("node", NodeState)
get_job = _build_get("job", JobState)
get_placement_group = _build_get("placement_group", PlacementGroupState)


def get_objects(id: str, address: str | None = None, timeout: float = 30) -> list[ObjectState]:
    """Return the object with an id, as a list of at most one record."""
    return _list("objects", ObjectState, [("object_id", "=", id)], DEFAULT_LIMIT, True, address)


def list_logs(*args: object, **kwargs: object) -> list[str]:
    """Raise, because there are no log files.

    Raises:
        NotImplementedError: Always; the message says where the output is.
    """
    raise NotImplementedError(_NO_LOGS)


def get_log(*args: object, **kwargs: object) -> str:
    """Raise, because there are no log files.

    Raises:
        NotImplementedError: Always; the message says where the output is.
    """
    raise NotImplementedError(_NO_LOGS)


_NO_LOGS = (
    "No log files are kept: the workers' output appears in the driver's terminal at once, and the last lines of a dead "
    "worker's stderr are in the error of its task. Redirect the driver's output to keep it, or see hocket.error_info()."
)


def summarize_tasks(
    address: str | None = None, timeout: float = 30, raise_on_missing_output: bool = True
) -> dict[str, Any]:
    """Return how many tasks of each function are in each state, with Ray's keys.

    Example:
        >>> import hocket
        >>> from hocket.util import state
        >>> @hocket.remote
        ... def double(x):
        ...     return 2 * x
        >>> hocket.get(double.remote(1))
        2
        >>> state.summarize_tasks()["cluster"]["summary"]["double"]["state_counts"]
        {'FINISHED': 1}
    """
    _check_address(address)
    summary: dict[str, Any] = {}
    totals: Counter[str] = Counter()
    for row in session.get_open_engine().view.list_records("task_counts"):
        name, kind = row["func_or_class_name"], row["type"]
        entry = summary.setdefault(name, {"func_or_class_name": name, "type": kind, "state_counts": {}})
        entry["state_counts"][row["state"]] = entry["state_counts"].get(row["state"], 0) + row["count"]
        totals[kind] += row["count"]
    return {
        "cluster": {
            "summary": summary,
            "total_tasks": totals["NORMAL_TASK"],
            "total_actor_tasks": totals["ACTOR_TASK"],
            "total_actor_scheduled": totals["ACTOR_CREATION_TASK"],
            "summary_by": "func_name",
        }
    }


def summarize_actors(
    address: str | None = None, timeout: float = 30, raise_on_missing_output: bool = True
) -> dict[str, Any]:
    """Return how many actors of each class are in each state, with Ray's keys."""
    _check_address(address)
    summary: dict[str, Any] = {}
    rows = session.get_open_engine().view.list_records("actors")
    for row in rows:
        entry = summary.setdefault(row["class_name"], {"class_name": row["class_name"], "state_counts": {}})
        entry["state_counts"][row["state"]] = entry["state_counts"].get(row["state"], 0) + 1
    return {"cluster": {"summary": summary, "total_actors": len(rows), "summary_by": "class"}}


def summarize_objects(
    address: str | None = None, timeout: float = 30, raise_on_missing_output: bool = True
) -> dict[str, Any]:
    """Return the number of objects of each kind and their total size, with Ray's keys."""
    _check_address(address)
    rows = session.get_open_engine().view.list_records("objects")
    summary = {
        "total_objects": len(rows),
        "total_size_mb": sum(row["object_size"] for row in rows) / 2**20,
        "total_num_workers": len({row["pid"] for row in rows if row["type"] == "WORKER"}),
        "total_num_nodes": 1,
        "task_state_counts": dict(Counter(row["task_status"] for row in rows)),
        "ref_type_counts": dict(Counter(row["reference_type"] for row in rows)),
    }
    totals = {name: summary[name] for name in ("total_objects", "total_size_mb")}
    return {"cluster": {"summary": {"all": summary}, **totals, "summary_by": "callsite"}}


_missing.explain(__name__)
