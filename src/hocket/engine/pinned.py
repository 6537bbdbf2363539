"""References in a user's own pickle, which contain the id of their session, because each session counts ids anew.

In their own session they become handles again. In any other session, each use raises the error of a closed session.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, NoReturn, cast, final

from hocket import exceptions
from hocket.engine import contract, rules


def reduce(job_id: str, ref: contract.ObjectRef[object]) -> tuple[object, ...]:
    """Return the reduced form of a reference in a user's own pickle, with the session's id."""
    return rebuild, (ref._id, job_id)


def rebuild(object_id: int, job_id: str) -> contract.AnyRef:
    """Return this process's handle for the object, or a handle of a closed session."""
    engine = contract.get_current_engine()
    if engine.view.get_context().job_id == job_id:
        return engine.handles.intern(object_id)
    return contract.ObjectRef(object_id, cast("contract.Engine", _OtherSession(job_id)))


@final
class _OtherSession:
    """A replacement for the engine of another session, with the few methods that a reference calls."""

    dropped: Final[deque[int]] = deque(maxlen=0)

    def __init__(self, job_id: str) -> None:
        self.job_id: Final = job_id
        self.tasks = self.actors = self.objects = self.view = self.handles = self

    def get_context(self) -> _OtherSession:
        return self

    def format_ref(self, ref: contract.ObjectRef[object]) -> str:
        return f"{ref._id:016x}"

    def reduce_ref(self, ref: contract.ObjectRef[object]) -> tuple[object, ...]:
        if contract.encoding.refs is not None:
            raise contract.build_closed_error(ref)
        return rebuild, (ref._id, self.job_id)

    def when_done(self, ref: contract.ObjectRef[object], callback: Callable[[], None]) -> None:
        callback()

    def get(self, refs: tuple[contract.AnyRef, ...], timeout_s: float | None) -> NoReturn:
        raise contract.build_closed_error(refs[0])

    def check_pending(self, actor: contract.ObjectRef[None]) -> None:
        """Accept the call: `submit_call` raises the error."""

    def submit_call(self, actor: contract.ObjectRef[None], name: str, *given: Any) -> NoReturn:
        rules.raise_ended(exceptions.SessionClosedError(), name)
