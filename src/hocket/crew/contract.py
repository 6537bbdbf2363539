"""The words between a policy and the crew that carries out its decisions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from hocket import exceptions
from hocket.core import actor

Member: TypeAlias = Any
"""The policy's own name for one of its actors: anything that can be hashed. A name is used once."""


# --- actions ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Start:
    """Start an actor. If no node can ever hold it, `Unplaceable` follows, and calls of it come to nothing."""

    member: Member
    build: Callable[[], actor.ActorHandle]


@dataclass(frozen=True, slots=True)
class Call:
    """Call a method of an actor."""

    member: Member
    method: str
    args: tuple[object, ...] = ()
    about: object = None
    """The policy's own name for the call, which comes back with its outcome; None: nobody waits for it."""
    num_returns: int = 1
    """How many values it returns. The policy hears the last; the others stay where they are."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Kill an actor. The policy hears nothing more of it."""

    member: Member


Action: TypeAlias = Start | Call | Stop


# --- events -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TurnBegan:
    """The crew is about to wait. The policy asks now for whatever should run meanwhile."""


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """The crew has waited, and has passed on all that came, if anything did. The policy looks at its deadlines."""


@dataclass(frozen=True, slots=True)
class Answered:
    """A call has returned."""

    member: Member
    about: Any
    value: Any
    kept: tuple[Any, ...] = ()
    """References on the values before the last."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A call has raised, and its actor lives."""

    member: Member
    about: Any
    error: exceptions.HocketError


@dataclass(frozen=True, slots=True)
class Lost:
    """An actor is gone. The policy hears it once, however many calls the actor had."""

    member: Member
    error: exceptions.HocketError


@dataclass(frozen=True, slots=True)
class Unplaceable:
    """An actor could not be started, and never can."""

    member: Member
    error: exceptions.InfeasibleResourcesError


Event: TypeAlias = TurnBegan | TurnEnded | Answered | Failed | Lost | Unplaceable


class Policy(Protocol):
    """Decides for a crew. Used by one thread; it calls no engine, so that a test can play any order of events.

    An error that it raises ends the crew.
    """

    @property
    def is_over(self) -> bool:
        """Whether there is nothing more to wait for. The crew asks after `TurnBegan`."""

    def handle(self, event: Any, now: float) -> Iterable[Action]:
        """Give the actions that follow from an event. The crew carries out each before it asks for the next.

        Args:
            event: An `Event`, or one of the policy's own that its user passes to `Crew.tell`.
            now: The clock's seconds.
        """

    def find_due(self, now: float) -> float | None:
        """Return when the policy wants `TurnEnded` at the latest, in the clock's seconds; None: when something
        comes."""
