"""The floor under the parts that callers use: it carries out their changes, and reads the workers' messages."""

from __future__ import annotations

from typing import final

from hocket.engine import contract, kernel_parts
from hocket.engine.local import driver_store, functions, links, messages, reactor
from hocket.engine.local.driver import courier


@final
class Floor:
    """See `kernel_parts.Floor`.

    Args:
        session: The lock and the kernel.
        carrier: Carries out the kernel's instructions.
        ends: The links to the workers.
        store: The objects in shared memory.
        table: The code of functions.
        handles: The handles of this process.
        waiters: The threads that wait.
    """

    def __init__(
        self,
        session: kernel_parts.Session,
        carrier: courier.Courier,
        ends: links.Links,
        store: driver_store.DriverStore,
        table: functions.Functions,
        handles: contract.Handles,
        waiters: reactor.Reactor,
    ) -> None:
        self._session, self._kernel, self._links, self._store, self._functions = (
            session,
            session.kernel,
            ends,
            store,
            table,
        )
        self._handles, self._waiters = handles, waiters
        self.carry_out = carrier.carry_out

    def finish_change(self) -> None:
        """Carry out the caller's change, and wake waiting threads: the change may come about without a message."""
        self._session.note_failure()
        self.carry_out()
        self._waiters.poke()

    def drain_dropped(self) -> None:
        if self._store.unmapped:
            self._store.drain_unmapped()
        if self._functions.dropped or self._functions.unused:
            self._forget_functions()
        self._kernel.release_dropped(self._waiters.bell.usual, self._handles.interned, self._handles.forget)
        if self._kernel.instructions:
            self.carry_out()

    def _forget_functions(self) -> None:
        """Have the workers forget unused code."""
        for function_id in self._functions.drain():
            for link in self._links.by_worker.values():
                if function_id in link.functions:
                    link.functions.discard(function_id)
                    self._links.post(link, (messages.FORGET, function_id))

    def read_arrived(self) -> None:
        self._waiters.handle_arrived()
