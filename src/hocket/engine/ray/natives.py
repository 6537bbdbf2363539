"""The conversion between our handles and Ray's.

A reference of Hocket holds Ray's handle on the same thing in `_native`: an object reference, an actor's handle, a
placement group, or a generator. Its id is Ray's id as a number. Ray counts its own handles, so ours need no counting.
Handles that came to a process in messages are unique: there is one of ours for each of Ray's.
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
    """A placeholder in a reference for the next item of a generator, until the item is known to exist."""

    __slots__ = ("generator", "is_end", "ref")

    def __init__(self, generator: Any) -> None:
        self.generator = generator
        #: Ray's reference, which will hold the item, an error, or the end.
        self.ref = ray_internals.take_reference(generator)
        #: Whether the generator has ended instead; None until that is known.
        self.is_end: bool | None = None


def is_group(native: object) -> bool:
    """Return whether a native handle is a placement group."""
    return isinstance(native, PlacementGroup)


def is_object(value: object) -> bool:
    """Return whether a value is one of Ray's object references."""
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
    """Return the id of a native handle as a number."""
    if isinstance(native, ray.ObjectRef):
        return int.from_bytes(native.binary(), "big")
    return int(format_id(native), 16)


def get_native(ref: contract.ObjectRef[object]) -> Any:
    """Return Ray's handle in our reference; raise ObjectLostError if the reference's session is closed."""
    if ref._engine is not contract.current_engine:
        raise contract.build_closed_error(ref)
    return ref._native


def get_awaitable(ref: contract.ObjectRef[object]) -> Any:
    """Return an object reference of Ray's that has a value when our reference has one."""
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
    """Return Ray's object references for several of ours; see `get_awaitable`."""
    natives = [get_native(ref) for ref in refs]
    if _OBJECTS.issuperset(map(type, natives)):
        return natives
    return [get_awaitable(ref) for ref in refs]


_OBJECTS = frozenset({ray.ObjectRef, outside.ObjectRef})
_ACTORS = (ray.actor.ActorHandle, outside.ActorHandle)


def hide_groups(refs: Sequence[contract.ObjectRef[object]], found: list[object]) -> list[object]:
    """Replace Ray's value for a reserved placement group by None."""
    for place, ref in enumerate(refs):
        if type(found[place]) is PlacementGroup and is_group(ref._native):
            found[place] = None
    return found


def replace_references(
    args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[tuple[object, ...], dict[str, object]]:
    """Replace our references by Ray's where they are themselves arguments, because Ray resolves those."""
    if contract.ObjectRef in map(type, args):
        args = tuple([get_awaitable(arg) if type(arg) is contract.ObjectRef else arg for arg in args])
    if kwargs and contract.ObjectRef in map(type, kwargs.values()):
        kwargs = {name: get_awaitable(arg) if type(arg) is contract.ObjectRef else arg for name, arg in kwargs.items()}
    return args, kwargs


def reduce_native(native: object, rebuild: Callable[[object], contract.ObjectRef[object]]) -> tuple[object, ...]:
    """Return the reduced form of a handle for `pickle`, which holds Ray's handle. In a pickle of Ray's own, Ray counts
    the handle. In any other pickle it cannot, and keeps the object for the rest of the session."""
    if isinstance(native, Head):
        native = native.ref
    elif not (isinstance(native, (ray.ObjectRef, *_ACTORS)) or is_group(native)):
        raise exceptions.SerializationError(
            "A generator cannot be sent to another process: it belongs to one reader. Send the references that it "
            "yields, as a list."
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
