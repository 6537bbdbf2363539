"""The usage of a run with `Sharded` on JAX, from the layouts and from the programs that XLA has compiled."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import final

from hocket import mesh as meshes
from hocket.mesh.backends import jax as backend
from hocket.train import strategies
from hocket.train.frameworks import spreading
from hocket.train.rank import usage


@final
class Account:
    """The account of one rank.

    Args:
        settings: The mesh, and which of its axes cut the batch.
    """

    def __init__(self, settings: strategies.Sharded) -> None:
        self._batch_dims = spreading.list_batch_dims(settings)
        self._predicted = usage.ShardingBytes(parameters=0, gradients=0, gathered=0, reduced=0)
        self._programs: backend.Programs | None = None
        self.steps = 0
        self.optimizer = 0
        """Bytes that the optimizer keeps."""

    def predict(self, parameters: Iterable[tuple[meshes.Layout, Sequence[int], int, bool]]) -> None:
        """Set the parameters: for each its stored layout, shape, bytes of an element, and whether it is trained."""
        kept = gradients = gathered = reduced = 0
        for stored, shape, size, is_trained in parameters:
            gather, reduce = spreading.plan_traffic(stored, self._batch_dims, shape, size)
            own = size * math.prod(stored.local_shape_from_global_shape(shape))
            kept += own
            gathered += gather.num_bytes
            if is_trained:
                gradients += own
                reduced += reduce.num_bytes
        self._predicted = usage.ShardingBytes(parameters=kept, gradients=gradients, gathered=gathered, reduced=reduced)

    def count_step(self) -> None:
        """Count a step. Called for each batch."""
        if self._programs is None:
            self._programs = backend.Programs()
        elif self.steps == 1:
            self._programs.look()  # only the step is compiled now; later, saving and evaluation are, too
        self.steps += 1

    def note(self) -> None:
        """Put the usage into `Result.sharding`, if anything was trained. Called when the strategy is closed."""
        if not self._predicted.parameters or self._programs is None:
            return
        if self.steps == 1:
            self._programs.look()
        usage.note(
            usage.ShardingUsage(
                predicted=self._predicted,
                measured=None,
                steps=self.steps,
                gathered_again=0,
                other=0,
                received=dict(self._programs.received),
                optimizer=self.optimizer,
                peak_memory=usage.read_peak_memory(),
            )
        )


def count_kept(values: Iterable[object]) -> int:
    """Return the number of bytes of arrays that this rank holds."""
    return sum(part.data.nbytes for value in values for part in getattr(value, "addressable_shards", ()))
