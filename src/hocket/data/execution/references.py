"""Blocks as objects of the session: references to tables, frames and arrays, and datasets of these."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from hocket.core import api
from hocket.data import arrow, block_reads, blocks
from hocket.data.execution import tasks
from hocket.engine import contract


def convert(
    stored: Iterable[block_reads.Stored], batch_format: str, column: str | None = None
) -> list[contract.ObjectRef[object]]:
    """Return references to blocks in the format that a user requests. Tasks convert the blocks.

    Args:
        stored: The blocks.
        batch_format: The format.
        column: The one column to return, as an array; None: all.
    """
    task = tasks.make_task(None, _convert, f"to_{batch_format}_refs", num_returns=1)
    found: list[contract.ObjectRef[Any]] = [
        task.remote(one.ref, one.start, one.stop, batch_format, column) for one in stored
    ]
    return found


def _convert(block: blocks.Block, start: int, stop: int, batch_format: str, column: str | None) -> object:
    part = block.cut(start, stop)
    if column is None:
        return part.to_batch(batch_format, is_owned=True)
    return part.select([column]).to_batch(batch_format, is_owned=True)[column]


@final
@dataclass(frozen=True)
class RefRead:
    """The block behind a reference.

    Args:
        ref: A reference to an Arrow table, a data frame, an array, or a dict of arrays.
        caller: Name of the user's call, for messages.
    """

    ref: contract.ObjectRef[Any]
    caller: str

    num_rows: None = None
    num_bytes: None = None

    def __call__(self) -> blocks.Block:
        found = api.get(self.ref)
        if isinstance(found, bytes):
            found = arrow.load(self.caller).ipc.open_stream(found).read_all()
        if isinstance(found, np.ndarray):
            found = {"data": found}
        return blocks.build_from_batch(found, f"The value of a reference in {self.caller}")


def list_reads(refs: object, caller: str) -> list[RefRead]:
    """Return reads of the blocks behind references."""
    given: list[Any] = list(refs) if isinstance(refs, list | tuple) else [refs]
    strange = next((one for one in given if not isinstance(one, contract.ObjectRef)), None)
    if strange is not None:
        raise TypeError(f"{caller} takes references, but received {strange!r:.80}. Write hocket.put(table).")
    return [RefRead(one, caller) for one in given]
