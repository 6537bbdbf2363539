"""The engine in the driver: parts that own what they need, each knowing those before it.

1. `guardianship`: the guardian, pids, and what there is to see of processes.
2. `courier`: what the kernel decides, carried out.
3. `floor`: what callers stand on.
4. `objects`: values.
5. `tasks`: tasks, actors and calls.
6. `inbox`: all that workers say, turned into calls of the kernel.
7. `worker_pool`: the workers' births and deaths.
8. `watch`: what has to be looked after from time to time.
9. `rounds`: what happens between two waits.
10. `engine`: the parts put together, and the end.
"""

from hocket.engine.local.driver.engine import DriverEngine as DriverEngine
