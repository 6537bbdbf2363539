"""Every message meets everyone whom it may meet: the local engine's driver and workers under all orders of events in a
bound, and under random ones beyond it.

A *scenario* is a program on the `stage`, small enough that all its schedules with one deviation from the usual order
can be tried, or with two, a death of a worker at any moment included; ``HOCKET_TEST_SCHEDULES=5000`` tries two of each,
and so many random schedules with any number. In each the program must come to its end with the right results, and leave
nothing behind. ``HOCKET_TEST_SEED=17`` tries one random schedule of each again.
"""

from __future__ import annotations

import functools
import os
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hocket import exceptions
from hocket.engine import contract
from hocket.engine.local import direct_channels, flow, messages
from hocket.engine.local.worker import answers
from hocket.kernel import leases, records, resources
from hocket.kernel.records import ActorState
from tests.engine import message_states, stage
from tests.engine.stage import FUNCTION, Ask, Get, Item, Leave, Part, Player, Stage, Until, Watch

SCHEDULES = int(os.environ.get("HOCKET_TEST_SCHEDULES", "10"))
FULL = 5000
MOST_STEPS = 4000
"""What does not end in so many takes no end. Most need fewer than a hundred; one whose every move is drawn by lot may
need a thousand, as a worker's row is taken back as often as the lot says so, and not after a time."""

KEPT = ("_answers", "_deadlocks", "_ready", "_expected", "_watched", "_promised", "_private", "_receipts", "_arrived")
"""What a worker keeps for something that it waits for, or holds, and for nothing else. Two sets are not here: the
numbers of objects that were freed before they came (`_wanted`), and of calls that were cancelled too late
(`cancelled`), stay until the process ends."""

SEEN: Counter[tuple[int, str]] = Counter()
"""Over all scenarios: how often each message met what it was for in each state."""

WALKED: Counter[str] = Counter()
"""How many schedules of each scenario were walked."""


# --- streams ----------------------------------------------------------------------------------------------------------


def read_stream(stage: Stage, stream: contract.AnyRef, most: int = 100) -> Part:
    found = []
    for index in range(most):
        item = stage.driver.objects.take_item(stream, index)
        if (yield Watch(item)):
            break
        found.append((yield Get(item)))
    return found


def count(player: Player, number: int, fails: bool = False) -> Part:
    attempt = (player.work.extra or {}).get("attempt", 0) if player.work is not None else 0
    for item in range(number):
        if fails and item == number - 1 and not attempt:
            raise ArithmeticError("once")
        yield Item(item)


PARTS: dict[str, Callable[..., Part]] = {"count": count}


def part(function: Callable[..., Part]) -> Callable[..., Part]:
    PARTS[function.__name__] = function
    return function


@part
def Actor(player: Player) -> Part:  # noqa: N802 (an actor's constructor has its name)
    yield None


STREAM: dict[str, Any] = {"num_returns": records.STREAMING}


def stream_of_task(stage: Stage, limit: int = 2) -> Part:
    stream = stage.submit("count", 4, max_retries=-1, backpressure=limit, **STREAM)
    assert (yield from read_stream(stage, stream)) == [0, 1, 2, 3]


def stream_bounded_by_bytes(stage: Stage) -> Part:
    yield from stream_of_task(stage, limit=0)


def stream_of_actor(stage: Stage) -> Part:
    actor = stage.create(max_restarts=-1)
    stream = stage.call(actor, "count", 3, max_retries=-1, backpressure=1, **STREAM)
    assert (yield from read_stream(stage, stream)) == [0, 1, 2]


def stream_tried_again_after_an_exception(stage: Stage) -> Part:
    stream = stage.submit("count", 4, True, max_retries=-1, retry_exceptions=True, backpressure=1, **STREAM)
    assert (yield from read_stream(stage, stream)) == [0, 1, 2, 3]


def stream_that_is_dropped(stage: Stage) -> Part:
    stream = stage.submit("count", 100, max_retries=-1, backpressure=2, **STREAM)
    assert (yield from read_stream(stage, stream, 2)) == [0, 1]


def stream_that_is_cancelled(stage: Stage) -> Part:
    stream = stage.submit("count", 100, max_retries=-1, backpressure=1, **STREAM)
    assert (yield from read_stream(stage, stream, 2)) == [0, 1]
    for _ in range(2):
        stage.driver.tasks.cancel(stream, force=False, recursive=False)
        yield None
    yield Watch(stage.driver.objects.take_item(stream, 2))
    error = yield Get(stream)
    assert isinstance(error, exceptions.TaskCancelledError)


def stream_whose_end_is_awaited(stage: Stage) -> Part:
    stream = stage.submit("count", 5, max_retries=-1, **STREAM)
    assert (yield from read_stream(stage, stream, 1)) == [0]
    stage.driver.objects.lift_bound(stream)
    assert (yield Get(stream)) is None


@part
def read_in_task(player: Player, limit: int, lifts: bool) -> Part:
    options = records.TaskOptions(name="count", num_returns=records.STREAMING, max_retries=-1, backpressure=limit)
    (stream,) = player.engine.tasks.submit_task(FUNCTION, (3,), {}, options)
    found: list[object] = []
    index = 0
    while True:
        item = player.engine.objects.take_item(stream, index)
        if lifts and index == 1:
            player.engine.objects.lift_bound(stream)
            assert (yield Get(stream)) is None
        index += 1
        value = yield Get(item)
        if index > 3:
            return found
        found.append(value)


def stream_read_by_a_task(stage: Stage) -> Part:
    ref = stage.submit("read_in_task", 1, False, max_retries=-1)
    assert (yield Get(ref)) == [0, 1, 2]


def stream_whose_end_a_task_awaits(stage: Stage) -> Part:
    ref = stage.submit("read_in_task", 0, True, max_retries=-1)
    assert (yield Get(ref)) == [0, 1, 2]


# --- direct calls -----------------------------------------------------------------------------------------------------

DIRECT = records.TaskOptions(name="answer", is_direct=True)


@part
def answer(player: Player, value: object = None) -> Part:
    note(player, value)
    yield None
    return value


def note(player: Player, value: object) -> None:
    """Remember the order of an actor's calls, where its calls find it."""
    vars(player).setdefault("notes", []).append(value)


def list_notes(stage: Stage) -> list[object]:
    """Return what the calls of the actor, which is the only one, have noted."""
    return [
        one for player in stage.players.values() if player.engine.duty.actor_id for one in vars(player).get("notes", ())
    ]


@part
def call_often(player: Player, boxes: list[Any], late: list[Any], number: int) -> Part:
    """Call an actor, directly as soon as that may be, and once in between through the driver, with a reference."""
    engine, (actor,) = player.engine, boxes
    refs = []
    for position in range(number):
        options = records.TaskOptions(name="answer", is_direct=True)
        argument = [position, *late] if position == 2 else [position]
        refs += engine.tasks.submit_call(actor, "answer", (argument,), {}, options)
        yield None
    found = []
    for ref in refs:
        value = yield Get(ref)
        found.append(value if isinstance(value, Exception) else value[0])
    return found


def check_answers(found: Any, number: int, *, may_lose: bool) -> None:
    values = [value for value in found if not isinstance(value, Exception)]
    assert values == sorted(values)
    if not may_lose:
        assert found == list(range(number))
    for error in found:
        assert not isinstance(error, Exception) or type(error) is exceptions.ActorDiedError, error


def calls_of_an_actor(stage: Stage, number: int = 5) -> Part:
    """The caller is a task that is tried again, so that its calls come twice at most; the actor may die."""
    actor = stage.create()
    late = stage.submit("answer", "late", max_retries=-1)
    ref = stage.submit("call_often", [actor], [late], number, max_retries=-1)
    found = yield Get(ref)
    check_answers(found, number, may_lose=stage.given_deaths > stage.deaths)
    notes = [one[0] for one in list_notes(stage) if isinstance(one, list)]
    assert len(notes) > number or notes == sorted(notes), f"calls of one caller ran in the order {notes}"


def calls_of_an_actor_that_is_never_born(stage: Stage) -> Part:
    yield from calls_of_an_actor(stage, 3)


@part
def promise(player: Player, boxes: list[Any], number: int) -> Part:
    """Return references on direct calls that are not answered."""
    options = records.TaskOptions(name="answer", is_direct=True)
    refs = []
    for position in range(number):
        refs += player.engine.tasks.submit_call(boxes[0], "answer", (position,), {}, options)
        yield None
    return refs


def promises(stage: Stage) -> Part:
    actor = stage.create()
    had_deaths = stage.deaths
    refs = yield Get(stage.submit("promise", [actor], 4))
    if isinstance(refs, Exception):
        assert stage.deaths < had_deaths
        return
    for position, ref in enumerate(refs):
        value = yield Get(ref)
        if isinstance(value, Exception):
            assert stage.deaths < had_deaths, value
        else:
            assert value == position


@part
def give_reference(player: Player) -> Part:
    yield None
    return [player.engine.objects.put("inside")]


@part
def call_for_references(player: Player, boxes: list[Any], watches: bool) -> Part:
    """Call an actor that returns references: its answers come through the driver."""
    engine, (actor,) = player.engine, boxes
    options = records.TaskOptions(name="give_reference", is_direct=True)
    found = []
    for _ in range(3):
        (ref,) = engine.tasks.submit_call(actor, "give_reference", (), {}, options)
        if watches:
            yield Watch(ref)
        value = yield Get(ref)
        if not isinstance(value, Exception):
            value = yield Get(value[0])
        found.append(value)
    return found


def answers_with_references(stage: Stage, watches: bool = False) -> Part:
    actor = stage.create()
    had_deaths = stage.deaths
    found = yield Get(stage.submit("call_for_references", [actor], watches, max_retries=-1))
    for value in found:
        assert value == "inside" or stage.deaths < had_deaths, found


def answers_with_references_that_are_watched(stage: Stage) -> Part:
    yield from answers_with_references(stage, watches=True)


@part
def wait_for_gate(player: Player) -> Part:
    yield Until(lambda: "gate" in player.stage.open)
    return "through"


@part
def fail(player: Player) -> Part:
    yield None
    raise ArithmeticError("as asked")


@part
def wait_for_cancel(player: Player) -> Part:
    work = player.work
    yield Until(lambda: work is not None and work.task_id in player.engine.duty.cancelled)


@part
def cancel_calls(player: Player, boxes: list[Any], late: list[Any]) -> Part:
    """Cancel a direct call that runs, and two that stand behind it: one of them also behind a call that has to wait
    for an argument, which does not come before the first call has ended."""
    engine, (actor,) = player.engine, boxes

    def call(name: str, *args: object) -> contract.AnyRef:
        return engine.tasks.submit_call(actor, name, args, {}, records.TaskOptions(name=name, is_direct=True))[0]

    yield Get(call("answer"))
    failed = yield Get(call("fail"))
    running, waiting, bypassing = call("wait_for_cancel"), call("answer", 1), call("answer", *late)
    behind = call("answer", 2)
    yield None
    for ref in (waiting, behind, running):
        engine.tasks.cancel(ref, force=False, recursive=True)
        yield None
    found = [failed, (yield Get(running))]
    player.stage.open.add("gate")
    for ref in (waiting, bypassing, behind):
        found.append((yield Get(ref)))  # noqa: PERF401 (no comprehension can yield)
    return [type(value).__name__ for value in found]


def cancelled_calls(stage: Stage) -> Part:
    actor = stage.create()
    late = stage.submit("wait_for_gate")
    found = yield Get(stage.submit("cancel_calls", [actor], [late]))
    cancelled = "TaskCancelledError"
    ran = found.pop(1)  # it is of both kinds where it had begun
    assert ran in (cancelled, f"TaskError({cancelled})"), ran
    assert found == ["TaskError(ArithmeticError)", cancelled, "str", cancelled], found


@part
def forget_calls(player: Player, boxes: list[Any], late: list[Any]) -> Part:
    """Call an actor, and wait for nothing; the worker ends with its task."""
    engine, (actor,) = player.engine, boxes
    for position in range(4):
        name, arguments = ("note_late", late) if position == 2 else ("answer", [position])
        engine.tasks.submit_call(actor, name, tuple(arguments), {}, records.TaskOptions(name=name, is_direct=True))
        yield None


@part
def note_late(player: Player, value: object) -> Part:
    return (yield from answer(player, value))


def forgotten_calls(stage: Stage) -> Part:
    """All calls are made though their caller has ended, and in order, though one of them waits for an argument."""
    actor = stage.create()
    late = stage.submit("wait_for_gate")
    shape = resources.Shape(records.DEFAULT_SHAPE.demand, only="forget_calls")
    caller = stage.submit("forget_calls", [actor], [late], shape=shape, max_calls=1)
    yield Get(caller)
    yield Until(lambda: len(stage.driver.kernel.workers) < 3)  # it has left
    stage.open.add("gate")
    yield Until(lambda: len(list_notes(stage)) == 4)
    assert list_notes(stage) == [0, 1, "through", 3]


@part
def Broken(player: Player) -> Part:  # noqa: N802 (an actor's constructor has its name)
    yield None
    raise ArithmeticError("it cannot be built")


@part
def call_broken(player: Player, boxes: list[Any]) -> Part:
    engine, (actor,) = player.engine, boxes
    options = records.TaskOptions(name="answer", is_direct=True)
    refs = []
    for position in range(4):
        refs += engine.tasks.submit_call(actor, "answer", (position,), {}, options)
        yield None
    found = []
    for ref in refs:
        found.append(type((yield Get(ref))).__name__)  # noqa: PERF401 (no comprehension can yield)
    return found


def calls_of_an_actor_that_cannot_be_built(stage: Stage) -> Part:
    actor = stage.create("Broken")
    found = yield Get(stage.submit("call_broken", [actor], max_retries=-1))
    assert found == ["ActorDiedError"] * 4, found


@part
def leave(player: Player) -> Part:
    yield Leave()


@part
def call_and_end(player: Player, boxes: list[Any]) -> Part:
    """Call an actor directly, ask it to end, and call it again."""
    engine, (actor,) = player.engine, boxes
    found = []
    refs = []
    for name in ("answer", "answer", "answer", "leave", "answer", "answer"):
        refs += engine.tasks.submit_call(actor, name, (), {}, records.TaskOptions(name=name, is_direct=name != "leave"))
        yield None
    for ref in refs:
        found.append(type((yield Get(ref))).__name__)  # noqa: PERF401 (no comprehension can yield)
    return found


def calls_of_an_actor_that_leaves(stage: Stage) -> Part:
    actor = stage.create()
    found = yield Get(stage.submit("call_and_end", [actor], max_retries=-1))
    expected = ["NoneType"] * 3 + ["ActorDiedError"] * 3
    assert found == expected or stage.given_deaths > stage.deaths, found


def calls_of_an_actor_that_is_built_again(stage: Stage) -> Part:
    actor = stage.create(max_restarts=-1)
    refs = [stage.call(actor, "answer", number, max_retries=-1) for number in range(3)]
    for number, ref in enumerate(refs):
        assert (yield Get(ref)) == number
    yield Get(stage.call(actor, "leave"))


LONG = "x" * 50_000
"""Five of them are more than a socket takes."""


@part
def call_at_length(player: Player, boxes: list[Any], late: list[Any], waits: bool) -> Part:
    """Call an actor directly with more than the socket takes, then through the driver, then directly again."""
    engine, (actor,) = player.engine, boxes
    refs = []
    for position in range(9):
        arguments = (position, late) if position == 7 else (position, LONG)
        options = records.TaskOptions(name="answer_first", is_direct=True)
        refs += engine.tasks.submit_call(actor, "answer_first", arguments, {}, options)
    yield None
    found = []
    for ref in refs if waits else ():
        found.append((yield Get(ref)))  # noqa: PERF401 (no comprehension can yield)
    return found


@part
def answer_first(player: Player, value: object, other: object) -> Part:
    return (yield from answer(player, value))


def calls_that_do_not_fit(stage: Stage) -> Part:
    actor = stage.create()
    late = stage.submit("answer", "late", max_retries=-1)
    found = yield Get(stage.submit("call_at_length", [actor], [late], True, max_retries=-1))
    check_answers(found, 9, may_lose=stage.given_deaths > stage.deaths)


def forgotten_calls_that_do_not_fit(stage: Stage) -> Part:
    """A caller that has ended says what it has to say first."""
    actor = stage.create()
    late = stage.submit("answer", "late")
    shape = resources.Shape(records.DEFAULT_SHAPE.demand, only="call_at_length")
    yield Get(stage.submit("call_at_length", [actor], [late], False, shape=shape, max_calls=1))
    yield Until(lambda: len(list_notes(stage)) == 9)
    assert list_notes(stage) == list(range(9))


@part
def call_back(player: Player, boxes: list[Any]) -> Part:
    """Wait for a call of the other actor, which waits for one of this."""
    (other,) = boxes
    options = records.TaskOptions(name="answer")
    (ref,) = player.engine.tasks.submit_call(other, "answer", (1,), {}, options)
    return (yield Get(ref))


def circle(stage: Stage) -> Part:
    """Two actors call each other; if both wait at the same time, one is told."""
    first, second = stage.create("Actor"), stage.create("Other")
    refs = [stage.call(first, "call_back", [second]), stage.call(second, "call_back", [first])]

    def is_over() -> bool:
        if not any(list(player.list_moves()) for player in stage.players.values()):
            stage.driver.watch._break_circle()
        return all(stage.driver.kernel.objects[ref._id].value is not None for ref in refs)

    yield Until(is_over)


def make_large(number: int) -> Any:
    return np.full(50_000, number, dtype=np.float64)


@part
def count_large(player: Player, number: int) -> Part:
    attempt = (player.work.extra or {}).get("attempt", 0) if player.work is not None else 0
    for item in range(number):
        if item == number - 1 and not attempt:
            raise ArithmeticError("once")
        yield Item(make_large(item))


def large_items(stage: Stage) -> Part:
    stream = stage.submit("count_large", 3, max_retries=-1, retry_exceptions=True, backpressure=2, **STREAM)
    found = yield from read_stream(stage, stream)
    assert [float(item[0]) for item in found] == [0, 1, 2]
    del found
    yield Until(lambda: True)


@part
def pass_large(player: Player, boxes: list[Any]) -> Part:
    value = yield Get(boxes[0])
    return value + 1


def large_values(stage: Stage) -> Part:
    ref = stage.driver.objects.put(make_large(0))
    for _ in range(2):
        ref = stage.submit("pass_large", [ref], max_retries=-1)
    value = yield Get(ref)
    assert float(value[0]) == 2
    del value


# --- ends -------------------------------------------------------------------------------------------------------------


@part
def hold(player: Player, boxes: list[Any]) -> Part:
    """Keep a handle, as an actor that knows another one."""
    yield None
    vars(player)["held"] = boxes


def ring_of_actors(stage: Stage) -> Part:
    first, second = stage.create("Actor"), stage.create("Other")
    yield Get(stage.call(first, "hold", [second]))
    yield Get(stage.call(second, "hold", [first]))
    del first, second
    yield None
    ids_before = set(stage.driver.kernel.actors)
    assert len(ids_before) == 2

    def is_over() -> bool:
        stage.driver.search._next_search = 0.0
        stage.driver.search.look(0.0)
        return all(actor.state == ActorState.DEAD for actor in stage.driver.kernel.actors.values())

    yield Until(is_over)


@part
def Other(player: Player) -> Part:  # noqa: N802 (an actor's constructor has its name)
    yield None


@part
def submit_and_wait_for_cancel(player: Player) -> Part:
    options = records.TaskOptions(name="wait_for_cancel", max_retries=-1)
    (ref,) = player.engine.tasks.submit_task(FUNCTION, (), {}, options)
    yield None
    yield Get(ref)


def forced_cancel_of_a_tree(stage: Stage, force: bool = True) -> Part:
    """What the task has submitted ends with it, also if the driver hears of it only when the worker is dead."""
    ref = stage.submit("submit_and_wait_for_cancel", max_retries=-1)
    yield None
    yield Until(lambda: any(player.work is not None for player in stage.players.values()))
    stage.driver.tasks.cancel(ref, force=force, recursive=True)
    assert isinstance((yield Get(ref)), exceptions.TaskCancelledError)


def cancel_of_a_tree(stage: Stage) -> Part:
    yield from forced_cancel_of_a_tree(stage, force=False)


# --- objects and questions --------------------------------------------------------------------------------------------


@part
def wait_in_task(player: Player, boxes: list[Any]) -> Part:
    """Wait for what others make, ask for what only the driver knows, and put something."""
    found = []
    for ref in boxes:
        yield Watch(ref)
        found.append((yield Get(ref)))
    yield Ask("ping", ())
    yield Get(player.engine.objects.put(found))
    return found


def values_of_others(stage: Stage) -> Part:
    refs = [stage.submit("answer", number, max_retries=-1) for number in range(2)]
    assert (yield Get(stage.submit("wait_in_task", refs, max_retries=-1))) == [0, 1]


@part
def ask_for_actor(player: Player) -> Part:
    yield Ask("look_up_name", ("Actor", "stage"))
    return "found"


def questions_of_a_cancelled_task(stage: Stage) -> Part:
    """The answer holds a handle, and may come when nobody waits for it any more: the actor ends all the same."""
    actor = stage.create()
    ref = stage.submit("ask_for_actor")
    yield None
    yield None
    stage.driver.tasks.cancel(ref, force=False, recursive=False)
    value = yield Get(ref)
    assert value == "found" or isinstance(value, exceptions.TaskCancelledError), value
    del actor


@part
def submit_and_wait(player: Player, depth: int) -> Part:
    if depth:
        options = records.TaskOptions(name="submit_and_wait", max_retries=-1)
        refs = [player.engine.tasks.submit_task(FUNCTION, (depth - 1,), {}, options)[0] for _ in range(2)]
        for ref in refs:
            yield Get(ref)
    yield None
    return depth


def rows_that_are_taken_back(stage: Stage) -> Part:
    refs = [stage.submit("submit_and_wait", 1, max_retries=-1) for _ in range(2)]
    for ref in refs:
        assert (yield Get(ref)) == 1


def rows_in_workers(stage: Stage) -> Part:
    """Tasks stand behind one another in a worker; one of them waits for what stands behind it, one is cancelled."""
    yield Get(stage.submit("answer", 0, max_retries=-1))  # now they are known to be short
    refs = [stage.submit("submit_and_wait", number % 2, max_retries=-1) for number in range(3)]
    stage.driver.tasks.cancel(refs[2], force=False, recursive=True)
    for number, ref in enumerate(refs[:2]):
        assert (yield Get(ref)) == number
    value = yield Get(refs[2])
    assert value == 0 or isinstance(value, exceptions.TaskCancelledError), value


def cancelled_tree(stage: Stage) -> Part:
    ref = stage.submit("submit_and_wait", 2, max_retries=-1)
    yield None
    yield None
    stage.driver.tasks.cancel(ref, force=False, recursive=True)
    value = yield Get(ref)
    assert value == 2 or isinstance(value, exceptions.TaskCancelledError), value


# --- the walk ---------------------------------------------------------------------------------------------------------

SCENARIOS: list[tuple[Callable[[Stage], Part], dict[str, Any]]] = [
    (stream_of_task, {"deaths": 1}),
    (stream_bounded_by_bytes, {"deaths": 1}),
    (stream_of_actor, {"deaths": 1}),
    (stream_tried_again_after_an_exception, {"deaths": 1}),
    (stream_that_is_dropped, {"deaths": 1}),
    (stream_that_is_cancelled, {"deaths": 1}),
    (stream_whose_end_is_awaited, {"deaths": 1}),
    (stream_read_by_a_task, {"deaths": 1}),
    (stream_whose_end_a_task_awaits, {"deaths": 1}),
    (calls_of_an_actor, {"deaths": 0}),
    (calls_of_an_actor_that_is_never_born, {"deaths": 1}),
    (promises, {"deaths": 1}),
    (answers_with_references, {"deaths": 1}),
    (answers_with_references_that_are_watched, {"deaths": 1}),
    (cancelled_calls, {"deaths": 0}),
    (values_of_others, {"deaths": 1}),
    (questions_of_a_cancelled_task, {"deaths": 0}),
    (rows_that_are_taken_back, {"deaths": 1, "cpus": 1}),
    (cancelled_tree, {"deaths": 1, "cpus": 1}),
    (forgotten_calls, {"deaths": 0}),
    (calls_of_an_actor_that_cannot_be_built, {"deaths": 1}),
    (calls_of_an_actor_that_leaves, {"deaths": 1}),
    (calls_of_an_actor_that_is_built_again, {"deaths": 2}),
    (ring_of_actors, {"deaths": 0}),
    (forced_cancel_of_a_tree, {"deaths": 0}),
    (cancel_of_a_tree, {"deaths": 1}),
    (calls_that_do_not_fit, {"deaths": 1}),
    (forgotten_calls_that_do_not_fit, {"deaths": 0}),
    (circle, {"deaths": 0}),
    (large_items, {"deaths": 1}),
    (large_values, {"deaths": 1}),
    (rows_in_workers, {"deaths": 1, "cpus": 1, "queue_seconds": 1e5}),
]


TWICE = (stream_of_task, stream_of_actor, stream_that_is_cancelled)
"""Scenarios that are walked with two deviations also if not all is asked for: it takes two for a reader to go on after
its generator's worker is buried, and before the next one is born."""


def walk(scenario: Callable[[Stage], Part], given: dict[str, Any], choose: Callable[[int, int], int]) -> list[int]:
    """Walk one schedule; `choose` says which of so many moves to make at a step. Returns how many there were at each
    step."""
    stage = Stage(scenario, PARTS, seen=SEEN, **given)
    counts: list[int] = []
    try:
        while stage.main is not None:
            moves = stage.list_moves()
            assert moves, f"somebody waits for ever; {stage.history}"
            assert len(counts) < MOST_STEPS, f"it does not end; {stage.history}"
            moves += stage.list_deaths()
            choice = choose(len(counts), len(moves))
            counts.append(len(moves))
            stage.make(moves[choice])
        stage.settle()
        check_left(stage)
    except BaseException as error:
        error.add_note(f"{scenario.__name__}: {stage.history}")
        raise
    finally:
        stage.close()
    return counts


def choose_from(deviations: dict[int, int], step: int, count: int) -> int:
    return deviations.get(step, 0)


def choose_at_random(chance: random.Random, share: float, step: int, count: int) -> int:
    return chance.randrange(count) if chance.random() < share else 0


def check_left(stage: Stage) -> None:
    kernel = stage.driver.kernel
    left = (
        list(kernel.tasks),
        [
            (
                r.id,
                r.count,
                r.holders,
                r.value,
                [(p.id, r.id in p.engine.known.receipts) for p in stage.players.values()],
            )
            for r in kernel.objects.values()
        ],
        list(kernel.streams),
        list(kernel.actors),
    )
    assert left == ([], [], [], []), (left, stage.history)
    assert kernel.pool.free == kernel.pool.total
    for player in stage.players.values():
        engine = player.engine
        kept = {name: value for name, value in vars(engine).items() if name in KEPT and value}
        assert kept == {}, (player.id, kept, stage.history)
        assert player.worker.answers._flows == {}, stage.history


def explore(scenario: Callable[[Stage], Part], given: dict[str, Any], most: int = 0) -> int:
    """Walk all schedules that differ from the usual one in so many steps at most; return how many that were."""
    most = most or (2 if scenario in TWICE or SCHEDULES >= FULL else 1)
    rows: list[dict[int, int]] = [{}]
    walked = 0
    while rows:
        deviations = rows.pop()
        walked += 1
        counts = walk(scenario, given, functools.partial(choose_from, deviations))
        if len(deviations) < most:
            first = max(deviations, default=-1) + 1
            rows += [
                {**deviations, step: choice} for step in range(first, len(counts)) for choice in range(1, counts[step])
            ]
    return walked


@pytest.fixture(autouse=True)
def early(monkeypatch: pytest.MonkeyPatch) -> None:
    """What otherwise begins with many bytes, or many calls, begins at once; and nothing depends on the time."""
    monkeypatch.setattr(answers, "FLUSH_SECONDS", float("inf"))
    monkeypatch.setattr(leases, "QUEUE_SECONDS", 0.0)
    stage.note_messages(monkeypatch)
    monkeypatch.setattr(flow, "MOST_BYTES", 1500)
    monkeypatch.setattr(direct_channels, "INTRODUCE_AFTER", 1)


@pytest.mark.timeout(300)
@pytest.mark.slow
@pytest.mark.parametrize(("scenario", "given"), SCENARIOS, ids=[scenario.__name__ for scenario, _ in SCENARIOS])
def test_every_schedule_in_the_bound_ends_well(scenario: Callable[[Stage], Part], given: dict[str, Any]) -> None:
    WALKED[scenario.__name__] += explore(scenario, given)
    print(WALKED[scenario.__name__], "schedules")


@pytest.mark.timeout(300)
@pytest.mark.slow
@pytest.mark.parametrize(("scenario", "given"), SCENARIOS, ids=[scenario.__name__ for scenario, _ in SCENARIOS])
def test_random_schedules_end_well(scenario: Callable[[Stage], Part], given: dict[str, Any]) -> None:
    wanted = os.environ.get("HOCKET_TEST_SEED")
    first = int(wanted) if wanted else random.randrange(10**6)
    for seed in range(first, first + (1 if wanted else SCHEDULES)):
        print("seed", seed)
        chance = random.Random(seed)
        share = chance.choice([0.05, 0.2, 0.5, 1.0])
        more = {**given, "deaths": given["deaths"] * chance.choice([0, 1, 1, 2, 3])}
        walk(scenario, more, functools.partial(choose_at_random, chance, share))
        WALKED[scenario.__name__] += 1


def test_every_message_has_its_row() -> None:
    assert message_states.TABLE.keys() == messages.declared.keys()
    for number, row in message_states.TABLE.items():
        assert row.keys() == set(message_states.STATES), number


@pytest.mark.timeout(600)
@pytest.mark.slow
def test_the_walk_meets_what_the_table_says() -> None:
    for scenario, given in SCENARIOS:
        if scenario.__name__ not in WALKED:
            WALKED[scenario.__name__] += explore(scenario, given)
    names = {value: name for name, value in vars(messages).items() if isinstance(value, int)}
    kinds: Counter[str] = Counter()
    missed, impossible = [], []
    for number, row in message_states.TABLE.items():
        for condition, pair in row.items():
            seen = SEEN[number, condition]
            kinds[f"{type(pair).__name__}, {'' if seen else 'not '}seen"] += 1
            if isinstance(pair, message_states.Met) and not seen:
                missed.append((names[number], condition))
            if isinstance(pair, message_states.Never) and seen:
                impossible.append((names[number], condition, seen))
    print(sum(WALKED.values()), "schedules;", sum(SEEN.values()), "messages;", dict(kinds))
    assert missed == []
    assert impossible == []
