"""The conversion of our records of options to Ray's keywords."""

from __future__ import annotations

import json
import logging
import re
from typing import Any

import ray
from ray.util import scheduling_strategies
from ray.util.placement_group import PlacementGroup

from hocket._base.internals import ray as ray_internals
from hocket.engine.ray import outside, runner
from hocket.kernel import records, resources

_NODE_ID = re.compile(f"[0-9a-f]{{{2 * ray.NodeID.size()}}}")

_log = logging.getLogger("hocket")

_uploaded: dict[tuple[str, str], dict[str, object]] = {}
"""Uploaded runtime environments, by the job's id and the environment's text; a program has only a few."""


def build_task_keywords(options: records.TaskOptions) -> dict[str, object]:
    """Return the keywords of ``ray.remote`` for a function."""
    keywords = {
        **_build_amounts(options.shape.demand, default_cpus=0),
        **_build_placing(options.shape),
        "max_retries": options.max_retries,
        "name": options.name,
        **_build_returning(options),
    }
    if options.max_calls:
        keywords["max_calls"] = options.max_calls
    return keywords


def count_returns(options: records.TaskOptions) -> int | str:
    """Return the keyword ``num_returns``."""
    return "streaming" if options.num_returns == records.STREAMING else options.num_returns


def _build_returning(options: records.TaskOptions) -> dict[str, object]:
    retried = options.retry_exceptions
    found: dict[str, Any] = {
        "num_returns": count_returns(options),
        "retry_exceptions": outside.Kept([runner.build_retried(retried)]) if isinstance(retried, tuple) else retried,
    }
    if options.backpressure:
        found["_generator_backpressure_num_objects"] = options.backpressure
    return found


def build_call_keywords(options: records.TaskOptions) -> dict[str, object]:
    """Return the keywords of one call of a method."""
    found = _build_returning(options)
    found["name"] = options.name
    found["max_task_retries"] = options.max_retries
    if options.concurrency_group:
        found["concurrency_group"] = options.concurrency_group
    return found


def build_actor_keywords(options: records.ActorOptions) -> dict[str, object]:
    """Return the keywords of ``ray.remote`` for a class."""
    lasting, placing = options.lifetime_shape, options.creation.shape
    keywords: dict[str, object] = {
        **_build_placing(placing),
        "max_concurrency": options.max_concurrency,
        "max_restarts": options.max_restarts,
        "max_task_retries": options.max_task_retries,
        "max_pending_calls": options.max_pending_calls,
    }
    if lasting == placing:  # else Ray's own default is right: one CPU to be placed, none while it lives
        keywords |= _build_amounts(lasting.demand, default_cpus=0)
    if options.allows_disorder and options.max_concurrency == 1 and not options.is_async:
        keywords["allow_out_of_order_execution"] = True
    if options.concurrency_groups:
        keywords["concurrency_groups"] = dict(options.concurrency_groups)
    if options.name:
        keywords |= {"name": options.name, "namespace": options.namespace}
    if options.detached:
        keywords |= {"lifetime": "detached", "namespace": options.namespace}
    return keywords


def build_bundle(demand: resources.Demand) -> dict[str, float]:
    """Return a demand as Ray's bundle: amounts by resource name."""
    return {name: _convert(name, units) for name, units in demand}


def _convert(name: str, units: int) -> float:
    amount = units / resources.UNIT
    return int(amount) if name == "memory" or amount.is_integer() else amount


def _build_amounts(demand: resources.Demand, default_cpus: float) -> dict[str, object]:
    amounts = build_bundle(demand)
    found: dict[str, Any] = {"num_cpus": amounts.pop("CPU", default_cpus)}
    if "GPU" in amounts:
        found["num_gpus"] = amounts.pop("GPU")
    if "memory" in amounts:
        found["memory"] = amounts.pop("memory")
    if amounts:
        found["resources"] = amounts
    return found


def _build_placing(shape: resources.Shape) -> dict[str, object]:
    found: dict[str, Any] = {}
    if shape.environment:
        found["runtime_env"] = _build_environment(shape.environment)
    if shape.group_id:
        found["scheduling_strategy"] = scheduling_strategies.PlacementGroupSchedulingStrategy(
            build_group(shape.group_id), shape.bundle_index, shape.captures_children
        )
    elif shape.leaves_group:
        found["scheduling_strategy"] = scheduling_strategies.PlacementGroupSchedulingStrategy(None)
    elif shape.nodes:
        found |= _build_choice(json.loads(shape.nodes))
    return found


def build_group(group_id: int) -> Any:
    """Return Ray's handle on a placement group."""
    digits = 2 * ray.PlacementGroupID.size()
    return PlacementGroup(ray.PlacementGroupID.from_hex(f"{group_id:0{digits}x}"))


def _build_choice(choice: dict[str, Any]) -> dict[str, object]:
    """Return the keywords for a choice of nodes; see `hocket.core.placement.describe_choice`."""
    match choice.pop("kind"):
        case "strategy":
            return {"scheduling_strategy": choice["name"]}
        case "node":
            if not _NODE_ID.fullmatch(
                choice["node_id"]
            ):  # no node has such an id: a soft choice allows it, but Ray would refuse it
                return {}
            strategy = scheduling_strategies.NodeAffinitySchedulingStrategy(choice["node_id"], choice["soft"])
            return {"scheduling_strategy": strategy}
        case "labels":
            hard, soft = (
                {name: _build_condition(*rest) for name, rest in choice[side].items()} for side in ("hard", "soft")
            )
            return {"scheduling_strategy": scheduling_strategies.NodeLabelSchedulingStrategy(hard, soft=soft)}
        case _:  # a selector, which has Ray's own keywords
            return choice


def _build_condition(name: str, *values: str) -> object:
    return getattr(scheduling_strategies, name)(*values)


# Ray takes folders of this machine only for a whole job; for a task it takes only uploaded folders. So this uploads
# them. It also repeats the modules of the session's own environment, because Ray would replace them.
def _build_environment(text: str) -> dict[str, object]:
    """Return the keyword ``runtime_env`` of a task or an actor, from the environment's text."""
    context = ray.get_runtime_context()
    key = (context.get_job_id(), text)
    found = _uploaded.get(key)
    if found is None:
        given = json.loads(text)
        outside.check_environment(given)
        found = _uploaded[key] = _upload(given, context.runtime_env.get("py_modules", ()))
    return dict(found)


def _upload(given: dict[str, Any], inherited: Any) -> dict[str, object]:
    given = ray_internals.upload(given, _log)
    if "py_modules" in given:
        given["py_modules"] = list(dict.fromkeys([*given["py_modules"], *inherited]))
    return given
