"""Packages: the driver's modules that the nodes need, and their size.

The nodes of a cluster have neither this package nor the modules beside the driver's script. Ray sends folders to them:
the package as a module, and the script's folder as the working directory. A Ray on this machine only needs the paths.
"""

from __future__ import annotations

import json
import os
import site
import sys
import sysconfig
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

LIMIT_BYTES = 100 * 2**20
"""The largest folder of a script that is sent. A guess: a folder with only programs is far smaller, and a folder with
data is larger and needs minutes."""

JOB_VARIABLE = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""The environment variable in which Ray passes the settings of ``ray job submit`` to the program."""

Walk = Callable[[Path, Iterable[str]], Iterable[Path]]
"""A function of a folder and its excludes that returns the files to send."""


def find_script_folder(main: ModuleType | None) -> Path | None:
    """Return the folder from which the driver's script imports its own modules; None without a script, or for an
    installed program."""
    file = getattr(main, "__file__", None)
    if main is None or not file:
        return None
    folder = Path(file).resolve().parent
    package = getattr(getattr(main, "__spec__", None), "parent", None)
    if package:  # python -m package.module
        folder = folder.parents[package.count(".")]
    return None if _is_installed(folder) else folder


def _is_installed(folder: Path) -> bool:
    prefixes = {
        *map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib", "scripts")),
        *site.getsitepackages(),
    }
    return any(folder.is_relative_to(Path(prefix).resolve()) for prefix in prefixes if prefix)


def list_import_folders() -> list[str]:
    """Return the folders from which this process imports, without those of its Python's installed packages; for workers
    on the same machine."""
    found = [str(Path(entry).resolve()) for entry in sys.path if not entry or Path(entry).is_dir()]
    return [folder for folder in dict.fromkeys(found) if not _is_installed(Path(folder))]


def read_job_environment() -> dict[str, object]:
    """Return the runtime environment with which this program was submitted as a job; empty if it was not."""
    return dict(json.loads(os.environ.get(JOB_VARIABLE) or "{}").get("runtime_env") or {})


def build_environment(
    given: Mapping[str, Any], package: Path, script_folder: Path | None, job: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, object]:
    """Return the runtime environment of a whole session on a cluster: the user's, with this package added.

    If neither the user nor `job` names a working directory, it is the script's folder. The modules of `job` are added;
    its working directory is the script's folder already.
    """
    made = dict(given)
    modules = [*job.get("py_modules", ()), *given.get("py_modules", ()), str(package)]
    made["py_modules"] = list(dict.fromkeys(modules))
    if not {"working_dir"} & {*given, *job} and script_folder is not None:
        made["working_dir"] = str(script_folder)
    return made


def check_size(folder: Path, excludes: Iterable[str], walk: Walk) -> None:
    """Raise ValueError if a folder that the user did not name is too large to be sent."""
    total = 0
    parts: dict[str, int] = {}
    for path in walk(folder, excludes):
        try:
            size = path.lstat().st_size
        except OSError:
            continue
        total += size
        part = path.relative_to(folder).parts[0]
        parts[part] = parts.get(part, 0) + size
    if total <= LIMIT_BYTES:
        return
    largest = sorted(parts.items(), key=lambda item: item[1], reverse=True)[:3]
    named = ", ".join(f"{name} ({_format_bytes(size)})" for name, size in largest)
    raise ValueError(
        f"The folder of your script, {os.fspath(folder)!r}, has {_format_bytes(total)}, but at most "
        f"{_format_bytes(LIMIT_BYTES)} are sent to a cluster by default. The largest parts: {named}. Exclude them in a "
        f".gitignore or .rayignore there or with runtime_env={{'excludes': [{largest[0][0]!r}]}}, or name another "
        "folder: runtime_env={'working_dir': 'a folder'}."
    )


def _format_bytes(count: int) -> str:
    return f"{count / 2**20:,.0f} MiB"
