"""One process of a session is stopped (SIGSTOP): nothing else waits for it."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import hocket
from hocket.engine import descendants
from hocket.engine.local.driver import watch
from hocket.testing.suites.programs import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.about_local("its guardian and workers")]


@hocket.remote
def one(x: int) -> int:
    return x


@hocket.remote
def sleep(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


@hocket.remote(max_retries=0)
def die(code: int) -> None:
    os._exit(code)


@hocket.remote(max_retries=0)
def wait_for_death(began: Path) -> None:
    began.touch()
    time.sleep(1000)


class Counter:
    def __init__(self) -> None:
        self.value = 0

    def add(self) -> int:
        self.value += 1
        return self.value

    def get_pid(self) -> int:
        return os.getpid()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class LongCaller:
    """Has a counter busy."""

    def __init__(self, counter: Any) -> None:
        self.counter = counter

    def begin(self, seconds: float) -> int:
        """Return the last count; the counter has read a long call by then."""
        last = hocket.get([self.counter.add.remote() for _ in range(10)])[-1]  # the direct channel is there
        self.call = self.counter.sleep.remote(seconds)
        return int(last)


class StoppingCaller:
    """Calls a counter while the driver is stopped.

    On a busy machine each `get` waits for long enough to tell the driver that it does, and again when it is over. The
    socket to the driver has room for some 270 such messages, so the calls come in few batches.
    """

    def __init__(self, counter: Any) -> None:
        self.counter = counter

    def call(self, batches: int, driver_pid: int) -> tuple[int, bool]:
        """Return the last count, and whether the driver had to be continued for it."""
        hocket.get([self.counter.add.remote() for _ in range(10)])  # the direct channel is there
        stop(driver_pid)
        timer = threading.Timer(30, os.kill, (driver_pid, signal.SIGCONT))
        timer.start()
        last = 0
        try:
            for _ in range(batches):
                last = hocket.get([self.counter.add.remote() for _ in range(1000)])[-1]
            was_late = timer.finished.is_set()
        finally:
            timer.cancel()
            os.kill(driver_pid, signal.SIGCONT)
        return last, was_late


def look(name: str) -> Any:
    return hocket.core.session.get_engine().view.statistics()[name]


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    while not descendants.is_stopped(pid):
        pass


@pytest.fixture
def guardian_pid(session: hocket.SessionContext) -> int:
    """The guardian of a session that has done something."""
    assert hocket.get([one.remote(x) for x in range(20)], timeout=30) == [*range(20)]
    return int(look("guardian_pid"))


def test_direct_calls_do_not_wait_for_a_stopped_driver(session: hocket.SessionContext) -> None:
    caller = hocket.remote(num_cpus=0)(StoppingCaller).remote(hocket.remote(num_cpus=0)(Counter).remote())
    assert hocket.get(caller.call.remote(5, os.getpid()), timeout=60) == (5010, False)


def test_stopped_guardian_is_continued_for_a_death(guardian_pid: int, caplog: pytest.LogCaptureFixture) -> None:
    ref = die.remote(7)
    stop(guardian_pid)
    with (
        caplog.at_level(logging.WARNING, "hocket"),
        pytest.raises(hocket.exceptions.WorkerCrashedError, match="code 7"),
    ):
        hocket.get([ref, die.remote(7)], timeout=30)
    assert hocket.get([one.remote(x) for x in range(20)], timeout=30) == [*range(20)]


def test_stopped_guardian_is_continued_for_a_birth(guardian_pid: int, caplog: pytest.LogCaptureFixture) -> None:
    stop(guardian_pid)
    with caplog.at_level(logging.WARNING, "hocket"):
        counters = [hocket.remote(Counter).remote() for _ in range(4)]  # more than there are idle workers
        assert hocket.get([counter.add.remote() for counter in counters], timeout=30) == [1] * 4
    assert "The guardian" in caplog.text
    assert "was stopped by a signal; Hocket has continued it" in caplog.text


def test_stopped_guardian_is_continued_for_a_kill(guardian_pid: int) -> None:
    counter = hocket.remote(Counter).remote()
    pid = hocket.get(counter.get_pid.remote(), timeout=30)
    stop(guardian_pid)
    hocket.kill(counter)
    with pytest.raises(hocket.exceptions.ActorDiedError, match="kill"):
        hocket.get(counter.add.remote(), timeout=30)
    deadline = time.monotonic() + 20
    while descendants.read_state(pid) and time.monotonic() < deadline:
        hocket.wait([sleep.remote(0.01)], timeout=1)
    assert not descendants.read_state(pid)


def test_stopped_guardian_ends_with_the_session(guardian_pid: int) -> None:
    ref = sleep.remote(1000)
    assert hocket.wait([ref], timeout=0)[1] == [ref]
    stop(guardian_pid)
    started = time.monotonic()
    hocket.shutdown()
    assert time.monotonic() - started < 5, "the time after which it would have been killed is 10 s"
    assert not descendants.read_state(guardian_pid)


def test_death_under_a_guardian_that_stays_stopped(
    guardian_pid: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    engine = hocket.core.session.get_engine()
    guardian: Any = engine.parent.guardian  # type: ignore[attr-defined]
    monkeypatch.setattr(
        guardian, "revive", lambda: descendants.is_stopped(guardian_pid)
    )  # somebody stops it again at once
    began = [tmp_path / str(number) for number in range(2)]
    refs = [wait_for_death.remote(path) for path in began]
    wait_until(lambda: all(path.exists() for path in began))
    stop(guardian_pid)
    pids = look("worker_pids")
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for ref in refs:
        message = r"wait_for_death` ended, and the guardian \(pid \d+\), which would know why, is stopped"
        with pytest.raises(hocket.exceptions.WorkerCrashedError, match=message):
            hocket.get(ref, timeout=30)
    monkeypatch.undo()
    assert hocket.get([one.remote(x) for x in range(20)], timeout=30) == [*range(20)]


def test_stopped_idle_worker_holds_up_nobody(guardian_pid: int) -> None:
    assert hocket.get([sleep.remote(0.1) for _ in range(2)], timeout=30) == [0.1] * 2
    pids = look("worker_pids")
    assert len(pids) == 2
    stop(pids[0])
    try:
        assert hocket.get([one.remote(x) for x in range(40)], timeout=30) == [*range(40)]
        counter = hocket.remote(Counter).remote()
        assert hocket.get([counter.add.remote() for _ in range(5)], timeout=30) == [1, 2, 3, 4, 5]
    finally:
        os.kill(pids[0], signal.SIGCONT)
    assert hocket.get([one.remote(x) for x in range(40)], timeout=30) == [*range(40)]


def test_task_that_stands_alone_in_a_stopped_worker_is_taken_back(guardian_pid: int) -> None:
    assert hocket.get([sleep.remote(0.1) for _ in range(2)], timeout=30) == [0.1] * 2
    pids = look("worker_pids")
    for pid in pids:
        stop(pid)
    try:
        assert hocket.get(one.remote(1), timeout=30) == 1, "a new worker runs it"
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
    assert hocket.get([one.remote(x) for x in range(40)], timeout=30) == [*range(40)]


def test_actor_that_is_to_be_built_in_a_stopped_worker_is_built_elsewhere(guardian_pid: int) -> None:
    assert hocket.get([sleep.remote(0.1) for _ in range(2)], timeout=30) == [0.1] * 2
    for pid in look("worker_pids"):
        stop(pid)
    counters = [hocket.remote(max_restarts=0)(Counter).remote() for _ in range(3)]
    assert hocket.get([counter.add.remote() for counter in counters], timeout=30) == [1] * 3


def test_stopped_actor_holds_up_its_callers_only(guardian_pid: int) -> None:
    stopped, other = [hocket.remote(Counter).remote() for _ in range(2)]
    pid, _ = hocket.get([stopped.get_pid.remote(), other.add.remote()], timeout=30)
    stop(pid)
    calls = [stopped.add.remote() for _ in range(5)]
    try:
        assert hocket.get([other.add.remote() for _ in range(5)], timeout=30) == [2, 3, 4, 5, 6]
        assert hocket.get([one.remote(x) for x in range(40)], timeout=30) == [*range(40)]
        with pytest.raises(hocket.exceptions.GetTimeoutError, match="5 of 5"):
            hocket.get(calls, timeout=0.2)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert hocket.get(calls, timeout=30) == [1, 2, 3, 4, 5]


def test_call_of_an_actor_that_is_stopped_for_long_is_not_lost(guardian_pid: int) -> None:
    counter = hocket.remote(Counter).remote()
    pid = hocket.get(counter.get_pid.remote(), timeout=30)
    stop(pid)
    try:
        call = counter.add.remote()
        with pytest.raises(hocket.exceptions.GetTimeoutError):
            hocket.get(call, timeout=watch.UNSTARTED_SECONDS + 1)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert hocket.get(call, timeout=30) == 1


def test_call_that_waits_long_for_the_calls_of_another_worker_is_not_lost(session: hocket.SessionContext) -> None:
    counter = hocket.remote(num_cpus=0)(Counter).remote()
    caller = hocket.remote(num_cpus=0)(LongCaller).remote(counter)
    assert hocket.get(caller.begin.remote(watch.UNSTARTED_SECONDS + 1), timeout=30) == 10
    assert hocket.get(counter.add.remote(), timeout=30) == 11


# --- at random --------------------------------------------------------------------------------------------------------

SECONDS = float(os.environ.get("HOCKET_TEST_STOP_SECONDS", "3"))


class Stopper(threading.Thread):
    """Stops and continues random processes of the session."""

    def __init__(self, seed: int) -> None:
        super().__init__(daemon=True)
        self.chance = random.Random(seed)
        self.pids: list[int] = []
        self.count = 0
        self.is_over = threading.Event()

    def run(self) -> None:
        while not self.is_over.wait(self.chance.uniform(0, 0.01)):
            pid = self.chance.choice(self.pids)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                self.count += 1
                self.is_over.wait(self.chance.uniform(0, 0.05))
                os.kill(pid, signal.SIGCONT)


def test_random_programs_with_stopped_processes(session: hocket.SessionContext) -> None:
    seed = random.randrange(10**6)
    print("seed", seed)
    chance = random.Random(seed)
    counter = hocket.remote(Counter).remote()
    assert hocket.get(counter.add.remote(), timeout=30) == 1
    stopper = Stopper(seed)
    stopper.pids = [look("guardian_pid"), *look("worker_pids")]
    stopper.start()
    until = time.monotonic() + SECONDS
    added = 1
    while time.monotonic() < until:
        refs = [one.remote(x) for x in range(chance.randrange(1, 100))]
        calls = [counter.add.remote() for _ in range(chance.randrange(10))]
        assert hocket.get(refs, timeout=40) == [*range(len(refs))]
        assert hocket.get(calls, timeout=40) == [added + place for place in range(1, len(calls) + 1)]
        added += len(calls)
        if chance.random() < 0.2:
            with pytest.raises(hocket.exceptions.WorkerCrashedError, match="exited with code 3"):
                hocket.get(die.remote(3), timeout=40)
        stopper.pids = [look("guardian_pid"), *look("worker_pids")]
    stopper.is_over.set()
    stopper.join()
    assert stopper.count > 10
    assert hocket.get([one.remote(x) for x in range(20)], timeout=40) == [*range(20)]
