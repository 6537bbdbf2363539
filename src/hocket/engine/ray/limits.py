"""Abilities of other engines that the engine on Ray lacks."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from hocket.engine.ray import outside

LIMITS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "death_evidence": (
            "An error about a dead worker has no signal, exit code, memory peak or last lines: Ray keeps "
            "them in log files."
        ),
        "interrupted_sleep": (
            "A task that is cancelled while it is inside one long call, such as time.sleep or a C function, "
            "goes on until that returns; use force=True."
        ),
        "constructor_causes": (
            "The error of a call on an actor whose constructor raised has its traceback, but not the "
            "exception itself: its cause is a HocketError with the last line. Ray keeps the text alone."
        ),
        "told_cancellation": (
            "A cancelled call of a plain actor that runs fails at once for its caller, though the actor goes "
            "on with it."
        ),
        "exact_deaths": (
            "A dead actor takes along answers that had not been sent, the calls that it had been sent and "
            "not started, and the last items of a generator. Of plain tasks only the one that ran is lost."
        ),
        "background_exit": (
            "exit_actor() in a thread or asyncio task in the background ends the actor with its next call."
        ),
        "idle_deaths": "A worker that dies while it has nothing to do can cost the next task on it a try.",
        "cancel_before_creation": (
            "A call that is cancelled before its actor is built takes those behind it along: Ray waits for "
            "it for 30 s, and then fails them with ActorUnavailableError. Under load this is seen with an "
            "actor that is built, too."
        ),
        "order_in_event_loops": (
            "An asynchronous actor may begin a call before one that was sent earlier; if it holds up the event "
            "loop, it holds up the answer of that one."
        ),
        "immediate_kill": (
            "kill() asks Ray to end an actor, and remove_placement_group() those in it: calls that are sent "
            "right after may still be answered."
        ),
        "deadlock_search": "Tasks that wait for each other in a circle wait for ever, or until a time-out.",
        "long_chains": (
            "The error of a task that heads a chain of hundreds of dependent tasks takes long to arrive: Ray "
            "writes the text of all before it into each."
        ),
        "generator_completion": (
            "completed() of a generator that raised has the value None: its last item has the error."
        ),
        "counted_async_generators": (
            "A method that is an asynchronous generator has no num_returns but 'streaming' and 'dynamic'."
        ),
        "owner_deaths": (
            "What a worker put, and the results of tasks that it submitted, are lost if it is killed: it owns them."
        ),
        "forks": (
            "A process that a task forks is a second copy of Ray's worker: it has to end with os._exit() "
            "before the task's function ends."
        ),
        "decoding_errors": (
            "The error of a value that cannot be rebuilt has the last line of what was raised, but neither the "
            "exception nor which value it is."
        ),
        "instant_start": "Ray's processes start with the session, which takes seconds.",
        "every_interrupt": (
            "A Ctrl-C in the short moment in which Ray's C++ calls back into Python is lost there; press it again."
        ),
        "plain_output": (
            "What workers print comes with a worker's name and pid in front of each line, up to a second late."
        ),
        "exact_state": (
            "The state API and the timeline tell what Ray's own do: a second or so late, with Ray's names "
            "for errors and causes, and also of what was there before the session."
        ),
        "abandoned_generators": (
            "A generator whose reader is gone goes on to its end, or waits for the reader for ever; cancel it."
        ),
        "unreachable_actors": (
            "Actors that hold their own handles, or each other's, live until they are killed or the session ends."
        ),
        "lent_cpus_of_generators": "A generator that waits for its reader keeps its CPU.",
        "signal_handlers": (
            "SIGTERM ends a worker at once, or after what it runs: its handler is Ray's own, so no code of a "
            "task or actor hears of it."
        ),
        "exact_statistics": "statistics() counts the references of this process, and nothing of others.",
        **outside.LIMITS,
    }
)
"""A sentence for each missing ability; see `contract.Engine.limits`."""
