"""The connection of a session to its Ray, which the session starts, joins or takes over.

*Started*: a Ray of this session alone, on this machine. It has its own token, which its processes get by environment
variable. It binds to loopback, and its files are in one folder of ours. `sweeper` waits beside it, and removes all
remains when the session ends, however it ends.

*Joined*: by ``host:port`` from a machine of the cluster, or by ``ray://host:port`` from elsewhere. Ray waits for
minutes if nothing answers, and ends the process if its token is missing. So the engine first checks whether a Ray
listens, takes the token, has our versions, and has a node on this machine. Each answer must come within
`addresses.ANSWER_SECONDS`. The package itself and the driver's modules travel to the nodes (`packages`), which need
only Ray.

*Taken over*: the user has called ``ray.init`` before. That Ray belongs to the user, and stays when the session ends.

One gap remains: a SIGKILL of the driver and the sweeper at the same moment leaves the folder, and Ray's agents for some
seconds.
"""

from __future__ import annotations

import logging
import os
import platform
import secrets
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hocket import _base, exceptions
from hocket._base.internals import ray as ray_internals
from hocket.engine.ray import access, adapter, addresses, folders, packages

ray = adapter.ray

LOOPBACK = "127.0.0.1"

PACKAGE = Path(_base.__file__).parents[1]
"""The folder of this package."""

WORKER_SECONDS = 60.0
"""How many seconds a Ray of the user's may take to start a worker. A guess: its runtime environment may have packages
to install."""

_REFUSALS = ("UNAUTHENTICATED", "PERMISSION_DENIED")
"""The statuses by which Ray's servers refuse a wrong or missing token."""

PRINT_SECONDS = 0.5
"""How many seconds the driver waits at its end for the workers' last output. Ray collects output from files about twice
a second, and does not report when it is done; at a driver's exit it waits for as long itself."""

_FOR_STARTING: dict[str, object] = {
    "num_cpus": None,
    "num_gpus": None,
    "resources": None,
    "labels": {},
    "object_store_memory": None,
    "spill_folder": "",
}
"""The fields of a request that only a Ray of our own can fulfil, each with the value for "not given"."""

_ADVICE = {
    "Ray": "pip install ray=={}",
    "Hocket": "pip install hocket=={}",
    "Python": "a driver with Python {}, for example with conda create python={} or uv venv --python {}",
}
"""The advice about a version that differs from the cluster's; ``{}`` stands for the cluster's version."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """A session's request to its Ray: the arguments of `hocket.init`."""

    #: The address of the Ray. ``""``: the one in RAY_ADDRESS, or else a new Ray; ``"local"``: a new Ray; ``"auto"``:
    #: the Ray that runs on this machine.
    address: str = ""
    num_cpus: float | None = None
    num_gpus: float | None = None
    resources: Mapping[str, float] | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    #: The namespace of actors' names; empty for a new one, or for the namespace of a Ray that is taken over.
    namespace: str = ""
    #: Bytes; None for Ray's own choice.
    object_store_memory: int | None = None
    #: The folder for values that do not fit into memory; empty for Ray's own choice.
    spill_folder: str = ""
    #: The runtime environment, as the user gave it.
    environment: Mapping[str, Any] = field(default_factory=dict)
    #: Ray's other keywords of ``ray.init``.
    options: Mapping[str, Any] = field(default_factory=dict)


class Connection:
    """This process's connection to a Ray as its driver, until `close`.

    Args:
        address: The cluster's address: ``host:port`` or ``ray://host:port``.
        dashboard_url: The address of the cluster's dashboard; empty if it has none.
        is_owner: Whether we started this Ray.
        is_attached: Whether the user's own code connected this process, and will disconnect it.
        namespace: The namespace of actors' names; empty for Ray's.
        end: A function that disconnects, and ends the Ray if it is ours.
    """

    def __init__(
        self,
        address: str,
        dashboard_url: str,
        *,
        is_owner: bool,
        is_attached: bool = False,
        namespace: str = "",
        end: Callable[[], None],
    ) -> None:
        self.address = address
        self.dashboard_url = dashboard_url
        self.is_owner = is_owner
        self.is_attached = is_attached
        context = ray.get_runtime_context()
        self.namespace: str = namespace or context.namespace
        #: The runtime environment of the whole session, with the addresses of uploaded folders. If a task has its own
        #: ``py_modules`` or ``working_dir``, Ray replaces the session's by these.
        self.environment: dict[str, Any] = dict(context.runtime_env)
        self._end: Callable[[], None] | None = end

    def close(self) -> None:
        """End a Ray that we started, and remove its remains; leave a Ray that we joined; do nothing to one that we took
        over. A second call does nothing."""
        end, self._end = self._end, None
        if end is not None:
            end()


def connect(request: Request) -> Connection:
    """Make this process the driver of a Ray."""
    if ray.is_initialized():
        return _take_over(request)
    where = request.address or os.environ.get("RAY_ADDRESS") or "local"
    if where == "local":
        return _start(request)
    if where == "auto":
        where = _find_running()
    address = addresses.parse_address(where)
    addresses.knock(address)
    _refuse_resources(request, where)
    return _join(address, request)


def _refuse_resources(request: Request, where: str) -> None:
    given = [name for name, nothing in _FOR_STARTING.items() if getattr(request, name) not in (nothing, None)]
    if given:
        raise ValueError(
            f"{', '.join(given)} can be set only for a Ray that hocket.init starts, but the Ray at {where!r} runs "
            "already. Leave the keyword out, or set the amount when you start the nodes: ray start --num-cpus=..."
        )


def _list_init_keywords(request: Request) -> dict[str, object]:
    """Return the keywords of `ray.init` for started and joined Rays. By default Ray's own log has only errors."""
    namespace = request.namespace or f"anonymous-{os.urandom(4).hex()}"
    return {"namespace": namespace, "logging_level": logging.ERROR, **request.options}


# --- taking over ------------------------------------------------------------------------------------------------------


def _take_over(request: Request) -> Connection:
    current = str(ray.get_runtime_context().gcs_address)
    if request.address not in ("", "auto", current):
        raise ValueError(
            f"ray.init has already connected this process to the Ray at {current!r}, so it cannot connect to "
            f"{request.address!r}. Leave out address=, or call ray.shutdown() first."
        )
    _compare_resources(request, current)
    _check_package_on_nodes(current)
    return Connection(current, "", is_owner=False, is_attached=True, namespace=request.namespace, end=lambda: None)


def _compare_resources(request: Request, where: str) -> None:
    """Raise unless a Ray of the user's has exactly the requested resources, because they cannot be changed."""
    total = ray.cluster_resources()
    asked = {"CPU": request.num_cpus, "GPU": request.num_gpus, "object_store_memory": request.object_store_memory}
    for name, amount in {**asked, **(request.resources or {})}.items():
        if amount is not None and total.get(name, 0) != amount:
            raise ValueError(
                f"hocket.init received {amount:g} as the amount of {name!r}, but the Ray at {where!r}, to which this "
                f"process is connected, has {total.get(name, 0):g}. Leave it out, or call ray.shutdown() first: "
                "hocket.init then starts a Ray with this amount."
            )
    missing = {
        name: text
        for name, text in request.labels.items()
        if not any(node["Labels"].get(name) == text for node in ray.nodes())
    }
    if missing or request.spill_folder:
        raise ValueError(
            f"hocket.init received {missing or {'object_spilling_directory': request.spill_folder}}, which cannot be "
            f"set on the running Ray at {where!r}, to which this process is connected. Leave it out, or call "
            "ray.shutdown() first: hocket.init then starts a Ray with it."
        )


def _check_package_on_nodes(where: str) -> None:
    """Raise unless the nodes of a Ray of the user's have this package: nothing was sent to them."""

    @ray.remote(num_cpus=0)  # type: ignore[untyped-decorator,unused-ignore]
    def read_version() -> str | None:
        try:
            from importlib import import_module  # here, because this function travels without the rest of the module

            return str(import_module("hocket").__version__)
        except ImportError:
            return None

    try:
        found = ray.get(read_version.remote(), timeout=WORKER_SECONDS)
    except ray.exceptions.GetTimeoutError as error:
        raise exceptions.ConnectionFailedError(
            f"The Ray at {where!r} has not run a task that needs no CPU within {WORKER_SECONDS:g} seconds, so it does "
            "not work properly. See `ray status` and the logs of its nodes, or call ray.shutdown() and let hocket.init "
            "start or join one."
        ) from error
    if found is None:
        raise exceptions.ConnectionFailedError(
            f"The workers of the Ray at {where!r} cannot import hocket. Replace ray.init by "
            "hocket.init(address=...), which sends the package to them, or write ray.init(runtime_env={'py_modules': "
            f"[{str(PACKAGE)!r}]}})."
        )
    compare_versions(where, {"Hocket": _base.__version__}, {"Hocket": found})


# --- starting ---------------------------------------------------------------------------------------------------------


def _start(request: Request) -> Connection:
    options = {"include_dashboard": False, "_node_ip_address": LOOPBACK, **_list_init_keywords(request)}
    amounts = {name: getattr(request, name) for name in _FOR_STARTING if name != "spill_folder"}
    if request.spill_folder:
        Path(request.spill_folder).mkdir(parents=True, exist_ok=True)
        amounts["object_spilling_directory"] = request.spill_folder
    place = folders.Folder()
    try:
        with (
            access.settings(_build_settings(place), loopback=options["_node_ip_address"] == LOOPBACK),
            ray_internals.free_agent_port(),
        ):
            context = ray.init(
                address="local",
                _temp_dir=place.path,
                runtime_env=dict(request.environment) or None,
                **{name: amount for name, amount in amounts.items() if amount not in (None, {})},
                **options,
            )
    except BaseException:
        _end_started(place)
        raise
    facts = context.address_info
    return Connection(
        str(facts["gcs_address"]), _format_url(context.dashboard_url), is_owner=True, end=lambda: _end_started(place)
    )


def _build_settings(place: folders.Folder) -> dict[str, str]:
    """Return the environment variables of a Ray that we start, and of its workers."""
    given = os.environ
    found = {
        **place.environment,
        access.MODE_VARIABLE: "token",
        "RAY_USAGE_STATS_ENABLED": "0",
        # The user sees each line of the program, and not "[repeated 3x across cluster]".
        "RAY_DEDUP_LOGS": given.get("RAY_DEDUP_LOGS", "0"),
        # Any free port instead of Ray's two fixed ones, so that sessions do not collide.
        "AUTOSCALER_METRIC_PORT": given.get("AUTOSCALER_METRIC_PORT", "0"),
        "DASHBOARD_METRIC_PORT": given.get("DASHBOARD_METRIC_PORT", "0"),
        "PYTHONPATH": os.pathsep.join(_list_paths(given.get("PYTHONPATH", ""))),
    }
    if not given.get(access.TOKEN_VARIABLE) and not given.get(access.TOKEN_PATH_VARIABLE):
        found[access.TOKEN_VARIABLE] = secrets.token_hex(32)
    return found


def _list_paths(given: str) -> list[str]:
    """Return the folders from which workers on this machine import: this process's folders, in the same order."""
    script = packages.find_script_folder(sys.modules.get("__main__"))
    found = [
        *([str(script)] if script else []),
        *packages.list_import_folders(),
        *filter(None, given.split(os.pathsep)),
    ]
    return list(dict.fromkeys(found))


def _end_started(place: folders.Folder) -> None:
    _leave()
    place.clear()


def _leave() -> None:
    time.sleep(PRINT_SECONDS)
    ray.shutdown(wait_for_processes=True)
    ray_internals.reload_settings()


# --- joining ----------------------------------------------------------------------------------------------------------


def _find_running() -> str:
    found = os.environ.get("RAY_ADDRESS") or access.read_running_address()
    if not found or found in ("auto", "local"):
        raise exceptions.ConnectionFailedError(
            "address='auto' joins the Ray that runs on this machine, but none runs here. Start one with `ray start "
            "--head`, give the address of another, or write hocket.init(engine='ray'), which starts a new one."
        )
    return found


def _join(address: addresses.Address, request: Request) -> Connection:
    settings = {
        "RAY_DEDUP_LOGS": os.environ.get("RAY_DEDUP_LOGS", "0"),
        # In a submitted job, the program may add to the job's environment. Without this, Ray refuses fields in both.
        "RAY_OVERRIDE_JOB_RUNTIME_ENV": "1",
    }
    with access.settings(settings, loopback=address.is_loopback() and not address.by_client):
        _check_token(address)
        if not address.by_client:
            _check_versions(address)
            if not access.has_node_here(address):
                raise addresses.build_error(address, "a cluster is there, but none of its nodes runs on this machine")
        environment = _build_environment(request)
        try:
            context = ray.init(address=str(address), runtime_env=environment, **_list_init_keywords(request))
        except (ConnectionError, RuntimeError) as error:
            _leave()
            raise _explain(address, error) from error
    return Connection(str(address), _format_url(context.dashboard_url), is_owner=False, end=_leave)


def _explain(address: addresses.Address, error: Exception) -> Exception:
    if "ersion mismatch" in str(error):  # Ray Client compares the versions itself
        return exceptions.VersionMismatchError(
            f"The cluster at {str(address)!r} has another version of Ray or Python than this process: "
            f"{str(error).rstrip('.')}. Install the cluster's versions here."
        )
    return addresses.build_error(address, str(error))


def _check_token(address: addresses.Address) -> None:
    """Raise unless the server is of the kind that the address names, and takes our token if it wants one."""
    if ray_internals.needs_token() and not ray_internals.has_token():
        raise _build_token_error(address, "RAY_AUTH_MODE=token is set, and this process has no token")
    mode = os.environ.get(access.MODE_VARIABLE, "")
    answer = access.ask(address)
    if answer in _REFUSALS and not mode and ray_internals.has_token():
        # Ray sends the user's token to a named address only if RAY_AUTH_MODE says so. A user with a token, who names a
        # cluster that wants one, intends that.
        os.environ[access.MODE_VARIABLE] = "token"  # until `access.settings` restores the environment
        ray_internals.reload_settings()
        answer = access.ask(address)
    if answer in _REFUSALS:
        if not ray_internals.has_token():
            raise _build_token_error(address, "this process has none")
        raise _build_token_error(
            address,
            "this process has another one"
            if ray_internals.needs_token()
            else f"this process does not send its token, because RAY_AUTH_MODE={mode}",
        )
    if answer != "OK":
        wanted = "Ray Client" if address.by_client else "the head of a cluster"
        raise addresses.build_error(address, f"the server there is not {wanted}: it answered {answer}")


def _check_versions(address: addresses.Address) -> None:
    ours, theirs = {"Ray": str(ray.__version__), "Python": platform.python_version()}, access.read_versions(address)
    # By this setting of Ray's, Python may differ in its last number.
    if os.environ.get("RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL") == "minor" and "Python" in theirs:
        ours["Python"], theirs["Python"] = (text.rpartition(".")[0] for text in (ours["Python"], theirs["Python"]))
    compare_versions(str(address), ours, theirs)


def _build_token_error(address: addresses.Address, what: str) -> exceptions.ConnectionFailedError:
    return exceptions.ConnectionFailedError(
        f"The Ray cluster at {str(address)!r} takes only drivers with its token, but {what}. On the head, "
        "`ray get-auth-token` shows it; here, set RAY_AUTH_TOKEN to it, or RAY_AUTH_TOKEN_PATH to a file that holds "
        "it, or write it to ~/.ray/auth_token."
    )


def _build_environment(request: Request) -> dict[str, object]:
    """Return the runtime environment that brings this package and the driver's modules to the nodes."""
    script_folder, job = packages.find_script_folder(sys.modules.get("__main__")), packages.read_job_environment()
    if script_folder is not None and not {"working_dir"} & {*request.environment, *job}:
        packages.check_size(script_folder, request.environment.get("excludes", ()), access.walk_package)
    return packages.build_environment(request.environment, PACKAGE, script_folder, job)


def _format_url(text: str | None) -> str:
    if not text:
        return ""
    return text if "://" in text else f"http://{text}"


def compare_versions(where: str, ours: Mapping[str, str], theirs: Mapping[str, str]) -> None:
    """Raise VersionMismatchError if the cluster's versions differ from this process's. Values travel as pickles, and
    Ray's own messages change from release to release."""
    different = [name for name in ours if theirs.get(name) not in (None, ours[name])]
    if not different:
        return
    found, own = (" and ".join(f"{name} {versions[name]}" for name in different) for versions in (theirs, ours))
    remedies = "; ".join(_ADVICE[name].replace("{}", theirs[name]) for name in different)
    raise exceptions.VersionMismatchError(
        f"The cluster at {where!r} has {found}, but this process has {own}. They must be the same. Install the "
        f"cluster's versions here ({remedies}), or these versions on every machine of the cluster, and restart it."
    )
