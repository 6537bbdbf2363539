"""Advice on what slows a training run down, from the time that its ranks spend."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from hocket._base import spending

MUCH = 0.25
"""The least share of the time that is worth a remark. A guess, as are the other limits here."""

MOST_UNFIT = 3
"""The most metrics named that are no longer finite."""

SLOWER = 1.3
"""A rank is slow if its own work takes this many times as long as the others'."""

SHORT_SECONDS = 0.02
"""Seconds below which a step is small: frameworks and collectives have a cost for each, whatever its size."""

MIDDLING_SECONDS = 0.1
"""The same limit where collectives take much of the time."""

BEHIND_SECONDS = 2.0
"""Seconds by which the driver may take reports late. Clocks of several machines differ by less."""


def explain(spent: Sequence[spending.Spent], behind: float = 0.0) -> list[str]:
    """Return remarks on a stretch of a training run, the most important first; empty if all is well.

    Args:
        spent: The time that each rank has spent, by part.
        behind: Seconds from the making of reports until the driver takes them.

    Example:
        >>> from hocket._base import spending
        >>> from hocket.observe.runs import advice
        >>> advice.explain([spending.Spent(10.0, 6.0, 0.0, 0.0, 0.0, 100, 0)])[0]
        'Waiting for data takes 60 % of the time. Give the loader more workers, or read less for each batch.'
    """
    known = [one for one in spent if one.total > 0]
    if not known:
        return []
    slow = _explain_slow_rank(known)
    found = [
        *_explain_driver(behind),
        *_explain_data(known),
        *(slow or _explain_small_steps(known)),  # ranks that wait for a slow one do not have small batches
        *_explain_reports(known),
    ]
    return [text for _, text in sorted(found, key=lambda one: -one[0])]


def explain_values(unfit: Mapping[str, tuple[int, int]]) -> list[str]:
    """Return remarks on metrics that are no longer finite.

    Args:
        unfit: The first such report, counted from 0, and its rank, by name; a result of `RunHistory.find_unfit`.

    Example:
        >>> from hocket.observe.runs import advice
        >>> advice.explain_values({"loss": (6, 0)})
        ['`loss` has been NaN or infinite since report 7, in rank 0.']
    """
    found = [
        f"`{name}` has been NaN or infinite since report {row + 1}, in rank {rank}."
        for name, (row, rank) in sorted(unfit.items(), key=lambda one: one[1])
    ]
    return [*found[:MOST_UNFIT], *([f"So have {len(found) - MOST_UNFIT} more."] if len(found) > MOST_UNFIT else [])]


def _show(share: float) -> str:
    return f"{100 * share:.0f} %"


def _explain_driver(behind: float) -> list[tuple[float, str]]:
    if behind < BEHIND_SECONDS:
        return []
    text = (
        f"The driver takes reports {behind:.0f} s after they are made, because it is busy, most often with callbacks. "
        "Make the callbacks quicker, or report less often."
    )
    return [(1.0, text)]


def _explain_data(spent: Sequence[spending.Spent]) -> list[tuple[float, str]]:
    shares = [one.data / one.total for one in spent]
    most = max(shares)
    if most < MUCH:
        return []
    who = "Waiting for data takes"
    if len(spent) > 1 and most > SLOWER * statistics.median(shares):
        who = f"In rank {shares.index(most)} waiting for data takes"
    return [(most, f"{who} {_show(most)} of the time. Give the loader more workers, or read less for each batch.")]


def _explain_slow_rank(spent: Sequence[spending.Spent]) -> list[tuple[float, str]]:
    if len(spent) < 2:
        return []
    work = [one.compute for one in spent]
    slow = work.index(max(work))
    others = [seconds for rank, seconds in enumerate(work) if rank != slow]
    waits = statistics.median(one.wait / one.total for rank, one in enumerate(spent) if rank != slow)
    typical = statistics.median(others)
    if waits < MUCH or work[slow] < SLOWER * typical:
        return []
    times = f"{work[slow] / typical:.1f} times as long as" if typical > 0 else "longer than"
    text = (
        f"Rank {slow} works {times} the others, which wait for it {_show(waits)} of their time. Look at its stack and "
        "its rows: it has more to do, or its processor is shared."
    )
    return [(waits, text)]


def _explain_small_steps(spent: Sequence[spending.Spent]) -> list[tuple[float, str]]:
    batches = min(one.batches for one in spent)
    if not batches:
        return []
    step = statistics.median(one.total / one.batches for one in spent)
    together = statistics.median((one.wait + one.exchange) / one.total for one in spent)
    if step >= (SHORT_SECONDS if together < MUCH else MIDDLING_SECONDS):
        return []
    if together < MUCH:
        text = f"A step takes {step * 1e3:.1f} ms. If the batches are small, larger ones cost less for each row."
        return [(0.1, text)]
    text = (
        f"Collectives take {_show(together)} of the time, and a step only {step * 1e3:.1f} ms: the batches are small. "
        "Larger ones, or accumulated gradients, exchange less often."
    )
    return [(together, text)]


def _explain_reports(spent: Sequence[spending.Spent]) -> list[tuple[float, str]]:
    share = statistics.median(one.report / one.total for one in spent)
    if share < MUCH:
        return []
    text = (
        f"report() takes {_show(share)} of the time: checkpoints are copied there, and the driver's callbacks run "
        "before the ranks go on. Report less often, or with checkpoint_upload_mode=ASYNC."
    )
    return [(share, text)]
