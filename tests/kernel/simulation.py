"""A session without processes: the kernel, workers that are lists, and a book of what must hold.

A worker *starts* a task, *publishes* its answer, and later the kernel *hears* it (`FakeWorker.journal`); it may die
between any two.

`Simulation` carries out the kernel's instructions on fake workers. Nothing happens by itself: a test chooses the next
move (a worker reads its next message, starts, answers, blocks, dies), so every order of events that an engine can meet
can be tried. After each move `check` compares the kernel with the book, which knows only what was asked and what was
answered:

- **Values.** What a task returned, or why it failed, is what its object holds, and an error has a true reason.
- **Once.** No task is started more often than its retries allow, none after it was answered, none sent after it was
  cancelled.
- **Deaths.** What a worker had published is not lost with it, and is not started again. What it was running is charged,
  and nothing else.
- **Order.** Calls of one caller on one actor start in the order of submission, and items of a generator come in theirs.
- **Resources.** What a pool lacks is what living workers and reserved groups hold.
- **Ends.** An actor that nobody can reach ends, also if it holds its own handle; one that somebody can reach does not.
- **Memory.** A value that was handed over is freed once, and not while something needs it.

To add a feature of the kernel: a method here for each new move, an entry in the book for what it promises.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hocket import exceptions
from hocket.kernel import ids, leases, machine, records, resources
from hocket.kernel.instructions import Cancel, Consumed, End, Free, Instruction, Kill, Run, Start, Stop, Tell
from hocket.kernel.records import DRIVER, TaskKind, TaskRecord, TaskState

CPUS = 3

MOST_MOVES = 10_000
"""So many moves never come together in a test; more is a loop."""


@dataclass(eq=False)
class FakeWorker:
    """A worker that does what the test tells it."""

    record: records.WorkerRecord
    inbox: deque[tuple[Any, ...]] = field(default_factory=deque)
    """What the kernel sent and the worker has not read."""
    row: list[tuple[TaskRecord, int]] = field(default_factory=list)
    """Tasks that it has read and not started, each with its number."""
    running: TaskRecord | None = None
    begun: int = 0
    """The number of the task that it started last, or is about to start."""
    withdrawn: int = 0
    """Tasks up to this number it must not start any more."""
    is_claiming: bool = False
    """Whether it has said what it is about to start and not yet looked whether it may."""
    journal: deque[Callable[[], None]] = field(default_factory=deque)
    """What it has published and the kernel has not heard."""
    waits_for: int = 0
    """The object that its running task waits for; 0 is none."""
    held: Counter[int] = field(default_factory=Counter)
    """How many counts on each object the kernel has given it."""
    is_stopping: bool = False
    is_doomed: bool = False
    """Whether somebody has been asked to kill it."""

    @property
    def id(self) -> int:
        return self.record.id

    @property
    def can_start(self) -> bool:
        return self.running is None and bool(self.row)

    @property
    def can_claim(self) -> bool:
        return self.can_start and not self.is_claiming

    @property
    def can_answer(self) -> bool:
        return self.running is not None and not self.waits_for

    @property
    def can_exit(self) -> bool:
        return self.is_stopping and self.running is None and not self.row and not self.inbox and not self.journal


@dataclass(eq=False)
class Entry:
    """What the book knows of a task."""

    task: TaskRecord
    dependencies: tuple[int, ...]
    max_retries: int
    actor_id: int = 0
    number: int = 0
    """Its place among the calls of its caller on its actor."""
    group_id: int = 0
    starts: int = 0
    charges: int = 0
    """Deaths of workers and exceptions that cost a try."""
    errors: list[Any] = field(default_factory=list)
    """Errors that the user's code raised."""
    is_cancelled: bool = False
    is_answered: bool = False
    is_published: bool = False
    """Whether an attempt of it has returned."""


class Simulation:
    """The kernel, its fake workers, and the book.

    Args:
        cpus: Of the machine.
        is_lazy: Whether what workers publish is heard only when a test says so (`hear`), or when they die.
    """

    def __init__(self, cpus: int = CPUS, *, is_lazy: bool = False) -> None:
        self.is_lazy = is_lazy
        #: How many deaths came when, for tests to see that they did.
        self.deaths: Counter[str] = Counter()
        self.kernel = machine.Kernel(
            resources.parse_demand({"CPU": cpus}),
            max_idle_workers=cpus,
            encode_error=lambda error: ("error", error),
            none_value=("none",),
            end_value=("end",),
        )
        self.workers: dict[int, FakeWorker] = {}
        self.function = records.FunctionRecord(b"f", b"")
        self.book: dict[int, Entry] = {}
        self.makers: dict[int, Entry] = {}
        """By object: the task that makes it."""
        self.handles: Counter[int] = Counter()
        """References of the driver, by object."""
        self.results: dict[int, Any] = {}
        """What each object became, also after it was freed."""
        self.returned: dict[int, Any] = {}
        """What a worker returned for an object."""
        self.contents: dict[int, tuple[int, ...]] = {}
        """The references inside each value."""
        self.unfreed: set[int] = set()
        """Serial numbers of values that the kernel has and has not let go."""
        self.dead_actors: set[int] = set()
        self.restarts: Counter[int] = Counter()
        """How often each actor has lost its process and may be built again."""
        self.yielded: Counter[int] = Counter()
        """How many items the present attempt of each generator has yielded."""
        self.taken: Counter[int] = Counter()
        """How many items of each generator the driver has taken."""
        self.removed_groups: set[int] = set()
        self.groups: list[int] = []
        self.watches: set[tuple[int, int]] = set()
        self.calls: Counter[tuple[int, int]] = Counter()
        self.last_call: dict[tuple[int, int], int] = {}
        self._ids = iter(range(1, 10**9))
        self._serials = iter(range(1, 10**9))

    # --- what the kernel asks -----------------------------------------------------------------------------------------

    def carry_out(self) -> None:
        """Do what the kernel asks, then compare it with the book."""
        self._note_abandoned()
        while self.kernel.instructions:
            batch, self.kernel.instructions = self.kernel.instructions, []
            for instruction in batch:
                self._carry_out_one(instruction)
        self.check()

    def _note_abandoned(self) -> None:
        """The kernel itself cancels generators that nobody can read any more, and what a task has submitted that was
        cancelled with its children and has died; and nothing else."""
        for entry in self.book.values():
            task = entry.task
            parent = self.book.get(task.parent)
            if task.cancelled and parent is not None and parent.task.cancelled > records.ALONE:
                entry.is_cancelled = True
            if task.cancelled and not entry.is_cancelled:
                assert task.options.num_returns == records.STREAMING, f"task {task.id} was cancelled by nobody"
                assert task.id not in self.kernel.objects, f"generator {task.id} was cancelled, and has a reader"
                entry.is_cancelled = True
        for task in self.kernel.tasks.values():
            if task.stream is not None and task.id not in self.kernel.objects:
                assert task.cancelled, f"generator {task.id} goes on for nobody"

    def _carry_out_one(self, instruction: Instruction) -> None:
        match instruction:
            case Start(record):
                self.workers[record.id] = FakeWorker(record)
            case Run(record, task):
                self._send(self.workers[record.id], task)
            case Kill(record):
                if record.id in self.workers:
                    self.workers[record.id].is_doomed = True
            case End(record, task_id):
                self._end_task(self.workers[record.id], task_id)
            case Cancel() | Stop():
                if instruction.worker.id in self.workers:
                    self.workers[instruction.worker.id].inbox.append(instruction)
            case Free(_, value):
                self._free(value)
            case Consumed():
                pass
            case Tell(worker_id, object_id):
                self.watches.discard((worker_id, object_id))
                if worker_id in self.workers and self.workers[worker_id].waits_for == object_id:
                    self.workers[worker_id].inbox.append(instruction)
            case _:
                raise AssertionError(f"unknown instruction {instruction}")

    def _end_task(self, worker: FakeWorker, task_id: int) -> None:
        self._withdraw(worker)
        task = worker.record.inflight.get(task_id)
        if task is not None and task.number == worker.begun:
            worker.is_doomed = worker.record.killed = True

    def _withdraw(self, worker: FakeWorker) -> None:
        worker.withdrawn = worker.record.sent
        self.kernel.withdraw(worker.record, worker.begun)

    def _send(self, worker: FakeWorker, task: TaskRecord) -> None:
        entry = self.book[task.id]
        assert not entry.is_cancelled, f"task {task.id} was cancelled, and is sent all the same"
        is_rebuilt = task.kind == TaskKind.CREATION and self.restarts[task.id] > 0
        assert is_rebuilt or not entry.is_answered, f"task {task.id} was answered, and is sent again"
        for object_id in entry.dependencies:
            record = self.kernel.objects[object_id]
            assert record.value is not None, f"task {task.id} is sent without the value of {object_id}"
            assert not record.failed, f"task {task.id} is sent although {object_id} failed"
        for object_id in task.borrowed:
            self.kernel.retain(object_id, worker.id)
            worker.held[object_id] += 1
        worker.inbox.append((task, task.number))

    def _free(self, value: tuple[Any, ...]) -> None:
        if value[0] == "value":
            assert value[1] in self.unfreed, f"value {value} is freed twice"
            self.unfreed.discard(value[1])

    def _make_value(self) -> tuple[str, int, str]:
        serial = next(self._serials)
        self.unfreed.add(serial)
        return ("value", serial, "of three parts, so it has to be freed")

    # --- moves of the driver, and of tasks ----------------------------------------------------------------------------

    def submit(
        self,
        *,
        cpus: float = 1,
        dependencies: tuple[int, ...] = (),
        borrowed: tuple[int, ...] = (),
        max_retries: int = 0,
        retry_exceptions: bool = False,
        num_returns: int = 1,
        group: tuple[int, int] = (0, -1),
        caller: FakeWorker | None = None,
    ) -> TaskRecord:
        """Submit a plain task, from the driver or from what a worker runs."""
        options = records.TaskOptions(
            name="f",
            shape=resources.Shape(resources.parse_demand({"CPU": cpus}), *group),
            max_retries=max_retries,
            retry_exceptions=retry_exceptions,
            num_returns=num_returns,
        )
        return self._submit(options, dependencies, borrowed, caller, TaskKind.FUNCTION)

    def create_actor(
        self, *, cpus: float = 1, keeps: float = 0, name: str = "", detached: bool = False, **given: Any
    ) -> TaskRecord:
        """Create an actor; further keywords are those of `ActorOptions`."""
        creation = records.TaskOptions(name="A.__init__", shape=resources.Shape(resources.parse_demand({"CPU": cpus})))
        options = records.ActorOptions(
            class_name="A",
            creation=creation,
            lifetime_shape=resources.Shape(resources.parse_demand({"CPU": keeps})),
            name=name,
            detached=detached,
            **given,
        )
        return self._submit(creation, (), (), None, TaskKind.CREATION, actor_options=options)

    def call(
        self,
        actor_id: int,
        *,
        dependencies: tuple[int, ...] = (),
        borrowed: tuple[int, ...] = (),
        caller: FakeWorker | None = None,
        max_retries: int = 0,
    ) -> TaskRecord:
        """Call a method of an actor, which keeps the references that it is given inside its arguments."""
        options = records.TaskOptions(name="A.m", max_retries=max_retries)
        return self._submit(options, dependencies, borrowed, caller, TaskKind.CALL, actor_id=actor_id)

    def _submit(
        self,
        options: records.TaskOptions,
        dependencies: tuple[int, ...],
        borrowed: tuple[int, ...],
        caller: FakeWorker | None,
        kind: TaskKind,
        *,
        actor_options: records.ActorOptions | None = None,
        actor_id: int = 0,
    ) -> TaskRecord:
        task_id = next(self._ids)
        returns = abs(options.num_returns)
        for _ in range(returns - 1):
            next(self._ids)
        caller_id = DRIVER if caller is None else caller.id
        parent = 0 if caller is None or caller.running is None else caller.running.id
        args = self._make_value()
        task = TaskRecord(task_id, self.function, args, dependencies, borrowed, options, caller_id, parent, kind)
        task.actor_options = actor_options
        entry = Entry(task, dependencies, options.max_retries, actor_id, group_id=options.shape.group_id)
        if actor_id:
            task.actor = self.kernel.actors[actor_id]
            self.calls[actor_id, caller_id] += 1
            entry.number = self.calls[actor_id, caller_id]
        self.book[task_id] = entry
        holds = self.handles if caller is None else caller.held
        for object_id in range(task_id, task_id + returns):
            self.makers[object_id] = entry
            holds[object_id] += 1
        self.kernel.submit(task)
        self.carry_out()
        return task

    def take_item(self, task_id: int) -> int:
        """The driver takes the next item of a generator."""
        item_id = self.kernel.take_item(task_id, self.taken[task_id])
        self.taken[task_id] += 1
        self.handles[item_id] += 1
        self.carry_out()
        return item_id

    def can_take(self, task_id: int) -> bool:
        """Tell whether the next item is there.

        A reader that waits for one holds the generator as long, so it is no case here.
        """
        record = self.kernel.objects.get(ids.build_item_id(task_id, self.taken[task_id]))
        return task_id in self.handles and record is not None and record.value is not None

    def put(self, contained: tuple[int, ...] = (), caller: FakeWorker | None = None) -> int:
        """Store a value that refers to these objects."""
        object_id = next(self._ids)
        value = self._make_value()
        self.returned[object_id] = value
        (self.handles if caller is None else caller.held)[object_id] += 1
        self.contents[object_id] = contained
        self.kernel.put(object_id, value, contained, DRIVER if caller is None else caller.id)
        self.carry_out()
        return object_id

    def drop(self, object_id: int, caller: FakeWorker | None = None) -> None:
        """Give all references on an object back, of the driver or of a worker."""
        held = (self.handles if caller is None else caller.held).pop(object_id)
        self.kernel.release(object_id, DRIVER if caller is None else caller.id, held)
        self.carry_out()

    def cancel(self, object_id: int, *, force: bool = False, recursive: bool = False) -> None:
        """Cancel the task that makes the object."""
        record = self.kernel.objects.get(object_id)
        if record is not None and record.task is not None:
            self._note_cancelled(record.task, recursive=recursive)
        self.kernel.cancel(object_id, force=force, recursive=recursive)
        self.carry_out()

    def _note_cancelled(self, task: TaskRecord, *, recursive: bool) -> None:
        self.book[task.id].is_cancelled = True
        for child in self.kernel.tasks.values() if recursive else ():
            if child.parent == task.id and child.kind != TaskKind.CREATION and child.state != records.TaskState.DONE:
                self._note_cancelled(child, recursive=True)

    def kill_actor(self, actor_id: int) -> None:
        """End an actor now."""
        self.dead_actors.add(actor_id)
        self.kernel.kill_actor(actor_id)
        self.carry_out()

    def collect(self) -> None:
        """End the actors that nobody can reach. An engine asks their workers first; these here have nothing to say."""
        found = self.kernel.find_unreachable()
        reached = self._list_reached()
        for actor in found:
            assert actor.id not in reached, f"actor {actor.id} can be reached, and is ended"
        self.dead_actors.update(actor.id for actor in found)
        self.kernel.end_unreachable(found)
        self.carry_out()

    def _list_reached(self) -> set[int]:
        """Return what the driver, tasks, workers of tasks and detached actors can reach, by the book."""
        row = list(self.handles)
        for worker in self.workers.values():
            if worker.record.actor is None or worker.running is not None or worker.row:
                row += worker.held
        for task in self.kernel.tasks.values():
            row += [*self.book[task.id].dependencies, *task.borrowed, self.book[task.id].actor_id]
        living = [actor for actor in self.kernel.actors.values() if actor.state != records.ActorState.DEAD]
        row += [actor.id for actor in living if actor.options.detached]
        workers = {
            worker.record.actor.id: worker for worker in self.workers.values() if worker.record.actor is not None
        }
        reached: set[int] = set()
        while row:
            object_id = row.pop()
            if object_id not in reached:
                reached.add(object_id)
                row += self.contents.get(object_id, ())
                row += workers[object_id].held if object_id in workers else ()
        return reached

    def reserve(self, cpus: list[float]) -> int:
        """Reserve a placement group of these bundles."""
        group_id = next(self._ids)
        bundles = tuple([resources.parse_demand({"CPU": amount}) for amount in cpus])
        self.groups.append(group_id)
        self.handles[group_id] += 1
        self.returned[group_id] = self.kernel.none_value
        self.kernel.reserve(records.GroupRecord(group_id, bundles, "PACK"))
        self.carry_out()
        return group_id

    def remove_group(self, group_id: int) -> None:
        """Give a placement group back."""
        self.removed_groups.add(group_id)
        self.groups.remove(group_id)
        self.kernel.remove_group(group_id)
        self.carry_out()

    # --- moves of workers ---------------------------------------------------------------------------------------------

    def read(self, worker: FakeWorker) -> None:
        """The worker reads its next message."""
        match worker.inbox.popleft():
            case Cancel(_, task_id):
                self._obey_cancel(worker, task_id)
            case Stop():
                worker.is_stopping = True
            case Tell(_, object_id):
                assert worker.waits_for == object_id
                worker.waits_for = 0
                self.kernel.unblock(worker.record)
            case (TaskRecord() as task, int(number)):
                worker.row.append((task, number))
            case message:
                raise AssertionError(message)
        self.carry_out()

    def hear(self, worker: FakeWorker) -> None:
        """The kernel hears what the worker has published."""
        while worker.journal:
            worker.journal.popleft()()
            self.carry_out()

    def _publish(self, worker: FakeWorker, message: Callable[[], None]) -> None:
        worker.journal.append(message)
        if not self.is_lazy:
            self.hear(worker)

    def withdraw(self, worker: FakeWorker) -> None:
        """Take back what stands behind a task that shows no progress, as an engine does."""
        self._withdraw(worker)
        self.carry_out()

    def _obey_cancel(self, worker: FakeWorker, task_id: int) -> None:
        """Take the task out of the row, or interrupt it; one that waits is interrupted too."""
        if worker.running is not None and worker.running.id == task_id:
            if worker.running.kind == TaskKind.CALL:
                return  # a call that runs is not interrupted
            if worker.waits_for:
                self._stop_waiting(worker)
            worker.running = None
        elif not worker.is_claiming and any(
            task.id == task_id and number > worker.withdrawn for task, number in worker.row
        ):
            worker.row = [one for one in worker.row if one[0].id != task_id]
        else:
            return

        def answer() -> None:
            self._note_error(task_id, ("error", "cancelled"))
            self.kernel.fail(worker.record, task_id, ("error", "cancelled"), retryable=False)

        self._publish(worker, answer)

    def _stop_waiting(self, worker: FakeWorker) -> None:
        worker.inbox = deque(message for message in worker.inbox if not isinstance(message, Tell))
        worker.waits_for = 0
        self.kernel.unblock(worker.record)

    def _take_unstarted(self, worker: FakeWorker) -> list[tuple[int, int]]:
        taken = [(task.id, number) for task, number in worker.row if task.kind == TaskKind.FUNCTION]
        worker.row = [one for one in worker.row if one[0].kind != TaskKind.FUNCTION]
        return [(task_id, number) for task_id, number in taken if number > worker.withdrawn]

    def claim(self, worker: FakeWorker) -> None:
        """The worker says which task it is about to start."""
        worker.begun = worker.row[0][1]
        worker.is_claiming = True

    def start(self, worker: FakeWorker) -> TaskRecord | None:
        """The worker starts the task at the head of its row; None if that was withdrawn."""
        if not worker.is_claiming:
            self.claim(worker)
        task, number = worker.row.pop(0)
        worker.is_claiming = False
        if number <= worker.withdrawn:
            self._publish(worker, lambda: self.kernel.hand_back(worker.record, [(task.id, number)]))
            return None
        worker.running = task
        if task.id not in worker.record.inflight:
            return task  # it has been given up, and the worker does not know yet
        entry = self.book[task.id]
        assert not entry.is_published or task.kind == TaskKind.CREATION, (
            f"task {task.id} has returned, and is started again"
        )
        entry.starts += 1
        self.yielded[task.id] = 0
        is_rebuilt = task.kind == TaskKind.CREATION and self.restarts[task.id] > 0
        assert is_rebuilt or not entry.is_answered, f"task {task.id} was answered, and is started again"
        if entry.max_retries >= 0 and task.kind != TaskKind.CREATION:
            assert entry.starts <= 1 + entry.max_retries, f"task {task.id} is started {entry.starts} times"
        if entry.actor_id and task.attempt == 0:
            row = (entry.actor_id, task.caller)
            assert entry.number > self.last_call.get(row, 0), f"call {task.id} starts after a later one"
            self.last_call[row] = entry.number
        return task

    def finish(self, worker: FakeWorker, contained: tuple[int, ...] = (), seconds: float = 0.0) -> None:
        """What runs returns; its first value refers to these objects, which the worker holds."""
        task, worker.running = worker.running, None
        assert task is not None
        entry = self.book[task.id]
        # Counting frees no cycles, and a test that made one would blame the kernel for it.
        contained = tuple([inner for inner in contained if not self._leads_to(inner, task.id)])
        if task.kind == TaskKind.CREATION:  # what a constructor returns is nobody's
            contained = ()
        self.contents[task.id] = contained
        values = [
            (self._make_value(), contained if position == 0 else ())
            for position in range(abs(task.options.num_returns))
        ]
        if task.kind == TaskKind.CREATION:  # a constructor returns nothing that would have to be freed
            self.unfreed.discard(values[0][0][1])
            values = [(("none", 0, ""), ())]
        if task.id in worker.record.inflight:
            entry.is_published = True

        def answer() -> None:
            if task.id in worker.record.inflight:
                entry.is_answered = True
                for position, (value, _) in enumerate(values):
                    self.returned.setdefault(task.id + position, value)
            self.kernel.finish(worker.record, task.id, seconds, list(values))

        self._publish(worker, answer)

    def yield_item(self, worker: FakeWorker) -> None:
        """The generator that runs yields an item."""
        task = worker.running
        assert task is not None
        index = self.yielded[task.id]
        self.yielded[task.id] += 1
        item_id, value = ids.build_item_id(task.id, index), self._make_value()

        def answer() -> None:
            if task.id in worker.record.inflight:
                self.returned.setdefault(item_id, value)
            self.kernel.yield_item(worker.record, task.id, index, value, ())

        self._publish(worker, answer)

    def _leads_to(self, object_id: int, target: int) -> bool:
        return object_id == target or any(self._leads_to(inner, target) for inner in self.contents.get(object_id, ()))

    def fail(self, worker: FakeWorker) -> None:
        """What runs raises."""
        task, worker.running = worker.running, None
        assert task is not None
        error = ("error", next(self._serials))
        entry = self.book[task.id]
        is_retryable = bool(task.options.retry_exceptions)

        def answer() -> None:
            if task.id in worker.record.inflight:
                entry.charges += 1
            if not is_retryable or not task.retries_left or entry.is_cancelled:
                self._note_error(task.id, error)
            if task.kind == TaskKind.CREATION:
                self.dead_actors.add(task.id)
            self.kernel.fail(worker.record, task.id, error, retryable=is_retryable)

        self._publish(worker, answer)

    def _note_error(self, task_id: int, error: Any) -> None:
        self.book[task_id].errors.append(error)
        self.book[task_id].is_answered = True

    def block(self, worker: FakeWorker, object_id: int) -> None:
        """What runs waits for an object that the worker holds."""
        self.hear(worker)  # a worker sends all that it has to say before it waits
        worker.waits_for = object_id
        self.watches.add((worker.id, object_id))
        self.kernel.block(worker.record, self._take_unstarted(worker))
        self.kernel.watch(object_id, worker.id)
        self.carry_out()

    def give_up(self, worker: FakeWorker) -> None:
        """The wait of what runs has timed out."""
        self._stop_waiting(worker)
        self.carry_out()

    def die(self, worker: FakeWorker) -> None:
        """The process ends, whatever it was doing."""
        self._note_death(worker)
        self.hear(worker)
        del self.workers[worker.id]
        self.watches = {watch for watch in self.watches if watch[0] != worker.id}
        inflight = list(worker.record.inflight)
        # What it was running is charged, and nothing else. If it was running nothing, nothing is, unless that happens
        # to the same task again and again.
        running = {task.id for task in worker.record.inflight.values() if task.number == worker.begun}
        if inflight and not running:
            deaths = self.kernel.early_deaths.get(inflight[0], 0) + 1
            if worker.record.actor is None and deaths >= leases.MAX_EARLY_DEATHS:
                self.book[inflight[0]].charges += 1
        assert running == self._find_running(worker), "what the numbers say is not what it ran"
        for task_id in running:
            self.book[task_id].charges += 1
        actor = worker.record.actor
        has_begun = (
            actor is None
            or actor.id not in inflight
            or actor.id in running
            or self.kernel.tasks[actor.id].cancelled
            or self.kernel.early_deaths.get(actor.id, 0) + 1 >= leases.MAX_EARLY_DEATHS
        )
        if actor is not None and actor.id in self.kernel.actors and has_begun:
            self._note_lost_actor(actor)
        death = exceptions.Death(pid=worker.id, signal_number=9, expected=worker.is_doomed)
        self.kernel.lose(worker.record, death, running)
        self.carry_out()

    def _find_running(self, worker: FakeWorker) -> set[int]:
        """Return what the worker has started and not published, as far as the kernel has not given it up."""
        task = worker.running
        if worker.is_claiming and worker.row[0][0].number == worker.row[0][1]:  # else it was withdrawn, and sent again
            task = worker.row[0][0]
        return {task.id} & worker.record.inflight.keys() if task is not None else set()

    def _note_death(self, worker: FakeWorker) -> None:
        self.deaths["published, not heard"] += bool(worker.journal)
        self.deaths["about to start"] += worker.is_claiming
        self.deaths["running"] += worker.running is not None
        self.deaths["read, not started"] += bool(worker.row)
        self.deaths["sent, not read"] += any(isinstance(message[0], TaskRecord) for message in worker.inbox)

    def _note_lost_actor(self, actor: records.ActorRecord) -> None:
        """An actor's process is gone; it is built again as often as it may be."""
        most = actor.options.max_restarts
        if 0 <= most <= self.restarts[actor.id]:
            self.dead_actors.add(actor.id)
        else:
            self.restarts[actor.id] += 1

    # --- the book -----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Compare the kernel with the book."""
        self.kernel.validate_state()
        self._check_pools()
        self._check_values()
        self._check_waiting()
        for worker_id, object_id in self.watches:
            record = self.kernel.objects.get(object_id)
            assert record is None or record.value is None, f"worker {worker_id} was not told of {object_id}"
        for object_id in self.handles:
            assert object_id in self.kernel.objects, f"{object_id} is freed although the driver holds it"
        for worker in self.workers.values():
            for object_id in worker.held:
                assert object_id in self.kernel.objects, f"{object_id} is freed although worker {worker.id} holds it"

    def _check_pools(self) -> None:
        for worker in self.workers.values():
            allocation = worker.record.allocation
            assert allocation is None or allocation.cpu_lent == bool(worker.waits_for), f"worker {worker.id}'s CPU"
        pools = [self.kernel.pool, *(pool for group in self.kernel.groups.values() for pool in group.pools)]
        allocations = [
            *(worker.allocation for worker in self.kernel.workers.values() if worker.allocation is not None),
            *(allocation for group in self.kernel.groups.values() for allocation in group.allocations),
        ]
        for pool in pools:
            expected = Counter(pool.total)
            for allocation in allocations:
                if allocation.pool is pool:
                    lent = {"CPU"} if allocation.cpu_lent else set()
                    expected.subtract({name: units for name, units in allocation.demand if name not in lent})
            assert dict(expected) == pool.free, (dict(expected), pool.free)

    def _check_values(self) -> None:
        for task_id, stream in self.kernel.streams.items():
            for index in range(stream.produced + 1):
                self.makers.setdefault(ids.build_item_id(task_id, index), self.book[task_id])
        for object_id, record in self.kernel.objects.items():
            if record.value is None:
                continue
            if object_id in self.results:
                assert self.results[object_id] is record.value, f"{object_id} has changed"
                continue
            self.results[object_id] = record.value
            if record.failed:
                self._check_error(object_id, record.value)
            elif record.value is self.kernel.end_value:
                entry = self.makers[object_id]
                assert entry.is_answered or entry.errors or entry.is_cancelled, f"stream {entry.task.id} ends early"
            else:
                assert record.value is self.returned[object_id], f"{object_id} is not what was returned"

    def _check_error(self, object_id: int, value: Any) -> None:
        """An error must be one that the code raised, a dependency's, or one of ours with a true reason."""
        if object_id in self.makers:
            self.makers[object_id].is_answered = True
        assert self._is_explained(object_id, value), f"{object_id} failed for no reason: {value[1]!r}"

    def _is_explained(self, object_id: int, value: Any) -> bool:
        entry = self.makers.get(object_id)
        if entry is None:
            return object_id in self.removed_groups and isinstance(value[1], exceptions.TaskPlacementGroupRemoved)
        if any(value is error for error in entry.errors) or self._has_reason(entry, object_id, value[1]):
            return True
        return any(self._is_explained(dependency, value) for dependency in entry.dependencies)

    def _has_reason(self, entry: Entry, object_id: int, error: Any) -> bool:
        is_group_gone = entry.group_id in self.removed_groups
        match error:
            case exceptions.TaskCancelledError():
                return entry.is_cancelled
            case exceptions.TaskPlacementGroupRemoved() | exceptions.ActorPlacementGroupRemoved():
                return is_group_gone
            case exceptions.WorkerCrashedError():
                return entry.charges > entry.max_retries >= 0 or is_group_gone
            case exceptions.ActorUnavailableError():
                return bool(entry.actor_id) and entry.charges > entry.max_retries >= 0
            case exceptions.ActorDiedError():
                return (entry.actor_id or object_id) in self.dead_actors
        return False

    def _check_waiting(self) -> None:
        """Nothing waits that could run."""
        for shape, queue in self.kernel.queues.items():
            ready = [task for task in queue if task.state == TaskState.READY]
            if ready and not shape.group_id:
                assert not self.kernel.pool.fits(shape.demand), f"{shape} waits, free: {self.kernel.pool.free}"
        for group in self.kernel.pending_groups:
            assert not resources.all_fit(self.kernel.pool, group.bundles), f"group {group.id} waits"

    # --- to the end ---------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Let every worker do what it can, in the order of their ids, until nothing moves."""
        for _ in range(MOST_MOVES):
            worker = next((one for one in self.workers.values() if self._can_move(one)), None)
            if worker is None:
                if not self._withdraw_stalled():
                    return
                continue
            if worker.is_doomed or worker.can_exit:
                self.die(worker)
            elif worker.journal:
                self.hear(worker)
            elif worker.inbox:
                self.read(worker)
            elif worker.can_answer:
                self.finish(worker)
            else:
                self.start(worker)
        raise AssertionError(f"it never ends: {MOST_MOVES} moves, and more to come")

    def _withdraw_stalled(self) -> bool:
        """Take back what stands behind tasks that show no progress, as an engine does; False if there is none."""
        stalled = self.kernel.find_stalled()
        for record in stalled:
            self._withdraw(self.workers[record.id])
        self.carry_out()
        return bool(stalled)

    def _can_move(self, worker: FakeWorker) -> bool:
        can_work = worker.can_answer or worker.can_start or worker.can_exit
        return worker.is_doomed or bool(worker.inbox) or bool(worker.journal) or can_work

    def end(self) -> None:
        """Give everything back; then nothing may be left, and every object that was waited for must have come."""
        self.settle()
        self._let_actors_go()
        for task_id in [task_id for task_id in self.kernel.streams if task_id in self.handles]:
            self.drop(task_id)
        self.settle()
        for group_id in list(self.groups):
            self.remove_group(group_id)
        self._drop_in_workers(actors_only=True)
        self.settle()
        self._collect_all()
        assert self.kernel.tasks == {}, "tasks never end"
        for object_id in list(self.handles):
            assert object_id in self.results, f"{object_id} never came"
            self.drop(object_id)
        self._drop_in_workers(actors_only=False)
        self.settle()
        self._collect_all()
        assert self.kernel.objects == {}, "objects are left"
        assert self.kernel.actors == {}, "actors are left"
        assert self.kernel.names == {}, "names are left"
        assert self.kernel.pool.free == self.kernel.pool.total
        assert not any(self.kernel.queues.values())
        assert self.unfreed == set(), "values are left"

    def _let_actors_go(self) -> None:
        for actor in list(self.kernel.actors.values()):
            if actor.options.detached and actor.state != records.ActorState.DEAD:
                self.kill_actor(actor.id)
            if actor.id in self.handles:
                self.drop(actor.id)

    def _collect_all(self) -> None:
        while self.kernel.find_unreachable():
            self.collect()
            self.settle()

    def _drop_in_workers(self, *, actors_only: bool) -> None:
        for worker in list(self.workers.values()):
            if worker.record.actor is not None:
                continue  # what an actor holds, handles on itself and its like among it, it takes with it
            for object_id in list(worker.held):
                if not actors_only or object_id in self.kernel.actors:
                    self.drop(object_id, worker)
