"""The driver's side of a run: it starts the ranks, takes their reports, and starts them again after failures.

`controller` takes a run (`training_run`) from its start to its end. Each start of the ranks is an `attempt`:
`worker_group` starts their processes (`in_process` uses threads), `backend` connects the ranks, and `attempt_monitor`
receives their messages until all have ended, in one `crew.wait_loop`. `budget` counts the failures that are allowed.

Behind the monitor: `question_resolver` answers ranks, `report_intake` and `report_book` put their reports together,
`checkpoint_sender` sends them files, `validation_queue` validates checkpoints. Policies check at intervals:
`preemption_policy` the ranks that got SIGTERM, `elasticity` the free resources, `patience` the ranks that wait in vain.
`failures` explains deaths. `roles` are for groups in which not all processes are ranks that train.
"""
