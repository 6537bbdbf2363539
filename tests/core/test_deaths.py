"""A worker that dies costs what it was running, and nothing else: what had finished is there, what had not started runs
elsewhere.

Each test kills workers in the middle of many small pieces of work and counts three things exactly: what failed, what
came, and how often each body ran. ``HOCKET_TEST_DEATHS=20`` runs each that often.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import hocket
from hocket.engine.local.worker import worker
from hocket.exceptions import ActorDiedError, ActorUnavailableError, GetTimeoutError, WorkerCrashedError

pytestmark = [pytest.mark.slow, pytest.mark.about_local("how its processes die")]

ROUNDS = int(os.environ.get("HOCKET_TEST_DEATHS", "1"))

MANY = 400
EVERY = 50
"""Every so manieth piece of work ends its process."""

SECONDS = 50
"""A wait that does not end is a failure."""

GUILTY = [number for number in range(MANY) if number % EVERY == EVERY - 1]

rounds = pytest.mark.parametrize("turn", range(ROUNDS))


def end_process(way: str) -> None:
    if way == "exit":
        os._exit(3)
    if way == "segfault":
        ctypes.string_at(1)
    os.kill(os.getpid(), getattr(signal, way))


WAYS = {
    "exit": "exited with code 3",
    "SIGKILL": "killed by signal 9",
    "segfault": "killed by signal 11",
    "SIGTERM": "killed by signal 15",
}


def note(file: Path, number: int) -> None:
    """Leave a trace of the run: one write, so that lines of several processes do not mix."""
    fd = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, b"%d\n" % number)
    os.close(fd)


def count_runs(file: Path) -> Counter[int]:
    return Counter(map(int, file.read_text().split()))


def work(file: Path, number: int, way: str) -> int:
    note(file, number)
    if number % EVERY == EVERY - 1:
        end_process(way)
    return number


def split_outcomes(refs: list[Any], kind: type[Exception], text: str) -> tuple[list[int], dict[int, Any]]:
    """Return the places of those that failed, and the values of the others."""
    failed, values, texts = [], {}, []
    for place, ref in enumerate(refs):
        try:
            values[place] = hocket.get(ref, timeout=SECONDS)
        except kind as error:
            failed.append(place)
            texts.append(str(error))
    assert [one for one in texts if text not in one] == []
    return failed, values


def expect_only_the_guilty(failed: list[int], values: dict[int, Any], file: Path) -> None:
    assert failed == GUILTY
    assert values == {number: number for number in range(MANY) if number not in GUILTY}
    assert count_runs(file) == dict.fromkeys(range(MANY), 1)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    with hocket.init(num_cpus=2):
        yield tmp_path / "runs"


@rounds
@pytest.mark.parametrize("way", WAYS)
def test_tasks(file: Path, way: str, turn: int) -> None:
    task = hocket.remote(max_retries=0)(work)
    refs = [task.remote(file, number, way) for number in range(MANY)]
    expect_only_the_guilty(*split_outcomes(refs, WorkerCrashedError, WAYS[way]), file)


@rounds
@pytest.mark.parametrize("retries", [1, 3])
def test_tasks_that_are_tried_again(file: Path, retries: int, turn: int) -> None:
    task = hocket.remote(max_retries=retries)(work)
    refs = [task.remote(file, number, "exit") for number in range(MANY)]
    failed, _ = split_outcomes(refs, WorkerCrashedError, f"tried {retries + 1} times")
    assert failed == GUILTY
    assert count_runs(file) == {number: 1 + retries * (number in GUILTY) for number in range(MANY)}


def work_beside_a_killer(runs: Path, killed: Path, number: int) -> int:
    """Now and then, leave a thread behind that ends the process up to 5 ms later, whatever runs there by then."""

    def kill() -> None:
        time.sleep(number % 6 / 1000)
        note(killed, os.getpid())
        os.kill(os.getpid(), signal.SIGKILL)

    note(runs, number)
    if number % EVERY == EVERY - 1:
        threading.Thread(target=kill, daemon=True).start()
    return number


@rounds
def test_a_death_is_charged_to_one_task_of_the_process_that_died(file: Path, turn: int) -> None:
    killed = file.with_name("killed")
    task = hocket.remote(max_retries=0)(work_beside_a_killer)
    values, charged = [], []
    for number, ref in enumerate([task.remote(file, killed, number) for number in range(4 * MANY)]):
        try:
            assert hocket.get(ref, timeout=SECONDS) == number
            values.append(number)
        except WorkerCrashedError as error:
            found = re.search(r"\(pid (\d+)\)", str(error))
            assert found
            charged.append(int(found[1]))
    dead = count_runs(killed)
    assert len(dead) > MANY // EVERY  # most threads came to it before the session had nothing left to run
    assert charged  # or no task ran beside a killer, and nothing was shown
    assert Counter(charged) <= dead
    runs = count_runs(file)
    assert set(runs.values()) == {1}
    assert runs.keys() >= set(values)


@rounds
def test_tasks_of_a_task(file: Path, turn: int) -> None:
    @hocket.remote
    def run_all() -> tuple[list[int], dict[int, Any]]:
        task = hocket.remote(max_retries=0)(work)
        refs = [task.remote(file, number, "SIGKILL") for number in range(MANY)]
        return split_outcomes(refs, WorkerCrashedError, "killed by signal 9")

    failed, values = hocket.get(run_all.remote(), timeout=SECONDS)
    expect_only_the_guilty(failed, values, file)


class Doer:
    def work(self, file: Path, number: int, way: str) -> int:
        return work(file, number, way)


@rounds
@pytest.mark.parametrize("way", WAYS)
def test_calls_of_an_actor_that_is_built_again(file: Path, way: str, turn: int) -> None:
    actor = hocket.remote(max_restarts=-1)(Doer).remote()
    refs = [actor.work.remote(file, number, way) for number in range(MANY)]
    expect_only_the_guilty(*split_outcomes(refs, ActorUnavailableError, WAYS[way]), file)


@rounds
@pytest.mark.parametrize("caller", ["driver", "worker"])
def test_calls_that_had_finished_when_their_actor_died(file: Path, caller: str, turn: int) -> None:
    """From a worker most of them go over a direct line."""

    def call_all() -> tuple[list[int], dict[int, Any]]:
        actor = hocket.remote(Doer).remote()
        for number in range(MANY, MANY + 10):  # a line is made after some calls
            hocket.get(actor.work.remote(file, number, "exit"), timeout=SECONDS)
        refs = [actor.work.remote(file, number, "exit") for number in range(200)]
        return split_outcomes(refs, ActorDiedError, "exited with code 3")

    if caller == "driver":
        failed, values = call_all()
    else:
        failed, values = hocket.get(hocket.remote(call_all).remote(), timeout=SECONDS)
    assert failed == list(range(EVERY - 1, 200))
    assert values == {number: number for number in range(EVERY - 1)}
    assert max(count_runs(file).values()) == 1


class Crowd:
    """Runs several calls at once; all of a round are under way when one ends the process."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size)

    def meet(self, file: Path, number: int, size: int, is_fatal: bool) -> int:
        note(file, number)
        self.barrier.wait(SECONDS)
        if is_fatal:
            if number % size == 0:
                end_process("SIGKILL")
            threading.Event().wait(SECONDS)
        return number


class AsyncCrowd:
    def __init__(self, size: int) -> None:
        self.started: set[int] = set()
        self.news = asyncio.Condition()

    async def meet(self, file: Path, number: int, size: int, is_fatal: bool) -> int:
        note(file, number)
        wave = range(number - number % size, number - number % size + size)
        async with self.news:
            self.started.add(number)
            self.news.notify_all()
            await self.news.wait_for(lambda: self.started.issuperset(wave))
        if is_fatal:
            if number % size == 0:
                end_process("SIGKILL")
            await asyncio.sleep(SECONDS)
        return number


@rounds
@pytest.mark.parametrize("crowd", [Crowd, AsyncCrowd], ids=["threads", "coroutines"])
def test_calls_that_ran_side_by_side_are_charged_and_no_others(file: Path, crowd: Any, turn: int) -> None:
    size, waves, fatal = 4, 12, 5
    actor = hocket.remote(max_restarts=1, max_concurrency=size)(crowd).remote(size)
    refs = [actor.meet.remote(file, number, size, number // size == fatal) for number in range(size * waves)]
    failed, values = split_outcomes(refs, ActorUnavailableError, "killed by signal 9")
    assert failed == list(range(size * fatal, size * (fatal + 1)))
    assert values == {number: number for number in range(size * waves) if number not in failed}
    assert count_runs(file) == dict.fromkeys(range(size * waves), 1)


@rounds
@pytest.mark.parametrize("way", ["exit", "SIGKILL"])
@pytest.mark.parametrize("place", ["task", "actor", "asynchronous actor"])
def test_items_of_a_generator_arrive_before_its_death(file: Path, place: str, way: str, turn: int) -> None:
    def produce(count: int) -> Iterator[int]:
        yield from range(count)
        end_process(way)

    class Producer:
        def produce(self, count: int) -> Iterator[int]:
            yield from range(count)
            end_process(way)

    class AsyncProducer:
        async def produce(self, count: int) -> Any:
            for number in range(count):
                yield number
            end_process(way)

    if place == "task":
        stream = hocket.remote(max_retries=0)(produce).remote(100)
    else:
        actor = hocket.remote(Producer if place == "actor" else AsyncProducer).remote()
        stream = actor.produce.options(num_returns="streaming").remote(100)
    items = iter(stream)
    assert [hocket.get(next(items), timeout=SECONDS) for _ in range(100)] == list(range(100))
    last = next(items)
    with pytest.raises((WorkerCrashedError, ActorDiedError), match=WAYS[way]):
        hocket.get(last, timeout=SECONDS)


@rounds
def test_what_a_worker_put_before_its_death_is_announced(file: Path, turn: int) -> None:
    @hocket.remote(max_retries=0)
    def give(number: int) -> list[Any]:
        return [hocket.put(number)]

    refs: list[Any] = []
    for number in range(100):
        refs.append(give.remote(number))
        if number % 10 == 9:
            refs.append(hocket.remote(max_retries=0)(end_process).remote("SIGKILL"))
    values, deaths = [], 0
    for ref in refs:
        try:
            values.append(hocket.get(hocket.get(ref, timeout=SECONDS)[0], timeout=SECONDS))
        except WorkerCrashedError:
            deaths += 1
    assert deaths == 10
    assert values == list(range(100))


# --- what is taken back -----------------------------------------------------------------------------------------------


def count_for_ever() -> Iterator[int]:
    number = 0
    while True:
        yield number
        number += 1
        threading.Event().wait(0.01)


def hold_the_interpreter(seconds: int) -> None:
    ctypes.PyDLL(None).sleep(seconds)


def stop_itself() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def give(number: int) -> int:
    return number


@rounds
def test_tasks_do_not_wait_behind_a_generator(file: Path, turn: int) -> None:
    stream = hocket.remote(count_for_ever).remote()
    for _ in range(5):
        hocket.get(next(stream), timeout=SECONDS)
    task = hocket.remote(give)
    for _ in range(6):
        assert hocket.get([task.remote(number) for number in range(10)], timeout=SECONDS) == list(range(10))
    hocket.cancel(stream)


@rounds
@pytest.mark.parametrize("silence", [hold_the_interpreter, stop_itself], ids=["interpreter held", "stopped"])
def test_tasks_do_not_wait_behind_a_worker_that_is_silent(file: Path, silence: Any, turn: int) -> None:
    """Nobody can ask a process that is stopped, or holds its interpreter, to give back what it has not started."""
    task = hocket.remote(give)
    assert hocket.get([task.remote(number) for number in range(300)], timeout=SECONDS) == list(range(300))

    @hocket.remote(max_retries=0)
    def mixed(number: int) -> int:
        if number == 0:
            silence(*((600,) if silence is hold_the_interpreter else ()))
        return number

    hocket.get([mixed.remote(number) for number in range(1, 300)], timeout=SECONDS)  # it is known to be short
    refs = [mixed.remote(number) for number in range(100)]
    assert hocket.get(refs[1:], timeout=SECONDS) == list(range(1, 100))
    with pytest.raises(GetTimeoutError, match="1 of 1 objects were not ready"):
        hocket.get(refs[0], timeout=0.01)
    hocket.cancel(refs[0], force=True)


class Writer:
    """An actor that ends its own stderr, or writes there."""

    def fall_silent(self) -> int:
        os.close(2)
        return os.getpid()

    def write(self, text: str) -> None:
        os.write(2, text.encode())


def test_what_a_new_process_writes_is_passed_on_when_an_earlier_one_dies(capfd: pytest.CaptureFixture[str]) -> None:
    actor = hocket.remote(Writer)
    with hocket.init(num_cpus=2):
        first = actor.remote()
        hocket.get(first.fall_silent.remote(), timeout=SECONDS)  # its pipe's number is the next one's
        others = [actor.remote() for _ in range(4)]
        hocket.get([other.__ray_ready__.remote() for other in others], timeout=SECONDS)
        for dying in (first, *others):
            if dying is not first:
                hocket.get(dying.write.remote("still here\n"), timeout=SECONDS)
            hocket.kill(dying)
            with pytest.raises(ActorDiedError):
                hocket.get(dying.write.remote("never"), timeout=SECONDS)
    assert capfd.readouterr().err.count("still here\n") == 4


NOBODY_READS = """
import os, hocket
class Writer:
    def end(self):
        os.write(2, b"last words\\n")
        os._exit(3)
hocket.init(num_cpus=1)
os.set_blocking(2, False)
try:
    while True:
        os.write(2, b"." * 512)
except BlockingIOError:
    os.set_blocking(2, True)
try:
    hocket.get(hocket.remote(Writer).remote().end.remote())
except hocket.exceptions.ActorDiedError as error:
    print("last words" in str(error), flush=True)
input()
"""


def test_last_words_are_kept_until_somebody_reads_stderr() -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", NOBODY_READS], **pipes) as program:  # type: ignore[call-overload]
        assert program.stdout.readline() == b"True\n"
        shown = b""
        while not shown.endswith(b"last words\n"):
            data = program.stderr.read1()
            assert data, shown
            shown += data
        rest = program.communicate(b"\n", timeout=SECONDS)
    assert rest == (b"", b"")
    assert program.returncode == 0


TERMINAL = """
import os, sys, hocket
class Writer:
    def write(self):
        while True:
            os.write(2, b"." * 4000)
    def get_pid(self):
        return os.getpid()
hocket.init(num_cpus=2)
writer = hocket.remote(Writer).remote()
print(hocket.get(writer.get_pid.remote()), os.getpid(), flush=True)
writer.write.remote()
while sys.stdin.readline():
    print(hocket.get(hocket.remote(Writer).remote().get_pid.remote()), flush=True)
"""


def test_a_terminal_that_is_not_read_holds_up_nothing() -> None:
    """A write waits there when there is less room than it needs, though the terminal says that it is writable."""
    master, slave = os.openpty()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": slave}
    with subprocess.Popen([sys.executable, "-c", TERMINAL], **pipes) as program:  # type: ignore[call-overload]
        os.close(slave)
        pids = [int(pid) for pid in program.stdout.readline().split()]
        for _ in range(20):
            os.read(master, 300)  # the next write finds a little room
            program.stdin.write(b"\n")
            program.stdin.flush()
            pids.append(int(program.stdout.readline()))
        guardian = psutil.Process(pids[0]).parent()
        program.kill()
    assert guardian is not None
    _, alive = psutil.wait_procs([guardian], timeout=SECONDS)
    assert alive == []
    assert [pid for pid in pids if psutil.pid_exists(pid)] == []
    os.close(master)


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_large_print_of_a_task_is_whole_though_signals_come(unbuffered: str) -> None:
    program = """
import signal, hocket
def write():
    signal.signal(14, lambda *given: None)
    signal.setitimer(signal.ITIMER_REAL, 0.003, 0.003)
    for number in range(20):
        print(chr(97 + number) * 200_000)
    signal.setitimer(signal.ITIMER_REAL, 0)
hocket.get(hocket.remote(write).remote())
"""
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=SECONDS, check=True)
    lines = [(line[:1], len(line)) for line in done.stdout.splitlines()]
    assert lines == [(chr(97 + number), 200_000) for number in range(20)]


STOPS = {
    "os._exit": "os._exit(0)",
    "SIGKILL": "os.kill(os.getpid(), 9)",
    "SIGTERM": "os.kill(os.getpid(), 15)",
    "the end": "",
}


@pytest.mark.parametrize("stop", STOPS)
def test_what_tasks_have_written_is_shown_however_the_driver_ends(stop: str, tmp_path: Path) -> None:
    program = f"""
import ctypes, os, hocket
def write(number):
    os.write(2, b"from %d" % number + b"." * 1000 + b"\\n")
    ctypes.CDLL(None).printf(b"natively\\n")
hocket.init(num_cpus=2)
actors = [hocket.remote(write) for _ in range(4)]
hocket.get([actor.remote(number) for number in range(20) for actor in actors])
{STOPS[stop]}
"""
    with (tmp_path / "stderr").open("wb") as stderr:
        done = subprocess.run(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=stderr, timeout=SECONDS, check=False
        )
    lines = (tmp_path / "stderr").read_text().splitlines()  # stdout has its end when all processes are gone
    assert Counter(lines) == {f"from {number}" + "." * 1000: 4 for number in range(20)}
    if stop == "the end":
        assert done.stdout == b"natively\n" * 80


@rounds
def test_forced_cancel_hits_no_other_task(file: Path, turn: int) -> None:
    """Most of them are over when they are cancelled; what runs by then is not theirs."""
    task = hocket.remote(max_retries=0)(work)
    cancelled = 0
    for start in range(0, 400, 20):
        refs = [task.remote(file, start + place, "none") for place in range(20) if (start + place) not in GUILTY]
        victim = refs[10]
        hocket.cancel(victim, force=True)
        for ref in refs:
            try:
                hocket.get(ref, timeout=SECONDS)
            except hocket.exceptions.TaskCancelledError:
                assert ref == victim
                cancelled += 1
    assert max(count_runs(file).values()) == 1
    assert cancelled > 0


class LoopStopper:
    async def stop(self) -> None:
        asyncio.get_running_loop().stop()
        await asyncio.sleep(1)


def test_an_actor_that_stops_its_event_loop_dies_of_a_named_cause(session: hocket.SessionContext) -> None:
    actor = hocket.remote(LoopStopper).remote()
    with pytest.raises(ActorDiedError, match=r"(?s)exited with code 1.*stopped the event loop.*hocket.exit_actor\(\)"):
        hocket.get(actor.stop.remote(), timeout=SECONDS)


@pytest.mark.parametrize("end", ["there", "closed", "own end closed"])
def test_a_worker_knows_that_its_driver_is_gone(end: str) -> None:
    """Then it has nobody to tell that it cannot go on."""
    own, other = socket.socketpair()
    with own, other:
        other.sendall(b"unread")
        if end != "there":
            (other if end == "closed" else own).close()
        assert worker._is_hung_up(own) == (end != "there")
