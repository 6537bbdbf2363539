"""Initializers: they compute the initial values of variables and of rows of tables.

A row's initial value depends only on the seed, on the row's id and on the column. So it does not matter when, where or
together with which other rows a row is made. A table that makes rows at their first use has the same values as a table
that made all rows at the start, even after it is loaded into another number of shards.

Therefore random numbers are not drawn from a stream: they are hashes of their position (J. Salmon et al., "Parallel
Random Numbers: As Easy as 1, 2, 3", SC 2011). A row's id and the seed make the state of a splitmix64 generator (see
`hashing`), whose k-th output gives the bits of columns 2k and 2k + 1. `Normal` turns these into two normally
distributed numbers, as G. Box and M. Muller did in "A Note on the Generation of Random Normal Deviates" (1958).

Values are computed as float32 and have 24 random bits; a float64 variable gets the same numbers. `Uniform` is the same
on every machine. `Normal` uses logarithms and sines, whose last bit may differ between processors.

Measured for rows of 64: 3 ns a number for `Uniform` and 4 for `Normal`, where numpy's generators take 2 and 9. A row of
one column wastes half of its bits.
"""

from __future__ import annotations

import abc
import math
import sys
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, final

import numpy as np
import numpy.typing as npt

from hocket.ps import checks
from hocket.ps.rules import hashing

Array: TypeAlias = npt.NDArray[np.floating[Any]]
Floats: TypeAlias = npt.NDArray[np.float32]
Ids: TypeAlias = npt.NDArray[np.int64]

VERSION: Final = 1
"""The version of these numbers. Golden values in the tests pin it: a change of any result must raise it."""

BLOCK: Final = 32768
"""Number of elements processed at once. Measured: 65,536 gains nothing, and 16,384 takes a quarter longer, because each
numpy call costs a microsecond."""

MAX_SEED: Final = (1 << 64) - 1

_UNIT: Final = 2.0**-24


class Initializer(abc.ABC):
    """The initial values of rows: a function of their ids.

    It is immutable, holds no arrays and can be pickled; any number of threads may call it at once.

    There are four initializers: `Zeros`, `Constant`, `Uniform` and `Normal`. A new one must define `fill`, and must let
    a row depend on its id alone.
    """

    @abc.abstractmethod
    def fill(self, ids: Ids, out: Array) -> None:
        """Write the initial values of rows.

        Args:
            ids: The rows' ids, any 64-bit numbers, in any order. For a dense variable: positions along its first axis.
            out: Receives the values: one row of any shape for each id. If there are more than two axes, contiguous.

        Example:
            >>> import numpy as np
            >>> from hocket import ps
            >>> out = np.empty([3, 2], np.float32)
            >>> ps.Uniform(-1, 1, seed=7).fill(np.array([5, 1 << 40, 5]), out)
            >>> out[0].tolist() == out[2].tolist()
            True
        """


@final
@dataclass(frozen=True)
class Zeros(Initializer):
    """Rows of zeros.

    Example:
        >>> import numpy as np
        >>> from hocket import ps
        >>> out = np.empty([2, 2])
        >>> ps.Zeros().fill(np.arange(2), out)
        >>> out.tolist()
        [[0.0, 0.0], [0.0, 0.0]]
    """

    def fill(self, ids: Ids, out: Array) -> None:
        """Write zeros."""
        _view_rows(ids, out)[...] = 0


@final
@dataclass(frozen=True)
class Constant(Initializer):
    """Rows of one number.

    Args:
        value: The number.

    Raises:
        ValueError: `value` is not a finite number.

    Example:
        >>> import numpy as np
        >>> from hocket import ps
        >>> out = np.empty([2])
        >>> ps.Constant(0.5).fill(np.arange(2), out)
        >>> out.tolist()
        [0.5, 0.5]
    """

    value: float

    def __post_init__(self) -> None:
        _set(self, "value", _require_finite("value", self.value))

    def fill(self, ids: Ids, out: Array) -> None:
        """Write the value."""
        _view_rows(ids, out)[...] = self.value


class _Random(Initializer):
    """Rows of random numbers, determined by a seed and the ids."""

    seed: int

    @abc.abstractmethod
    def _shape(self, even: Floats, odd: Floats) -> None:
        """Turn 24-bit integers of even and of odd columns into the rows' values, in place."""

    @final
    def fill(self, ids: Ids, out: Array) -> None:
        """Write random numbers, in blocks that stay in the cache."""
        rows = _view_rows(ids, out)
        count, columns = rows.shape
        pairs = min((columns + 1) // 2, BLOCK // 2)
        if not count or not pairs:
            return
        at_once = min(count, max(1, BLOCK // 2 // pairs))
        words, work = np.empty(at_once * pairs, np.uint64), np.empty(at_once * pairs, np.uint64)
        halves = np.empty((2, at_once * pairs), np.float32)
        steps = np.arange(1, (columns + 1) // 2 + 1, dtype=np.uint64) * np.uint64(hashing.GOLDEN)
        for start in range(0, count, at_once):
            states = _find_states(ids[start : start + at_once], self.seed)
            for pair in range(0, len(steps), pairs):
                some = steps[pair : pair + pairs]
                shape, size = (len(states), len(some)), len(states) * len(some)
                block = np.add(states[:, None], some, out=words[:size].reshape(shape))
                hashing.mix(block, work[:size].reshape(shape))
                even, odd = halves[0, :size].reshape(shape), halves[1, :size].reshape(shape)
                _split(block, even, odd)
                self._shape(even, odd)
                target = rows[start : start + at_once, 2 * pair : 2 * (pair + pairs)]
                target[:, 0::2] = even
                target[:, 1::2] = odd[:, : target.shape[1] // 2]


@final
@dataclass(frozen=True)
class Uniform(_Random):
    """Uniformly distributed random numbers.

    Args:
        low: The lower bound. The default range is that of Keras's ``"uniform"``.
        high: The upper bound; numbers lie below it, except for rounding.
        seed: The seed of the numbers. Two tables with the same seed have the same rows.

    Raises:
        ValueError: `low` and `high` are not finite, or not in this order; `seed` is not a whole number of 64 bits.

    Example:
        >>> import numpy as np
        >>> from hocket import ps
        >>> out = np.empty([1, 3], np.float32)
        >>> ps.Uniform(0, 1, seed=0).fill(np.array([0]), out)
        >>> [round(float(x), 4) for x in out[0]]
        [0.1022, 0.3381, 0.281]
    """

    low: float = -0.05
    high: float = 0.05
    seed: int = 0

    def __post_init__(self) -> None:
        _set(self, "low", _require_finite("low", self.low))
        _set(self, "high", _require_finite("high", self.high))
        if not self.low < self.high:
            raise ValueError(
                f"low must be below high, but received low={self.low} and high={self.high}. For one number, write "
                f"Constant({self.low})."
            )
        _set(self, "seed", _require_seed(self.seed))

    def _shape(self, even: Floats, odd: Floats) -> None:
        for half in (even, odd):
            np.multiply(half, (self.high - self.low) * _UNIT, out=half)
            np.add(half, self.low, out=half)


@final
@dataclass(frozen=True)
class Normal(_Random):
    """Normally distributed random numbers.

    Args:
        mean: The mean of the distribution.
        stddev: The standard deviation. The default is Keras's; ``torch.nn.Embedding`` has 1.
        seed: The seed of the numbers. Two tables with the same seed have the same rows.

    Raises:
        ValueError: `mean` is not finite, `stddev` not a finite number from 0, or `seed` not a whole number of 64 bits.

    Note:
        No number is more than 5.9 times `stddev` away from `mean`; exactly, one in 300 million would be.

    Example:
        >>> import numpy as np
        >>> from hocket import ps
        >>> out = np.empty([1000, 50], np.float32)
        >>> ps.Normal(stddev=2.0, seed=1).fill(np.arange(1000), out)
        >>> round(float(out.std()), 1)
        2.0
    """

    mean: float = 0.0
    stddev: float = 0.05
    seed: int = 0

    def __post_init__(self) -> None:
        _set(self, "mean", _require_finite("mean", self.mean))
        rule, remedy = "must be a finite number from 0", "Leave it out for 0.05."
        _set(self, "stddev", checks.require_number("stddev", self.stddev, rule, remedy))
        _set(self, "seed", _require_seed(self.seed))

    def _shape(self, even: Floats, odd: Floats) -> None:
        np.add(even, 0.5, out=even)  # avoids the logarithm of 0
        np.multiply(even, _UNIT, out=even)
        np.log(even, out=even)
        np.multiply(even, -2, out=even)
        np.sqrt(even, out=even)
        np.multiply(even, self.stddev, out=even)
        np.multiply(odd, 2 * math.pi * _UNIT, out=odd)
        sine = np.sin(odd)
        np.cos(odd, out=odd)
        np.multiply(sine, even, out=sine)
        np.multiply(odd, even, out=odd)
        np.add(odd, self.mean, out=even)
        np.add(sine, self.mean, out=odd)


# ---------------------------------------------------------------------------------------------------------------------


def _view_rows(ids: Ids, out: Array) -> Array:
    """Return `out` with two axes: rows, and their elements."""
    assert out.shape[:1] == ids.shape, (out.shape, ids.shape)
    assert out.ndim == 2 or out.flags.c_contiguous, "a copy would be filled in its place"
    return out.reshape(len(ids), math.prod(out.shape[1:]))


def _find_states(ids: Ids, seed: int) -> hashing.Words:
    """Return the state of each row's generator."""
    key = np.array([seed ^ hashing.GOLDEN], np.uint64)
    hashing.mix(key)
    states = ids.astype(np.uint64)  # negative ids wrap around
    states *= np.uint64(hashing.GOLDEN)
    states += key
    hashing.mix(states)
    return states


def _split(words: hashing.Words, even: Floats, odd: Floats) -> None:
    """Write the upper 24 bits of each half of the words, as floats."""
    numbers = words.view(np.uint32)
    np.right_shift(numbers, 8, out=numbers)
    signed = numbers.view(np.int32)  # processors convert signed numbers faster
    low = 0 if sys.byteorder == "little" else 1
    even[...] = signed[:, low::2]
    odd[...] = signed[:, 1 - low :: 2]


def _set(initializer: Initializer, name: str, value: float) -> None:
    """Set a field of a frozen initializer during its construction."""
    object.__setattr__(initializer, name, value)


def _require_finite(name: str, value: object) -> float:
    return checks.require_finite(name, value, "Give 0.0, say.")


def _require_seed(value: object) -> int:
    seed = checks.require_count("seed", value, "Give 0, say.", least=0)
    if seed > MAX_SEED:
        raise ValueError(f"seed must be below 2**64, but received {value!r}. Give 0, say.")
    return seed
