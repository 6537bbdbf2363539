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
    raise ImportError(
        f"Hocket runs on Linux only, so far; this is {sys.platform}. Use a Linux machine, container or WSL 2."
    )
