"""All messages: the number that each starts with, and the fields that follow it. Declared here and nowhere else.

A message is a plain tuple, built and taken apart by hand where it is short and frequent: a record for each would cost
what a task does. That every tuple and every pattern in this package has the fields which are declared here is held by a
test, which reads the source; the handlers of `driver.dispatch` are found by number and called with the fields in this
order.

**Nobody waits for what is sent once and may be lost.** Whoever waits asks, and is answered from what is so at that
moment, or as soon as it is; each attempt of a task asks for itself. Numbers and positions are absolute, so a second
answer, or a late one, does no harm. What becomes of each message whose receiver is not there yet, is tried again,
cancelled, over or gone, stands in a table (`tests/engine/message_states.py`); a new message needs a row there.

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
"""The name of the memory with the table below and the events, among the descriptors of the driver."""

STATUS_SLOTS = layout.WORKER_SLOTS
"""Size of the table, shared by all processes, in which each worker writes the id of the task that it started last, and
behind all ids, in a second row, when that was (a float). A worker has the slot of its id modulo this; so many workers
at once are out of reach of one machine."""

STATUS_BYTES = STATUS_SLOTS * 16
"""Size of the table in bytes."""

EVENTS_AT = STATUS_BYTES
"""Where the slots for events begin, behind the table."""

# driver -> worker
SETUP = _declare(1, "facts")
"""The first message to each worker; the keys are those of `processes.build_setup`."""
FUNCTION = _declare(2, "function_id payload")
"""The code of a remote function or class, once to each worker that needs it."""
RUN = _declare(3, "task_id function_id args dependencies borrowed num_returns name extra")
"""``args``: payload or None. ``dependencies``: ``(object_id, payload, contained)`` of each top-level reference.
``borrowed``: ids of references that the arguments contain. ``extra``: None, or a dict with what only some tasks
have."""
CALL = _declare(4, "task_id method args dependencies borrowed num_returns name extra")
CANCEL = _declare(5, "task_id recursive")
"""Also what it has submitted, if `recursive`."""
SKIP = _declare(77)
"""Stands for a task or call that could not be sent; it has a number as those have."""
STOP = _declare(7)
"""Finish what stands in the row, then exit."""
VALUE = _declare(8, "object_id payload contained")
"""An object that the worker asked for."""
READY = _declare(9, "object_id")
"""An object that the worker asked about is there."""
ANSWER = _declare(10, "question_id ok data contained")
"""The pickled answer to an `ASK`, or the pickled error."""
INTRODUCED = _declare(14, "caller")
"""Beside it the worker's end of a direct channel: that worker will call its actor directly."""
SYNC = _declare(15, "peer_id number")
"""To the actor's worker with the caller's id, to the driver with the actor's: what came before has been passed on."""
AWAIT = _declare(17, "peer_id number")
"""The same two ways: so many direct calls come first."""
MOVED = _declare(16, "object_id")
"""What the worker expected by a direct channel is at the driver."""
RECYCLE = _declare(11, "object_id is_kept")
"""Nobody needs that segment any more; it may be used again, or else is to be given back.
Object 0 stands for all that is free and warm."""
CONSUMED = _declare(12, "task_id count")
"""The reader of a generator, which has asked, has taken so many items."""
DEADLOCK = _declare(13, "number text")
"""That wait of the worker can never end."""

FORGET = _declare(18, "function_id")
"""Nobody will call that function any more."""
PROBE = _declare(19, "number")
"""Answer with `PROBED`."""

# worker -> driver
PLAIN = _declare(78, "task_id pickle seconds started")
"""The usual `DONE`, of one small value without references."""
DONE = _declare(20, "task_id seconds results started")
"""``results``: a payload and the ids inside it for each. ``started`` by the clock that all processes share."""
FAILED = _declare(21, "task_id error error_type message started seconds")
"""The encoded exception of the user's code."""
BACK = _declare(22, "unstarted")
"""Tasks that the worker has not started and never will, each with its place in what the worker was sent: the driver may
have withdrawn it meanwhile, and sent it again."""
SUBMIT = _declare(23, "task_id function_id args dependencies borrowed options parent")
"""`options` as a pickle of ours."""
SUBMIT_CALL = _declare(24, "task_id actor_id method args dependencies borrowed options parent")
PUT = _declare(25, "object_id payload contained")
WANT = _declare(26, "object_id")
"""Send the value when it is there."""
WATCH = _declare(27, "object_id")
"""Tell when it is there."""
BLOCK = _declare(28, "unstarted number running_id object_ids needs_all direct missing needed")
"""A thread waits; `unstarted` tasks are handed back, as with `BACK`. `number` names the wait; `running_id` is what the
thread runs; `object_ids` is what it waits for, and empty if the wait has a time-out. `direct` are those that come by a
direct channel, each with its actor and the name of the call. `missing` is all that it waits for, of which `needed` (0:
all, or one error) end the wait: if they are there already, nothing is lent."""
UNBLOCK = _declare(29, "number")
DROP = _declare(30, "object_id count")
"""So many of this worker's counts on the object are gone."""
ADOPT = _declare(31, "object_id")
"""One more count of this worker on the object."""
ASK = _declare(32, "question_id method data")
"""Call a method of the engine; `data` is a pickle of its arguments."""
EXPORT = _declare(33, "function_id payload name")
"""The code of a remote function, before its first `SUBMIT`."""
YIELD = _declare(34, "task_id index payload contained")
"""A generator's next item."""
TAKE = _declare(35, "task_id index")
"""The worker reads a generator, and holds its item at this place from now on."""
EXITING = _declare(36)
"""The worker's actor ends itself."""
UNMAP = _declare(37, "object_id")
"""The worker does not map a segment that it was lent; one count on the object and one pin are gone."""
ROOM = _declare(38, "question_id needed has granted")
"""May the worker take so much new memory? The answer is ``(granted, folder)``.
The rest is as in `POOL`."""
POOL = _declare(39, "has granted")
"""The worker gave memory back, as a `RECYCLE` said. `has`: what its pool takes now, and may take of
what it was granted. `granted`: how much that was, in all."""
INTRODUCE = _declare(70, "actor_id")
"""Beside it one end of a direct channel, for the actor's worker."""
LOST = _declare(71, "actor_id object_ids name")
"""A direct channel ended before these came."""
PROMISE = _declare(72, "object_id")
"""The worker will send that object when it has come by a direct channel."""
FULFIL = _declare(73, "object_id payload")
"""Here it is."""
DELIVER = _declare(74, "object_id payload contained")
"""What a direct call returned to another worker, whose object it is."""
NOTES = _declare(75, "notes")
"""Direct calls that are over, for those who look: ``(task_id, name, started, seconds, error_type, text)`` of each."""
CANCEL_CHILDREN = _declare(76, "task_id")
"""Cancel what that work, which may be a direct call, has submitted."""

PAUSED = _declare(90, "task_id wanted")
"""A generator waits until its reader has taken so many items; the answer is `CONSUMED`, then or at once."""
PROBED = _declare(92, "number is_waiting sent")
"""Whether the worker waits for a direct call, or for values of some that it has promised, and how
many direct calls it has made. Comes behind all that it has said before."""
LIFT = _declare(91, "task_id")
"""The worker waits for the end of a generator, and not for its items."""

# worker -> worker
DIRECT = _declare(80, "task_id method args num_returns name group")
"""A call. Answered by `REPLY` or `REPLY_FAILED`."""
REPLY = _declare(82, "task_id payloads")
REPLY_FAILED = _declare(83, "task_id error num_returns")
HOLD = _declare(81, "number")
"""What follows has to wait for the `SYNC` of that number."""

METRICS = _declare(60, "batch")
"""What the worker has counted and measured since it last told."""

# driver -> guardian
SPAWN = _declare(40, "worker_id")
"""Beside it the worker's end of its socket pair, and its page."""
KILL = _declare(41, "worker_id")
EXIT = _declare(42)
"""End every process, then yourself."""
LOAD = _declare(43, "modules sys_path")
"""Import these, for the workers that are forked from now on to share."""

# guardian -> driver
SPAWNED = _declare(50, "worker_id pid")
DIED = _declare(51, "worker_id pid signal_number exit_code peak_rss_bytes out_of_memory stderr_tail stack")
