"""The functions of 2022 for a training function. Outside one, they warn once and act as in a single process."""

from __future__ import annotations

from typing import Any

from hocket.train.rank import report_forms


def world_rank() -> int:
    """Return the rank of the calling process; 0 outside a training function.

    Example:
        >>> import tempfile
        >>> from hocket import train
        >>> trainer = train.Trainer(backend="none", num_workers=1, logdir=tempfile.mkdtemp())
        >>> trainer.start()
        >>> trainer.run(lambda: (train.world_rank(), train.local_rank(), train.world_size()))
        [(0, 0, 1)]
        >>> trainer.shutdown()
    """
    info = report_forms.get_optional_info("world_rank")
    return 0 if info is None else info.rank


def local_rank() -> int:
    """Return the index of the calling rank among those of its machine; 0 outside a training function.

    See `world_rank`.
    """
    info = report_forms.get_optional_info("local_rank")
    return 0 if info is None else info.local_rank


def world_size() -> int:
    """Return the number of ranks; 1 outside a training function. See `world_rank`."""
    info = report_forms.get_optional_info("world_size")
    return 1 if info is None else info.world_size


def save_checkpoint(**state: object) -> None:
    """Save a dict; only rank 0's is kept. Every rank must call this function and `report` in the same order.

    The function returns when the driver has the dict. A ``DistributedDataParallel`` is saved as the model inside it.

    Args:
        **state: Values that can be pickled.

    Raises:
        ValueError: A value cannot be pickled, or the number that `CheckpointStrategy` names is missing.
        RuntimeError: The training function is run by ``fit()``, which saves folders.

    Example:
        >>> import tempfile
        >>> from hocket import train
        >>> def loop(config):
        ...     start = (train.load_checkpoint() or {"step": -1})["step"] + 1
        ...     for step in range(start, config["steps"]):
        ...         train.save_checkpoint(step=step)
        ...     return start
        >>> trainer = train.Trainer(backend="none", num_workers=1, logdir=tempfile.mkdtemp())
        >>> trainer.start()
        >>> trainer.run(loop, {"steps": 2})
        [0]
        >>> trainer.run(loop, {"steps": 5}, checkpoint=trainer.latest_checkpoint)
        [2]
        >>> trainer.shutdown()
    """
    current = report_forms.get_optional_classic()
    if current is not None:
        current.save_checkpoint(state)
    elif report_forms.get_optional_info("save_checkpoint") is not None:
        raise RuntimeError(
            "save_checkpoint() works only in functions that hocket.train.Trainer runs. In a function that fit() runs, "
            "write the files into a folder, and call report({...}, checkpoint=Checkpoint.from_directory(folder))."
        )


def load_checkpoint() -> dict[str, Any] | None:
    """Return the last saved dict, or the checkpoint given to `Trainer.run`; None without both. See `save_checkpoint`.

    Raises:
        RuntimeError: The training function is run by ``fit()``, which saves folders.
    """
    current = report_forms.get_optional_classic()
    if current is not None:
        return current.checkpoint
    if report_forms.get_optional_info("load_checkpoint") is not None:
        raise RuntimeError(
            "load_checkpoint() works only in functions that hocket.train.Trainer runs. In a function that fit() runs, "
            "call get_checkpoint(), and read the files in its as_directory()."
        )
    return None
