"""Sums that do not depend on the order of the values, nor on how ranks share them.

An evaluation on five ranks adds five partial sums. Floats that are added in another order give another last digit, so
the result shows the number of ranks. Here a sum is one whole number, in units of the smallest float, 2**-1074. This
loses nothing: the sum is rounded once, when it is read. It has at most 2,100 bits, and grows with the logarithm of the
count. So any partition of the same values gives the same result, bit for bit: the correctly rounded one, as `math.fsum`
gives it for a list. The idea of one wide fixed-point number for all floats is U. Kulisch's.
"""

from __future__ import annotations

from typing import Self, final

import numpy as np
import numpy.typing as npt

_UNIT_BITS = 1074
"""A float is a whole number of times 2**-1074."""

_DIGITS = 53
"""Number of bits of a float's digits."""

_HALF = 27
"""Number of these bits in the lower half."""

_CHUNK = 1 << 20
"""Largest number of values that are added at once. The sum of as many halves of 27 bits stays below 2**53, so floats
hold it exactly."""


@final
class ExactMean:
    """A mean whose last digit depends neither on the number of ranks nor on the batch size.

    Each rank adds the values of its rows, with the weights of its slices if these were padded. Then the ranks' objects,
    which can be pickled, are merged in any order.

    Example:
        >>> from hocket.data import ExactMean, Ledger
        >>> correct = [True, False, True, True, True]
        >>> def evaluate(rank, world_size):
        ...     mean = ExactMean()
        ...     for part in Ledger(5, batch_size=4, shuffle=False).slices(rank, world_size):
        ...         mean.add([correct[row] for row in part.padded_indices], part.weights)
        ...     return mean
        >>> total = evaluate(0, 3).merge(evaluate(1, 3)).merge(evaluate(2, 3))
        >>> total.compute(), total.count
        (0.8, 5)
    """

    __slots__ = ("_count", "_units")

    def __init__(self) -> None:
        self._count = 0
        #: The sum of the values, in units of 2**-1074.
        self._units = 0

    @property
    def count(self) -> int:
        """Number of values that count."""
        return self._count

    def add(self, values: npt.ArrayLike, weights: npt.ArrayLike | None = None) -> None:
        """Add values, one for each row.

        Args:
            values: Numbers or bools, taken as float64.
            weights: 1 for a value that counts and 0 for one that does not, as in `Slice.weights`. Default: all count.
                A value with weight 0 may be anything, also NaN.

        Raises:
            ValueError: The numbers of weights and values differ, a weight is neither 0 nor 1, or a value that counts is
                not finite.

        Example:
            >>> from hocket.data import ExactMean
            >>> mean = ExactMean()
            >>> mean.add([0.1, 0.2, float("nan")], weights=[1, 1, 0])
            >>> mean.compute()
            0.15000000000000002
        """
        numbers = np.asarray(values, np.float64).ravel()
        if weights is not None:
            counts = np.asarray(weights).ravel()
            if len(counts) != len(numbers):
                raise ValueError(
                    f"weights must have one entry for each value, but received {len(counts)} weights for "
                    f"{len(numbers)} values. Pass the loss of each row, not the mean loss: reduction='none' in "
                    "PyTorch."
                )
            if not np.all((counts == 0) | (counts == 1)):
                odd = counts[(counts != 0) & (counts != 1)][0]
                raise ValueError(
                    f"A weight must be 0 or 1, but received {odd}. To weigh rows, add value * weight to one ExactMean "
                    "and the weights to another."
                )
            numbers = numbers[counts == 1]
        finite = np.isfinite(numbers)
        if not finite.all():
            raise ValueError(
                f"A value must be finite to have an exact sum, but received {numbers[~finite][0]}. Find its cause, or "
                "leave the value out with weight 0."
            )
        self._count += len(numbers)
        for start in range(0, len(numbers), _CHUNK):
            self._units += _sum_units(numbers[start : start + _CHUNK])

    def merge(self, other: Self) -> Self:
        """Add the values of another mean, and return this mean.

        Example:
            >>> from hocket.data import ExactMean
            >>> one, other = ExactMean(), ExactMean()
            >>> one.add([1.0])
            >>> other.add([2.0, 6.0])
            >>> one.merge(other).compute()
            3.0
        """
        self._count += other._count
        self._units += other._units
        return self

    def compute(self) -> float:
        """Return the mean of all values, correctly rounded.

        Raises:
            ValueError: No value counts.
        """
        if not self._count:
            raise ValueError(
                "An ExactMean without values has no mean. A rank may have no rows to evaluate: merge() the ExactMeans "
                "of all ranks, then call compute()."
            )
        return self._units / (self._count << _UNIT_BITS)  # Python rounds a quotient of whole numbers correctly


def _sum_units(numbers: npt.NDArray[np.float64]) -> int:
    """Return the sum of finite numbers in units of 2**-1074."""
    parts, exponents = np.frexp(numbers)
    digits = np.ldexp(parts, _DIGITS).astype(np.int64)  # each number is its digits times 2**(exponent - 53)
    found, which = np.unique(exponents, return_inverse=True)
    # Floats add halves of 27 bits without loss, and numpy's bincount adds floats.
    highs = np.bincount(which, weights=digits >> _HALF)
    lows = np.bincount(which, weights=digits & ((1 << _HALF) - 1))
    total = 0
    for exponent, high, low in zip(found.tolist(), highs.tolist(), lows.tolist(), strict=True):
        group = (int(high) << _HALF) + int(low)
        shift = exponent - _DIGITS + _UNIT_BITS
        total += (
            group << shift if shift >= 0 else group >> -shift
        )  # only zeros are shifted out: nothing is below a unit
    return total
