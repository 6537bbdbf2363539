"""The kernel's out-of-memory killer, at work in a control group of the test's own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.about_local("what its guardian knows of a process that the kernel ended")

LIMIT = 300 << 20

PROGRAM = """
import os, pathlib
pathlib.Path({procs!r}).write_text(str(os.getpid()))
import hocket

hocket.init(num_cpus=2)


@hocket.remote(max_retries=1)
def eat():
    print("eating", file=__import__("sys").stderr, flush=True)
    return len(bytearray(1 << 30))


@hocket.remote
def sleep(x):
    return x


assert hocket.get(sleep.remote(1)) == 1
try:
    hocket.get(eat.remote())
except hocket.exceptions.OutOfMemoryError as error:
    print("named", "SIGKILL" in str(error), "out-of-memory killer" in str(error), "eating" in str(error), flush=True)
    print("tries", str(error).count("tried 2 times"), "peak", error.death.peak_rss_bytes > 50 << 20, flush=True)
assert hocket.get(sleep.remote(2)) == 2
print("the session goes on", flush=True)
"""

NEIGHBOURS = """
import collections, os, pathlib
pathlib.Path({procs!r}).write_text(str(os.getpid()))
import hocket

hocket.init(num_cpus=2)


@hocket.remote(max_retries=0)
def work(number):
    with open({trace!r}, "ab", buffering=0) as trace:
        trace.write(b"%d " % number)
    if number % 50 == 49:
        bytearray(b"x") * (1 << 30)
    return number


failed = []
for number, ref in enumerate([work.remote(number) for number in range(200)]):
    try:
        assert hocket.get(ref) == number
    except hocket.exceptions.OutOfMemoryError:
        failed.append(number)
runs = collections.Counter(map(int, pathlib.Path({trace!r}).read_text().split()))
print(failed, len(runs), max(runs.values()), flush=True)
"""


def _find_parent() -> tuple[Path, str, str] | None:
    """Return this process's memory group, and the names of its limit and of its list of processes."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return Path(f"/sys/fs/cgroup/memory{path}"), "memory.limit_in_bytes", "cgroup.procs"
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        if line.startswith("0::"):
            return Path(f"/sys/fs/cgroup{line[3:]}"), "memory.max", "cgroup.procs"
    return None


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group with a limit on memory, and the file that takes processes in."""
    found = _find_parent()
    if found is None:
        pytest.skip("this system has no control groups")
    parent, limit, procs = found
    folder = parent / f"hocket-test-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / limit).write_text(str(LIMIT))
    except OSError as error:
        with contextlib.suppress(OSError):
            folder.rmdir()
        pytest.skip(f"no control group with a memory limit can be made here: {error}")
    yield folder / procs
    for _ in range(100_000):
        for pid in (folder / procs).read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        with contextlib.suppress(OSError):
            folder.rmdir()
            break


@pytest.mark.slow
def test_out_of_memory_is_named_and_spares_the_driver(
    group: Path, start_script: Callable[[str], subprocess.Popen[str]]
) -> None:
    process = start_script(PROGRAM.format(procs=str(group)))
    out, err = process.communicate(timeout=60)
    assert out == "named True True True\ntries 1 peak True\nthe session goes on\n", err


@pytest.mark.slow
def test_out_of_memory_costs_the_neighbours_nothing(
    group: Path, start_script: Callable[[str], subprocess.Popen[str]], tmp_path: Path
) -> None:
    process = start_script(NEIGHBOURS.format(procs=str(group), trace=str(tmp_path / "runs")))
    out, err = process.communicate(timeout=60)
    assert out == "[49, 99, 149, 199] 200 1\n", err
