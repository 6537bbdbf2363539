"""The loop around a policy: it carries out actions, waits for all actors at once, and passes on their events."""

from __future__ import annotations

import functools
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, final

from hocket import exceptions
from hocket.core import actor, api
from hocket.crew import contract, wait_loop

_LOSSES: Final = (exceptions.ActorError, exceptions.NodeDiedError, exceptions.WorkerCrashedError)
"""The errors of a call on an actor that is gone."""


@final
class Crew:
    """The actors of one policy. One thread uses a crew, and must call `close`.

    Args:
        policy: The policy that decides.
        kill: A function that kills an actor.
        clock: A function that returns the time in seconds.
    """

    def __init__(
        self,
        policy: contract.Policy,
        *,
        kill: Callable[[actor.ActorHandle], object] = api.kill,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._policy, self._kill, self._clock = policy, kill, clock
        self._loop = wait_loop.WaitLoop()
        self._handles: dict[contract.Member, actor.ActorHandle] = {}
        self._unplaceable: set[contract.Member] = set()

    def run(self) -> None:
        """Take turns until the policy is over."""
        while self.turn():
            pass

    def turn(self) -> bool:
        """Wait once, and pass on what came; return False, without a wait, if the policy is over."""
        self.tell(contract.TurnBegan())
        if self._policy.is_over:
            return False
        if not self._loop.is_over:
            now = self._clock()
            due = self._policy.find_due(now)
            self._loop.wait(None if due is None else max(0.0, due - now))
        self.tell(contract.TurnEnded())
        return True

    def tell(self, event: object) -> None:
        """Pass an event to the policy, and carry out the actions that follow."""
        events: deque[object] = deque([event])
        while events:
            for action in self._policy.handle(events.popleft(), self._clock()):
                try:
                    self._carry_out(action)
                except exceptions.InfeasibleResourcesError as error:
                    if not isinstance(action, contract.Start):
                        raise
                    self._unplaceable.add(action.member)
                    events.append(contract.Unplaceable(action.member, error))

    def get_handle(self, member: contract.Member) -> actor.ActorHandle | None:
        """Return the handle of an actor that was started and not stopped. Any thread may call this."""
        return self._handles.get(member)

    def close(self) -> None:
        """Kill all actors."""
        for member in list(self._handles):
            self._carry_out(contract.Stop(member))

    def _carry_out(self, action: contract.Action) -> None:
        if isinstance(action, contract.Call):
            if action.member not in self._unplaceable:
                self._call(action)
        elif isinstance(action, contract.Start):
            self._handles[action.member] = action.build()
        else:
            self._loop.forget(action.member)
            self._unplaceable.discard(action.member)
            handle = self._handles.pop(action.member, None)
            if handle is not None:
                self._kill(handle)

    def _call(self, call: contract.Call) -> None:
        method: Any = getattr(self._handles[call.member], call.method)
        if call.num_returns != 1:
            method = method.options(num_returns=call.num_returns)
        made = method.remote(*call.args)
        if call.about is None:
            return
        *kept, ref = made if isinstance(made, list) else [made]
        serve = functools.partial(self._serve, call.member, call.about, tuple(kept))
        self._loop.add(ref, serve, owner=call.member)

    def _serve(self, member: contract.Member, about: object, kept: tuple[Any, ...], ref: Any) -> None:
        try:
            event: contract.Event = contract.Answered(member, about, api.get(ref), kept)
        except exceptions.HocketError as error:
            if isinstance(error, _LOSSES) and not isinstance(error, exceptions.TaskError):
                self._loop.forget(member)
                event = contract.Lost(member, error)
            else:
                event = contract.Failed(member, about, error)
        self.tell(event)
