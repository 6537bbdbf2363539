"""What process 1 of a machine runs: a node of a Ray cluster, until its standard input ends or the node dies. A script; started by `hocket.testing.cluster`.

It reads a line of JSON: ``hide``, the folders in whose place the machine has an empty one, and ``params``, fields of Ray's ``RayParams``. It
writes the node's id.
"""

from __future__ import annotations

import json
import os
import select
import sys

PACKAGE_VARIABLE = "HOCKET_MACHINE_PACKAGE"
"""Where this package is."""

LOOK_SECONDS = 0.05
"""How often it is looked whether the node lives."""


def main() -> None:
    """Start the node, and end it when it is told to."""
    sys.path[0] = os.environ.pop(PACKAGE_VARIABLE)

    from hocket.testing import mounts

    wanted = json.loads(sys.stdin.readline())
    mounts.hide(["/dev/shm", *wanted["hide"]])
    params = wanted["params"]
    os.makedirs(params["temp_dir"], exist_ok=True)
    os.chdir(params["temp_dir"])
    answer = os.dup(1)
    os.dup2(2, 1)  # what Ray prints is for nobody's eyes but people's

    import ray._private.node
    import ray._private.parameter
    import ray._private.ray_constants

    node = ray._private.node.Node(
        ray._private.parameter.RayParams(**params), head=False, shutdown_at_exit=False, spawn_reaper=False
    )
    os.write(answer, f"{node.node_id}\n".encode())
    (raylet,) = node.all_processes[ray._private.ray_constants.PROCESS_TYPE_RAYLET]
    while not select.select([sys.stdin], [], [], LOOK_SECONDS)[0]:
        if raylet.process.poll() is not None:
            os._exit(1)  # and the machine with it
    node.kill_all_processes(check_alive=False, allow_graceful=True, wait=True)


if __name__ == "__main__":
    main()
