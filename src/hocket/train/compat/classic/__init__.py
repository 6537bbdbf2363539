"""Ray Train's trainer of 2022: `Trainer` is started, runs functions in ranks that stay, and is shut down.

For programs that were written for it. New ones use `hocket.train.DataParallelTrainer` or a framework's trainer, which
save folders and not dicts, and do not stop the ranks at each report.

It is a facade over the same worker group, ranks, backends and restart budget. What is its own is the pace: a rank
that reports waits until the driver has taken the report, and the driver takes one report of each rank at a time
(`iterator`); and checkpoints are dicts (`checkpoints`). `functions` is what the training function calls, `session`
what stands behind them in a rank, `ranks` where they run.
"""
