"""Intake of work from the driver and from other workers: messages become work in the queue, or cancel it.

While the main thread is busy, the background reader (see `reactor`) reads the socket: it puts new work at the end of
the queue, and interrupts a task that is cancelled.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, final

from hocket.engine.local import channel, journal, messages, surroundings, worker_engine
from hocket.engine.local.work import Work
from hocket.engine.local.worker import answers, life, residents, row


@final
class Intake:
    """The intake of work. Every method is called with the lock held, by the background reader if the main thread is
    busy.

    Args:
        engine: The worker's engine.
        subject: The actor, if there is one.
        functions: The code of functions, and the values in messages.
        works: The queue of work.
        told: Reports cancelled work.
        interrupted: Interrupts the running task.
        end: Takes the order to end the process.
    """

    def __init__(
        self,
        engine: worker_engine.WorkerEngine,
        subject: residents.Actor,
        functions: residents.Code,
        works: row.Row,
        told: answers.Answers,
        interrupted: life.Interruption,
        end: life.Life,
    ) -> None:
        self._engine, self._actor, self._code, self._row = engine, subject, functions, works
        self._answers, self._interruption, self._life = told, interrupted, end
        #: How many tasks and calls the driver has sent.
        self._taken = 0
        self._handlers: dict[int, Callable[..., object]] = {
            messages.FUNCTION: functions.add,
            messages.CANCEL: self._cancel,
            messages.STOP: end.stop,
            messages.SKIP: self._skip,
            messages.CONSUMED: told.note_consumed,
            messages.FORGET: functions.forget,
            messages.SETUP: self._set_up,
        }

    def take(self, message: channel.Message) -> None:
        """Take a message that is work, or about work."""
        op = message[0]
        if op == messages.RUN:
            _, task_id, function_id, args, dependencies, borrowed, num_returns, name, extra = message
            work = Work(task_id, name, num_returns)
            self._taken = work.number = self._taken + 1
            work.function_id = function_id
            work.extra = extra
            self._complete(work, args, dependencies, borrowed)
        elif op == messages.CALL:
            _, task_id, method, args, dependencies, borrowed, num_returns, name, extra = message
            work = Work(task_id, name, num_returns)
            self._taken = work.number = self._taken + 1
            work.method = method
            work.extra = extra
            if self._engine.direct.is_called:
                self._engine.direct.read_first(task_id >> 40)
            self._complete(work, args, dependencies, borrowed)
        elif op == messages.DIRECT:
            _, task_id, method, args, num_returns, name, group = message
            work = Work(task_id, name, num_returns)
            work.method = method
            work.reply_to = task_id >> 40
            if group:
                work.extra = {"group": group}
            self._complete(work, args, (), ())
        elif op in self._handlers:
            self._handlers[op](*message[1:])
        else:
            raise channel.FrameError(f"a worker cannot handle message {op}")

    def _skip(self) -> None:
        self._taken += 1

    def _set_up(self, facts: dict[str, Any]) -> None:
        sys.path[:] = facts["sys_path"]
        if facts["cwd"]:
            os.chdir(facts["cwd"])
        self._engine.duty.setup.update(facts)
        surroundings.set_threads(1.0)
        if facts["has_gpus"]:
            surroundings.set_gpus(())

    def _complete(self, work: Work, args: Any, dependencies: Any, borrowed: Any) -> None:
        engine, arrive = self._engine, self._code.arrive
        work.held = engine.known.hold(borrowed) if borrowed else []
        # Dependencies first: their descriptors were sent before the descriptor of the arguments.
        if dependencies:
            work.dependencies = [
                (object_id, arrive(payload, engine.known.hold(contained)))
                for object_id, payload, contained in dependencies
            ]
        if args is not None:
            work.args = arrive(args, work.held)
        direct = engine.direct
        is_behind = direct.is_called and work.method and not work.reply_to
        if is_behind and direct.keep_if_early(work.task_id >> 40, work):
            return
        self._row.add(work)

    def _cancel(self, task_id: int, recursive: bool) -> None:
        direct = self._engine.direct
        if direct.cancel(task_id, recursive=recursive):  # this worker's own call; its result is promised to others
            return
        self._engine.duty.cancelled.add(task_id)
        if recursive:  # the driver does not know direct calls: not those of this work, nor whether this work is one
            direct.cancel_children(task_id)
            self._engine.channel.post((messages.CANCEL_CHILDREN, task_id))
        work = self._row.remove(task_id, self._engine.channel.words[journal.WITHDRAWN])
        if work is not None:
            self._answers.report_unstarted(work)
            self._engine.outbox.flush()
            return
        if self._actor.loop is not None:
            self._actor.loop.cancel(task_id)
        self._interruption.cancel(task_id)
