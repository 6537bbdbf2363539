"""Horovod's functions over the adapters of the frameworks.

`place` knows the calling rank, `verbs` has the functions for objects; `torch`, `keras` and `jax` have those for
tensors.
"""
