"""Process 1 of a machine: it runs a node of a Ray cluster, until its standard input ends or the node dies.

`hocket.testing.cluster` starts it. It reads a line of JSON: ``hide``, folders to replace by private empty ones, and
``params``, fields of Ray's ``RayParams``. It writes the node's id.
"""

from __future__ import annotations

import json
import os
import select
import sys
from pathlib import Path

from hocket.engine.ray import adapter
from hocket.testing import mounts

ray = adapter.ray

from hocket._base.internals import ray as ray_internals

PROGRAM = (
    f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r}); from hocket.testing import "
    "machine_node; machine_node.main()"
)
"""The command of process 1. A machine finds this package at the same path as this process."""

LOOK_SECONDS = 0.05
"""Seconds between checks whether the node lives."""


def main() -> None:
    """Start the node, and end it on request."""
    wanted = json.loads(sys.stdin.readline())
    mounts.hide(["/dev/shm", *wanted["hide"]])
    params = wanted["params"]
    os.makedirs(params["temp_dir"], exist_ok=True)
    os.chdir(params["temp_dir"])
    answer = os.dup(1)
    os.dup2(2, 1)  # Ray's output is for people, and must not reach the program that reads the id
    started, raylet = ray_internals.start_node(params)
    os.write(answer, f"{started.node_id}\n".encode())
    while not select.select([sys.stdin], [], [], LOOK_SECONDS)[0]:
        if raylet.poll() is not None:
            os._exit(1)  # this ends the machine
    started.kill_all_processes(check_alive=False, allow_graceful=True, wait=True)
