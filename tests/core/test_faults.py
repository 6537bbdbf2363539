"""Each process is made to fail at each of its named points: every wait ends, with the value or with an honest error."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

import hocket
from hocket.exceptions import ActorDiedError, GetTimeoutError, LocalEngineDiedError, WorkerCrashedError
from hocket.testing import Leftovers, fail_at
from tests.conftest import RunScript
from tests.core.test_life_cycle import wait_gone

pytestmark = pytest.mark.about_local("the named points where its processes can fail")

SECONDS = 30
"""A wait that does not end is a failure; the tests themselves take a fraction of a second."""


GUARDIAN_IS_GONE = r"guardian .* is gone, so the session is over"


def note(file: Path) -> int:
    """Leave a trace of being run; return how often that was so."""
    with file.open("a") as trace:
        trace.write(".")
    return file.stat().st_size


def work(file: Path) -> str:
    note(file)
    return "done"


def echo(x: Any) -> Any:
    return x


def put_and_nest(file: Path) -> str:
    """Puts, submits and waits: passes every point of a worker."""
    note(file)
    inner = hocket.remote(max_retries=5)(echo).remote("done")
    return str(hocket.get(hocket.get(hocket.put([inner]))[0]))


BY_POINT: dict[str, Any] = {
    "worker.before_task": work,
    "worker.before_result": work,
    "worker.after_result": work,
    "worker.in_flush": work,
    "worker.in_put": put_and_nest,
    "worker.in_submit": put_and_nest,
}


def test_points_of_workers_are_all_tried() -> None:
    assert {point for point in fail_at.points if point.startswith("worker.")} == BY_POINT.keys()


PUBLISHED = ("worker.after_result", "worker.in_flush")
"""Where the task's result is safe already."""

RUNNING = tuple(point for point in BY_POINT if point not in PUBLISHED)


@pytest.mark.parametrize("point", PUBLISHED)
@pytest.mark.parametrize("action", ["kill", "exit"])
def test_what_was_published_is_not_lost(point: str, action: str, tmp_path: Path) -> None:
    before = Leftovers.look()
    with fail_at(point, action=action) as fault, hocket.init(num_cpus=1):
        file = tmp_path / "runs"
        assert hocket.get(hocket.remote(max_retries=0)(BY_POINT[point]).remote(file), timeout=SECONDS) == "done"
        assert fault.fired == 1
        assert file.stat().st_size == 1
        assert hocket.get(hocket.remote(work).remote(file), timeout=SECONDS) == "done"
    assert before.list_new() == []


@pytest.mark.parametrize("point", RUNNING)
@pytest.mark.parametrize(
    ("action", "reason"), [("kill", r"killed by signal 9 \(SIGKILL\)"), ("exit", "exited with code 3")]
)
def test_death_without_retries_is_named(point: str, action: str, reason: str, tmp_path: Path) -> None:
    before = Leftovers.look()
    with fail_at(point, action=action) as fault, hocket.init(num_cpus=1):
        file = tmp_path / "runs"
        ref = hocket.remote(max_retries=0)(BY_POINT[point]).remote(file)
        with pytest.raises(WorkerCrashedError, match=reason):
            hocket.get(ref, timeout=SECONDS)
        assert fault.fired == 1
        assert file.exists() == (point != "worker.before_task")
        assert hocket.get(hocket.remote(work).remote(file), timeout=SECONDS) == "done"
    assert before.list_new() == []


@pytest.mark.parametrize("point", RUNNING)
def test_death_with_a_retry_gives_the_value(point: str, tmp_path: Path) -> None:
    before = Leftovers.look()
    with fail_at(point) as fault, hocket.init(num_cpus=1):
        file = tmp_path / "runs"
        assert hocket.get(hocket.remote(max_retries=1)(BY_POINT[point]).remote(file), timeout=SECONDS) == "done"
        assert fault.fired == 1
        assert file.stat().st_size == (1 if point == "worker.before_task" else 2)
    assert before.list_new() == []


@pytest.mark.parametrize("retries", [0, 1, 2, 4])
def test_retries_are_counted_exactly(retries: int, tmp_path: Path) -> None:
    with fail_at("worker.before_result", times=100) as fault, hocket.init(num_cpus=2):
        file = tmp_path / "runs"
        ref = hocket.remote(max_retries=retries)(work).remote(file)
        with pytest.raises(WorkerCrashedError, match="SIGKILL"):
            hocket.get(ref, timeout=SECONDS)
        assert fault.fired == file.stat().st_size == retries + 1


def test_only_what_ran_is_charged(tmp_path: Path) -> None:
    """Tasks that stood in a dead worker's row run once, elsewhere."""
    with fail_at("worker.before_result", hit=5) as fault, hocket.init(num_cpus=1):
        files = [tmp_path / str(number) for number in range(40)]
        task = hocket.remote(max_retries=0)(work)
        refs = [task.remote(file) for file in files]
        outcomes = [get_outcome(ref) for ref in refs]
        assert fault.fired == 1
        assert outcomes.count("done") == 39
        assert [isinstance(outcome, WorkerCrashedError) for outcome in outcomes].index(True) == 4
        assert all(file.stat().st_size == 1 for file in files)


def get_outcome(ref: Any) -> Any:
    try:
        return hocket.get(ref, timeout=SECONDS)
    except WorkerCrashedError as error:
        return error


class Counter:
    def __init__(self) -> None:
        self.value = 0

    def add(self) -> int:
        self.value += 1
        return self.value


@pytest.mark.parametrize("point", ["worker.before_task", "worker.before_result", "worker.after_result"])
def test_dead_actor_fails_every_call(point: str) -> None:
    with fail_at(point, hit=3) as fault, hocket.init(num_cpus=1):
        actor = hocket.remote(Counter).remote()
        refs = [actor.add.remote() for _ in range(20)]
        with pytest.raises(ActorDiedError, match=r"killed by signal 9 \(SIGKILL\)"):
            hocket.get(refs[-1], timeout=SECONDS)
        with pytest.raises(ActorDiedError, match="killed by signal 9"):
            hocket.get(actor.add.remote(), timeout=SECONDS)
        assert fault.fired == 1


def test_exception_between_result_and_sending_is_the_tasks() -> None:
    with fail_at("worker.before_result", action="raise") as fault, hocket.init(num_cpus=1):
        with pytest.raises(hocket.exceptions.TaskError, match=r"a fault was injected at 'worker\.before_result'"):
            hocket.get(hocket.remote(max_retries=0)(echo).remote("x"), timeout=SECONDS)
        assert fault.fired == 1
        assert hocket.get(hocket.remote(echo).remote("x"), timeout=SECONDS) == "x"


@pytest.mark.parametrize("point", ["guardian.before_spawn", "guardian.after_spawn"])
@pytest.mark.parametrize("action", ["kill", "exit", "raise"])
def test_guardian_that_fails_to_spawn_ends_the_session(point: str, action: str) -> None:
    before = Leftovers.look()
    with fail_at(point, action=action) as fault:
        with hocket.init(num_cpus=1), pytest.raises(LocalEngineDiedError, match=GUARDIAN_IS_GONE):
            hocket.get(hocket.remote(echo).remote("x"), timeout=SECONDS)
        assert fault.fired == 1
    assert before.list_new() == []


def test_guardian_that_fails_to_report_ends_the_session() -> None:
    before = Leftovers.look()
    with fail_at("worker.before_result") as death, fail_at("guardian.before_report") as fault:
        with hocket.init(num_cpus=1), pytest.raises(LocalEngineDiedError, match=GUARDIAN_IS_GONE):
            hocket.get(hocket.remote(echo).remote("x"), timeout=SECONDS)
        assert (death.fired, fault.fired) == (1, 1)
    assert before.list_new() == []


def test_stopped_worker_costs_only_its_own_task(tmp_path: Path) -> None:
    before = Leftovers.look()
    with fail_at("worker.before_task", action="stop") as fault, hocket.init(num_cpus=2):
        task = hocket.remote(work)
        stuck = task.remote(tmp_path / "stuck")
        wait_fired(fault, stuck)
        with pytest.raises(GetTimeoutError, match="1 of 1 objects were not ready"):
            hocket.get(stuck, timeout=0.1)
        files = [tmp_path / str(number) for number in range(20)]
        assert hocket.get([task.remote(file) for file in files], timeout=SECONDS) == ["done"] * 20
        (stopped,) = [pid for pid in list_workers() if psutil.Process(pid).status() == psutil.STATUS_STOPPED]
        os.kill(stopped, signal.SIGCONT)
        assert hocket.get(stuck, timeout=SECONDS) == "done"
    assert before.list_new() == []


def wait_fired(fault: fail_at, ref: Any) -> None:
    while not fault.fired:
        hocket.wait([ref], timeout=0.01)


def list_workers() -> list[int]:
    pids: list[int] = hocket.core.session.get_engine().view.statistics()["worker_pids"]
    return pids


def test_session_with_a_stopped_worker_ends(tmp_path: Path) -> None:
    before = Leftovers.look()
    with fail_at("worker.before_task", action="stop") as fault, hocket.init(num_cpus=1):
        wait_fired(fault, hocket.remote(work).remote(tmp_path / "x"))
    assert before.list_new() == []


DRIVER = """
import hocket
from hocket.testing import fail_at

with fail_at({point!r}, hit={hit}) as fault:
    hocket.init(num_cpus=2)

    @hocket.remote
    def work(x):
        return x

    print("up", flush=True)
    while True:
        hocket.get([work.remote(x) for x in range(20)])
"""


@pytest.mark.parametrize("point", ["hub.before_flush", "hub.in_handle"])
@pytest.mark.parametrize("hit", [1, 2, 7])
def test_driver_killed_inside_the_hub_leaves_nothing(start_script: RunScript, point: str, hit: int) -> None:
    driver = start_script(DRIVER.format(point=point, hit=hit))
    process = psutil.Process(driver.pid)
    seen: set[psutil.Process] = set()
    while driver.poll() is None:  # a zombie is waited for by poll
        seen |= set(list_family(process))
    assert driver.returncode == -signal.SIGKILL
    assert wait_gone({process.pid for process in seen}, 2.0) == set()


def list_family(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"point": "worker.lunch"}, r"point must be one of \['guardian\.after_spawn', .*received 'worker\.lunch'"),
        (
            {"action": "explode"},
            r"action must be one of \['kill', 'exit', 'raise', 'stop', 'flip', 'cut'\], but received 'explode'",
        ),
        (
            {"action": "flip"},
            r"action 'flip' damages bytes, but no bytes pass at 'worker\.in_put'\. Choose one of \['train",
        ),
        ({"hit": 0}, "hit must be 1 or more, but received 0"),
        ({"times": -1}, "times must be 1 or more, but received -1"),
    ],
)
def test_bad_input(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fail_at(**{"point": "worker.in_put", **given})


def test_nothing_is_armed_afterwards() -> None:
    with fail_at("worker.in_put"), fail_at("worker.in_flush"):
        assert os.environ["HOCKET_FAULTS"].count("\n") == 1
    assert "HOCKET_FAULTS" not in os.environ
    assert hocket.engine.faults.plan is None
