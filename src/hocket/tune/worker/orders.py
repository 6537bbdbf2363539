"""The messages between a trial and the search: plain records, sent pickled."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from hocket._base import texts
from hocket.tune import encoding


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The data with which a trial begins or goes on in its process."""

    trial_id: str
    name: str
    config: dict[str, Any]
    experiment: str
    """The search's folder."""
    folder: str
    """The trial's folder's name in the search's folder."""
    checkpoint: str | None
    """The name of the checkpoint that the trial goes on from, in its folder."""
    saved: int
    """The number of checkpoints that the trial has saved before."""
    iteration: int
    """The number of reports up to that checkpoint."""
    seconds: float
    """Seconds computed up to that checkpoint."""
    resources: Mapping[str, float]
    frequency: int = 0
    """The steps between two saves of a `Trainable`; 0: it saves only at an order."""
    saves_at_end: bool = False
    """Whether a `Trainable` saves when it ends."""
    key: bytes = b""
    """The key with which a `Trainable` signs its pickles."""
    trusts: bool = False
    """Whether a `Trainable` unpickles its checkpoints even if other users may write to them."""
    output_files: tuple[str, str] | None = None
    """The names of files in the trial's folder for its output."""


class Action(enum.IntEnum):
    """A trial's next step after a report."""

    GO_ON = 0
    STOP = 1
    """The trial ends."""
    LEAVE = 2
    """The trial saves if it can, and leaves, to go on later or with another configuration."""


@dataclass(frozen=True, slots=True)
class Order:
    """The answer to a report."""

    action: Action
    saves: bool = False
    """Whether the trial saves first."""


@dataclass(frozen=True, slots=True)
class Report:
    """A trial's metrics, and maybe a checkpoint."""

    metrics: Mapping[str, Any]
    seconds: float
    """Seconds since the report before."""
    time: float
    """The time of the report, in seconds since 1970."""
    checkpoint: str | None = None
    """The name of the checkpoint's folder."""
    is_last: bool = False
    """Whether the trial has ended with this report, and waits for no answer."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint that a trial saved at an order. The trial waits for no answer."""

    checkpoint: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a trial's function: it returned, obeyed an order, or raised `error`."""

    error: BaseException | None = None
    traceback: str = ""
    is_clean: bool = True
    """Whether the process can run another trial: no thread is left that may still report."""


@dataclass(frozen=True, slots=True)
class Introduction:
    """A trial's process: the fields that complete its reports."""

    pid: int = 0
    hostname: str = ""
    node_ip: str = "127.0.0.1"


Event: TypeAlias = Introduction | Report | Saved | Ended
Exchange: TypeAlias = Callable[[Report], Order]
"""Sends a report, and waits for the answer."""
Post: TypeAlias = Callable[[Event], None]
"""Sends an event, without an answer."""


# --- packing --------------------------------------------------------------------------------------------------------
#
# Up to a thousand reports come per second, and tuples of plain values pickle four times as fast as records.

_KINDS: Final = (Introduction, Report, Saved, Ended)

Row: TypeAlias = tuple[Any, ...]


def pack(event: Event) -> Row:
    """Return an event as a tuple of plain values. Its error is pickled apart, as unpickling may fail at the reader."""
    kind = type(event)
    row = (_KINDS.index(kind), *(getattr(event, name) for name in kind.__slots__))
    if isinstance(event, Ended) and event.error is not None:
        text = f"{texts.name_class(type(event.error))}: {texts.safe_text(event.error)}"
        row = (row[0], (encoding.try_pickle(event.error), text), *row[2:])
    return row


def unpack(row: Row) -> Event:
    """Return the event of a row by `pack`, with another error of the same text if its own cannot be unpickled."""
    kind = _KINDS[row[0]]
    if kind is Ended and row[1] is not None:
        row = (row[0], encoding.read_error(*row[1]), *row[2:])
    event: Event = kind(*row[1:])
    return event


def pack_order(order: Order) -> int:
    """Return an order as a number."""
    return order.action + 4 * order.saves


def unpack_order(code: int) -> Order:
    """Return the order of a number by `pack_order`."""
    return _ORDERS[code]


_ORDERS: Final = {action + 4 * saves: Order(action, saves) for action in Action for saves in (False, True)}
