"""What a worker process runs: take a task from the row, run it, send what it returned.

The main thread runs tasks, and the calls of ordinary actors; an actor with ``max_concurrency > 1`` gets that many threads.
While the main thread is busy, the steward (see `pump`) reads the socket: it puts new work at the end of the row, and
interrupts a task that is cancelled.

Results are sent together when the row is empty, and at the latest `FLUSH_SECONDS` after the first of them, or by the
steward. They are safe before the next task starts: see `journal`, and there also how the hub takes back what has not
started. What a task prints is flushed before its result is sent.
"""

from __future__ import annotations

import atexit
import faulthandler
import functools
import inspect
import mmap
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections import deque
from concurrent import futures
from typing import Any

import cloudpickle  # noqa: F401 (most functions come in its form: it is to be here before the guardian forks)

from hocket import exceptions, texts
from hocket.engine import callers, contract, faults, forks, items, methods, rules, values
from hocket.engine.local import channel, client, debugger, event_loop, flow, journal, messages, payloads, surroundings
from hocket.kernel import records

FLUSH_SECONDS = 0.001
"""How long a result may wait for company."""


Sent = tuple[payloads.Payload, tuple[int, ...]]
"""A result, and the ids of the references inside it."""


class Work:
    """One task or call that stands in the row."""

    __slots__ = (
        "args",
        "dependencies",
        "extra",
        "function_id",
        "held",
        "method",
        "name",
        "num_returns",
        "number",
        "reply_to",
        "started",
        "task_id",
    )

    def __init__(self, task_id: int, name: str, num_returns: int) -> None:
        self.task_id = task_id
        self.name = name
        self.num_returns = num_returns
        self.function_id = b""
        #: Its place in all that the hub has sent; 0 for a direct call.
        self.number = 0
        #: The worker that called directly; 0 is the hub.
        self.reply_to = 0
        self.method = ""
        self.extra: dict[str, Any] | None = None
        self.args: client.Arrived | None = None
        self.dependencies: list[tuple[int, client.Arrived]] = []
        self.held: list[contract.ObjectRef[Any]] = []
        #: When it was started; 0 if it was not.
        self.started = 0.0

    def clear(self) -> None:
        """Let go of what it holds."""
        self.args = None
        self.dependencies = []
        self.held = []


class Worker:
    """The process's work, and its actor if it has one."""

    def __init__(self, engine: client.Client, status: mmap.mmap, slot: int) -> None:
        self._engine = engine
        self._status = memoryview(status).cast("Q")
        self._start_times = memoryview(status).cast("d")
        self._slot = slot
        self._words = engine.channel.words
        self._row: deque[Work] = deque()
        #: How many tasks and calls the hub has sent.
        self._taken = 0
        self._codes: dict[bytes, client.Arrived] = {}
        self._functions: dict[bytes, Any] = {}
        self._actor: Any = None
        self._actor_error: payloads.Payload | None = None
        self._threads: futures.ThreadPoolExecutor | None = None
        self._groups: dict[str, futures.ThreadPoolExecutor] = {}
        self._loop: event_loop.Loop | None = None
        #: Whether several calls may run at once, in threads.
        self._is_concurrent = False
        self._flows: dict[int, flow.Flow] = {}
        self._environment = ""
        self._is_stopping = False
        self._is_exiting = False
        self._interruptible_id = 0
        self._cancelling_id = 0
        self._main_id = threading.get_ident()
        #: What the main thread runs.
        self._own_running = engine.running
        engine.on_work = self._take_message
        engine.on_late = self._enqueue
        engine.on_exit = self._note_exit
        engine.name_function = self._name_function
        engine.take_unstarted = self._take_unstarted
        engine.check = self._check
        engine.guard.install()
        signal.signal(signal.SIGINT, self._on_interrupt)

    def run(self) -> int:
        """Work until told to stop; return the exit code."""
        row, engine = self._row, self._engine
        engine.pump.start()  # not before `on_work` is set: the steward would read work and drop it

        def has_work() -> bool:
            return bool(row) or self._is_stopping or self._is_exiting

        while True:
            engine.pump.wait_until(has_work)
            if self._is_exiting:
                self.exit_actor()
                return 0
            code = self._run_row()
            if code is not None:
                return code
            if self._is_stopping and not row:
                engine.pump.wait_until(lambda: not engine.owes())
                for pool in (self._threads, *self._groups.values()):
                    if pool is not None:
                        pool.shutdown()
                self.finish()
                return 0

    def _run_row(self) -> int | None:
        """Run what stands in the row; return an exit code if that ends the process."""
        row, words = self._row, self._words
        while row and not self._is_exiting:
            try:
                work = row.popleft()
            except IndexError:  # another thread gave the last one back
                break
            if self._threads is not None:
                self._threads.submit(self._run_in_thread, work)
                continue
            if work.number:
                words[journal.BEGUN] = work.number
                if work.number <= words[journal.WITHDRAWN]:
                    self._hand_back(work)
                    continue
            code = self._run_work(work)
            del work
            if code is not None:
                return code
            if self._loop is not None:
                return self._loop.run(row)
        return None

    @property
    def is_stopping(self) -> bool:
        """Whether the process is to end when it has done what it has."""
        return self._is_stopping

    def finish(self) -> None:
        """Say goodbye: the actor's own hook, the interpreter's exit functions, and what is unsent."""
        hook = getattr(self._actor, "__ray_shutdown__", None)
        try:
            if hook is not None:
                farewell = hook()
                if inspect.isawaitable(farewell) and self._loop is not None:
                    self._loop.complete(farewell)
            atexit._run_exitfuncs()
        except Exception as error:  # noqa: BLE001 (the process ends all the same, and the user sees why the hook did not work)
            sys.stderr.write(texts.format_error(error))
        with self._engine.lock:
            self._engine.before_wait()
        _flush_streams()

    def cut_off(self) -> None:
        """In a fork of this process: have it end where the function that it came from ends. Nothing of it is sent."""
        contract.set_current_engine(None)
        self._engine.cut_off()
        faulthandler.disable()  # its file tells of this worker's death, not of a fork's
        if signal.getsignal(signal.SIGINT) == self._on_interrupt:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if self._loop is not None:
            self._loop.cut_off()
        ends: dict[str, Any] = {
            "send_result": lambda work, result, started: forks.end(),
            "send_item": lambda work, index, item: forks.end(RuntimeError(forks.YIELDED)),
            "report": lambda work, error: forks.end(error),
            "exit_actor": forks.end,
            "_send_exit": forks.end,
        }
        for name, method in ends.items():
            setattr(self, name, method)

    # --- messages -----------------------------------------------------------------------------------------------------

    def _take_message(self, message: channel.Message) -> None:  # noqa: C901, PLR0912, PLR0915 (one flat table)
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
            if self._engine.switchboard.is_called:
                self._engine.switchboard.read_first(task_id >> 40)
            self._complete(work, args, dependencies, borrowed)
        elif op == messages.DIRECT:
            _, task_id, method, args, num_returns, name, group = message
            work = Work(task_id, name, num_returns)
            work.method = method
            work.reply_to = task_id >> 40
            if group:
                work.extra = {"group": group}
            self._complete(work, args, (), ())
        elif op == messages.FUNCTION:
            self._codes[message[1]] = self._arrive(message[2], [])
        elif op == messages.CANCEL:
            self._cancel(message[1], recursive=message[2])
        elif op == messages.STOP:
            self._is_stopping = True
        elif op == messages.SKIP:
            self._taken += 1
        elif op == messages.CONSUMED:
            found = self._flows.get(message[1])
            if found is not None:
                found.take(message[2] + 1)
        elif op == messages.FORGET:
            self._forget(message[1])
        elif op == messages.SETUP:
            self._set_up(message[1])
        else:
            raise channel.FrameError(f"a worker cannot handle message {op}")

    def _forget(self, function_id: bytes) -> None:
        """Let the code of a function go; it may not even have been loaded."""
        self._functions.pop(function_id, None)
        code = self._codes.pop(function_id, None)
        if code is not None and code.payload[0] == payloads.SEGMENT:
            os.close(code.payload[-1])
            self._engine.channel.post((messages.UNMAP, code.payload[2]))

    def _set_up(self, facts: dict[str, Any]) -> None:
        sys.path[:] = facts["sys_path"]
        if facts["cwd"]:
            os.chdir(facts["cwd"])
        self._engine.setup.update(facts)
        surroundings.set_threads(1.0)
        if facts["has_gpus"]:
            surroundings.set_gpus(())

    def _complete(self, work: Work, args: Any, dependencies: Any, borrowed: Any) -> None:
        engine = self._engine
        work.held = engine.hold(borrowed) if borrowed else []
        # Dependencies first: their descriptors were sent before that of the arguments.
        if dependencies:
            work.dependencies = [
                (object_id, self._arrive(payload, engine.hold(contained)))
                for object_id, payload, contained in dependencies
            ]
        if args is not None:
            work.args = self._arrive(args, work.held)
        switchboard = engine.switchboard
        is_behind = switchboard.is_called and work.method and not work.reply_to
        if is_behind and switchboard.keep_if_early(work.task_id >> 40, work):
            return
        self._enqueue(work)

    def _enqueue(self, work: Work) -> None:
        """Give the work to whoever runs it."""
        if self._groups and self._give_to_group(work):
            return
        self._row.append(work)
        if self._loop is not None:
            self._loop.notice()

    def _give_to_group(self, work: Work) -> bool:
        """Give the call to the threads of its concurrency group; False if it belongs to none."""
        group = (work.extra or {}).get("group")
        if not group or work.function_id:
            return False
        self._groups[group].submit(self._run_in_thread, work)
        return True

    def _arrive(self, payload: payloads.Payload, held: list[contract.ObjectRef[Any]]) -> client.Arrived:
        if payload[0] == payloads.SEGMENT:
            payload = (*payload, self._engine.channel.take_descriptor())
        return client.Arrived(payload, held)

    def _hand_back(self, work: Work) -> None:
        """The hub has withdrawn the task. It may not have seen that we were about to start it, so tell it that we did not."""
        with self._engine.lock:
            self._engine.cancelled.discard(work.task_id)
            self._close_unopened(work)
            self._engine.channel.post((messages.BACK, [(work.task_id, work.number)]))

    def _take_unstarted(self) -> list[tuple[int, int]]:
        """Empty the row; an actor's calls cannot go elsewhere and stay."""
        if self._actor is not None or self._actor_error is not None:
            return []
        taken: list[tuple[int, int]] = []
        row = self._row
        while row:
            try:
                work = row.pop()
            except IndexError:
                break
            if work.function_id and not (work.extra or {}).get("creates_actor"):
                taken.append((work.task_id, work.number))
                self._close_unopened(work)
            else:
                row.append(work)
                break
        taken.reverse()
        return taken

    def _close_unopened(self, work: Work) -> None:
        """Give back the descriptors and counts of work that is not done here."""
        for object_id, arrived in ((0, work.args), *work.dependencies):
            if arrived is not None and arrived.payload[0] == payloads.SEGMENT:
                os.close(arrived.payload[-1])
                self._engine.channel.post((messages.UNMAP, object_id or arrived.payload[2]))
        work.clear()

    def _cancel(self, task_id: int, *, recursive: bool) -> None:
        """Called with the lock held, by the steward if the main thread is busy."""
        switchboard = self._engine.switchboard
        if switchboard.cancel(task_id, recursive=recursive):  # a call of ours, whose result we have promised to others
            return
        self._engine.cancelled.add(task_id)
        withdrawn = self._words[journal.WITHDRAWN]
        if recursive:  # the hub cancels what it knows of; it does not know direct calls, nor that this is one
            switchboard.cancel_children(task_id)
            self._engine.channel.post((messages.CANCEL_CHILDREN, task_id))
        for work in list(self._row):
            if work.task_id == task_id and not 0 < work.number <= withdrawn:
                try:
                    self._row.remove(work)
                except ValueError:
                    break
                self.report_unstarted(work)
                self._engine.flush()
                return
        if self._loop is not None:
            self._loop.cancel(task_id)
        if self._interruptible_id == task_id:
            self._cancelling_id = task_id
            signal.pthread_kill(self._main_id, signal.SIGINT)

    def _on_interrupt(self, signal_number: int, frame: object) -> None:
        if self._interruptible_id and self._interruptible_id == self._cancelling_id:
            self._interruptible_id = 0
            raise KeyboardInterrupt

    def _check(self) -> None:
        """Call the handlers of signals that had to wait. What they raise is the running task's; without one, it is printed."""
        guard = self._engine.guard
        if not guard.is_pending:
            return
        if self._engine.running.task_id:
            guard.check()
        else:
            guard.check_and_print()

    # --- running ------------------------------------------------------------------------------------------------------

    def _run_in_thread(self, work: Work) -> None:
        """Run it in a thread of a pool. What is raised here would vanish in the pool, and the caller wait for ever: so it ends the process."""
        try:
            code = self._run_work(work)
        except BaseException:  # noqa: BLE001 (our own mistake, whatever it is)
            traceback.print_exc()
            os._exit(1)
        work.clear()  # the pool holds on to it, and with it to handles
        with self._engine.lock:
            self._engine.before_wait()
        if code is not None:
            os._exit(code)

    def note_start(self, work: Work) -> client.Running:
        """Write down, for ourselves and for whoever has to explain our death, what runs now."""
        # Only where several run at once does it depend on who asks.
        running = self._engine.running if self._is_concurrent or self._loop is not None else self._own_running
        running.task_id = work.task_id
        running.work = work
        running.is_exiting = False
        self._status[self._slot] = work.task_id
        self._start_times[self._slot + messages.STATUS_SLOTS] = work.started = time.perf_counter()
        return running

    def note_running(self, work: Work) -> int:
        """Note one of several calls that run at once; its death costs these, and no others."""
        with self._engine.lock:
            return self._engine.channel.note_running(work.task_id)

    def report_unstarted(self, work: Work) -> None:
        """A task or call was cancelled before it started."""
        kind = "Call" if work.method else "Task"
        error = exceptions.TaskCancelledError(f"{kind} `{work.name}` was cancelled before it started.")
        with self._engine.lock:
            self._engine.cancelled.discard(work.task_id)
            self._close_unopened(work)
            self._send_error(work, error)

    def _run_work(self, work: Work) -> int | None:
        """Run it and put its results in the outbox; return an exit code if it ends the process."""
        engine = self._engine
        if (
            work.method and work.task_id in engine.cancelled
        ):  # when it was in no row; a plain task looks again in `_call`
            self.report_unstarted(work)
            return None
        running = self.note_start(work)
        place = self.note_running(work) if self._is_concurrent else None
        started = work.started
        if started - engine.last_flush > FLUSH_SECONDS and engine.has_unsent():
            with engine.lock:
                engine.flush()
        try:
            if faults.plan is not None:
                faults.plan.reach("worker.before_task")
            result = self._compute(work, running)
        except exceptions.ActorExit:
            self.exit_actor()
            return 0
        except SystemExit as request:
            place = None  # it runs to the end of the process, which is its death
            self._send_exit(request)
            return request.code if isinstance(request.code, int) else 0 if request.code is None else 1
        except BaseException as error:  # noqa: BLE001 (whatever the user's code raises is the caller's to see)
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

    def _compute(self, work: Work, running: client.Running) -> Any:
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

    def _note_end(self, work: Work, running: client.Running, place: int | None) -> None:
        """What ran has been answered, unless it ends the process."""
        running.task_id = 0
        running.work = None  # it holds handles
        cancelled = self._engine.cancelled
        if cancelled:
            cancelled.discard(work.task_id)
        _flush_streams()
        if place is not None:
            with self._engine.lock:
                self._engine.channel.note_ended(place)

    def find_method(self, work: Work) -> Any:
        """Return what the call is to run."""
        if self._actor_error is not None:
            raise self._build_init_error()
        if work.method in _SPECIAL_METHODS:
            return functools.partial(_SPECIAL_METHODS[work.method], self._actor)
        return methods.get_method(self._actor, work.method)

    def _name_function(self, running: client.Running) -> str:
        work = running.work
        if work is None:
            return ""
        if work.method:
            return callers.name_function(type(self._actor), work.method)
        function = self._functions.get(work.function_id)
        return callers.name_function(function, "__init__" if isinstance(function, type) else "")

    def _note_exit(self) -> None:
        """The user's code asks for the actor's end. What runs comes to it by the exception; a thread or coroutine in the background does not."""
        if self._loop is not None:
            self._loop.exit_soon()
        elif not self._engine.running.task_id:
            with self._engine.lock:
                self._is_exiting = True
                self._engine.pump.poke()

    def _build_init_error(self) -> exceptions.ActorDiedError:
        """Return the error of a call that was on its way when the constructor raised. The hub says the same to those that come later."""
        assert self._actor_error is not None
        kind, name = (self._engine.actor_extra.get(key, "") for key in ("class_name", "actor_name"))
        return exceptions.ActorDiedError(
            f"Actor `{kind}`{f' (named {name!r})' if name else ''} is dead: its constructor raised an exception:",
            actor_id=f"{self._engine.actor_id:016x}",
            actor_init_failed=True,
            cause_data=self._actor_error[1],
        )

    def exit_actor(self) -> None:
        """The actor ends itself: tell the hub first, so that it is not taken for a crash."""
        with self._engine.lock:
            self._engine.channel.post((messages.EXITING,))
        if self._loop is None:  # else the loop says goodbye when it has stopped
            self.finish()

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
                self._engine.inherited = None
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
                    event_loop.iterate(result) if hasattr(result, "__aiter__") else result, work.num_returns, work.name
                )
            return result
        finally:
            self._interruptible_id = 0

    def _load(self, function_id: bytes) -> Any:
        function = self._functions.get(function_id)
        if function is None:
            code = self._codes.pop(function_id)
            object_id = code.payload[2] if code.payload[0] == payloads.SEGMENT else 0
            function = self._functions[function_id] = self._engine.open_payload(object_id, code)
        return function

    def _prepare(self, extra: dict[str, Any]) -> None:
        """Take on what the task asks of the process around it."""
        environment = extra.get("environment", "")
        if environment and environment != self._environment:
            self._environment = environment
            surroundings.apply_environment(environment)
        inherited = contract.Inherited(environment, extra["group_id"] if extra.get("captures_children") else 0)
        self._engine.inherited = inherited if inherited != contract.NOTHING_INHERITED else None
        surroundings.set_threads(extra.get("resources", {}).get("CPU", 1.0))
        if "gpu_ids" in extra:
            surroundings.set_gpus(extra["gpu_ids"])

    def open_arguments(self, work: Work) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if work.args is None:
            return (), {}
        args, kwargs = self._open_once(work.args, work.args.payload[2] if len(work.args.payload) > 2 else 0)
        work.args = None
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

    def _open_once(self, arrived: client.Arrived, object_id: Any) -> Any:
        return self._engine.open_payload(object_id, arrived)

    def _create_actor(self, work: Work, actor_class: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
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
            self._groups[name] = futures.ThreadPoolExecutor(size, f"hocket-{name}")
        if self._groups:
            with self._engine.lock:  # what came while it was being built
                remaining = [work for work in self._row if not self._give_to_group(work)]
                self._row.clear()
                self._row.extend(remaining)
        if extra.get("max_concurrency", 1) > 1:
            self._threads = futures.ThreadPoolExecutor(extra["max_concurrency"], "hocket-call")

    # --- answering ----------------------------------------------------------------------------------------------------

    def send_result(self, work: Work, result: Any, started: float) -> None:
        """Put the result in the outbox; one that cannot travel is the task's error."""
        try:
            self._send_result(work, result, time.perf_counter() - started, started)
        except BaseException as error:  # noqa: BLE001 (a user's __reduce__, or handler of a signal, may raise anything)
            self.report(work, error)

    def _send_items(self, work: Work, found: Any) -> None:
        """Run a generator and send what it yields."""
        if hasattr(found, "__aiter__"):
            found = event_loop.iterate(found)
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

    def open_flow(self, work: Work) -> flow.Flow:
        """Begin to count how far a generator is ahead of its reader."""
        extra = work.extra or {}
        found = self._flows[work.task_id] = flow.Flow(extra.get("backpressure", 0), extra.get("consumed", 0))
        return found

    def close_flow(self, work: Work) -> None:
        """The generator is over."""
        self._flows.pop(work.task_id, None)

    def announce_pause(self, work: Work, ahead: flow.Flow) -> None:
        """A generator waits for its reader: send what it has yielded, and ask to be told."""
        with self._engine.lock:
            wanted = ahead.find_wanted()
            if wanted:
                self._engine.channel.post((messages.PAUSED, work.task_id, wanted))
            self._engine.flush()

    def send_item(self, work: Work, index: int, item: Any) -> int:
        """Send one item of a generator; return how many bytes it takes."""
        encoded = values.encode(item, f"item {index} of `{work.name}`", by_index=True)
        engine = self._engine
        item_id = records.build_item_id(work.task_id, index)
        payload = engine.store.build_payload(encoded, item_id, lambda: self._describe_maker(work))
        with engine.lock:
            contained = tuple([ref._id for ref in encoded.refs])
            engine.publish(encoded.refs)
            engine.channel.post((messages.YIELD, work.task_id, index, engine.send_payload(payload), contained))
            if time.perf_counter() - engine.last_flush > FLUSH_SECONDS:
                engine.flush()
        return payloads.measure(payload)

    def _send_result(self, work: Work, result: Any, seconds: float, started: float) -> None:
        count = work.num_returns
        if count == 1 and not work.reply_to and values.is_plain(result) and faults.plan is None:  # the usual case
            data = values.encode_plain(result)
            if len(data) < values.BESIDE_BYTES:
                engine = self._engine
                with engine.lock:
                    if engine.metrics.families:
                        engine.post_metrics()
                    engine.channel.post((messages.PLAIN, work.task_id, data, seconds, started))
                return
            del data  # it goes to shared memory, below
        results = (result,) if abs(count) == 1 else () if count == 0 else _split(work, result, count)
        encoded = [
            self._encode_failure(work, value)
            if type(value) is items.Failure
            else values.encode(value, f"the result of `{work.name}`", by_index=True)
            for value in results
        ]
        if faults.plan is not None:
            faults.plan.reach("worker.before_result")
        sent = []
        for position, value in enumerate(encoded):
            payload = self._store_result(work, value, position) if value.buffers else (payloads.INLINE, value.data)
            if type(results[position]) is items.Failure:
                payload = (payloads.ERROR, value.data)
            sent.append((payload, tuple([ref._id for ref in value.refs])))
        self._post_results(work, encoded, sent, started, seconds)
        if faults.plan is not None:
            faults.plan.reach("worker.after_result")

    def _post_results(
        self, work: Work, encoded: list[values.Encoded], sent: list[Sent], started: float, seconds: float
    ) -> None:
        engine = self._engine
        with engine.lock:
            for value in encoded:
                if value.refs:
                    engine.publish(value.refs)
            if work.reply_to:
                self._answer(work, sent, started, seconds)
                return
            self._post_done(work, sent, started, seconds)

    def _post_done(self, work: Work, sent: list[Sent], started: float, seconds: float) -> None:
        """Publish the results: from here on they are safe."""
        engine = self._engine
        with engine.lock:
            if engine.metrics.families:
                engine.post_metrics()
            for payload, _ in sent:
                if payload[0] == payloads.SEGMENT:
                    engine.send_payload(payload)
            engine.channel.post((messages.DONE, work.task_id, seconds, sent, started))

    def _encode_failure(self, work: Work, failure: items.Failure) -> values.Encoded:
        """Encode the error that stands for one of several results."""
        return values.Encoded(values.encode_error(self._explain(work, failure.error)), [], [])

    def _answer(self, work: Work, sent: list[Sent], started: float, seconds: float) -> None:
        """Answer a direct call: by its line, or through the hub if the hub has to count something. With the lock held."""
        engine = self._engine
        engine.notes.append((work.task_id, work.name, started, seconds, None, ""))
        reply = engine.switchboard.find_reply(work.reply_to)
        if reply is not None and not any(contained or payload[0] == payloads.SEGMENT for payload, contained in sent):
            message = (messages.DONE, work.task_id, [payload for payload, _ in sent])
            if engine.switchboard.send_reply(reply, message):
                return
        for position, (payload, contained) in enumerate(sent):
            object_id = work.task_id + position
            engine.channel.post((messages.DELIVER, object_id, engine.send_payload(payload), contained))

    def _store_result(self, work: Work, value: values.Encoded, position: int) -> payloads.Payload:
        """Store a large result, in the name of the function that returned it."""
        engine = self._engine

        try:
            return engine.store.build_payload(value, work.task_id + position, lambda: self._describe_maker(work))
        except BaseException:
            with engine.lock:  # none of the results before it will be sent
                for earlier in range(work.task_id, work.task_id + position):
                    engine.store.pool.recycle(earlier)
            raise

    def _describe_maker(self, work: Work) -> str:
        function = methods.get_method(self._actor, work.method) if work.method else self._functions[work.function_id]
        return f"{callers.describe_function(function)} (returned by `{work.name}`)"

    def report(self, work: Work, error: BaseException) -> None:
        """Send the error of a task."""
        try:
            self._send_error(work, self._explain(work, error))
        except BaseException as failure:  # noqa: BLE001 (whatever it is, the caller has to be told something)
            text = f"{texts.describe(error)}\n(it could not be sent as it is: {texts.describe(failure)})"
            self._send_error(work, exceptions.TaskError(work.name, f"{text}\n", exceptions.HocketError(text)))

    def _explain(self, work: Work, error: BaseException) -> BaseException:
        """Return what the caller shall see.

        What came out of the user's code is a `TaskError`, with what it was on the innermost level; what the engine says of the task itself stays what it is.
        """
        kind = type(error)
        if issubclass(kind, KeyboardInterrupt):
            if self._cancelling_id == work.task_id:
                return exceptions.TaskCancelledError(f"Task `{work.name}` was cancelled while it ran.")
            return rules.build_interrupted(work.name, error)
        if issubclass(kind, exceptions.TaskCancelledError) and work.task_id in self._engine.cancelled:
            return error
        surroundings.add_hint(error, work.extra or self._engine.actor_extra)
        return rules.wrap_error(work.name, error)

    def _send_error(self, work: Work, error: BaseException) -> None:
        payload = payloads.encode_error(error)
        cause = exceptions.get_cause(error)
        error_type, text = texts.name_class(type(cause)), texts.safe_text(cause, 1000)
        seconds = time.perf_counter() - work.started if work.started else 0.0
        if work.reply_to:
            with self._engine.lock:
                note = (work.task_id, work.name, work.started, seconds, error_type, text)
                self._engine.notes.append(note)
                self._answer_error(work, payload)
            return
        message = (messages.FAILED, work.task_id, payload, error_type, text, work.started, seconds)
        with self._engine.lock:
            self._engine.channel.post(message)

    def _answer_error(self, work: Work, payload: payloads.Payload) -> None:
        """Answer a direct call that failed. Called with the lock held."""
        engine = self._engine
        reply = engine.switchboard.find_reply(work.reply_to)
        if reply is not None and engine.switchboard.send_reply(
            reply, (messages.FAILED, work.task_id, payload, max(1, work.num_returns))
        ):
            return
        for object_id in range(work.task_id, work.task_id + max(1, work.num_returns)):
            engine.channel.post((messages.DELIVER, object_id, payload, ()))

    def _send_exit(self, request: SystemExit) -> None:
        """`sys.exit` in a task ends the process, as it says; the hub learns the code from its parent."""
        if request.code is not None and not isinstance(request.code, int):
            sys.stderr.write(f"{request.code}\n")
        self.finish()


def _call_function(actor: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
    return function(actor, *args, **kwargs)


def _terminate(actor: Any) -> None:
    raise exceptions.ActorExit


_SPECIAL_METHODS: dict[str, Any] = {
    "__ray_ready__": lambda actor: True,
    "__ray_call__": _call_function,
    "__ray_terminate__": _terminate,
}
"""Methods that every actor has. The names are Ray's."""


def _split(work: Work, result: Any, count: int) -> tuple[Any, ...]:
    try:
        results = tuple(result)
    except TypeError:
        raise ValueError(
            f"Task `{work.name}` has num_returns={count} but returned a {type(result).__name__}, which cannot be taken apart. "
            f"Return a tuple of {count} values."
        ) from None
    if len(results) != count:
        raise ValueError(
            f"Task `{work.name}` has num_returns={count} but returned {len(results)} values. Return exactly {count}."
        )
    return results


def _flush_streams() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:  # not `suppress`, which costs a microsecond a task
            stream.flush()
        except (OSError, ValueError, AttributeError):
            pass


def main(worker_id: int, sock_fd: int, page_fd: int, status_fd: int, stack_fd: int, terminal: str | None) -> int:
    """Run a worker: the whole life of its process. Returns the exit code."""
    faulthandler.enable(stack_fd, all_threads=False)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.stdout is not None:
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    status = mmap.mmap(status_fd, messages.STATUS_BYTES)
    engine = client.Client(worker_id, socket.socket(fileno=sock_fd), page_fd)
    contract.set_current_engine(engine)
    debugger.install(terminal, status_fd, lambda: f"`{engine.running.name}`")
    runner = Worker(engine, status, worker_id % messages.STATUS_SLOTS)
    os.register_at_fork(after_in_child=runner.cut_off)
    return runner.run()
