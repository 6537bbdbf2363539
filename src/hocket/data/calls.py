"""Users' functions as steps: tasks call a function, and a pool of actors calls instances of a class."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, final

from hocket import keywords
from hocket.core import options
from hocket.data import plan, reading, steps


@final
@dataclass(frozen=True)
class TaskPoolStrategy:
    """Tasks call the function.

    Args:
        size: Largest number of tasks at a time. Default: as many as there is room for.

    Raises:
        ValueError: The number is less than 1.
    """

    size: int | None = None

    def __post_init__(self) -> None:
        reading.check_count("size", self.size, 1)


@final
@dataclass(frozen=True, kw_only=True)
class ActorPoolStrategy:
    """Each of several actors makes one instance of a class, and calls it.

    Args:
        size: Number of actors.
        min_size: Number of actors at the start, if more may come.
        max_size: Largest number of actors. The pool starts more while each actor has all blocks that it may have.
        initial_size: For programs written for Ray: the larger of this and `min_size` counts.
        max_tasks_in_flight_per_actor: How many blocks an actor has at a time. Default: 2, the current and the next.
        enable_true_multi_threading: For programs written for Ray: has no effect.

    Raises:
        ValueError: A number is less than 1, or the numbers contradict each other.

    Example:
        >>> from hocket import data
        >>> data.ActorPoolStrategy(min_size=1, max_size=4).max_size
        4
    """

    size: int | None = None
    min_size: int | None = None
    max_size: int | None = None
    initial_size: int | None = None
    max_tasks_in_flight_per_actor: int | None = None
    enable_true_multi_threading: bool = False

    def __post_init__(self) -> None:
        for name in ("size", "min_size", "max_size", "initial_size", "max_tasks_in_flight_per_actor"):
            reading.check_count(name, getattr(self, name), 1)
        if self.size is not None and (self.min_size, self.max_size, self.initial_size) != (None, None, None):
            raise ValueError(
                f"size={self.size} fixes the number of actors, so it excludes min_size, max_size and initial_size. "
                "Leave these out."
            )
        if self.min_size is not None and self.max_size is not None and self.min_size > self.max_size:
            raise ValueError(
                f"min_size must not be more than max_size, but received {self.min_size} and {self.max_size}. Swap them."
            )

    @property
    def bounds(self) -> tuple[int, int]:
        """Number of actors at the start, and the largest number."""
        if self.size is not None:
            return self.size, self.size
        least = max(self.min_size or 1, self.initial_size or 1)
        return least, max(least, self.max_size or least)


@final
@dataclass(frozen=True, kw_only=True)
class Call:
    """A user's function, and the way to call it.

    Args:
        verb: The dataset's method that received the function.
        fn: A function, or a class whose instances are called.
        args: More arguments for the function.
        kwargs: More keyword arguments for the function.
        constructor_args: Arguments for the class.
        constructor_kwargs: Keyword arguments for the class.
        concurrency: Number of tasks or actors; or the least and the largest number of actors.
        compute: The same choice as a `TaskPoolStrategy` or an `ActorPoolStrategy`.
        num_cpus: How many CPUs a task or an actor holds. Default: 1 for a task, 0 for a task with GPUs or an actor.
        num_gpus: How many GPUs each holds.
        memory: How many bytes of memory each holds.
        more: Further options of tasks and actors.
    """

    verb: str
    fn: Any
    args: Iterable[object] | None = None
    kwargs: Mapping[str, object] | None = None
    constructor_args: Iterable[object] | None = None
    constructor_kwargs: Mapping[str, object] | None = None
    concurrency: Any = None
    compute: object = None
    num_cpus: float | None = None
    num_gpus: float | None = None
    memory: float | None = None
    more: Mapping[str, object] | None = None

    def build(self, kind: Callable[..., steps.Call], **settings: object) -> plan.Step | plan.Pool:
        """Return the plan's operation for the call.

        Args:
            kind: The class of the step.
            **settings: Its fields besides the function.
        """
        self._check()
        fn = steps.Function(self.fn, tuple(self.args or ()), dict(self.kwargs or {}))
        name = f"{self.verb}({fn.name})"
        num_cpus = self.num_cpus if self.num_cpus is not None else 0.0 if self.num_gpus else 1.0
        held_by_actors = self.num_cpus or 0.0  # actors of an abandoned loop would keep their CPUs from all others
        extra = {"num_gpus": self.num_gpus, "memory": self.memory, **(self.more or {})}
        held = {key: value for key, value in extra.items() if value is not None}
        if isinstance(self.fn, type):
            least, most = self._find_actors()
            make = functools.partial(self.fn, *(self.constructor_args or ()), **dict(self.constructor_kwargs or {}))
            return plan.Pool(
                make=make,
                work=kind(fn=fn, **settings),
                name=name,
                least=least,
                most=most,
                blocks_per_actor=getattr(self.compute, "max_tasks_in_flight_per_actor", None) or plan.BLOCKS_PER_ACTOR,
                resources=held,
                num_cpus=held_by_actors,
            )
        return plan.Step(
            work=kind(fn=fn.bind(self.fn), **settings),
            name=name,
            num_cpus=num_cpus,
            concurrency=self._find_tasks(),
            resources=held,
        )

    def _check(self) -> None:
        check_function(self.verb, self.fn)
        for name in ("num_cpus", "num_gpus", "memory"):
            value = getattr(self, name)
            if value is not None and not reading.is_number(value, 0, math.inf):
                raise ValueError(
                    f"{name} must be a number from 0, but received {value!r}. Leave it out for the default."
                )
        if not isinstance(self.fn, type) and (self.constructor_args or self.constructor_kwargs):
            raise ValueError(
                f"fn_constructor_args are for a class, but {self.verb}() received the function "
                f"{steps.name_function(self.fn)}. Pass fn_args, or a class."
            )
        if self.compute is not None and self.concurrency is not None:
            raise ValueError(
                f"{self.verb}() received both compute and concurrency, which set the same thing. Leave one of them out."
            )
        if self.compute is not None and not isinstance(self.compute, TaskPoolStrategy | ActorPoolStrategy):
            raise TypeError(
                f"compute must be a TaskPoolStrategy or an ActorPoolStrategy, but received {self.compute!r}. Write "
                "concurrency=2."
            )
        fits = ActorPoolStrategy if isinstance(self.fn, type) else TaskPoolStrategy
        if self.compute is not None and not isinstance(self.compute, fits):
            kind = "a class" if isinstance(self.fn, type) else "a function"
            raise ValueError(
                f"{self.verb}() received {kind} with compute={self.compute!r}. For {kind}, write "
                f"compute={fits.__name__}()."
            )

    def _find_actors(self) -> tuple[int, int]:
        bounds: tuple[int, int]
        if isinstance(self.compute, ActorPoolStrategy):
            return self.compute.bounds
        given = self.concurrency
        if isinstance(given, tuple | list):
            if len(given) not in (2, 3) or not all(_is_count(one) for one in given) or given[0] > given[1]:
                raise ValueError(
                    f"concurrency must be a number or (least, most), but received {given!r}. Write concurrency=(1, 4)."
                )
            bounds = ActorPoolStrategy(
                min_size=given[0], max_size=given[1], initial_size=given[2] if len(given) == 3 else None
            ).bounds
            return bounds
        reading.check_count("concurrency", given, 1)
        return (given, given) if given is not None else (1, _MANY)

    def _find_tasks(self) -> int | None:
        if isinstance(self.compute, TaskPoolStrategy):
            return self.compute.size
        if isinstance(self.concurrency, tuple | list):
            raise TypeError(
                f"concurrency={self.concurrency!r} is a range, which only a class can have, but {self.verb}() "
                "received a function. Write one number."
            )
        reading.check_count("concurrency", self.concurrency, 1)
        found: int | None = self.concurrency
        return found


_MANY = 1 << 16
"""A larger number of actors than there is room for: the room is the limit."""


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


_HOW = {
    "fn_args": "args",
    "fn_kwargs": "kwargs",
    "fn_constructor_args": "constructor_args",
    "fn_constructor_kwargs": "constructor_kwargs",
    "compute": "compute",
    "concurrency": "concurrency",
    "num_cpus": "num_cpus",
    "num_gpus": "num_gpus",
    "memory": "memory",
}


SCHEDULING = ("parallelism", "concurrency", "compute", "ray_remote_args", "num_cpus", "num_gpus", "memory")
"""Ray's keywords that choose the tasks for an operation. Here they have no effect."""

_OF_RAY = ("udf_modifying_row_count", "ray_remote_args_fn")
"""Ray's keywords of calls: the first has no effect, the second is a function that returns more options."""

_OURS = ("name", "num_returns", "_generator_backpressure_num_objects")
"""Options of tasks and actors that users cannot set, because each step sets them itself."""


def read_call(verb: str, fn: object, how: Mapping[str, Any], own: Iterable[str] = ()) -> Call:
    """Return the call that a user's keywords describe.

    Args:
        verb: The dataset's method that received them.
        fn: The function.
        how: The keywords.
        own: Further keywords of the method.
    """
    known = {_HOW[name]: value for name, value in how.items() if name in _HOW}
    more = {name: value for name, value in how.items() if name not in _HOW}
    return Call(verb=verb, fn=fn, more=read_options(verb, fn, more, [*own, *_HOW]), **known)


def read_options(verb: str, fn: object, given: Mapping[str, object], known: Iterable[str]) -> dict[str, object]:
    """Return the further options of tasks or actors among a user's keywords.

    Args:
        verb: The dataset's method that received them.
        fn: A function for tasks, or a class for actors. None: options of tasks are allowed.
        given: The keywords.
        known: The method's own keywords.
    """
    there = options.ACTOR_OPTIONS if isinstance(fn, type) else options.TASK_OPTIONS
    theirs = {name: option for name, option in there.items() if name not in _OURS}
    keywords.check(f"{verb}()", given, known, "; and the options of hocket.remote()", [*theirs, *_OF_RAY])
    make: Any = given.get("ray_remote_args_fn")
    found = {name: value for name, value in given.items() if name not in _OF_RAY} | (make() if make is not None else {})
    options.validate(found, theirs, f"{verb}()")
    return found


def check_scheduling(verb: str, given: Mapping[str, object], own: Iterable[str] = ()) -> None:
    """Raise for a keyword that is neither one of `SCHEDULING` nor an option of tasks.

    Args:
        verb: The dataset's method that received the keywords.
        given: The keywords.
        own: The method's own keywords.
    """
    rest = {name: value for name, value in given.items() if name not in SCHEDULING}
    read_options(verb, None, rest, [*own, *SCHEDULING])


def check_function(verb: str, fn: object) -> None:
    """Raise if a function, or an instance of a class, cannot be called."""
    if isinstance(fn, type) and not any("__call__" in kind.__dict__ for kind in fn.__mro__):
        raise TypeError(
            f"{verb}() calls instances of {fn.__name__}, but this class has no __call__. Write that method."
        )
    if not callable(fn):
        raise TypeError(
            f"{verb}() takes a function, but received {fn!r}. Write {verb}(function), not {verb}(function())."
        )
