"""File descriptors: how many a session needs, what to say when there are too few, and the three that must be there."""

from __future__ import annotations

import errno
import os
import resource

from hocket import exceptions

DESCRIPTORS = 20
"""How many descriptors must be free to open a session: some ten for itself, the rest for a worker or two and for large values. Counted."""


def raise_limit() -> None:
    """Allow this process as many descriptors as the system lets it have: a large object takes one, and 1,024 is a usual limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def check_free() -> None:
    """Make sure that a session could be opened.

    Raises:
        DescriptorLimitError: There are too few descriptors.
    """
    opened: list[int] = []
    try:
        while len(opened) < DESCRIPTORS:
            opened.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        raise exceptions.DescriptorLimitError(
            f"A session needs {DESCRIPTORS} free descriptors, and two more for each process, but this process has {len(opened)}: "
            f"{explain_os_error(error)}."
        ) from error
    finally:
        for fd in opened:
            os.close(fd)


def explain_os_error(error: OSError) -> str:
    """Return why the system refused something to this process, with the limit and what to write where it is one of descriptors; without a full stop."""
    if error.errno != errno.EMFILE:
        return str(error)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return (
        f"{error.strerror}; it may have {limit:,}. Write `ulimit -n 4096` before the program is started (LimitNOFILE= for a systemd "
        "service, --ulimit nofile= for Docker), or use fewer actors and CPUs"
    )


def reserve_standard() -> None:
    """Open descriptors 0, 1 and 2 on /dev/null where they are closed, as in daemons and with ``<&-`` in a shell.

    Else the next socket takes such a number: a child would get it for its stdin, and a library that complains on descriptor 2 would
    write into it. They stay open: the program's own files have the same trouble.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != fd:  # another thread closed a lower one meanwhile
                os.dup2(opened, fd)
                os.close(opened)
            os.set_inheritable(fd, True)
