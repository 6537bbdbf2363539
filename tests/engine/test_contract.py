"""The contract suite, on every engine."""

from hocket.testing import EngineContract, ProcessEngineContract


class TestInProcess(EngineContract):
    engine = "inprocess"


class TestLocal(ProcessEngineContract):
    engine = "local"
