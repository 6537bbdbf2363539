"""The numbers that messages start with, and what follows each.

A *payload* is an encoded value as it travels (see `payloads`). *Ids* are whole numbers. The same numbering serves all
sockets, so a message on the wrong socket is noticed.
"""

STATUS_SLOTS = 4096
"""Size of the table, shared by all processes, in which each worker writes the id of the task that it started last, and
behind all ids, in a second row, when that was (a float). A worker has the slot of its id modulo this; so many workers at
once are out of reach of one machine."""

STATUS_BYTES = STATUS_SLOTS * 16
"""Size of the table in bytes."""

# hub -> worker
SETUP = 1
"""``(SETUP, facts)``: the first message to each worker; the keys are those of `processes.build_setup`."""
FUNCTION = 2
"""``(FUNCTION, function_id, payload)``: the code of a remote function or class, once to each worker that needs it."""
RUN = 3
"""``(RUN, task_id, function_id, args, dependencies, borrowed, num_returns, name, extra)``

``args``: payload or None. ``dependencies``: ``(object_id, payload, contained)`` of each top-level reference. ``borrowed``: ids of
references that the arguments contain. ``extra``: None, or a dict with what only some tasks have."""
CALL = 4
"""``(CALL, task_id, method, args, dependencies, borrowed, num_returns, name, extra)``"""
CANCEL = 5
"""``(CANCEL, task_id, recursive)``: also what it has submitted, if `recursive`."""
SKIP = 77
"""``(SKIP,)``: stands for a task or call that could not be sent; it has a number as those have."""
STOP = 7
"""``(STOP,)``: finish what stands in the row, then exit."""
VALUE = 8
"""``(VALUE, object_id, payload, contained)``: an object that the worker asked for."""
READY = 9
"""``(READY, object_id)``: an object that the worker asked about is there."""
ANSWER = 10
"""``(ANSWER, question_id, ok, data, contained)``: the pickled answer to an `ASK`, or the pickled error."""
INTRODUCED = 14
"""``(INTRODUCED, caller)``, and the worker's end of a line: that worker will call its actor directly."""
SYNC = 15
"""``(SYNC, caller, number)`` to the actor's worker, ``(SYNC, actor_id, number)`` to the hub: what came before has been passed on."""
AWAIT = 17
"""``(AWAIT, caller, count)`` to the actor's worker, ``(AWAIT, actor_id, count)`` to the hub: so many direct calls come first."""
MOVED = 16
"""``(MOVED, object_id)``: what the worker expected by a line is at the hub."""
RECYCLE = 11
"""``(RECYCLE, object_id, is_kept)``: nobody needs that segment any more; it may be used again, or else is to be given back.
Object 0 stands for all that is free and warm."""
CONSUMED = 12
"""``(CONSUMED, task_id, index)``: the reader of a generator has taken the items up to this place."""
DEADLOCK = 13
"""``(DEADLOCK, number, text)``: that wait of the worker can never end."""

FORGET = 18
"""``(FORGET, function_id)``: nobody will call that function any more."""
PROBE = 19
"""``(PROBE, number)``: answer with `PROBED`."""

# worker -> hub
PLAIN = 78
"""``(PLAIN, task_id, pickle, seconds, started)``: the usual `DONE`, of one small value without references."""
DONE = 20
"""``(DONE, task_id, seconds, [(payload, contained), ...], started)``: `started` by the clock that all processes share."""
FAILED = 21
"""``(FAILED, task_id, error, error_type, message, started, seconds)``: the encoded exception of the user's code."""
BACK = 22
"""``(BACK, [(task_id, number), ...])``: tasks that the worker has not started and never will. `number` is the task's place in what
the worker was sent: the hub may have withdrawn it meanwhile, and sent it again."""
SUBMIT = 23
"""``(SUBMIT, task_id, function_id, args, dependencies, borrowed, options, parent)``: `options` as a pickle of ours."""
SUBMIT_CALL = 24
"""``(SUBMIT_CALL, task_id, actor_id, method, args, dependencies, borrowed, options, parent)``"""
PUT = 25
"""``(PUT, object_id, payload, contained)``"""
WANT = 26
"""``(WANT, object_id)``: send the value when it is there."""
WATCH = 27
"""``(WATCH, object_id)``: tell when it is there."""
BLOCK = 28
"""``(BLOCK, [(task_id, number), ...], number, running_id, object_ids, needs_all, direct, missing, needed)``

A thread waits; these tasks were not started and are handed back, as with `BACK`. `number` names the wait; `running_id` is what the thread
runs; `object_ids` is what it waits for, and empty if the wait has a time-out. `direct` are those that come by a line, each with its
actor and the name of the call. `missing` is all that it waits for, of which `needed` (0: all, or one error) end the wait: if they are there
already, nothing is lent."""
UNBLOCK = 29
"""``(UNBLOCK, number)``"""
DROP = 30
"""``(DROP, object_id, count)``: so many of this worker's counts on the object are gone."""
ADOPT = 31
"""``(ADOPT, object_id)``: one more count of this worker on the object."""
ASK = 32
"""``(ASK, question_id, method, data)``: call a method of the engine; `data` is a pickle of its arguments."""
EXPORT = 33
"""``(EXPORT, function_id, payload, name)``: the code of a remote function, before its first `SUBMIT`."""
YIELD = 34
"""``(YIELD, task_id, index, payload, contained)``: a generator's next item."""
TAKE = 35
"""``(TAKE, task_id, index)``: the worker reads a generator, and holds its item at this place from now on."""
EXITING = 36
"""``(EXITING,)``: the worker's actor ends itself."""
UNMAP = 37
"""``(UNMAP, object_id)``: the worker does not map a segment that it was lent; one count on the object and one pin are gone."""
ROOM = 38
"""``(ROOM, question_id, needed, has, granted)``: may the worker take so much new memory? The answer is ``(granted, folder)``.
The rest is as in `POOL`."""
POOL = 39
"""``(POOL, has, granted)``: the worker gave memory back, as a `RECYCLE` said. `has`: what its pool takes now, and may take of
what it was granted. `granted`: how much that was, in all."""
INTRODUCE = 70
"""``(INTRODUCE, actor_id)``, and one end of a line, for the actor's worker."""
LOST = 71
"""``(LOST, actor_id, object_ids, name)``: a line ended before these came."""
PROMISE = 72
"""``(PROMISE, object_id)``: the worker will send that object when it has come by a line."""
FULFIL = 73
"""``(FULFIL, object_id, payload)``: here it is."""
DELIVER = 74
"""``(DELIVER, object_id, payload, contained)``: what a direct call returned to another worker, whose object it is."""
NOTES = 75
"""``(NOTES, [(task_id, name, started, seconds, error_type, text), ...])``: direct calls that are over; for those who look."""
CANCEL_CHILDREN = 76
"""``(CANCEL_CHILDREN, task_id)``: cancel what that work, which may be a direct call, has submitted."""

PAUSED = 90
"""``(PAUSED, task_id, wanted)``: a generator waits until its reader has taken so many items; the answer is `CONSUMED`."""
PROBED = 92
"""``(PROBED, number, is_waiting, sent)``: whether the worker waits for a direct call, or for values of some that it has promised, and how
many direct calls it has made. Comes behind all that it has said before."""
LIFT = 91
"""``(LIFT, task_id)``: the worker waits for the end of a generator, and not for its items."""

# worker -> worker
DIRECT = 80
"""``(DIRECT, task_id, method, args, num_returns, name, group)``: a call. Answered by `DONE` (``(DONE, task_id, payloads)``) or
`FAILED` (``(FAILED, task_id, error, num_returns)``)."""
HOLD = 81
"""``(HOLD, number)``: what follows has to wait for the `SYNC` of that number."""

METRICS = 60
"""``(METRICS, batch)``: what the worker has counted and measured since it last told."""

# hub -> guardian
SPAWN = 40
"""``(SPAWN, worker_id)``, the worker's end of its socket pair, and its page."""
KILL = 41
"""``(KILL, worker_id)``"""
EXIT = 42
"""``(EXIT,)``: end every process, then yourself."""
LOAD = 43
"""``(LOAD, modules, sys_path)``: import these, for the workers that are forked from now on to share."""

# guardian -> hub
SPAWNED = 50
"""``(SPAWNED, worker_id, pid)``"""
DIED = 51
"""``(DIED, worker_id, pid, signal_number, exit_code, peak_rss_bytes, out_of_memory, stderr_tail, stack)``"""
