"""Direct channels between workers: from an actor's caller to the actor, without the driver between them.

A worker that calls an actor again and again makes a socket pair, keeps one end, and has the driver pass the other end
on (`INTRODUCE`). From then on small calls and small results go that way: this saves two messages, and the driver may
compute meanwhile. There is no named socket that a stranger could find.

**Order.** A caller's calls run in the order in which they were made, whichever way each took. The driver passes the new
socket on behind the calls that it has from that caller, and the actor reads nothing from the socket before. Later a
call may have to go through the driver again (it has references among its arguments, or a large array). Before such a
call runs, the actor reads the direct channel, because its contents were sent before. Before its next direct call, the
caller puts a `HOLD` into the direct channel, and has the driver pass on a `SYNC` of the same number. The actor does not
read beyond the `HOLD` before it has the `SYNC`; only a `CANCEL` passes. If the direct channel is full when a call must
bypass it, an `AWAIT` says how many direct calls the actor has to read first.

**Counting.** The result of a direct call is *private*: only the caller knows it, so the driver counts nothing. The
result is published when a reference to it leaves the caller: with its value if the value has come, and else as a
promise. The promise is kept when the value comes, or broken by the caller's death. A result with references inside, or
in shared memory, goes to the driver as an object of the caller's, and the driver sends the caller a `MOVED`.

**Death.** The direct channel ends when one of its processes does. The caller then hands its unanswered calls to the
driver, which fails them with the cause of the actor's death, once that is known. Calls that the actor had answered do
not fail: the answers lie in the actor's page (`journal`), and the driver delivers them from there. A caller keeps the
actor alive while an answer is due.

**A driver that is stopped** delays none of this until its socket is full: a worker reports each wait that is longer
than `DIRECT_SECONDS` (`worker_engine.objects`) in two messages, and the socket holds some 270.

Not sent this way are calls of actors that are built again or count their pending calls, calls that are tried again,
generators, and calls with references among their arguments.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol, final

from hocket.engine.local import channel, journal, messages, payloads, reactor

INTRODUCE_AFTER = 3
"""Calls on one actor before it gets a direct channel. A guess: a direct channel costs about as much as ten calls, and
two descriptors."""

MAX_CHANNELS = 200
"""The most direct channels that a worker makes; further actors are called through the driver."""

BATCH = 32
"""The most calls that wait to be sent together."""


class Pending(NamedTuple):
    """A direct call without an answer."""

    name: str
    returns: int
    parent: int
    """The task or call that made this call."""


class DirectChannel:
    """The caller's end of a direct channel."""

    __slots__ = ("actor", "actor_id", "channel", "is_bypassed", "number", "pending", "sent")

    def __init__(self, actor_id: int, sock: socket.socket) -> None:
        self.actor_id = actor_id
        #: A handle that keeps the actor alive while it owes answers.
        self.actor: object | None = None
        self.channel = channel.Channel(sock)
        #: Unanswered calls, by task.
        self.pending: dict[int, Pending] = {}
        #: Whether a call has gone through the driver since the last direct call.
        self.is_bypassed = False
        #: The number of the last `HOLD`.
        self.number = 0
        #: The number of calls that were put on the direct channel.
        self.sent = 0


class CallerChannel:
    """The actor's end of a direct channel."""

    __slots__ = ("awaited", "caller_id", "channel", "held", "is_gone", "late", "read", "synced", "waits_for")

    def __init__(self, caller_id: int, sock: socket.socket) -> None:
        self.caller_id = caller_id
        self.channel = channel.Channel(sock)
        #: The number of the last `SYNC` that the driver passed on.
        self.synced = 0
        #: The number of the `HOLD` at which reading has stopped; 0 for none.
        self.waits_for = 0
        #: The messages behind that `HOLD`.
        self.held: list[channel.Message] = []
        #: The number of calls that were read from the direct channel.
        self.read = 0
        #: The number of direct calls that precede the next call through the driver.
        self.awaited = 0
        #: Calls through the driver that wait for direct calls, each with the `awaited` of its time.
        self.late: deque[tuple[int, object]] = deque()
        #: Whether the caller's process has ended; its calls still run.
        self.is_gone = False


Message = channel.Message


class Values(Protocol):
    """The receiver of direct calls' results. The engine's lock is held in every call."""

    def take_answer(self, object_id: int, payload: payloads.Payload) -> None:
        """Take a value from a direct channel."""

    def give_to_driver(self, object_ids: Iterable[int]) -> None:
        """Expect these objects from the driver, which knows them from now on."""


class Taker(Protocol):
    """The worker's main loop, which takes direct calls. The engine's lock is held in every call."""

    def take_message(self, message: Message) -> None:
        """Take the work that came by a direct channel."""

    def enqueue(self, work: Any) -> None:
        """Take work that was kept back for order."""


class Sockets:
    """The sockets of a worker's direct channels, as caller and as actor, and the set of channels with unsent messages.

    Every method here and below is called with the engine's lock held.

    Args:
        driver: The channel to the driver.
        poller: The reader of the sockets.
    """

    def __init__(self, driver: journal.JournalChannel, poller: reactor.Reactor) -> None:
        self._driver, self._poller = driver, poller
        self._dirty: set[channel.Channel] = set()
        #: Channels with a full socket.
        self._clogged: set[channel.Channel] = set()

    def flush(self) -> None:
        """Send all unsent messages; the rest goes when its socket takes more."""
        for end in list(self._dirty):
            self._flush(end)
        if not self._clogged:  # all replies are in sockets, which outlive this process
            self._driver.forget_replies()

    def _flush(self, end: channel.Channel) -> None:
        self._dirty.discard(end)
        self._clogged.discard(end)
        try:
            is_sent = end.flush()
        except OSError:  # the other process is dying; the end of the stream follows
            end.outbox.clear()
            return
        if not is_sent:
            self._clogged.add(end)
        if end.sock.fileno() >= 0:  # it is open
            self._poller.watch_writable(end.fd, not is_sent)

    def has_unsent(self) -> bool:
        """Tell whether an answer or a call waits to be sent."""
        return bool(self._dirty)

    def is_clogged(self) -> bool:
        """Tell whether a socket is full."""
        return bool(self._clogged)

    def _forget(self, end: channel.Channel) -> None:
        self._dirty.discard(end)
        self._clogged.discard(end)
        end.close()


class Calls(Sockets):
    """The direct channels to the actors that this worker calls.

    Args:
        driver: The channel to the driver.
        poller: The reader of the sockets.
        come: The receiver of direct calls' results.
        flush_later: Has unsent messages sent within some ticks, whatever this thread does next.
    """

    def __init__(
        self,
        driver: journal.JournalChannel,
        poller: reactor.Reactor,
        come: Values,
        flush_later: Callable[[], None],
    ) -> None:
        super().__init__(driver, poller)
        self._values, self._flush_later = come, flush_later
        self._by_actor: dict[int, DirectChannel] = {}
        self._by_fd: dict[int, DirectChannel] = {}
        self._calls: dict[int, int] = {}
        #: The number of direct calls that this worker has made.
        self.sent = 0
        #: The direct channel of each unanswered call, by the task.
        self.by_task: dict[int, DirectChannel] = {}
        #: The task of each return value but the first, by the value's id.
        self._first_ids: dict[int, int] = {}

    def find_channel(self, actor_id: int) -> DirectChannel | None:
        """Return the direct channel for the next call on an actor, or None. An actor that is called often gets one."""
        direct = self._by_actor.get(actor_id)
        if direct is None:
            count = self._calls[actor_id] = self._calls.get(actor_id, 0) + 1
            if count <= INTRODUCE_AFTER or len(self._by_actor) >= MAX_CHANNELS:
                return None
            direct = self._introduce(actor_id)
            if direct is None:
                return None
        if direct.is_bypassed:  # the next direct call must run behind the calls that went through the driver
            direct.is_bypassed = False
            direct.number += 1
            self._driver.post((messages.SYNC, actor_id, direct.number))
            direct.channel.post((messages.HOLD, direct.number))
        return direct

    def _introduce(self, actor_id: int) -> DirectChannel | None:
        try:
            ours, theirs = socket.socketpair()
        except OSError:  # no descriptor is left: the calls go through the driver
            return None
        direct = self._by_actor[actor_id] = DirectChannel(actor_id, ours)
        self._by_fd[direct.channel.fd] = direct
        self._poller.watch(direct.channel.fd)
        self._driver.outbox_fds.append(theirs.fileno())
        self._driver.post((messages.INTRODUCE, actor_id))
        theirs.close()
        return direct

    def note_bypass(self, actor_id: int) -> None:
        """Note that a call on the actor is about to go through the driver."""
        direct = self._by_actor.get(actor_id)
        if direct is None:
            return
        direct.is_bypassed = True
        self._flush(direct.channel)
        if (
            direct.channel.has_unsent()
        ):  # earlier direct calls do not fit into the socket: the actor has to wait for them
            self._driver.post((messages.AWAIT, actor_id, direct.sent))

    def send_call(self, direct: DirectChannel, actor: object, message: channel.Message, pending: Pending) -> None:
        """Put a call on a direct channel. The first call goes at once; the calls behind it go together, soon."""
        task_id = message[1]
        is_first = not direct.pending
        direct.actor = actor
        direct.pending[task_id] = pending
        direct.sent += 1
        self.sent += 1
        self.by_task[task_id] = direct
        for further in range(task_id + 1, task_id + pending.returns):
            self._first_ids[further] = task_id
        direct.channel.outbox.append(message)  # unencoded: it is short and plain, else it would go through the driver
        self._dirty.add(direct.channel)
        if is_first or len(direct.channel.outbox) >= BATCH:
            self._flush(direct.channel)
        else:
            self._flush_later()

    def cancel(self, task_id: int, *, recursive: bool) -> bool:
        """Cancel the direct call that returns this object; return False if there is none."""
        task_id = self._first_ids.get(task_id, task_id)
        direct = self.by_task.get(task_id)
        if direct is None:
            return False
        direct.channel.post((messages.CANCEL, task_id, recursive))
        self._flush(direct.channel)
        return True

    def cancel_children(self, parent: int) -> None:
        """Cancel the direct calls that this work has made, and the work that they have submitted."""
        for task_id, direct in list(self.by_task.items()):
            if direct.pending[task_id].parent == parent:
                self.cancel(task_id, recursive=True)

    def describe(self, task_id: int) -> tuple[int, str] | None:
        """Return the actor and the name of an unanswered direct call; None if there is none."""
        direct = self.by_task.get(task_id)
        return None if direct is None else (direct.actor_id, direct.pending[task_id].name)

    def is_waiting(self) -> bool:
        """Tell whether a direct call is unanswered."""
        return bool(self.by_task)

    def settle(self, task_id: int) -> int:
        """Note that a direct call is answered; return its number of return values, or 0 if it was answered before."""
        task_id = self._first_ids.get(task_id, task_id)
        direct = self.by_task.pop(task_id, None)
        if direct is None:
            return 0
        returns = direct.pending.pop(task_id).returns
        for further in range(task_id + 1, task_id + returns):
            self._first_ids.pop(further, None)
        if not direct.pending:
            direct.actor = None
        return returns

    def _take_answer(self, message: channel.Message) -> None:
        op, task_id = message[0], message[1]
        returns = self.settle(task_id)
        if op == messages.REPLY:
            for position, payload in enumerate(message[2]):
                self._values.take_answer(task_id + position, payload)
        elif op == messages.REPLY_FAILED:
            for position in range(max(1, returns)):
                self._values.take_answer(task_id + position, message[2])
        else:
            raise channel.FrameError(f"message {op!r} is unknown, or is not for a caller")

    def _hang_up(self, direct: DirectChannel) -> None:
        """Hand the unanswered calls to the driver, because the actor's process has ended."""
        del self._by_fd[direct.channel.fd]
        del self._by_actor[direct.actor_id]
        self._calls.pop(direct.actor_id, None)
        self._poller.unwatch(direct.channel.fd)
        self._forget(direct.channel)
        for task_id, (name, returns, _) in list(direct.pending.items()):
            del self.by_task[task_id]
            for further in range(task_id + 1, task_id + returns):
                self._first_ids.pop(further, None)
            object_ids = tuple(range(task_id, task_id + max(1, returns)))
            self._driver.post((messages.LOST, direct.actor_id, object_ids, name))
            self._values.give_to_driver(object_ids)
        direct.pending.clear()
        direct.actor = None


@final
class DirectChannels(Calls):
    """All direct channels of a worker: to the actors that it calls, and to the callers of its own actor.

    Args:
        driver: See `Calls`.
        poller: See `Calls`.
        come: See `Calls`.
        taker: Takes the direct calls.
        flush_later: See `Calls`.
    """

    def __init__(
        self,
        driver: journal.JournalChannel,
        poller: reactor.Reactor,
        come: Values,
        taker: Taker,
        flush_later: Callable[[], None],
    ) -> None:
        super().__init__(driver, poller, come, flush_later)
        self._taker = taker
        self._by_caller: dict[int, CallerChannel] = {}
        self._callers_by_fd: dict[int, CallerChannel] = {}
        #: Whether any worker has ever had a direct channel to this one.
        self.is_called = False

    def accept(self, caller_id: int, fd: int) -> None:
        """Take over the actor's end of a direct channel, which the driver passed on."""
        self.is_called = True
        old = self._by_caller.get(caller_id)
        caller = CallerChannel(caller_id, socket.socket(fileno=fd))
        if old is not None and not old.is_gone:  # the caller made a new channel, and says nothing more on the old one
            self._hang_up_caller(old)
        self._by_caller[caller_id] = caller
        self._callers_by_fd[caller.channel.fd] = caller
        self._poller.watch(caller.channel.fd)

    def sync(self, caller_id: int, number: int) -> None:
        """Read on: the driver has passed on all messages that the caller gave it before this number."""
        caller = self._by_caller.get(caller_id)
        if caller is not None:
            caller.synced = number
            held, caller.held, caller.waits_for = caller.held, [], 0
            self._take(caller, held)
            if caller.is_gone:
                self._part_with(caller)

    def read_first(self, caller_id: int) -> None:
        """Read the direct calls that a caller sent before its call through the driver."""
        caller = self._by_caller.get(caller_id)
        if caller is not None and not caller.is_gone:
            self._read(caller)

    def await_calls(self, caller_id: int, count: int) -> None:
        """Note how many direct calls precede the caller's next call through the driver; some are not in the socket
        yet."""
        caller = self._by_caller.get(caller_id)
        if caller is not None:
            caller.awaited = count

    def keep_if_early(self, caller_id: int, work: object) -> bool:
        """Keep a call through the driver back if direct calls that precede it are still to come; return whether it is
        kept."""
        caller = self._by_caller.get(caller_id)
        if caller is None or caller.read >= caller.awaited:
            return False
        caller.late.append((caller.awaited, work))
        return True

    def _release_late(self, caller: CallerChannel, read: float) -> None:
        late = caller.late
        while late and late[0][0] <= read:
            self._taker.enqueue(late.popleft()[1])

    def find_reply(self, caller_id: int) -> channel.Channel | None:
        """Return the channel for answers to a caller's direct calls; None if the caller is gone."""
        caller = self._by_caller.get(caller_id)
        return None if caller is None or caller.is_gone else caller.channel

    def send_reply(self, reply: channel.Channel, message: Message) -> bool:
        """Answer a direct call with an answer that outlives this process; return False if there is no room for it."""
        data = channel.encode(message)
        if not self._driver.keep_reply(data):
            self.flush()  # frees the room, if no socket is full
            if not self._driver.keep_reply(data):
                return False
        reply.outbox.append(data)
        self._dirty.add(reply)
        return True

    def _read(self, caller: CallerChannel) -> None:
        while True:
            received = caller.channel.receive()
            if received is None:
                self._hang_up_caller(caller)
                return
            if not received:
                return
            self._take(caller, received)

    def _take(self, caller: CallerChannel, received: list[channel.Message]) -> None:
        for message in received:
            if caller.waits_for and message[0] != messages.CANCEL:  # a cancelled call may run already
                caller.held.append(message)
            elif message[0] == messages.HOLD:
                if message[1] > caller.synced:
                    caller.waits_for = message[1]
            else:
                self._taker.take_message(message)
                caller.read += message[0] == messages.DIRECT
                if caller.late:
                    self._release_late(caller, caller.read)

    def _hang_up_caller(self, caller: CallerChannel) -> None:
        del self._callers_by_fd[caller.channel.fd]
        self._poller.unwatch(caller.channel.fd)
        self._forget(caller.channel)
        caller.is_gone = True
        self._part_with(caller)

    def _part_with(self, caller: CallerChannel) -> None:
        """Forget a caller that is gone, unless its messages still wait for a `SYNC`."""
        if not caller.waits_for:
            if self._by_caller.get(caller.caller_id) is caller:
                del self._by_caller[caller.caller_id]
            self._release_late(caller, float("inf"))

    # --- both roles ---------------------------------------------------------------------------------------------------

    def handle(self, fd: int, is_readable: bool) -> None:
        """Handle an event on a direct channel's descriptor."""
        direct = self._by_fd.get(fd)
        caller = self._callers_by_fd.get(fd)
        end = direct or caller
        if end is None:
            return
        if end.channel.has_unsent():
            self._flush(end.channel)
        if not is_readable:
            return
        if caller is not None:
            self._read(caller)
        elif direct is not None:
            received = direct.channel.receive()
            if received is None:
                self._hang_up(direct)
                return
            for message in received:
                self._take_answer(message)

    def cut_off(self) -> None:
        """Close the sockets in a fork: they are the parent's."""
        ends: list[DirectChannel | CallerChannel] = [*self._by_actor.values(), *self._by_caller.values()]
        for end in ends:
            end.channel.sock.close()
