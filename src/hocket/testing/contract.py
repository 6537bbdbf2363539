"""The judge of an engine: tests that every engine must pass, through the public API.

To test an engine, inherit and say how to open it::

    class TestMine(EngineContract):
        engine = "mine"

`ProcessEngineContract` adds what only engines with processes of their own can do: parallelism, time-outs, interrupts,
deaths.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hocket.core import session
from hocket.testing import leftovers
from hocket.testing.suites import (
    actors,
    asynchronous,
    calls,
    deaths,
    direct_calls,
    ends,
    errors,
    generators,
    process_actors,
    processes,
    programs,
    resources,
    tasks,
    values,
)


class EngineContract(
    tasks.TaskContract,
    values.ValueContract,
    calls.CallContract,
    calls.CountedGeneratorContract,
    actors.ActorContract,
    actors.ActorLifeContract,
    asynchronous.AsyncContract,
    generators.GeneratorContract,
    ends.EndsContract,
    errors.ErrorContract,
    resources.ResourceContract,
    resources.EnvironmentContract,
):
    """The promises of every engine."""

    engine = ""
    cleans_up = True
    """Whether a closed session leaves nothing in this process and of it; not so where the system below goes on."""

    @pytest.fixture(autouse=True)
    def open_session(self, request: pytest.FixtureRequest) -> Iterator[None]:
        """Open a session for each test, and check that it leaves nothing; skip what the engine says that it cannot
        do."""
        before = leftovers.Leftovers.look()
        with session.init(num_cpus=programs.CPUS, resources={"camera": 1}, engine=self.engine):
            limits = session.get_engine().limits
            for marker in request.node.iter_markers("needs"):
                for ability in marker.args:
                    if ability in limits:
                        pytest.skip(f"{self.engine}: {limits[ability]}")
            yield
        if self.cleans_up:
            assert before.list_new() == []


class ProcessEngineContract(
    processes.ProcessContract,
    process_actors.ProcessActorContract,
    deaths.DeathContract,
    calls.ProcessCallContract,
    ends.ProcessEndsContract,
    direct_calls.DirectCallContract,
    EngineContract,
):
    """The promises of engines with processes of their own, beside those of `EngineContract`."""
