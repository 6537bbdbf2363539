"""The tasks and calls that make the values of this process's references.

Ray's errors name neither the task of a missing value, nor its attempts. A task has the same error as a dead task on
which it depends. So the engine notes the origin of each reference when it submits the task.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Final, NamedTuple

import ray

from hocket import exceptions
from hocket.engine import contract
from hocket.engine.ray import errors, listing, natives
from hocket.kernel import records, resources

MOST_SUSPECTS: Final = 5
"""The most tasks that an error names, if one of several has failed."""

_NOTHING: Final = resources.Shape(())


class _Made(NamedTuple):
    """A task or a call."""

    options: records.TaskOptions
    shape: resources.Shape
    """The resources of the task, or of the call's actor."""
    is_call: bool
    arguments: tuple[tuple[weakref.ref[contract.AnyRef], _Made | None], ...]
    """The references among the arguments, each with its own task or call. Ray keeps as much."""


class Origins:
    """The tasks and calls of this process, by the references to their results.

    Args:
        room: The memory of which shapes have room.
    """

    def __init__(self, room: listing.Room) -> None:
        self._room = room
        self._made: weakref.WeakKeyDictionary[contract.AnyRef, _Made] = weakref.WeakKeyDictionary()
        self._actors: dict[int, resources.Shape] = {}

    def note_actor(self, actor_id: int, shape: resources.Shape) -> None:
        """Note the resources of an actor of this process. An actor in a placement group counts as without any, because
        Ray ends it with the group."""
        self._actors[actor_id] = _NOTHING if shape.group_id else shape

    def note(
        self,
        refs: Sequence[contract.AnyRef],
        options: records.TaskOptions,
        given: tuple[object, ...],
        actor_id: int | None = None,
    ) -> None:
        """Note the task or call that makes some values.

        Args:
            refs: The references to the values.
            options: The options of the task or the call.
            given: The arguments of the task or the call.
            actor_id: The actor of a call; None for a task.
        """
        links = [(weakref.ref(arg), self._made.get(arg)) for arg in given if type(arg) is contract.ObjectRef]
        shape = options.shape if actor_id is None else self._actors.get(actor_id, _NOTHING)
        for ref in refs:
            self._made[ref] = _Made(options, shape, actor_id is not None, tuple(links))

    def note_item(self, item: contract.AnyRef, stream: contract.AnyRef) -> None:
        """Note that a value is an item of a generator."""
        if stream in self._made:
            self._made[item] = self._made[stream]

    def find_group(self, ref: contract.AnyRef) -> int:
        """Return the placement group that a value's task needs; 0 for none."""
        made = self._made.get(ref)
        if made is None:
            return ref._id if natives.is_group(ref._native) else 0
        return made.shape.group_id

    def find_unschedulable(self, refs: Sequence[contract.AnyRef]) -> dict[contract.AnyRef, BaseException]:
        """Return the errors of values that cannot be made any more: only a lost node had room for their tasks."""
        known = {ref: made for ref, made in ((ref, self._made.get(ref)) for ref in refs) if made is not None}
        problems = {shape: self._room.find_loss(shape) for shape in {made.shape for made in known.values()}}
        found: dict[contract.AnyRef, BaseException] = {}
        for ref, made in known.items():
            name, problem = made.options.name, problems[made.shape]
            if problem is not None and made.is_call:
                found[ref] = exceptions.ActorUnschedulableError(
                    f"No node can run the actor of call `{name}` any more: it {problem}"
                )
            elif problem is not None:
                found[ref] = exceptions.TaskUnschedulableError(f"No node can run task `{name}` any more: it {problem}")
        return found

    def find(self, refs: Sequence[contract.AnyRef], error: ray.exceptions.RayError) -> errors.Origin:
        """Return the origin of the first value that Ray has replaced by its own error."""
        is_passed_on = isinstance(error, ray.exceptions.RayTaskError)
        cause = error.cause if is_passed_on else error
        if not isinstance(cause, ray.exceptions.RayError):
            return errors.Origin()
        made = next((self._made.get(ref) for ref in refs if len(refs) == 1 or _has_failed(ref)), None)
        if made is None:
            return errors.Origin()
        # Only a task with a reference can be cancelled, so an argument whose reference is gone was not.
        if isinstance(cause, ray.exceptions.TaskCancelledError) and not _has_failed_argument(made):
            return errors.Origin(made.options.name, is_call=made.is_call)
        found = _list_suspects(made)
        if len(found) > 1 or (is_passed_on and not found):
            names = dict.fromkeys(suspect.options.name for suspect in found)
            return errors.Origin(made.options.name, before=tuple(names), is_of_argument=True)
        options = found[0].options if found else made.options
        return errors.Origin(options.name, options.max_retries + 1)


def _list_suspects(made: _Made) -> list[_Made]:
    """Return the tasks and calls that a failed one depends on, and that may have failed first."""
    found: list[_Made] = []
    left = [made]
    while left and len(found) < MOST_SUSPECTS:
        for link, argument in left.pop().arguments:
            ref = link()
            if argument is not None and (ref is None or _has_failed(ref)):
                found.append(argument)
                left.append(argument)
    return found


def _has_failed_argument(made: _Made) -> bool:
    """Return whether a task or a call depends, directly or not, on a failed value to which a reference still exists."""
    seen = {id(made)}
    left = [made]
    while left:
        for link, argument in left.pop().arguments:
            ref = link()
            if ref is not None and _has_failed(ref):
                return True
            if ref is None and argument is not None and id(argument) not in seen:
                seen.add(id(argument))
                left.append(argument)
    return False


def _has_failed(ref: contract.AnyRef) -> bool:
    """Return whether Ray has an error instead of a value."""
    if not isinstance(ref._native, natives.Head) and not natives.is_object(ref._native):
        return False
    try:
        ray.get(natives.get_awaitable(ref), timeout=0)
    except ray.exceptions.RayError as error:
        return not errors.is_timeout(error)
    return False
