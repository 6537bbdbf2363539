"""The record of a run, constant from its start to its end."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hocket import exceptions
from hocket.core import api
from hocket.engine import contract
from hocket.train import configs, validation
from hocket.train.checkpoints import storage
from hocket.train.rank import datasets, rank_info
from hocket.train.run import backend, checkpoint_manager, report_book


@dataclass(frozen=True, kw_only=True)
class Run:
    """Everything about a run that does not change while it runs, with the books for reports and checkpoints."""

    function: Callable[..., Any]
    """The training function."""
    args: tuple[Any, ...]
    """The training function's arguments: the configuration, if it takes one."""
    scaling: configs.ScalingConfig
    config: configs.RunConfig
    run_storage: storage.Storage
    backend_config: backend.BackendConfig
    validation: validation.ValidationConfig | None
    """How to validate a checkpoint when its report requests that."""
    supplies: Mapping[str, datasets.Supply]
    """The datasets of the run, kept until the run is over."""
    manager: checkpoint_manager.CheckpointManager
    book: report_book.ReportBook
    renew: Callable[[], Callable[..., object] | None] = lambda: None
    """Called before ranks start again. If state of the training function in the driver was lost and begun anew, this
    returns another training function; else None."""

    def describe_attempt(
        self, world_size: int, *, attempt: int = 0, token: str = "", mark: str = ""
    ) -> rank_info.AttemptInfo:
        """Return the facts for all ranks that begin now.

        Args:
            world_size: The number of ranks that report.
            attempt: The number of earlier starts of the group.
            token: See `rank_info.AttemptInfo`.
            mark: Distinguishes the names of this attempt from those of other attempts; random if empty.
        """
        return rank_info.AttemptInfo(
            world_size=world_size,
            run_storage=self.run_storage,
            attempt=attempt,
            token=token,
            start_checkpoint=self.manager.latest,
            start_positions=self.manager.latest_positions,
            name_prefix=f"checkpoint_{self.manager.next_number:06d}_{(mark or secrets.token_hex(3))[:6]}",
            validates=self.validation is not None,
            datasets=self.supplies,
            compares=self.config.divergence_config.action != "ignore" and world_size > 1,
            compares_every=self.config.divergence_config.every_n_steps,
        )


Work = tuple[Callable[..., Any], tuple[Any, ...]]
"""A training function and its arguments."""


def put_work(work: Work, config: backend.BackendConfig, names: Mapping[str, str]) -> contract.ObjectRef[object]:
    """Pickle a training function and its arguments, once for all ranks, before anything starts.

    Args:
        work: The function and its arguments.
        config: The backend that checks them first.
        names: The user's name for each part that messages call ``"value[0]"`` and the like, the longest first.
    """
    config.check_work(work)
    try:
        return api.put(work)
    except exceptions.SerializationError as error:
        message = str(error)
        for place, name in names.items():
            message = message.replace(place, name)
        raise exceptions.SerializationError(message) from error.__cause__
