"""`report` in both forms: today's for functions that ``fit()`` runs, and that of 2022 for those that `Trainer` runs."""

from __future__ import annotations

import contextlib
import functools
import inspect
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Final, ParamSpec, Protocol, overload

from hocket.train.rank import rank_info, worker_session

P = ParamSpec("P")

_warned: set[str] = set()


class ClassicSession(Protocol):
    """The session of a rank of the trainer of 2022, behind `report`, `save_checkpoint` and `load_checkpoint`."""

    checkpoint: dict[str, Any] | None
    """The last saved checkpoint, or the checkpoint that the run began with."""

    def report(self, metrics: dict[str, Any]) -> None:
        """Send metrics to the driver, and wait until it has taken them."""

    def save_checkpoint(self, state: dict[str, Any]) -> None:
        """Send a checkpoint to the driver, and wait until it has taken it."""


_classic: Final[dict[worker_session.WorkerSession, ClassicSession]] = {}
"""The sessions of 2022 in this process, each by the rank's session that carries it."""


@contextlib.contextmanager
def use_classic(rank: worker_session.WorkerSession, session: ClassicSession) -> Iterator[None]:
    """Have the functions of 2022 use a session in a rank during the block."""
    _classic[rank] = session
    try:
        yield
    finally:
        del _classic[rank]


def get_optional_classic() -> ClassicSession | None:
    """Return the session behind the functions of 2022 in this rank; None if this is not a rank of `Trainer`."""
    session = worker_session.get_optional_session()
    return None if session is None else _classic.get(session)


def get_optional_info(caller: str) -> rank_info.RankInfo | None:
    """Return the rank's place. Outside a training function, return None, and warn once for each caller."""
    try:
        return worker_session.get_session(caller).info
    except RuntimeError:
        if caller not in _warned:
            _warned.add(caller)
            warnings.warn(
                f"hocket.train.{caller}() was called outside a training function, so it acts as in a single process. "
                "Call it in a function that is given to Trainer.run.",
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
    """Make today's ``report(metrics, checkpoint)`` also accept the form of 2022, ``report(loss=0.5)``.

    The trainer that runs the training function decides the valid form. The other form raises an error that says what
    to write."""
    names = frozenset(inspect.signature(report).parameters)

    @functools.wraps(report)
    def choose(*args: Any, **kwargs: Any) -> None:
        current = get_optional_classic()
        is_todays = bool(args) or ("metrics" in kwargs and names.issuperset(kwargs))
        if current is not None:
            if args or (is_todays and isinstance(kwargs["metrics"], dict)):  # 2022's may be called metrics
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
                f"report() takes one dict in a function that fit() runs, but received the keywords {sorted(kwargs)}. "
                "Write report({'loss': 0.5}), and pass checkpoint=... beside the dict; keywords are for functions that "
                "hocket.train.Trainer runs."
            )

    return choose
