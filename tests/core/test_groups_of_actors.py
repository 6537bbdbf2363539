"""A placement group that an actor has made ends with the actor, unless it is detached."""

from __future__ import annotations

from typing import Any

import pytest

import hocket
from hocket.testing.suites import programs
from hocket.util import placement_group, placement_group_table, remove_placement_group
from hocket.util.scheduling_strategies import PlacementGroupSchedulingStrategy

pytestmark = [pytest.mark.timeout(60), pytest.mark.usefixtures("session")]


class Maker:
    """Reserves one CPU, and starts an actor there."""

    def make(self, lifetime: str | None) -> Any:
        self.group = placement_group([{"CPU": 1}], lifetime=lifetime)
        assert self.group.wait(30)
        strategy = PlacementGroupSchedulingStrategy(self.group)
        self.inner = hocket.remote(scheduling_strategy=strategy)(programs.Counter).remote()
        hocket.get(self.inner.add.remote())
        return self.group


@pytest.mark.parametrize("lifetime", [None, "detached"])
@pytest.mark.about_local("on Ray its own groups do that")
def test_a_killed_actor_gives_its_group_back(lifetime: str | None) -> None:
    maker = hocket.remote(num_cpus=0)(Maker).remote()
    group = hocket.get(maker.make.remote(lifetime))
    hocket.kill(maker)
    if lifetime is None:
        programs.wait_until(lambda: hocket.available_resources() == hocket.cluster_resources())
    else:
        with pytest.raises(hocket.exceptions.ActorDiedError):
            hocket.get(maker.make.remote(None))
        states = [entry["state"] for entry in placement_group_table().values()]
        assert "CREATED" in states
        remove_placement_group(group)
