"""The plan of a run: the front's message to the agent."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One launch."""

    target: str
    """The script's path as it was given, or the module's name."""
    args: tuple[str, ...] = ()
    """What the script finds in ``sys.argv[1:]``."""
    is_module: bool = False
    is_program: bool = False
    """Whether the target is no Python but a program of its own."""
    num_workers: int = 1
    max_restarts: int = 0
    is_prefixed: bool = False
    """Whether each line of a rank's output begins with its number."""
    logs: tuple[int, ...] = ()
    """For each rank, what goes to files: 1 is its stdout, 2 its stderr, 3 both. Empty: nothing."""
    shown: tuple[int, ...] = ()
    """For each rank, what is passed on to our own output, in the same way. Empty: all."""
    log_folder: str = ""
    """Where the files are: ``attempt_0/<rank>/stdout.log`` and so on."""
    backend: str = ""
    """What scripts get that ask for gloo by name; empty: gloo."""
    grace_s: float = 30.0
    """Seconds from the request to end until a rank is killed."""
    run_id: str = ""
    modules: tuple[str, ...] = ()
    """What the agent loads before it forks."""

    def format(self) -> str:
        """Return the plan as one line."""
        return json.dumps(asdict(self))

    def get_path_entry(self) -> str:
        """Return what Python puts at the front of `sys.path` for such a target."""
        if self.is_module or self.is_program:
            return os.getcwd()
        path = os.path.realpath(self.target)
        return os.path.dirname(path) if is_plain_script(path) else path


def parse_plan(line: str) -> Plan:
    """Return the plan of a line that `Plan.format` made."""
    fields: dict[str, Any] = json.loads(line)
    lists = {name: tuple(fields[name]) for name in ("args", "modules", "logs", "shown")}
    return Plan(**{**fields, **lists})


def is_plain_script(path: str) -> bool:
    """Tell a source file from a folder or an archive that has a ``__main__.py``."""
    if os.path.isdir(path):
        return False
    with open(path, "rb") as file:
        return file.read(4) != b"PK\x03\x04"
