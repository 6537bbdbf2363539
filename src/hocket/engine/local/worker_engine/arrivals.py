"""Values come to a worker from the driver, on request, or by a direct channel.

Small values that were fetched once are kept while a handle on them lives; large values are mapped anew for each `get`.

The driver counts, for each worker, how often it gave the worker a reference (`receipts` here). When the last handle of
this process is collected, all receipts go back in one `DROP`. Handles for references in queued work are made on arrival
and kept with the work: a `DROP` can never give back a receipt that is still needed.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import final

from hocket.engine import contract, pinned
from hocket.engine.local import journal, messages, payloads
from hocket.engine.local.worker_engine import duty


@final
class WorkerHandles(contract.Handles):
    """Handles, with the driver's counts for them.

    Args:
        engine: The engine of the handles.
        lock: The engine's lock.
        driver: The channel to the driver.
        own: Knows the session.
    """

    def __init__(
        self, engine: contract.Engine, lock: threading.RLock, driver: journal.JournalChannel, own: duty.Duty
    ) -> None:
        super().__init__(engine)
        self._lock, self._driver, self._duty = lock, driver, own
        self.receipts: dict[int, int] = {}

    def adopt(self, object_id: int) -> None:
        if object_id not in self.receipts:
            with self._lock:
                self.receipts[object_id] = 1
                self._driver.post((messages.ADOPT, object_id))

    def intern(self, object_id: int) -> contract.AnyRef:
        with self._lock:  # the background reader must not give receipts back between the look and the new handle
            return super().intern(object_id)

    def hold(self, object_ids: Sequence[int]) -> list[contract.AnyRef]:
        """Count a receipt for each reference that came with a message, and return handles that keep them."""
        held = []
        for object_id in object_ids:
            self.receipts[object_id] = self.receipts.get(object_id, 0) + 1
            held.append(self.intern(object_id))
        return held

    def own(self, object_id: int) -> contract.AnyRef:
        """Return the first handle on an object that this process has just announced to the driver."""
        self.receipts[object_id] = 1
        return contract.ObjectRef(object_id, self._engine)

    def reduce_pinned(self, ref: contract.ObjectRef[object]) -> tuple[object, ...]:
        return pinned.reduce(self._duty.setup["job_id"], ref)


@final
class Arrived:
    """A value that the driver sent."""

    __slots__ = ("held", "payload")

    def __init__(self, payload: payloads.Payload, held: list[contract.AnyRef]) -> None:
        self.payload = payload
        #: Handles on the references inside the value.
        self.held = held


@final
class Arrivals:
    """Values that have come, and values to come. Every method is called with the engine's lock held.

    Args:
        driver: The channel to the driver.
        known: The process's handles.
        due: Receives the callbacks of values that have come.
    """

    def __init__(self, driver: journal.JournalChannel, known: WorkerHandles, due: deque[Callable[[], None]]) -> None:
        self._driver, self._handles, self._due = driver, known, due
        self.values: dict[int, Arrived] = {}
        #: Values that this process has requested.
        self._wanted: set[int] = set()
        #: Objects at the driver.
        self._ready: set[int] = set()
        #: Objects that will come by a direct channel.
        self.expected: set[int] = set()
        #: Objects that a `wait` needs: if the direct channel breaks, the worker asks the driver about them.
        self._watched: set[int] = set()
        #: Objects of this process that the driver does not know.
        self._private: set[int] = set()
        #: Objects in `expected` that this process has promised to the driver.
        self._promised: set[int] = set()
        self._callbacks: dict[int, list[Callable[[], None]]] = {}

    def owes(self) -> bool:
        """Tell whether values that were promised to the driver have not come yet."""
        return bool(self._promised)

    def is_there(self, object_id: int) -> bool:
        """Tell whether a value has come, or is at the driver."""
        return object_id in self.values or object_id in self._ready

    def have_come(self, missing: set[int]) -> bool:
        """Tell whether a wait for all of these is over; ask the driver for values that were not asked for yet."""
        for object_id in list(missing):
            found = self.values.get(object_id)
            if found is not None:
                if found.payload[0] >= payloads.ERROR:
                    return True
                missing.discard(object_id)
            elif (
                object_id not in self._wanted and object_id not in self.expected
            ):  # also when another thread has taken what had arrived
                self._wanted.add(object_id)
                self._driver.post((messages.WANT, object_id))
        return not missing

    def watch(self, object_id: int) -> None:
        """Learn when an object is there, without its value."""
        if object_id in self.expected:
            self._watched.add(object_id)
        else:
            self._driver.post((messages.WATCH, object_id))

    def when_come(self, object_id: int, callback: Callable[[], None]) -> None:
        """Have a function called when a value comes that is not here yet."""
        self._callbacks.setdefault(object_id, []).append(callback)
        self.have_come({object_id})

    def take_once(self, object_id: int) -> Arrived | None:
        """Return a value that has come. A large value is returned once: each receipt of the driver's stands for one
        mapping, and the next `get` asks for another."""
        found = self.values.get(object_id)
        if found is not None and found.payload[0] == payloads.SEGMENT:
            del self.values[object_id]
        return found

    # --- from the driver ----------------------------------------------------------------------------------------------

    def note_ready(self, object_id: int) -> None:
        """Note that an object is at the driver."""
        self._ready.add(object_id)

    def take_value(self, object_id: int, payload: payloads.Payload, contained: tuple[int, ...]) -> None:
        """Take a value that the driver has sent."""
        self._wanted.discard(object_id)
        held = self._handles.hold(contained)
        if payload[0] == payloads.SEGMENT:
            fd = self._driver.take_descriptor()
            if object_id not in self._handles.receipts:  # the last handle went while the value was on its way
                os.close(fd)
                self._driver.post((messages.UNMAP, object_id))
                return
            payload = (*payload, fd)
        self._keep(object_id, Arrived(payload, held))

    def _keep(self, object_id: int, arrived: Arrived) -> None:
        if object_id in self._handles.receipts:
            self.values[object_id] = arrived
            if self._callbacks:
                self._due.extend(self._callbacks.pop(object_id, ()))

    # --- by a direct channel ------------------------------------------------------------------------------------------

    def expect(self, object_id: int) -> None:
        """Expect an object, which a direct call will return."""
        self.expected.add(object_id)
        self._private.add(object_id)

    def take_answer(self, object_id: int, payload: payloads.Payload) -> None:
        """Take a value that has come by a direct channel."""
        self.expected.discard(object_id)
        self._watched.discard(object_id)
        if object_id in self._promised:
            self._promised.discard(object_id)
            self._driver.post((messages.FULFIL, object_id, payload))
        self._keep(object_id, Arrived(payload, []))

    def give_to_driver(self, object_ids: Iterable[int]) -> None:
        """Expect these objects from the driver, which knows them from now on."""
        for object_id in object_ids:
            self.expected.discard(object_id)
            self._promised.discard(object_id)
            self._private.discard(object_id)
            if object_id not in self._handles.receipts:
                self._watched.discard(object_id)
                self._driver.post((messages.DROP, object_id, 1))
                continue
            if object_id in self._watched:
                self._watched.discard(object_id)
                self._driver.post((messages.WATCH, object_id))
            if object_id in self._callbacks:
                self.have_come({object_id})

    def note_moved(self, object_id: int) -> None:
        """Note that a direct call's result is at the driver, because it has references inside or is large."""
        self.give_to_driver((object_id,))
        if object_id in self._handles.receipts:
            self._ready.add(object_id)

    def publish(self, refs: Sequence[contract.AnyRef]) -> None:
        """Announce private objects to the driver, because references to them are about to leave."""
        if not self._private:
            return
        for ref in refs:
            object_id = ref._id
            if object_id not in self._private:
                continue
            self._private.discard(object_id)
            found = self.values.get(object_id)
            if found is None:
                self._promised.add(object_id)
                self._driver.post((messages.PROMISE, object_id))
            else:
                self._driver.post((messages.PUT, object_id, found.payload, ()))

    # --- objects without handles --------------------------------------------------------------------------------------

    def drop(self, object_id: int) -> None:
        """Forget an object without handles, and give the driver's receipts back, unless the object is private."""
        post = self._driver.post_later
        if object_id in self._private:
            self._private.discard(object_id)
            self._handles.receipts.pop(object_id, None)
            self.values.pop(object_id, None)
            return
        unread = self.values.pop(object_id, None)
        if unread is not None and unread.payload[0] == payloads.SEGMENT:
            os.close(unread.payload[-1])
            post((messages.UNMAP, object_id))
        unread = None  # it may hold the last handles on other objects, which this round can then drop, too
        self._ready.discard(object_id)
        receipts = self._handles.receipts.pop(object_id, 0)
        if receipts:
            post((messages.DROP, object_id, receipts))
