"""LightGBM's names: how its C library is called."""

from __future__ import annotations

import lightgbm


def join(size: int, rank: int, *functions: object) -> None:
    """Have the calling thread's training exchange by functions.

    Args:
        size: How many processes train together.
        rank: The number of this one.
        functions: Pointers to a reduction that scatters and to a gathering for all, as LightGBM's C interface says.
    """
    basic = lightgbm.basic
    basic._safe_call(basic._LIB.LGBM_NetworkInitWithFunctions(size, rank, *functions))


def leave() -> None:
    """Have the calling thread train alone again."""
    lightgbm.basic._safe_call(lightgbm.basic._LIB.LGBM_NetworkFree())
