"""This machine: its resources, and the errors for requests that are too large."""

from __future__ import annotations

import itertools
import os
import socket
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from hocket import exceptions
from hocket.kernel import records, resources

ADDRESS = "127.0.0.1"
"""The address of this machine in descriptions of nodes."""

STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")
"""The strategies that place the bundles of a placement group on nodes."""


def count_cpus() -> int:
    """Return how many CPUs this process may use, by its affinity, or by its cgroup's quota if that is less."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _read_cpu_quota()
    return max(1, min(cpus, quota)) if quota else cpus


def _read_cpu_quota() -> int | None:
    try:
        with open("/proc/self/cgroup") as groups:
            path = next(line[3:].strip() for line in groups if line.startswith("0::"))
        with open(f"/sys/fs/cgroup{path}/cpu.max") as limit:
            quota, period = limit.read().split()
    except (OSError, StopIteration, ValueError):
        return None
    return None if quota == "max" else max(1, round(int(quota) / int(period)))


def count_memory() -> int:
    """Return the memory that this process may use, in bytes: the machine's memory, or the lowest limit of its cgroups
    if that is less."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([total, *_list_memory_limits("/proc/self/cgroup", "/sys/fs/cgroup")])


def _list_memory_limits(groups: str | os.PathLike[str], root: str | os.PathLike[str]) -> list[int]:
    """Return the limits of a process's cgroup and of the cgroups above it, for both versions of cgroups.

    Args:
        groups: The file with the process's cgroups, such as /proc/self/cgroup.
        root: The folder where cgroups are mounted.
    """
    limits = []
    try:
        with open(groups) as file:
            lines = file.read().splitlines()
    except OSError:
        return []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            folder, name = os.fspath(root), "memory.max"
        elif "memory" in controllers.split(","):
            folder, name = os.path.join(root, "memory"), "memory.limit_in_bytes"
        else:
            continue
        # In a container the path may be the host's. Then only the root of the mount exists, and it is the right cgroup.
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for depth in range(len(parts) + 1):
            limits += _read_limit(os.path.join(folder, *parts[:depth], name))
    return limits


def _read_limit(path: str) -> list[int]:
    try:
        with open(path) as file:
            return [int(file.read())]
    except (OSError, ValueError):  # the file does not exist, or says "max"
        return []


MINIMUM_STORE_BYTES = 75 << 20
"""The least number of bytes that a user may set for large values. Ray's figure: so a setting is valid in both or in
neither."""

STORE_SHARE = 0.3
"""The default share of the memory for large values. Ray's figure."""


def choose_store_bytes() -> int:
    """Return how many bytes of memory large values may take by default."""
    return max(MINIMUM_STORE_BYTES, int(count_memory() * STORE_SHARE))


def list_visible_gpus() -> list[str] | None:
    """Return the names of the GPUs in ``CUDA_VISIBLE_DEVICES``; None if it is not set. A name is an index on the
    machine or a UUID. As in CUDA, an invalid name hides itself and all names after it."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return None
    names = [name.strip() for name in visible.split(",")]
    return list(itertools.takewhile(lambda name: name not in ("", "-1", "NoDevFiles"), names))


def name_gpus(demand: resources.Demand) -> tuple[resources.GpuId, ...]:
    """Return the session's names of its GPUs: the names in ``CUDA_VISIBLE_DEVICES``, or else their indices."""
    count = -(-dict(demand).get("GPU", 0) // resources.UNIT)
    names = list_visible_gpus()
    return tuple(range(count)) if names is None else tuple(names[:count])


def check_gpus(num_gpus: float | None) -> None:
    """Raise ValueError if a user asks for more GPUs than ``CUDA_VISIBLE_DEVICES`` leaves to this process."""
    names = list_visible_gpus()
    if num_gpus is not None and names is not None and num_gpus > len(names):
        raise ValueError(
            f"num_gpus={num_gpus!r} is more than CUDA_VISIBLE_DEVICES={os.environ['CUDA_VISIBLE_DEVICES']!r} leaves "
            f"to this process: {len(names)}. Ask for at most {len(names)}, or change the variable."
        )


def count_gpus() -> int:
    """Return how many NVIDIA GPUs this process may use, without initializing them."""
    names = list_visible_gpus()
    if names is not None:
        return len(names)
    try:
        return len(os.listdir("/proc/driver/nvidia/gpus"))
    except OSError:  # NVIDIA's driver is not installed
        return 0


def build_demand(
    num_cpus: float | None,
    num_gpus: float | None,
    custom: Mapping[str, float] | None,
    memory: float | None = None,
    *,
    store: float | None = None,
) -> resources.Demand:
    """Return a session's resources. An amount of None stands for the machine's. `store` is the memory for large
    values."""
    amounts: dict[str, float] = {f"node:{ADDRESS}": 1, "node:__internal_head__": 1, **(custom or {})}
    amounts["object_store_memory"] = choose_store_bytes() if store is None else store
    amounts["memory"] = count_memory() if memory is None else memory
    amounts["CPU"] = count_cpus() if num_cpus is None else num_cpus
    amounts["GPU"] = count_gpus() if num_gpus is None else num_gpus
    return resources.parse_demand(amounts)


def explain_infeasible(what: str, shape: resources.Shape, total: Mapping[str, float]) -> str:
    """Return the message for a request that can never fit."""
    asked = resources.format_demand(shape.demand)
    if shape.group_id:
        return (
            f"{what} asks for {asked}, but no bundle of its placement group is that large. Make a bundle larger, "
            "or ask for less."
        )
    have = format_resources(total)
    short = [name for name, units in shape.demand if units > total.get(name, 0) * resources.UNIT]
    return (
        f"{what} asks for {asked}, but this session has {have} in all. Ask for less, or start with "
        f"{write_init_call(short)}."
    )


def explain_infeasible_bundles(
    bundles: Sequence[resources.Demand], have: str, total: Mapping[str, float]
) -> exceptions.InfeasibleResourcesError:
    """Return the error for a placement group that is larger than the session; `have` is the session's resources as
    text."""
    asked = " + ".join(resources.format_demand(bundle) for bundle in bundles)
    wanted: Counter[str] = Counter()
    for bundle in bundles:
        wanted.update(dict(bundle))
    short = [name for name, units in wanted.items() if units > total.get(name, 0) * resources.UNIT]
    return exceptions.InfeasibleResourcesError(
        f"A placement group asks for {asked}, but this session has {have} in all. Ask for less, or start with more: "
        f"{write_init_call(short or list(wanted))}."
    )


def format_resources(total: Mapping[str, float]) -> str:
    """Return resources in readable form, without internal ones."""
    return resources.format_demand(resources.parse_demand(hide_internal(total)))


def hide_internal(total: Mapping[str, float]) -> dict[str, float]:
    """Return resources for a message, without internal ones: nodes, and the store's memory."""
    return {name: amount for name, amount in total.items() if not name.startswith(("node:", "object_store_memory"))}


INIT_KEYWORDS: Mapping[str, str] = {
    "CPU": "num_cpus",
    "GPU": "num_gpus",
    "memory": "_memory",
    "object_store_memory": "object_store_memory",
}
"""Resources with their own keywords of `hocket.init`, which its `resources` must not name."""


def write_init_call(short: Collection[str]) -> str:
    """Return the call that opens a session with more of some resources."""
    keywords = [f"{INIT_KEYWORDS[name]}=..." for name in short if name in INIT_KEYWORDS]
    custom = ", ".join(f"{name!r}: ..." for name in short if name not in INIT_KEYWORDS)
    return f"hocket.init({', '.join([*keywords, *([f'resources={{{custom}}}'] if custom else [])])})"


def check_bundles(
    pool: resources.Pool, bundles: Sequence[resources.Demand], strategy: str, total: Mapping[str, float]
) -> None:
    """Raise if the bundles can never be reserved together on this one node."""
    empty = resources.Pool.build(tuple(pool.total.items()))
    if not resources.all_fit(empty, tuple(bundles)):
        raise explain_infeasible_bundles(bundles, format_resources(total), total)
    if strategy == "STRICT_SPREAD" and len(bundles) > 1:
        raise exceptions.InfeasibleResourcesError(
            f"A placement group with strategy STRICT_SPREAD asks for {len(bundles)} nodes, but this session has 1. Use "
            "strategy='SPREAD' or 'PACK'."
        )


def describe_group(group: records.GroupRecord, node_id: str) -> dict[str, object]:
    """Return a placement group of this machine with Ray's keys."""
    return {
        "placement_group_id": f"{group.id:016x}",
        "name": group.name,
        "bundles": {
            index: {name: units / resources.UNIT for name, units in bundle}
            for index, bundle in enumerate(group.bundles)
        },
        "bundles_to_node_id": dict.fromkeys(range(len(group.bundles)), node_id if group.pools else ""),
        "strategy": group.strategy,
        "state": "REMOVED" if group.removed else "CREATED" if group.pools else "PENDING",
    }


def describe_node(node_id: str, total: Mapping[str, float], labels: Mapping[str, str]) -> dict[str, object]:
    """Return this machine with Ray's keys."""
    return {
        "NodeID": node_id,
        "Alive": True,
        "NodeManagerAddress": ADDRESS,
        "NodeManagerHostname": socket.gethostname(),
        "Resources": dict(total),
        "Labels": {"ray.io/node-id": node_id, **labels},
    }
