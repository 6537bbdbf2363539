"""The driver's side of a run: what starts the ranks, hears of them, keeps what they report, and starts them again.

`controller` takes a run (`training_run`) from its start to its end. Each start of the ranks is an `attempt`:
`worker_group` starts them (`in_process` has its own), `backend` joins them, and `attempt_monitor` takes what they say
until all have ended, from one `crew.wait_loop`. `budget` says how many failures are too many.

Behind the monitor: `question_resolver` answers ranks, `report_intake` and `report_book` put their reports together,
`checkpoint_sender` sends them files, `validation_queue` validates checkpoints. Its policies look now and then:
`preemption_policy` at ranks that got SIGTERM, `elasticity` at free resources, `patience` at ranks that wait for
one that does not come. `failures` explains deaths. `roles` are for groups whose processes are not all ranks.
"""
