"""A session of the local engine in one thread and one process: a stage on which a test says who moves next.

The driver's engine and its workers' are the real ones, with the real sockets between them; only the processes are not
there. `Guardian` makes a worker's engine in this process instead of forking one, and `Player` stands for the worker's
main loop: it takes work from the row, runs a *part* (a generator of requests) step by step, and does at each step what
`worker.execution` does. Nothing happens by itself. `Stage.list_moves` says what may happen next, in an order that is
always the same: a worker reads one of its sockets, sends what it has said, runs on, or dies; the driver reads a
worker's socket, learns of a death, or goes on with its own part. When nothing may happen and the parts are not over,
somebody waits for ever.

Every message is noted when it is about to be handled, with the state of what it is for (`message_states`).
"""

from __future__ import annotations

import functools
import mmap
import os
import select
import signal
import socket
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from hocket import exceptions
from hocket.engine import contract, events, values
from hocket.engine.local import channel, flow, journal, links, messages, payloads
from hocket.engine.local.driver import DriverEngine
from hocket.engine.local.work import Work
from hocket.engine.local.worker.worker import build as build_worker
from hocket.kernel import leases, records, resources
from tests.engine import message_states

Part = Generator[Any, Any, Any]
"""What a task, a call or the driver's program does: yields requests, is sent their results, returns the task's own."""

READABLE = select.EPOLLIN

FUNCTION = contract.RemoteFunction(None, "part", b"", b"part", ())
CLASS = contract.RemoteFunction(None, "Actor", b"", b"Actor", ())


class Actor:
    """What an actor of the stage is: its calls are parts."""


# --- requests of parts ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Item:
    """Yield the next item."""

    value: object


@dataclass(frozen=True)
class Get:
    """Wait for a value; answers with the value, or with its error."""

    ref: contract.AnyRef


@dataclass(frozen=True)
class Watch:
    """Wait until a value is there, without fetching it."""

    ref: contract.AnyRef


@dataclass(frozen=True)
class Ask:
    """Call a method of the driver's engine."""

    method: str
    args: tuple[object, ...]
    options: tuple[tuple[str, object], ...] = ()


@dataclass(frozen=True)
class Until:
    """Go on as soon as this is so."""

    is_so: Callable[[], bool]


@dataclass(frozen=True)
class Leave:
    """End the actor."""


# --- the workers ------------------------------------------------------------------------------------------------------


class Player:
    """A worker without its process."""

    def __init__(self, stage: Stage, worker_id: int, sock: socket.socket, page_fd: int) -> None:
        self.stage = stage
        self.id = worker_id
        ring = events.EventRing(worker_id, os.getpid())
        usual = signal.getsignal(signal.SIGINT)
        self.engine, self.worker = build_worker(worker_id, sock, page_fd, ring, stage.status)
        self.engine.guard.remove()  # the signals are pytest's
        signal.signal(signal.SIGINT, usual)
        self.engine.store.credit(1 << 30, "")  # a thread would have to wait for more
        self.work: Work | None = None
        self.part: Part | None = None
        #: Has the part go on: tells whether it may, and what it is sent.
        self.is_ready: Callable[[], bool] = _always
        self.get_answer: Callable[[], Any] = _nothing
        self.wait = self.question = 0
        self.index = 0
        self.ahead: flow.Flow | None = None
        self.is_doomed = False
        self.is_leaving = False

    # --- what it may do ---

    def list_moves(self) -> Iterator[Move]:
        if self.is_doomed:
            yield Move("is killed", self.die)
            return
        for fd in self.list_readable():
            yield Move(f"reads {self.name_socket(fd)}", functools.partial(self.read, fd))
        if self.is_leaving or (self.is_stopping and not self.engine.outbox.owes()):
            yield Move("leaves", self.leave)
            return
        if self.work is not None:
            if self.is_interrupted() or self.is_ready():
                yield Move("goes on", self.go_on)
        elif self.worker.row.works:
            yield Move("starts", self.start)
        if self.engine.outbox.has_unsent() or self.engine.dropped:
            yield Move("sends", self.send)

    @property
    def is_stopping(self) -> bool:
        return self.worker.life.is_stopping and self.work is None and not self.worker.row.works

    def list_sockets(self) -> dict[int, str]:
        direct = self.engine.direct
        found = {self.engine.channel.fd: "the driver"}
        found.update((fd, f"actor {end.actor_id}") for fd, end in direct._by_fd.items())
        found.update((fd, f"caller {end.caller_id}") for fd, end in direct._callers_by_fd.items())
        return found

    def name_socket(self, fd: int) -> str:
        return self.list_sockets()[fd]

    def list_readable(self) -> list[int]:
        return [fd for fd in self.list_sockets() if is_readable(fd)]

    def is_interrupted(self) -> bool:
        """Whether what runs is a task that was cancelled, or a generator that is to be when it has the word."""
        work = self.work
        assert work is not None
        is_told = work.task_id in self.engine.duty.cancelled
        return is_told and (not work.method or self.ahead is not None)

    # --- what it does ---

    def read(self, fd: int) -> None:
        with self.engine.lock:
            self.engine.reactor._handle(fd, READABLE)
        self.engine.reactor.run_due()
        self.look()

    def look(self) -> None:
        """Do what a thread that waits does after each round: look whether its wait is over, which may ask for
        something, and send."""
        if self.work is None or not self.is_ready():
            self.send()

    def send(self) -> None:
        with self.engine.lock:
            self.engine.outbox.before_wait()
        self.engine.outbox._notes_sent = float("-inf")  # notes go with the next, whatever the clock says

    def start(self) -> None:
        """Take work from the row, as `Worker._run_row` and `Execution.run` do."""
        worker, engine = self.worker, self.engine
        work = worker.row.works.popleft()
        if work.number:
            engine.channel.words[journal.BEGUN] = work.number
            if work.number <= engine.channel.words[journal.WITHDRAWN]:
                worker.row.hand_back(work)
                self.finish_round()
                return
        if work.method and work.task_id in engine.duty.cancelled:
            worker.answers.report_unstarted(work)
            self.finish_round()
            return
        worker.execution._status.note_start(work, engine.duty.running)
        self.work, self.index = work, 0
        args, _ = worker.code.open_arguments(work)
        if (work.extra or {}).get("creates_actor"):
            worker.execution._create_actor(work, Actor, (), {})
        self.part = self.stage.parts[work.name](self, *args)
        if work.function_id:
            worker.code.functions[work.function_id] = self.stage.parts[work.name]
        if work.num_returns < 0:
            self.ahead = worker.answers.open_flow(work)
        self.wait_for(_always)

    def go_on(self) -> None:
        """Run to the next request, and begin it."""
        work, part = self.work, self.part
        assert work is not None
        assert part is not None
        try:
            self.end_wait()
            if self.is_interrupted():
                part.close()
                self.engine.questions._answers.pop(self.question, None)  # as the `finally` of `_wait_answer`
                self.worker.interruption._cancelling_id = work.task_id
                raise KeyboardInterrupt
            self.begin(part.send(self.get_answer()))
            return
        except StopIteration as end:
            if work.method and work.task_id in self.engine.duty.cancelled:
                self.worker.answers.report(work, exceptions.TaskCancelledError("it was cancelled while it ran"))
            else:
                result = None if self.ahead is not None else end.value
                self.close_flow()
                self.worker.answers.send_result(work, result, work.started)
        except (exceptions.HocketError, KeyboardInterrupt, ArithmeticError) as error:
            self.close_flow()
            self.worker.answers.report(work, error)
        self.end_work()

    def close_flow(self) -> None:
        if self.ahead is not None and self.work is not None:
            self.worker.answers.close_flow(self.work)
        self.ahead = None

    def end_work(self) -> None:
        assert self.work is not None
        self.close_flow()
        self.worker.execution._note_end(self.work, self.engine.duty.running, None)
        self.work.clear()
        self.work = self.part = None
        self.wait_for(_always)
        self.finish_round()

    def finish_round(self) -> None:
        if not self.worker.row.works:
            self.send()

    # --- requests ---

    def wait_for(self, is_ready: Callable[[], bool], get_answer: Callable[[], Any] | None = None) -> None:
        self.is_ready = is_ready
        self.get_answer = get_answer or _nothing

    def begin(self, asked: Any) -> None:
        engine, work = self.engine, self.work
        assert work is not None
        match asked:
            case Item():
                self.yield_item(asked.value)
            case Get(ref):
                self.begin_get(ref)
            case Watch(ref):
                self.begin_watch(ref)
            case Ask(method, args, options):
                self.begin_question(method, args, dict(options))
            case Until(is_so):
                self.wait_for(is_so)
                self.send()
            case Leave():
                with engine.lock:
                    engine.channel.post((messages.EXITING,))
                self.send()
                self.is_leaving = True
            case _:
                self.wait_for(_always, lambda: asked)

    def begin_question(self, method: str, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """Do the first half of `Questions.ask`; the second waits."""
        engine = self.engine
        encoded = values.encode_whole((args, kwargs))
        with engine.lock:
            engine.arrivals.publish(encoded.refs)
            self.question = engine.questions._open()
            engine.channel.post((messages.ASK, self.question, method, encoded.data))
        self.wait_for(lambda: engine.questions._answers[self.question] is not None, self.read_answer)
        self.send()

    def read_answer(self) -> Any:
        try:
            return self.engine.questions._wait(self.question)
        except exceptions.HocketError as error:
            return error.with_traceback(None)

    def begin_block(self, wanted: tuple[int, ...], missing: tuple[int, ...], needed: int = 0) -> None:
        self.wait = next(self.engine.duty.ids)
        with self.engine.lock:
            self.engine.values._block(self.wait, wanted, missing, needed)

    def end_wait(self) -> None:
        if self.wait:
            number, self.wait = self.wait, 0
            self.engine.values._unblock(number)

    def yield_item(self, value: object) -> None:
        work, ahead, worker = self.work, self.ahead, self.worker
        assert work is not None
        assert ahead is not None
        is_full = ahead.add(worker.answers.send_item(work, self.index, value))
        self.index += 1
        if is_full:
            worker.answers.announce_pause(work, ahead)
            self.begin_block((), ())
            self.send()
        self.wait_for(lambda: not ahead.is_full() or work.task_id in self.engine.duty.cancelled)

    def begin_get(self, ref: contract.AnyRef) -> None:
        engine = self.engine
        missing = {ref._id} if ref._id not in engine.arrivals.values else set()

        def is_there() -> bool:
            with engine.lock:
                return self.wait in engine.values._deadlocks or engine.arrivals.have_come(missing)

        def get_answer() -> Any:
            found = engine.arrivals.values[ref._id]
            if found.payload[0] == payloads.SEGMENT:  # as `ObjectAccess._open` does
                del engine.arrivals.values[ref._id]
            try:
                return engine.values.open_payload(ref._id, found)
            except exceptions.HocketError as error:
                return error.with_traceback(None)  # whose frames hold handles

        if missing:
            self.begin_block(tuple(missing), tuple(missing))
        self.wait_for(is_there, get_answer)
        is_there()  # which asks for it
        self.send()

    def begin_watch(self, ref: contract.AnyRef) -> None:
        engine = self.engine
        if not engine.arrivals.is_there(ref._id):
            self.begin_block((ref._id,), (ref._id,), 1)
            with engine.lock:
                engine.arrivals.watch(ref._id)
        self.wait_for(lambda: engine.arrivals.is_there(ref._id))
        self.send()

    # --- its end ---

    def leave(self) -> None:
        self.send()
        self.die()

    def die(self) -> None:
        """The process ends; its parent has not said so yet."""
        del self.stage.players[self.id]
        engine = self.engine
        self.stage.note_unread(self)
        ends: list[Any] = [*engine.direct._by_fd.values(), *engine.direct._callers_by_fd.values()]
        for end in ends:
            end.channel.close()
        engine.channel.close()
        for arrived in engine.arrivals.values.values():
            if arrived.payload[0] == payloads.SEGMENT:
                os.close(arrived.payload[-1])
        engine.reactor.cut_off()
        os.close(engine.reactor._wake_fd)
        self.stage.dead.append(self.id)


class Guardian:
    """Stands for the guardian's process, and makes players instead of workers."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.pid = os.getpid()
        self.fd = os.eventfd(0)
        self.events = events.EventRing(0, os.getpid())

    def spawn(self, worker_id: int, sock: socket.socket, page: journal.Page) -> None:
        fds = os.dup(sock.fileno()), os.dup(page.fd)
        sock.close()
        page.hand_over()
        self._stage.unborn[worker_id] = fds

    def kill(self, worker_id: int) -> None:
        if worker_id in self._stage.players:
            self._stage.players[worker_id].is_doomed = True
        elif worker_id in self._stage.unborn:
            self._stage.bear(worker_id)
            self._stage.players[worker_id].is_doomed = True

    def owe(self, worker_id: int) -> None:
        pass

    def owes(self) -> bool:
        return False

    def read_status(self, worker_id: int) -> int:
        return 0

    def read_start(self, worker_id: int) -> float:
        return 0.0

    def end(self) -> None:
        os.close(self.fd)


@dataclass(frozen=True)
class Move:
    """Something that may happen next."""

    name: str
    make: Callable[[], None]
    engine: contract.Engine | None = None
    """Whose session it is that references are of, where the move is made."""


class Stage:
    """The driver, its workers, and what may happen next.

    Args:
        main: The driver's part.
        parts: The parts of tasks and methods, by name.
        cpus: Of the machine.
        deaths: How many workers may die at any moment.
        seen: Where the messages that are handled are counted, each with the state of what it is for.
        queue_seconds: How much work may stand in a worker's row: none, or as much as there is.
    """

    open_one: ClassVar[Stage | None] = None

    def __init__(
        self,
        main: Callable[[Stage], Part],
        parts: dict[str, Callable[..., Part]],
        *,
        cpus: int = 2,
        deaths: int = 0,
        seen: Counter[tuple[int, str]] | None = None,
        queue_seconds: float = 0.0,
    ) -> None:
        leases.QUEUE_SECONDS = queue_seconds
        Stage.open_one = self
        self.parts = parts
        self.deaths = self.given_deaths = deaths
        self.seen: Counter[tuple[int, str]] = Counter() if seen is None else seen
        self.players: dict[int, Player] = {}
        self.unborn: dict[int, tuple[int, int]] = {}
        self.dead: list[int] = []
        self.found: Any = None
        self.history: list[str] = []
        self.status = mmap.mmap(-1, messages.STATUS_BYTES)
        self.driver = DriverEngine(resources.parse_demand({"CPU": cpus}), namespace="stage")
        self.driver.session.guard.remove()  # the signals are pytest's
        self.driver.parent.guardian = Guardian(self)  # type: ignore[assignment]
        self.main: Part | None = main(self)
        self.is_ready: Callable[[], bool] = _always
        self.get_answer: Callable[[], Any] = _nothing
        #: What parts have opened for others.
        self.open: set[str] = set()

    # --- what may happen ---

    def list_moves(self) -> list[Move]:
        moves = [Move("main goes on", self.go_on)] if self.main is not None and self.is_ready() else []
        moves += [
            Move(f"driver reads {link.worker.id}", functools.partial(self.hear, link))
            for link in self.driver.links.by_worker.values()
            if not link.is_closed and is_readable(link.channel.fd)
        ]
        for player in self.players.values():
            moves += [Move(f"{player.id} {move.name}", move.make, player.engine) for move in player.list_moves()]
        moves += [Move(f"{worker_id} is born", functools.partial(self.bear, worker_id)) for worker_id in self.unborn]
        moves += [
            Move(f"driver buries {worker_id}", functools.partial(self.bury, worker_id)) for worker_id in self.dead
        ]
        if not moves and self.main is None:
            return []
        stalled = [worker for worker in self.driver.kernel.find_stalled() if worker.id in self.driver.links.by_worker]
        moves += [Move(f"driver withdraws from {w.id}", functools.partial(self.withdraw, w)) for w in stalled]
        return moves

    def list_deaths(self) -> list[Move]:
        """Return who may die now, which is never what somebody waits for."""
        if not self.deaths or self.main is None:
            return []
        players = [Move(f"{player.id} dies", functools.partial(self.kill, player)) for player in self.players.values()]
        return players + [Move(f"{i} is never born", functools.partial(self.miscarry, i)) for i in self.unborn]

    def make(self, move: Move) -> None:
        self.history.append(move.name)
        contract.set_current_engine(move.engine or self.driver)
        try:
            move.make()
        finally:
            contract.set_current_engine(None)
        self.driver.reactor.run_due()
        self.tidy()
        refused = [error for error in self.driver.session.errors if "socket" in error.name or "journal" in error.name]
        assert not refused, (refused, self.history)

    # --- the driver ---

    def go_on(self) -> None:
        assert self.main is not None
        try:
            asked = self.main.send(self.get_answer())
        except StopIteration as end:
            self.found, self.main = end.value, None
            self.is_ready, self.get_answer = _always, _nothing  # which hold handles
            self.tidy()
            return
        self.is_ready, self.get_answer = _always, lambda: asked
        known, driver = self.driver.kernel.objects, self.driver
        match asked:
            case Get(ref):
                self.is_ready = lambda: known[ref._id].value is not None
                self.get_answer = lambda: self.read_value(ref)
            case Watch(ref):
                self.is_ready = lambda: known[ref._id].value is not None
                self.get_answer = lambda: known[ref._id].value[0] == payloads.END  # type: ignore[index]
            case Ask(method, args, options):
                answer = find_method(driver, method)(*args, **dict(options))
                self.get_answer = lambda: answer
            case Until(is_so):
                self.is_ready = is_so

    def read_value(self, ref: contract.AnyRef) -> Any:
        try:
            return self.driver.objects.get((ref,), None)[0]
        except exceptions.HocketError as error:
            return error.with_traceback(None)

    def hear(self, link: links.Link) -> None:
        with self.driver.lock:
            self.driver.reactor._handle(link.channel.fd, READABLE)

    def withdraw(self, worker: records.WorkerRecord) -> None:
        with self.driver.lock:
            self.driver.kernel.withdraw(worker, self.driver.links.by_worker[worker.id].page.withdraw(worker.sent))
            self.driver.floor.carry_out()

    def tidy(self) -> None:
        with self.driver.lock:
            self.driver.floor.drain_dropped()
            self.driver.floor.carry_out()

    # --- births and deaths ---

    def bear(self, worker_id: int) -> None:
        sock_fd, page_fd = self.unborn.pop(worker_id)
        self.players[worker_id] = Player(self, worker_id, socket.socket(fileno=sock_fd), page_fd)

    def miscarry(self, worker_id: int) -> None:
        self.deaths -= 1
        for fd in self.unborn.pop(worker_id):
            os.close(fd)
        self.dead.append(worker_id)

    def kill(self, player: Player) -> None:
        self.deaths -= 1
        player.die()

    def bury(self, worker_id: int) -> None:
        self.dead.remove(worker_id)
        link = self.driver.links.by_worker[worker_id]
        unread = [] if link.is_closed else peek(link.channel)
        for message in (*unread, *link.page.read_unsent(link.channel.received + len(unread))):
            self.seen[message[0], message_states.GONE] += 1
        death = exceptions.Death(pid=worker_id, signal_number=signal.SIGKILL)
        with self.driver.lock:
            self.driver.pool._bury(worker_id, death)
            self.driver.floor.carry_out()

    # --- submitting ---

    def submit(self, name: str, *args: object, num_returns: int = 1, **given: Any) -> contract.AnyRef:
        options = records.TaskOptions(name=name, num_returns=num_returns, **given)
        return self.driver.tasks.submit_task(FUNCTION, args, {}, options)[0]

    def create(self, name: str = "Actor", **given: Any) -> contract.AnyRef:
        creation = records.TaskOptions(name=name, shape=resources.Shape(()))
        options = records.ActorOptions(
            class_name=name,
            creation=creation,
            lifetime_shape=resources.Shape(()),
            name=name,
            namespace="stage",
            **given,
        )
        return self.driver.tasks.create_actor(CLASS, (), {}, options).ref

    def call(self, actor: contract.AnyRef, name: str, *args: object, **given: Any) -> contract.AnyRef:
        return self.driver.tasks.submit_call(actor, name, args, {}, records.TaskOptions(name=name, **given))[0]

    # --- what is seen ---

    def note(self, end: channel.Channel, message: channel.Message) -> None:
        """A message is about to be handled by whoever has this end of a socket."""
        for link in self.driver.links.by_worker.values():
            if link.channel is end:
                state = message_states.find_state_in_driver(self.driver, link, message)
                is_gone = link.worker.id not in self.players
                self.seen[message[0], message_states.GONE if is_gone else state] += 1
                return
        for player in self.players.values():
            if end.fd in player.list_sockets():
                self.seen[message[0], message_states.find_state_in_worker(player, message)] += 1

    def note_unread(self, player: Player) -> None:
        """What a worker that dies had not read is lost with it."""
        direct = player.engine.direct
        ends = [player.engine.channel, *(end.channel for end in direct._by_fd.values())]
        for end in [*ends, *(end.channel for end in direct._callers_by_fd.values())]:
            for message in peek(end):
                self.seen[message[0], message_states.GONE] += 1

    # --- the end ---

    def settle(self) -> None:
        """Make every move that is left, in order."""
        for _ in range(2000):
            self.tidy()
            moves = self.list_moves()
            if not moves:
                return
            self.make(moves[0])
        raise AssertionError(f"it does not come to rest: {self.history[-50:]}")

    def close(self) -> None:
        for worker_id in list(self.unborn):
            self.bear(worker_id)
        for player in list(self.players.values()):
            player.die()
        self.main = Stage.open_one = None
        self.driver.close()


class Noted(list[channel.Message]):
    """Messages that have come; each is noted when it has its turn."""

    def __init__(self, found: list[channel.Message], end: channel.Channel) -> None:
        super().__init__(found)
        self._end = end

    def __iter__(self) -> Iterator[channel.Message]:
        for message in super().__iter__():
            if Stage.open_one is not None:
                Stage.open_one.note(self._end, message)
            yield message


def note_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every message noted by the stage that is open."""
    receive = channel.Channel.receive

    def receive_noted(end: channel.Channel) -> list[channel.Message] | None:
        found = receive(end)
        return found if found is None else Noted(found, end)

    monkeypatch.setattr(channel.Channel, "receive", receive_noted)


def is_readable(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN | select.POLLHUP)
    return bool(poll.poll(0))


def peek(end: channel.Channel) -> list[channel.Message]:
    """Return the messages that will be read from a socket next, without one of which a part has been read."""
    try:
        data = b"" if end._partial else end.sock.recv(channel.RECEIVE_BYTES, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except OSError:
        return []
    found: list[channel.Message] = []
    while len(data) >= 4 and len(data) >= 4 + (size := int.from_bytes(data[:4], "little")):
        found += channel._parse(memoryview(data)[4 : 4 + size], size)
        data = data[4 + size :]
    return found


def _always() -> bool:
    return True


def _nothing() -> None:
    return None


def find_method(engine: contract.Engine, name: str) -> Callable[..., Any]:
    """Return a method of one of an engine's parts."""
    parts = (engine.tasks, engine.actors, engine.objects, engine.resources, engine.view, engine.metrics)
    found: Callable[..., Any] = next(getattr(part, name) for part in parts if hasattr(part, name))
    return found
