"""`report` in both its forms: today's, in a function that ``fit()`` runs, and that of 2022, in one that `Trainer`
runs."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any, ParamSpec, Protocol, overload

from hocket.train.rank import rank_info, worker_session

P = ParamSpec("P")

_warned: set[str] = set()


def get_optional_classic() -> worker_session.ClassicSession | None:
    """Return what stands behind the functions of 2022 in this rank; None if it is not one of `Trainer`."""
    session = worker_session.get_optional_session()
    return None if session is None else session.classic


def get_optional_info(caller: str) -> rank_info.RankInfo | None:
    """Return the rank's place; outside a training function, None after a warning, which comes once a function."""
    try:
        return worker_session.get_session(caller).info
    except RuntimeError:
        if caller not in _warned:
            _warned.add(caller)
            warnings.warn(
                f"hocket.train.{caller}() was called outside a training function, and does what it does in a single "
                "process. Call it in a function that is given to Trainer.run.",
                stacklevel=4 if caller == "report" else 3,
            )
        return None


class Report(Protocol[P]):
    """`report` in both its forms."""

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None: ...
    @overload
    def __call__(self, **metrics: object) -> None: ...


def serve_both(report: Callable[P, None]) -> Report[P]:
    """Make of today's ``report(metrics, checkpoint)`` one function that is also that of 2022, ``report(loss=0.5)``.
    The trainer that runs the training function decides which of them a call means. The other form is an error there,
    which says what to write."""
    names = frozenset(inspect.signature(report).parameters)

    @functools.wraps(report)
    def choose(*args: Any, **kwargs: Any) -> None:
        current = get_optional_classic()
        is_todays = bool(args) or ("metrics" in kwargs and names.issuperset(kwargs))
        if current is not None:
            if args or (is_todays and isinstance(kwargs["metrics"], dict)):  # 2022's values may have any name
                raise TypeError(
                    "report() takes keywords in a function that hocket.train.Trainer runs, but received "
                    f"{args or kwargs!r}. Write report(loss=0.5), and save_checkpoint(...) for a checkpoint; or run "
                    "the function with DataParallelTrainer."
                )
            current.report(kwargs)
        elif is_todays:
            report(*args, **kwargs)
        elif get_optional_info("report") is not None:
            raise TypeError(
                "report() takes one dict in a function that is run by fit(), but received the keywords "
                f"{sorted(kwargs)}. Write report({{'loss': 0.5}}), with checkpoint=... beside it; keywords are for "
                "functions that hocket.train.Trainer runs."
            )

    return choose
