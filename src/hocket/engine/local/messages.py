"""All messages: the number that each starts with, and the fields that follow it. Declared here and nowhere else.

A message is a plain tuple. Short and frequent messages are built and taken apart by hand: a record for each would cost
as much as a task. A test reads the source and compares every tuple and pattern in this package with the fields that are
declared here. `driver.inbox` finds its handlers by number, and calls them with the fields in this order.

**No process waits for a message that is sent once and may be lost.** A process that waits asks a question. The answer
follows from the state at that moment, or as soon as there is an answer; each attempt of a task asks for itself. Numbers
and positions are absolute, so a second or late answer does no harm. The receiver of a message may not be there yet, be
tried again, cancelled, over or gone. A table (`tests/engine/message_states.py`) says what follows in each case; a new
message needs an entry there.

A *payload* is an encoded value as it travels (see `payloads`). *Ids* are whole numbers. The same numbering serves all
sockets, so a message on the wrong socket is noticed.
"""

from hocket.engine.events import layout

declared: dict[int, tuple[str, ...]] = {}
"""The names of a message's fields, by its number."""


def _declare(number: int, fields: str = "") -> int:
    assert number not in declared, number
    declared[number] = tuple(fields.split())
    return number


STATUS_NAME = "hocket-status"
"""The name, among the driver's descriptors, of the memory that holds the table below and the events."""

STATUS_SLOTS = layout.WORKER_SLOTS
"""Size of a table that all processes share. Each worker writes the id of the task that it started last, and in the
second half of the table the time of that start (a float). A worker has the slot of its id modulo this size; one machine
cannot have as many workers at once."""

STATUS_BYTES = STATUS_SLOTS * 16
"""Size of the table in bytes."""

EVENTS_AT = STATUS_BYTES
"""The offset of the slots for events, behind the table."""

LOADING = "HOCKET_LOADING"
"""The environment variable with the name of the module that the guardian is importing for its workers."""

# driver -> worker
SETUP = _declare(1, "facts")
"""The first message to each worker; see `processes.build_setup` for the keys."""
FUNCTION = _declare(2, "function_id payload")
"""The code of a remote function or class, once for each worker that needs it."""
RUN = _declare(3, "task_id function_id args dependencies borrowed num_returns name extra")
"""``args``: payload or None. ``dependencies``: ``(object_id, payload, contained)`` of each top-level reference.
``borrowed``: ids of references that the arguments contain. ``extra``: None, or a dict of facts that only some tasks
have (see `task_facts`)."""
CALL = _declare(4, "task_id method args dependencies borrowed num_returns name extra")
CANCEL = _declare(5, "task_id recursive")
"""Cancel a task or call; with `recursive`, also the work that it has submitted."""
SKIP = _declare(77)
"""A stand-in for a task or call that could not be sent; it counts as one in their numbers."""
STOP = _declare(7)
"""Finish the queue, then exit."""
VALUE = _declare(8, "object_id payload contained")
"""The answer to a `WANT`."""
READY = _declare(9, "object_id")
"""The answer to a `WATCH`: the object is there."""
ANSWER = _declare(10, "question_id ok data contained")
"""The pickled answer to an `ASK`, or the pickled error."""
INTRODUCED = _declare(14, "caller")
"""The caller, a worker, will call the actor directly. The actor's end of the direct channel comes with the message."""
SYNC = _declare(15, "peer_id number")
"""The caller's earlier messages have been passed on. The caller sends it to the driver with the actor's id, and the
driver to the actor's worker with the caller's."""
AWAIT = _declare(17, "peer_id number")
"""So many direct calls come before the caller's next call through the driver. Travels like a `SYNC`."""
MOVED = _declare(16, "object_id")
"""An object that the worker expected by a direct channel is at the driver."""
RECYCLE = _declare(11, "object_id is_kept")
"""No process needs that segment any more. If `is_kept`, the worker may use it again, else it must give it back.
Object 0 stands for all segments that are free and warm."""
CONSUMED = _declare(12, "task_id count")
"""The answer to a `PAUSED`: the generator's reader has taken so many items."""
DEADLOCK = _declare(13, "number text")
"""The worker's wait of that number can never end."""

FORGET = _declare(18, "function_id")
"""No process will call that function any more."""
PROBE = _declare(19, "number")
"""Answer with `PROBED`."""

# worker -> driver
PLAIN = _declare(78, "task_id pickle seconds started")
"""The usual `DONE`: one small value without references."""
DONE = _declare(20, "task_id seconds results started")
"""``results``: a payload and the ids inside it for each result. ``started``: by the clock that all processes share."""
FAILED = _declare(21, "task_id error error_type message started seconds")
"""The encoded exception of the user's code."""
BACK = _declare(22, "unstarted")
"""Tasks that the worker has not started and never will, each with its number among the tasks that it was sent: the
driver may have withdrawn a task meanwhile, and sent it again."""
SUBMIT = _declare(23, "task_id function_id args dependencies borrowed options parent")
"""`options`: a pickle, made by this package."""
SUBMIT_CALL = _declare(24, "task_id actor_id method args dependencies borrowed options parent")
PUT = _declare(25, "object_id payload contained")
WANT = _declare(26, "object_id")
"""Send the object's value (`VALUE`) when it is there."""
WATCH = _declare(27, "object_id")
"""Send a `READY` when the object is there."""
BLOCK = _declare(28, "unstarted number running_id object_ids needs_all direct missing needed")
"""A thread waits. `unstarted`: tasks that are handed back, as with `BACK`. `number`: the wait's own. `running_id`: the
work that the thread runs. `object_ids`: the objects that it waits for; empty if the wait has a time-out. `direct`: the
objects among these that come by a direct channel, each with its actor and the name of the call. `missing`: all objects
that it waits for; `needed` of these (0: all, or one error) end the wait. If these are there already, the worker's CPU
is not lent."""
UNBLOCK = _declare(29, "number")
DROP = _declare(30, "object_id count")
"""So many of this worker's counts on the object are gone."""
ADOPT = _declare(31, "object_id")
"""One more count of this worker on the object."""
ASK = _declare(32, "question_id method data")
"""Call a method of the driver's engine; `data`: a pickle of the arguments."""
EXPORT = _declare(33, "function_id payload name")
"""The code of a remote function, before its first `SUBMIT`."""
YIELD = _declare(34, "task_id index payload contained")
"""A generator's next item."""
TAKE = _declare(35, "task_id index")
"""The worker reads a generator, and holds the item at this index from now on."""
EXITING = _declare(36)
"""The worker's actor ends itself."""
UNMAP = _declare(37, "object_id")
"""The worker does not map, or no longer maps, a segment that it was lent: one count on the object and one pin are
gone."""
ROOM = _declare(38, "question_id needed has granted")
"""The worker needs so many bytes of new memory. The answer is ``(granted, folder)``. The other fields are as in
`POOL`."""
POOL = _declare(39, "has granted")
"""The worker gave memory back, as a `RECYCLE` demanded. `has`: the bytes that its pool takes, and may take of its
grants. `granted`: the bytes that it was granted in all."""
INTRODUCE = _declare(70, "actor_id")
"""The worker will call the actor directly. The actor's end of the direct channel comes with the message."""
LOST = _declare(71, "actor_id object_ids name")
"""A direct channel ended before these objects came."""
PROMISE = _declare(72, "object_id")
"""The worker will send that object when it has come by a direct channel."""
FULFIL = _declare(73, "object_id payload")
"""The object of an earlier `PROMISE`."""
DELIVER = _declare(74, "object_id payload contained")
"""A result of a direct call. It is sent by the actor's worker, and belongs to the caller's."""
NOTES = _declare(75, "notes")
"""Direct calls that are over, for inspection: ``(task_id, name, started, seconds, error_type, text)`` of each."""
CANCEL_CHILDREN = _declare(76, "task_id")
"""Cancel the work that this task or call, perhaps a direct one, has submitted."""

PAUSED = _declare(90, "task_id wanted")
"""A generator waits until its reader has taken so many items; the answer is `CONSUMED`, then or at once."""
PROBED = _declare(92, "number is_waiting sent")
"""The answer to a `PROBE`, behind all earlier messages of the worker. `is_waiting`: whether the worker waits for a
direct call, or owes objects that it has promised. `sent`: the direct calls that it has ever made."""
LIFT = _declare(91, "task_id")
"""The worker waits for the end of a generator, which then need not wait for a reader of its items."""

# worker -> worker
DIRECT = _declare(80, "task_id method args num_returns name group")
"""A direct call. The answer is `REPLY` or `REPLY_FAILED`."""
REPLY = _declare(82, "task_id payloads")
REPLY_FAILED = _declare(83, "task_id error num_returns")
HOLD = _declare(81, "number")
"""The messages behind this one have to wait for the `SYNC` of that number."""

METRICS = _declare(60, "batch")
"""The worker's counts and measurements since the last `METRICS`."""

# driver -> guardian
SPAWN = _declare(40, "worker_id")
"""The worker's end of its socket pair, and its page, come with the message."""
KILL = _declare(41, "worker_id")
EXIT = _declare(42)
"""End every process, then exit."""
LOAD = _declare(43, "modules sys_path")
"""Import these modules, which later workers share."""

# guardian -> driver
SPAWNED = _declare(50, "worker_id pid")
DIED = _declare(51, "worker_id pid signal_number exit_code peak_rss_bytes out_of_memory stderr_tail stack")
