"""A hash of 64 bits: the finaliser of splitmix64 (G. Steele, D. Lea and C. Flood, "Fast Splittable Pseudorandom Number
Generators", OOPSLA 2014), with the multipliers that D. Stafford found.

It is a bijection, and each bit of the result depends on all bits of the word. Checkpoints depend on the hash (the place
of a row and its initial values), so the function never changes.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

Words: TypeAlias = npt.NDArray[np.uint64]

GOLDEN: Final = 0x9E3779B97F4A7C15
"""2**64 / the golden ratio: the step from one state of splitmix64 to the next."""

_FIRST: Final = np.uint64(0xBF58476D1CE4E5B9)
_SECOND: Final = np.uint64(0x94D049BB133111EB)


def mix(x: Words, work: Words | None = None) -> None:
    """Hash words in place.

    Args:
        x: The words.
        work: A scratch array of the same shape. Default: a new array.

    Example:
        >>> import numpy as np
        >>> words = np.array([1], np.uint64)
        >>> mix(words)
        >>> hex(words[0])
        '0x5692161d100b05e5'
    """
    work = np.right_shift(x, 30, out=work)
    np.bitwise_xor(x, work, out=x)
    np.multiply(x, _FIRST, out=x)
    np.right_shift(x, 27, out=work)
    np.bitwise_xor(x, work, out=x)
    np.multiply(x, _SECOND, out=x)
    np.right_shift(x, 31, out=work)
    np.bitwise_xor(x, work, out=x)
