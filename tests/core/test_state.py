"""The state API and the timeline, on both engines where they can agree."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.core import timeline
from hocket.engine import inspection
from hocket.util import state


@hocket.remote
def double(x: int) -> int:
    return 2 * x


@hocket.remote(max_retries=0)
def fail(x: int) -> int:
    raise KeyError(f"no {x}")


@hocket.remote
class Counter:
    def __init__(self, start: int = 0) -> None:
        self.count = start

    def add(self, n: int) -> int:
        self.count += n
        return self.count

    def list_running(self) -> list[tuple[str, str, int | None]]:
        return [
            (task.name, task.state, task.worker_pid) for task in state.list_tasks(filters=[("state", "=", "running")])
        ]

    def get_pid(self) -> int:
        return os.getpid()


counters: Any = Counter


def wait_until(is_true: Any, limit_s: float = 20.0) -> None:
    deadline = time.monotonic() + limit_s
    while not is_true():
        assert time.monotonic() < deadline
        hocket.wait([hocket.put(0)], timeout=0.01)


def find_kernel() -> Any:
    engine: Any = hocket.core.session.get_engine()
    return engine.session.kernel


# --- tasks ------------------------------------------------------------------------------------------------------------


@pytest.mark.needs("exact_state")
def test_finished_tasks_are_remembered(any_session: hocket.SessionContext) -> None:
    ref = double.remote(4)
    before = time.time()
    assert hocket.get(ref) == 8
    (task,) = state.list_tasks(detail=True)
    assert (task.task_id, task.name, task.state, task.type) == (ref.hex(), "double", "FINISHED", "NORMAL_TASK")
    assert (task.func_or_class_name, task.attempt_number, task.error_type) == ("double", 0, None)
    assert task.required_resources == {"CPU": 1.0}
    assert task.start_time_ms is not None
    assert task.end_time_ms is not None
    assert task.start_time_ms <= task.end_time_ms
    assert abs(task.start_time_ms / 1000 - before) < 30
    assert state.get_task(ref.hex()) == task
    assert state.get_task("ffff") is None


@pytest.mark.needs("exact_state")
def test_failed_tasks_say_what_failed(any_session: hocket.SessionContext) -> None:
    ref = fail.remote(3)
    dependent = double.remote(ref)
    hocket.wait([ref, dependent], num_returns=2)
    task, after = state.get_task(ref.hex()), state.get_task(dependent.hex())
    assert task is not None
    assert after is not None
    assert (task.state, task.error_type, task.error_message) == ("FAILED", "KeyError", "'no 3'")
    assert (after.state, after.error_type, after.start_time_ms) == ("FAILED", "KeyError", None), "it never ran"


@pytest.mark.needs("processes", "exact_state")
def test_crashed_and_cancelled_tasks_are_told_apart(session: hocket.SessionContext) -> None:
    @hocket.remote(max_retries=0)
    def leave() -> None:
        os._exit(3)

    @hocket.remote
    def wait_for_ever() -> None:
        threading.Event().wait()

    crashed = leave.remote()
    hocket.wait([crashed])
    blocked = [wait_for_ever.remote() for _ in range(4)]
    hocket.cancel(blocked[-1])
    hocket.wait([blocked[-1]])
    found = {task.task_id: task for task in state.list_tasks(detail=True)}
    assert found[crashed.hex()].error_type == "WorkerCrashedError"
    assert found[crashed.hex()].start_time_ms is not None
    assert found[blocked[-1].hex()].error_type == "TaskCancelledError"
    wait_until(lambda: len(state.list_tasks(filters=[("state", "=", "RUNNING")])) == 2)
    assert len(state.list_tasks(filters=[("state", "=", "PENDING_NODE_ASSIGNMENT")])) == 1


@pytest.mark.needs("parallelism", "exact_state")
def test_waiting_tasks_say_for_what(session: hocket.SessionContext) -> None:
    @hocket.remote
    def wait_for_ever() -> int:
        threading.Event().wait()
        return 0

    gate = wait_for_ever.remote()
    waiting = double.remote(gate)
    task = state.get_task(waiting.hex())
    assert task is not None
    assert task.state == "PENDING_ARGS_AVAIL"
    hocket.cancel(gate, force=True)


@pytest.mark.needs("exact_state")
def test_worker_sees_itself_running(any_session: hocket.SessionContext) -> None:
    counter = counters.remote()
    pid = hocket.get(counter.get_pid.remote())
    assert hocket.get(counter.list_running.remote()) == [("Counter.list_running", "RUNNING", pid)]


@pytest.mark.needs("exact_state")
def test_waiting_coroutines_run(any_session: hocket.SessionContext) -> None:
    @hocket.remote
    class Gate:
        def __init__(self) -> None:
            self.event = asyncio.Event()

        async def wait(self) -> None:
            await self.event.wait()

        async def open(self) -> None:
            self.event.set()

    gate: Any = Gate.remote()  # type: ignore[attr-defined]
    refs = [gate.wait.remote() for _ in range(2)]
    asked: list[tuple[str, str, Any]] = [("state", "=", "RUNNING")]
    wait_until(lambda: {task.task_id for task in state.list_tasks(filters=asked)} == {ref.hex() for ref in refs})
    hocket.get(gate.open.remote())
    hocket.get(refs)
    assert state.list_tasks(filters=asked) == []
    found = [state.get_task(ref.hex()) for ref in refs]
    assert all(task is not None and task.start_time_ms for task in found)


@pytest.mark.needs("exact_state")
def test_only_the_last_tasks_are_kept(any_session: hocket.SessionContext, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = find_kernel()
    kernel.closed_tasks = type(kernel.closed_tasks)(maxlen=3)
    hocket.get([double.remote(x) for x in range(10)])
    refs = [double.remote(x) for x in range(3)]
    hocket.get(refs)
    assert {task.task_id for task in state.list_tasks()} == {ref.hex() for ref in refs}


@pytest.mark.needs("exact_state")
def test_many_short_runs_are_all_counted_and_not_all_remembered(session: hocket.SessionContext) -> None:
    for _ in range(3):
        hocket.get([double.remote(x) for x in range(1000)])
    hocket.get([double.remote(x) for x in range(1000)])
    counts = state.summarize_tasks()["cluster"]["summary"]["double"]["state_counts"]
    assert counts == {"FINISHED": 4000}
    remembered = state.list_tasks(limit=10_000)
    assert 1000 <= len(remembered) <= 4000
    kernel = find_kernel()
    (function,) = kernel.functions.values()
    long_runs = sum(task.seconds > 0.001 for task in kernel.closed_tasks)
    assert len(remembered) <= 1000 + 3000 / 64 + 1 + long_runs
    assert function.runs.count == 4000


@pytest.mark.needs("exact_statistics")
def test_remembered_tasks_keep_no_arguments(session: hocket.SessionContext) -> None:
    @hocket.remote
    def measure(array: np.ndarray) -> int:
        return array.nbytes

    assert hocket.get(measure.remote(np.zeros(1_000_000))) == 8_000_000
    wait_until(lambda: hocket.core.session.get_engine().view.statistics()["shared_bytes"] == 0)


# --- the other kinds --------------------------------------------------------------------------------------------------


@pytest.mark.needs("exact_state")
def test_actors_live_and_die(any_session: hocket.SessionContext) -> None:
    counter = counters.options(name="abacus").remote(5)
    assert hocket.get(counter.add.remote(1)) == 6
    (actor,) = state.list_actors(detail=True)
    assert (actor.class_name, actor.name, actor.state, actor.is_detached) == ("Counter", "abacus", "ALIVE", False)
    assert actor.pid == hocket.get(counter.get_pid.remote())
    assert actor.ray_namespace == actor.namespace == hocket.get_runtime_context().namespace
    hocket.kill(counter)
    dead = state.get_actor(actor.actor_id)
    assert dead is not None
    assert dead.state == "DEAD"
    assert dead.death_cause == {"error_message": "it was killed by `kill`."}
    del counter
    assert [one.state for one in state.list_actors(filters=[("class_name", "=", "Counter")])] == ["DEAD"]


@pytest.mark.needs("processes", "exact_state")
def test_workers_live_and_die(session: hocket.SessionContext) -> None:
    @hocket.remote(max_retries=0)
    def leave() -> None:
        os._exit(3)

    ref = leave.remote()
    hocket.wait([ref])
    dead = state.list_workers(filters=[("is_alive", "=", False)], detail=True)
    assert [(one.exit_type, one.exit_detail) for one in dead] == [("SYSTEM_ERROR", "exited with code 3")]
    driver, *_ = state.list_workers()
    assert (driver.worker_type, driver.pid, driver.state) == ("DRIVER", os.getpid(), "DRIVER")
    assert state.get_worker(dead[0].worker_id) == dead[0]


@pytest.mark.needs("exact_state")
def test_objects_have_a_size_and_a_state(any_session: hocket.SessionContext) -> None:
    large = hocket.put(np.zeros(1_000_000))
    (found,) = state.get_objects(large.hex())
    assert 8_000_000 <= found.object_size < 8_010_000
    assert (found.task_status, found.type, found.pid) == ("FINISHED", "DRIVER", os.getpid())
    assert ("test_state.py:" in found.call_site) == (any_session["engine"] == "local")
    summary = state.summarize_objects()["cluster"]
    assert summary["total_objects"] == 1
    assert summary["summary"]["all"]["total_size_mb"] == pytest.approx(7.63, abs=0.01)
    del large
    assert state.list_objects() == []


@pytest.mark.needs("exact_state")
def test_node_job_and_groups(any_session: hocket.SessionContext) -> None:
    (node,), (job,) = state.list_nodes(), state.list_jobs()
    assert (node.state, node.resources_total["CPU"], node.is_head_node) == ("ALIVE", 2.0, True)
    assert (job.status, job.type, job.driver_info["pid"]) == ("RUNNING", "DRIVER", str(os.getpid()))
    assert state.get_node(node.node_id) is not None
    assert state.get_job(job.job_id) is not None
    group = hocket.util.placement_group([{"CPU": 1}], name="pair")
    hocket.get(group.ready())
    (found,) = state.list_placement_groups(detail=True)
    assert (found.name, found.state, found.bundles) == ("pair", "CREATED", {0: {"CPU": 1.0}})
    assert state.get_placement_group(found.placement_group_id) == found
    assert state.list_runtime_envs() == []


@pytest.mark.needs("exact_state")
def test_failures_are_events(any_session: hocket.SessionContext) -> None:
    hocket.wait([fail.remote(1)])
    (event,) = state.list_cluster_events()
    assert (event.severity, event.source_type, event.message) == ("WARNING", "TASK", "fail: KeyError: 'no 1'")


@pytest.mark.needs("exact_state")
def test_failures_that_are_no_longer_remembered_are_counted(any_session: hocket.SessionContext) -> None:
    engine: Any = hocket.core.session.get_engine()
    for number in range(1003):
        engine.session.note_error(number, "f", "KeyError", "no")
    assert [event.event_id for event in state.list_cluster_events(limit=2)] == [f"{3:016x}", f"{4:016x}"]
    assert engine.view._state.build_snapshot({})["errors"]["count"] == 1003


@pytest.mark.needs("exact_state")
def test_snapshot_of_a_large_session_says_that_it_is_cut(any_session: hocket.SessionContext) -> None:
    hocket.get([double.options(name=f"double {number}").remote(1) for number in range(503)])
    engine: Any = hocket.core.session.get_engine()
    snapshot = engine.view._state.build_snapshot({})
    assert len(snapshot["tasks"]) == 500
    assert snapshot["left_out"] == {"tasks": 3, "actors": 0, "workers": 0}


@pytest.mark.needs("exact_state")
def test_names_of_one_function_are_counted_apart(any_session: hocket.SessionContext) -> None:
    hocket.get([double.options(name=name).remote(1) for name in ("b", "a", "a", "b", "a")])
    summary = state.summarize_tasks()["cluster"]["summary"]
    assert {name: one["state_counts"] for name, one in summary.items()} == {"a": {"FINISHED": 3}, "b": {"FINISHED": 2}}


@pytest.mark.needs("exact_state")
def test_summaries_count(any_session: hocket.SessionContext) -> None:
    counter = counters.remote()
    hocket.get([double.remote(1), double.remote(2), counter.add.remote(1)])
    hocket.wait([fail.remote(1)])
    tasks = state.summarize_tasks()["cluster"]
    assert {name: entry["state_counts"] for name, entry in tasks["summary"].items()} == {
        "double": {"FINISHED": 2},
        "Counter.__init__": {"FINISHED": 1},
        "Counter.add": {"FINISHED": 1},
        "fail": {"FAILED": 1},
    }
    assert (tasks["total_tasks"], tasks["total_actor_tasks"], tasks["total_actor_scheduled"]) == (3, 1, 1)
    actors = state.summarize_actors()["cluster"]
    assert actors["summary"]["Counter"]["state_counts"] == {"ALIVE": 1}
    assert actors["total_actors"] == 1


# --- records and filters ----------------------------------------------------------------------------------------------


@pytest.mark.needs("exact_state")
def test_record_is_also_a_mapping(any_session: hocket.SessionContext) -> None:
    hocket.get(double.remote(1))
    (task,) = state.list_tasks()
    assert task["name"] == task.get("name") == task.asdict()["name"] == "double"
    assert task.get("color", "none") == "none"
    assert task.required_resources is None, "only with detail=True"
    with pytest.raises(KeyError, match=r"TaskState has no field 'color'\. It has \['actor_id', "):
        task["color"]
    with pytest.raises(AttributeError):
        task.name = "other"  # type: ignore[misc]


@pytest.mark.needs("exact_state")
def test_filters_and_limit(any_session: hocket.SessionContext) -> None:
    hocket.get([double.remote(x) for x in range(5)])
    hocket.wait([fail.remote(1)])
    assert len(state.list_tasks(limit=2)) == 2
    assert len(state.list_tasks(filters=[("name", "=", "DOUBLE"), ("state", "!=", "FAILED")])) == 5
    assert [task.name for task in state.list_tasks(filters=[("error_type", "=", "KeyError")], limit=1)] == ["fail"]
    assert len(state.list_tasks(filters=[("attempt_number", "=", "0")])) == 6


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        (
            [("color", "=", "red")],
            r"'color' is not a field of TaskState\. Filter by one of \['actor_id', 'attempt_number'",
        ),
        ([("state", "<", 3)], r"A filter compares with '=' or '!=', but received '<' in \('state', '<', 3\)"),
        (["state"], r"A filter is a tuple \(field, '=' or '!=', value\), but received 'state'"),
        ([7], r"but received 7\. Write \('state', '=', 'RUNNING'\)"),
    ],
)
def test_bad_filters_are_explained(any_session: hocket.SessionContext, filters: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        state.list_tasks(filters=filters)


@pytest.mark.parametrize("limit", [0, -1, 1.5, True])
def test_bad_limits_are_explained(any_session: hocket.SessionContext, limit: Any) -> None:
    with pytest.raises(ValueError, match=f"limit must be a whole number of 1 or more, but received {limit}"):
        state.list_tasks(limit=limit)


def test_other_addresses_are_refused(any_session: hocket.SessionContext) -> None:
    with pytest.raises(
        ValueError, match=r"but received '10\.0\.0\.1:6379': the state API shows the session of this process"
    ):
        state.list_actors(address="10.0.0.1:6379")


def test_logs_are_refused_with_the_place_of_the_output() -> None:
    for function in (state.list_logs, state.get_log):
        with pytest.raises(
            NotImplementedError, match="No log files are kept: the workers' output appears in the driver's"
        ):
            function()


def test_state_needs_a_session() -> None:
    with pytest.raises(hocket.exceptions.SessionClosedError, match=r"No session is open\. Call hocket\.init\(\) first"):
        state.list_tasks()
    with pytest.raises(hocket.exceptions.SessionClosedError, match=r"No session is open\. Call hocket\.init\(\) first"):
        hocket.timeline()


def test_unknown_kind_is_refused(any_session: hocket.SessionContext) -> None:
    with pytest.raises(ValueError, match=r"kind must be one of \['actors', .*, but received 'colors'"):
        hocket.core.session.get_engine().view.list_records("colors")


@pytest.mark.needs("exact_state")
def test_records_have_the_fields_that_rows_bring(any_session: hocket.SessionContext) -> None:
    """Each row of the engine fills its record, so that nothing is None by mistake."""
    counter = counters.remote()
    hocket.get(counter.add.remote(1))
    group = hocket.util.placement_group([{"CPU": 1}])
    hocket.get(group.ready())
    hocket.wait([fail.remote(1)])
    engine = hocket.core.session.get_engine()
    records: dict[str, type[state.StateRecord]] = {
        "tasks": state.TaskState,
        "actors": state.ActorState,
        "workers": state.WorkerState,
        "objects": state.ObjectState,
        "nodes": state.NodeState,
        "jobs": state.JobState,
        "placement_groups": state.PlacementGroupState,
        "cluster_events": state.ClusterEventState,
    }
    for kind, record in records.items():
        rows = engine.view.list_records(kind)
        assert rows, kind
        assert all(record.list_fields() <= set(row) for row in rows), kind


# --- the timeline -----------------------------------------------------------------------------------------------------


def check_trace(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Hold the events to the trace format; return the spans."""
    for event in events:
        assert event["ph"] in ("X", "M")
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert isinstance(event["ts"], int | float)
        assert event["ts"] >= 0
    spans = [event for event in events if event["ph"] == "X"]
    assert all(span["dur"] >= 0 for span in spans)
    rows: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for span in spans:
        rows.setdefault((span["pid"], span["tid"]), []).append(span)
    for row in rows.values():
        open_ends: list[float] = []
        for span in sorted(row, key=lambda span: (span["ts"], -span["dur"])):
            while open_ends and open_ends[-1] <= span["ts"] + 0.002:
                open_ends.pop()
            assert not open_ends or span["ts"] + span["dur"] <= open_ends[-1] + 0.002, "spans of a row nest"
            open_ends.append(span["ts"] + span["dur"])
    return spans


@pytest.mark.needs("parallelism", "exact_state")
def test_timeline_is_a_trace(session: hocket.SessionContext, tmp_path: Path) -> None:
    counter = counters.options(max_concurrency=4).remote()
    before = time.perf_counter() * 1e6
    hocket.get([double.remote(x) for x in range(20)] + [counter.add.remote(1) for _ in range(20)])
    hocket.wait([fail.remote(1)])
    large = hocket.put(np.zeros(1_000_000))
    after = time.perf_counter() * 1e6
    events = hocket.timeline()
    assert events is not None
    spans = check_trace(events)
    by_category: dict[str, list[dict[str, Any]]] = {}
    for span in spans:
        by_category.setdefault(span["cat"], []).append(span)
    assert {category: len(found) for category, found in by_category.items() if category != "driver"} == {
        "task": 21,
        "call": 20,
        "constructor": 1,
    }
    assert {span["name"] for span in by_category["driver"]} == {"get", "put"}
    assert all(before - 1 <= span["ts"] <= after for span in by_category["call"])
    assert [span["args"]["error_type"] for span in spans if span["name"] == "fail"] == ["KeyError"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names[os.getpid()] == "driver"
    assert {span["pid"] for span in spans} == set(names)
    assert names[hocket.get(counter.get_pid.remote())].startswith("worker ")
    path = tmp_path / "trace.json"
    assert hocket.timeline(path) is None
    assert len(json.loads(path.read_text())) >= len(events)
    del large


def test_timeline_of_nested_calls_in_one_process() -> None:
    @hocket.remote
    def outer() -> int:
        result: int = hocket.get(double.remote(2))
        return result

    with hocket.init(num_cpus=1, engine="inprocess"):
        assert hocket.get(outer.remote()) == 4
        events = hocket.timeline()
    assert events is not None
    inner, around = sorted(check_trace(events), key=lambda span: span["dur"])
    assert inner["name"] == "double"
    assert around["ts"] <= inner["ts"]
    assert inner["tid"] == around["tid"] == 0


@pytest.mark.needs("parallelism", "exact_state")
def test_running_task_is_on_the_timeline(session: hocket.SessionContext) -> None:
    @hocket.remote
    def wait_for_ever() -> None:
        threading.Event().wait()

    ref = wait_for_ever.remote()
    wait_until(lambda: any(span["args"].get("state") == "RUNNING" for span in hocket.timeline() or ()))
    (span,) = [span for span in hocket.timeline() or () if span["args"].get("state") == "RUNNING"]
    assert (span["args"]["task_id"], span["cname"]) == (ref.hex(), "thread_state_runnable")
    hocket.cancel(ref, force=True)


def test_lanes_keep_overlapping_spans_apart() -> None:
    spans = [
        {"started": 0.0, "seconds": 10.0},
        {"started": 1.0, "seconds": 2.0},  # inside the first
        {"started": 2.0, "seconds": 3.0},  # overlaps the second
        {"started": 10.0, "seconds": 1.0},  # after all
    ]
    assert [lane for _, lane in timeline.assign_lanes(spans)] == [0, 0, 1, 0]


def test_filter_compares_words_numbers_and_none() -> None:
    row = {"state": "RUNNING", "count": 3, "is_alive": True, "actor_id": None}
    for one, wanted in {
        ("state", "=", "running"): True,
        ("state", "!=", "RUNNING"): False,
        ("count", "=", 3): True,
        ("count", "=", "3"): True,
        ("count", "!=", 4): True,
        ("is_alive", "=", "true"): True,
        ("is_alive", "=", False): False,
        ("actor_id", "=", None): True,
        ("actor_id", "=", "1"): False,
    }.items():
        assert inspection.matches(row, one) is wanted, one
