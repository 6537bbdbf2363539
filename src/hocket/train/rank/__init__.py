"""A rank's side of a run: the functions that a training function calls, and their support in the rank's process.

`context` and `datasets` have the functions. `worker_session` knows the rank, and sends its `reports` and its
`questions`. `rank_actor` is the rank's process, `rank_placement` its place, and `preemption_signals` handles its
SIGTERM. `world` joins ranks for frameworks that cannot themselves.
"""
