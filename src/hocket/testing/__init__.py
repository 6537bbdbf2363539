"""For those who test an engine, or a program that uses Hocket: contract suites, fault injection and a check for
leftovers. Needs pytest."""

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
"""Which module has what. It is imported when it is asked for: the programs that tests run in workers need no pytest."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
