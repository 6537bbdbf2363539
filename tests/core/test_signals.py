"""Handlers of signals that raise, as those of alarms and of pytest-timeout do: they end waits, and break nothing."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from signal import getsignal as early_getsignal
from signal import signal as early_signal
from types import FrameType
from typing import Any

import pytest

import hocket
from hocket.engine import values
from hocket.testing import Leftovers
from hocket.testing.suites.programs import wait_until
from tests.conftest import ENGINE

pytestmark = pytest.mark.slow

C_SIGNAL: Any = importlib.import_module("_signal")

# A program under alarms, whose random walk is the same for each seed. The alarms come when they like.
FUZZ = """
import collections, os, random, signal, sys, time
import hocket

class Alarm(Exception):
    pass

fired = 0

def raise_alarm(number, frame):
    global fired
    fired += 1
    raise Alarm

signal.signal(signal.SIGALRM, raise_alarm)
signal.signal(signal.SIGUSR1, raise_alarm)

@hocket.remote
def add(x, y=1):
    return x + y

@hocket.remote(num_returns="streaming")
def count(n):
    for x in range(n):
        yield x if x % 3 else bytes(300_000)

@hocket.remote
def fork(x):
    pid = os.fork()
    if pid == 0:
        return x
    os.waitpid(pid, 0)
    return x

@hocket.remote
def alarm(x):
    # In the worker: the alarm finds this function, or what comes after it.
    class Stop(Exception):
        pass
    def stop(number, frame):
        raise Stop
    signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 1e-3))
        return sum(hocket.get([hocket.put(y) for y in range(x)]))
    except Stop:
        return "stopped"

class Counter:
    def __init__(self):
        self.value = 0
    def add(self, n=1):
        self.value += n
        return self.value

chance = random.Random({seed})

def submit_many():
    refs = [add.remote(x) for x in range(chance.randrange(1, 60))]
    assert hocket.get(refs, timeout=20) == list(range(1, len(refs) + 1))

def chain():
    ref = hocket.put(0)
    for _ in range(5):
        ref = add.remote(ref)
    assert hocket.get(ref, timeout=20) == 5

def wait_in_parts():
    refs = [add.remote(x) for x in range(20)]
    while refs:
        ready, refs = hocket.wait(refs, num_returns=min(3, len(refs)), timeout=20)
        assert ready

def put_large():
    value = bytes(chance.choice([10, 300_000, 2_000_000]))
    assert hocket.get(hocket.put(value)) == value
    assert len(hocket.get(add.remote(value, b"x"), timeout=20)) == len(value) + 1

def call_actor():
    counter = hocket.remote(Counter).remote()
    assert hocket.get([counter.add.remote() for _ in range(10)], timeout=20) == list(range(1, 11))

def read_generator():
    items = [hocket.get(item, timeout=20) for item in count.remote(7)]
    assert [len(item) if isinstance(item, bytes) else item for item in items] == [300_000, 1, 2, 300_000, 4, 5, 300_000]

def read_future():
    try:
        assert add.remote(4).future().result(20) == 5
    except RuntimeError as error:  # the standard library's condition was hit between its lock and its wait
        if "un-acquired lock" not in str(error) or not isinstance(error.__context__, Alarm):
            raise
        raise Alarm

def fork_in_tasks():
    assert hocket.get([fork.remote(x) for x in range(3)], timeout=20) == [0, 1, 2]

def alarm_in_tasks():
    for outcome in [alarm.remote(x) for x in (1, 5, 50)]:
        try:
            hocket.get(outcome, timeout=20)
        except hocket.exceptions.TaskError as error:
            assert "Stop" in type(error.cause).__name__, error  # it came after the `try`

steps = [submit_many, chain, wait_in_parts, put_large, call_actor, read_generator, read_future]
steps += [fork_in_tasks, alarm_in_tasks] if {local} else []
caught = rounds = 0
done = collections.Counter()

def run(step):
    global caught
    try:
        signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-5, 3e-3), chance.choice([0, 0, 1e-3]))
        step()
        done[step.__name__] += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)

def disturb():
    global caught
    try:
        try:
            run(chance.choice(steps))
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except Alarm:
        caught += 1
    except hocket.exceptions.ActorDiedError:
        if {local}:
            raise
        caught += 1  # the alarm found the constructor at work, in this process
    except hocket.exceptions.TaskError as error:
        if "Stop" not in type(error.cause).__name__:
            raise
        caught += 1  # an alarm of `alarm` found the task after it in its worker

until = time.monotonic() + {seconds}
sessions = 0
while time.monotonic() < until or sessions < 2:
    sessions += 1
    try:
        with hocket.init(num_cpus=2{engine}):
            for _ in range({rounds}):
                try:
                    disturb()
                except Alarm:
                    caught += 1
            for _ in range(100):  # the last ones of a periodic alarm
                try:
                    time.sleep(0.001)
                except Alarm:
                    caught += 1
            for step in steps:
                try:
                    step()
                except hocket.exceptions.TaskError as error:
                    if "Stop" not in type(error.cause).__name__:
                        raise
                    step()  # an alarm of a task that nobody waited for found the task after it
            refs = None
            deadline = time.monotonic() + 20
            while hocket.available_resources() != hocket.cluster_resources():
                assert time.monotonic() < deadline, hocket.available_resources()
                hocket.wait([add.remote(1)], timeout=1)
            assert signal.getsignal(signal.SIGALRM) is raise_alarm
    except Alarm:
        raise SystemExit("an alarm came where there was none")
print(sessions, fired, min(done[step.__name__] for step in steps) if {seconds} > 5 else 1)
"""


def fuzz(seed: int, seconds: float, rounds: int) -> tuple[int, int]:
    """Run the program; return how many sessions it opened, and how many alarms there were."""
    is_local = ENGINE == "local"
    source = FUZZ.format(seed=seed, seconds=seconds, rounds=rounds, engine=f", engine={ENGINE!r}", local=is_local)
    print("seed", seed)
    ended = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=seconds + 50, check=False
    )
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr[-5000:]}"
    sessions, fired, _ = map(int, ended.stdout.split())
    return sessions, fired


@pytest.mark.needs("instant_start")
def test_random_programs_under_alarms() -> None:
    sessions, fired = fuzz(int.from_bytes(os.urandom(3)), float(os.environ.get("HOCKET_TEST_ALARM_SECONDS", "4")), 40)
    assert sessions >= 2
    assert fired > 20


@pytest.mark.long
@pytest.mark.needs("instant_start")
@pytest.mark.timeout(580)
def test_two_hundred_sessions_under_alarms() -> None:
    sessions = fired = 0
    while sessions < 200:
        more = fuzz(int.from_bytes(os.urandom(3)), 20, 8)
        sessions, fired = sessions + more[0], fired + more[1]
    assert fired > 400


OPENING = """
import signal
import hocket

fired = 0

def handle(number, frame):
    global fired
    fired += 1
    {body}
    if is_on:  # not earlier: on a busy machine handlers would begin before the ones they interrupt end, ever deeper
        signal.setitimer(signal.ITIMER_REAL, 0.0004)

is_on = True
hocket.init(num_cpus=1{engine})  # all of the engine is imported then: Python cannot import a module inside its import
hocket.shutdown()
signal.signal(signal.SIGALRM, handle)
sessions = 0
while sessions < 40 or fired < 40:
    sessions += 1
    signal.setitimer(signal.ITIMER_REAL, 0.0002)
    hocket.init(num_cpus=1, ignore_reinit_error=True{engine})
    hocket.shutdown()
is_on = False
signal.setitimer(signal.ITIMER_REAL, 0)
hocket.shutdown()
print("done", sessions < 4000)
"""


@pytest.mark.needs("instant_start")
@pytest.mark.parametrize("body", ["pass", "hocket.shutdown()", "hocket.init(ignore_reinit_error=True)"])
def test_sessions_open_and_close_under_alarms_whose_handlers_do_so_too(body: str) -> None:
    source = OPENING.format(body=body, engine=f", engine={ENGINE!r}")
    ended = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=50, check=False)
    assert (ended.stdout, ended.stderr, ended.returncode) == ("done True\n", "", 0)


RAISING = """
import random, signal, sys, time
import hocket

class Alarm(Exception):
    pass

fired = 0

def handle(number, frame):
    global fired
    fired += 1
    raise Alarm

hocket.init(num_cpus=1)
started = time.perf_counter()
hocket.shutdown()
seconds = time.perf_counter() - started
while fired < 100:
    signal.signal(signal.SIGALRM, handle)
    signal.signal(signal.SIGUSR2, handle)
    hocket.init(num_cpus=1)
    try:
        signal.setitimer(signal.ITIMER_REAL, max(1e-5, random.gauss(seconds, seconds / 2)))
        hocket.shutdown()
        time.sleep(seconds)
        signal.setitimer(signal.ITIMER_REAL, 0)  # the alarm may come here still
    except Alarm:
        pass
    hocket.shutdown()
    found = [sys.modules["_signal"].getsignal(number) for number in (signal.SIGALRM, signal.SIGUSR2)]
    assert found == [handle, handle], found
    assert signal._signal is sys.modules["_signal"]
"""


@pytest.mark.needs("instant_start")
@pytest.mark.about_local("handlers of its own; those of the in-process engine are the same")
def test_handlers_are_put_back_though_one_raises_meanwhile() -> None:
    ended = subprocess.run([sys.executable, "-c", RAISING], capture_output=True, text=True, timeout=50, check=False)
    assert (ended.stderr, ended.returncode) == ("", 0)


# --- one at a time ----------------------------------------------------------------------------------------------------


class AlarmError(Exception):
    pass


def raise_alarm(number: int, frame: FrameType | None) -> None:
    raise AlarmError(f"signal {number}")


@pytest.fixture
def alarm() -> Iterator[Callable[[float], None]]:
    """Have an alarm ring in so many seconds."""
    usual = signal.signal(signal.SIGALRM, raise_alarm)

    def ring(seconds: float) -> None:
        signal.setitimer(signal.ITIMER_REAL, seconds)

    yield ring
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, usual)


@hocket.remote
def one(x: int) -> int:
    return x


@hocket.remote
def sleep() -> None:
    time.sleep(1000)


@hocket.remote
def yield_late() -> Iterator[int]:
    time.sleep(1000)
    yield 1


def wait_in_a_loop(ref: Any) -> None:
    async def wait() -> None:
        await ref

    asyncio.run(wait())


def wait_beside_a_thread(ref: Any) -> None:
    """Wait while another thread reads the sockets."""
    thread = threading.Thread(target=hocket.wait, args=([ref],), kwargs={"timeout": 1})
    thread.start()
    try:
        hocket.get(ref)
    finally:
        thread.join()


WAITS: dict[str, Callable[[], object]] = {
    "get": lambda: hocket.get(sleep.remote()),
    "wait": lambda: hocket.wait([sleep.remote()]),
    "next": lambda: next(yield_late.remote()),
    "next of an item": lambda: hocket.get(next(yield_late.remote())),
    "result": lambda: sleep.remote().future().result(),
    "await": lambda: wait_in_a_loop(sleep.remote()),
    "beside a thread": lambda: wait_beside_a_thread(sleep.remote()),
}


@pytest.mark.about_local("its waits")
@pytest.mark.parametrize("wait", WAITS)
def test_alarm_ends_a_wait(session: hocket.SessionContext, alarm: Callable[[float], None], wait: str) -> None:
    alarm(0.1)
    started = time.monotonic()
    with pytest.raises(AlarmError, match=f"signal {int(signal.SIGALRM)}"):
        WAITS[wait]()
    assert time.monotonic() - started < 20, "the alarm was heard"


@pytest.mark.about_local("its waits")
@pytest.mark.parametrize("ends", [True, False])
def test_handler_that_uses_the_session_ends_what_a_loop_awaits(session: hocket.SessionContext, ends: bool) -> None:
    async def wait() -> Any:
        ref = sleep.remote() if ends else count_up.remote()
        signal.signal(signal.SIGALRM, handle)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        return await asyncio.wait_for(ref, 30)

    def handle(number: int, frame: FrameType | None) -> None:
        if ends:
            hocket.shutdown()
        else:
            hocket.get(count_up.remote())  # runs after the one that is awaited: one CPU

    @hocket.remote(num_cpus=2)
    def count_up() -> int:
        time.sleep(0.3)
        return 1

    usual = signal.getsignal(signal.SIGALRM)
    try:
        if ends:
            with pytest.raises(hocket.exceptions.SessionClosedError):
                asyncio.run(wait())
        else:
            assert asyncio.run(wait()) == 1
    finally:
        signal.signal(signal.SIGALRM, usual)


def hold_lock_in_signal() -> None:
    """Be hit by a signal while the engine works, and call nothing of it afterwards."""
    engine: Any = hocket.core.session.get_engine()
    with engine.session.lock:
        os.kill(os.getpid(), signal.SIGALRM)
    time.sleep(30)


@pytest.mark.needs("every_interrupt")
@pytest.mark.usefixtures("any_session", "alarm")
def test_handler_that_had_to_wait_is_called_soon() -> None:
    started = time.monotonic()
    with pytest.raises(AlarmError, match="signal"):
        hold_lock_in_signal()
    assert time.monotonic() - started < 20, "the alarm was heard"


@pytest.mark.needs("every_interrupt")
@pytest.mark.usefixtures("any_session", "alarm")
def test_handler_is_not_lost_in_a_finalizer(monkeypatch: pytest.MonkeyPatch) -> None:
    lost: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lost.append)
    held = [threading.Event()]
    weakref.finalize(held[0], os.kill, os.getpid(), signal.SIGALRM)

    def drop() -> None:
        held.clear()
        time.sleep(30)

    with pytest.raises(AlarmError, match="signal"):
        drop()
    assert lost == []


@pytest.mark.about_local("its driver")
def test_task_whose_submission_was_interrupted_ends_though_it_goes_on(
    session: hocket.SessionContext, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    @hocket.remote
    def stay(began: Path) -> None:
        for _ in range(2):
            with contextlib.suppress(KeyboardInterrupt):
                began.touch()
                time.sleep(30)

    def check() -> None:
        monkeypatch.undo()
        wait_until((tmp_path / "began").exists)
        raise AlarmError("signal")

    guard: Any = hocket.core.session.get_engine().session.guard  # type: ignore[attr-defined]
    monkeypatch.setattr(guard, "noted", {signal.SIGALRM: raise_alarm})
    monkeypatch.setattr(guard, "check", check)
    with pytest.raises(AlarmError):
        stay.remote(tmp_path / "began")
    wait_until(lambda: hocket.available_resources() == hocket.cluster_resources())


@pytest.mark.about_local("its lock")
@pytest.mark.usefixtures("alarm")
def test_what_a_handler_raises_is_not_a_futures(session: hocket.SessionContext) -> None:
    engine: Any = hocket.core.session.get_engine()
    ref = hocket.put(3)
    future: futures.Future[int] = futures.Future()

    def settle() -> None:
        with engine.session.lock:
            os.kill(os.getpid(), signal.SIGALRM)
            ref._settle(future)

    with pytest.raises(AlarmError, match="signal"):
        settle()
    assert future.result(0) == 3


def collect(alarm: Callable[[], None]) -> None:
    def note(phase: str, facts: dict[str, int]) -> None:
        if phase == "stop":
            alarm()

    gc.callbacks.append(note)
    try:
        gc.collect()
    finally:
        gc.callbacks.remove(note)


def delete(alarm: Callable[[], None]) -> None:
    class Last:
        def __del__(self) -> None:
            alarm()

    Last()


def let_go(alarm: Callable[[], None]) -> None:
    event = threading.Event()
    weak = weakref.ref(event, lambda _: alarm())
    del event
    assert weak() is None


@pytest.mark.needs("every_interrupt")
@pytest.mark.usefixtures("any_session", "alarm")
@pytest.mark.parametrize("place", [collect, delete, let_go])
def test_handler_is_not_lost_where_python_forgets_exceptions(place: Callable[[Callable[[], None]], None]) -> None:
    called: list[bool] = []

    def alarm() -> None:
        if not called:
            called.append(True)
            os.kill(os.getpid(), signal.SIGALRM)
            pytest.fail("it is raised above, and forgotten")

    def go_there() -> None:
        place(alarm)
        time.sleep(30)

    with pytest.raises(AlarmError, match="signal"):
        go_there()
    assert called


@pytest.mark.needs("parallelism", "interrupted_sleep")
def test_a_cancelled_task_is_ended_where_python_forgets_exceptions(
    session: hocket.SessionContext, tmp_path: Path
) -> None:
    """One that sleeps in a finalizer, and goes on behind it."""

    @hocket.remote
    def stay(began: Path) -> None:
        class Last:
            def __del__(self) -> None:
                began.touch()
                time.sleep(10)

        Last()
        time.sleep(30)

    ref = stay.remote(tmp_path / "began")
    wait_until((tmp_path / "began").exists)
    hocket.cancel(ref)
    with pytest.raises(hocket.exceptions.TaskCancelledError):
        hocket.get(ref, timeout=20)  # sooner than it would return
    assert hocket.get([one.remote(x) for x in range(4)], timeout=20) == [0, 1, 2, 3]


def test_program_sees_its_own_handlers(any_session: hocket.SessionContext) -> None:
    usual = signal.getsignal(signal.SIGUSR1)
    assert early_signal(signal.SIGUSR1, raise_alarm) is usual
    assert signal.getsignal(signal.SIGUSR1) is raise_alarm
    assert early_getsignal(signal.SIGUSR1) is raise_alarm
    with pytest.raises(AlarmError, match="signal"):
        signal.raise_signal(signal.SIGUSR1)
    assert signal.signal(signal.SIGUSR1, signal.SIG_IGN) is raise_alarm
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
    signal.signal(signal.SIGUSR1, usual)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_handlers_are_as_before_when_the_session_ends() -> None:
    before = Leftovers.look()
    usual = signal.signal(signal.SIGUSR1, raise_alarm)
    with hocket.init(num_cpus=1):
        signal.signal(signal.SIGUSR2, raise_alarm)
        assert hocket.get(one.remote(1)) == 1
    assert [C_SIGNAL.getsignal(number) for number in (signal.SIGUSR1, signal.SIGUSR2)] == [raise_alarm] * 2
    assert C_SIGNAL.getsignal(signal.SIGINT) is signal.default_int_handler
    assert vars(signal)["_signal"] is C_SIGNAL
    signal.signal(signal.SIGUSR1, usual)
    signal.signal(signal.SIGUSR2, signal.SIG_DFL)
    assert ENGINE == "ray" or before.list_new() == []  # Ray keeps a socket


def take_back_while_one_waits() -> None:
    engine: Any = hocket.core.session.get_engine()
    with engine.session.lock:
        os.kill(os.getpid(), signal.SIGALRM)
    signal.signal(signal.SIGALRM, signal.SIG_IGN)


@pytest.mark.needs("every_interrupt")
@pytest.mark.usefixtures("any_session", "alarm")
def test_handler_that_a_program_takes_back_is_called_before() -> None:
    for _ in range(100):
        with pytest.raises(AlarmError, match="signal"):
            take_back_while_one_waits()
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        for x in range(5):
            assert hocket.get(hocket.put(x)) == x
        signal.signal(signal.SIGALRM, raise_alarm)


@pytest.mark.about_local("that it holds no lock meanwhile")
def test_alarm_in_the_users_own_reduce_is_not_taken_for_a_failure(
    session: hocket.SessionContext, alarm: Callable[[float], None]
) -> None:
    class Slow:
        def __reduce__(self) -> Any:
            alarm(0.01)
            time.sleep(30)
            return int, ()

    with pytest.raises(AlarmError, match="signal"):
        hocket.put(Slow())
    assert hocket.get(one.remote(5), timeout=20) == 5


class Alarming(Exception):  # noqa: N818 (it says what it does)
    """Is built with an alarm, but for the first time."""

    are_built = 0

    def __init__(self) -> None:
        Alarming.are_built += 1
        if Alarming.are_built == 2:
            os.kill(os.getpid(), signal.SIGALRM)


@pytest.mark.needs("every_interrupt")
@pytest.mark.usefixtures("any_session", "alarm")
def test_alarm_in_the_users_own_exception_is_raised_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Alarming, "are_built", 0)

    def encode() -> None:
        values.encode_error(Alarming())
        time.sleep(30)

    with pytest.raises(AlarmError, match="signal"):
        encode()
    assert Alarming.are_built > 1


@pytest.mark.about_local("its workers")
def test_alarm_in_a_task_is_the_tasks(session: hocket.SessionContext) -> None:
    @hocket.remote(max_retries=0)
    def ring(seconds: float, where: str) -> str:
        signal.signal(signal.SIGALRM, raise_alarm)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        if where == "in a wait":
            hocket.get(sleep.remote())
        elif where == "in the task":
            time.sleep(30)
        return where

    for where in ("in a wait", "in the task"):
        with pytest.raises(AlarmError, match="signal"):
            hocket.get(ring.remote(0.05, where), timeout=30)


@pytest.mark.about_local("its workers")
def test_alarm_between_tasks_costs_none(start_script: Callable[[str], subprocess.Popen[str]]) -> None:
    program = """
import os, signal, time
import hocket

hocket.init(num_cpus=1)

@hocket.remote
def arm(seconds):
    def ring(number, frame):
        raise ValueError("rang between tasks")
    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    return os.getpid()

@hocket.remote
def get_pid():
    return os.getpid()

pids = set()
for _ in range(20):
    pids.add(hocket.get(arm.remote(0.002)))
    time.sleep(0.01)
    pids.add(hocket.get(get_pid.remote()))
print(len(pids))
"""
    out, err = start_script(program).communicate(timeout=50)
    assert out == "1\n", err
    assert err.count("ValueError: rang between tasks") > 10
