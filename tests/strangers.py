"""Another user of the machine, and a place that all may write to."""

from __future__ import annotations

import os
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

OTHER = 1002
"""A user id; it needs no account."""

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="becomes another user, which root alone may")


def run_as_other(function: Callable[[], object], user: int = OTHER) -> None:
    """Call a function in a process of another user; raise here what it raises."""
    told, tells = os.pipe()
    child = os.fork()
    if not child:
        text = ""
        try:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
            function()
        except BaseException:  # noqa: BLE001 (the test raises it)
            text = traceback.format_exc()
        os.write(tells, text.encode()[:60_000])
        os._exit(0)
    os.close(tells)
    with os.fdopen(told, "rb") as file:
        text = file.read().decode()
    assert os.waitpid(child, 0)[1] == 0
    assert not text, text


@pytest.fixture
def shared_place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder like /tmp, where this process and its children put their temporary files."""
    with tempfile.TemporaryDirectory(prefix="shared-", dir="/tmp") as top:
        place = Path(top, "tmp")
        place.mkdir()
        Path(top).chmod(0o755)
        place.chmod(0o1777)
        monkeypatch.setenv("TMPDIR", str(place))
        monkeypatch.setattr(tempfile, "tempdir", None)
        yield place
