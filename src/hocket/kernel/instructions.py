"""The kernel's instructions to its engine: tuples that start with an `Op`."""

from __future__ import annotations

import enum


class Op(enum.IntEnum):
    """The kind of an instruction."""

    START = 0
    """``(START, worker)``: start a process for it. It may be sent tasks at once."""
    RUN = 1
    """``(RUN, worker, task)``"""
    CANCEL = 2
    """``(CANCEL, worker, task_id)``: interrupt it, or take it out of the worker's queue; an answer comes either way."""
    KILL = 3
    """``(KILL, worker)``: end the process now."""
    STOP = 4
    """``(STOP, worker)``: let the process finish what it has, then exit."""
    END = 5
    """``(END, worker, task_id)``: end the process if this is what it runs. First it is to start nothing more, and what
    it has not started is withdrawn (`Kernel.withdraw`): so nobody else's work is hit."""
    FREE = 6
    """``(FREE, object_id, value)``: nothing needs the value any more. Only for values of more than two parts: the
    others own nothing outside."""
    TELL = 7
    """``(TELL, worker_id, object_id)``: the object it asked for is there."""
    PASS = 9
    """``(PASS, worker, marker)``: a marker of `Kernel.introduce` has its turn."""
    REFUSE = 10
    """``(REFUSE, marker)``: the actor is dead."""
    MOVED = 11
    """``(MOVED, worker_id, object_id)``: what the worker expected from a direct call is here instead."""
    CONSUMED = 8
    """``(CONSUMED, worker, task_id, count)``: so many of the generator's items have been taken; it has asked."""
