"""The order of an epoch: a seeded bijection of ``range(n)`` that needs no list.

The place of a row is computed from its position alone. So a billion rows cost as much memory as ten, and the middle of
an epoch is reached as fast as its start.

The bijection is the generalised Feistel cipher of J. Black and P. Rogaway, "Ciphers with Arbitrary Finite Domains"
(CT-RSA 2002), section 5, with their cycle walking. A position x below n is written as two digits, L = x // b and
R = x % b, where a = ceil(sqrt(n)) and b = ceil(n / a). Each round adds to one digit, modulo its base, a keyed hash of
the other digit. Subtracting the same number undoes the round. So the rounds together are a bijection of range(a * b),
whatever the hash. A result of n or more is put in again, until one falls below n. One must, because the walk follows a
cycle on which x itself lies. At most b - 1 of a * b numbers are too large, so almost none is put in twice, unless n is
very small. In the place of the cipher's block cipher, the hash here is two multiplications: the order mixes rows, and
need not hide them.

All arithmetic is modulo 2**64, with the constants below. So the order is the same on every platform and with every
version of Python and numpy, and a saved state means the same everywhere. ``VERSION`` is saved with the state, and has
to be raised with every change of the results.
"""

from __future__ import annotations

import math
from typing import TypeAlias, final

import numpy as np
import numpy.typing as npt

Rows: TypeAlias = npt.NDArray[np.int64]
"""Numbers of rows, or positions in an order."""

VERSION = 1
"""Version of the bijection. Golden values in the tests hold it."""

MAX_ROWS = 1 << 48
"""Largest number of rows. Digits then have 24 bits, and 32 bits of hash choose a digit evenly to 1 in 256."""

MAX_SEED = (1 << 64) - 1

ROUNDS = 8
"""Measured: for 100,003 rows, the tests of quality find a fault with 2 rounds and none with 3. For 100 rows, with more
tests, they find one with 5 rounds and none with 6. Two more rounds are a margin for faults that no test looks for."""

FEW_ROWS = 1024
ROUNDS_FOR_FEW = 24
"""With few rows the hash makes few different numbers, and needs more rounds to reach every order equally often.
Measured for 6 rows, whose 720 orders were counted over 20,000 seeds: 12 rounds are clearly uneven, 16 are not."""

_BLOCK = 8192
"""Number of positions that are processed at once, to stay in the cache. Measured: 4,096 to 65,536 differ only by noise,
1,024 takes twice as long."""

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15  # 2**64 / the golden ratio, the step of splitmix64
_FIRST = 0xBF58476D1CE4E5B9  # the multipliers of splitmix64's finaliser: D. Stafford's variant 13 of murmur3's
_SECOND = 0x94D049BB133111EB


@final
class Order:
    """The order in which an epoch takes its rows.

    Args:
        num_rows: Number of rows.
        seed: Selects a family of orders. Each epoch has another order of the family.
        epoch: The epoch.
        shuffle: Whether to shuffle. False keeps the rows as they stand.

    Example:
        >>> from hocket.data.order import Order
        >>> import numpy as np
        >>> Order(8, seed=0, epoch=0).rows(np.arange(8)).tolist()
        [7, 6, 5, 2, 3, 0, 4, 1]
    """

    def __init__(self, num_rows: int, *, seed: int, epoch: int, shuffle: bool = True) -> None:
        assert 0 < num_rows <= MAX_ROWS, num_rows
        self.num_rows = num_rows
        rounds = ROUNDS if num_rows > FEW_ROWS else ROUNDS_FOR_FEW
        self._keys = _build_keys(seed, epoch, rounds) if shuffle else None
        self._high = math.isqrt(num_rows - 1) + 1
        self._low = -(-num_rows // self._high)

    def rows(self, positions: Rows) -> Rows:
        """Return the rows at positions. Each position is at least 0 and below the number of rows."""
        if self._keys is None:
            return positions.copy()
        found = np.empty(len(positions), np.int64)
        for start in range(0, len(positions), _BLOCK):
            block = positions[start : start + _BLOCK].astype(np.uint64)
            found[start : start + _BLOCK] = self._walk(block)
        return found

    def find_positions(self, rows: Rows) -> Rows:
        """Return the positions of rows. This undoes `rows`.

        Example:
            >>> from hocket.data.order import Order
            >>> import numpy as np
            >>> Order(8, seed=0, epoch=0).find_positions(np.array([7, 6, 1])).tolist()
            [0, 1, 7]
        """
        if self._keys is None:
            return rows.copy()
        found = np.empty(len(rows), np.int64)
        for start in range(0, len(rows), _BLOCK):
            block = rows[start : start + _BLOCK].astype(np.uint64)
            found[start : start + _BLOCK] = self._walk(block, back=True)
        return found

    def _walk(self, x: npt.NDArray[np.uint64], *, back: bool = False) -> npt.NDArray[np.uint64]:
        step = self._undo if back else self._permute
        x = step(x)
        while (outside := np.flatnonzero(x >= self.num_rows)).size:
            x[outside] = step(x[outside])
        return x

    def _permute(self, x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        """Return the images of numbers under the bijection of range(high * low)."""
        assert self._keys is not None
        high, low = np.uint64(self._high), np.uint64(self._low)
        left = x // low
        right = x - left * low
        for number, key in enumerate(self._keys):
            if number % 2:
                _turn(right, left, key, low)
            else:
                _turn(left, right, key, high)
        left *= low
        left += right
        return left

    def _undo(self, x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        """Return the numbers whose images under the bijection are these."""
        assert self._keys is not None
        high, low = np.uint64(self._high), np.uint64(self._low)
        left = x // low
        right = x - left * low
        for number, key in reversed(list(enumerate(self._keys))):
            if number % 2:
                _turn_back(right, left, key, low)
            else:
                _turn_back(left, right, key, high)
        left *= low
        left += right
        return left


def _turn(digit: npt.NDArray[np.uint64], by: npt.NDArray[np.uint64], key: np.uint64, base: np.uint64) -> None:
    """Add to a digit, modulo its base, a keyed hash of the other digit."""
    digit += _mix_digit(by, key, base)
    np.minimum(digit, digit - base, out=digit)  # modulo: of a digit below the base, the difference wraps to a huge one


def _turn_back(digit: npt.NDArray[np.uint64], by: npt.NDArray[np.uint64], key: np.uint64, base: np.uint64) -> None:
    """Subtract the number that `_turn` adds."""
    digit -= _mix_digit(by, key, base)
    np.minimum(digit, digit + base, out=digit)  # a digit below zero has wrapped to a huge number


def _mix_digit(by: npt.NDArray[np.uint64], key: np.uint64, base: np.uint64) -> npt.NDArray[np.uint64]:
    step = by + key
    step *= np.uint64(_FIRST)
    step ^= step >> np.uint64(32)
    step *= np.uint64(_SECOND)
    step >>= np.uint64(32)
    step *= base  # 32 random bits become a number below the base
    step >>= np.uint64(32)
    return step


def _build_keys(seed: int, epoch: int, rounds: int) -> list[np.uint64]:
    state = _mix(_mix(seed + _GOLDEN) + epoch)
    return [np.uint64(_mix(state + number * _GOLDEN)) for number in range(1, rounds + 1)]


def _mix(x: int) -> int:
    """Return 64 bits, each of which depends on all bits of x."""
    x &= _MASK
    x = (x ^ (x >> 30)) * _FIRST & _MASK
    x = (x ^ (x >> 27)) * _SECOND & _MASK
    return x ^ (x >> 31)
