"""The user's code, run: tasks, constructors, methods."""

from __future__ import annotations

import functools
import mmap
import os
import threading
import time
import traceback
from typing import Any, final

from hocket import exceptions
from hocket.engine import contract, faults, items
from hocket.engine.local import event_loop, messages, payloads, surroundings, worker_engine
from hocket.engine.local.work import Work
from hocket.engine.local.worker import answers, life, residents, row


@final
class Status:
    """The record of the running task, for the driver, which has to explain this process's death.

    Args:
        memory: The table that all processes share.
        slot: The slot of this process.
    """

    def __init__(self, memory: mmap.mmap, slot: int) -> None:
        self._tasks = memoryview(memory).cast("Q")
        self._times = memoryview(memory).cast("d")
        self._slot = slot

    def note_start(self, work: Work, running: worker_engine.Running) -> None:
        """Record that the work runs now."""
        running.begin(work.task_id, work)
        self._tasks[self._slot] = work.task_id
        self._times[self._slot + messages.STATUS_SLOTS] = work.started = time.perf_counter()


@final
class Execution:
    """The runner of the user's code.

    Args:
        engine: The worker's engine.
        subject: The actor, if there is one.
        functions: The code of functions, and the values in messages.
        works: The queue of work.
        told: Sends results.
        interrupted: The interruption of the running task.
        end: The end of the process.
        status: The record of the running work.
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
        status: Status,
    ) -> None:
        self._engine, self._actor, self._code, self._row = engine, subject, functions, works
        self._answers, self._interruption, self._life, self._status = told, interrupted, end, status
        self._outcomes: answers.Outcomes = told
        #: The work of the main thread.
        self._own_running = engine.duty.running
        #: The runtime environment that the process has taken on.
        self._environment = ""

    def cut_off(self) -> None:
        """Have a fork end where the function that forked ends."""
        self._outcomes = answers.ForkedOutcomes()

    def run(self, work: Work) -> int | None:
        """Run work and put its results in the outbox; return an exit code if it ends the process."""
        engine = self._engine
        if (
            work.method and work.task_id in engine.duty.cancelled
        ):  # cancelled while it was in no queue; a plain task looks again in `_call`
            self._answers.report_unstarted(work)
            return None
        # Only where several calls run at once does each thread or coroutine have its own.
        is_shared = self._actor.is_concurrent or self._actor.loop is not None
        running = engine.duty.running if is_shared else self._own_running
        self._status.note_start(work, running)
        place = engine.channel.note_running(work.task_id) if self._actor.is_concurrent else None
        started = work.started
        post = engine.outbox
        if started - post.last_flush > answers.FLUSH_SECONDS and post.has_unsent():
            with engine.lock:
                post.flush()
        elif engine.reactor.is_asleep and post.has_unsent():
            with engine.lock:
                post.send_later()
        try:
            if faults.plan is not None:
                faults.plan.reach("worker.before_task")
            result = self._compute(work, running)
        except exceptions.ActorExit:
            self._exit_actor()
            return 0
        except SystemExit as request:
            # As in Ray: an actor that exits without an error is not built again.
            if self._actor.instance is not None and not request.code:
                self._exit_actor()
                return 0
            place = None  # the call counts as running when the process dies
            self._life.exit_process(request)
            # The system keeps one byte of the code.
            return request.code & 0xFF if isinstance(request.code, int) else 0 if request.code is None else 1
        except BaseException as error:  # whatever the user's code raises is the caller's to see
            self._interruption.close()
            if running.is_exiting:
                self._exit_actor()
                return 0
            self._outcomes.report(work, error)
        else:
            self._outcomes.send_result(work, result, started)
        finally:
            self._note_end(work, running, place)
        return None

    def _exit_actor(self) -> None:
        """End the actor at its own request."""
        self._life.exit_actor()
        if self._actor.loop is None:  # else the loop does this when it has stopped
            self._life.finish()

    def _run_in_thread(self, work: Work) -> None:
        """Run a call in a thread. An exception here ends the process: else it would vanish with the thread, and the
        caller would wait for ever."""
        try:
            code = None if self._life.has_left else self.run(work)
            work.clear()  # it holds handles
            with self._engine.lock:
                self._engine.outbox.before_wait()
            if code is not None:
                os._exit(code)
        except BaseException:  # a fault of this package, or a process that has lost its descriptors
            traceback.print_exc()
            os._exit(1)

    def _compute(self, work: Work, running: worker_engine.Running) -> object:
        """Run the user's code; return its result."""
        result = self._call(work)
        if work.num_returns < 0:
            self._send_items(work, result)
            result = None
        if running.is_exiting:
            raise exceptions.ActorExit
        if work.method and work.task_id in self._engine.duty.cancelled:
            raise exceptions.TaskCancelledError(f"Call `{work.name}` was cancelled while it ran.")
        return result

    def _note_end(self, work: Work, running: worker_engine.Running, place: int | None) -> None:
        """Note that the work has its answer, unless it ends the process."""
        running.end()
        cancelled = self._engine.duty.cancelled
        if cancelled:
            cancelled.discard(work.task_id)
        life.flush_streams()
        if place is not None:
            self._engine.channel.note_ended(place)

    # --- one call -----------------------------------------------------------------------------------------------------

    def _call(self, work: Work) -> Any:
        if work.method:
            function = self._actor.find_method(work)
        else:
            try:
                function = self._code.load(work.function_id)
            except BaseException:
                with self._engine.lock:
                    self._code.close_unopened(work)
                raise
        extra = work.extra
        if extra is not None and not work.method:
            self._prepare(extra)
            args, kwargs = self._code.open_arguments(work)
            if extra.get("creates_actor"):
                return self._create_actor(work, function, args, kwargs)
        else:
            if not work.method:
                self._engine.inherit(None)
            args, kwargs = self._code.open_arguments(work)
        cancelled = self._engine.duty.cancelled
        if self._is_in_main(work):
            self._interruption.open(work.task_id)
        try:
            self._interruption.raise_if_cancelled(work.task_id, cancelled)  # while it was being opened
            result = function(*args, **kwargs)
            if type(result) in items.KINDS and items.is_to_be_taken(result, work.num_returns, function):
                result = items.take(
                    items.iterate(result) if hasattr(result, "__aiter__") else result, work.num_returns, work.name
                )
            return result
        finally:
            self._interruption.close()

    def _prepare(self, extra: dict[str, Any]) -> None:
        """Prepare the process for a task: its environment, inherited options, threads and GPUs."""
        environment = extra.get("environment", "")
        if environment and environment != self._environment:
            self._environment = environment
            surroundings.apply_environment(environment)
        inherited = contract.Inherited(environment, extra["group_id"] if extra.get("captures_children") else 0)
        self._engine.inherit(inherited if inherited != contract.NOTHING_INHERITED else None)
        surroundings.set_threads(extra.get("resources", {}).get("CPU", 1.0))
        if "gpu_ids" in extra:
            surroundings.set_gpus(extra["gpu_ids"])

    def _is_in_main(self, work: Work) -> bool:
        """Tell whether work may be interrupted: only a task in the main thread may."""
        return not work.method and self._row.threads is None and threading.get_ident() == self._interruption.main_id

    def _create_actor(self, work: Work, actor_class: Any, args: tuple[object, ...], kwargs: dict[str, Any]) -> None:
        extra = work.extra or {}
        own = {name: value for name, value in extra.items() if name != "creates_actor"}
        self._engine.duty.become_actor(work.task_id, own)
        construct = functools.partial(actor_class, *args, **kwargs)
        size, groups = extra.get("max_concurrency", 1), dict(extra.get("groups") or ())
        try:
            if extra.get("is_async"):
                parts = event_loop.Parts(self._life, self._actor, self._code, self._answers, self._status)
                loop = event_loop.Loop(self._engine, parts, size, groups)
                instance = loop.build(construct)
                # Not before: calls that have come meanwhile stay in the queue until the loop serves them.
                self._actor.become(instance, loop, is_concurrent=False)
                return
            instance = construct()
        except BaseException as error:
            self._actor.note_error(payloads.encode_error(self._answers.explain(work, error)))
            raise
        self._actor.become(instance, None, is_concurrent=bool(groups) or size > 1)
        self._row.start_threads(size, groups, self._run_in_thread)

    def _send_items(self, work: Work, found: Any) -> None:
        """Run a generator and send its items."""
        if hasattr(found, "__aiter__"):
            found = items.iterate(found)
        ahead, cancelled = self._answers.open_flow(work), self._engine.duty.cancelled
        try:
            if self._is_in_main(work):
                self._interruption.open(work.task_id)
            for index, item in enumerate(iter(found)):
                is_full = ahead.add(self._outcomes.send_item(work, index, item))
                if is_full:
                    self._answers.announce_pause(work, ahead)
                    self._engine.values.wait_lending(lambda: not ahead.is_full() or work.task_id in cancelled)
                if work.task_id in cancelled:
                    self._interruption.close()
                    raise exceptions.TaskCancelledError(f"`{work.name}` was cancelled after item {index}.")
        finally:
            self._interruption.close()
            self._answers.close_flow(work)
            if hasattr(found, "close"):
                found.close()  # now, and not with the last frame that holds it
