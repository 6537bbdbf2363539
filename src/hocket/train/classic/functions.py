"""What a training function of 2022 calls. Outside one they warn once and say what a single process would."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any, ParamSpec, Protocol, overload

from hocket.train import worker_session
from hocket.train.classic import session

P = ParamSpec("P")

_warned: set[str] = set()


def world_rank() -> int:
    """Return the rank of the calling process; 0 outside a training function.

    Example:
        >>> import tempfile
        >>> import hocket
        >>> from hocket import train
        >>> context = hocket.init(engine="inprocess")
        >>> trainer = train.Trainer(backend="none", num_workers=1, logdir=tempfile.mkdtemp())
        >>> trainer.start()
        >>> trainer.run(lambda: (train.world_rank(), train.local_rank(), train.world_size()))
        [(0, 0, 1)]
        >>> trainer.shutdown()
        >>> hocket.shutdown()
    """
    info = _get_optional_info("world_rank")
    return 0 if info is None else info.rank


def local_rank() -> int:
    """Return the index of the calling rank among those of its machine; 0 outside a training function. See `world_rank`."""
    info = _get_optional_info("local_rank")
    return 0 if info is None else info.local_rank


def world_size() -> int:
    """Return how many ranks there are; 1 outside a training function. See `world_rank`."""
    info = _get_optional_info("world_size")
    return 1 if info is None else info.world_size


def save_checkpoint(**state: Any) -> None:
    """Save a dict; that of rank 0 is kept. Every rank must call it, in the same order as `report`.

    It returns when the driver has it. A `DistributedDataParallel` among the values is saved as the model in it.

    Args:
        **state: What can be pickled.

    Raises:
        ValueError: It cannot be pickled, or lacks the number that `CheckpointStrategy` names.
        RuntimeError: The function is run by ``fit()``, which keeps folders.

    Example:
        >>> import tempfile
        >>> import hocket
        >>> from hocket import train
        >>> def loop(config):
        ...     start = (train.load_checkpoint() or {"step": -1})["step"] + 1
        ...     for step in range(start, config["steps"]):
        ...         train.save_checkpoint(step=step)
        ...     return start
        >>> context = hocket.init(engine="inprocess")
        >>> trainer = train.Trainer(backend="none", num_workers=1, logdir=tempfile.mkdtemp())
        >>> trainer.start()
        >>> trainer.run(loop, {"steps": 2})
        [0]
        >>> trainer.run(loop, {"steps": 5}, checkpoint=trainer.latest_checkpoint)
        [2]
        >>> trainer.shutdown()
        >>> hocket.shutdown()
    """
    current = session.get_optional_current()
    if current is not None:
        current.save_checkpoint(state)
    elif _get_optional_info("save_checkpoint") is not None:
        raise RuntimeError(
            "save_checkpoint() is for functions that hocket.train.Trainer runs. In one that is run by fit(), write the files into a "
            "folder, and report({...}, checkpoint=Checkpoint.from_directory(folder))."
        )


def load_checkpoint() -> dict[str, Any] | None:
    """Return what was saved last, or what `Trainer.run` was given; None if there is nothing. See `save_checkpoint`.

    Raises:
        RuntimeError: The function is run by ``fit()``, which keeps folders.
    """
    current = session.get_optional_current()
    if current is not None:
        return current.checkpoint
    if _get_optional_info("load_checkpoint") is not None:
        raise RuntimeError(
            "load_checkpoint() is for functions that hocket.train.Trainer runs. In one that is run by fit(), call get_checkpoint(), and "
            "read the files in its as_directory()."
        )
    return None


def _get_optional_info(caller: str) -> worker_session.RankInfo | None:
    """Return the rank's place; outside a training function, None after a warning, which comes once a function."""
    try:
        return worker_session.get_session(caller).info
    except RuntimeError:
        if caller not in _warned:
            _warned.add(caller)
            warnings.warn(
                f"hocket.train.{caller}() was called outside a training function, and does what it does in a single process. Call it in a "
                "function that is given to Trainer.run.",
                stacklevel=4 if caller == "report" else 3,
            )
        return None


class Report(Protocol[P]):
    """`report` in both its forms."""

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None: ...
    @overload
    def __call__(self, **metrics: Any) -> None: ...


def serve_both(report: Callable[P, None]) -> Report[P]:
    """Make of today's ``report(metrics, checkpoint)`` one function that is also that of 2022, ``report(loss=0.5)``.

    Which of them a call means is told by who runs the training function. The other form there is an error that says what to write.
    """
    names = frozenset(inspect.signature(report).parameters)

    @functools.wraps(report)
    def choose(*args: Any, **kwargs: Any) -> None:
        current = session.get_optional_current()
        is_todays = bool(args) or ("metrics" in kwargs and names.issuperset(kwargs))
        if current is not None:
            if args or (is_todays and isinstance(kwargs["metrics"], dict)):  # 2022's values may have any name
                raise TypeError(
                    f"report() takes keywords in a function that hocket.train.Trainer runs, but received {args or kwargs!r}. Write "
                    "report(loss=0.5), and save_checkpoint(...) for a checkpoint; or run the function with DataParallelTrainer."
                )
            current.report(kwargs)
        elif is_todays:
            report(*args, **kwargs)
        elif _get_optional_info("report") is not None:
            raise TypeError(
                f"report() takes one dict in a function that is run by fit(), but received the keywords {sorted(kwargs)}. Write "
                "report({'loss': 0.5}), with checkpoint=... beside it; keywords are for functions that hocket.train.Trainer runs."
            )

    return choose
