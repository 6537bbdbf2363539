"""Tools to test engines, and programs that use Hocket: contract suites, fault injection, a check for leftovers.

Needs pytest."""

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from hocket.testing.contract import EngineContract as EngineContract
    from hocket.testing.contract import ProcessEngineContract as ProcessEngineContract
    from hocket.testing.faults import InjectedFaultError as InjectedFaultError
    from hocket.testing.faults import fail_at as fail_at
    from hocket.testing.leftovers import Leftovers as Leftovers

_HOMES: Final = {
    "EngineContract": "contract",
    "ProcessEngineContract": "contract",
    "InjectedFaultError": "faults",
    "fail_at": "faults",
    "Leftovers": "leftovers",
}
"""The module of each name, imported on use, because the programs that tests run in workers need no pytest."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
