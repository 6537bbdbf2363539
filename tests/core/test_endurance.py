"""The proofs on life and death: many kills, each cause named, nothing left, nothing printed.

``HOCKET_TEST_KILLS=200 HOCKET_TEST_CYCLES=100 pytest tests/core/test_endurance.py -s`` runs the full counts.
"""

from __future__ import annotations

import os
import pty
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

import hocket
from hocket.exceptions import OutOfMemoryError, TaskError, WorkerCrashedError
from hocket.testing import Leftovers
from tests.conftest import RunScript
from tests.core.test_life_cycle import list_grandchildren, wait_gone

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.about_local("how its processes die")]

KILLS = int(os.environ.get("HOCKET_TEST_KILLS", "15"))
CYCLES = int(os.environ.get("HOCKET_TEST_CYCLES", "10"))

FORKING_DRIVER = """
import subprocess
import numpy as np
import hocket

hocket.init(num_cpus=2)

@hocket.remote
def work(x, array):
    if x % 7 == 0:
        subprocess.Popen(["sleep", "{marker}"], start_new_session=True)
    return array

@hocket.remote
class Actor:
    def start(self):
        subprocess.Popen(["sleep", "{marker}"])

actor = Actor.remote()
print("up", flush=True)
while True:
    array = hocket.put(np.ones(100_000))
    hocket.get([work.remote(x, array) for x in range(40)] + [actor.start.remote()])
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where everything that a driver writes must go: its TMPDIR, home and runtime folder."""
    for name in ("TMPDIR", "HOME", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    return tmp_path


def list_files(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.lstat().st_size for path in folder.rglob("*") if not path.is_dir()}


def list_holders_of_memory(pids: set[int]) -> set[int]:
    """Return those of the processes that hold a segment of ours."""
    holders = set()
    for pid in pids:
        try:
            targets = [fd.readlink() for fd in Path(f"/proc/{pid}/fd").iterdir()]
        except OSError:
            continue
        if any(str(target).startswith("/memfd:hocket") for target in targets):
            holders.add(pid)
    return holders


@pytest.mark.timeout(60 + 5 * KILLS)
@pytest.mark.timeout(60 + 2 * KILLS)
def test_drivers_killed_at_random_moments_leave_nothing(start_script: RunScript, folder: Path) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}, {KILLS} kills")
    chance = random.Random(seed)
    slowest = 0.0
    for round_number in range(KILLS):
        marker = str(20_000_000 + os.getpid() * 1000 + round_number)  # tells our grandchildren from other processes
        driver = start_script(FORKING_DRIVER.format(marker=marker))
        assert driver.stdout is not None
        assert driver.stdout.readline() == "up\n"
        while not (pids := list_grandchildren(marker)):
            pass
        time.sleep(chance.random() * 0.2)  # the moment of the kill is what is random, not a wait for anything
        pids |= {child.pid for child in psutil.Process(driver.pid).children(recursive=True)}
        killed = time.monotonic()
        driver.kill()
        driver.wait()
        where = f"seed {seed}, round {round_number}"
        assert wait_gone(pids, 2.0) == set(), where
        slowest = max(slowest, time.monotonic() - killed)
        assert list_grandchildren(marker) == set(), where
        assert list_holders_of_memory(pids) == set(), where
        assert list_files(folder) == {}, where
    print(f"the slowest end took {slowest:.3f} s")


@pytest.mark.timeout(60 + 5 * CYCLES)
def test_cycles_of_start_and_kill_leave_no_files(start_script: RunScript, folder: Path) -> None:
    for _ in range(CYCLES):
        driver = start_script(
            "import hocket, time; print(hocket.get(hocket.remote(lambda: 1).remote()), flush=True); time.sleep(1000)"
        )
        assert driver.stdout is not None
        assert driver.stdout.readline() == "1\n"
        driver.kill()
        driver.wait()
    assert sum(list_files(folder).values()) < 1_000_000 * CYCLES / 100


# --- causes -----------------------------------------------------------------------------------------------------------


def die_by_signal(number: int) -> None:
    print("the last line before the end", file=sys.stderr)
    os.kill(os.getpid(), number)


def die_by_segmentation_fault() -> None:
    import ctypes

    print("the last line before the end", file=sys.stderr)
    ctypes.string_at(0)


def die_by_exit() -> None:
    print("the last line before the end", file=sys.stderr)
    sys.exit(3)


def die_by_overuse(counter: Path) -> None:
    """What the kernel does to a process that has no memory left, as far as its parent can see: a count, and SIGKILL."""
    print("the last line before the end", file=sys.stderr)
    with counter.open("a") as kills:
        kills.write(".")
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    ("die", "args", "reason"),
    [
        (die_by_segmentation_fault, (), r"was killed by signal 11 \(SIGSEGV\)"),
        (die_by_signal, (signal.SIGKILL,), r"was killed by signal 9 \(SIGKILL\)"),
        (die_by_exit, (), "exited with code 3"),
    ],
)
def test_death_is_named_with_the_last_words(
    session: hocket.SessionContext,
    die: Callable[..., object],
    args: tuple[object, ...],
    reason: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    ref = hocket.remote(max_retries=0)(die).remote(*args)
    with pytest.raises(
        WorkerCrashedError, match=rf"{reason}; peak memory (.|\n)*the last line before the end"
    ) as caught:
        hocket.get(ref)
    assert not isinstance(caught.value, OutOfMemoryError)
    assert caught.value.death is not None
    if die is die_by_segmentation_fault:
        assert "in die_by_segmentation_fault" in caught.value.death.stack
    capfd.readouterr()  # its stderr is ours too


COUNTER_OF_OUT_OF_MEMORY_KILLS = """
import os, sys
if "guardian" in " ".join(sys.orig_argv):
    class Patch:
        def find_spec(self, name, path=None, target=None):
            if name == "hocket.engine.local.messages":  # the guardian imports it after `channel`, before itself is done
                sys.meta_path.remove(self)
                import builtins
                real = builtins.open
                def open(file, *args, **kwargs):
                    if file in ("/proc/vmstat",) or str(file).endswith("memory.events"):
                        import io
                        return io.StringIO(f"oom_kill {os.stat(os.environ['HOCKET_TEST_COUNTER']).st_size}\\n")
                    return real(file, *args, **kwargs)
                builtins.open = open
            return None
    sys.meta_path.insert(0, Patch())
"""
"""Makes the guardian read the kernel's counter of out-of-memory kills from a file of ours."""


def test_out_of_memory_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The counter is a stand-in, for machines on which no control group can be made; `test_out_of_memory` has the
    real thing."""
    (tmp_path / "sitecustomize.py").write_text(COUNTER_OF_OUT_OF_MEMORY_KILLS)
    counter = tmp_path / "counter"
    counter.touch()
    monkeypatch.setenv("HOCKET_TEST_COUNTER", str(counter))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    with hocket.init(num_cpus=1):
        ref = hocket.remote(max_retries=0)(die_by_overuse).remote(counter)
        with pytest.raises(
            OutOfMemoryError, match=r"out-of-memory killer ended it: use less memory(.|\n)*the last line before the end"
        ):
            hocket.get(ref)
        with pytest.raises(WorkerCrashedError, match=r"was killed by signal 9 \(SIGKILL\)") as caught:
            hocket.get(hocket.remote(max_retries=0)(die_by_signal).remote(signal.SIGKILL))
        assert not isinstance(caught.value, OutOfMemoryError)
    capfd.readouterr()


def test_memory_limit_of_a_process_is_a_memory_error(session: hocket.SessionContext) -> None:
    def overuse() -> int:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
        return len(bytearray(4 << 30))

    with pytest.raises(MemoryError) as caught:
        hocket.get(hocket.remote(max_retries=0)(overuse).remote())
    assert isinstance(caught.value, TaskError)


# --- waiting ----------------------------------------------------------------------------------------------------------


def test_fifty_nested_gets_on_one_cpu() -> None:
    before = Leftovers.look()
    with hocket.init(num_cpus=1):

        @hocket.remote
        def nest(depth: int) -> int:
            return 1 + int(hocket.get(nest.remote(depth - 1))) if depth else 0

        assert hocket.get(nest.remote(50)) == 50
    assert before.list_new() == []


INTERRUPTED_DRIVER = """
import fcntl, termios, time
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
import hocket

hocket.init(num_cpus=2)

@hocket.remote
def sleep():
    time.sleep(1000)

@hocket.remote
def echo(x):
    return x

refs = [sleep.remote() for _ in range(1)]
hocket.get(echo.remote(0))
for number in range(5):
    print("waiting", number, flush=True)
    try:
        hocket.get(refs)
    except KeyboardInterrupt:
        print("interrupted", number, flush=True)
    print("next", hocket.get(echo.remote(number)), flush=True)
"""


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """The two ends of a terminal."""
    master, slave = pty.openpty()
    yield master, slave
    os.close(master)
    os.close(slave)


class Screen:
    """What a terminal has said, to be read once."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._unread = ""

    def read_until(self, text: str, seconds: float = 30.0) -> None:
        """Read on until it has said this."""
        deadline = time.monotonic() + seconds
        while text not in self._unread:
            assert time.monotonic() < deadline, f"{text!r} did not come; what came is {self._unread!r}"
            if select.select([self._fd], [], [], 0.1)[0]:
                self._unread += os.read(self._fd, 4096).decode()
        self._unread = self._unread.partition(text)[2]


def test_control_c_at_a_terminal_ends_the_wait_and_nothing_else(terminal: tuple[int, int]) -> None:
    master, slave = terminal
    driver = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED_DRIVER], stdin=slave, stdout=slave, stderr=slave, start_new_session=True
    )
    try:
        screen = Screen(master)
        latencies = []
        for number in range(5):
            screen.read_until(f"waiting {number}")
            time.sleep(0.05)  # into the wait; an interrupt just before it would be caught as well
            pressed = time.monotonic()
            os.write(master, b"\x03")
            screen.read_until(f"interrupted {number}")
            latencies.append(time.monotonic() - pressed)
            screen.read_until(f"next {number}")
        children = {child.pid for child in psutil.Process(driver.pid).children(recursive=True)}
        assert driver.wait(20) == 0
        assert wait_gone(children, 2.0) == set()
        print(f"from Ctrl-C to KeyboardInterrupt: {max(latencies) * 1000:.1f} ms at most")
    finally:
        driver.kill()
        driver.wait()


# --- quiet ------------------------------------------------------------------------------------------------------------

QUIET_DRIVER = """
import os, signal, time
import numpy as np
import hocket
from hocket import exceptions

class Actor:
    def __init__(self, fails=False):
        if fails:
            raise ValueError("constructor")
    def echo(self, x):
        return x
    def fail(self):
        raise ValueError("method")

def fail():
    raise ValueError("task")

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def sleep():
    time.sleep(1000)

def expect(error, ref, **given):
    try:
        hocket.get(ref, **given)
    except error:
        return
    raise SystemExit(f"{error} did not come")

with hocket.init(num_cpus=2):
    assert hocket.get([hocket.remote(abs).remote(-x) for x in range(200)]) == list(range(200))
    assert hocket.get(hocket.put(np.ones(200_000))).sum() == 200_000
    expect(ValueError, hocket.remote(fail).remote())
    expect(exceptions.WorkerCrashedError, hocket.remote(max_retries=1)(die).remote())
    hocket.remote(fail).remote()
    hocket.remote(max_retries=0)(die).remote()
    running = hocket.remote(sleep).remote()
    expect(exceptions.GetTimeoutError, running, timeout=0.2)
    hocket.cancel(running)
    expect(exceptions.TaskCancelledError, running)
    actor = hocket.remote(Actor).remote()
    assert hocket.get(actor.echo.remote(1)) == 1
    expect(ValueError, actor.fail.remote())
    hocket.kill(actor)
    expect(exceptions.ActorDiedError, actor.echo.remote(1))
    expect(exceptions.ActorDiedError, hocket.remote(Actor).remote(fails=True).echo.remote(1))
    forgotten = [hocket.remote(sleep).remote() for _ in range(4)]
"""


def test_nothing_is_printed_that_the_user_did_not_print(
    start_script: RunScript, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for the errors that nobody has fetched, which the end of a session shows unless told not to."""
    monkeypatch.setenv("HOCKET_UNFETCHED_ERRORS", "off")
    driver = start_script(QUIET_DRIVER)
    out, err = driver.communicate(timeout=50)
    assert (out, err, driver.returncode) == ("", "", 0)
