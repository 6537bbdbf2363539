"""A session whose driver has its standard descriptors closed, or few descriptors."""

from __future__ import annotations

import copy
import itertools
import os
import resource
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import hocket
from hocket.engine import contract
from hocket.testing import Leftovers

pytestmark = pytest.mark.slow

PROGRAM = """
import os, subprocess, sys
import hocket

hocket.init(num_cpus=2)
{before}

@hocket.remote
def add(x):
    print("to stdout", flush=True)
    os.write(2, b"to stderr")
    return x + 1

@hocket.remote
class Counter:
    def add(self, x):
        return subprocess.run(["cat"], input=x, capture_output=True).stdout

results = [hocket.get([add.remote(x) for x in range(20)]), hocket.get(Counter.remote().add.remote(b"x"))]
results.append(len(hocket.get(hocket.put(bytes(3_000_000)))))
hocket.shutdown()
open(sys.argv[1], "w").write(repr(results))
"""
EXPECTED = repr([list(range(1, 21)), b"x", 3_000_000])
CLOSED = [set_ for size in (1, 2, 3) for set_ in itertools.combinations(("<&-", ">&-", "2>&-"), size)]


@pytest.mark.about_local("its sockets and processes")
@pytest.mark.parametrize("closed", CLOSED, ids=" ".join)
def test_standard_descriptors_may_be_closed(closed: tuple[str, ...], tmp_path: Path) -> None:
    out = tmp_path / "out"
    run = ["sh", "-c", f'exec "$@" {" ".join(closed)}', "sh", sys.executable, "-c", PROGRAM.format(before=""), str(out)]
    ended = subprocess.run(run, capture_output=True, text=True, timeout=40, check=False)
    assert (ended.returncode, out.read_text() if out.exists() else "") == (0, EXPECTED), ended.stderr


@pytest.mark.about_local("its sockets and processes")
def test_program_may_close_them_after_init(tmp_path: Path) -> None:
    out = tmp_path / "out"
    source = PROGRAM.format(before="os.closerange(0, 3)")
    ended = subprocess.run([sys.executable, "-c", source, str(out)], capture_output=True, timeout=40, check=False)
    assert out.read_text() == EXPECTED
    assert ended.returncode == 0


@pytest.mark.about_local("its guardian")
def test_last_words_of_the_guardian_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'this is no Python' >&2\nexit 3\n")
    broken.chmod(broken.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sys, "executable", str(broken))
    with (
        hocket.init(num_cpus=1, engine="local"),
        pytest.raises(
            hocket.exceptions.LocalEngineDiedError,
            match=r"(?s)guardian \(pid \d+\).*is gone.*exited with code 3.*last words:\nthis is no Python\nCall hocket.shutdown\(\)",
        ),
    ):
        hocket.get(hocket.remote(lambda: 1).remote(), timeout=20)


@pytest.mark.about_local("its guardian")
def test_signal_that_ended_the_guardian_is_told(session: hocket.SessionContext) -> None:
    one = hocket.remote(lambda: 1)
    assert hocket.get(one.remote()) == 1
    os.kill(hocket.core.session.get_engine().view.statistics()["guardian_pid"], signal.SIGSEGV)
    message = r"(?s)is gone.*killed by signal 11.*last words:\nFatal Python error"
    with pytest.raises(hocket.exceptions.LocalEngineDiedError, match=message):
        hocket.get([one.remote() for _ in range(100_000)], timeout=20)


# --- few descriptors --------------------------------------------------------------------------------------------------

FEW = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, {limit}))
import hocket

def one(x):
    return x

class Holder:
    def one(self):
        return 1

{body}
"""

MANY_ACTORS = """
hocket.init(num_cpus=2)
one = hocket.remote(one)
Holder = hocket.remote(Holder)
print(hocket.get([one.remote(x) for x in range(20)], timeout=30) == list(range(20)))
holders = [Holder.remote() for _ in range(40)]
outcomes = []
for holder in holders:
    try:
        outcomes.append(hocket.get(holder.one.remote(), timeout=30))
    except hocket.exceptions.ActorDiedError as error:
        outcomes.append("said" if "could not be started" in str(error) and "ulimit -n" in str(error) else str(error))
print(outcomes.count(1), set(outcomes))
del holder, holders
for _ in range(100):
    try:
        print(hocket.get([one.remote(x) for x in range(20)], timeout=30) == list(range(20)))
        break
    except hocket.exceptions.WorkerCrashedError:
        pass  # the actors are ending
hocket.shutdown()
print("ended")
"""


def run_with_limit(limit: int, body: str) -> subprocess.CompletedProcess[str]:
    source = FEW.format(limit=limit, body=body)
    return subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=55, check=False)


@pytest.mark.about_local("what it needs")
@pytest.mark.parametrize("limit", [12, 20])
def test_too_few_descriptors_are_refused(limit: int) -> None:
    ended = run_with_limit(limit, "hocket.get(hocket.remote(one).remote(1))")
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("hocket.exceptions.DescriptorLimitError: A session needs 20 free descriptors")
    assert f"the limit is {limit}. Run `ulimit -n 4096` before" in last
    assert ended.returncode == 1


@pytest.mark.about_local("what it needs")
@pytest.mark.parametrize("limit", [26, 40, 60])
def test_actors_that_find_no_descriptors_say_so(limit: int) -> None:
    ended = run_with_limit(limit, MANY_ACTORS)
    lines = ended.stdout.splitlines()
    assert lines[0] == "True", ended.stderr
    _, outcomes = lines[1].split(maxsplit=1)
    assert outcomes in ("{1, 'said'}", "{'said', 1}"), ended.stdout
    assert lines[2:] == ["True", "ended"], ended.stderr


@pytest.mark.about_local("its sockets and processes")
@pytest.mark.timeout(120)
def test_workers_beyond_1024_descriptors_die_and_are_told(session: hocket.SessionContext) -> None:
    """`select.select` refuses such descriptors; the guardian has two for each worker."""

    class Idler:  # here, so that the workers need not import this module
        def tell_pid(self) -> int:
            return os.getpid()

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4096:
        pytest.skip("this process may not have 4,096 descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        build: Any = hocket.remote(num_cpus=0)(Idler)
        idlers = [build.remote() for _ in range(540)]
        pids = hocket.get([idler.tell_pid.remote() for idler in idlers])
        os.kill(pids[-1], signal.SIGKILL)
        with pytest.raises(hocket.exceptions.ActorDiedError, match="SIGKILL"):
            hocket.get(idlers[-1].tell_pid.remote())
        assert hocket.get(idlers[0].tell_pid.remote()) == pids[0]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.about_local("its sockets and processes")
def test_worker_that_is_asked_for_while_the_session_closes_is_not_started() -> None:
    before = Leftovers.look()
    with hocket.init(num_cpus=2):
        hocket.get(hocket.remote(abs).remote(-1))
        engine: Any = contract.get_current_engine()
        late = copy.copy(next(iter(engine.links.by_worker.values())).worker)
        late.id += 1000
        engine.reactor.due.append(lambda: engine.pool.start(late))  # as for a worker's last message
    assert before.list_new() == []
    assert late.id not in engine.links.by_worker


def test_a_socket_that_is_left_is_described() -> None:
    before = Leftovers.look()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        found = before.list_new()
    assert len(found) == 2
    assert f"(AF_UNIX SOCK_STREAM, at '', made by pid {os.getpid()})" in found[0]
    assert before.list_new() == []
