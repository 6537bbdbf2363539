"""Runtime environments: the variables, folders and modules of a task or an actor.

On one machine all workers run this Python, so an environment can set variables and folders, but cannot install
anything. Parts that install something pass through on Ray; other engines refuse them. An environment travels as text
(JSON with sorted keys): equal environments are then equal to the scheduler.
"""

from __future__ import annotations

import json
import os
import types
from collections.abc import Mapping, Sequence
from typing import Any

SUPPORTED = ("env_vars", "working_dir", "py_modules")

_CLUSTER_ONLY = (
    "pip", "uv", "conda", "py_executable", "image_uri", "container", "excludes", "worker_process_setup_hook", "config",
    "nsight", "rocprof_sys", "java_jars", "mpi",
)  # fmt: skip


class RuntimeEnv(dict[str, Any]):
    """A runtime environment, checked when it is made. A plain dict works, too.

    Args:
        env_vars: Environment variables: text by name.
        working_dir: The working folder, from which modules can be imported, too.
        py_modules: Package folders, module files or modules that can be imported.
        **others: Ray's other parts, which need a cluster.

    Raises:
        ValueError: A part is unknown, or has a wrong value. The need for a cluster is checked only when the environment
            is used.

    Example:
        >>> from hocket.runtime_env import RuntimeEnv
        >>> RuntimeEnv(env_vars={"DEBUG": "1"})
        {'env_vars': {'DEBUG': '1'}}
    """

    def __init__(
        self,
        *,
        env_vars: Mapping[str, str] | None = None,
        working_dir: str | os.PathLike[str] | None = None,
        py_modules: Sequence[object] | None = None,
        **others: object,
    ) -> None:
        parts = {"env_vars": env_vars, "working_dir": working_dir, "py_modules": py_modules, **others}
        super().__init__({name: part for name, part in parts.items() if part is not None})
        problem = check_environment("runtime_env", self)
        if problem is not None:
            raise ValueError(problem)


def check_environment(name: str, value: Mapping[str, object]) -> str | None:
    """Return the error message for a runtime environment that is wrong on every engine; None if it is right."""
    for key, part in value.items():
        if key in _CLUSTER_ONLY:
            continue
        if key not in SUPPORTED:
            return (
                f"{name}[{key!r}] is unknown. Valid keys are {list(SUPPORTED)}, and on Ray also {list(_CLUSTER_ONLY)}."
            )
        problem = _CHECKS[key](f"{name}[{key!r}]", part)
        if problem is not None:
            return problem
    return None


def check_supported(name: str, value: Mapping[str, Any]) -> str | None:
    """Return the error message for a checked runtime environment that engines of one machine cannot make; else None."""
    for key in value:
        if key in _CLUSTER_ONLY:
            return (
                f"{name}[{key!r}] needs a cluster: on this engine every worker uses the driver's Python, so it takes "
                f"only {list(SUPPORTED)}. Install what you need before you start Python, or run on Ray: "
                "hocket.init(address=...)."
            )
    for key in ("working_dir", "py_modules"):
        parts = value.get(key) or ()
        for part in [parts] if key == "working_dir" else parts:
            if isinstance(part, str) and "://" in part:
                return _describe_foreign_folder(f"{name}[{key!r}]", part)
    return None


def _describe_foreign_folder(what: str, part: str) -> str:
    return f"{what} must be a folder on this machine, but received {part!r}. Give the path of an existing folder."


def _check_variables(what: str, value: object) -> str | None:
    if not isinstance(value, Mapping):
        return f"{what} must be a dict from name to text such as {{'DEBUG': '1'}}, but received {value!r}."
    for name, text in value.items():
        if not isinstance(name, str) or not isinstance(text, str):
            return f"{what} must hold text only, but received {name!r}: {text!r}. Write {str(name)!r}: {str(text)!r}."
    return None


def _check_folder(what: str, value: object) -> str | None:
    if not isinstance(value, str | os.PathLike):
        return f"{what} must be the path of a folder, but received {value!r}."
    if "://" in str(value):  # Ray downloads it
        return None
    if not os.path.isdir(value):
        return _describe_foreign_folder(what, str(value))
    return None


def _check_modules(what: str, value: object) -> str | None:
    if not isinstance(value, list | tuple):
        return f"{what} must be a list of folders or modules, but received {value!r}."
    for part in value:
        if isinstance(part, types.ModuleType):
            continue
        problem = _check_folder(f"each of {what}", part)
        if problem is not None and not (isinstance(part, str) and os.path.isfile(part)):
            return problem
    return None


_CHECKS = {"env_vars": _check_variables, "working_dir": _check_folder, "py_modules": _check_modules}


def format_environment(environment: Mapping[str, Any] | None) -> str:
    """Return a checked environment as text; empty for none."""
    if not environment:
        return ""
    parts: dict[str, object] = {name: part for name, part in environment.items() if name in _CLUSTER_ONLY and part}
    if environment.get("env_vars"):
        parts["env_vars"] = dict(environment["env_vars"])
    if environment.get("working_dir"):
        parts["working_dir"] = _find_path(environment["working_dir"])
    if environment.get("py_modules"):
        parts["py_modules"] = [_find_path(part) for part in environment["py_modules"]]
    return json.dumps(parts, sort_keys=True, default=str) if parts else ""


def _find_path(part: Any) -> str:
    """Return the path of a package folder or a module file, or the address from which Ray downloads it."""
    if isinstance(part, str) and "://" in part:
        return part
    path = os.path.realpath(part.__file__ or "" if isinstance(part, types.ModuleType) else part)
    folder, name = os.path.split(path)
    return folder if os.path.splitext(name)[0] == "__init__" else path


def parse_environment(text: str) -> dict[str, Any]:
    """Return the environment from its text."""
    return dict(json.loads(text)) if text else {}


def merge_environments(outer: str, inner: str) -> str:
    """Return the environment `inner` inside `outer`: its own parts win, and the variables of both are joined."""
    if not outer or not inner:
        return outer or inner
    wide, narrow = parse_environment(outer), parse_environment(inner)
    merged = {**wide, **narrow}
    if "env_vars" in wide and "env_vars" in narrow:
        merged["env_vars"] = {**wide["env_vars"], **narrow["env_vars"]}
    return json.dumps(merged, sort_keys=True)
