"""Results, errors and items of tasks, on their way.

Results are sent together when the queue is empty, or when a task begins `FLUSH_SECONDS` after the last sending, or,
while a task runs, by the background reader. They are safe before the next task starts: see `journal`.
"""

from __future__ import annotations

import time
from typing import Any, Final, NoReturn, Protocol, final

from hocket import exceptions
from hocket._base import texts
from hocket.engine import faults, forks, items, rules, unsendable, values
from hocket.engine.events import Kind, State
from hocket.engine.local import flow, messages, payloads, surroundings, worker_engine
from hocket.engine.local.work import Work
from hocket.engine.local.worker import life, residents
from hocket.kernel import ids

FLUSH_SECONDS: Final = 0.001
"""How long a result may wait to be sent with others."""

_TASK, _CALL = Kind.TASK, Kind.CALL
"""Global names, which are faster than attributes."""

Sent = tuple[payloads.Payload, tuple[int, ...]]
"""A result, and the ids of the references inside it."""


class Outcomes(Protocol):
    """The receiver of results, errors and items of work."""

    def send_result(self, work: Work, result: object, started: float) -> None:
        """Put the result in the outbox; a result that cannot be sent becomes the task's error."""

    def report(self, work: Work, error: BaseException) -> None:
        """Send the error of a task."""

    def send_item(self, work: Work, index: int, item: object) -> int:
        """Send one item of a generator; return how many bytes it takes."""


@final
class ForkedOutcomes:
    """Outcomes in a fork that a task has made: the process ends where the task's function ends, and sends nothing."""

    def send_result(self, work: Work, result: object, started: float) -> NoReturn:
        forks.end()

    def report(self, work: Work, error: BaseException) -> NoReturn:
        forks.end(error)

    def send_item(self, work: Work, index: int, item: object) -> NoReturn:
        forks.end(RuntimeError(forks.YIELDED))


@final
class Answers:
    """The publisher of results, errors and items.

    Args:
        engine: The worker's engine.
        subject: The actor, if there is one.
        functions: The code of functions, and the values in messages.
        interrupted: Knows the interrupted task.
    """

    def __init__(
        self,
        engine: worker_engine.WorkerEngine,
        subject: residents.Actor,
        functions: residents.Code,
        interrupted: life.Interruption,
    ) -> None:
        self._engine, self._actor, self._code, self._interruption = engine, subject, functions, interrupted
        self._events = engine.ring
        self._flows: dict[int, flow.Flow] = {}

    def send_result(self, work: Work, result: object, started: float) -> None:
        try:
            self._send_result(work, result, time.perf_counter() - started, started)
        except BaseException as error:  # a user's __reduce__, or handler of a signal, may raise anything
            self.report(work, error)

    def _send_result(self, work: Work, result: object, seconds: float, started: float) -> None:
        count = work.num_returns
        if count == 1 and values.is_plain(result) and faults.plan is None:  # the usual case
            data = values.encode_plain(result)
            if len(data) < values.BESIDE_BYTES:
                engine = self._engine
                with engine.lock:
                    if work.extra is None:  # the usual case of the usual case
                        self._events.record_run(
                            _CALL if work.method else _TASK, work.name, started, seconds, work.task_id
                        )
                    else:
                        self._note_run(work, started, seconds)
                    if work.reply_to:
                        self._answer_plain(work, data, started, seconds)
                        return
                    if engine.metrics.store.families:
                        engine.outbox.post_metrics()
                    engine.channel.post_short((messages.PLAIN, work.task_id, data, seconds, started))
                return
            del data  # the result goes to shared memory, below
        results = (result,) if abs(count) == 1 else () if count == 0 else _split(work, result, count)
        encoded = [
            self._encode_failure(work, value)
            if type(value) is items.Failure
            else values.encode(value, f"the result of `{work.name}`", unsendable.explain_result, by_index=True)
            for value in results
        ]
        if faults.plan is not None:
            faults.plan.reach("worker.before_result")
        sent = []
        for position, value in enumerate(encoded):
            payload = self._store_result(work, value, position) if value.buffers else (payloads.INLINE, value.data)
            failed = results[position]
            if type(failed) is items.Failure:
                payload = _add_comparison((payloads.ERROR, value.data), work, failed.error)
            sent.append((payload, tuple([ref._id for ref in value.refs])))
        self._post_results(work, encoded, sent, started, seconds)
        if faults.plan is not None:
            faults.plan.reach("worker.after_result")

    def _post_results(
        self, work: Work, encoded: list[values.Encoded], sent: list[Sent], started: float, seconds: float
    ) -> None:
        engine = self._engine
        with engine.lock:
            self._note_run(work, started, seconds)
            for value in encoded:
                if value.refs:
                    engine.arrivals.publish(value.refs)
            if work.reply_to:
                self._answer(work, sent, started, seconds)
                return
            self._post_done(work, sent, started, seconds)

    def _post_done(self, work: Work, sent: list[Sent], started: float, seconds: float) -> None:
        """Post the results: from here on they are safe."""
        engine = self._engine
        with engine.lock:
            if engine.metrics.store.families:
                engine.outbox.post_metrics()
            for payload, _ in sent:
                if payload[0] == payloads.SEGMENT:
                    engine.outbox.send_payload(payload)
            engine.channel.post((messages.DONE, work.task_id, seconds, sent, started))

    def _answer(self, work: Work, sent: list[Sent], started: float, seconds: float) -> None:
        """Answer a direct call: by its direct channel, or through the driver if the driver must count references or
        segments. Called with the lock held."""
        engine = self._engine
        engine.outbox.notes.append((work.task_id, work.name, started, seconds, None, ""))
        reply = engine.direct.find_reply(work.reply_to)
        if reply is not None and not any(contained or payload[0] == payloads.SEGMENT for payload, contained in sent):
            message = (messages.REPLY, work.task_id, [payload for payload, _ in sent])
            if engine.direct.send_reply(reply, message):
                return
        for position, (payload, contained) in enumerate(sent):
            object_id = work.task_id + position
            engine.channel.post((messages.DELIVER, object_id, engine.outbox.send_payload(payload), contained))

    def _answer_plain(self, work: Work, data: bytes, started: float, seconds: float) -> None:
        """Answer a direct call with one short result. Called with the lock held."""
        engine = self._engine
        engine.outbox.notes.append((work.task_id, work.name, started, seconds, None, ""))
        reply = engine.direct.find_reply(work.reply_to)
        payload = (payloads.INLINE, data)
        if reply is None or not engine.direct.send_reply(reply, (messages.REPLY, work.task_id, [payload])):
            engine.channel.post((messages.DELIVER, work.task_id, payload, ()))

    def _note_run(self, work: Work, started: float, seconds: float, *, has_failed: bool = False) -> None:
        """Note a run that is over. Called with the lock held."""
        extra = work.extra
        kind = _CALL if work.method else _TASK
        if extra is None and not has_failed:
            self._events.record_run(kind, work.name, started, seconds, work.task_id)
            return
        extra = extra or {}
        self._events.record(
            Kind.CONSTRUCTOR if extra.get("creates_actor") else kind,
            work.name,
            started,
            seconds,
            work.task_id,
            state=State.FAILED if has_failed else State.FINISHED,
            attempt=extra.get("attempt", 0),
        )

    def _encode_failure(self, work: Work, failure: items.Failure) -> values.Encoded:
        """Encode the error that stands for one of several results."""
        return values.Encoded(values.encode_error(self.explain(work, failure.error)), [], [])

    def _store_result(self, work: Work, value: values.Encoded, position: int) -> payloads.Payload:
        """Store a large result, in the name of the function that returned it."""
        engine = self._engine

        try:
            return engine.store.build_payload(value, work.task_id + position, lambda: self._actor.describe_maker(work))
        except BaseException:
            with engine.lock:  # the results before this one will not be sent
                for earlier in range(work.task_id, work.task_id + position):
                    engine.store.pool.recycle(earlier)
            raise

    # --- errors -------------------------------------------------------------------------------------------------------

    def report(self, work: Work, error: BaseException) -> None:
        try:
            self._send_error(work, self.explain(work, error))
        except BaseException as failure:  # the caller needs an answer, whatever the failure is
            text = f"{texts.describe(error)}\n(this error could not be sent as it is: {texts.describe(failure)})"
            self._send_error(work, exceptions.TaskError(work.name, f"{text}\n", exceptions.HocketError(text)))

    def report_unstarted(self, work: Work) -> None:
        """Report that a task or call was cancelled before it started."""
        kind = "Call" if work.method else "Task"
        error = exceptions.TaskCancelledError(f"{kind} `{work.name}` was cancelled before it started.")
        with self._engine.lock:
            self._engine.duty.cancelled.discard(work.task_id)
            self._code.close_unopened(work)
            self._send_error(work, error)

    def explain(self, work: Work, error: BaseException) -> BaseException:
        """Return the error for the caller. An exception of the user's code becomes a `TaskError`, with the exception on
        the innermost level; errors of the engine about the task itself stay as they are."""
        kind = type(error)
        if issubclass(kind, KeyboardInterrupt):
            if not self._interruption.is_cancelling(work.task_id):
                return rules.build_interrupted(work.name, error)
            cancelled = exceptions.TaskCancelledError(f"Task `{work.name}` was cancelled while it ran.")
            return rules.wrap_cancelled(work.name, cancelled)
        if issubclass(kind, exceptions.TaskCancelledError) and work.task_id in self._engine.duty.cancelled:
            return rules.wrap_cancelled(work.name, error)
        surroundings.add_hint(error, work.extra or self._engine.duty.actor_extra)
        return rules.wrap_error(work.name, error)

    def _send_error(self, work: Work, error: BaseException) -> None:
        cause = exceptions.get_cause(error)
        payload = _add_comparison(payloads.encode_error(error), work, cause)
        error_type, text = texts.name_class(type(cause)), texts.safe_text(cause, 1000)
        seconds = time.perf_counter() - work.started if work.started else 0.0
        with self._engine.lock:
            if work.started:
                self._note_run(work, work.started, seconds, has_failed=True)
            if work.reply_to:
                self._engine.outbox.notes.append((work.task_id, work.name, work.started, seconds, error_type, text))
                self._answer_error(work, payload)
                return
            message = (messages.FAILED, work.task_id, payload, error_type, text, work.started, seconds)
            self._engine.channel.post(message)

    def _answer_error(self, work: Work, payload: payloads.Payload) -> None:
        """Answer a direct call that failed. Called with the lock held."""
        engine = self._engine
        reply = engine.direct.find_reply(work.reply_to)
        if reply is not None and engine.direct.send_reply(
            reply, (messages.REPLY_FAILED, work.task_id, payload, max(1, work.num_returns))
        ):
            return
        for object_id in range(work.task_id, work.task_id + max(1, work.num_returns)):
            engine.channel.post((messages.DELIVER, object_id, payload, ()))

    # --- items of generators ------------------------------------------------------------------------------------------

    def note_consumed(self, task_id: int, count: int) -> None:
        """Note how many items a generator's reader has taken. Called with the lock held."""
        found = self._flows.get(task_id)
        if found is not None:  # else the answer is for an earlier attempt
            found.take(count)

    def open_flow(self, work: Work) -> flow.Flow:
        """Begin to count how far a generator is ahead of its reader."""
        found = self._flows[work.task_id] = flow.Flow((work.extra or {}).get("backpressure", 0))
        return found

    def close_flow(self, work: Work) -> None:
        """End that count."""
        self._flows.pop(work.task_id, None)

    def announce_pause(self, work: Work, ahead: flow.Flow) -> None:
        """Send a waiting generator's items, and ask how far its reader is."""
        with self._engine.lock:
            self._engine.channel.post((messages.PAUSED, work.task_id, ahead.find_wanted()))
            self._engine.outbox.flush()

    def send_item(self, work: Work, index: int, item: object) -> int:
        encoded = values.encode(item, f"item {index} of `{work.name}`", unsendable.explain_result, by_index=True)
        engine = self._engine
        item_id = ids.build_item_id(work.task_id, index)
        payload = engine.store.build_payload(encoded, item_id, lambda: self._actor.describe_maker(work))
        with engine.lock:
            contained = tuple([ref._id for ref in encoded.refs])
            engine.arrivals.publish(encoded.refs)
            engine.channel.post((messages.YIELD, work.task_id, index, engine.outbox.send_payload(payload), contained))
            # Where calls run in threads, no other code looks for unsent messages until a call ends.
            if self._actor.is_concurrent or time.perf_counter() - engine.outbox.last_flush > FLUSH_SECONDS:
                engine.outbox.flush()
            else:
                engine.outbox.send_later()
        return payloads.measure(payload)


def _add_comparison(payload: payloads.Payload, work: Work, cause: BaseException) -> payloads.Payload:
    """Add to an error's payload whether the task's `retry_exceptions` names the error, if the driver wants that: only
    the worker may know the exception's class."""
    retried = work.extra.get("retried") if work.extra is not None else None
    if retried is None:
        return payload
    try:
        return (*payload, issubclass(type(cause), values.decode(retried)))
    except Exception:  # a module may be missing, and a metaclass may raise anything
        return payload


def _split(work: Work, result: Any, count: int) -> tuple[object, ...]:
    try:
        results = tuple(result)
    except TypeError:
        raise ValueError(
            f"Task `{work.name}` has num_returns={count} but returned {texts.name_kind(result)}, which cannot be "
            f"split. Return a tuple of {count} values."
        ) from None
    if len(results) != count:
        raise ValueError(
            f"Task `{work.name}` has num_returns={count} but returned {len(results)} values. Return exactly {count}."
        )
    return results
