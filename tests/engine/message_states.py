"""The table of the local engine's messages: what becomes of each in every state of what it is for.

A message is *for* something in the process that gets it: an attempt of a task, an object or a handle on it, a question,
a wait, an actor, a stream, the other end of a channel, or the process itself. That has a state when the message has its
turn:

- `THERE`: as the sender thought.
- `EARLY`: it is still to come: the attempt is not begun, the actor is not built, the object has no value.
- `RETRIED`: it is a later attempt, or a later life, than the first.
- `CANCELLED`, `OVER`: it is that.
- `GONE`: the worker is dead. A message to it is lost; a message from it counts.

Each pair is one of four. `Met` is handled, and the walk of `test_message_states` has to meet it. `Rare` is handled, and
the walk may meet it. `Apart` cannot be on the stage, and names the test with processes. `Never` cannot be, and the walk
must not meet it.

**The rule** that the table follows: nobody waits for what is sent once and may be lost. Whoever waits asks, and is
answered from what is so at that moment, or as soon as it is; an attempt asks for itself; numbers are absolute, so that
a second answer, or a late one, does no harm. And what is lost with a dead worker is either nobody's, or sent anew by
the driver, which holds all that is to be done until it is done.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hocket.engine.local import channel, links, messages
from hocket.engine.local.driver import DriverEngine
from hocket.kernel.records import ActorState

if TYPE_CHECKING:
    from tests.engine.stage import Player

THERE = "there"
EARLY = "not yet there"
RETRIED = "tried again"
CANCELLED = "cancelled"
OVER = "over"
GONE = "gone"
STATES = (THERE, EARLY, RETRIED, CANCELLED, OVER, GONE)


@dataclass(frozen=True)
class Pair:
    """What becomes of a message in a state, in words."""

    text: str


class Met(Pair):
    """Handled; the walk meets it."""


class Rare(Pair):
    """Handled; the walk may meet it."""


class Apart(Pair):
    """Handled, and tried with processes."""


class Never(Pair):
    """It cannot occur."""


Row = dict[str, Pair]

_ORDER = "one socket keeps the order, and it is sent behind what it is for"
_LOST = "lost with the process, and nobody else's"
_SAID = "counts: it is read from the socket and the journal of the dead worker"

_TO_PROCESS: Row = {
    THERE: Met("it is for the process, whatever that does"),
    EARLY: Never("the socket is older than the process, and keeps it"),
    RETRIED: Never("another process has another socket"),
    CANCELLED: Never("a process is not cancelled"),
    OVER: Never("what has ended is gone"),
    GONE: Met(_LOST),
}
_TO_HANDLE: Row = {
    THERE: Met("it is kept for the handle"),
    EARLY: Never("the handle was there first: it is an answer, or the worker made the object's id"),
    RETRIED: Never("an object is the same, whichever attempt made it"),
    CANCELLED: Never("an object is not cancelled; the error is a value"),
    OVER: Rare("the handle was dropped meanwhile: it is let go"),
    GONE: Met(_LOST),
}
_TO_CALLER: Row = {
    THERE: Met("the call is answered"),
    EARLY: Never(_ORDER),
    RETRIED: Never("calls that may be tried again are not direct"),
    CANCELLED: Rare("a call that was cancelled has an answer all the same"),
    OVER: Rare("the driver has brought the answer of a dead actor: the second one is for nobody"),
    GONE: Met("the driver reads it in the actor's page if that dies, too, and else it is nobody's"),
}
_FROM_PROCESS: Row = {
    THERE: Met("it is for the driver, whatever that does"),
    EARLY: Never("the driver is older than its workers"),
    RETRIED: Never("it is for no attempt"),
    CANCELLED: Never("it is for no task"),
    OVER: Never("a driver that is over reads nothing"),
    GONE: Rare(_SAID),
}
_FROM_ATTEMPT: Row = {
    THERE: Met("the attempt is in flight in this worker"),
    EARLY: Never(_ORDER),
    RETRIED: Met("the attempt is in flight in this worker; an item that an earlier one yielded is dropped"),
    CANCELLED: Rare("it counts as if the cancellation had come later"),
    OVER: Rare("the task was given up: what it brings is freed"),
    GONE: Met(_SAID),
}
_OF_OBJECT: Row = {
    THERE: Met("counted, or answered at once"),
    EARLY: Met("counted, or answered when the value is there"),
    RETRIED: Never("an object is the same, whichever attempt made it"),
    CANCELLED: Never("an object is not cancelled; the error is a value"),
    OVER: Never("the worker's own count keeps the object"),
    GONE: Rare(_SAID + ", and is taken back with all that the worker held"),
}
_NEW_OBJECT: Row = {
    THERE: Met("the worker makes the id, and says it first"),
    EARLY: Never("it makes the object"),
    RETRIED: Never("each attempt makes ids of its own"),
    CANCELLED: Never("an object is not cancelled"),
    OVER: Rare("the driver has brought the answer of a dead actor meanwhile, which stays"),
    GONE: Rare(_SAID),
}
_TO_ACTOR: Row = {
    THERE: Met("passed on, behind the caller's calls"),
    EARLY: Met("kept until the actor is alive: a process that dies before it is built would take it along"),
    RETRIED: Rare("kept until the actor is alive again"),
    CANCELLED: Never("an actor is not cancelled"),
    OVER: Met("refused, and the caller learns it from the end of its channel, or from the call's error"),
    GONE: Rare(_SAID),
}
_TO_GUARDIAN: Row = {
    THERE: Apart("tests/core/test_faults.py"),
    EARLY: Never("the socket is older than the guardian, and keeps it"),
    RETRIED: Never("a session has one guardian"),
    CANCELLED: Never("it is for a process"),
    OVER: Apart("the worker is dead already, and its death is on its way: tests/core/test_deaths.py"),
    GONE: Apart("without a guardian the session is over: tests/core/test_stopped.py"),
}


TABLE: dict[int, Row] = {
    # driver -> worker
    messages.SETUP: _TO_PROCESS,
    messages.FUNCTION: _TO_PROCESS,
    messages.FORGET: _TO_PROCESS | {GONE: Rare(_LOST)},
    messages.SKIP: _TO_PROCESS | {THERE: Apart("tests/core/test_bad_input.py"), GONE: Rare(_LOST)},
    messages.STOP: _TO_PROCESS | {THERE: Met("obeyed when the row is empty, and all promises are kept and calls sent")},
    messages.PROBE: _TO_PROCESS | {GONE: Rare("asked anew without it: `Ends` gives up after some looks")},
    messages.RECYCLE: _TO_PROCESS
    | {RETRIED: Rare("an item that was made again on one worker may have been given back before"), GONE: Met(_LOST)},
    messages.RUN: {
        THERE: Met("stands in the row"),
        EARLY: Never("the socket is older than the process, and keeps it"),
        RETRIED: Met("knows nothing of earlier attempts, and asks for what it has to know"),
        CANCELLED: Never("what was cancelled before is not sent"),
        OVER: Never("what is over is not sent"),
        GONE: Met("not begun: the driver sends it to another worker, at nobody's cost"),
    },
    messages.CALL: {
        THERE: Met("stands in the row"),
        EARLY: Met("stands in the row behind the constructor"),
        RETRIED: Met("knows nothing of earlier attempts, and asks for what it has to know"),
        CANCELLED: Never("what was cancelled before is not sent"),
        OVER: Never("what is over is not sent"),
        GONE: Met("not begun: the driver sends it to the next process of the actor, or fails it with the death"),
    },
    messages.CANCEL: {
        THERE: Met("interrupted, or noted for a call that looks by itself"),
        EARLY: Met("taken out of the row; a direct call that a `HOLD` keeps back is refused when it has its turn"),
        RETRIED: Met("as any other attempt"),
        CANCELLED: Met("nothing more happens"),
        OVER: Met("too late; the number is kept, and no later attempt has it: a cancelled task is not tried again"),
        GONE: Met("the death fails what was cancelled, with what it had submitted"),
    },
    messages.CONSUMED: {
        THERE: Met("the generator goes on"),
        EARLY: Rare("an earlier attempt on this worker had asked: nothing is lost, this one asks for itself"),
        RETRIED: Met("the generator goes on; an answer to an earlier attempt is true, and does no harm"),
        CANCELLED: Met("the generator ends"),
        OVER: Rare("nobody waits"),
        GONE: Met("the next attempt asks for itself"),
    },
    messages.VALUE: _TO_HANDLE,
    messages.READY: _TO_HANDLE,
    messages.MOVED: _TO_HANDLE,
    messages.ANSWER: {
        THERE: Met("the one who asked goes on"),
        EARLY: Never(_ORDER),
        RETRIED: Never("each attempt asks its own questions"),
        CANCELLED: Never("the question is over then"),
        OVER: Rare("the one who asked was interrupted: the references in it are given back"),
        GONE: Rare(_LOST),
    },
    messages.DEADLOCK: {
        THERE: Met("the wait ends with the error"),
        EARLY: Never(_ORDER),
        RETRIED: Never("each attempt has its own waits"),
        CANCELLED: Never("the wait is over then"),
        OVER: Met("the wait has ended otherwise; the driver looks again while others wait"),
        GONE: Rare(_LOST),
    },
    messages.INTRODUCED: _TO_PROCESS
    | {
        EARLY: Never("an actor's process is not introduced to anybody before the actor is alive"),
        GONE: Met("the actor is dead, which fails the caller's calls: one that may live again is not called directly"),
    },
    messages.SYNC: _TO_PROCESS
    | {
        THERE: Met("the actor reads on behind the `HOLD`"),
        EARLY: Met("the driver keeps it behind the caller's calls until the actor is alive"),
        OVER: Rare("the caller is gone, and nothing is kept back"),
        GONE: Met(_LOST),
    },
    messages.AWAIT: _TO_PROCESS
    | {
        THERE: Met("what comes through the driver waits for so many direct calls"),
        EARLY: Rare("the driver keeps it behind the caller's calls until the actor is alive"),
        OVER: Rare("the caller is gone: what comes through the driver waits for nothing"),
        GONE: Rare(_LOST),
    },
    # worker -> driver
    messages.PLAIN: _FROM_ATTEMPT,
    messages.DONE: _FROM_ATTEMPT | {GONE: Rare(_SAID)},
    messages.FAILED: _FROM_ATTEMPT
    | {
        RETRIED: Rare("as any other attempt"),
        CANCELLED: Met("the error of the cancellation, or another one that came before it"),
        GONE: Rare(_SAID),
    },
    messages.YIELD: _FROM_ATTEMPT,
    messages.PAUSED: _FROM_ATTEMPT
    | {
        THERE: Met("answered at once, or when the reader has come so far"),
        RETRIED: Met("the same: what was answered to an earlier attempt does not count"),
        OVER: Rare("nobody reads the stream any more, and a `CANCEL` is on its way"),
        GONE: Met("the next attempt asks for itself"),
    },
    messages.BACK: _FROM_PROCESS
    | {THERE: Met("goes to another worker, if it was not taken back before: each sending has a number")},
    messages.SUBMIT: _FROM_PROCESS
    | {
        CANCELLED: Rare(
            "what submits it is cancelled with its children: it is cancelled, too, when the worker says so or is dead"
        ),
        GONE: Rare(_SAID),
    },
    messages.SUBMIT_CALL: _TO_ACTOR
    | {
        THERE: Met("stands in the caller's row"),
        EARLY: Met("stands in the caller's row"),
        OVER: Met("fails with the actor's death: the actor is known as long as anybody has a handle"),
    },
    messages.PUT: _NEW_OBJECT,
    messages.PROMISE: _NEW_OBJECT,
    messages.DELIVER: _NEW_OBJECT,
    messages.FULFIL: {
        THERE: Met("the object has its value"),
        EARLY: Never(_ORDER + ", the `PROMISE`"),
        RETRIED: Never("calls that may be tried again are not direct"),
        CANCELLED: Never("an object is not cancelled"),
        OVER: Rare("nobody wants it any more"),
        GONE: Rare(_SAID + ", and the others are broken with an error"),
    },
    messages.WANT: _OF_OBJECT,
    messages.WATCH: _OF_OBJECT,
    messages.DROP: _OF_OBJECT | {OVER: Rare("nothing: its `ADOPT` found no value, and was not counted")},
    messages.ADOPT: _OF_OBJECT
    | {
        THERE: Apart("tests of references in closures"),
        EARLY: Rare("counted"),
        OVER: Rare("not counted: the value is lost, and `WANT` says so"),
    },
    messages.UNMAP: _OF_OBJECT
    | {EARLY: Never("what has no value is not mapped"), OVER: Rare("counts were taken back")},
    messages.BLOCK: _FROM_ATTEMPT
    | {
        THERE: Met("the CPU is lent"),
        RETRIED: Met("the CPU is lent"),
        OVER: Never("what is not in flight is not asked"),
    },
    messages.UNBLOCK: _FROM_PROCESS | {THERE: Met("the CPU is taken back")},
    messages.ASK: _FROM_PROCESS | {THERE: Met("answered; the asker gives up or not")},
    messages.EXPORT: _FROM_PROCESS,
    messages.TAKE: {
        THERE: Met("the item is the reader's; a generator that waits for that is answered"),
        EARLY: Rare("the generator is between two attempts: the next one asks"),
        RETRIED: Met("the same with a later attempt"),
        CANCELLED: Rare("the item is the reader's"),
        OVER: Met("the generator has returned"),
        GONE: Rare(_SAID),
    },
    messages.LIFT: {
        THERE: Met("the generator is answered now if it waits, and later whenever it asks"),
        EARLY: Rare("the next attempt asks"),
        RETRIED: Rare("the same with a later attempt"),
        CANCELLED: Rare("nothing more happens"),
        OVER: Rare("the generator has returned"),
        GONE: Rare(_SAID),
    },
    messages.EXITING: _FROM_PROCESS | {THERE: Met("the actor is dead from now on, with its reason")},
    messages.ROOM: _FROM_PROCESS | {THERE: Apart("tests/engine/test_store.py")},
    messages.POOL: _FROM_PROCESS | {THERE: Apart("tests/engine/test_store.py")},
    messages.METRICS: _FROM_PROCESS | {THERE: Apart("tests/util/test_metrics.py")},
    messages.NOTES: _FROM_PROCESS,
    messages.PROBED: _FROM_PROCESS
    | {OVER: Rare("an answer to an earlier round has another number"), GONE: Rare("the next look finds it dead")},
    messages.INTRODUCE: _TO_ACTOR,
    messages.LOST: _TO_ACTOR
    | {
        THERE: Met("the calls fail with the actor's death, which is not known yet"),
        EARLY: Never("an actor that is not alive has no channel that could break"),
        RETRIED: Never("one that may live again is not called directly"),
        OVER: Met("the calls fail with the actor's death; those that it had answered have their values"),
    },
    messages.CANCEL_CHILDREN: {
        THERE: Rare("a direct call, which the driver does not know: what it has submitted is cancelled"),
        EARLY: Never("it is running"),
        RETRIED: Rare("as any other attempt"),
        CANCELLED: Met("what it has submitted is cancelled; `SUBMIT` came before"),
        OVER: Met("what it had submitted is cancelled"),
        GONE: Rare(_SAID),
    },
    # worker -> worker
    messages.DIRECT: {
        THERE: Met("stands in the row"),
        EARLY: Never("an actor's process is not introduced to anybody before the actor is alive"),
        RETRIED: Never("calls that may be tried again are not direct"),
        CANCELLED: Rare("the `CANCEL` has passed it at a `HOLD`: it is refused when it has its turn"),
        OVER: Never(_ORDER),
        GONE: Met("the channel ends, and the caller hands the call to the driver (`LOST`)"),
    },
    messages.HOLD: {
        THERE: Met("nothing is read behind it until the `SYNC`, which comes whatever becomes of the caller"),
        EARLY: Never("an actor's process is not introduced to anybody before the actor is alive"),
        RETRIED: Never("it is for the process"),
        CANCELLED: Never("it is for the process"),
        OVER: Never("the `SYNC` has come: nothing is held"),
        GONE: Rare(_LOST),
    },
    messages.REPLY: _TO_CALLER,
    messages.REPLY_FAILED: _TO_CALLER | {GONE: Rare("as a `REPLY`")},
    # driver <-> guardian
    messages.SPAWN: _TO_GUARDIAN | {OVER: Never("no worker is older than its birth")},
    messages.KILL: _TO_GUARDIAN,
    messages.LOAD: _TO_GUARDIAN | {OVER: Never("it is for the guardian")},
    messages.EXIT: _TO_GUARDIAN | {OVER: Never("it is for the guardian")},
    messages.SPAWNED: _TO_GUARDIAN | {OVER: Apart("the worker was given up: tests/core/test_stopped.py")},
    messages.DIED: _TO_GUARDIAN | {OVER: Apart("the worker was given up: tests/core/test_stopped.py")},
}


def find_state_in_worker(player: Player, message: channel.Message) -> str:
    """Return the state, in a worker, of what a message is for."""
    engine, worker = player.engine, player.worker
    is_built = worker.actor.exists
    match message:
        case (messages.RUN, _, _, _, _, _, _, _, extra):
            return RETRIED if (extra or {}).get("attempt") else THERE
        case (messages.CALL, _, _, _, _, _, _, _, extra):
            return RETRIED if (extra or {}).get("attempt") else THERE if is_built else EARLY
        case (messages.DIRECT, task_id, *_):
            return CANCELLED if task_id in engine.duty.cancelled else THERE if is_built else EARLY
        case (messages.CANCEL | messages.CONSUMED, task_id, _):
            return _find_work(player, message[0], task_id)
        case (messages.VALUE | messages.READY | messages.MOVED, object_id, *_):
            return THERE if object_id in engine.known.receipts else OVER
        case (messages.ANSWER, question_id, *_):
            return THERE if question_id in engine.questions._answers else OVER
        case (messages.DEADLOCK, number, _):
            return THERE if number == player.wait else OVER
        case (messages.INTRODUCED, _):
            return THERE if is_built else EARLY
        case (messages.SYNC | messages.AWAIT, caller_id, _):
            return THERE if caller_id in engine.direct._by_caller else OVER
        case (messages.REPLY | messages.REPLY_FAILED, task_id, *_):
            return THERE if task_id in engine.direct.by_task else OVER
    return THERE


def _find_work(player: Player, op: int, task_id: int) -> str:
    work = player.work
    if work is not None and work.task_id == task_id:
        if task_id in player.engine.duty.cancelled:
            return CANCELLED
        if op == messages.CONSUMED and task_id not in player.worker.answers._flows:
            return EARLY
        return RETRIED if (work.extra or {}).get("attempt") else THERE
    if any(work.task_id == task_id for work in player.worker.row.works):
        return EARLY
    return THERE if task_id in player.engine.direct.by_task else OVER


def find_state_in_driver(driver: DriverEngine, link: links.Link, message: channel.Message) -> str:
    """Return the state, in the driver, of what a message is for."""
    kernel, worker = driver.kernel, link.worker
    match message:
        case (
            messages.PLAIN | messages.DONE | messages.FAILED | messages.YIELD | messages.PAUSED,
            task_id,
            *_,
        ):
            return _find_task(driver, link, task_id)
        case (messages.BLOCK, _, _, running_id, *_):
            return _find_task(driver, link, running_id) if running_id in worker.inflight else THERE
        case (messages.CANCEL_CHILDREN, task_id):
            return CANCELLED if task_id in worker.inflight else OVER
        case (messages.TAKE | messages.LIFT, task_id, *_):
            task = kernel.tasks.get(task_id)
            if task_id not in kernel.streams or task is None:
                return OVER
            return CANCELLED if task.cancelled else EARLY if task.worker is None else RETRIED if task.attempt else THERE
        case (messages.WANT | messages.WATCH | messages.DROP | messages.ADOPT | messages.UNMAP, object_id, *_):
            record = kernel.objects.get(object_id)
            return OVER if record is None else EARLY if record.value is None else THERE
        case (messages.PUT | messages.PROMISE | messages.DELIVER, object_id, *_):
            return OVER if object_id in kernel.objects else THERE
        case (messages.FULFIL, object_id, _):
            record = kernel.objects.get(object_id)
            return THERE if record is not None and record.value is None else OVER
        case (messages.LOST | messages.INTRODUCE | messages.SYNC | messages.AWAIT, actor_id, *_):
            return _find_actor(driver, actor_id)
        case (messages.SUBMIT_CALL, _, actor_id, *_):
            return _find_actor(driver, actor_id)
        case (messages.SUBMIT, *_, parent):
            task = worker.inflight.get(parent)
            return CANCELLED if task is not None and task.cancelled else THERE
    return THERE


def _find_task(driver: DriverEngine, link: links.Link, task_id: int) -> str:
    task = link.worker.inflight.get(task_id)
    if task is None:
        return OVER
    return CANCELLED if task.cancelled else RETRIED if task.attempt else THERE


def _find_actor(driver: DriverEngine, actor_id: int) -> str:
    actor = driver.kernel.actors.get(actor_id)
    if actor is None or actor.state == ActorState.DEAD:
        return OVER
    return {ActorState.PENDING: EARLY, ActorState.RESTARTING: RETRIED}.get(actor.state, THERE)
