"""A worker process runs these parts. Each owns its state, and knows those before it.

1. `life`: how it ends.
2. `code`: functions and arguments.
3. `actor`: the actor, if there is one.
4. `interruption`: how a task that runs is interrupted.
5. `row`: work that waits, in `threads` as well.
6. `answers`: results, errors and items, on their way.
7. `intake`: messages become work.
8. `execution`: the user's code, run.
9. `worker`: the main loop.
"""

from hocket.engine.local.worker.worker import Worker as Worker
from hocket.engine.local.worker.worker import main as main
