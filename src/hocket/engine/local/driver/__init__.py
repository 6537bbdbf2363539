"""The engine in the driver. Each part owns its state, and knows the parts before it.

1. `guardianship`: the guardian, pids, and facts on processes.
2. `courier`: the kernel's instructions, carried out.
3. `floor`: the base of the parts that callers use.
4. `objects`: values.
5. `tasks`: tasks, actors and calls.
6. `inbox`: the messages of workers, turned into calls of the kernel.
7. `worker_pool`: the workers' births and deaths.
8. `watch`: periodic checks.
9. `rounds`: the work between two waits.
10. `engine`: the parts put together, and the end.
"""

from hocket.engine.local.driver.engine import DriverEngine as DriverEngine
