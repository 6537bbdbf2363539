"""The engine as a worker process sees it, in layers: everything is forwarded to the driver.

1. `state`: the tables, the counts, and the way to the driver.
2. `inbox`: what the driver and other workers say.
3. `questions`: what only the driver knows.
4. `submission`: tasks, actors and calls.
5. `access`: objects.
6. `engine`: the end.
"""

from hocket.engine.local.worker_engine.engine import WorkerEngine as WorkerEngine
from hocket.engine.local.worker_engine.state import Arrived as Arrived
from hocket.engine.local.worker_engine.state import Running as Running
from hocket.engine.local.worker_engine.state import current as current
