"""The engine in the driver, in layers: each file knows only those before it.

1. `base`: the tables, the lock, and how one worker is talked to.
2. `carrier`: what the kernel decides, carried out.
3. `task_messages`: the work that workers hand in, and what became of theirs.
4. `dispatch`: all that they say, turned into calls of the kernel.
5. `worker_pool`: the workers' births and deaths.
6. `watch`: what has to be looked after from time to time.
7. `events`: what happens between two waits.
8. `submission`: tasks, actors and calls.
9. `access`: objects.
10. `engine`: what can be looked at, and the end.
"""

from hocket.engine.local.driver.engine import DriverEngine as DriverEngine
