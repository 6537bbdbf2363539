"""The driver's side of a run: what starts the ranks, hears of them, keeps what they report, and starts them again.

`controller` takes a run from its start to its end: `worker_group` starts the ranks (`turn_group` in this process, for `in_process`), `backend` joins them,
`attempt_monitor` takes what they say until all have ended, and `budget` says how many failures are too many. Beside the monitor: `question_resolver` answers ranks,
`report_book` puts their reports together, `validation_queue` validates checkpoints, `preemption_policy` sees to ranks that are told to end, `patience` to those that wait for a rank
that does not come, and `failures` explains deaths. `roles` are for groups whose processes are not all ranks.
"""
