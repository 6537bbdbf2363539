"""Runtime environments in the caller's own process: taken on for one task, and put back."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def take_on(text: str) -> Iterator[None]:
    """Take on a runtime environment, in the form that travels, for the time of the block."""
    if not text:
        yield
        return
    environment = json.loads(text)
    variables, path, folder = dict(os.environ), list(sys.path), os.getcwd()
    os.environ.update(environment.get("env_vars", {}))
    sys.path[:0] = [os.path.dirname(path) for path in environment.get("py_modules", [])]
    if environment.get("working_dir"):
        sys.path.insert(0, environment["working_dir"])
        os.chdir(environment["working_dir"])
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(variables)
        sys.path[:] = path
        os.chdir(folder)
