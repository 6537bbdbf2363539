"""The arguments of `.options` and `@remote(...)`: names, types, rules, and the errors for broken rules.

Each message has the value, the rule and the remedy. Names and meanings are Ray's.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from hocket import keywords
from hocket.core import amounts, environments, labels, placement
from hocket.engine import contract
from hocket.kernel import records, resources

Check = Callable[[str, Any], str | None]
"""A function of a keyword's name and value that returns an error message, or None."""


class Option(NamedTuple):
    """One keyword: its types, and a check of its value."""

    types: tuple[type, ...]
    check: Check | None = None


MAX_RETURNS = 1_000_000
"""The most results of one task: each has a reference from the beginning."""

MAX_THREADS = 1_000_000
"""The most calls that an actor runs at once; no process has as many threads."""


def _rule(is_met: Callable[[Any], bool], text: str, remedy: str = "") -> Check:
    """Return a check of a rule.

    Args:
        is_met: A function that returns whether a value meets the rule.
        text: The rule, as the words after "must".
        remedy: The advice for a value that breaks the rule.
    """

    def check(name: str, value: object) -> str | None:
        return None if is_met(value) else f"The keyword {name!r} must {text}, but received {value!r}.{remedy}"

    return check


_at_least_zero = _rule(lambda value: value >= 0, "be 0 or more", " Leave it out for the default.")
_retry_count = _rule(lambda value: value >= -1, "be -1 (without end), 0 or more")
_positive = _rule(lambda value: value >= 1, "be 1 or more", " Leave it out for 1.")
_threads = _rule(lambda value: 1 <= value <= MAX_THREADS, f"be from 1 to {MAX_THREADS:,}", " Leave it out for 1.")
_limit = _rule(lambda value: value >= 1 or value == -1, "be -1 (without limit), 1 or more")
_check_lifetime = _rule(lambda value: value in ("detached", "non_detached"), "be 'detached', 'non_detached' or None")


_returns = _rule(
    lambda value: 0 <= value <= MAX_RETURNS,
    f"be from 0 to {MAX_RETURNS:,}",
    " For more, write num_returns='streaming', and yield them.",
)


def _check_returns(name: str, value: object) -> str | None:
    if isinstance(value, str):
        if value not in ("streaming", "dynamic"):
            return f"The keyword {name!r} must be a number, 'streaming' or 'dynamic', but received {value!r}."
        return None
    return _returns(name, value)


def _check_resources(name: str, value: Mapping[str, object]) -> str | None:
    for key, amount in value.items():
        if key in ("CPU", "GPU"):
            return (
                f"Use the 'num_{key.lower()}s' keyword instead of {key!r} in 'resources': "
                f"num_{key.lower()}s={amount!r}."
            )
        if key == "memory":
            return f"Use the 'memory' keyword instead of 'memory' in 'resources': memory={amount!r}."
        if isinstance(amount, bool) or not isinstance(amount, int | float):
            return f"The amount of resource {key!r} must be a number, but received {amount!r}."
        problem = amounts.explain_amount(f"The amount of resource {key!r}", key, amount)
        if problem is not None:
            return problem
    return None


def _check_amount(name: str, value: float) -> str | None:
    return amounts.explain_amount(f"The keyword {name!r}", "GPU" if name == "num_gpus" else name, value)


def _non_empty(name: str, value: str) -> str | None:
    if not value:
        return f"The keyword {name!r} must not be empty. Give text, or leave it out."
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


def _check_groups(name: str, value: object) -> str | None:
    groups = list_groups(value)
    for group, size in groups:
        if not isinstance(group, str) or not group:
            return f"The keyword {name!r} must name its groups with text, but received {group!r}."
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            return f"The size of concurrency group {group!r} must be 1 or more, but received {size!r}."
    return None


def list_groups(given: Any) -> list[tuple[Any, Any]]:
    """Return concurrency groups, which users give as a dict or as a list of dicts, as pairs of name and size."""
    if isinstance(given, Mapping):
        return list(given.items())
    return [(group.get("name"), group.get("max_concurrency")) for group in given or ()]


def _check_tensor_transport(name: str, value: object) -> str | None:
    return f"The keyword {name!r} is not supported: values travel through shared memory. Leave it out."


_NUMBER = (int, float)
_PLACING = {
    "num_cpus": Option(_NUMBER, _check_amount),
    "num_gpus": Option(_NUMBER, _check_amount),
    "resources": Option((dict,), _check_resources),
    "memory": Option(_NUMBER, _check_amount),
    "accelerator_type": Option((str,), _non_empty),
    "scheduling_strategy": Option(
        (
            str,
            placement.PlacementGroupSchedulingStrategy,
            placement.NodeAffinitySchedulingStrategy,
            placement.NodeLabelSchedulingStrategy,
        ),
        placement.check_strategy,
    ),
    "placement_group": Option((placement.PlacementGroup, str), placement.check_group),
    "placement_group_bundle_index": Option((int,)),
    "placement_group_capture_child_tasks": Option((bool,)),
    "label_selector": Option((dict,), labels.explain_selector),
    "fallback_strategy": Option((list,), placement.check_fallback),
    "runtime_env": Option((dict,), environments.check_environment),
    "name": Option((str,), _non_empty),
    "enable_task_events": Option((bool,)),
    "enable_tensor_transport": Option((bool,), _check_tensor_transport),
    "_labels": Option((dict,)),
    "_metadata": Option((dict,)),
}
_RETURNING = {
    "num_returns": Option((int, str), _check_returns),
    "retry_exceptions": Option((bool, list, tuple), _check_exceptions),
    "_generator_backpressure_num_objects": Option((int,), _limit),
    "_num_objects_per_yield": Option((int,), _positive),
}
TASK_OPTIONS: dict[str, Option] = {
    **_PLACING,
    **_RETURNING,
    "max_retries": Option((int,), _retry_count),
    "max_calls": Option((int,), _at_least_zero),
}
ACTOR_OPTIONS: dict[str, Option] = {
    **_PLACING,
    "namespace": Option((str,), _non_empty),
    "lifetime": Option((str,), _check_lifetime),
    "max_concurrency": Option((int,), _threads),
    "concurrency_groups": Option((dict, list), _check_groups),
    "max_restarts": Option((int,), _retry_count),
    "max_task_retries": Option((int,), _retry_count),
    "max_pending_calls": Option((int,), _limit),
    "allow_out_of_order_execution": Option((bool,)),
    "get_if_exists": Option((bool,)),
}
METHOD_OPTIONS: dict[str, Option] = {
    **_RETURNING,
    "max_task_retries": Option((int,), _retry_count),
    "concurrency_group": Option((str,), _non_empty),
    "name": Option((str,), _non_empty),
    "enable_task_events": Option((bool,)),
    "tensor_transport": Option((str,), _check_tensor_transport),
}

DECORATOR_ONLY = {"max_calls": "remote function", "concurrency_groups": "actor class"}
"""Options that `.options()` cannot change, each with the kind of object that has it."""

DEFAULT_MAX_RETRIES = 3
"""The default of ``max_retries``, as in Ray: how often a task starts again after its worker died."""

ASYNC_CONCURRENCY = 1000
"""The default of ``max_concurrency`` for an asynchronous actor, as in Ray: how many calls run at once."""


def validate(given: Mapping[str, object], known: Mapping[str, Option], what: str) -> None:
    """Check the keywords of a decorator or of `.options`; raise if one is wrong."""
    for name, value in given.items():
        option = known.get(name)
        if option is None:
            hint = keywords.suggest(name, known)
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
    placement.check_conflicts(given, what)


def refuse_decorator_only(given: Mapping[str, object], what: str) -> None:
    """Raise ValueError if `.options()` gets an option that only the decorator takes."""
    for name in given:
        if name in DECORATOR_ONLY:
            raise ValueError(
                f"The keyword {name!r} of {what} cannot be changed with .options(), because workers and threads are "
                f"set up for it. Give it to the decorator: @hocket.remote({name}=...)."
            )


# --- records ----------------------------------------------------------------------------------------------------------


def _make_plain(value: object) -> Any:
    """Return a value with Python's own text and numbers, instead of an enumeration's members or NumPy's numbers. Only
    these may stand in messages between processes."""
    if isinstance(value, bool):
        return value
    for plain in (str, int, float):
        if isinstance(value, plain):
            return value if type(value) is plain else _TO_PLAIN[plain](value)
    if type(value) is dict:
        return {_make_plain(key): _make_plain(part) for key, part in value.items()}
    if type(value) is list:
        return [_make_plain(part) for part in value]
    return value


_TO_PLAIN: dict[type, Callable[[Any], object]] = {str: str.__str__, int: int.__int__, float: float.__float__}


def is_generator(function: object) -> bool:
    """Return whether a call of the function returns a generator."""
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def _count_returns(given: Any, function: object, name: str) -> int:
    """Return the number of returns: by default 1, or `records.STREAMING` for a generator."""
    if given is None:
        return records.STREAMING if is_generator(function) else 1
    if isinstance(given, str):
        if function is not None and not is_generator(function):
            raise ValueError(
                f"num_returns={given!r} is for generators, but `{name}` is not a generator function. Use `yield` in "
                "it, or give a number."
            )
        return records.STREAMING if given == "streaming" else 1
    return int(given)


def _list_exceptions(given: object) -> bool | tuple[type[BaseException], ...]:
    return tuple(given) if isinstance(given, list | tuple) else bool(given)


def _get_backpressure(given: Mapping[str, Any]) -> int:
    return given.get("_generator_backpressure_num_objects") or 0


def _is_own(made: object) -> bool:
    """Return whether a function or a class belongs to Hocket, and not to a user."""
    module = str(getattr(made, "__module__", ""))
    return module.startswith("hocket.") and not module.startswith("hocket.testing")


def build_task_options(given: Mapping[str, Any], function: Any) -> records.TaskOptions:
    """Return the record for a remote function's options."""
    given = _make_plain(dict(given))
    name = given.get("name") or _make_plain(function.__name__)
    retries = given.get("max_retries")
    max_calls = given.get("max_calls")
    if max_calls is None:  # a library keeps the GPU's memory until its process ends
        max_calls = 1 if given.get("num_gpus") else 0
    shape = _build_shape(given, default_cpus=1.0)
    if max_calls:
        shape = shape._replace(only=f"{function.__module__}.{function.__qualname__}")
    return records.TaskOptions(
        name=name,
        num_returns=_count_returns(given.get("num_returns"), function, name),
        shape=shape,
        max_retries=DEFAULT_MAX_RETRIES if retries is None else retries,
        retry_exceptions=_list_exceptions(given.get("retry_exceptions")),
        max_calls=max_calls,
        backpressure=_get_backpressure(given),
        is_own=_is_own(function),
    )


def build_method_options(given: Mapping[str, Any], function: object, name: str) -> records.MethodOptions:
    """Return the record for the options of `@method`."""
    given = _make_plain(dict(given))
    return records.MethodOptions(
        num_returns=_count_returns(given.get("num_returns"), function, name),
        max_task_retries=given.get("max_task_retries"),
        retry_exceptions=_list_exceptions(given.get("retry_exceptions")),
        concurrency_group=given.get("concurrency_group") or "",
        backpressure=_get_backpressure(given),
        is_dynamic=given.get("num_returns") == "dynamic",
    )


def build_call_options(
    method: records.MethodOptions, actor: records.ActorOptions, name: str, given: Mapping[str, Any]
) -> records.TaskOptions:
    """Return the record for a call, from the options of the method, of the actor, and of `.options`."""
    given = _make_plain(dict(given))
    returns = given.get("num_returns")
    retries = given.get("max_task_retries", method.max_task_retries)
    group = given.get("concurrency_group") or method.concurrency_group
    known = [known for known, _ in actor.concurrency_groups]
    if group and group not in known:
        raise ValueError(
            f"`{name}` names the concurrency group {group!r}, but actor class `{actor.class_name}` declares {known}. "
            f"Declare it: @hocket.remote(concurrency_groups={{{group!r}: 2}})."
        )
    num_returns = method.num_returns if returns is None else _count_returns(returns, None, name)
    max_retries = actor.max_task_retries if retries is None else retries
    is_direct = num_returns >= 0 and not max_retries and not actor.max_restarts and actor.max_pending_calls < 0
    return records.TaskOptions(
        name=given.get("name") or name,
        num_returns=num_returns,
        max_retries=max_retries,
        is_direct=is_direct,
        retry_exceptions=_list_exceptions(given["retry_exceptions"])
        if given.get("retry_exceptions") is not None
        else method.retry_exceptions,
        concurrency_group=group,
        backpressure=_get_backpressure(given) or method.backpressure,
        is_own=actor.creation.is_own,
    )


def build_actor_options(given: Mapping[str, Any], cls: type, namespace: str) -> records.ActorOptions:
    """Return the record for an actor's options, without its methods. As in Ray, an actor needs one CPU to be placed,
    and holds none while it lives. An actor that names any resource needs and holds the resources that it names."""
    given = _make_plain(dict(given))
    names_any = any(
        given.get(key) is not None for key in ("num_cpus", "num_gpus", "resources", "memory", "accelerator_type")
    )
    lifetime_shape = _build_shape(given, default_cpus=1.0 if names_any and given.get("num_cpus") is None else 0.0)
    placing = lifetime_shape if names_any else _build_shape(given, default_cpus=1.0)
    is_async = has_coroutines(cls)
    concurrency = given.get("max_concurrency") or (ASYNC_CONCURRENCY if is_async else 1)
    is_plain = not is_async and concurrency == 1
    disorder = given.get("allow_out_of_order_execution")
    if disorder is False and not is_plain:
        raise ValueError(
            f"allow_out_of_order_execution=False is not possible for actor class `{cls.__name__}`: its calls "
            "run side by side, in threads or on an event loop, so they have no order. Leave it out, or set "
            "max_concurrency=1 and use no coroutines."
        )
    return records.ActorOptions(
        class_name=_make_plain(cls.__name__),
        creation=records.TaskOptions(name=f"{cls.__name__}.__init__", shape=placing, is_own=_is_own(cls)),
        lifetime_shape=lifetime_shape,
        name=given.get("name") or "",
        namespace=given.get("namespace") or namespace,
        detached=given.get("lifetime") == "detached",
        max_concurrency=concurrency,
        is_async=is_async,
        concurrency_groups=tuple(list_groups(given.get("concurrency_groups"))),
        allows_disorder=not is_plain if disorder is None else disorder,
        max_restarts=given.get("max_restarts") or 0,
        max_task_retries=given.get("max_task_retries") or 0,
        max_pending_calls=-1 if given.get("max_pending_calls") is None else given["max_pending_calls"],
    )


def has_coroutines(cls: type) -> bool:
    """Return whether a class has a coroutine function or an async generator among its methods, which makes its actors
    asynchronous."""
    return any(
        inspect.iscoroutinefunction(member) or inspect.isasyncgenfunction(member)
        for _, member in inspect.getmembers(cls, callable)
    )


def _build_shape(given: Mapping[str, Any], default_cpus: float) -> resources.Shape:
    wanted = dict(given.get("resources") or {})
    cpus = given.get("num_cpus")
    wanted["CPU"] = default_cpus if cpus is None else cpus
    wanted["GPU"] = given.get("num_gpus") or 0
    wanted["memory"] = given.get("memory") or 0
    if given.get("accelerator_type"):
        wanted[f"accelerator_type:{given['accelerator_type']}"] = 0.001
    demand = resources.parse_demand(wanted)
    environment = environments.format_environment(given.get("runtime_env"))
    group_id, bundle_index, captures = placement.find_group(given)
    shape = resources.Shape(
        demand,
        group_id,
        bundle_index,
        environment=environment,
        captures_children=captures and bool(group_id),
        nodes=placement.describe_choice(given),
        leaves_group=placement.leaves_group(given),
    )
    return records.DEFAULT_SHAPE if shape == records.DEFAULT_SHAPE else shape


def inherit_shape(shape: resources.Shape, inherited: contract.Inherited) -> resources.Shape:
    """Return the shape with the runtime environment and placement group that it inherits from the submitting task."""
    environment = environments.merge_environments(inherited.environment, shape.environment)
    if inherited.group_id and not shape.group_id and not shape.leaves_group:
        return shape._replace(environment=environment, group_id=inherited.group_id, captures_children=True)
    return shape._replace(environment=environment)


def inherit(options: records.TaskOptions, inherited: contract.Inherited) -> records.TaskOptions:
    """Return a task's options with the shape that it inherits from the submitting task; see `inherit_shape`."""
    return dataclasses.replace(options, shape=inherit_shape(options.shape, inherited))
