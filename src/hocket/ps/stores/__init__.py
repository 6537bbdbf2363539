"""The memory of a server: shards of variables that all processes of a machine read and write, and the gate before them.

`store` is the theory and the journal, `dense` and `rows` hold the numbers, `memory` and `memory_owners` the pages.
`mutex` is a lock that survives its owner, and `gate` bounds how far workers run ahead of each other. A step arrives as
`records` and `slices`; `gradient_accumulator` keeps it until all workers have brought theirs.
"""
