"""Which actor of a pool gets which block, on a clock that the test moves: no engine, no process."""

from __future__ import annotations

from typing import Any

import pytest

from hocket import exceptions
from hocket.crew import contract
from hocket.data import block_reads, plan, steps
from hocket.data.execution import pools

DIED = exceptions.ActorDiedError("it died")


class Room:
    """What a test says there is."""

    def __init__(self, least: int, most: int, *, spans_nodes: bool = False) -> None:
        self.shares = [pools.Share(least, most, 1.0)]
        self.now = self.shares
        self.tasks_hold_cpus, self.spans_nodes = False, spans_nodes

    def divide(self) -> list[pools.Share]:
        return self.now

    def describe(self) -> str:
        return "there is nothing left"


class Play:
    """A pool whose actors are names."""

    def __init__(self, least: int = 1, most: int = 1, *, spans_nodes: bool = False) -> None:
        self.room = Room(least, most, spans_nodes=spans_nodes)
        function: Any = None
        pool = plan.Pool(
            make=function,
            work=steps.MapRows(steps.Function(function)),
            name="Model",
            least=least,
            most=most,
            resources={},
            num_cpus=1.0,
        )
        self.policy = pools.PoolPolicy(pool, self.room, 0, lambda held: pytest.fail("no process"), 0.0)
        self.members: list[Any] = []
        self.stopped: list[Any] = []
        self.sent: dict[int, Any] = {}
        """Who has which block."""
        self.jobs: list[pools.Job] = []
        self.tell(contract.TurnBegan())

    def tell(self, event: Any, now: float = 0.0) -> None:
        for action in self.policy.handle(event, now):
            if isinstance(action, contract.Start):
                self.members.append(action.member)
            elif isinstance(action, contract.Stop):
                self.stopped.append(action.member)
            elif isinstance(action.about, pools.Job):
                self.sent[self.jobs.index(action.about)] = action.member

    def get_ready(self, at: int, now: float = 0.0) -> None:
        self.tell(contract.Answered(self.members[at], "placed", f"node {at}"), now)
        self.tell(contract.Answered(self.members[at], "made", None), now)
        self.tell(contract.TurnBegan(), now)

    def give(self, count: int) -> None:
        for _ in range(count):
            self.jobs.append(pools.Job(block_reads.Stored(None, 1, 0, 1, {}, ())))  # type: ignore[arg-type]
            self.tell(pools.Given(self.jobs[-1]))

    def finish(self, number: int) -> None:
        self.tell(contract.Answered(self.sent[number], self.jobs[number], "size", ("ref",)))
        self.tell(contract.TurnBegan())


def test_blocks_go_to_whoever_has_least_to_do() -> None:
    play = Play(2, 2)
    play.give(4)
    assert play.sent == {}
    play.get_ready(0)
    assert play.sent == {}, "the other one is waited for"
    play.get_ready(1)
    first, second = play.members
    assert [play.sent[number] for number in range(4)] == [first, second, first, second]
    play.finish(0)
    assert play.jobs[0].ref == "ref"


def test_those_that_are_there_begin_when_another_takes_too_long() -> None:
    play = Play(2, 2)
    play.give(1)
    play.get_ready(0, now=1.0)
    assert play.policy.find_due(1.0) == 1.0 + pools.GATHER_SECONDS
    play.tell(contract.TurnBegan(), 1.0 + pools.GATHER_SECONDS)
    assert play.sent == {0: play.members[0]}


def test_a_pool_grows_while_all_are_busy_up_to_its_most() -> None:
    play = Play(1, 2)
    play.get_ready(0)
    play.give(2)
    assert len(play.members) == 1
    play.give(1)
    assert len(play.members) == 2
    play.get_ready(1)
    play.give(9)
    assert len(play.members) == 2


def test_the_blocks_of_a_dead_actor_go_to_another() -> None:
    play = Play(2, 2)
    play.get_ready(0)
    play.get_ready(1)
    play.give(4)
    dead, other = play.members
    play.finish(1)
    play.finish(3)
    play.tell(contract.Lost(dead, DIED))
    assert play.stopped == [dead]
    play.tell(contract.TurnBegan())
    assert play.sent[0] is play.sent[2] is other
    assert len(play.members) == 3, "and it is replaced"
    assert [job.deaths for job in play.jobs] == [1, 0, 0, 0]


def test_a_block_that_ends_several_is_an_error() -> None:
    play = Play()
    play.get_ready(0)
    play.give(1)
    for count in range(pools.MOST_RESTARTS + 1):
        assert play.jobs[0].error is None
        play.tell(contract.Lost(play.members[-1], DIED))
        play.tell(contract.TurnBegan())
        play.get_ready(count + 1)
    assert isinstance(play.jobs[0].error, exceptions.ActorDiedError)
    assert "lost 4 actors" in str(play.jobs[0].error)


def test_actors_that_die_before_they_are_made_are_an_error_in_the_end() -> None:
    play = Play()
    for _ in range(pools.MOST_RESTARTS):
        play.tell(contract.Lost(play.members[-1], DIED))
        play.tell(contract.TurnBegan())
    with pytest.raises(exceptions.ActorDiedError, match="before they were ready to work"):
        play.tell(contract.Lost(play.members[-1], DIED))


def test_a_pool_without_a_place_gives_up_at_its_time() -> None:
    play = Play()
    play.policy.begin_wait(100.0)
    due = play.policy.find_due(100.0)
    assert due == 100.0 + pools.ROOM_SECONDS
    play.tell(contract.TurnEnded(), due - 0.1)
    with pytest.raises(exceptions.ActorUnschedulableError, match="there is nothing left"):
        play.tell(contract.TurnEnded(), due)


def test_a_pool_makes_do_with_those_that_have_a_place() -> None:
    play = Play(2, 2)
    play.get_ready(0)
    error = exceptions.InfeasibleResourcesError("no room")
    play.tell(contract.Unplaceable(play.members[1], error))
    play.give(1)
    assert play.sent == {0: play.members[0]}
    assert play.policy.most_blocks == plan.BLOCKS_PER_ACTOR
    alone = Play()
    with pytest.raises(exceptions.InfeasibleResourcesError, match="no room"):
        alone.tell(contract.Unplaceable(alone.members[0], error))


def test_an_error_of_a_block_is_its_own_and_one_of_the_making_the_pools() -> None:
    play = Play()
    play.get_ready(0)
    play.give(1)
    error = exceptions.HocketError("on purpose")
    play.tell(contract.Failed(play.members[0], play.jobs[0], error))
    assert play.jobs[0].error is error
    play = Play()
    with pytest.raises(exceptions.HocketError, match="on purpose"):
        play.tell(contract.Failed(play.members[0], "made", error))


def test_what_was_made_on_a_lost_node_is_made_again() -> None:
    play = Play(2, 2, spans_nodes=True)
    play.get_ready(0)
    play.get_ready(1)
    play.give(2)
    play.finish(0)
    play.room.now = [pools.Share(1, 1, 1.0)]
    play.tell(contract.Lost(play.members[0], DIED))
    play.tell(contract.TurnBegan())
    assert play.jobs[0].size is None
    assert play.sent == {0: play.members[1], 1: play.members[1]}
    assert len(play.members) == 2, "the share is smaller now"


def test_superfluous_are_those_that_are_not_ready_and_are_chosen_once() -> None:
    play = Play(3, 3, spans_nodes=True)
    play.get_ready(1)
    share = pools.Share(1, 1, 1.0)
    chosen = play.policy.choose_superfluous(share, {"node 1"})
    assert chosen == [play.members[0], play.members[2]]
    assert play.policy.choose_superfluous(share, {"node 1"}) == []
    assert play.policy.choose_superfluous(pools.Share(1, 3, 0.0), {"node 1"}) == [play.members[1]]
    play.tell(contract.Lost(chosen[0], DIED))
    assert play.stopped == [chosen[0]]
