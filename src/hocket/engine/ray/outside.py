"""Drivers outside of the cluster: those of ``ray://host:port``, which have Ray Client in the place of Ray.

The real driver is then a process on the cluster, Ray Client's server. It unpickles what passes and pickles it again, so
our handles are rebuilt there, by an engine like that of a worker. Ray's handles have other classes here, and what Ray
keeps in tables of the process is not here at all. Most of it can be asked for on the cluster. A handle has its id when
the server has answered, so each call takes a round trip, and says at once what the server has against it.

What cannot be had is refused at the call, and listed in `LIMITS`.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

import ray
from ray.util import client
from ray.util.client import common

from hocket import exceptions
from hocket._base.internals import ray as ray_internals
from hocket.engine import pickling

T = TypeVar("T")

ActorHandle: Any = common.ClientActorHandle
ObjectRef: Any = common.ClientObjectRef

LIMITS: Final[Mapping[str, str]] = {
    "client_generators": (
        "Through ray://, tasks and methods that yield their items one by one are refused. num_returns='dynamic', "
        "and generators that tasks on the cluster read, work."
    ),
    "client_task_folders": (
        "Through ray://, a folder can be sent for the whole session only, not in the runtime_env of a task or an actor."
    ),
    "client_serializers": (
        "Through ray://, values whose classes have a serializer of register_serializer are refused; give such a "
        "class a __reduce__."
    ),
    "client_captures": (
        "Through ray://, what functions and actor classes capture stays on the cluster until the session ends."
    ),
    "client_statistics": "Through ray://, statistics() counts handles, and no tasks.",
    "client_pace": (
        "Through ray://, each call waits for the server's word, which takes one round trip over the network."
    ),
}
"""What is less through Ray Client: further entries of an engine's `limits`."""

_REMEDY = (
    "Run the driver on the cluster: with hocket.init(address='auto') on one of its machines, or with `ray job "
    "submit -- python script.py`."
)

_ANYTHING = inspect.signature(lambda *args, **kwargs: None)


def is_outside() -> bool:
    """Tell whether this process speaks with its Ray through Ray Client."""
    return ray_internals.is_outside()


def is_server() -> bool:
    """Tell whether this process is Ray Client's server, which counts the handles that it sends to the driver
    outside."""
    main = getattr(sys.modules["__main__"], "__spec__", None)
    return main is not None and main.name.startswith("ray.util.client.server")


def build_refusal(what: str) -> exceptions.HocketError:
    """Return the error for what Ray Client does not have."""
    return exceptions.HocketError(f"{what} cannot be had through ray://, since Ray Client does not have it. {_REMEDY}")


def is_call(native: object) -> bool:
    """Tell whether a reference of Ray Client's is on what a call of an actor returns. Its server would keep a refusal
    to itself."""
    if not isinstance(native, ObjectRef):
        return False
    actor_id: bytes = native.task_id().actor_id().binary()
    return set(actor_id[: -ray.JobID.size()]) != {0xFF}


def build_remote(target: Callable[..., object], keywords: Mapping[str, object]) -> Any:
    """Return what `ray.remote` makes of a function or class; outside its counterpart, which is not kept on for
    longer than it is used."""
    found: Any = client.ray if is_outside() else ray
    return found.remote(**keywords)(target)


def check_environment(given: Mapping[str, object]) -> None:
    """Refuse folders of a single task or actor: Ray Client cannot tell the cluster to keep what is sent for them."""
    named = [name for name in ("working_dir", "py_modules") if name in given]
    if named and is_outside():
        raise exceptions.HocketError(
            f"runtime_env={dict(given)} of a task or actor has {' and '.join(named)}, which cannot be had through "
            f"ray://. Name it for the whole session: hocket.init(runtime_env={{{named[0]!r}: ...}}). Or: {_REMEDY}"
        )


def ask(function: Callable[..., T], *args: object) -> T:
    """Call a function of this package where Ray's tables are: in this process, or in a task on the cluster if it is
    outside."""
    if not is_outside():
        return function(*args)
    try:
        found: T = ray.get(build_remote(function, {"num_cpus": 0}).remote(*args))
    except ray.exceptions.RayTaskError as error:
        cause: BaseException = error.cause
    else:
        return found
    raise cause


def call_method(
    actor: object, name: str, args: tuple[object, ...], kwargs: dict[str, object], keywords: dict[str, object]
) -> object:
    """Call a method of an actor and return what Ray does. Ray Client's handle would look for the method in its own
    class first, and knows fewer keywords than the server, which checks them too."""
    if not isinstance(actor, ActorHandle):
        return ray_internals.call_method(actor, name, args, kwargs, keywords)
    call = common.OptionWrapper(common.ClientRemoteMethod(actor, name, 1, _ANYTHING), None)
    ray_internals.set_options(call, keywords)
    return call.remote(*args, **kwargs)


def list_objects() -> dict[bytes, dict[str, int]]:
    """Return the counts of each object that this process refers to, by id. Actors are counted too, under their own,
    shorter ids."""
    counts = client.ray.get_context().client_worker.reference_count
    size = ray.ObjectID.size()
    return {
        object_id: {"local": count, "submitted": 0}
        for object_id, count in list(counts.items())
        if len(object_id) == size
    }


def list_functions(tasks: Iterable[object]) -> frozenset[bytes]:
    """Return the ids of the objects in which Ray Client keeps functions; none in a process that has Ray itself."""
    found = (ray_internals.find_function(task) for task in tasks if isinstance(task, common.ClientRemoteFunc))
    return frozenset(one for one in found if one is not None)


class Kept(list[object]):
    """A list that goes through `pickle` as Ray pickles values: classes of the driver's script included, of which the
    server has no module.

    Ray Client uses `pickle` itself for options.
    """

    def __reduce__(self) -> tuple[object, ...]:
        return ray.cloudpickle.loads, (ray.cloudpickle.dumps(list(self)),)


class _Refusing(dict[type, object]):
    def __missing__(self, kind: type) -> object:
        if kind not in pickling.reducers:
            raise KeyError(kind)
        return _refuse


refusing = _Refusing()
"""A table of reducers in which those of the user refuse: the server does not have them, and could not send such a value
on."""


def _refuse(value: object) -> object:
    raise build_refusal(f"A serializer of your own, as {type(value).__qualname__!r} has one by register_serializer,")
