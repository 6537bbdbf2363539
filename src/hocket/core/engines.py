"""Which engines there are, and how each is opened."""

from __future__ import annotations

from collections.abc import Mapping

from hocket.engine import contract
from hocket.engine.inprocess import engine as inprocess_engine
from hocket.engine.local import hub
from hocket.kernel import resources


def open_engine(
    kind: str,
    node: resources.Demand,
    namespace: str,
    labels: Mapping[str, str],
    *,
    memory_limit: int | None = None,
    spill_folder: str = "",
) -> contract.Engine:
    """Open an engine by name. The last two are for engines that hold values outside of the caller's memory."""
    if kind == "ray":
        import importlib

        module = importlib.import_module("hocket.engine.ray.engine")
        return module.RayEngine(module.TemporaryConnection(node, labels), namespace=namespace, session_id="00")  # type: ignore[no-any-return]
    if kind == "inprocess":
        return inprocess_engine.InProcessEngine(node, namespace=namespace, labels=labels)
    return hub.Hub(node, namespace=namespace, labels=labels, memory_limit=memory_limit, spill_folder=spill_folder)


def name_engine(engine: contract.Engine) -> str:
    """Return the name under which an engine was opened."""
    return engine.name


def is_closable(engine: contract.Engine) -> bool:
    """Tell whether `shutdown` may close it: a worker's engine belongs to the session that it works for."""
    return engine.is_closable
