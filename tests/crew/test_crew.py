"""The loop around a policy, with real actors; and the wait below it."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import hocket
from hocket import exceptions
from hocket.core import actor, api
from hocket.crew import contract, crew, wait_loop

pytestmark = pytest.mark.timeout(60)


class Worker:
    def add(self, value: int) -> int:
        return value + 1

    def split(self) -> tuple[str, str]:
        return "kept", "told"

    def fail(self) -> None:
        raise ValueError("on purpose")

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def get_pid(self) -> int:
        return os.getpid()

    def touch(self, path: Path) -> None:
        path.touch()

    def hang(self) -> None:
        threading.Event().wait()


def build() -> actor.ActorHandle:
    handle: actor.ActorHandle = api.remote(num_cpus=0)(Worker).remote()
    return handle


def wait_for_end(pid: int) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        assert not psutil.wait_procs([psutil.Process(pid)], timeout=20)[1]


class Script:
    """A policy that answers events as a test says, and notes them."""

    def __init__(
        self, first: list[contract.Action], answer: Callable[[Any], list[contract.Action]], count: int
    ) -> None:
        self._first, self._answer, self._count = first, answer, count
        self.heard: list[Any] = []
        self.due: float | None = None

    @property
    def is_over(self) -> bool:
        return len(self.heard) >= self._count

    def handle(self, event: Any, now: float) -> Iterator[contract.Action]:
        if isinstance(event, contract.TurnBegan):
            yield from self._first
            self._first = []
        elif not isinstance(event, contract.TurnEnded):
            self.heard.append(event)
            yield from self._answer(event)

    def find_due(self, now: float) -> float | None:
        return self.due


def play(first: list[contract.Action], count: int, answer: Callable[[Any], list[contract.Action]] | None = None) -> Any:
    policy = Script(first, answer or (lambda event: []), count)
    team = crew.Crew(policy)
    try:
        team.run()
    finally:
        team.close()
    return policy.heard


def test_what_calls_return_is_told_and_answered(any_session: hocket.SessionContext) -> None:
    def count_up(event: contract.Answered) -> list[contract.Action]:
        return [contract.Call("one", "add", (event.value,), about="add")]

    heard = play([contract.Start("one", build), contract.Call("one", "add", (0,), about="add")], 5, count_up)
    assert [event.value for event in heard] == [1, 2, 3, 4, 5]
    assert {(event.member, event.about) for event in heard} == {("one", "add")}


def test_the_last_of_several_values_is_told_and_the_others_stay(any_session: hocket.SessionContext) -> None:
    (event,) = play([contract.Start(7, build), contract.Call(7, "split", about=("any", "thing"), num_returns=2)], 1)
    assert (event.member, event.about, event.value) == (7, ("any", "thing"), "told")
    assert [api.get(ref) for ref in event.kept] == ["kept"]


def test_many_members_are_heard_in_one_turn(any_session: hocket.SessionContext) -> None:
    first: list[contract.Action] = []
    for member in range(12):
        first += [contract.Start(member, build), contract.Call(member, "add", (member,), about="add")]
    heard = play(first, 12)
    assert sorted((event.member, event.value) for event in heard) == [(member, member + 1) for member in range(12)]


def test_a_call_that_raises_leaves_its_actor(any_session: hocket.SessionContext) -> None:
    def go_on(event: Any) -> list[contract.Action]:
        return [contract.Call("one", "add", (1,), about="add")] if isinstance(event, contract.Failed) else []

    failed, answered = play([contract.Start("one", build), contract.Call("one", "fail", about="fail")], 2, go_on)
    assert isinstance(failed.error, ValueError), "it is also what was raised"
    assert answered.value == 2


def test_a_loss_is_told_once_whatever_was_asked(session: hocket.SessionContext) -> None:
    calls: list[contract.Action] = [contract.Call("one", "die", about="die")]
    calls += [contract.Call("one", "add", (n,), about=n) for n in range(5)]
    others: list[contract.Action] = [contract.Start("two", build)]

    def ask_the_other(event: Any) -> list[contract.Action]:
        return [contract.Call("two", "add", (1,), about="after")] if isinstance(event, contract.Lost) else []

    heard = play([contract.Start("one", build), *others, *calls], 2, ask_the_other)
    assert [type(event) for event in heard] == [contract.Lost, contract.Answered]
    assert isinstance(heard[0].error, exceptions.ActorDiedError)
    assert heard[1].member == "two"


def test_nobody_waits_for_a_call_about_nothing(any_session: hocket.SessionContext, tmp_path: Path) -> None:
    first: list[contract.Action] = [contract.Start("one", build), contract.Call("one", "touch", (tmp_path / "mark",))]
    (event,) = play([*first, contract.Call("one", "add", (0,), about="add")], 1)
    assert event.about == "add"
    assert (tmp_path / "mark").exists()


def test_an_actor_without_a_place_is_told_of(any_session: hocket.SessionContext) -> None:
    def build_large() -> actor.ActorHandle:
        handle: actor.ActorHandle = api.remote(resources={"moon": 1})(Worker).remote()
        return handle

    large: list[contract.Action] = [
        contract.Start("large", build_large),
        contract.Call("large", "add", (0,), about="add"),
    ]
    first: list[contract.Action] = [*large, contract.Start("one", build)]
    heard = play([*first, contract.Call("one", "add", (0,), about="add")], 2)
    assert [type(event) for event in heard] == [contract.Unplaceable, contract.Answered]
    assert isinstance(heard[0].error, exceptions.InfeasibleResourcesError)


def test_a_stopped_actor_is_not_heard_of_and_ends(session: hocket.SessionContext) -> None:
    pids: list[int] = []

    def stop(event: Any) -> list[contract.Action]:
        if event.about != "pid":
            return []
        pids.append(event.value)
        return [
            contract.Call("one", "hang", about="hang"),
            contract.Stop("one"),
            contract.Start("two", build),
            contract.Call("two", "add", (0,), about="add"),
        ]

    heard = play([contract.Start("one", build), contract.Call("one", "get_pid", about="pid")], 2, stop)
    assert [event.about for event in heard] == ["pid", "add"]
    wait_for_end(pids[0])


def test_close_ends_all_whatever_a_policy_raises(session: hocket.SessionContext) -> None:
    pids: list[int] = []

    def refuse(event: Any) -> list[contract.Action]:
        pids.append(event.value)
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        play([contract.Start("one", build), contract.Call("one", "get_pid", about="pid")], 9, refuse)
    wait_for_end(pids[0])


def test_the_policys_moment_ends_a_wait(session: hocket.SessionContext) -> None:
    policy = Script([contract.Start("one", build), contract.Call("one", "hang", about="hang")], lambda event: [], 1)
    policy.due = 7.0
    team = crew.Crew(policy, clock=lambda: 7.0)
    try:
        assert team.turn()
    finally:
        team.close()
    assert policy.heard == []


# --- the wait below ---------------------------------------------------------------------------------------------------


def test_what_is_forgotten_or_aside_is_not_waited_for(session: hocket.SessionContext) -> None:
    loop = wait_loop.WaitLoop()
    served: list[Any] = []
    handle = build()
    loop.add(handle.hang.remote(), served.append, owner="one")
    loop.add(handle.hang.remote(), served.append, is_awaited=False)
    are_over = [loop.is_over]
    loop.forget("one")
    are_over.append(loop.is_over)
    ref = api.put("there")
    loop.add(ref, served.append)
    assert not loop.wait(None)
    assert served == [ref]
    assert [*are_over, loop.is_over] == [False, True, True]
    api.kill(handle)


def test_who_was_served_waits_behind_the_others(any_session: hocket.SessionContext) -> None:
    loop = wait_loop.WaitLoop()
    served: list[Any] = []
    refs = [api.put(number) for number in range(3)]

    def serve(ref: Any) -> None:
        served.append(refs.index(ref))
        loop.add(ref, serve)

    for ref in refs:
        loop.add(ref, serve)
    for _ in range(6):
        loop.wait(None)
    assert served == [0, 1, 2, 0, 1, 2]


def test_many_are_served_at_once_but_not_one_forgotten_meanwhile(any_session: hocket.SessionContext) -> None:
    loop = wait_loop.WaitLoop()
    served: list[Any] = []

    def serve(ref: Any) -> None:
        served.append(ref)
        loop.forget("others")

    for number in range(20):
        loop.add(api.put(number), serve, owner="one" if number == 0 else "others")
    loop.wait(None)
    assert len(served) == 1
    assert loop.is_over


def test_the_wait_tells_that_another_source_is_there_or_none(session: hocket.SessionContext) -> None:
    loop = wait_loop.WaitLoop()
    served: list[Any] = []
    handle = build()
    hanging = handle.hang.remote()
    loop.add(hanging, served.append)
    assert loop.wait(0.0), "nothing is"
    assert loop.wait(None, [api.put("other")])
    assert served == []
    api.kill(handle)
    assert not loop.wait(None)
    assert served == [hanging]
