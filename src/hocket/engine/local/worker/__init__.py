"""What a worker process runs, in layers: each file knows only those before it.

1. `state`: the row, the functions, the actor.
2. `answers`: results, errors and items, on their way.
3. `intake`: messages become work.
4. `execution`: the user's code, run.
5. `worker`: the main loop.
"""

from hocket.engine.local.worker.worker import Worker as Worker
from hocket.engine.local.worker.worker import main as main
