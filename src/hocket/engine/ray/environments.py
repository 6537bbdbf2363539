"""Runtime environments of single tasks and actors.

Ray takes folders of this machine only for a whole job; for a task it takes what has been uploaded. So they are uploaded
here, and what the session's own environment brought is named again, since Ray would replace it.
"""

from __future__ import annotations

import json
import logging
import tempfile
from typing import Any

import ray
from ray._private.runtime_env.py_modules import upload_py_modules_if_needed
from ray._private.runtime_env.working_dir import upload_working_dir_if_needed

from hocket.engine.ray import outside

_log = logging.getLogger("hocket")

_uploaded: dict[tuple[str, str], dict[str, object]] = {}
"""By the job's id and the text; a handful for a program."""


def build_environment(text: str) -> dict[str, object]:
    """Return the keyword ``runtime_env`` of a task or an actor, from the form that travels."""
    context = ray.get_runtime_context()
    key = (context.get_job_id(), text)
    found = _uploaded.get(key)
    if found is None:
        given = json.loads(text)
        outside.check_environment(given)
        found = _uploaded[key] = _upload(given, context.runtime_env.get("py_modules", ()))
    return dict(found)


def _upload(given: dict[str, Any], inherited: Any) -> dict[str, object]:
    with tempfile.TemporaryDirectory(prefix="hocket-") as scratch:
        if "working_dir" in given:
            given = upload_working_dir_if_needed(given, include_gitignore=True, scratch_dir=scratch, logger=_log)
        if "py_modules" in given:
            given = upload_py_modules_if_needed(given, include_gitignore=True, scratch_dir=scratch, logger=_log)
            given["py_modules"] = list(dict.fromkeys([*given["py_modules"], *inherited]))
    return given
