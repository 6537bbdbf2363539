"""The coordinator's life: how it begins, ends, and changes its workers; what it says when nothing moves.

Numbers: docs/ps.md.
"""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import hocket
from hocket import ps
from hocket.ps import errors
from hocket.testing import Leftovers
from tests.conftest import ENGINE
from tests.ps.conftest import Files

EXAMPLES = Path(__file__).parents[2] / "examples"


def list_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("hocket-ps")]


@pytest.mark.needs("parallelism")
def test_the_queue_is_bounded(strategy, files: Files):
    """A2 #17."""
    with_limit = ps.Coordinator(strategy, max_queued=2)
    for _ in range(2):
        with_limit.schedule(files.wait_for, ("go",))
    files.wait_until(lambda: with_limit.statistics()["queued_closures"] == 0)
    for _ in range(2):
        with_limit.schedule(abs, (1,))
    started = threading.Event()

    def schedule() -> None:
        started.set()
        with_limit.schedule(abs, (1,))

    thread = threading.Thread(target=schedule)
    thread.start()
    started.wait()
    assert with_limit.statistics()["scheduled_closures"] == 4
    files.write("go")
    thread.join()
    with_limit.join()
    assert with_limit.statistics()["scheduled_closures"] == with_limit.statistics()["finished_closures"]
    with_limit.close()


def test_one_coordinator_for_a_strategy(session):
    """A2 #28."""
    strategy = ps.ParameterServerStrategy({"worker": 2, "server": 1})
    with strategy.scope():
        counter = ps.Variable(0)
    coordinator = ps.Coordinator(strategy)
    assert ps.Coordinator(strategy) is coordinator
    with pytest.raises(ValueError, match=r"already has a coordinator, so \['max_queued'\] cannot be set"):
        ps.Coordinator(strategy, max_queued=5)
    assert len(list_threads()) == 2

    def add() -> None:
        counter.assign_add(1)

    for _ in range(10):
        coordinator.schedule(add)
    coordinator.join()
    del coordinator
    gc.collect()
    assert list_threads() == []
    again = ps.Coordinator(strategy)  # its pushes are none of the first one's
    for _ in range(10):
        again.schedule(add)
    assert again.join() == 10
    assert counter.numpy() == 20
    again.close()
    assert list_threads() == []
    with pytest.raises(RuntimeError, match=r"The coordinator is closed.*ps\.Coordinator\(strategy\)"):
        again.schedule(add)
    with pytest.raises(RuntimeError, match=r"The coordinator is closed"):
        again.join()
    strategy.close()


@pytest.mark.needs("parallelism")
def test_closing_while_closures_run(strategy, files: Files):
    coordinator = ps.Coordinator(strategy)
    running = [coordinator.schedule(files.wait_for, ("never",)) for _ in range(2)]
    waiting = [coordinator.schedule(abs, (1,)) for _ in range(50)]
    files.wait_until(lambda: coordinator.statistics()["inflight_closures"] >= 2)
    failed: list[BaseException] = []

    def join() -> None:
        try:
            coordinator.join()
        except RuntimeError as error:
            failed.append(error)

    thread = threading.Thread(target=join)
    thread.start()
    coordinator.close()
    thread.join()
    assert len(failed) == 1
    for value in (*running, waiting[-1]):
        with pytest.raises(errors.CancelledClosureError, match=r"the coordinator was closed, or the session has ended"):
            value.fetch()
    assert list_threads() == []


@pytest.mark.skipif(ENGINE == "ray", reason="The session of the suite's shared Ray is not this test's to end.")
def test_a_session_that_ends_leaves_nothing():
    """With a coordinator in use, and held: no thread, no process, no descriptor."""
    before = Leftovers.look()
    hocket.init(num_cpus=2, engine=ENGINE)
    strategy = ps.ParameterServerStrategy({"worker": 2, "server": 2})
    coordinator = ps.Coordinator(strategy)
    with strategy.scope():
        counter = ps.Variable(0)
    stream = iter(coordinator.create_per_worker_dataset(range(1000)))
    values = [coordinator.schedule(_draw, (stream, counter)) for _ in range(500)]
    hocket.shutdown()
    assert list_threads() == []
    assert all(value.is_ready for value in values)
    with pytest.raises(RuntimeError, match="its session has ended"):
        coordinator.schedule(abs, (1,))
    strategy.close()
    assert before.list_new() == []


def _draw(stream: Any, counter: Any) -> int:
    counter.assign_add(1)
    return int(next(stream))


@pytest.mark.about_local("what a Ctrl-C in the terminal does to its processes")
def test_ctrl_c_ends_a_wait(start_script):
    process = start_script(
        """
import hocket, os, signal, threading, time
from hocket import ps
hocket.init(num_cpus=2)
strategy = ps.ParameterServerStrategy({"worker": 2, "server": 1})
coordinator = ps.Coordinator(strategy)
value = coordinator.schedule(time.sleep, (60,))
try:
    print("ready", flush=True)
    coordinator.join()
except KeyboardInterrupt:
    print("interrupted", flush=True)
hocket.shutdown()
print([t.name for t in threading.enumerate()], value.is_ready, flush=True)
"""
    )
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "interrupted\n"
    assert process.stdout.readline() == "['MainThread'] True\n"
    assert process.wait() == 0


@pytest.mark.needs("parallelism")
def test_workers_come_and_go(strategy, files: Files):
    """A5 #69."""
    coordinator = ps.Coordinator(strategy)
    with strategy.scope():
        counter = ps.Variable(0)

    def add() -> int:
        counter.assign_add(1)
        return ps.get_current_worker_index()

    coordinator.fetch([coordinator.schedule(add) for _ in range(10)])
    assert coordinator.add_workers(2) == [2, 3]
    assert coordinator.num_workers == 4
    held = [coordinator.schedule(files.wait_for_others, ("go", 4)) for _ in range(4)]
    coordinator.join()
    assert sorted(value.fetch() for value in held) == [0, 1, 2, 3]
    coordinator.remove_worker(1)
    assert sorted(coordinator.get_worker_pids()) == [0, 2, 3]
    assert 1 not in coordinator.fetch([coordinator.schedule(add) for _ in range(30)])
    assert coordinator.add_workers() == [4]  # an index never comes again
    coordinator.fetch([coordinator.schedule(add) for _ in range(10)])
    assert counter.numpy() == 50
    with pytest.raises(ValueError, match=r"There is no worker 1; the workers are \[0, 2, 3, 4\]"):
        coordinator.remove_worker(1)
    with pytest.raises(ValueError, match=r"count must be a whole number from 1, but received 0"):
        coordinator.add_workers(0)
    with pytest.raises(ValueError, match=r"1023 workers in all, and has had 5, but received count=2000"):
        coordinator.add_workers(2000)
    for index in (0, 2, 3):
        coordinator.remove_worker(index)
    with pytest.raises(ValueError, match=r"Worker 4 is the last one.*coordinator\.close\(\)"):
        coordinator.remove_worker(4)
    coordinator.close()


@pytest.mark.needs("parallelism")
def test_of_two_threads_that_remove_the_last_two_workers_one_is_refused(strategy, files: Files):
    coordinator = ps.Coordinator(strategy)

    def hold() -> int | None:
        files.write("begun")
        files.wait_for("go")
        return ps.get_current_worker_index()

    held = coordinator.schedule(hold)
    files.wait_for("begun")
    busy, idle = coordinator._workers.dispatchers.values()
    if idle.state.sent:
        busy, idle = idle, busy
    remover = threading.Thread(target=coordinator.remove_worker, args=(busy.state.index,))
    remover.start()
    files.wait_until(lambda: busy.state.is_leaving)
    with pytest.raises(ValueError, match=rf"Worker {idle.state.index} is the last one"):
        coordinator.remove_worker(idle.state.index)
    with pytest.raises(ValueError, match=rf"no worker {busy.state.index}; the workers are \[{idle.state.index}\]"):
        coordinator.remove_worker(busy.state.index)
    files.write("go")
    remover.join()
    assert held.fetch() == busy.state.index
    assert coordinator.schedule(ps.get_current_worker_index).fetch() == idle.state.index
    coordinator.close()


@pytest.mark.needs("parallelism")
def test_the_watchdog_speaks_once(strategy, files: Files, capfd):
    """A5 #70."""
    patience = 3.0 if ENGINE == "local" else 5.0  # the closure must begin in that time; on Ray workers do so late
    coordinator = ps.Coordinator(strategy, watchdog_s=patience)
    for _ in range(2):
        coordinator.schedule(files.wait_for_others, ("here", 2))
    coordinator.join()  # both workers are there, and have imported what the next closure needs
    capfd.readouterr()
    held = coordinator.schedule(files.wait_for, ("go",))
    shown = ""

    def has_spoken() -> bool:
        nonlocal shown
        shown += capfd.readouterr().err
        workers = shown.partition("Worker 0 (pid")[2]
        return (
            shown.count("The stacks of all processes") == 1
            and "Worker 1 (pid" in workers
            and "in _wait_for_a_file" in workers
        )

    files.wait_until(has_spoken)
    assert f"no closure has ended for {patience:g} s, and 1 are with the workers: Files.wait_for" in shown
    assert "in wait_until" in shown.partition("The coordinator (pid")[2].partition("Worker 0")[0]
    files.write("go")
    held.fetch()
    assert coordinator.schedule(abs, (-1,)).fetch() == 1
    coordinator.join()
    coordinator.close()
    assert capfd.readouterr().err == ""
    with pytest.raises(ValueError, match=r"watchdog_s must be more than 0 seconds, but received 0"):
        ps.Coordinator(strategy, watchdog_s=0)
    with pytest.raises(ValueError, match=r"max_queued must be a whole number from 1, but received 0"):
        ps.Coordinator(strategy, max_queued=0)
    with pytest.raises(TypeError, match=r"takes a ParameterServerStrategy, but received dict"):
        ps.Coordinator({"worker": 1})  # type: ignore[arg-type]


@pytest.mark.needs("parallelism")
def test_a_task_can_be_the_coordinator(session):
    """A1 #5: the coordinator is no worker, and needs not be the driver."""

    @hocket.remote(num_cpus=0)
    def train() -> int:
        strategy = ps.ParameterServerStrategy({"worker": 1, "server": 1})
        coordinator = ps.Coordinator(strategy)
        with strategy.scope():
            counter = ps.Variable(0)
        for _ in range(5):
            coordinator.schedule(_add_one, (counter,))
        coordinator.join()
        value = int(counter)
        coordinator.close()
        strategy.close()
        return value

    assert hocket.get(train.remote()) == 5


def _add_one(counter: Any) -> None:
    counter.assign_add(1)


@pytest.mark.parametrize("how", ["local", "distributed"])
def test_the_counter_of_the_reference_ends_at_15(how):
    """A2 #13-#19 in one, and reference 001."""
    command = [sys.executable, str(EXAMPLES / "parameter_server_counter.py"), how]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "15"


@pytest.mark.needs("parallelism")
def test_removing_the_last_worker_with_data(strategy, files: Files):
    """A5 #69: closures that only it could run end."""
    coordinator = ps.Coordinator(strategy)
    stream = iter(
        coordinator.create_per_worker_dataset(lambda context: range(1000 if context.input_pipeline_id else 0))
    )
    coordinator.fetch([coordinator.schedule(files.wait_for_others, ("all", 2)) for _ in range(2)])
    values = [coordinator.schedule(next, (stream,)) for _ in range(500)]
    coordinator.remove_worker(1)
    coordinator.join()
    assert all(value.is_ready for value in values)
    coordinator.close()
