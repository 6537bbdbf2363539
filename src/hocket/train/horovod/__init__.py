"""Horovod's functions, for programs written for Horovod: ``import hocket.train.horovod.torch as hvd``.

`torch`, `keras` and `jax` have the functions; `hocket.compat.horovod` implements them as a thin layer over the adapters
of those names in `hocket.train`. New programs should use the adapters directly: they overlap communication with the
backward pass, split the data, and save positions. Importing this package imports no framework.
"""

from __future__ import annotations

from typing import NoReturn


def __getattr__(name: str) -> NoReturn:
    if name in ("run", "run_elastic"):
        raise AttributeError(
            f"hocket.train.horovod has no {name}(), which Horovod has. Give the function to a trainer: "
            "hocket.train.torch.TorchTrainer(function, train_loop_config={...}, "
            "scaling_config=hocket.train.ScalingConfig(num_workers=2)).fit(). Put the values of Horovod's args=(...) "
            "into the dict."
        )
    raise AttributeError(f"module 'hocket.train.horovod' has no attribute {name!r}")
