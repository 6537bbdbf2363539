"""The session of this process. `init` or the first use opens it; `shutdown` or the program's exit closes it."""

from __future__ import annotations

import atexit
import collections
import contextlib
import inspect
import logging
import numbers
import os
import sys
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from hocket import _base, exceptions, keywords
from hocket._base import markup, texts
from hocket.core import amounts, engines, environments
from hocket.core import labels as core_labels
from hocket.engine import contract, node

_HERE = ("", "local")
"""Addresses that mean this machine."""

_lock = threading.RLock()
"""Held while a session is opened. Reentrant: in the thread that holds it, a signal handler may open or close one."""

_MOST_SHOWN = 5
"""How many kinds of unfetched errors `shutdown` shows. A guess: users read no more."""

_log = logging.getLogger("hocket")


class SessionContext:
    """Facts about the session that `init` has opened, and a context manager that closes the session.

    Example:
        >>> import hocket
        >>> with hocket.init(num_cpus=1, engine="inprocess") as context:
        ...     context.address_info["engine"]
        'inprocess'
        >>> hocket.is_initialized()
        False
    """

    def __init__(self, address_info: Mapping[str, object], dashboard_url: str = "") -> None:
        self.address_info = address_info
        self.dashboard_url = dashboard_url
        self.python_version = ".".join(map(str, sys.version_info[:3]))
        self.hocket_version = _base.__version__

    def __getitem__(self, name: str) -> Any:
        return self.address_info[name]

    def disconnect(self) -> None:
        """Close the session."""
        shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutdown()

    def __repr__(self) -> str:
        return f"SessionContext({self.address_info})"

    def _repr_html_(self) -> str:
        facts = {**self.address_info, "Hocket": self.hocket_version, "Python": self.python_version}
        return markup.write_facts("Hocket session", {name: str(value) for name, value in facts.items()})


@exceptions.hide_frames_of
def init(
    address: str | None = None,
    *,
    num_cpus: float | None = None,
    num_gpus: float | None = None,
    resources: Mapping[str, float] | None = None,
    namespace: str | None = None,
    labels: Mapping[str, str] | None = None,
    runtime_env: Mapping[str, object] | None = None,
    ignore_reinit_error: bool = False,
    engine: str | None = None,
    object_store_memory: float | None = None,
    object_spilling_directory: str | None = None,
    _temp_dir: str | None = None,
    **ignored: Any,
) -> SessionContext:
    """Open the session. A program need not call this: the first `.remote()`, `put` or `get` opens a default session.

    On one machine this starts no process; the first task does. It opens no socket to which other programs could
    connect.

    Args:
        address: Where to run. ``"local"``: on this machine. ``"auto"``: on the cluster that ``ray start`` has started
            on this machine. ``"host:port"``: on a Ray cluster of which this machine is a node. ``"ray://host:port"``:
            on a Ray cluster, from outside. Default: the environment variable ``HOCKET_ADDRESS``; with ``engine="ray"``
            also ``RAY_ADDRESS``; then this machine.
        num_cpus: How many tasks of one CPU run at once. Default: the CPUs that this process may use, by affinity and
            cgroup.
        num_gpus: How many GPUs tasks and actors may use. Default: the GPUs of the machine.
        resources: Further resources by name, such as ``{"camera": 2}``. The bytes for the option ``memory`` are not
            among them: their keyword is ``_memory``, as in Ray; by default the memory that this process may use, by
            cgroup.
        namespace: The namespace of actors' names. Default: a new one for the session.
        labels: Labels of this machine, for options that choose among nodes: ``{"disk": "ssd"}``.
        runtime_env: The environment of all tasks and actors that name none: ``env_vars``, ``working_dir``,
            ``py_modules``; on Ray also Ray's other parts, such as ``pip``. On a cluster, the default ``working_dir`` is
            the folder of the driver's script.
        ignore_reinit_error: Whether to return the open session, if there is one, instead of raising.
        engine: ``"local"`` (worker processes; the default), ``"inprocess"`` (all work in this process, for debugging)
            or ``"ray"`` (without an address: a Ray of this session alone, on this machine). Default: ``"ray"`` if there
            is an address; then the environment variable ``HOCKET_ENGINE``, then ``"local"``.
        object_store_memory: How many bytes large values (256 KiB and more) may take in memory, in all processes
            together; at least 75 MiB. The rest goes to disk. Default: 30 % of the memory that this process may use, by
            cgroup.
        object_spilling_directory: The folder on disk for these values; an absolute path. The files have no name, and
            are gone with the session, however it ends. Default: the system's folder for temporary files.
        _temp_dir: Ray's name for the folder of all files of a session; `object_spilling_directory` comes first.
        **ignored: Ray's keywords that have no meaning on one machine (``include_dashboard``, ``log_to_driver``, ...).
            The engine "ray" passes them to ``ray.init``.

    Raises:
        RuntimeError: A session is open already, or a keyword is unknown.
        SessionClosedError: The interpreter is ending. The error is also a RuntimeError.
        ValueError: A number is negative or too small, a path is not absolute, or the engine or address is unknown; or
            the call sets the resources of a running cluster.
        ConnectionFailedError: No cluster can be joined at the address. The error is also a ConnectionError.
        VersionMismatchError: The cluster has another version of Python or Ray.
        MissingExtraError: Ray is not installed. The error is also an ImportError.
    """
    if sys.is_finalizing():
        raise exceptions.SessionClosedError(
            "The interpreter is ending, so no session can be opened any more. Open it before the program ends, or in a "
            "function that is registered with atexit."
        )
    _check_keywords(ignored)
    memory_limit = _check_store_memory(object_store_memory)
    spill_folder = _check_folder("object_spilling_directory", object_spilling_directory) or _check_folder(
        "_temp_dir", _temp_dir
    )
    _check_amounts(num_cpus, num_gpus, resources, ignored.get("_memory"))
    if namespace is not None and not isinstance(namespace, str):
        raise TypeError(f"namespace must be a str, such as 'team', but received {namespace!r}.")
    if namespace == "":
        raise ValueError("namespace must not be empty. Leave it out for a new namespace.")
    kind, place = _choose_engine(engine, address)
    if runtime_env is not None:
        _check_environment(runtime_env, kind)
    with _lock:
        current = contract.current_engine
        if current is not None:
            return _describe_open(current, ignore_reinit_error)
        name = str.__str__(namespace) if namespace else ""
        if kind == "ray":
            opened = engines.open_ray(
                address=place,
                num_cpus=num_cpus,
                num_gpus=num_gpus,
                resources=resources,
                labels=labels or {},
                namespace=name,
                object_store_memory=memory_limit,
                spill_folder=spill_folder,
                environment=runtime_env or {},
                options=ignored,
            )
        else:
            node.check_gpus(num_gpus)
            core_labels.check_labels(labels or {})
            demand = node.build_demand(num_cpus, num_gpus, resources, ignored.get("_memory"), store=memory_limit)
            name = name or f"anonymous-{os.urandom(4).hex()}"
            opened = engines.open_engine(
                kind, demand, name, labels or {}, memory_limit=memory_limit, spill_folder=spill_folder
            )
            if runtime_env:
                opened.inherit(contract.Inherited(environments.format_environment(runtime_env)))
        current = contract.current_engine
        if current is not None:  # a signal handler has opened a session meanwhile
            opened.close()
            return _describe_open(current, ignore_reinit_error)
        contract.set_current_engine(opened)
        return _describe(opened)


def _describe_open(current: contract.Engine, ignore_reinit_error: bool) -> SessionContext:
    if not ignore_reinit_error:
        raise RuntimeError(
            "hocket.init() was called twice. Call hocket.shutdown() first, or pass ignore_reinit_error=True to keep "
            "the open session."
        )
    return _describe(current)


def _choose_engine(engine: str | None, address: str | None) -> tuple[str, str]:
    """Return the engine's name and address: from the arguments, then from the environment."""
    if engine is not None and engine not in engines.NAMES:
        raise ValueError(f"engine must be one of {list(engines.NAMES)}, but received {engine!r}.")
    variable = os.environ.get("HOCKET_ADDRESS", "")
    place = variable if address is None else address
    if not isinstance(place, str):
        raise TypeError(f"address must be text such as 'auto' or 'host:port', but received {place!r}.")
    if place in _HERE:
        kind = engine or os.environ.get("HOCKET_ENGINE") or "local"
        if kind not in engines.NAMES:
            raise ValueError(
                f"engine must be one of {list(engines.NAMES)}, but received {kind!r} in the environment variable "
                "HOCKET_ENGINE."
            )
        return kind, place
    if engine not in (None, "ray"):
        source = f"address={place!r}" if address is not None else f"the environment variable HOCKET_ADDRESS={place!r}"
        raise ValueError(
            f"{source} names a Ray cluster, but engine={engine!r} runs on this machine. Leave out one of them; "
            "address='local' means this machine, even if the environment names a cluster."
        )
    return "ray", place


def _check_store_memory(given: float | None) -> int | None:
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise TypeError(
            f"object_store_memory must be a number of bytes, but received {given!r} ({type(given).__name__}). Write "
            "for example object_store_memory=2 * 2**30, or leave it out for 30 % of the memory."
        )
    if not given >= node.MINIMUM_STORE_BYTES:
        raise ValueError(
            f"object_store_memory must be at least {node.MINIMUM_STORE_BYTES:,} bytes (75 MiB), but received "
            f"{given!r}. It is a number of bytes; leave it out for 30 % of the memory."
        )
    return int(min(given, sys.maxsize))


def _check_folder(name: str, given: str | os.PathLike[str] | None) -> str:
    if given is None:
        return ""
    from pathlib import Path  # here, because most sessions name no folder

    path = Path(given)
    if not path.is_absolute():
        raise ValueError(
            f"{name} must be an absolute path, but received {str(path)!r}. Write os.path.abspath({str(path)!r}), or "
            "leave it out for the system's folder for temporary files."
        )
    if path.exists() and not path.is_dir():
        raise ValueError(
            f"{name} must be a folder, but {str(path)!r} is not. Name a folder; it is created if it does not exist."
        )
    return str(path)


def _describe(engine: contract.Engine) -> SessionContext:
    context = engine.view.get_context()
    address, dashboard_url = engines.find_place(engine)
    return SessionContext(
        {
            "address": address,
            "engine": engine.name,
            "node_id": context.node_id,
            "session": context.job_id,
            "namespace": context.namespace,
        },
        dashboard_url,
    )


_IGNORABLE = frozenset(
    {
        "include_dashboard", "dashboard_host", "dashboard_port", "job_config",
        "configure_logging", "logging_level", "logging_format", "logging_config", "log_to_driver",
        "enable_resource_isolation", "cgroup_path", "system_reserved_cpu", "system_reserved_memory", "proxy_server_url",
    }
)  # fmt: skip


def _check_amounts(num_cpus: object, num_gpus: object, resources: object, memory: object) -> None:
    """Raise if an amount of resources is impossible on any machine."""
    if resources is not None and not isinstance(resources, Mapping):
        raise TypeError(
            f"resources must be a dict, but received {texts.safe_repr(resources)}. Write resources={{'camera': 2}}."
        )
    custom: Mapping[str, object] = resources or {}
    for name, amount in custom.items():
        keyword = node.INIT_KEYWORDS.get(name)
        if keyword is not None:
            raise ValueError(
                f"resources must not name {name!r}, which has a keyword of its own, but received "
                f"{texts.safe_repr(amount)} for it. Write hocket.init({keyword}={texts.safe_repr(amount)})."
            )
    given = {"num_cpus": num_cpus, "num_gpus": num_gpus, "_memory": memory}
    for name, amount in {**given, **custom}.items():
        if amount is None:
            continue
        if isinstance(amount, bool) or not isinstance(amount, numbers.Real):
            raise TypeError(f"{name} must be a number, but received {texts.safe_repr(amount)}. Write {name}=2.")
        resource = {"num_cpus": "CPU", "num_gpus": "GPU"}.get(name, name)
        problem = amounts.explain_amount(name, resource, float(amount))
        if problem is not None:
            raise ValueError(problem)


def _check_environment(given: object, engine: str) -> None:
    """Raise if the engine cannot make a runtime environment."""
    if not isinstance(given, Mapping):
        raise TypeError(
            f"runtime_env must be a dict, but received {texts.safe_repr(given)}. Write "
            "runtime_env={'env_vars': {'NAME': 'value'}}."
        )
    problem = environments.check_environment("runtime_env", given)
    if problem is None and engine != "ray":
        problem = environments.check_supported("runtime_env", given)
    if problem is not None:
        raise ValueError(problem)


def _check_keywords(given: Mapping[str, object]) -> None:
    unknown = [name for name in given if name not in _IGNORABLE and not name.startswith("_")]
    if "local_mode" in unknown:
        raise RuntimeError(
            "local_mode does not exist. Use hocket.init(engine='inprocess') to run everything in this process."
        )
    if unknown:
        known = inspect.signature(init).parameters
        close = list(filter(None, [keywords.find_close(one, known) for one in unknown]))
        hint = f" Did you mean {', '.join(close)}?" if close else ""
        raise RuntimeError(
            f"Unknown keyword argument(s): {', '.join(unknown)}.{hint} help(hocket.init) lists the keywords."
        )


_at_shutdown: list[Callable[[], object]] = []


def at_shutdown(function: Callable[[], object]) -> None:
    """Have `shutdown` call a function while the session can still be used: it ends threads that use the session.

    Args:
        function: The function, which is called once, in the thread that closes the session. Its errors are logged.
    """
    _at_shutdown.append(function)


@exceptions.hide_frames_of
def shutdown() -> None:
    """Close the session: every process ends, and every object is gone. Without a session this does nothing."""
    current = contract.current_engine
    if current is not None and current.is_closable:
        while _at_shutdown:
            function = _at_shutdown.pop()
            try:
                function()
            except Exception:  # noqa: BLE001 (what is left of a library must not keep the processes)
                _log.exception("%r raised an error when hocket.shutdown() called it", function)
    with _lock:
        current = contract.current_engine
        if current is None or not current.is_closable:
            return
        contract.set_current_engine(None)
    is_shown = os.environ.get("HOCKET_UNFETCHED_ERRORS", "").lower() not in ("off", "0")
    errors = current.unfetched.list_errors() if current.unfetched is not None and is_shown else []
    current.close()
    _show_unfetched(errors)


def _show_unfetched(errors: list[tuple[str, BaseException]]) -> None:
    """Write the unfetched errors to stderr: a line for each kind, and the traceback of the first. Otherwise a program
    that never asks for its calls' results would end without a sign that all calls have failed."""
    ends = (KeyboardInterrupt, SystemExit)  # a program ends its tasks on purpose by these
    errors = [(name, error) for name, error in errors if not isinstance(exceptions.get_cause(error), ends)]
    if not errors:
        return
    causes = [(name, exceptions.get_cause(error)) for name, error in errors]
    kinds = collections.Counter(
        f"{texts.show_name(name)}: {texts.name_class(type(cause))}: {texts.cut(texts.safe_text(cause), 200)}"
        for name, cause in causes
    )
    many = f"{len(causes)} errors of tasks were" if len(causes) > 1 else "The error of a task was"
    lines = [
        (
            f"{many} never fetched: hocket.get() on a task's reference raises its error. "
            "HOCKET_UNFETCHED_ERRORS=off hides this."
        )
    ]
    lines += [
        f"  {text}" + (f" ({count} times)" if count > 1 else "") for text, count in kinds.most_common(_MOST_SHOWN)
    ]
    if len(kinds) > _MOST_SHOWN:
        lines.append(f"  and {len(kinds) - _MOST_SHOWN} other kinds; hocket.error_info() lists the last 1,000.")
    with contextlib.suppress(AttributeError, OSError, ValueError):  # there may be no stderr, or a closed one
        sys.stderr.write("\n".join([*lines, texts.safe_text(errors[0][1]).rstrip(), ""]))
        sys.stderr.flush()


def is_initialized() -> bool:
    """Return whether a session is open."""
    return contract.current_engine is not None


def get_engine() -> contract.Engine:
    """Return the engine of the session; open a session if there is none."""
    current = contract.current_engine
    if current is None:
        init(ignore_reinit_error=True)
        return contract.get_current_engine()
    return current


def get_limits() -> Mapping[str, str]:
    """Return the limits of the session's engine; without a session, of the engine that the first use would open."""
    current = contract.current_engine
    return engines.get_limits(_choose_engine(None, None)[0]) if current is None else current.limits


def check_environment(engine: contract.Engine, problem: str | None) -> None:
    """Raise ValueError for a runtime environment that only Ray can make, if the engine is another.

    Args:
        engine: The engine of the work.
        problem: The error message of engines of one machine for the environment; None if they can make it.
    """
    if problem is not None and engine.name != "ray":
        raise ValueError(problem)


def get_open_engine() -> contract.Engine:
    """Return the engine of the open session; raise SessionClosedError if there is none."""
    current = contract.current_engine
    if current is None:
        raise exceptions.SessionClosedError(
            "No session is open. Call hocket.init() first. References of a session that was shut down are gone: "
            "make them again."
        )
    return current


def _forget_in_fork() -> None:
    """Let a fork of the driver begin without a session: the workers belong to the parent."""
    global _lock  # noqa: PLW0603 (another thread of the parent may have held the old one)
    _lock = threading.RLock()
    _at_shutdown.clear()
    engine = contract.current_engine
    if engine is not None:
        contract.set_current_engine(None)
        engine.cut_off()


atexit.register(shutdown)
os.register_at_fork(after_in_child=_forget_in_fork)
