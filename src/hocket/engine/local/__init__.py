"""The embedded engine: worker processes and shared memory on one machine.

- `driver.DriverEngine`: the engine in the driver, in layers; the kernel with its IO.
- `worker_engine.WorkerEngine`: the engine in a worker; it forwards to the driver.
- `worker`: what a worker process runs.
- `guardian`: the parent of all workers, which outlives no driver.
- `channel`, `journal`, `segments`, `reactor`: frames on sockets, what outlives a worker, shared memory, and who reads
  the sockets.
"""

import sys

if not sys.platform.startswith("linux"):
    from hocket import exceptions  # here, since the guardian starts sooner without

    raise exceptions.UnsupportedPlatformError(
        f"Worker processes need Linux, and this is {sys.platform}: use hocket.init(engine='inprocess') or "
        "HOCKET_ENGINE=inprocess, which run everything in this process, or a Linux machine, container or WSL 2."
    )
