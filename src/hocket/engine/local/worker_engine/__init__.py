"""The engine as a worker process sees it: parts that own what they need, each knowing those before it.

1. `duty`: what the process is, and what runs.
2. `handles`: handles, with what the driver has counted for them.
3. `arrivals`: values that have come, and are to come.
4. `outbox`: what is sent, and when.
5. `questions`: what only the driver knows.
6. `tasks`, `objects`, `view`: tasks, actors and calls; values; what there is to see.
7. `inbox`: what the driver and other workers say.
8. `engine`: the parts put together, and the end.
"""

from hocket.engine.local.worker_engine.arrivals import Arrived as Arrived
from hocket.engine.local.worker_engine.duty import Running as Running
from hocket.engine.local.worker_engine.duty import current as current
from hocket.engine.local.worker_engine.engine import WorkerEngine as WorkerEngine
