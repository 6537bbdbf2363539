"""Which engines there are, and how each is opened."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hocket.core import environments
from hocket.engine import contract
from hocket.kernel import resources

if TYPE_CHECKING:
    from hocket.engine.local import driver

NAMES = ("local", "inprocess", "ray")
"""Which engines `hocket.init` can start."""


def open_engine(
    kind: str,
    node: resources.Demand,
    namespace: str,
    labels: Mapping[str, str],
    *,
    memory_limit: int | None = None,
    spill_folder: str = "",
) -> contract.Engine:
    """Open an engine of this machine by name. The last two are for engines that hold values outside of the caller's
    memory."""
    if kind == "inprocess":
        engine: contract.Engine = _load("inprocess").InProcessEngine(node, namespace=namespace, labels=labels)
        return engine
    return _get_local()(node, namespace=namespace, labels=labels, memory_limit=memory_limit, spill_folder=spill_folder)


def open_ray(**request: object) -> contract.Engine:
    """Open the engine that stands on Ray.

    Loaded by name, on use: it needs Ray, and importing that takes longer than all of ours.

    Args:
        **request: The fields of `hocket.engine.ray.connection.Request`.
    """
    connection = importlib.import_module("hocket.engine.ray.connection")
    opened = connection.connect(connection.Request(**request))
    try:
        engine: contract.Engine = _load("ray").RayEngine(
            opened, namespace=opened.namespace, session_id=os.urandom(8).hex()
        )
    except BaseException:
        opened.close()
        raise
    given: Any = request["environment"]
    if opened.is_attached and given:  # Ray takes one for all that it runs only when it is connected
        engine.inherit(contract.Inherited(environments.format_environment(given)))
    return engine


def get_limits(kind: str) -> Mapping[str, str]:
    """Return what an engine cannot do, by the name of the ability, without opening it."""
    if kind == "local":
        return _get_local().limits
    loaded = _load(kind)
    limits: Mapping[str, str] = (loaded.RayEngine if kind == "ray" else loaded.InProcessEngine).limits
    return limits


def find_place(engine: contract.Engine) -> tuple[str, str]:
    """Return where an engine runs, and the address of its dashboard; empty if it has none."""
    connection: Any = getattr(engine, "connection", None)  # only Ray's has one
    return ("local", "") if connection is None else (connection.address, connection.dashboard_url)


def _get_local() -> type[driver.DriverEngine]:
    """Return the engine that has worker processes: loaded by name, on use, because workers have another one."""
    found: type[driver.DriverEngine] = _load("local.driver").DriverEngine
    return found


def _load(kind: str) -> Any:
    """Return the module of an engine that most sessions do not use."""
    return importlib.import_module(f"hocket.engine.{kind}.engine")
