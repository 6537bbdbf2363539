"""Closures on workers: a `dispatcher` sends `closures` as the `scheduler` decides, and a `worker` runs them.

`workers` are the actors; `inputs` and `streams` are the data that each of them has for itself.
"""
