"""Our handles and Ray's.

A hocket reference holds Ray's handle of the same thing in its `_native`: an object reference, an actor's handle, a
placement group, or a generator. Its id is the number that Ray's id is. Ray counts its handles itself, so ours need no
counting; there is one of ours for each of Ray's in a process as far as identity can be asked for, that is among those
that came in a message.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup

from hocket import exceptions
from hocket._base.internals import ray as ray_internals
from hocket.engine import contract
from hocket.engine.ray import outside


class Head:
    """Stands in a reference for the next item of a generator, until it is known to be one."""

    __slots__ = ("generator", "is_end", "ref")

    def __init__(self, generator: Any) -> None:
        self.generator = generator
        #: Ray's reference, which becomes the item, an error, or the end.
        self.ref = ray_internals.take_reference(generator)
        #: Whether it is the end; None until that is known.
        self.is_end: bool | None = None


def is_group(native: object) -> bool:
    """Tell whether it is a placement group."""
    return isinstance(native, PlacementGroup)


def is_object(value: object) -> bool:
    """Tell whether it is one of Ray's references on an object."""
    return type(value) in _OBJECTS


def format_id(native: Any) -> str:
    """Return the id of a native handle in hexadecimal."""
    if isinstance(native, ray.ObjectRef):
        return str(native.hex())
    if isinstance(native, _ACTORS):
        return ray_internals.get_actor_id(native)
    if is_group(native):
        return str(native.id.hex())
    if isinstance(native, Head):
        return str(native.ref.hex())
    return str(native.completed().hex())


def identify(native: object) -> int:
    """Return the id of a native handle as the number that we use."""
    if isinstance(native, ray.ObjectRef):
        return int.from_bytes(native.binary(), "big")
    return int(format_id(native), 16)


def get_native(ref: contract.ObjectRef[object]) -> Any:
    """Return Ray's handle of what our reference stands for."""
    if ref._engine is not contract.current_engine:
        raise contract.build_closed_error(ref)
    return ref._native


def get_awaitable(ref: contract.ObjectRef[object]) -> Any:
    """Return Ray's object reference for what our reference stands for."""
    native = get_native(ref)
    if isinstance(native, ray.ObjectRef):
        return native
    if isinstance(native, Head):
        return native.ref
    if is_group(native):
        return native.ready()
    if isinstance(native, _ACTORS):
        return outside.call_method(native, "__ray_ready__", (), {}, {})
    return native.completed()


def list_awaitables(refs: Sequence[contract.ObjectRef[object]]) -> list[object]:
    """Return Ray's object references for ours."""
    natives = [get_native(ref) for ref in refs]
    if _OBJECTS.issuperset(map(type, natives)):
        return natives
    return [get_awaitable(ref) for ref in refs]


_OBJECTS = frozenset({ray.ObjectRef, outside.ObjectRef})
_ACTORS = (ray.actor.ActorHandle, outside.ActorHandle)


def hide_groups(refs: Sequence[contract.ObjectRef[object]], found: list[object]) -> list[object]:
    """Put None in the place of what Ray gives for a placement group that is reserved."""
    for place, ref in enumerate(refs):
        if type(found[place]) is PlacementGroup and is_group(ref._native):
            found[place] = None
    return found


def replace_references(
    args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[tuple[object, ...], dict[str, object]]:
    """Put Ray's references in the place of ours, where Ray resolves them: those that are arguments themselves."""
    if contract.ObjectRef in map(type, args):
        args = tuple([get_awaitable(arg) if type(arg) is contract.ObjectRef else arg for arg in args])
    if kwargs and contract.ObjectRef in map(type, kwargs.values()):
        kwargs = {name: get_awaitable(arg) if type(arg) is contract.ObjectRef else arg for name, arg in kwargs.items()}
    return args, kwargs


def reduce_native(native: object, rebuild: Callable[[object], contract.ObjectRef[object]]) -> tuple[object, ...]:
    """Return what `pickle` makes of a handle: Ray's, which Ray counts on its way. In a pickle that Ray does not make
    nobody can count it, and it is kept for the rest of the session.
    """
    if isinstance(native, Head):
        native = native.ref
    elif not (isinstance(native, (ray.ObjectRef, *_ACTORS)) or is_group(native)):
        raise exceptions.SerializationError(
            "A generator cannot be sent to another process: it belongs to one reader. Send the references that it "
            "gives, as a list."
        )
    if isinstance(native, ray.ObjectRef) and not _is_in_rays_pickle():
        return _load, (rebuild, ray.cloudpickle.dumps(native))
    return rebuild, (native,)


def _is_in_rays_pickle() -> bool:
    if outside.is_outside() or outside.is_server():
        return True
    return bool(ray_internals.get_serializer().is_in_band_serialization())


def _load(rebuild: Callable[[object], contract.ObjectRef[object]], blob: bytes) -> contract.AnyRef:
    return rebuild(pickle.loads(blob))
