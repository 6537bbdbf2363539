"""What `.options` and `@remote(...)` may say: names, types, rules, and the messages when they are broken.

The messages have the value, the rule and the remedy. Names and meanings are Ray's.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hocket.core import placement
from hocket.kernel import records, resources

Check = Callable[[str, Any], str | None]
"""Returns what is wrong with a value, or None."""


@dataclass(frozen=True, slots=True)
class Option:
    """One keyword: which types it takes, and what else must hold."""

    types: tuple[type, ...]
    check: Check | None = None


def _at_least_zero(name: str, value: Any) -> str | None:
    if value < 0:
        return f"The keyword {name!r} must be 0 or more, but received {value!r}. Leave it out for the default."
    return None


def _retry_count(name: str, value: Any) -> str | None:
    if value < -1:
        return f"The keyword {name!r} must be -1 (without end), 0 or more, but received {value!r}."
    return None


def _positive(name: str, value: Any) -> str | None:
    if value < 1:
        return f"The keyword {name!r} must be 1 or more, but received {value!r}. Leave it out for 1."
    return None


def _check_resources(name: str, value: Mapping[str, Any]) -> str | None:
    for key, amount in value.items():
        if key in ("CPU", "GPU"):
            return f"Use the 'num_{key.lower()}s' keyword instead of {key!r} in 'resources': num_{key.lower()}s={amount!r}."
        if isinstance(amount, bool) or not isinstance(amount, int | float):
            return f"The amount of resource {key!r} must be a number, but received {amount!r}."
        if amount < 0:
            return f"The amount of resource {key!r} must be 0 or more, but received {amount!r}."
    return None


def _non_empty(name: str, value: str) -> str | None:
    if not value:
        return f"The keyword {name!r} must not be empty. Leave it out for none."
    return None


def _check_lifetime(name: str, value: str) -> str | None:
    if value not in ("detached", "non_detached"):
        return f"The keyword 'lifetime' must be 'detached', 'non_detached' or None, but received {value!r}."
    return None


def _check_exceptions(name: str, value: Any) -> str | None:
    if isinstance(value, bool):
        return None
    for kind in value:
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            return (
                f"The keyword 'retry_exceptions' must be a bool or a list of exception classes, but it holds {kind!r}."
            )
    return None


_NUMBER = (int, float)
_RESOURCES = {
    "num_cpus": Option(_NUMBER, _at_least_zero),
    "num_gpus": Option(_NUMBER, _at_least_zero),
    "resources": Option((dict,), _check_resources),
    "scheduling_strategy": Option((str, placement.PlacementGroupSchedulingStrategy), placement.check_strategy),
    "name": Option((str,), _non_empty),
}
TASK_OPTIONS: dict[str, Option] = {
    **_RESOURCES,
    "num_returns": Option((int,), _at_least_zero),
    "max_retries": Option((int,), _retry_count),
    "retry_exceptions": Option((bool, list, tuple), _check_exceptions),
}
ACTOR_OPTIONS: dict[str, Option] = {
    **_RESOURCES,
    "namespace": Option((str,), _non_empty),
    "lifetime": Option((str,), _check_lifetime),
    "max_concurrency": Option((int,), _positive),
    "get_if_exists": Option((bool,)),
}
METHOD_OPTIONS: dict[str, Option] = {
    "num_returns": Option((int,), _at_least_zero),
    "name": Option((str,), _non_empty),
}

DEFAULT_MAX_RETRIES = 3
"""How often a task is started again after its worker died, unless it says otherwise. Ray's number."""


def validate(given: Mapping[str, Any], known: Mapping[str, Option], what: str) -> None:
    """Check the keywords of a decorator or of `.options`.

    Raises:
        ValueError: A keyword is unknown, or a value breaks a rule.
        TypeError: A value has the wrong type.
    """
    for name, value in given.items():
        option = known.get(name)
        if option is None:
            close = difflib.get_close_matches(name, known, 1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise ValueError(f"Invalid option keyword {name!r} for {what}.{hint} Valid ones are {sorted(known)}.")
        if value is None:
            continue
        if not isinstance(value, option.types) or (isinstance(value, bool) and bool not in option.types):
            kinds = " or ".join(kind.__name__ for kind in option.types)
            raise TypeError(
                f"The type of keyword {name!r} must be {kinds}, but received type {type(value).__name__}: {value!r}."
            )
        problem = option.check(name, value) if option.check is not None else None
        if problem is not None:
            raise ValueError(problem)


def build_task_options(given: Mapping[str, Any], name: str) -> records.TaskOptions:
    """Return the record for a remote function's options."""
    retry = given.get("retry_exceptions") or False
    retries = given.get("max_retries")
    returns = given.get("num_returns")
    return records.TaskOptions(
        name=given.get("name") or name,
        num_returns=1 if returns is None else returns,
        shape=_build_shape(given, default_cpus=1.0),
        max_retries=DEFAULT_MAX_RETRIES if retries is None else retries,
        retry_exceptions=tuple(retry) if isinstance(retry, list | tuple) else retry,
    )


def build_actor_options(
    given: Mapping[str, Any], class_name: str, namespace: str, methods: tuple[tuple[str, int], ...]
) -> records.ActorOptions:
    """Return the record for an actor's options.

    Like in Ray, an actor needs one CPU to be placed and none while it lives, unless it names any resource: then it holds what
    it names for as long as it lives.
    """
    names_any = any(given.get(key) is not None for key in ("num_cpus", "num_gpus", "resources"))
    lifetime_shape = _build_shape(given, default_cpus=1.0 if names_any and given.get("num_cpus") is None else 0.0)
    placing = lifetime_shape if names_any else _build_shape(given, default_cpus=1.0)
    return records.ActorOptions(
        class_name=class_name,
        creation=records.TaskOptions(name=f"{class_name}.__init__", shape=placing),
        lifetime_shape=lifetime_shape,
        name=given.get("name") or "",
        namespace=given.get("namespace") or namespace,
        detached=given.get("lifetime") == "detached",
        max_concurrency=given.get("max_concurrency") or 1,
        methods=methods,
    )


def _build_shape(given: Mapping[str, Any], default_cpus: float) -> resources.Shape:
    amounts = dict(given.get("resources") or {})
    cpus = given.get("num_cpus")
    amounts["CPU"] = default_cpus if cpus is None else cpus
    amounts["GPU"] = given.get("num_gpus") or 0
    demand = resources.parse_demand(amounts)
    strategy = given.get("scheduling_strategy")
    if isinstance(strategy, placement.PlacementGroupSchedulingStrategy) and strategy.placement_group is not None:
        group = strategy.placement_group
        return resources.Shape(demand, group.group_id, strategy.placement_group_bundle_index)
    if demand == records.DEFAULT_SHAPE.demand:
        return records.DEFAULT_SHAPE
    return resources.Shape(demand)
