"""stub"""
from __future__ import annotations

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


def find_state_in_worker(player: Player, message: channel.Message) -> str:
    """Return the state, in a worker, of what a message is for."""
    engine, worker = player.engine, player.worker
    is_built = worker._actor is not None or worker._actor_error is not None
    match message:
        case (messages.RUN, _, _, _, _, _, _, _, extra):
            return RETRIED if (extra or {}).get("attempt") else THERE
        case (messages.CALL, _, _, _, _, _, _, _, extra):
            return RETRIED if (extra or {}).get("attempt") else THERE if is_built else EARLY
        case (messages.DIRECT, task_id, *_):
            return CANCELLED if task_id in engine.cancelled else THERE if is_built else EARLY
        case (messages.CANCEL | messages.CONSUMED, task_id, _):
            return _find_work(player, message[0], task_id)
        case (messages.VALUE | messages.READY | messages.MOVED, object_id, *_):
            return THERE if object_id in engine._receipts else OVER
        case (messages.ANSWER, question_id, *_):
            return THERE if question_id in engine._answers else OVER
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
        if task_id in player.engine.cancelled:
            return CANCELLED
        if op == messages.CONSUMED and task_id not in player.worker._flows:
            return EARLY
        return RETRIED if (work.extra or {}).get("attempt") else THERE
    if any(work.task_id == task_id for work in player.worker._row):
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
