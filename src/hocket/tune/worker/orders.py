"""The messages between a trial and the search: plain records, which are pickled."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from hocket._base import texts
from hocket.tune import encoding


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The order to a trial's process when the trial begins or goes on."""

    trial_id: str
    name: str
    config: dict[str, Any]
    experiment: str
    """The search's folder."""
    folder: str
    """The name of the trial's folder in it."""
    checkpoint: str | None
    """The name of the checkpoint in the trial's folder that it goes on from."""
    saved: int
    """How many checkpoints it has saved before."""
    iteration: int
    """How often it has reported before that checkpoint."""
    seconds: float
    """How long it had computed then."""
    resources: Mapping[str, float]
    frequency: int = 0
    """After how many steps a `Trainable` saves; 0: when it is asked."""
    saves_at_end: bool = False
    """Whether a `Trainable` saves when it ends."""
    key: bytes = b""
    """What a `Trainable` signs its pickles with."""
    trusts: bool = False
    """Whether it opens what is pickled in its checkpoints, whoever may write there."""
    output_files: tuple[str, str] | None = None
    """The names of files in the trial's folder for what it prints."""


class Action(enum.IntEnum):
    """A trial's next step after a report."""

    GO_ON = 0
    STOP = 1
    """It ends."""
    LEAVE = 2
    """It saves if it can, and ends, to go on later or with another configuration."""


@dataclass(frozen=True, slots=True)
class Order:
    """The answer to a report."""

    action: Action
    saves: bool = False
    """Whether it saves first."""


@dataclass(frozen=True, slots=True)
class Report:
    """Metrics of a trial, and maybe a checkpoint."""

    metrics: Mapping[str, Any]
    seconds: float
    """How long it took since the report before."""
    time: float
    """When it was made, in seconds since 1970."""
    checkpoint: str | None = None
    """The name of the checkpoint's folder."""
    is_last: bool = False
    """Whether the trial has ended with it, and waits for no answer."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint that a trial was ordered to save; it waits for no answer."""

    checkpoint: str


@dataclass(frozen=True, slots=True)
class Ended:
    """A trial has left its function: it returned or obeyed, or `error` came out."""

    error: BaseException | None = None
    traceback: str = ""
    is_clean: bool = True
    """Whether the process can run another trial: no thread was left that may still report."""


@dataclass(frozen=True, slots=True)
class Introduction:
    """The runner of a trial: the fields that complete its reports."""

    pid: int = 0
    hostname: str = ""
    node_ip: str = "127.0.0.1"


Event: TypeAlias = Introduction | Report | Saved | Ended
Exchange: TypeAlias = Callable[[Report], Order]
"""Hands over a report, and waits for the answer."""
Post: TypeAlias = Callable[[Event], None]
"""Hands over an event that waits for no answer."""


# --- as they travel ---------------------------------------------------------------------------------------------------
#
# Reports come a thousand times a second, and tuples of plain values are pickled four times as fast as records.

_KINDS: Final = (Introduction, Report, Saved, Ended)

Row: TypeAlias = tuple[Any, ...]


def pack(event: Event) -> Row:
    """Return an event as a tuple of plain values. An error goes pickled: it may come apart where it is read."""
    kind = type(event)
    row = (_KINDS.index(kind), *(getattr(event, name) for name in kind.__slots__))
    if isinstance(event, Ended) and event.error is not None:
        text = f"{texts.name_class(type(event.error))}: {texts.safe_text(event.error)}"
        row = (row[0], (encoding.try_pickle(event.error), text), *row[2:])
    return row


def unpack(row: Row) -> Event:
    """Return the event that `pack` was given, with another error of the same text if it cannot be read here."""
    kind = _KINDS[row[0]]
    if kind is Ended and row[1] is not None:
        row = (row[0], encoding.read_error(*row[1]), *row[2:])
    event: Event = kind(*row[1:])
    return event


def pack_order(order: Order) -> int:
    """Return an order as a number."""
    return order.action + 4 * order.saves


def unpack_order(code: int) -> Order:
    """Return the order that `pack_order` was given."""
    return _ORDERS[code]


_ORDERS: Final = {action + 4 * saves: Order(action, saves) for action in Action for saves in (False, True)}
