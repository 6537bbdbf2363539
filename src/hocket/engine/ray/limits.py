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
            "A task that is cancelled during one long call, such as time.sleep or a C function, goes on until the call "
            "returns; use force=True."
        ),
        "constructor_causes": (
            "If an actor's constructor raises, the error of a call has the constructor's traceback, but not its "
            "exception: the cause is a HocketError with the last line. Ray keeps only the text."
        ),
        "told_cancellation": (
            "If a running call of a plain actor is cancelled, it fails at once for its caller, but the actor goes on "
            "with it."
        ),
        "exact_deaths": (
            "When an actor dies, these are lost: answers that it had not sent, calls that it had received but not "
            "started, and the last items of a generator. When a worker of plain tasks dies, only the running task is "
            "lost."
        ),
        "background_exit": (
            "exit_actor() in a thread or asyncio task in the background ends the actor with its next call."
        ),
        "idle_deaths": "If an idle worker dies, the next task on it can lose one attempt.",
        "cancel_before_creation": (
            "If a call is cancelled before its actor is built, the calls behind it fail, too: Ray waits 30 s for the "
            "cancelled call, and then raises ActorUnavailableError for them. Under load this also happens with an "
            "actor that is already built."
        ),
        "order_in_event_loops": (
            "An asynchronous actor may start a call before an earlier one; if the later call blocks the event loop, "
            "the answer of the earlier call waits."
        ),
        "immediate_kill": (
            "kill() asks Ray to end an actor, and remove_placement_group() asks it to end the actors of the group: "
            "calls that are sent right after that may still be answered."
        ),
        "deadlock_search": "Tasks that wait for each other in a circle wait for ever, or until a time-out.",
        "long_chains": (
            "If the first of hundreds of tasks that depend on each other fails, its error takes long to arrive: Ray "
            "writes the text of all earlier errors into each."
        ),
        "generator_completion": "If a generator raised, completed() has the value None: the last item has the error.",
        "counted_async_generators": (
            "For a method that is an asynchronous generator, num_returns can only be 'streaming' or 'dynamic'."
        ),
        "owner_deaths": (
            "If a worker is killed, the values that it put and the results of tasks that it submitted are lost: the "
            "worker owns them."
        ),
        "forks": (
            "A process that a task forks is a second copy of Ray's worker: it has to end with os._exit() "
            "before the task's function ends."
        ),
        "decoding_errors": (
            "The error of a value that cannot be rebuilt has the last line of the original error's text, but neither "
            "the exception nor the name of the value."
        ),
        "instant_start": "Ray's processes start with the session, which takes seconds.",
        "every_interrupt": (
            "A Ctrl-C is lost if it comes in the short moment in which Ray's C++ code calls back into Python; press it "
            "again."
        ),
        "plain_output": (
            "Lines that workers print arrive up to a second late, each with the worker's name and pid in front."
        ),
        "exact_state": (
            "The state API and the timeline show the data of Ray's own: about a second late, with Ray's names for "
            "errors and causes, and also with work from before the session."
        ),
        "abandoned_generators": (
            "A generator whose reader is gone goes on to its end, or waits for the reader for ever; cancel it."
        ),
        "unreachable_actors": (
            "Actors that hold their own handles, or each other's, live until they are killed or the session ends."
        ),
        "lent_cpus_of_generators": "A generator that waits for its reader keeps its CPU.",
        "signal_handlers": (
            "SIGTERM ends a worker at once, or after the running task: the handler is Ray's own, so no code of a task "
            "or an actor can handle the signal."
        ),
        "exact_statistics": "statistics() counts the references of this process only.",
        **outside.LIMITS,
    }
)
"""A sentence for each missing ability; see `contract.Engine.limits`."""
