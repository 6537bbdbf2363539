"""The engine as a worker process sees it, in layers: everything is forwarded to the hub.

1. `state`: the tables, the counts, and the way to the hub.
2. `inbox`: what the hub and other workers say.
3. `questions`: what only the hub knows.
4. `submission`: tasks, actors and calls.
5. `access`: objects.
6. `client`: the end.
"""

from hocket.engine.local.client.client import Client as Client
from hocket.engine.local.client.state import Arrived as Arrived
from hocket.engine.local.client.state import Running as Running
from hocket.engine.local.client.state import current as current
