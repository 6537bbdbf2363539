"""Ray Train's trainer of 2022: `Trainer` is started, runs functions in ranks that stay, and is shut down.

It is for programs that were written for Ray's. New programs use `hocket.train.DataParallelTrainer` or a framework's
trainer, which save folders and not dicts, and do not stop the ranks at each report.

`Trainer` is a facade over the same worker group, ranks, backends and restart budget. It differs in its pace: a rank
that reports waits until the driver has taken the report, and the driver takes one report of each rank at a time
(`iterator`). And its checkpoints are dicts (`checkpoints`). `functions` has the functions for a training function,
`session` their state in a rank, and `ranks` the ranks' processes.
"""
