"""The actions and events that pass between a policy and its crew."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from hocket import exceptions
from hocket.core import actor

Member: TypeAlias = Any
"""The policy's own name for one of its actors: any hashable value. A name is used once."""


# --- actions ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Start:
    """An order to start an actor. If no node can ever hold it, `Unplaceable` follows, and the crew drops its calls."""

    member: Member
    build: Callable[[], actor.ActorHandle]


@dataclass(frozen=True, slots=True)
class Call:
    """An order to call a method of an actor."""

    member: Member
    method: str
    args: tuple[object, ...] = ()
    about: object = None
    """The policy's own name for the call, which the outcome's event repeats; None: no event reports the outcome."""
    num_returns: int = 1
    """The number of values that the method returns. The event has the last value, and references to the others."""


@dataclass(frozen=True, slots=True)
class Stop:
    """An order to kill an actor. No further event mentions the actor."""

    member: Member


Action: TypeAlias = Start | Call | Stop


# --- events -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TurnBegan:
    """The event before the crew waits. The policy returns the actions that should run meanwhile."""


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """The event after the crew has waited and passed on all other events, if any came. The policy checks deadlines."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The event that a call has returned."""

    member: Member
    about: Any
    value: Any
    kept: tuple[Any, ...] = ()
    """References to the values before the last."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The event that a call has raised, and its actor lives."""

    member: Member
    about: Any
    error: exceptions.HocketError


@dataclass(frozen=True, slots=True)
class Lost:
    """The event that an actor is gone. It comes once, however many calls the actor had."""

    member: Member
    error: exceptions.HocketError


@dataclass(frozen=True, slots=True)
class Unplaceable:
    """The event that an actor could not be started, and never can be."""

    member: Member
    error: exceptions.InfeasibleResourcesError


Event: TypeAlias = TurnBegan | TurnEnded | Answered | Failed | Lost | Unplaceable


class Policy(Protocol):
    """The decisions for a crew. One thread uses a policy. It calls no engine, so a test can play any order of events.

    An error that a policy raises ends the crew.
    """

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to wait for. The crew reads this after `TurnBegan`."""

    def handle(self, event: Any, now: float) -> Iterable[Action]:
        """Yield or return the actions that follow from an event. The crew carries out each before it takes the next.

        Args:
            event: An `Event`, or an event of the policy's own that its user passes to `Crew.tell`.
            now: The clock's time in seconds.
        """

    def find_due(self, now: float) -> float | None:
        """Return the latest time for the next `TurnEnded`, in the clock's seconds; None: after the next event."""
