"""File descriptors: how many a session needs, what to say when there are too few, the three that must be there, and
waits for any number of them."""

from __future__ import annotations

import errno
import os
import resource
import select
from collections.abc import Iterable

from hocket import exceptions

DESCRIPTORS = 20
"""How many descriptors must be free to open a session: some ten for itself, the rest for a worker or two and for large
values. Counted."""


def raise_limit() -> None:
    """Allow this process as many descriptors as the system lets it have: a large object takes one, and 1,024 is a
    usual limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def check_free() -> None:
    """Make sure that a session could be opened."""
    opened: list[int] = []
    try:
        while len(opened) < DESCRIPTORS:
            opened.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        raise exceptions.DescriptorLimitError(
            f"A session needs {DESCRIPTORS} free descriptors, and two more for each process, but this process has "
            f"{len(opened)}: {explain_os_error(error)}."
        ) from error
    finally:
        for fd in opened:
            os.close(fd)


def explain_os_error(error: OSError) -> str:
    """Return why the system refused something to this process, with the limit and what to write where it is one of
    descriptors; without a full stop."""
    if error.errno != errno.EMFILE:
        return str(error)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return (
        f"{error.strerror}; it may have {limit:,}. Write `ulimit -n 4096` before the program is started (LimitNOFILE= "
        "for a systemd service, --ulimit nofile= for Docker), or use fewer actors and CPUs"
    )


def reserve_standard() -> None:
    """Open descriptors 0, 1 and 2 on /dev/null where they are closed, as in daemons and with ``<&-`` in a shell. Else
    the next socket takes such a number: a child would get it for its stdin, and a library that complains on descriptor
    2 would write into it. They stay open: the program's own files have the same trouble."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != fd:  # another thread closed a lower one meanwhile
                os.dup2(opened, fd)
                os.close(opened)
            os.set_inheritable(fd, True)


def is_readable(*fds: int, timeout_s: float | None = 0.0) -> bool:
    """Wait until one of them can be read from without waiting, or has ended; tell whether that came about in time.

    None waits without end.

    `select.select` refuses descriptors from 1024 on, which a session with some hundred workers has.
    """
    return _poll(fds, select.POLLIN, timeout_s)


def is_writable(fd: int, timeout_s: float | None = 0.0) -> bool:
    """Do the same for writing."""
    return _poll((fd,), select.POLLOUT, timeout_s)


def _poll(fds: Iterable[int], event: int, timeout_s: float | None) -> bool:
    poll = select.poll()
    for fd in fds:
        poll.register(fd, event)
    return bool(poll.poll(None if timeout_s is None else 1000 * timeout_s))
