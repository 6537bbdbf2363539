"""`multiprocessing.Pool` on Hocket's workers.

`pool` has the names, `pool_workers` the processes, `results` what calls return; `chunks` travels between them.
"""

from hocket.compat.multiprocessing.pool import Pool as Pool
