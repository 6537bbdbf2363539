"""Accumulates the gradients of a synchronous step: each shard has a box for each worker.

A worker puts its gradient into its own box, so no two workers write to one place. When the step has enough gradients,
one worker pushes their mean, added in the order of the workers. So the sum does not depend on the order of arrival, and
a box outlives the worker that filled it.
"""

from __future__ import annotations

from typing import Final, final

import numpy as np

from hocket.collective import futex
from hocket.ps.stores import memory, records, slices
from hocket.ps.stores.memory import Array

NUM_BOXES: Final = 128
"""Number of workers that a synchronous step can have. Unused boxes take no memory. A guess at a safe number."""

_MAX_ROWS: Final = 1 << 18
"""Number of different rows of a table in one worker's gradient, at most. A guess above any batch's number."""

ROUND, COUNT = range(2)


def plan(spec: records.DenseSpec | records.TableSpec) -> memory.SegmentPlan:
    """Return the layout of a shard's boxes."""
    layout = memory.SegmentPlan()
    layout.add("headers", (NUM_BOXES, 8), np.int64)
    layout.add("scales", (NUM_BOXES,), np.float64)
    if isinstance(spec, records.DenseSpec):
        layout.add("values", (NUM_BOXES, int(np.prod(spec.shape, dtype=np.int64))), spec.dtype)
    else:
        room = min(spec.rows, _MAX_ROWS)
        layout.add("ids", (NUM_BOXES, room), np.int64)
        layout.add("values", (NUM_BOXES, room, spec.dim), spec.dtype)
    return layout


def build(kept: memory.Memory, spec: records.DenseSpec | records.TableSpec) -> None:
    """Initialise empty boxes in new memory."""
    plan(spec).view(kept)["headers"][:, ROUND] = -1


@final
class GradientAccumulator:
    """The boxes of a shard, as one process sees them."""

    def __init__(self, spec: records.DenseSpec | records.TableSpec, kept: memory.Memory) -> None:
        self._spec = spec
        arrays = plan(spec).view(kept)
        self._headers = arrays["headers"]
        self._scales = arrays["scales"]
        self._values = arrays["values"]
        self._ids: Array | None = arrays.get("ids")

    def put(self, worker: int, round_number: int, operation: records.Operation) -> None:
        """Put a gradient into a worker's box."""
        if worker >= NUM_BOXES:
            raise ValueError(
                f"Synchronous steps have room for {NUM_BOXES} workers, but this is worker {worker}. Use "
                "max_staleness=0 or more instead."
            )
        header = self._headers[worker]
        header[ROUND] = -1
        futex.fence()
        if self._ids is None:
            np.copyto(self._values[worker], np.asarray(operation.value).reshape(-1))
        else:
            count = len(operation.ids)
            if count > self._ids.shape[1]:
                raise ValueError(
                    f"A gradient of `{self._spec.name}` has {count} rows, but a synchronous step has room for "
                    f"{self._ids.shape[1]}. Use smaller batches."
                )
            self._ids[worker, :count] = operation.ids
            self._values[worker, :count] = operation.value
            header[COUNT] = count
        self._scales[worker] = operation.scale
        futex.fence()
        header[ROUND] = round_number

    def take_mean(self, number: int, round_number: int, workers: list[int]) -> records.Operation | None:
        """Return a step's operation on the shard; None if no gradient touches the shard.

        Workers may scale the step in different ways. Then the operation has the scale of largest magnitude, and other
        workers' gradients are reduced in proportion. Without slots, this equals the mean of separate pushes.

        Args:
            number: The shard's number.
            round_number: The step's number.
            workers: The workers whose gradients count, rising.
        """
        found = [worker for worker in workers if self._headers[worker, ROUND] == round_number]
        if not found:
            return None
        scale = max(self._scales[found].tolist(), key=abs)
        if self._ids is None:
            total = self._weigh(found[0], scale).copy()
            for worker in found[1:]:
                np.add(total, self._weigh(worker, scale), out=total)
            np.divide(total, len(workers), out=total)
            return records.Operation(number, "gradient", total, None, scale)
        counts = [int(self._headers[worker, COUNT]) for worker in found]
        ids = np.concatenate([self._ids[worker, :count] for worker, count in zip(found, counts, strict=True)])
        values = np.concatenate(
            [self._weigh(worker, scale, count) for worker, count in zip(found, counts, strict=True)]
        )
        found_ids = slices.group(ids)
        mean = found_ids.sum_rows(values)
        np.divide(mean, len(workers), out=mean)
        return records.Operation(number, "rows_gradient", mean, found_ids.ids, scale)

    def _weigh(self, worker: int, scale: float, count: int | None = None) -> Array:
        """Return a worker's values, or the first `count` rows of them, scaled for a step of this scale."""
        values, own = self._values[worker, :count], float(self._scales[worker])
        return values if own == scale else np.multiply(values, own / scale)
