"""A worker process runs these parts. Each owns its state, and knows those before it.

1. `life`: how a task is interrupted, and how the process ends.
2. `residents`: functions, arguments, and the actor, if there is one.
3. `row`: work that waits, and an actor's threads.
4. `answers`: results, errors and items, on their way.
5. `intake`: messages become work.
6. `execution`: the user's code, run.
7. `worker`: the main loop.
"""

from hocket.engine.local.worker.worker import Worker as Worker
from hocket.engine.local.worker.worker import main as main
