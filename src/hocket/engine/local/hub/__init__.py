"""The engine in the driver, in layers: each file knows only those before it.

1. `base`: the tables, the lock, and how one worker is talked to.
2. `carrier`: what the kernel decides, carried out.
3. `worker_pool`: the workers' births, words and deaths.
4. `reactor`: what happens between two waits.
5. `submission`: tasks, actors and calls.
6. `access`: objects.
7. `hub`: resources, what can be looked at, and the end.
"""

from hocket.engine.local.hub.hub import Hub as Hub
