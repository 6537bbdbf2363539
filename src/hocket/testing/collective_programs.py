"""Programs of the ranks in `hocket.testing.collective_contract`."""

from __future__ import annotations

import hashlib
import importlib
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pytest

from hocket.collective.arithmetic import BITWISE, ReduceOp

if TYPE_CHECKING:
    from hocket.train.strategies.strategy import Collectives

Array: TypeAlias = npt.NDArray[Any]

WHOLE: Final = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS: Final = ("float16", "bfloat16", "float32", "float64")
COMPLEX: Final = ("complex64", "complex128")

LENGTHS: Final = (1, 2, 7, 8_191, 8_192, 8_193, 131_071, 131_072, 131_073, 393_216, 655_377)
"""Lengths of float64 arrays to reduce: below, at and above 64 KiB and 1 MiB, the sizes that groups exchange at once."""


# --- the ranks' data -------------------------------------------------------------------------------------------------

SMALL: Final[tuple[tuple[tuple[int, ...], int], ...]] = (
    *(((0,), 0), ((3, 0), 0), ((), 1), ((1,), 1), ((1, 1), 1), ((2, 3), 6)),
)
"""Shapes, each with its number of elements."""


def find_dtype(name: str) -> np.dtype[Any]:
    """Return numpy's dtype of a name. Skip the calling test if bfloat16 is not installed."""
    if name != "bfloat16":
        return np.dtype(name)
    pytest.importorskip("ml_dtypes", reason="numpy has bfloat16 from ml_dtypes: pip install ml_dtypes")
    found: np.dtype[Any] = np.dtype(importlib.import_module("ml_dtypes").bfloat16)
    return found


def list_ops(dtype: str) -> list[ReduceOp]:
    """Return the operations for numbers of a dtype."""
    if dtype in WHOLE:
        return [op for op in ReduceOp if op is not ReduceOp.MEAN]
    if dtype in FLOATS:
        return [op for op in ReduceOp if op not in BITWISE]
    if dtype in COMPLEX:
        return [ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MEAN]
    return [ReduceOp.MIN, ReduceOp.MAX, *BITWISE]


def draw(dtype: str, shape: tuple[int, ...], rank: int) -> Array:
    """Return a rank's random numbers of a dtype. Sums of floats are rounded."""
    rows = np.random.default_rng(100 + rank)
    if dtype in WHOLE or dtype == "bool":
        return rows.integers(0, 2 if dtype == "bool" else 5, shape).astype(dtype)
    values = rows.normal(size=shape)
    if dtype in COMPLEX:
        values = values + 1j * rows.normal(size=shape)
    return values.astype(find_dtype(dtype))


def draw_wide(length: int, rank: int) -> Array:
    """Return numbers of very different size in each rank, so that their sum depends on the order."""
    values: Array = np.random.default_rng(rank).normal(size=length) * 10.0 ** (3 * rank)
    return values


def digest_of(array: Array) -> str:
    """Return a digest that is equal for equal bits."""
    return hashlib.sha1(array.tobytes(), usedforsecurity=False).hexdigest()


def build_object(rank: int) -> dict[str, object]:
    """Return an object that is small in one rank and large in another."""
    return {"rank": rank, "text": "x" * rank, "bytes": bytes(1_500_000 * (rank == 1)), "list": list(range(rank * 40))}


# --- the ranks' programs ---------------------------------------------------------------------------------------------


def tell_numbers(group: Collectives) -> tuple[int, int]:
    """Return the rank and the number of ranks."""
    return group.rank, group.size


def reduce_each(group: Collectives, dtype: str, ops: Sequence[ReduceOp]) -> list[tuple[ReduceOp, Any, bytes]]:
    """Reduce arrays of some shapes with each operation; return the bytes of the results."""
    found = []
    for op in ops:
        for shape in ((1,), (5,), (3, 4), (30_000,)):
            values = draw(dtype, shape, group.rank)
            assert group.all_reduce(values, op) is None  # type: ignore[func-returns-value]
            assert values.shape == shape
            found.append((op, shape, values.tobytes()))
    return found


def reduce_lengths(group: Collectives, op: ReduceOp) -> list[str]:
    """Reduce arrays of all lengths, one after the other."""
    found = []
    for length in LENGTHS:
        values = draw_wide(length, group.rank)
        group.all_reduce(values, op)
        found.append(digest_of(values))
    return found


def reduce_at_any_pace(group: Collectives, turns: int) -> list[str]:
    """Add up the same numbers several times, each time with another rank as the last."""
    found = []
    for turn in range(turns):
        np.random.default_rng(0).normal(size=1 + 300_000 * ((turn + group.rank) % group.size))
        values = draw_wide(50_000, group.rank)
        group.all_reduce(values)
        found.append(digest_of(values))
    return found


ODD_OPS: Final = (ReduceOp.SUM, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.MEAN)


def draw_odd_floats(rank: int) -> Array:
    """Return zeros, infinities and NaNs with different bits in each rank. Only rank 0 has the last NaN."""
    nans = np.array([0x7FF8000000000001 + rank, 0xFFF8000000000001 + rank], np.uint64).view(np.float64)
    return np.array([*nans, -0.0 if rank else 0.0, np.inf if rank else -np.inf, 1.0 if rank else np.nan])


def reduce_odd_floats(group: Collectives) -> list[bytes]:
    """Reduce odd floats, few and many of them; return the bytes of the results."""
    found = []
    for op in ODD_OPS:
        for length in (1, 40_000):
            values = np.tile(draw_odd_floats(group.rank), length)
            with np.errstate(invalid="ignore"):
                group.all_reduce(values, op)
            found.append(values.tobytes())
    return found


def reduce_small(group: Collectives) -> list[tuple[tuple[int, ...], list[float]]]:
    """Add up small arrays: empty ones, single numbers, and a few more."""
    found = []
    for shape, _ in SMALL:
        values = np.full(shape, group.rank + 1.0)
        group.all_reduce(values)
        sent = np.full(shape, group.rank)
        group.broadcast(sent)
        assert not sent.any()
        found.append((values.shape, values.reshape(-1).tolist()))
    return found


def reduce_part(group: Collectives) -> list[float]:
    """Add up the middle of an array, then broadcast the middle of another."""
    whole = np.zeros(6)
    whole[2:4] = group.rank + 1
    group.all_reduce(whole[2:4])
    sent = np.zeros(6)
    sent[2:4] = group.rank + 1
    group.broadcast(sent[2:4])
    return [*whole.tolist(), *sent.tolist()]


def reduce_strided(group: Collectives) -> tuple[str, list[float], list[float]]:
    """Add up every second number of an array; return the error's text, these numbers, and the others."""
    whole = np.zeros(6)
    whole[::2] = group.rank + 1
    text = ""
    try:
        group.all_reduce(whole[::2])
    except ValueError as error:
        text = str(error)
    group.barrier()
    return text, whole[::2].tolist(), whole[1::2].tolist()


def broadcast_each(group: Collectives, dtypes: Sequence[str]) -> list[str]:
    """Broadcast arrays from each root; return descriptions of those that arrived wrongly."""
    wrong = []
    for dtype in dtypes:
        for root in range(group.size):
            for shape in ((), (0,), (5,), (3, 4), (700_000,)):
                mine = draw(dtype, shape, group.rank)
                group.broadcast(mine, root)
                if mine.shape != shape or mine.tobytes() != draw(dtype, shape, root).tobytes():
                    wrong.append(f"{dtype} {shape} from {root}")
    return wrong


def gather_objects(group: Collectives) -> list[list[object]]:
    """Gather objects several times."""
    return [group.all_gather_object(value) for value in (build_object(group.rank), None, group.rank == 1)]


def change_objects(group: Collectives) -> list[list[int]]:
    """Change gathered objects; return them when all ranks have done so."""
    found = group.all_gather_object([group.rank])
    group.barrier()
    for one in found:
        one.append(group.rank)
    group.barrier()
    return found


def count_at_barriers(group: Collectives, folder: str, turns: int) -> list[int]:
    """Leave a file before each barrier; return the number of files behind each."""
    found = []
    for turn in range(turns):
        Path(folder, f"{turn}-{group.rank}").touch()
        group.barrier()
        found.append(len(list(Path(folder).glob(f"{turn}-*"))))
    return found


def call_at_any_pace(group: Collectives, turns: int) -> list[int]:
    """Reduce, broadcast, gather and wait by turns, at the rank's own pace."""
    pace = np.random.default_rng(group.rank)
    found = []
    for turn in range(turns):
        for _ in range(int(pace.integers(0, 200))):
            pace.random()
        values = np.full(1 + turn % 7, turn * (group.rank + 1))
        group.all_reduce(values)
        if turn % 5 == 0:
            group.barrier()
            group.barrier()
        sent = np.full(3, group.rank)
        group.broadcast(sent, turn % group.size)
        assert sent.tolist() == [turn % group.size] * 3
        if turn % 10 == 0:
            assert group.all_gather_object(turn) == [turn] * group.size
        found.append(int(values[-1]))
    return found


def call_alone(group: Collectives) -> dict[str, object]:
    """Call each collective in a group of one rank."""
    values = np.array([0.5, 1.5])
    for op in ReduceOp:
        if op not in BITWISE:
            group.all_reduce(values, op)
    group.broadcast(values, 0)
    group.barrier()
    return {"values": values.tolist(), "objects": group.all_gather_object({"rank": group.rank})}


def freeze(array: Array) -> Array:
    """Make an array read-only."""
    array.flags.writeable = False
    return array


MISTAKES: Final[tuple[tuple[str, Callable[[Any], object], str], ...]] = (
    ("read-only", lambda group: group.all_reduce(freeze(np.ones(3))), "copy"),
    ("read-only broadcast", lambda group: group.broadcast(freeze(np.ones(3))), "copy"),
    ("a list", lambda group: group.all_reduce([1.0, 2.0]), "numpy"),
    ("a number", lambda group: group.broadcast(3.0), "numpy"),
    ("objects", lambda group: group.all_reduce(np.array([{}, None])), "all_gather_object"),
    ("sent objects", lambda group: group.broadcast(np.array([{}, None])), "all_gather_object"),
    ("a mean of whole numbers", lambda group: group.all_reduce(np.ones(3, int), ReduceOp.MEAN), "SUM"),
    ("a mean of truths", lambda group: group.all_reduce(np.ones(3, bool), ReduceOp.MEAN), "SUM"),
    ("bits of floats", lambda group: group.all_reduce(np.ones(3), ReduceOp.BXOR), "int64"),
    ("a root below", lambda group: group.broadcast(np.ones(3), -1), "ranks"),
    ("a root above", lambda group: group.broadcast(np.ones(3), group.size), "ranks"),
)
"""Calls that no group can do, each with a word of the remedy."""


def call_wrongly(group: Collectives) -> tuple[list[str], float]:
    """Make each mistake in rank 0; return the errors' texts, and a sum that all ranks compute afterwards."""
    texts = []
    for name, mistake, remedy in MISTAKES:
        if group.rank:
            texts.append(remedy)
            continue
        error = catch(mistake, group)
        assert isinstance(error, ValueError | TypeError), f"{name} was not refused: {error!r}"
        texts.append(str(error))
    values = np.ones(1)
    group.all_reduce(values)
    return texts, float(values[0])


CALLS: Final[dict[str, Callable[[Any], object]]] = {
    "sum": lambda group: group.all_reduce(np.ones(3)),
    "longer sum": lambda group: group.all_reduce(np.ones(1)),
    "maximum": lambda group: group.all_reduce(np.ones(3), ReduceOp.MAX),
    "sum of floats32": lambda group: group.all_reduce(np.ones(6, np.float32)),
    "and": lambda group: group.all_reduce(np.ones(3, int), ReduceOp.BAND),
    "or": lambda group: group.all_reduce(np.ones(3, int), ReduceOp.BOR),
    "broadcast": lambda group: group.broadcast(np.ones(3)),
    "broadcast of rank 1": lambda group: group.broadcast(np.ones(3), 1),
    "objects": lambda group: group.all_gather_object("x"),
    "barrier": lambda group: group.barrier(),
}


def call_one(group: Collectives, names: Sequence[str]) -> tuple[Exception | None, Exception | None]:
    """Make this rank's call of the list, and then a barrier; return their errors."""
    return catch(CALLS[names[group.rank]], group), catch(CALLS["barrier"], group)


def catch(call: Callable[[object], object], group: Collectives) -> Exception | None:
    """Return the error of a call; None if it raises none."""
    try:
        call(group)
    except Exception as error:  # noqa: BLE001 (the test looks at it)
        return error
    return None


def leave_one_alone(group: Collectives, operation: str) -> Exception | None:
    """Meet once; then only rank 0 calls the operation, and waits for the others."""
    group.barrier()
    return catch(CALLS[operation], group) if group.rank == 0 else None


def raise_in_one(group: Collectives) -> Exception | None:
    """Meet once; then rank 1 fails."""
    group.barrier()
    if group.rank == 1:
        raise KeyError("on purpose")
    return catch(CALLS["sum"], group)


def kill_one(group: Collectives) -> Exception | None:
    """Meet once; then rank 1 is killed."""
    group.barrier()
    if group.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return catch(CALLS["sum"], group)
