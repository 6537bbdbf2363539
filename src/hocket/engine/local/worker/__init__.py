"""The program of a worker process. Each part owns its state, and knows the parts before it.

1. `life`: the interruption of a task, and the end of the process.
2. `residents`: functions, arguments, and the actor, if there is one.
3. `row`: the queue of work, and an actor's threads.
4. `answers`: results, errors and items, on their way.
5. `intake`: messages become work.
6. `execution`: the user's code, run.
7. `worker`: the main loop.
"""

from hocket.engine.local.worker.worker import Worker as Worker
from hocket.engine.local.worker.worker import main as main
