"""References in a user's own pickle: they name their session, as ids begin anew in each.

In the session itself they are what they were. In another one they stand for a closed session's, and each use
of them raises what those raise.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, NoReturn, cast, final

from hocket import exceptions
from hocket.engine import contract, rules


def reduce(job_id: str, ref: contract.ObjectRef[object]) -> tuple[object, ...]:
    """Return what a user's own pickle has of a reference of the session with that id."""
    return rebuild, (ref._id, job_id)


def rebuild(object_id: int, job_id: str) -> contract.AnyRef:
    """Return this process's handle for the object, or one of a session that is closed."""
    engine = contract.get_current_engine()
    if engine.view.get_context().job_id == job_id:
        return engine.handles.intern(object_id)
    return contract.ObjectRef(object_id, cast("contract.Engine", _OtherSession(job_id)))


@final
class _OtherSession:
    """The standing of a reference for an engine whose session is not this process's: no more than the answers that a
    reference needs."""

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
        """There is nobody to call, which `submit_call` says."""

    def submit_call(self, actor: contract.ObjectRef[None], name: str, *given: Any) -> NoReturn:
        rules.raise_ended(exceptions.SessionClosedError(), name)
