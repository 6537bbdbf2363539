"""For those who test an engine, or a program that uses Hocket: contract suites, fault injection and a check for
leftovers. Needs pytest."""

from hocket.testing.contract import EngineContract as EngineContract
from hocket.testing.contract import ProcessEngineContract as ProcessEngineContract
from hocket.testing.faults import InjectedFaultError as InjectedFaultError
from hocket.testing.faults import fail_at as fail_at
from hocket.testing.leftovers import Leftovers as Leftovers
