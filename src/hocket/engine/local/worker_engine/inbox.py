"""Messages of the driver and of other workers."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import final

from hocket.engine.local import direct_channels, journal, messages, reactor, store
from hocket.engine.local.worker_engine import arrivals, duty, objects, outbox, questions


@final
class Inbox:
    """See `reactor.Handler`. Every method is called with the lock held.

    Args:
        driver: The channel to the driver.
        come: The values that have come.
        asked: The questions to the driver.
        waits: The waits of this process.
        direct: The direct channels to other workers.
        post: The outbox.
        memory: The segments of this process.
        taker: Takes messages that are work.
    """

    def __init__(
        self,
        driver: journal.JournalChannel,
        come: arrivals.Arrivals,
        asked: questions.Questions,
        waits: objects.WorkerObjects,
        direct: direct_channels.DirectChannels,
        post: outbox.Outbox,
        memory: store.WorkerStore,
        taker: duty.Taker,
    ) -> None:
        self._driver, self._arrivals, self._questions, self._objects = driver, come, asked, waits
        self._direct, self._outbox, self._store, self._take_message = direct, post, memory, taker.take_message
        self.before_wait = post.before_wait
        #: Handlers of rare messages that are no work.
        self._handlers: dict[int, Callable[..., object]] = {
            messages.RECYCLE: self._recycle,
            messages.DEADLOCK: waits.note_deadlock,
            messages.PROBE: self._answer_probe,
            messages.SYNC: direct.sync,
            messages.AWAIT: direct.await_calls,
            messages.INTRODUCED: self._accept,
            messages.MOVED: self._take_move,
        }

    def handle(self, fd: int, mask: int) -> None:
        if fd != self._driver.fd:
            self._direct.handle(fd, bool(mask & reactor.READABLE))
            return
        received = self._driver.receive()
        if received is None:
            os._exit(0)  # the driver is gone, and this process's work is useless
        for message in received:
            op = message[0]
            if op == messages.VALUE:
                self._arrivals.take_value(*message[1:])
            elif op == messages.READY:
                self._arrivals.note_ready(message[1])
            elif op == messages.ANSWER:
                self._questions.take_answer(*message[1:])
            elif op in self._handlers:
                self._handlers[op](*message[1:])
            else:
                self._take_message(message)

    def _recycle(self, object_id: int, is_kept: bool) -> None:
        if self._store.obey(object_id, is_kept):
            self._driver.post((messages.POOL, *self._store.get_account()))

    def _answer_probe(self, number: int) -> None:
        self._outbox.drain_dropped()
        is_waiting = self._outbox.owes() or self._direct.is_waiting()
        self._driver.post((messages.PROBED, number, is_waiting, self._direct.sent))

    def _accept(self, caller: int) -> None:
        self._direct.accept(caller, self._driver.take_descriptor())

    def _take_move(self, object_id: int) -> None:
        self._direct.settle(object_id)
        self._arrivals.note_moved(object_id)
