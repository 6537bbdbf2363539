"""The user's code, run: tasks, constructors, methods."""

from __future__ import annotations

import functools
import os
import threading
import time
import traceback
from typing import Any

from hocket import exceptions
from hocket.engine import callers, contract, faults, items, methods, values
from hocket.engine.local import event_loop, messages, payloads, surroundings, worker_engine
from hocket.engine.local.work import Work
from hocket.engine.local.worker import intake, state, threads


class Execution(intake.Intake):
    """Runs work."""

    def _run_work(self, work: Work) -> int | None:
        """Run it and put its results in the outbox; return an exit code if it ends the process."""
        engine = self._engine
        if (
            work.method and work.task_id in engine.cancelled
        ):  # when it was in no row; a plain task looks again in `_call`
            self.report_unstarted(work)
            return None
        # Only where several run at once does it depend on who asks.
        running = engine.running if self._is_concurrent or self._loop is not None else self._own_running
        self.note_start(work, running)
        place = engine.channel.note_running(work.task_id) if self._is_concurrent else None
        started = work.started
        if started - engine.last_flush > state.FLUSH_SECONDS and engine.has_unsent():
            with engine.lock:
                engine.flush()
        elif engine.reactor.is_asleep and engine.has_unsent():
            with engine.lock:
                engine.flush_later()
        try:
            if faults.plan is not None:
                faults.plan.reach("worker.before_task")
            result = self._compute(work, running)
        except exceptions.ActorExit:
            self.exit_actor()
            return 0
        except SystemExit as request:
            if self._actor is not None and not request.code:  # as Ray: an actor that leaves in peace is not built again
                self.exit_actor()
                return 0
            place = None  # it runs to the end of the process, which is its death
            self._send_exit(request)
            # As the system has it: one byte.
            return request.code & 0xFF if isinstance(request.code, int) else 0 if request.code is None else 1
        except BaseException as error:  # whatever the user's code raises is the caller's to see
            self._interruptible_id = 0
            if running.is_exiting:
                self.exit_actor()
                return 0
            self.report(work, error)
        else:
            self.send_result(work, result, started)
        finally:
            self._note_end(work, running, place)
        return None

    def _run_in_thread(self, work: Work) -> None:
        """Run it in a thread. What is raised here would vanish with the thread, and the caller wait for ever: so it
        ends the process."""
        try:
            code = None if self._has_left else self._run_work(work)
            work.clear()  # it holds handles
            with self._engine.lock:
                self._engine.before_wait()
            if code is not None:
                os._exit(code)
        except BaseException:  # our own mistake, or a process that has lost its descriptors
            traceback.print_exc()
            os._exit(1)

    def note_start(self, work: Work, running: worker_engine.Running) -> None:
        """Write down what runs now, for ourselves and for the driver, which has to explain our death."""
        running.task_id = work.task_id
        running.work = work
        running.is_exiting = False
        self._status[self._slot] = work.task_id
        self._start_times[self._slot + messages.STATUS_SLOTS] = work.started = time.perf_counter()

    def _compute(self, work: Work, running: worker_engine.Running) -> object:
        """Run the user's code; return its result."""
        result = self._call(work)
        if work.num_returns < 0:
            self._send_items(work, result)
            result = None
        if running.is_exiting:
            raise exceptions.ActorExit
        if work.method and work.task_id in self._engine.cancelled:
            raise exceptions.TaskCancelledError(f"Call `{work.name}` was cancelled while it ran.")
        return result

    def _note_end(self, work: Work, running: worker_engine.Running, place: int | None) -> None:
        """What ran has been answered, unless it ends the process."""
        running.task_id = 0
        running.work = None  # it holds handles
        cancelled = self._engine.cancelled
        if cancelled:
            cancelled.discard(work.task_id)
        state.flush_streams()
        if place is not None:
            self._engine.channel.note_ended(place)

    # --- one call -----------------------------------------------------------------------------------------------------

    def _call(self, work: Work) -> Any:
        if work.method:
            function = self.find_method(work)
        else:
            try:
                function = self._load(work.function_id)
            except BaseException:
                with self._engine.lock:
                    self._close_unopened(work)
                raise
        extra = work.extra
        if extra is not None and not work.method:
            self._prepare(extra)
            args, kwargs = self.open_arguments(work)
            if extra.get("creates_actor"):
                return self._create_actor(work, function, args, kwargs)
        else:
            if not work.method:
                self._engine.inherit(None)
            args, kwargs = self.open_arguments(work)
        if self._threads is None and threading.get_ident() == self._main_id and not work.method:
            self._interruptible_id = work.task_id
        try:
            if self._interruptible_id and work.task_id in self._engine.cancelled:  # while it was being opened
                self._cancelling_id = work.task_id
                raise KeyboardInterrupt
            result = function(*args, **kwargs)
            if type(result) in items.KINDS and items.is_to_be_taken(result, work.num_returns, function):
                result = items.take(
                    items.iterate(result) if hasattr(result, "__aiter__") else result, work.num_returns, work.name
                )
            return result
        finally:
            self._interruptible_id = 0

    def _load(self, function_id: bytes) -> object:
        function = self._functions.get(function_id)
        if function is None:
            function = self._functions[function_id] = self._engine.open_code(self._codes[function_id])
            del self._codes[function_id]  # not before: what could not be loaded now may be loaded for the next task
        return function

    def _prepare(self, extra: dict[str, Any]) -> None:
        """Take on what the task asks of the process around it."""
        environment = extra.get("environment", "")
        if environment and environment != self._environment:
            self._environment = environment
            surroundings.apply_environment(environment)
        inherited = contract.Inherited(environment, extra["group_id"] if extra.get("captures_children") else 0)
        self._engine.inherit(inherited if inherited != contract.NOTHING_INHERITED else None)
        surroundings.set_threads(extra.get("resources", {}).get("CPU", 1.0))
        if "gpu_ids" in extra:
            surroundings.set_gpus(extra["gpu_ids"])

    def open_arguments(self, work: Work) -> tuple[tuple[object, ...], dict[str, object]]:
        if work.args is None:
            return (), {}
        given, work.args = work.args, None
        if given.payload[0] == payloads.INLINE:
            args, kwargs = values.decode(given.payload[1], (), given.held)
        else:
            args, kwargs = self._open_once(given, given.payload[2] if len(given.payload) > 2 else 0)
        del given
        if work.dependencies:
            dependencies, work.dependencies = work.dependencies, []
            if len(dependencies) < values.MANY:
                found = [self._open_once(arrived, object_id) for object_id, arrived in dependencies]
            else:
                with values.hold_collector():
                    found = [self._open_once(arrived, object_id) for object_id, arrived in dependencies]
            del dependencies
            args, kwargs = values.fill_slots(args, kwargs, found)
        return args, kwargs

    def _open_once(self, arrived: worker_engine.Arrived, object_id: Any) -> Any:
        return self._engine.open_payload(object_id, arrived)

    def _create_actor(self, work: Work, actor_class: Any, args: tuple[object, ...], kwargs: dict[str, Any]) -> None:
        extra = work.extra or {}
        self._engine.actor_id = work.task_id
        self._engine.actor_extra = {name: value for name, value in extra.items() if name != "creates_actor"}
        construct = functools.partial(actor_class, *args, **kwargs)
        try:
            if extra.get("is_async"):
                loop = event_loop.Loop(self, self._engine, extra["max_concurrency"], dict(extra["groups"]))
                self._actor = loop.build(construct)
                self._loop = loop  # not before: what has come meanwhile stays in the row until the loop serves it
                return
            self._actor = construct()
        except BaseException as error:
            self._actor_error = payloads.encode_error(self._explain(work, error))
            raise
        self._is_concurrent = bool(extra.get("groups")) or extra.get("max_concurrency", 1) > 1
        for name, size in extra.get("groups", ()):
            self._groups[name] = threads.CallThreads(size, f"hocket-{name}", self._run_in_thread)
        if self._groups:
            with self._engine.lock:  # what came while it was being built
                remaining = [work for work in self._row if not self._give_to_group(work)]
                self._row.clear()
                self._row.extend(remaining)
        if extra.get("max_concurrency", 1) > 1:
            self._threads = threads.CallThreads(extra["max_concurrency"], "hocket-call", self._run_in_thread)

    def _send_items(self, work: Work, found: Any) -> None:
        """Run a generator and send what it yields."""
        if hasattr(found, "__aiter__"):
            found = items.iterate(found)
        ahead = self.open_flow(work)
        try:
            if threading.get_ident() == self._main_id and self._threads is None and not work.method:
                self._interruptible_id = work.task_id
            for index, item in enumerate(iter(found)):
                is_full = ahead.add(self.send_item(work, index, item))
                if is_full:
                    self.announce_pause(work, ahead)
                    self._engine.wait_lending(lambda: not ahead.is_full() or work.task_id in self._engine.cancelled)
                if work.task_id in self._engine.cancelled:
                    self._interruptible_id = 0
                    raise exceptions.TaskCancelledError(f"`{work.name}` was cancelled after item {index}.")
        finally:
            self._interruptible_id = 0
            self.close_flow(work)
            if hasattr(found, "close"):
                found.close()  # now, and not when the last frame that holds it is gone

    def find_method(self, work: Work) -> Any:
        """Return what the call is to run."""
        if self._actor_error is not None:
            raise self._build_init_error()
        return methods.get_method(self._actor, work.method)

    def _name_function(self, running: worker_engine.Running) -> str:
        work = running.work
        if work is None:
            return ""
        if work.method:
            return callers.name_function(type(self._actor), work.method)
        function = self._functions.get(work.function_id)
        return callers.name_function(function, "__init__" if isinstance(function, type) else "")

    def _build_init_error(self) -> exceptions.ActorDiedError:
        """Return the error of a call that was on its way when the constructor raised. The driver says the same to those
        that come later."""
        assert self._actor_error is not None
        kind, name = (self._engine.actor_extra.get(key, "") for key in ("class_name", "actor_name"))
        return exceptions.ActorDiedError(
            f"Actor `{kind}`{f' (named {name!r})' if name else ''} is dead: its constructor raised an exception:",
            actor_id=f"{self._engine.actor_id:016x}",
            actor_init_failed=True,
            cause_data=self._actor_error[1],
        )
