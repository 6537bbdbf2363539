"""What the driver and other workers say, as far as it is no work."""

from __future__ import annotations

import abc
import os
import pickle
from collections.abc import Iterable, Sequence

from hocket.engine import contract
from hocket.engine.local import channel, messages, payloads, reactor
from hocket.engine.local.worker_engine import state

_RARE = frozenset(
    {
        messages.PROBE,
        messages.RECYCLE,
        messages.DEADLOCK,
        messages.SYNC,
        messages.AWAIT,
        messages.INTRODUCED,
        messages.MOVED,
    }
)
"""What the driver says now and then, and is no work."""


class Inbox(state.WorkerEngineState):
    """Takes values and answers."""

    def handle(self, fd: int, mask: int) -> None:
        if fd != self.channel.fd:
            self.direct.handle(fd, bool(mask & reactor.READABLE))
            return
        received = self.channel.receive()
        if received is None:
            os._exit(0)  # the driver is gone, so nobody wants what this process does
        for message in received:
            op = message[0]
            if op == messages.VALUE:
                self._take_value(*message[1:])
            elif op == messages.READY:
                self._ready.add(message[1])
            elif op == messages.ANSWER:
                self._take_answer(*message[1:])
            elif op in _RARE:
                self._handle_rare(message)
            else:
                self.on_work(message)

    def _handle_rare(self, message: channel.Message) -> None:
        op = message[0]
        if op == messages.RECYCLE:
            if self.store.obey(message[1], message[2]):
                self.channel.post((messages.POOL, *self.store.get_account()))
        elif op == messages.DEADLOCK:
            self._deadlocks[message[1]] = message[2]
        elif op == messages.PROBE:
            self._drain_dropped()
            is_waiting = self.owes() or self.direct.is_waiting()
            self.channel.post((messages.PROBED, message[1], is_waiting, self.direct.sent))
        elif op == messages.SYNC:
            self.direct.sync(message[1], message[2])
        elif op == messages.AWAIT:
            self.direct.await_calls(message[1], message[2])
        elif op == messages.INTRODUCED:
            self.direct.accept(message[1], self.channel.take_descriptor())
        else:
            self._take_move(message[1])

    def _take_answer(self, question_id: int, ok: bool, data: bytes, contained: tuple[int, ...]) -> None:
        if question_id in self._room_questions:  # counted here, because who asked may have been interrupted meanwhile
            self._room_questions.discard(question_id)
            self.store.credit(*pickle.loads(data))
        held = self.hold(contained)
        if question_id in self._answers:
            self._answers[question_id] = (ok, data, held)

    def _take_value(self, object_id: int, payload: payloads.Payload, contained: tuple[int, ...]) -> None:
        self._wanted.discard(object_id)
        held = self.hold(contained)
        if payload[0] == payloads.SEGMENT:
            fd = self.channel.take_descriptor()
            if object_id not in self._receipts:  # the last handle went while it was on its way
                os.close(fd)
                self.channel.post((messages.UNMAP, object_id))
                return
            payload = (*payload, fd)
        if object_id in self._receipts:
            self._arrived[object_id] = state.Arrived(payload, held)
            if self._callbacks:
                self.reactor.due.extend(self._callbacks.pop(object_id, ()))

    # --- by a direct channel ------------------------------------------------------------------------------------------

    def take_answer(self, object_id: int, payload: payloads.Payload) -> None:
        self._expected.discard(object_id)
        self._watched.discard(object_id)
        if object_id in self._promised:
            self._promised.discard(object_id)
            self.channel.post((messages.FULFIL, object_id, payload))
        if object_id in self._receipts:
            self._arrived[object_id] = state.Arrived(payload, [])
            if self._callbacks:
                self.reactor.due.extend(self._callbacks.pop(object_id, ()))

    def give_to_driver(self, object_ids: Iterable[int]) -> None:
        for object_id in object_ids:
            self._expected.discard(object_id)
            self._promised.discard(object_id)
            self._private.discard(object_id)
            if object_id not in self._receipts:
                self._watched.discard(object_id)
                self.channel.post((messages.DROP, object_id, 1))
                continue
            if object_id in self._watched:
                self._watched.discard(object_id)
                self.channel.post((messages.WATCH, object_id))
            if object_id in self._callbacks:
                self._have_arrived({object_id})

    def _take_move(self, object_id: int) -> None:
        """A result is at the driver, because it has references inside or is large."""
        self.direct.settle(object_id)
        self.give_to_driver((object_id,))
        if object_id in self._receipts:
            self._ready.add(object_id)

    def publish(self, refs: Sequence[contract.ObjectRef[object]]) -> None:
        """Tell the driver of those that it does not know, because they are about to leave. Called with the lock
        held."""
        if not self._private:
            return
        for ref in refs:
            object_id = ref._id
            if object_id not in self._private:
                continue
            self._private.discard(object_id)
            found = self._arrived.get(object_id)
            if found is None:
                self._promised.add(object_id)
                self.channel.post((messages.PROMISE, object_id))
            else:
                self.channel.post((messages.PUT, object_id, found.payload, ()))

    @abc.abstractmethod
    def _have_arrived(self, missing: set[int]) -> bool:
        """Tell whether a wait is over; ask for what nobody has asked for. Called with the lock held."""
