"""Small meetings of all ranks, through the controller: for a word or two, not for tensors.

`hocket.collective` is for tensors. These take a way to the driver and back.
"""

from __future__ import annotations

from typing import Any

from hocket.train.rank import worker_session


def barrier() -> None:
    """Wait until every rank has called it.

    Ranks that do not call the same functions of this module in the same order fail the training; nobody waits for ever.

    Raises:
        RuntimeError: It is called outside a training function.

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
    """Return what rank 0 gave, in every rank, when all have called it.

    Args:
        data: Anything that can be pickled; of the other ranks nothing is looked at.

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
