"""What a plan leaves when it was executed: rows that can be read in any order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np

from hocket.data import block_reads, plan, settings
from hocket.data.execution import streaming, tasks


@final
class Source:
    """Rows that are there, in blocks that can be read in any order.

    Args:
        parts: The blocks.
        shuffle_seed: Which orders the epochs have; None: that of the blocks.
    """

    def __init__(
        self, parts: Sequence[block_reads.Held | block_reads.Stored | block_reads.Filed], shuffle_seed: int | None
    ) -> None:
        self.parts = tuple(parts)
        self.shuffle_seed = shuffle_seed
        ends = np.cumsum([0, *(part.num_rows for part in parts)])
        self.starts = ends[:-1]
        self.num_rows = int(ends[-1])


def file_source(source: Source, folder: str) -> Source:
    """Return the same rows in files, for ranks that have no engine.

    Args:
        source: The rows.
        folder: Where the files are written: one that is there, and that the ranks see.
    """
    parts = [
        block_reads.file_block(tasks.fetch(part), f"{folder}/{number}.block")
        for number, part in enumerate(source.parts)
    ]
    return Source(parts, source.shuffle_seed)


def build_source(whole: plan.Plan, options: settings.ExecutionOptions, *, stays_here: bool) -> Source:
    """Execute a plan; see `Dataset.build_source`."""
    seed = None
    if whole.ops and isinstance(whole.ops[-1], plan.Shuffle):
        seed, whole = whole.ops[-1].seed, plan.Plan(whole.reads, whole.ops[:-1])
    if stays_here:
        return Source([found for found in streaming.stream(whole, options) if found.num_rows], seed)
    return Source(streaming.store(whole, options), seed)
