"""Undocumented names of LightGBM, through which Python calls its C library."""

from __future__ import annotations

import lightgbm


def join(size: int, rank: int, *functions: object) -> None:
    """Have training in the calling thread exchange values through the given functions.

    Args:
        size: How many processes train together.
        rank: The number of this process.
        functions: Pointers to a reduce-scatter and to an all-gather, with the signatures of LightGBM's C interface.
    """
    basic = lightgbm.basic
    basic._safe_call(basic._LIB.LGBM_NetworkInitWithFunctions(size, rank, *functions))


def leave() -> None:
    """Have the calling thread train alone again."""
    lightgbm.basic._safe_call(lightgbm.basic._LIB.LGBM_NetworkFree())
