"""The memory of a server: shards of variables that all processes of a machine read and write, behind a gate.

`store` has the transactions and their journal. `dense` and `rows` hold the numbers, and `memory` is shared memory.
`mutex` is a lock that survives its owner. `gate` bounds how far workers run ahead of each other. A push arrives as
`records` and `slices`. `gradient_accumulator` keeps gradients until a synchronous step is full.
"""
