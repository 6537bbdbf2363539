"""Horovod's functions for objects, and its rules, the same for each framework of `hocket.train.frameworks.contract`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final, final

from hocket.collective.arithmetic import ReduceOp
from hocket.compat.horovod import place
from hocket.train.frameworks import contract

OPS: Final = {
    place.Op.AVERAGE: ReduceOp.MEAN,
    place.Op.SUM: ReduceOp.SUM,
    place.Op.MIN: ReduceOp.MIN,
    place.Op.MAX: ReduceOp.MAX,
    place.Op.PRODUCT: ReduceOp.PRODUCT,
}
"""Horovod's operations as operations of Hocket's collectives on numpy arrays."""


@final
class Verbs:
    """Horovod's functions for one framework.

    Args:
        framework: The framework.
        trainer: The name of the trainer that joins the ranks, for messages: ``"hocket.train.jax.JaxTrainer"``.
    """

    def __init__(self, framework: contract.Framework[Any], trainer: str) -> None:
        self._framework = framework
        self._trainer = trainer

    def init(self, comm: object = None, process_sets: object = None) -> None:
        """Initialize.

        Args:
            comm: Must be left out.
            process_sets: Must be left out.

        Example:
            >>> import hocket.train.horovod.jax as hvd
            >>> hvd.init()
            >>> hvd.rank(), hvd.size()
            (0, 1)
            >>> hvd.shutdown()
        """
        place.refuse("init", comm=(comm, None), process_sets=(process_sets, None))
        found = place.enter()
        if found.size > 1 and not found.in_trainer:
            place.leave()
            raise RuntimeError(
                f"hvd.init() found {found.size} ranks that no trainer has joined; `hocket run` joins ranks for "
                f"PyTorch only. Run the training function with {self._trainer}."
            )

    def get_collectives(self) -> Any:
        """Return the ranks' collectives on numpy arrays."""
        return self._framework.get_collectives("horovod")

    def broadcast_object(self, obj: object = None, root_rank: int = 0, name: str | None = None) -> Any:
        """Return the root's object in all ranks. It must be possible to pickle the object."""
        check_root(root_rank)
        return self.allgather_object(obj if place.rank() == root_rank else None)[root_rank]

    def allgather_object(self, obj: object, name: str | None = None) -> list[Any]:
        """Return all ranks' objects, by rank."""
        if place.get_place().size == 1:
            return [obj]
        found: list[Any] = self.get_collectives().all_gather_object(obj)
        return found

    def barrier(self) -> None:
        """Wait until all ranks have called this function."""
        if place.get_place().size > 1:
            self.get_collectives().barrier()

    def join(self) -> int:
        """Wait until all ranks have called this function; return the rank that came last.

        In Horovod a rank without more batches may call this while the others go on. Here that raises an error that
        names the rank. All ranks must take the same number of steps, as with the framework's prepared loaders."""
        came: Sequence[float] = self.allgather_object(time.monotonic())  # one clock for all processes of a machine
        return came.index(max(came))


def shutdown() -> None:
    """Undo `init`. The trainer's ranks stay joined."""
    place.leave()


def check_root(root_rank: int) -> None:
    """Refuse a root that is not a rank."""
    count = place.get_place().size
    if not 0 <= root_rank < count:
        raise ValueError(f"root_rank must be one of the {count} ranks from 0, but received {root_rank!r}.")
