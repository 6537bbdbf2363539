"""The contract of engines: tests that every engine must pass, through the public API.

To test an engine, inherit and name the engine::

    class TestMine(EngineContract):
        engine = "mine"

`ProcessEngineContract` adds tests for engines with processes of their own: parallelism, time-outs, interrupts, deaths.
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
    """The contract of every engine."""

    engine = ""
    cleans_up = True
    """Whether a closed session leaves nothing behind in this process; False if a system below keeps running."""

    @pytest.fixture(autouse=True)
    def open_session(self, request: pytest.FixtureRequest) -> Iterator[None]:
        """Open a session for each test, skip it if the engine lacks an ability, and check that nothing is left."""
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
    """The contract of engines with processes of their own, on top of `EngineContract`."""
