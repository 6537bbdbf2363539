"""How sessions start, how they end, and what is left."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

import hocket
from hocket.testing import Leftovers
from tests.conftest import RunScript, list_new_shared_memory

# A driver with tasks, an actor, shared memory and grandchildren that moved to sessions of their own.
BUSY_DRIVER = """
import os, subprocess, sys, time
import numpy as np
import hocket

hocket.init(num_cpus=2)

@hocket.remote
class Actor:
    def __init__(self):
        self.pids = [os.getpid()]
    def note(self, *pids):
        self.pids += pids
        return self.pids

@hocket.remote
def sleep(actor):
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    hocket.get(actor.note.remote(os.getpid(), child.pid))
    time.sleep(1000)

actor = Actor.remote()
large = hocket.put(np.zeros(10_000_000))
refs = [sleep.remote(actor), sleep.remote(actor)]
pids = []
while len(pids) < 5:
    pids = hocket.get(actor.note.remote())
print(hocket.core.session.get_engine().view.statistics()["guardian_pid"], *pids, flush=True)
{last}
"""


def read_pids(driver: subprocess.Popen[str]) -> set[int]:
    assert driver.stdout is not None
    return set(map(int, driver.stdout.readline().split()))


def wait_gone(pids: set[int], seconds: float) -> set[int]:
    """Return those of the processes that still run after so many seconds; one that only waits to be reaped does not."""
    deadline = time.monotonic() + seconds
    while (alive := {pid for pid in pids if is_running(pid)}) and time.monotonic() < deadline:
        time.sleep(0.01)
    return alive


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.about_local("its guardian and what that leaves behind")
@pytest.mark.slow
@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGTERM])
def test_killed_driver_leaves_nothing(start_script: RunScript, signal_number: int) -> None:
    before = Leftovers.look()
    driver = start_script(BUSY_DRIVER.format(last="time.sleep(1000)"))
    pids = read_pids(driver)
    assert len(pids) == 6
    assert wait_gone(pids, 0) == pids, "all of them are alive before the kill"
    driver.send_signal(signal_number)
    driver.wait()
    assert wait_gone(pids, 2.0) == set()
    assert list_new_shared_memory(before) == []


@pytest.mark.about_local("its guardian and what that leaves behind")
@pytest.mark.slow
@pytest.mark.parametrize(
    "last",
    ["pass", "raise ValueError('the end')", "import os; os._exit(1)", "hocket.shutdown()", "import sys; sys.exit(2)"],
)
def test_ended_driver_leaves_nothing(start_script: RunScript, last: str) -> None:
    driver = start_script(BUSY_DRIVER.format(last=last))
    pids = read_pids(driver)
    driver.wait(20)
    assert wait_gone(pids, 2.0) == set()


@pytest.mark.about_local("its guardian")
@pytest.mark.slow
def test_killed_guardian_ends_the_session_with_an_error(session: hocket.SessionContext) -> None:
    @hocket.remote
    def sleep() -> None:
        time.sleep(1000)

    ref = sleep.remote()
    pids = None
    while not pids:
        hocket.wait([ref], timeout=0.01)
        pids = hocket.core.session.get_engine().view.statistics()["worker_pids"]
    os.kill(hocket.core.session.get_engine().view.statistics()["guardian_pid"], signal.SIGKILL)
    with pytest.raises(hocket.exceptions.LocalEngineDiedError, match=r"guardian .* is gone, so the session is over"):
        hocket.get(ref, timeout=20)
    for timeout in (None, 0, 20):  # a loop over `wait` must not go round for ever
        with pytest.raises(
            hocket.exceptions.LocalEngineDiedError, match=r"guardian .* is gone, so the session is over"
        ):
            hocket.wait([ref], timeout=timeout)
    assert wait_gone(set(pids), 2.0) == set()


@pytest.mark.about_local("its guardian and what that leaves behind")
@pytest.mark.slow
def test_interrupt_in_get_raises_at_once_and_leaves_nothing(start_script: RunScript) -> None:
    last = """
try:
    print("waiting", flush=True)
    hocket.get(refs)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
    driver = start_script(BUSY_DRIVER.format(last=last))
    pids = read_pids(driver)
    assert driver.stdout is not None
    assert driver.stdout.readline() == "waiting\n"
    driver.send_signal(signal.SIGINT)
    sent = time.monotonic()
    assert driver.stdout.readline() == "interrupted\n"
    assert time.monotonic() - sent < 5
    driver.wait(20)
    assert wait_gone(pids, 2.0) == set()


@pytest.mark.slow
@pytest.mark.needs("every_interrupt")
def test_interrupted_session_goes_on(session: hocket.SessionContext) -> None:
    @hocket.remote
    def echo(x: int) -> int:
        return x

    interrupted = 0
    for round_number in range(20):
        timer = threading.Timer(
            0.002 * (round_number % 7), signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT)
        )
        try:
            timer.start()
            while True:  # ended by the interrupt alone
                assert hocket.get([echo.remote(x) for x in range(50)]) == list(range(50))
        except KeyboardInterrupt:
            interrupted += 1
        timer.join()
        assert hocket.get(echo.remote(round_number)) == round_number
    assert interrupted == 20


@pytest.mark.needs("instant_start")
def test_init_starts_no_process() -> None:
    before = Leftovers.look()
    with hocket.init():
        assert Leftovers.look().processes == before.processes
        assert hocket.get(hocket.put(1)) == 1
        assert Leftovers.look().processes == before.processes


@pytest.mark.about_local("its processes and their sockets")
def test_nothing_listens_while_tasks_and_actors_run(session: hocket.SessionContext) -> None:
    class Actor:
        def ready(self) -> int:
            return os.getpid()

    actor = hocket.remote(Actor).remote()
    hocket.get(actor.ready.remote())
    hocket.get([hocket.remote(os.getpid).remote() for _ in range(4)])
    statistics = hocket.core.session.get_engine().view.statistics()
    pids = [os.getpid(), statistics["guardian_pid"], *statistics["worker_pids"]]
    assert len(pids) >= 3
    listening = [
        c for pid in pids for c in psutil.Process(pid).net_connections("all") if c.status == psutil.CONN_LISTEN
    ]
    unix_names = {str(c.laddr) for pid in pids for c in psutil.Process(pid).net_connections("unix")} - {""}
    assert listening == []
    assert unix_names == set()


def test_fork_of_the_driver_starts_without_a_session(session: hocket.SessionContext) -> None:
    ref = hocket.remote(os.getpid).remote()
    pid = os.fork()
    if pid == 0:
        os._exit(7 if not hocket.is_initialized() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert hocket.get(ref) > 0


def test_first_use_opens_a_session_and_exit_closes_it(start_script: RunScript) -> None:
    driver = start_script("import hocket; print(hocket.get(hocket.remote(lambda: 6 * 7).remote()))")
    out, err = driver.communicate(timeout=30)
    assert (out, err, driver.returncode) == ("42\n", "", 0)


@pytest.mark.needs("plain_output")
def test_what_tasks_print_comes_out_once_and_in_order(start_script: RunScript) -> None:
    driver = start_script("""
import sys, hocket
@hocket.remote
def shout(x):
    print("out", x)
    print("err", x, file=sys.stderr)
for x in range(3):
    hocket.get(shout.remote(x))
""")
    out, err = driver.communicate(timeout=30)
    assert (out, err) == ("out 0\nout 1\nout 2\n", "err 0\nerr 1\nerr 2\n")


def test_import_is_bare_and_light(tmp_path: Path) -> None:
    source = """
import sys
import hocket
heavy = {"torch", "tensorflow", "jax", "ray", "pyarrow", "optuna", "numpy", "rich", "psutil", "pandas"} & set(sys.modules)
print(sorted(heavy))
"""
    out = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert out.stdout == "[]\n"


def test_threads_may_share_a_session(session: hocket.SessionContext) -> None:
    @hocket.remote
    def echo(x: int) -> int:
        return x

    results: dict[int, list[int]] = {}

    def run(start: int) -> None:
        results[start] = [hocket.get(echo.remote(x)) for x in range(start, start + 50)]

    threads = [threading.Thread(target=run, args=(1000 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {1000 * n: list(range(1000 * n, 1000 * n + 50)) for n in range(4)}


FORKING_DRIVER = """
import subprocess
import hocket

hocket.init(num_cpus=2)

@hocket.remote
def work(x):
    if x % 7 == 0:
        subprocess.Popen(["sleep", "{marker}"], start_new_session=True)
    return x

@hocket.remote
class Actor:
    def start(self):
        subprocess.Popen(["sleep", "{marker}"])

actor = Actor.remote()
print("up", flush=True)
while True:
    hocket.get([work.remote(x) for x in range(40)] + [actor.start.remote()])
"""


@pytest.mark.about_local("its processes and their sockets")
@pytest.mark.long
@pytest.mark.slow
def test_driver_killed_at_random_moments_leaves_nothing(start_script: RunScript) -> None:
    seed = random.randrange(10**6)
    chance = random.Random(seed)
    for round_number in range(10):
        marker = str(10_000_000 + os.getpid() * 100 + round_number)  # tells our grandchildren from all other processes
        driver = start_script(FORKING_DRIVER.format(marker=marker))
        assert driver.stdout is not None
        assert driver.stdout.readline() == "up\n"
        while not (pids := list_grandchildren(marker)):
            pass
        time.sleep(chance.random() * 0.2)  # the moment of the kill is what is random, not a wait for anything
        pids |= {child.pid for child in psutil.Process(driver.pid).children(recursive=True)}
        driver.send_signal(chance.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT]))
        driver.wait()
        assert wait_gone(pids, 2.0) == set(), f"seed {seed}, round {round_number}"
        assert list_grandchildren(marker) == set(), f"seed {seed}, round {round_number}"


def list_grandchildren(marker: str) -> set[int]:
    processes = psutil.process_iter(["cmdline"])
    return {process.pid for process in processes if process.info["cmdline"] == ["sleep", marker]}


def test_a_late_thread_opens_no_session(session: hocket.SessionContext) -> None:
    ref = hocket.put(1)
    hocket.shutdown()
    for late in (lambda: hocket.get(ref), lambda: hocket.get([ref]), lambda: hocket.wait([ref])):
        with pytest.raises(hocket.exceptions.SessionClosedError, match="No session is open"):
            late()
    assert not hocket.is_initialized()


@hocket.remote(num_cpus=0)
def rest() -> None:
    time.sleep(1000)


@pytest.mark.needs("instant_start", "processes")
def test_threads_that_use_a_session_hear_of_its_end() -> None:
    def use(number: int, errors: list[BaseException]) -> None:
        refs = [rest.remote()]
        begun.release()
        try:
            while True:
                engine = hocket.core.session.get_open_engine()  # hocket.put() would open the next session
                hocket.get(refs if number % 2 else engine.objects.put(number))
        except BaseException as error:  # noqa: BLE001 (the test looks at it)
            errors.append(error)

    for _ in range(10):
        errors: list[BaseException] = []
        begun = threading.Semaphore(0)
        hocket.init(num_cpus=2)
        threads = [threading.Thread(target=use, args=(number, errors)) for number in range(4)]
        for thread in threads:
            thread.start()
        for _ in threads:
            begun.acquire()
        hocket.shutdown()
        for thread in threads:
            thread.join(10)
        assert {type(error) for error in errors} == {hocket.exceptions.SessionClosedError}, errors
        assert len(errors) == 4


AT_THE_END = """
import gc
import hocket

@hocket.remote
def add(x):
    return x + 1

uses = []

def use(phase, info):
    if phase == "stop" and not uses:
        uses.append(phase)
        try:
            hocket.get(add.remote(1))
        finally:
            uses.clear()

class Last:
    def __del__(self, hocket=hocket, add=add):
        try:
            hocket.get(add.remote(1))
        except hocket.exceptions.SessionClosedError as error:
            print(error)

hocket.get(add.remote(1))
last = Last()
last.itself = last
{more}
"""


@pytest.mark.parametrize("more", ["", "gc.callbacks.append(use)"])
def test_no_session_opens_while_the_interpreter_ends(start_script: RunScript, more: str) -> None:
    driver = start_script(AT_THE_END.format(more=more))
    out, err = driver.communicate(timeout=40)
    assert driver.returncode == 0
    assert "The interpreter is ending, so no session can be opened any more." in out + err
    assert "Traceback" not in err or more


SPAWNING = """
import multiprocessing
import hocket

class Pair:
    def __init__(self, value):
        self.value = value

def double(pair):
    return Pair(2 * pair.value)

def main():
    with hocket.init(num_cpus=1):
        found = hocket.get(hocket.remote(double).remote(Pair(21)))
        print(found.value, isinstance(found, Pair), flush=True)

if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=main)
    child.start()
    child.join()
"""


@pytest.mark.about_local("what its workers can import; Ray's are no different")
def test_a_script_that_multiprocessing_spawns_again_can_be_a_driver(tmp_path: Path) -> None:
    script = tmp_path / "spawning.py"
    script.write_text(SPAWNING)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "42 True\n", done.stderr
