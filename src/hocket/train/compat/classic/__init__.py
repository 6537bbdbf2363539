"""Ray Train's trainer of 2022: `Trainer` is started, runs functions in ranks that stay, and is shut down.

For programs that were written for it. New ones use `hocket.train.DataParallelTrainer` or a framework's trainer, which save folders
and not dicts, and do not stop the ranks at each report.

It stands on the same worker group and backends. What is its own is the conversation of a run: a rank that reports waits until the driver has
taken the report (`exchange`), the driver takes one report of each rank at a time (`iterator`), and checkpoints are dicts (`checkpoints`).
`functions` is what the training function calls, `session` what a rank knows, `ranks` where they run.
"""
