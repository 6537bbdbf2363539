"""For those who test an engine, or a program that uses Hocket: contract suites and a check for leftovers. Needs pytest."""

from hocket.testing.contract import EngineContract as EngineContract
from hocket.testing.contract import ProcessEngineContract as ProcessEngineContract
from hocket.testing.leftovers import Leftovers as Leftovers
