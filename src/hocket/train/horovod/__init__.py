"""Horovod's verbs, for programs that were written for it: change the import to
``import hocket.train.horovod.torch as hvd``.

Everything here is thin. `place` knows the calling rank, `torch`, `keras` and `jax` have the verbs for tensors; what
computes are the adapters of those names in `hocket.train`. New programs should use those: they overlap communication
with the backward pass, split the data, and save positions. Importing this package imports no framework.
"""
