"""A rank's side of a run: what the training function calls, and what stands behind it in the rank's process.

`context` and `datasets` have the functions. `worker_session` knows the rank and sends its `reports` and its
`questions`; `rank_actor` is its process, `rank_placement` says where that is, and
`preemption_signals` hears that it is to end. `world` joins ranks for frameworks that cannot themselves.
"""
