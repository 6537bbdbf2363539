"""Drivers outside of the cluster, at ``ray://host:port``, which use Ray Client instead of Ray.

The real driver is then a process on the cluster, Ray Client's server. It unpickles all values and pickles them again.
So our handles are rebuilt there, by an engine like a worker's. Ray's handles have other classes in this process, and
the tables of Ray's processes do not exist here; `ask` reads most of them on the cluster. A handle gets its id from the
server's answer. So each call takes a round trip, and raises the server's errors at once.

Abilities that are missing raise an error at the call, and are listed in `LIMITS`.
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
        "Through ray://, tasks and methods that yield their items one by one are refused. num_returns='dynamic' works, "
        "and so do generators that tasks on the cluster read."
    ),
    "client_task_folders": (
        "Through ray://, a folder can be sent for the whole session only, not in the runtime_env of a task or an actor."
    ),
    "client_serializers": (
        "Through ray://, values whose classes have a serializer of register_serializer are refused; give such a "
        "class a __reduce__."
    ),
    "client_captures": (
        "Through ray://, values that functions and actor classes capture stay on the cluster until the session ends."
    ),
    "client_statistics": "Through ray://, statistics() counts handles, but not tasks.",
    "client_pace": (
        "Through ray://, each call waits for the server's answer, which takes one round trip over the network."
    ),
}
"""The abilities that Ray Client lacks: further entries of an engine's `limits`."""

_REMEDY = (
    "Run the driver on the cluster: with hocket.init(address='auto') on one of its machines, or with `ray job "
    "submit -- python script.py`."
)

_ANYTHING = inspect.signature(lambda *args, **kwargs: None)


def is_outside() -> bool:
    """Return whether this process uses its cluster through Ray Client."""
    return ray_internals.is_outside()


def is_server() -> bool:
    """Return whether this process is Ray Client's server, which counts the handles that it sends to the driver."""
    main = getattr(sys.modules["__main__"], "__spec__", None)
    return main is not None and main.name.startswith("ray.util.client.server")


def build_refusal(what: str) -> exceptions.HocketError:
    """Return the error for an ability that Ray Client lacks."""
    return exceptions.HocketError(f"{what} is not possible through ray://: Ray Client does not support it. {_REMEDY}")


def is_call(native: object) -> bool:
    """Return whether a reference of Ray Client's is the result of a call on an actor. Its server refuses to cancel such
    a call by force, but does not report that."""
    if not isinstance(native, ObjectRef):
        return False
    actor_id: bytes = native.task_id().actor_id().binary()
    return set(actor_id[: -ray.JobID.size()]) != {0xFF}


def build_remote(target: Callable[..., object], keywords: Mapping[str, object]) -> Any:
    """Return the result of `ray.remote` for a function or class; outside of the cluster, of Ray Client's counterpart,
    which keeps nothing for longer than its use."""
    found: Any = client.ray if is_outside() else ray
    return found.remote(**keywords)(target)


def check_environment(given: Mapping[str, object]) -> None:
    """Raise if a single task or actor names folders: Ray Client cannot make the cluster keep the uploads for them."""
    named = [name for name in ("working_dir", "py_modules") if name in given]
    if named and is_outside():
        raise exceptions.HocketError(
            f"runtime_env={dict(given)} of a task or actor has {' and '.join(named)}, which is not possible through "
            f"ray://. Name it for the whole session: hocket.init(runtime_env={{{named[0]!r}: ...}}). Or: {_REMEDY}"
        )


def ask(function: Callable[..., T], *args: object) -> T:
    """Call a function of this package where Ray's tables are: in this process, or, for a driver outside, in a task on
    the cluster."""
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
    """Call a method of an actor, and return Ray's result."""
    if not isinstance(actor, ActorHandle):
        return ray_internals.call_method(actor, name, args, kwargs, keywords)
    # Not through Ray Client's handle: it looks for the method in its own class first, and knows fewer keywords than the
    # server, which checks them, too.
    call = common.OptionWrapper(common.ClientRemoteMethod(actor, name, 1, _ANYTHING), None)
    ray_internals.set_options(call, keywords)
    return call.remote(*args, **kwargs)


def list_objects() -> dict[bytes, dict[str, int]]:
    """Return the counts of each object that this process refers to, by id; without actors, which have shorter ids."""
    counts = client.ray.get_context().client_worker.reference_count
    size = ray.ObjectID.size()
    return {
        object_id: {"local": count, "submitted": 0}
        for object_id, count in list(counts.items())
        if len(object_id) == size
    }


def list_functions(tasks: Iterable[object]) -> frozenset[bytes]:
    """Return the ids of the objects in which Ray Client keeps functions; empty in a process with Ray itself."""
    found = (ray_internals.find_function(task) for task in tasks if isinstance(task, common.ClientRemoteFunc))
    return frozenset(one for one in found if one is not None)


class Kept(list[object]):
    """A list that `pickle` pickles as Ray pickles values: also with classes of the driver's script, which the server
    cannot import. Ray Client uses plain `pickle` for options.
    """

    def __reduce__(self) -> tuple[object, ...]:
        return ray.cloudpickle.loads, (ray.cloudpickle.dumps(list(self)),)


class _Refusing(dict[type, object]):
    def __missing__(self, kind: type) -> object:
        if kind not in pickling.reducers:
            raise KeyError(kind)
        return _refuse


refusing = _Refusing()
"""A table of reducers in which those of the user raise: the server does not have them, and could not send such a value
on."""


def _refuse(value: object) -> object:
    raise build_refusal(f"Sending {type(value).__qualname__!r}, which has a serializer of register_serializer,")
