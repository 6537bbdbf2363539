"""The outcomes of tasks, which go to the kernel. In a task's fork, an outcome ends the process instead."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NoReturn, Protocol, final

from hocket import exceptions
from hocket._base import texts
from hocket.engine import forks, items, kernel_parts, rules
from hocket.engine.inprocess import base, payloads
from hocket.kernel.records import TaskRecord


class Outcomes(Protocol):
    """Takes tasks' results, errors and items. The lock is held."""

    def finish(self, work: base.Work, result: object, started: float) -> None:
        """Store a task's result; if the result cannot travel, store that error."""

    def fail(self, work: base.Work, error: BaseException, started: float) -> None:
        """Store a task's error."""

    def yield_item(self, work: base.Work, index: int, item: object) -> None:
        """Store an item of a generator."""


@final
class KernelOutcomes:
    """Outcomes that go to the kernel.

    Args:
        session: The session, with the kernel.
        carry_out: A function that carries out the kernel's instructions.
    """

    def __init__(self, session: kernel_parts.Session, carry_out: Callable[[], None]) -> None:
        self._session, self._kernel, self._carry_out = session, session.kernel, carry_out

    def yield_item(self, work: base.Work, index: int, item: object) -> None:
        worker, task = work
        payload, contained = payloads.encode_result(item, f"item {index} of `{task.options.name}`")
        self._kernel.yield_item(worker, task.id, index, payload, contained)
        self._carry_out()

    def finish(self, work: base.Work, result: object, started: float) -> None:
        worker, task = work
        try:
            results = _split(task, result)
            encoded = [
                (payloads.encode_error(rules.wrap_error(task.options.name, value.error)), ())
                if type(value) is items.Failure
                else payloads.encode_result(value, f"the result of `{task.options.name}`")
                for value in results
            ]
        except BaseException as error:  # a user's __reduce__ may raise anything
            self.fail(work, error, started)
        else:
            failure = next((value.error for value in results if type(value) is items.Failure), None)
            if failure is not None:
                if _is_retryable(task, failure):
                    self.fail(work, failure, started)
                    return
                task.error_type = texts.name_class(type(failure))
                self._note(task, failure)
            self._kernel.finish(worker, task.id, time.perf_counter() - started, encoded, started)

    def fail(self, work: base.Work, error: BaseException, started: float) -> None:
        worker, task = work
        seconds = time.perf_counter() - started
        if issubclass(type(error), KeyboardInterrupt):
            error = rules.build_interrupted(task.options.name, error)
        cause = exceptions.get_cause(error)
        retryable = _is_retryable(task, cause)
        if not retryable:
            self._note(task, cause)
        self._kernel.fail(
            worker,
            task.id,
            payloads.encode_error(rules.wrap_error(task.options.name, error)),
            retryable=retryable,
            error_type=texts.name_class(type(cause)),
            started=started,
            seconds=seconds,
        )

    def _note(self, task: TaskRecord, cause: BaseException) -> None:
        self._session.note_error(task.id, task.options.name, texts.name_class(type(cause)), texts.safe_text(cause))


@final
class ForkedOutcomes:
    """Outcomes in a task's fork: they end the process, as on engines with worker processes."""

    def finish(self, work: base.Work, result: object, started: float) -> NoReturn:
        forks.end()

    def fail(self, work: base.Work, error: BaseException, started: float) -> NoReturn:
        forks.end(error)

    def yield_item(self, work: base.Work, index: int, item: object) -> NoReturn:
        forks.end(RuntimeError(forks.YIELDED))


def _split(task: TaskRecord, result: Any) -> tuple[Any, ...]:
    count = task.options.num_returns
    if abs(count) == 1:
        return (result,)
    results = tuple(result) if count else ()
    if len(results) != count:
        raise ValueError(
            f"Task `{task.options.name}` has num_returns={count} but returned {len(results)} values. Return exactly "
            f"{count}."
        )
    return results


def _is_retryable(task: TaskRecord, cause: BaseException) -> bool:
    """Return whether a task gets another attempt after this error of the user's code."""
    asked = task.options.retry_exceptions
    return bool(task.retries_left) and (asked is True or (asked is not False and issubclass(type(cause), asked)))
