"""Closures on workers: the `scheduler` chooses `closures`, a `dispatcher` sends them, and a `worker` runs them.

`workers` starts and ends the workers; `inputs` and `streams` are the data that each worker has for itself.
"""
