"""The plan of a run: the front's message to the agent."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class LaunchPlan:
    """The facts of a launch."""

    target: str
    """The script's path as the user wrote it, or the module's name."""
    args: tuple[str, ...] = ()
    """The script's ``sys.argv[1:]``."""
    is_module: bool = False
    is_program: bool = False
    """Whether the target is a program other than Python."""
    num_workers: int = 1
    max_restarts: int = 0
    is_prefixed: bool = False
    """Whether each line of a rank's output begins with the rank."""
    logs: tuple[int, ...] = ()
    """For each rank, the streams that go to files: 1 is stdout, 2 stderr, 3 both. Empty: none."""
    shown: tuple[int, ...] = ()
    """For each rank, the streams that are relayed to the agent's own output, in the same form. Empty: all."""
    log_folder: str = ""
    """The folder of the files: ``attempt_0/<rank>/stdout.log`` and so on."""
    backend: str = ""
    """The backend for scripts that request gloo by name; empty: gloo."""
    grace_s: float = 30.0
    """Seconds between the request to end and the kill of a rank."""
    run_id: str = ""
    modules: tuple[str, ...] = ()
    """The modules that the agent loads before it forks."""

    def format(self) -> str:
        """Return the plan as one line."""
        return json.dumps(asdict(self))

    def get_path_entry(self) -> str:
        """Return the first entry that Python gives `sys.path` for such a target."""
        if self.is_module or self.is_program:
            return os.getcwd()
        path = os.path.realpath(self.target)
        return os.path.dirname(path) if is_plain_script(path) else path


def parse_plan(line: str) -> LaunchPlan:
    """Return the plan in a line that `LaunchPlan.format` wrote."""
    fields: dict[str, Any] = json.loads(line)
    lists = {name: tuple(fields[name]) for name in ("args", "modules", "logs", "shown")}
    return LaunchPlan(**{**fields, **lists})


def is_plain_script(path: str) -> bool:
    """Return whether a path is a source file, rather than a folder or an archive with a ``__main__.py``."""
    if os.path.isdir(path):
        return False
    with open(path, "rb") as file:
        return file.read(4) != b"PK\x03\x04"
