"""Direct lines between workers: an actor's caller and the actor, without the driver between them.

A worker that calls an actor again and again makes a socket pair, keeps one end and has the driver pass the other one on
(`INTRODUCE`). From then on small calls and small results take that line: two messages less, and the driver may
compute meanwhile. There is no named socket that a stranger could find.

**Order.** A caller's calls run in the order in which they were made, whichever way each took. The driver passes the new
socket on behind the calls that it has from that caller, and the actor reads nothing from it before. Later a call may
have to go through the driver again (it has references among its arguments, or a large array). The actor then reads the
line first, because what is in it was sent before; and the caller puts a `HOLD` into the line before its next direct call
and has the driver pass a `SYNC` of the same number on: the actor reads no further than the one before it has seen the other. If the
line is full when a call has to bypass it, an `AWAIT` says how many direct calls the actor has to read first.

**Counting.** What a direct call returns is *private*: only the caller knows it, so the driver counts nothing. It is published
when a reference on it leaves the caller: with its value if that has come, and else as a promise, which is kept when it
comes, or broken by the caller's death. A result with references inside, or in shared memory, goes to the driver as an
object of the caller's, and the caller is told.

**Death.** The line ends when one of its processes does. The caller then hands its unanswered calls to the driver, which fails
them with what it knows, or will know, of the actor's death. Those that the actor had answered are not among them: the answers lie in
its page (`journal`), from where the driver delivers them. A caller keeps the actor alive while an answer is due.

What does not take this way: calls of actors that are built again or count their pending calls, calls that are tried
again, generators, and whatever has references among its arguments.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol, final

from hocket.engine.local import channel, journal, messages, payloads, reactor

INTRODUCE_AFTER = 3
"""Calls on one actor before it gets a line. A guess: a line costs about as much as ten calls, and two descriptors."""

MAX_LINES = 200
"""Lines that a worker makes at most; further actors are called through the driver."""

BATCH = 32
"""Calls that wait for company at most."""


class Pending(NamedTuple):
    """A direct call that is not answered."""

    name: str
    returns: int
    parent: int
    """What made the call."""


class Line:
    """The caller's end."""

    __slots__ = ("actor", "actor_id", "channel", "is_bypassed", "number", "pending", "sent")

    def __init__(self, actor_id: int, sock: socket.socket) -> None:
        self.actor_id = actor_id
        #: Keeps the actor alive while it owes answers.
        self.actor: object | None = None
        self.channel = channel.Channel(sock)
        #: Unanswered calls, by task.
        self.pending: dict[int, Pending] = {}
        #: Whether a call has gone through the driver since the last direct one.
        self.is_bypassed = False
        #: Of the last `HOLD`.
        self.number = 0
        #: How many calls were put on the line.
        self.sent = 0


class Extension:
    """The actor's end."""

    __slots__ = ("awaited", "caller_id", "channel", "held", "late", "read", "synced", "waits_for")

    def __init__(self, caller_id: int, sock: socket.socket) -> None:
        self.caller_id = caller_id
        self.channel = channel.Channel(sock)
        #: The number of the last `SYNC` that the driver passed on.
        self.synced = 0
        #: The `HOLD` at which reading has stopped; 0 is none.
        self.waits_for = 0
        #: What came behind it.
        self.held: list[channel.Message] = []
        #: How many calls were read from the line.
        self.read = 0
        #: How many have to be before what comes through the driver has its turn.
        self.awaited = 0
        #: What came through the driver and waits for that, each with its number.
        self.late: deque[tuple[int, object]] = deque()


Message = channel.Message


class Owner(Protocol):
    """What the switchboard needs of the worker's engine. The engine's lock is held in every call of a method here."""

    channel: journal.JournalChannel
    reactor: reactor.Reactor
    #: Takes the work that came by a line.
    on_work: Callable[[Message], None]

    #: Takes work that was kept back for order.
    on_late: Callable[[object], None]

    def take_answer(self, object_id: int, payload: payloads.Payload) -> None:
        """A value has come by a line."""

    def give_to_driver(self, object_ids: Iterable[int]) -> None:
        """The driver knows these objects from now on, and will bring them."""


class Sockets:
    """What both roles of a worker share: who owns the sockets, and which have something unsent."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._dirty: set[channel.Channel] = set()
        #: Those whose socket would not take everything.
        self._clogged: set[channel.Channel] = set()

    def flush(self) -> None:
        """Send what is unsent; what a socket does not take is sent when it does."""
        for end in list(self._dirty):
            self._flush(end)
        if not self._clogged:
            self._owner.channel.forget_replies()

    def _flush(self, end: channel.Channel) -> None:
        self._dirty.discard(end)
        self._clogged.discard(end)
        try:
            is_sent = end.flush()
        except OSError:  # the other process is dying; the end of the stream will tell
            end.outbox.clear()
            return
        if not is_sent:
            self._clogged.add(end)
        if end.sock.fileno() >= 0:  # it is open
            self._owner.reactor.watch_writable(end.fd, not is_sent)

    def has_unsent(self) -> bool:
        """Tell whether an answer or a call waits to be sent."""
        return bool(self._dirty)

    def _forget(self, end: channel.Channel) -> None:
        self._dirty.discard(end)
        self._clogged.discard(end)
        end.close()


class Calls(Sockets):
    """The lines to actors that this worker calls."""

    def __init__(self, owner: Owner) -> None:
        super().__init__(owner)
        self._lines: dict[int, Line] = {}
        self._lines_by_fd: dict[int, Line] = {}
        self._calls: dict[int, int] = {}
        #: How many direct calls were made here.
        self.sent = 0
        #: Which line will bring an object, by the task that makes it.
        self.by_task: dict[int, Line] = {}
        #: The task of each further return.
        self._first_ids: dict[int, int] = {}

    def find_line(self, actor_id: int) -> Line | None:
        """Return the line to an actor that a direct call may take; makes one for an actor that is called often."""
        line = self._lines.get(actor_id)
        if line is None:
            count = self._calls[actor_id] = self._calls.get(actor_id, 0) + 1
            if count <= INTRODUCE_AFTER or len(self._lines) >= MAX_LINES:
                return None
            line = self._introduce(actor_id)
            if line is None:
                return None
        if line.is_bypassed:
            line.is_bypassed = False
            line.number += 1
            self._owner.channel.post((messages.SYNC, actor_id, line.number))
            line.channel.post((messages.HOLD, line.number))
        return line

    def _introduce(self, actor_id: int) -> Line | None:
        try:
            ours, theirs = socket.socketpair()
        except OSError:  # no descriptor is left; the driver does it without
            return None
        line = self._lines[actor_id] = Line(actor_id, ours)
        self._lines_by_fd[line.channel.fd] = line
        self._owner.reactor.watch(line.channel.fd)
        driver = self._owner.channel
        driver.outbox_fds.append(theirs.fileno())
        driver.post((messages.INTRODUCE, actor_id))
        theirs.close()
        return line

    def note_bypass(self, actor_id: int) -> None:
        """A call on the actor is about to go through the driver."""
        line = self._lines.get(actor_id)
        if line is None:
            return
        line.is_bypassed = True
        self._flush(line.channel)
        if (
            line.channel.has_unsent()
        ):  # what is before the call does not fit into the socket: the actor has to wait for it
            self._owner.channel.post((messages.AWAIT, actor_id, line.sent))

    def send_call(self, line: Line, actor: object, message: channel.Message, pending: Pending) -> None:
        """Put a call on a line. The first one goes at once, those behind it in company."""
        task_id = message[1]
        is_first = not line.pending
        line.actor = actor
        line.pending[task_id] = pending
        line.sent += 1
        self.sent += 1
        self.by_task[task_id] = line
        for further in range(task_id + 1, task_id + pending.returns):
            self._first_ids[further] = task_id
        line.channel.outbox.append(message)  # short and plain: what is not goes through the driver
        self._dirty.add(line.channel)
        if is_first or len(line.channel.outbox) >= BATCH:
            self._flush(line.channel)

    def cancel(self, task_id: int, *, recursive: bool) -> bool:
        """Cancel the direct call that returns this object; False if there is no such one."""
        task_id = self._first_ids.get(task_id, task_id)
        line = self.by_task.get(task_id)
        if line is None:
            return False
        line.channel.post((messages.CANCEL, task_id, recursive))
        self._flush(line.channel)
        return True

    def cancel_children(self, parent: int) -> None:
        """Cancel the direct calls that this work has made, and what they have made."""
        for task_id, line in list(self.by_task.items()):
            if line.pending[task_id].parent == parent:
                self.cancel(task_id, recursive=True)

    def describe(self, task_id: int) -> tuple[int, str] | None:
        """Return the actor and the name of a direct call that is unanswered."""
        line = self.by_task.get(task_id)
        return None if line is None else (line.actor_id, line.pending[task_id].name)

    def is_waiting(self) -> bool:
        """Tell whether a direct call is unanswered."""
        return bool(self.by_task)

    def settle(self, task_id: int) -> int:
        """A direct call is answered; return its number of returns, 0 if it was answered before."""
        task_id = self._first_ids.get(task_id, task_id)
        line = self.by_task.pop(task_id, None)
        if line is None:
            return 0
        returns = line.pending.pop(task_id).returns
        for further in range(task_id + 1, task_id + returns):
            self._first_ids.pop(further, None)
        if not line.pending:
            line.actor = None
        return returns

    def _take_answer(self, message: channel.Message) -> None:
        op, task_id = message[0], message[1]
        returns = self.settle(task_id)
        if op == messages.REPLY:
            for position, payload in enumerate(message[2]):
                self._owner.take_answer(task_id + position, payload)
        elif op == messages.REPLY_FAILED:
            for position in range(max(1, returns)):
                self._owner.take_answer(task_id + position, message[2])
        else:
            raise channel.FrameError(f"message {op!r} is unknown, or is not for a caller")

    def _hang_up(self, line: Line) -> None:
        """The actor's process has ended: the driver will say what became of the unanswered calls."""
        del self._lines_by_fd[line.channel.fd]
        del self._lines[line.actor_id]
        self._calls.pop(line.actor_id, None)
        self._owner.reactor.unwatch(line.channel.fd)
        self._forget(line.channel)
        for task_id, (name, returns, _) in list(line.pending.items()):
            del self.by_task[task_id]
            for further in range(task_id + 1, task_id + returns):
                self._first_ids.pop(further, None)
            object_ids = tuple(range(task_id, task_id + max(1, returns)))
            self._owner.channel.post((messages.LOST, line.actor_id, object_ids, name))
            self._owner.give_to_driver(object_ids)
        line.pending.clear()
        line.actor = None


@final
class Switchboard(Calls):
    """All lines of a worker: those above, and those by which its own actor is called."""

    def __init__(self, owner: Owner) -> None:
        super().__init__(owner)
        self._extensions: dict[int, Extension] = {}
        self._extensions_by_fd: dict[int, Extension] = {}
        #: Whether anybody has ever called here directly.
        self.is_called = False

    def accept(self, caller_id: int, fd: int) -> None:
        """Take over the end of a line that the driver passed on."""
        self.is_called = True
        old = self._extensions.get(caller_id)
        extension = Extension(caller_id, socket.socket(fileno=fd))
        if old is not None:  # the caller made a new one, so it has nothing more to say on the old one
            self._hang_up_extension(old)
        self._extensions[caller_id] = extension
        self._extensions_by_fd[extension.channel.fd] = extension
        self._owner.reactor.watch(extension.channel.fd)

    def sync(self, caller_id: int, number: int) -> None:
        """The driver has passed on all that the caller gave it before this number."""
        extension = self._extensions.get(caller_id)
        if extension is not None:
            extension.synced = number
            held, extension.held, extension.waits_for = extension.held, [], 0
            self._take(extension, held)

    def read_first(self, caller_id: int) -> None:
        """Read what a caller sent by its line before it called through the driver."""
        extension = self._extensions.get(caller_id)
        if extension is not None:
            self._read(extension)

    def await_calls(self, caller_id: int, count: int) -> None:
        """What comes from the caller through the driver stands behind so many direct calls; some are not in the socket yet."""
        extension = self._extensions.get(caller_id)
        if extension is not None:
            extension.awaited = count

    def keep_if_early(self, caller_id: int, work: object) -> bool:
        """Keep what came through the driver if it stands behind direct calls that are still to come; tell whether it does."""
        extension = self._extensions.get(caller_id)
        if extension is None or extension.read >= extension.awaited:
            return False
        extension.late.append((extension.awaited, work))
        return True

    def _release_late(self, extension: Extension, read: float) -> None:
        late = extension.late
        while late and late[0][0] <= read:
            self._owner.on_late(late.popleft()[1])

    def find_reply(self, caller_id: int) -> channel.Channel | None:
        """Return where the answer to a caller's direct call goes; None if the caller is gone."""
        extension = self._extensions.get(caller_id)
        return None if extension is None else extension.channel

    def send_reply(self, reply: channel.Channel, message: Message) -> bool:
        """Answer a direct call; the answer outlives this process. False if there is no room for that."""
        data = channel.encode(message)
        driver = self._owner.channel
        if not driver.keep_reply(data):
            self.flush()
            if not driver.keep_reply(data):
                return False
        reply.outbox.append(data)
        self._dirty.add(reply)
        return True

    def _read(self, extension: Extension) -> None:
        while True:
            received = extension.channel.receive()
            if received is None:
                self._hang_up_extension(extension)
                return
            if not received:
                return
            self._take(extension, received)

    def _take(self, extension: Extension, received: list[channel.Message]) -> None:
        for position, message in enumerate(received):
            if extension.waits_for:
                extension.held += received[position:]
                return
            if message[0] == messages.HOLD:
                if message[1] > extension.synced:
                    extension.waits_for = message[1]
            else:
                self._owner.on_work(message)
                extension.read += message[0] == messages.DIRECT
                if extension.late:
                    self._release_late(extension, extension.read)

    def _hang_up_extension(self, extension: Extension) -> None:
        del self._extensions_by_fd[extension.channel.fd]
        if self._extensions.get(extension.caller_id) is extension:
            del self._extensions[extension.caller_id]
        self._owner.reactor.unwatch(extension.channel.fd)
        self._forget(extension.channel)
        self._release_late(extension, float("inf"))

    # --- both ---------------------------------------------------------------------------------------------------------

    def handle(self, fd: int, is_readable: bool) -> None:
        """Something happened on a descriptor of a line."""
        line = self._lines_by_fd.get(fd)
        extension = self._extensions_by_fd.get(fd)
        end = line or extension
        if end is None:
            return
        if end.channel.has_unsent():
            self._flush(end.channel)
        if not is_readable:
            return
        if extension is not None:
            self._read(extension)
        elif line is not None:
            received = line.channel.receive()
            if received is None:
                self._hang_up(line)
                return
            for message in received:
                self._take_answer(message)

    def cut_off(self) -> None:
        """In a fork: let go of the sockets, which are the parent's."""
        ends: list[Line | Extension] = [*self._lines.values(), *self._extensions.values()]
        for end in ends:
            end.channel.sock.close()
