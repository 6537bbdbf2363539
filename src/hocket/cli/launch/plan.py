"""What is to be run, as the front tells the agent."""

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
    num_workers: int = 1
    max_restarts: int = 0
    is_prefixed: bool = False
    """Whether each line of a rank's output begins with its number."""
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
        if self.is_module:
            return os.getcwd()
        path = os.path.realpath(self.target)
        return os.path.dirname(path) if is_plain_script(path) else path


def parse_plan(line: str) -> Plan:
    """Return the plan of a line that `Plan.format` made."""
    fields: dict[str, Any] = json.loads(line)
    return Plan(**{**fields, "args": tuple(fields["args"]), "modules": tuple(fields["modules"])})


def is_plain_script(path: str) -> bool:
    """Tell a source file from a folder or an archive that has a ``__main__.py``."""
    if os.path.isdir(path):
        return False
    with open(path, "rb") as file:
        return file.read(4) != b"PK\x03\x04"
