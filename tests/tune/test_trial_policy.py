"""When trials start, stop and time out, on a clock that the test moves: no engine, no process."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any

import pytest

from hocket import exceptions
from hocket.crew import contract
from hocket.tune import encoding, errors
from hocket.tune import trial as trials
from hocket.tune.run import hosts
from hocket.tune.worker import orders


class Search:
    """Gives trials out, and notes what it is told."""

    def __init__(self, *held: Mapping[str, float]) -> None:
        self._left = [self._make(number, one) for number, one in enumerate(held)]
        self.told: list[Any] = []
        self.ending = ""
        self.has_stopper = False
        self.answers: list[orders.Order | None] = []

    @staticmethod
    def _make(number: int, held: Mapping[str, float]) -> Any:
        trial = types.SimpleNamespace(trial_id=f"t{number}")
        return types.SimpleNamespace(number=number, resources=held, trial=trial, waits=True)

    def choose(self) -> Any:
        return self._left.pop(0) if self._left and not self.ending else None

    def begin(self, live: Any) -> Any:
        self.told.append(("begin", live.number))
        return {"number": live.number}

    def handle(self, live: Any, event: Any) -> orders.Order | None:
        self.told.append((type(event).__name__, live.number))
        return self.answers.pop(0) if isinstance(event, orders.Report) else None

    def fail(self, live: Any, error: BaseException, traceback: str = "") -> None:
        self.told.append(("fail", live.number, error))

    def finish(self, live: Any, status: trials.Status, reason: str = "") -> None:
        self.told.append(("finish", live.number, status))

    def end(self, reason: str) -> None:
        self.ending = self.ending or reason

    def ask_stopper(self) -> None: ...

    def step(self, name: str) -> None: ...


def make_policy(search: Search, **options: Any) -> hosts.TrialPolicy:
    chosen = {"reuses": True, "most": None, "deadline": None, "timeout_s": None, **options}
    given: Any = search
    return hosts.TrialPolicy(given, lambda held: pytest.fail("no process"), {"CPU": 2.0}, **chosen)


def describe(actions: list[contract.Action]) -> list[tuple[object, ...]]:
    return [
        (type(action).__name__, action.member, *([action.method] if isinstance(action, contract.Call) else []))
        for action in actions
    ]


def begin_turn(policy: hosts.TrialPolicy, now: float = 0.0) -> list[tuple[object, ...]]:
    return describe(list(policy.handle(contract.TurnBegan(), now)))


def end_turn(policy: hosts.TrialPolicy, now: float) -> list[tuple[object, ...]]:
    return describe(list(policy.handle(contract.TurnEnded(), now)))


def answer(policy: hosts.TrialPolicy, member: int, *events: orders.Event, now: float = 0.0) -> list[tuple[object, ...]]:
    rows = [orders.pack(event) for event in events]
    return describe(list(policy.handle(contract.Answered(member, "events", rows), now)))


INTRODUCED = orders.Introduction()
CLEAN = orders.Ended()
BEGINS = ("Start", "Call", "Call")


def test_trials_start_while_there_is_room_and_none_overtakes_another() -> None:
    search = Search({"CPU": 1}, {"CPU": 2}, {"CPU": 1})
    policy = make_policy(search)
    assert begin_turn(policy) == [("Start", 0), ("Call", 0, "run"), ("Call", 0, "exchange")]
    assert begin_turn(policy) == [], "the second waits for room, and the third for the second"
    answer(policy, 0, INTRODUCED)
    answer(policy, 0, CLEAN)
    found = begin_turn(policy)
    assert found == [("Stop", 0), ("Start", 1), ("Call", 1, "run"), ("Call", 1, "exchange")]


def test_a_process_runs_the_next_trial_that_holds_the_same() -> None:
    policy = make_policy(Search({"CPU": 2}, {"CPU": 2}))
    begin_turn(policy)
    answer(policy, 0, INTRODUCED)
    assert answer(policy, 0, CLEAN) == []
    assert begin_turn(policy) == [("Call", 0, "run"), ("Call", 0, "exchange")]
    answer(policy, 0, CLEAN)
    assert begin_turn(policy) == [("Stop", 0)]
    assert policy.is_over


@pytest.mark.parametrize("ended", [orders.Ended(is_clean=False), orders.Ended(error=ValueError("on purpose"))])
def test_a_process_that_ended_badly_runs_no_other(ended: orders.Ended) -> None:
    policy = make_policy(Search({"CPU": 2}, {"CPU": 2}))
    begin_turn(policy)
    answer(policy, 0, INTRODUCED)
    assert answer(policy, 0, ended) == [("Stop", 0)]
    assert begin_turn(policy)[0] == ("Start", 1)


@pytest.mark.parametrize("kind", [contract.Lost, contract.Failed])
def test_a_trial_whose_process_dies_fails_alone(kind: Any) -> None:
    search = Search({"CPU": 1}, {"CPU": 1})
    policy = make_policy(search)
    begin_turn(policy)
    error = exceptions.ActorDiedError("it died")
    event = kind(0, error) if kind is contract.Lost else kind(0, "events", error)
    assert describe(list(policy.handle(event, 1.0))) == [("Stop", 0)]
    assert search.told[-1] == ("fail", 0, error)
    assert begin_turn(policy) == []
    assert not policy.is_over


def test_a_silent_trial_fails_at_its_time_and_not_while_its_process_starts() -> None:
    search = Search({"CPU": 1})
    policy = make_policy(search, timeout_s=10.0)
    begin_turn(policy)
    assert policy.find_due(0.0) is None
    assert end_turn(policy, 100.0) == []
    answer(policy, 0, INTRODUCED, now=100.0)
    assert policy.find_due(100.0) == 110.0
    assert end_turn(policy, 109.9) == []
    search.answers.append(orders.Order(orders.Action.GO_ON))
    assert answer(policy, 0, orders.Report({"a": 1}, 0.1, 0.0), now=109.9) == [("Call", 0, "exchange")]
    assert policy.find_due(109.9) == 119.9
    assert end_turn(policy, 119.9) == [("Stop", 0)]
    kind, number, error = search.told[-1]
    assert (kind, number) == ("fail", 0)
    assert isinstance(error, errors.TuneError)


def test_the_budget_ends_the_search_and_trials_have_a_grace() -> None:
    search = Search({"CPU": 1}, {"CPU": 2})
    policy = make_policy(search, deadline=50.0)
    begin_turn(policy)
    assert policy.find_due(0.0) == 50.0
    assert end_turn(policy, 49.0) == []
    assert end_turn(policy, 50.0) == []
    assert search.ending
    assert policy.find_due(50.0) == 50.0 + hosts.GRACE_SECONDS
    assert end_turn(policy, 50.0 + hosts.GRACE_SECONDS) == [("Stop", 0)]
    assert search.told[-1] == ("finish", 0, trials.Status.TERMINATED)
    assert begin_turn(policy, 56.0) == []
    assert policy.is_over


def test_no_more_than_the_most_run_at_once() -> None:
    policy = make_policy(Search({"CPU": 0}, {"CPU": 0}, {"CPU": 0}), most=2)
    assert [kind for kind, *_ in begin_turn(policy)] == [*BEGINS, *BEGINS]
    assert begin_turn(policy) == []


def test_a_trial_that_can_never_begin_raises() -> None:
    policy = make_policy(Search({"CPU": 3}))
    with pytest.raises(exceptions.InfeasibleResourcesError, match="Trial t0 needs"):
        begin_turn(policy)


def test_a_configuration_that_cannot_travel_fails_its_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    search = Search({"CPU": 1})
    monkeypatch.setattr(search, "begin", lambda live: lambda: (yield))
    monkeypatch.setattr(encoding, "try_pickle", lambda value: "it is alive")
    policy = make_policy(search)
    assert begin_turn(policy) == [("Start", 0), ("Stop", 0)]
    assert search.told[-1][:2] == ("fail", 0)
    begin_turn(policy)
    assert policy.is_over
