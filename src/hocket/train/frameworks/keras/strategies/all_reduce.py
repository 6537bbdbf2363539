"""All-reduce in Keras: each step is taken with the mean gradient of all ranks' rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt

from hocket.collective.arithmetic import ReduceOp
from hocket.collective.world import World
from hocket.train import strategies
from hocket.train.frameworks.keras import bridges
from hocket.train.frameworks.keras.strategies import strategy

_SHORT: Final = {"fp16": "float16", "bf16": "bfloat16"}


@strategy.open_exchange.register
def _(settings: strategies.AllReduce, joined: World) -> strategy.Exchange:
    if isinstance(settings.compression, strategies.PowerSGD):
        raise TypeError(
            f"hocket.train.keras does not have compression={settings.compression!r}, which PyTorch computes. Use 'bf16' or 'fp16', or leave it out."
        )
    if settings.bucket_mb is not None:
        raise ValueError(
            f"hocket.train.keras does not have bucket_mb={settings.bucket_mb!r}: a step's gradients travel in one buffer. Leave it out."
        )
    return _Exchange(joined, settings.compression)


@final
class _Exchange(strategy.Exchange):
    def __init__(self, joined: World, compression: str | None) -> None:
        self._world = joined
        self._short = None if compression is None else _find_dtype(_SHORT[compression])
        self.averages_gradients = joined.size > 1

    def follow_model(self) -> strategy.Exchange:
        return self

    def average(self, flat: npt.NDArray[Any], rows: float) -> None:
        average_rows(self._world, flat, rows, self._short)

    def gather(self, slices: Sequence[bridges.Slices], rows: float) -> Sequence[bridges.Slices]:
        return gather_slices(self._world, slices, rows, self._short)

    def choose(self, numbers: Sequence[int]) -> None: ...

    def begin(self, model: Any) -> None: ...

    def begin_epoch(self, model: Any) -> None: ...

    def after_steps(self, model: Any, count: int) -> None: ...

    def close(self) -> None: ...

    def synchronize(self, model: Any) -> None: ...


def average_rows(joined: World, flat: npt.NDArray[Any], rows: float, short: np.dtype[Any] | None = None) -> None:
    """Replace means over ranks' rows by the mean over all rows. The last element has no meaning before and after.

    Ranks may have different numbers of rows, as in the last batch of an epoch. So what is added up are sums, and the numbers of rows with
    them, in one collective.

    Args:
        joined: The ranks.
        flat: The means of this rank's rows; changed.
        rows: How many there are. What 0 rows give does not count, whatever it is.
        short: The dtype to travel as, if not as they are; then the numbers of rows travel first, because sums would leave the range.
    """
    values = flat[:-1]
    if not rows:
        values[:] = 0
    if short is None:
        values *= rows
        flat[-1] = rows
        joined.all_reduce(flat)
        values /= flat[-1]
        return
    total = np.array([rows], np.float64)
    joined.all_reduce(total)
    values *= rows * joined.size / total[0]
    wire = values.astype(short)
    joined.all_reduce(wire, ReduceOp.MEAN)
    values[:] = wire


def gather_slices(
    joined: World, slices: Sequence[bridges.Slices], rows: float, short: np.dtype[Any] | None = None
) -> list[bridges.Slices]:
    """Return the slices of all ranks' rows, one behind the other, of which the sum is the mean over all rows.

    Args:
        joined: The ranks.
        slices: The means of this rank's rows.
        rows: How many there are. What 0 rows give does not count.
        short: The dtype to travel as, if not as they are.
    """
    sent = [(indices, values if short is None else values.astype(short)) for indices, values in slices]
    ranks = [(theirs, given) for theirs, given in joined.all_gather_object((rows, sent)) if theirs]
    total = sum(theirs for theirs, _ in ranks)
    found = []
    for number, (indices, values) in enumerate(slices):
        parts = [given[number][1].astype(values.dtype) * values.dtype.type(theirs / total) for theirs, given in ranks]
        found.append(
            (
                np.concatenate([indices[:0], *(given[number][0] for _, given in ranks)]),
                np.concatenate([values[:0], *parts]),
            )
        )
    return found


def _find_dtype(name: str) -> np.dtype[Any]:
    if name == "float16":
        return np.dtype(np.float16)
    import ml_dtypes  # Keras needs it too

    found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return found
