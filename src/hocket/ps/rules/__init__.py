"""The computations of parameter servers: functions of numbers and names that need numpy alone.

`initializers` compute a variable's first value, and `optimizers` turn gradients into updates. `partitioners` choose
the number of shards, and `placement` each shard's server. `hashing` spreads ids.
"""
