"""Collectives for small values. Each costs a round trip to the driver; use `hocket.collective` for tensors."""

from __future__ import annotations

from typing import Any

from hocket.train.rank import worker_session


def barrier() -> None:
    """Wait until every rank has called this function.

    All ranks must call the functions of this module in the same order; otherwise the training fails, and does not hang.

    Raises:
        RuntimeError: The function is called outside a training function.

    Example:
        >>> import tempfile
        >>> from hocket import train
        >>> from hocket.train import collective
        >>> trainer = train.DataParallelTrainer(
        ...     lambda: collective.barrier(),
        ...     scaling_config=train.ScalingConfig(num_workers=0),
        ...     run_config=train.RunConfig(storage_path=tempfile.mkdtemp()),
        ... )
        >>> trainer.fit().return_value
    """
    worker_session.get_session("collective.barrier").meet("barrier", None)


def broadcast_from_rank_zero(data: object) -> Any:
    """Return rank 0's value in every rank, once all ranks have called this function.

    Args:
        data: Anything that can be pickled. The values of other ranks are ignored.

    Example:
        >>> import tempfile
        >>> from hocket import train
        >>> from hocket.train import collective
        >>> trainer = train.DataParallelTrainer(
        ...     lambda: collective.broadcast_from_rank_zero({"seed": 7}),
        ...     scaling_config=train.ScalingConfig(num_workers=0),
        ...     run_config=train.RunConfig(storage_path=tempfile.mkdtemp()),
        ... )
        >>> trainer.fit().return_value
        {'seed': 7}
    """
    return worker_session.get_session("collective.broadcast_from_rank_zero").meet("broadcast_from_rank_zero", data)
