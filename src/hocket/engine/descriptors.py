"""File descriptors: how many a session needs, the error if there are too few, the three standard ones, and waits for
any number of them."""

from __future__ import annotations

import errno
import os
import resource
import select
from collections.abc import Iterable

from hocket import exceptions

DESCRIPTORS = 20
"""How many descriptors must be free to open a session: some ten for the session itself, the rest for a worker or two
and for large values. Counted."""


def raise_limit() -> None:
    """Raise this process's limit of descriptors as far as the system allows. A large object takes one, and a usual
    limit is 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def check_free() -> None:
    """Raise DescriptorLimitError if there are too few free descriptors to open a session."""
    opened: list[int] = []
    try:
        while len(opened) < DESCRIPTORS:
            opened.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        raise exceptions.DescriptorLimitError(
            f"A session needs {DESCRIPTORS} free descriptors, and two more for each process, but this process has "
            f"only {len(opened)}: {explain_os_error(error)}."
        ) from error
    finally:
        for fd in opened:
            os.close(fd)


def explain_os_error(error: OSError) -> str:
    """Return the text of a system's error, without a full stop. For too many open descriptors, add the limit and the
    advice."""
    if error.errno != errno.EMFILE:
        return str(error)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return (
        f"{error.strerror}; the limit is {limit:,}. Run `ulimit -n 4096` before you start the program (LimitNOFILE= "
        "for a systemd service, --ulimit nofile= for Docker), or use fewer actors and CPUs"
    )


def reserve_standard() -> None:
    """Open descriptors 0, 1 and 2 on /dev/null if they are closed, as in daemons and after ``<&-`` in a shell.
    Otherwise the next socket takes such a number: a child would use it as stdin, and a library that prints errors on
    descriptor 2 would write into it. The three stay open after the session, because the program's own files have the
    same problem."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != fd:  # another thread closed a lower descriptor meanwhile
                os.dup2(opened, fd)
                os.close(opened)
            os.set_inheritable(fd, True)


def is_readable(*fds: int, timeout_s: float | None = 0.0) -> bool:
    """Wait until a descriptor is readable or at its end; return whether that happened in time. None waits for ever."""
    return _poll(fds, select.POLLIN, timeout_s)


def is_writable(fd: int, timeout_s: float | None = 0.0) -> bool:
    """Wait until a descriptor is writable; return whether that happened in time. None waits for ever."""
    return _poll((fd,), select.POLLOUT, timeout_s)


def _poll(fds: Iterable[int], event: int, timeout_s: float | None) -> bool:
    # Not `select.select`, which refuses descriptors from 1024 on: a session with some hundred workers has those.
    poll = select.poll()
    for fd in fds:
        poll.register(fd, event)
    return bool(poll.poll(None if timeout_s is None else 1000 * timeout_s))
