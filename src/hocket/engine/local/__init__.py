"""The embedded engine: worker processes and shared memory on one machine.

- `driver.DriverEngine`: the engine in the driver, in layers: the kernel with its IO.
- `worker_engine.WorkerEngine`: the engine in a worker, which forwards to the driver.
- `worker`: the program of a worker process.
- `guardian`: the parent of all workers, which ends with its driver.
- `channel`, `journal`, `segments`, `reactor`: frames on sockets, messages that outlive a worker, shared memory, and the
  readers of the sockets.
"""

import sys

if not sys.platform.startswith("linux"):
    from hocket import exceptions  # imported here, since the guardian starts sooner without it

    raise exceptions.UnsupportedPlatformError(
        f"Worker processes need Linux, and this is {sys.platform}: use hocket.init(engine='inprocess') or "
        "HOCKET_ENGINE=inprocess, which run everything in this process, or a Linux machine, container or WSL 2."
    )
