"""What stands for Ray's scheduler that gives more resources to trials that run."""

from __future__ import annotations

from typing import NoReturn, final

from hocket.tune.schedulers import fifo


@final
class ResourceChangingScheduler(fifo.FIFOScheduler):
    """Says that the resources of a trial do not change.

    Args:
        base_scheduler: Ignored, as is everything else.

    Raises:
        NotImplementedError: Always.

    Example:
        >>> from hocket.tune.schedulers import ResourceChangingScheduler
        >>> ResourceChangingScheduler()
        Traceback (most recent call last):
            ...
        NotImplementedError: ResourceChangingScheduler cannot be made: ...
    """

    def __init__(self, base_scheduler: object = None, resources_allocation_function: object = None) -> None:
        _refuse()


def _refuse() -> NoReturn:
    raise NotImplementedError(
        "ResourceChangingScheduler cannot be made: a trial keeps the CPUs and GPUs with which it has begun. Give "
        "TuneConfig the scheduler that it was to wrap, such as scheduler=ASHAScheduler(), and say with "
        "tune.with_resources(trainable, {'cpu': 2}) what each trial needs."
    )
