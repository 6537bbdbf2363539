"""What the driver looks after from time to time: idle workers, and requests that wait for long."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable

import pytest

import hocket
from hocket.core import session as sessions
from hocket.engine.local.driver import watch

pytestmark = pytest.mark.about_local("how it looks after its workers")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A watch whose seconds are milliseconds."""
    monkeypatch.setattr(watch, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(watch, "IDLE_SECONDS", 0.05)
    monkeypatch.setattr(watch, "PATIENCE_SECONDS", 0.1)


def wait_until(is_done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not is_done():
        assert time.monotonic() < deadline, "it did not happen"
        threading.Event().wait(0.01)


def count_workers() -> int:
    return int(sessions.get_engine().view.statistics()["workers"])


def test_idle_workers_beyond_the_first_end(impatient: None, session: hocket.SessionContext) -> None:
    @hocket.remote
    class Meeting:
        def __init__(self) -> None:
            self.there = 0

        def come(self) -> int:
            self.there += 1
            return self.there

        def count(self) -> int:
            return self.there

    def meet(meeting: object) -> int:
        hocket.get(meeting.come.remote())  # type: ignore[attr-defined]
        while hocket.get(meeting.count.remote()) < 2:  # type: ignore[attr-defined]
            pass
        return os.getpid()

    meeting = Meeting.options(num_cpus=0).remote()  # type: ignore[attr-defined]
    assert len(set(hocket.get([hocket.remote(meet).remote(meeting) for _ in range(2)]))) == 2
    del meeting
    wait_until(lambda: count_workers() == 1)
    assert hocket.get(hocket.remote(os.getpid).remote()) > 0


def test_request_that_waits_for_long_says_who_holds_what_it_needs(
    impatient: None, session: hocket.SessionContext, caplog: pytest.LogCaptureFixture
) -> None:
    class Holder:
        def ping(self) -> None: ...

    holder = hocket.remote(num_cpus=2)(Holder).remote()
    hocket.get(holder.ping.remote())
    with caplog.at_level(logging.WARNING, logger="hocket"):
        waiting = hocket.remote(os.getpid).options(name="patient").remote()
        wait_until(lambda: hocket.wait([waiting], timeout=0.05)[0] == [] and bool(caplog.records))
    text = caplog.records[0].getMessage()
    assert "`patient` has waited" in text
    assert "held by actor `Holder` ({CPU: 2})" in text
    hocket.kill(holder)
    assert hocket.get(waiting) > 0
    assert len(caplog.records) == 1, "it is said once"


def test_gpu_tasks_have_a_process_of_their_own_and_others_see_no_gpu() -> None:
    def look() -> tuple[int, str | None]:
        return os.getpid(), os.environ.get("CUDA_VISIBLE_DEVICES")

    with hocket.init(num_cpus=2, num_gpus=2):
        remote_look = hocket.remote(look)
        seen = [hocket.get(remote_look.options(num_gpus=1).remote()) for _ in range(3)]
        assert len({pid for pid, _ in seen}) == 3, "the end of a process gives a GPU's memory back"
        assert {gpus for _, gpus in seen} <= {"0", "1"}
        assert hocket.get(remote_look.remote())[1] == ""

        def use() -> None:
            raise RuntimeError("No CUDA GPUs are available")

        with pytest.raises(RuntimeError, match=r"Write @hocket.remote\(num_gpus=1\)"):
            hocket.get(hocket.remote(use).remote())
