"""Why a process ended: what its parent has seen, as a record that travels with errors (`hocket.exceptions.Death`)."""

from __future__ import annotations

from typing import NamedTuple


class Death(NamedTuple):
    """Why a process ended, as its parent saw it."""

    pid: int
    signal_number: int | None = None
    """The signal that ended it; None if it exited."""
    exit_code: int | None = None
    """The exit code; None if a signal ended it."""
    peak_rss_bytes: int = 0
    """The most memory that it ever held; 0 if unknown."""
    out_of_memory: bool = False
    """Whether the kernel's out-of-memory killer was at work when it died."""
    stderr_tail: str = ""
    """The last lines that it wrote to stderr."""
    stack: str = ""
    """The Python stack at a fatal signal, as faulthandler wrote it."""
    explanation: str = ""
    """What is known where neither signal nor exit code is: that it could not be started, for example."""
    expected: bool = False
    """Whether we ended it ourselves (`kill`, `cancel(force=True)`, shutdown)."""

    def describe(self) -> str:
        """Return one sentence on the cause, followed by the evidence."""
        peak = f"; peak memory {self.peak_rss_bytes / 2**20:,.0f} MiB" if self.peak_rss_bytes else ""
        parts = [f"{self.reason()}{peak}."]
        if self.out_of_memory:
            parts.append("The kernel's out-of-memory killer ended it: use less memory, or run fewer tasks at once.")
        if self.stack:
            parts.append("Python stack when it died:\n" + _indent(self.stack))
        if self.stderr_tail:
            parts.append("Last lines of its stderr:\n" + _indent(self.stderr_tail))
        return "\n".join(parts)

    def reason(self) -> str:
        """Return the cause in a few words: ``was killed by signal 9 (SIGKILL)`` or ``exited with code 3``."""
        if self.signal_number is not None:
            return f"was killed by signal {self.signal_number} ({_name_signal(self.signal_number)})"
        if self.exit_code is not None:
            return f"exited with code {self.exit_code}"
        return self.explanation or "ended for an unknown reason"


def _name_signal(number: int) -> str:
    import signal

    try:
        return signal.Signals(number).name
    except ValueError:
        return "unnamed"


def _indent(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.rstrip().splitlines())
