"""The engine as a worker process sees it. Each part owns its state, and knows the parts before it.

1. `duty`: the process's number, its actor, and the task that runs.
2. `arrivals`: handles, with the driver's counts for them, and values that have come or will come.
3. `outbox`: messages, and the moments at which they are sent.
4. `questions`: questions to the driver.
5. `tasks`, `objects`: tasks, actors and calls; values.
6. `inbox`: messages of the driver and of other workers.
7. `engine`: the parts put together, and the end.
"""

from hocket.engine.local.worker_engine.arrivals import Arrived as Arrived
from hocket.engine.local.worker_engine.duty import Running as Running
from hocket.engine.local.worker_engine.duty import current as current
from hocket.engine.local.worker_engine.engine import WorkerEngine as WorkerEngine
