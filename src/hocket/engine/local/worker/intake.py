"""What the driver and other workers want done: messages become work in the row, and leave it again.

While the main thread is busy, the background reader (see `reactor`) reads the socket: it puts new work at the end of
the row, and interrupts a task that is cancelled.
"""

from __future__ import annotations

import _thread
import atexit
import inspect
import os
import signal
import sys
import time
from types import FrameType
from typing import Any, Final

from hocket import texts
from hocket.engine import contract
from hocket.engine.local import channel, journal, messages, payloads, surroundings, worker_engine
from hocket.engine.local.work import Work
from hocket.engine.local.worker import answers, state

AGAIN_SECONDS: Final = 0.02
"""After how long a task is interrupted again that was in the middle of an import. A guess."""


class Intake(answers.Answers):
    """Takes work."""

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
            if found is not None:  # else an earlier attempt had asked
                found.take(message[2])
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
        direct = engine.direct
        is_behind = direct.is_called and work.method and not work.reply_to
        if is_behind and direct.keep_if_early(work.task_id >> 40, work):
            return
        self._enqueue(work)

    def _arrive(self, payload: payloads.Payload, held: list[contract.ObjectRef[object]]) -> worker_engine.Arrived:
        if payload[0] == payloads.SEGMENT:
            payload = (*payload, self._engine.channel.take_descriptor())
        return worker_engine.Arrived(payload, held)

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
        self._groups[group].submit(work)
        return True

    # --- what is not done here ----------------------------------------------------------------------------------------

    def _hand_back(self, work: Work) -> None:
        """The driver has withdrawn the task. It may not have seen that we were about to start it, so tell it that we
        did not."""
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

    def _cancel(self, task_id: int, *, recursive: bool) -> None:
        """Called with the lock held, by the background reader if the main thread is busy."""
        direct = self._engine.direct
        if direct.cancel(task_id, recursive=recursive):  # a call of ours, whose result we have promised to others
            return
        self._engine.cancelled.add(task_id)
        withdrawn = self._words[journal.WITHDRAWN]
        if recursive:  # the driver cancels what it knows of; it does not know direct calls, nor that this is one
            direct.cancel_children(task_id)
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

    def _on_interrupt(self, signal_number: int, frame: FrameType | None) -> None:
        if self._interruptible_id and self._interruptible_id == self._cancelling_id:
            if _is_importing(frame):  # a module that was broken off might never be imported in this process again
                _thread.start_new_thread(self._interrupt_again, (self._cancelling_id,))
                return
            self._interruptible_id = 0
            raise KeyboardInterrupt

    def _interrupt_again(self, task_id: int) -> None:
        time.sleep(AGAIN_SECONDS)
        if self._interruptible_id == task_id:
            signal.pthread_kill(self._main_id, signal.SIGINT)

    def _check(self) -> None:
        """Call the handlers of signals that had to wait. What they raise is the running task's; without one, it is
        printed."""
        guard = self._engine.guard
        if not guard.noted:
            return
        if self._engine.running.task_id:
            guard.check()
        else:
            guard.check_and_print()

    # --- the end ------------------------------------------------------------------------------------------------------

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
        except Exception as error:  # the process ends all the same, and the user sees why the hook did not work
            sys.stderr.write(texts.format_error(error))
        with self._engine.lock:
            self._engine.before_wait()
        state.flush_streams()

    def exit_actor(self) -> None:
        """The actor ends itself: tell the driver first, so that it is not taken for a crash."""
        with self._engine.lock:
            self._has_left = True
            self._engine.channel.post((messages.EXITING,))
        if self._loop is None:  # else the loop says goodbye when it has stopped
            self.finish()

    def _send_exit(self, request: SystemExit) -> None:
        """`sys.exit` in a task ends the process, as it says; the driver learns the code from its parent."""
        if request.code is not None and not isinstance(request.code, int):
            sys.stderr.write(f"{request.code}\n")
        self.finish()


def _is_importing(frame: FrameType | None) -> bool:
    """Tell whether the task imports a module there."""
    while frame is not None and not frame.f_globals.get("__name__", "").startswith("hocket.engine.local.worker."):
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False
