"""The engines by name, and functions that open them."""

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
"""The engines that `hocket.init` can open."""


def open_engine(
    kind: str,
    node: resources.Demand,
    namespace: str,
    labels: Mapping[str, str],
    *,
    memory_limit: int | None = None,
    spill_folder: str = "",
) -> contract.Engine:
    """Open an engine of this machine by name. `memory_limit` and `spill_folder` concern only engines that hold values
    outside of the caller's memory."""
    if kind == "inprocess":
        engine: contract.Engine = _load("inprocess").InProcessEngine(node, namespace=namespace, labels=labels)
        return engine
    return _get_local()(node, namespace=namespace, labels=labels, memory_limit=memory_limit, spill_folder=spill_folder)


def open_ray(**request: object) -> contract.Engine:
    """Open the engine on Ray.

    Its module is loaded by name, on use: it needs Ray, and the import of Ray takes longer than all of ours.

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
    if opened.is_attached and given:  # Ray takes an environment for all work only when a program connects
        engine.inherit(contract.Inherited(environments.format_environment(given)))
    return engine


def get_limits(kind: str) -> Mapping[str, str]:
    """Return the limits of an engine, by the name of the missing ability, without opening the engine."""
    if kind == "local":
        return _get_local().limits
    loaded = _load(kind)
    limits: Mapping[str, str] = (loaded.RayEngine if kind == "ray" else loaded.InProcessEngine).limits
    return limits


def find_place(engine: contract.Engine) -> tuple[str, str]:
    """Return the address of an engine, and the address of its dashboard, empty if it has none."""
    connection: Any = getattr(engine, "connection", None)  # only the engine on Ray has one
    return ("local", "") if connection is None else (connection.address, connection.dashboard_url)


def _get_local() -> type[driver.DriverEngine]:
    """Return the class of the engine with worker processes. Loaded by name, on use: workers have another engine."""
    found: type[driver.DriverEngine] = _load("local.driver").DriverEngine
    return found


def _load(kind: str) -> Any:
    """Return the module of an engine, imported on use."""
    return importlib.import_module(f"hocket.engine.{kind}.engine")
