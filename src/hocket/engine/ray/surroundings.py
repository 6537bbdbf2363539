"""What Ray changes in the process that it is opened in, and what we change for it, is put back."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator, Mapping


@contextlib.contextmanager
def changed_environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for what is started inside; afterwards all is as before, also what others have set
    meanwhile.

    Ray itself sets some, among them ``PYTHONBREAKPOINT``.
    """
    before = dict(os.environ)
    os.environ.update(changes)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        for name, text in before.items():
            if os.environ.get(name) != text:
                os.environ[name] = text


@contextlib.contextmanager
def kept_signal_handler(number: int = signal.SIGTERM) -> Iterator[None]:
    """Put the handler of a signal back: `ray.init` takes that of SIGTERM, and nobody asked for it."""
    before = signal.getsignal(number)
    try:
        yield
    finally:
        # None is a handler that was not set from Python and cannot be put back from there
        if threading.current_thread() is threading.main_thread() and before is not None:
            signal.signal(number, before)
