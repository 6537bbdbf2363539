"""The embedded engine: worker processes and shared memory on one machine.

- `hub.Hub`: the engine in the driver; the kernel with its IO.
- `client.Client`: the engine in a worker; it forwards to the hub.
- `worker`: what a worker process runs.
- `guardian`: the parent of all workers, which outlives no driver.
- `channel`, `segments`, `pump`: frames on sockets, shared memory, and who reads the sockets.
"""
