"""The messages for a failure: the rank that failed first, the cause, its last output, and advice."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from hocket import exceptions
from hocket._base import texts
from hocket.engine import descendants

RACE_SECONDS = 1.0
"""How long before a killed rank another rank may seem to fail, although it only lost its connection to the killed one.
The kernel closes a dying process's connections first, and reports the death later. A guess for a busy machine."""

_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGABRT, signal.SIGFPE)
"""Signals that end a process after its native code failed."""

_CAUSES = frozenset({signal.SIGKILL, *_CRASHES} - {signal.SIGABRT})
"""Signals that a rank never gets as a consequence of another failure. Native code may abort when its peer is gone."""


@dataclass(frozen=True, kw_only=True)
class Ending:
    """The end of a rank."""

    rank: int
    death: exceptions.Death
    ended_at: float
    """The time of the end by `time.monotonic`; for an error in Python, the time when it left the script."""
    ran_s: float
    """How long the rank lived."""
    summary: str = ""
    """The error that left the script, in one line; empty if there was none, or if it is unknown."""
    recorded: str = ""
    """The text that the script wrote to TORCHELASTIC_ERROR_FILE."""

    @property
    def is_failure(self) -> bool:
        """Whether the rank failed, and the agent did not end it."""
        return self.death.exit_code != 0 and not self.death.expected

    @property
    def code(self) -> int:
        """The exit code in a shell: 128 plus the signal, if a signal ended the rank."""
        if self.death.signal_number is not None:
            return 128 + self.death.signal_number
        return self.death.exit_code or 0

    def describe(self) -> str:
        """Return the cause in a few words."""
        return f"raised {texts.escape(self.summary)}" if self.summary else self.death.reason()


def find_first(endings: Sequence[Ending]) -> Ending:
    """Return the first failure, which mostly causes the others; or a kill or crash seen just after it."""
    failures = sorted((ending for ending in endings if ending.is_failure), key=lambda ending: ending.ended_at)
    latest = failures[0].ended_at + RACE_SECONDS
    causes = (one for one in failures if one.death.signal_number in _CAUSES and one.ended_at <= latest)
    return next(causes, failures[0])


def explain(endings: Sequence[Ending], *, attempt: int, max_restarts: int) -> str:
    """Return the whole message about a failed launch."""
    first = find_first(endings)
    peak = first.death.peak_rss_bytes
    tries = f", attempt {attempt + 1} of {max_restarts + 1}" if max_restarts else ""
    facts = f"pid {first.death.pid}, after {first.ran_s:.1f} s{tries}"
    facts += f", peak memory {peak / 2**20:,.0f} MiB" if peak else ""
    parts = [f"rank {first.rank} of {len(endings)} failed first: it {first.describe()} ({facts})."]
    if first.death.stack:
        parts.append("Python stack when it died:\n" + _indent(first.death.stack))
    if first.death.stderr_tail:
        parts.append(f"Last lines of rank {first.rank}'s stderr:\n" + _indent(first.death.stderr_tail))
    recorded = first.recorded.strip()
    if recorded and recorded.splitlines()[-1] not in first.death.stderr_tail:
        parts.append("Its record in TORCHELASTIC_ERROR_FILE:\n" + _indent(texts.escape(recorded)))
    parts += _describe_others(first, [ending for ending in endings if ending is not first])
    parts.append(_advise(first, max_restarts))
    return "hocket run: " + "\n".join(parts) + "\n"


def announce_restart(endings: Sequence[Ending], *, attempt: int, max_restarts: int) -> str:
    """Return the line that explains why all ranks start again."""
    first = find_first(endings)
    return (
        f"hocket run: rank {first.rank} of {len(endings)} {first.describe()} after {first.ran_s:.1f} s; "
        f"all ranks start again, restart {attempt + 1} of {max_restarts}.\n"
    )


def tell_of_stragglers(endings: Sequence[Ending], living: Sequence[str], seconds: float) -> str:
    """Return the line about ranks that go on long after others ended. They may be meant to, or wait for ever."""
    ended = ", ".join(str(ending.rank) for ending in sorted(endings, key=lambda one: one.rank))
    return (
        f"hocket run: rank {ended} ended {seconds:.0f} s ago, but rank {', '.join(living)} is still running. If it "
        "waits for a rank that has ended, stop the launch with Ctrl-C or SIGTERM.\n"
    )


def tell_of_server(ended: descendants.Ended) -> str:
    """Return the line about the death of the ranks' store."""
    status = ended.exit_code if ended.signal_number is None else -ended.signal_number
    return (
        f"hocket run: the process that serves the store at MASTER_PORT (pid {ended.pid}) ended with status {status}; "
        "ranks that need the store now will fail. For the cause, look above and at `dmesg`.\n"
    )


def parse_recorded(data: bytes) -> str:
    """Return the text of an error file in torch's form; the content of any other file is returned unchanged."""
    text = data.decode(errors="replace").strip()
    try:
        message = json.loads(text)["message"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return text
    if isinstance(message, dict):
        extra = message.get("extraInfo")
        stack = extra.get("py_callstack") if isinstance(extra, dict) else None
        return str(stack or message.get("message", ""))
    return str(message)


def _describe_others(first: Ending, others: Sequence[Ending]) -> list[str]:
    """Return a line for each kind of ending of the other ranks."""
    kinds: dict[str, list[int]] = {}
    for ending in others:
        if ending.death.expected:
            kind = "ended by the launcher afterwards"
        elif ending.death.exit_code == 0:
            kind = "ended without an error"
        else:
            when = "later" if ending.ended_at > first.ended_at else "just before that failure was noticed"
            kind = f"{ending.describe()}, {when}"
        kinds.setdefault(kind, []).append(ending.rank)
    return [
        f"{'Rank' if len(ranks) == 1 else 'Ranks'} {', '.join(map(str, ranks))}: {kind}."
        for kind, ranks in kinds.items()
    ]


def _advise(first: Ending, max_restarts: int) -> str:
    death = first.death
    if death.out_of_memory:
        return "The kernel's out-of-memory killer was active: use smaller batches, or fewer --workers."
    if death.signal_number == signal.SIGKILL:
        return (
            "SIGKILL comes from outside the process, most often because memory ran out: see `dmesg`, try smaller "
            "batches or fewer --workers."
        )
    if death.signal_number in _CRASHES:
        return "Native code crashed: the stack shows which call; try it alone with --workers 1."
    if max_restarts:
        return "No restart is left: fix the cause above, then run the command again."
    return (
        "Fix the cause above, then run the command again; --max-restarts N starts all ranks again after such a failure."
    )


def _indent(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.rstrip().splitlines())
