"""Events: what a process writes is read, or counted as missed, whatever becomes of the process."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import hocket
from hocket.core import session as core_session
from hocket.engine import events
from hocket.engine.events import layout, reader
from hocket.engine.events.layout import Kind, State
from hocket.util import state


@pytest.fixture
def fd() -> Iterator[int]:
    opened = os.memfd_create("events")
    os.ftruncate(opened, 4 * layout.SLOT_BYTES)
    yield opened
    os.close(opened)


def open_ring(fd: int, worker_id: int = 0, pid: int = 7) -> events.EventRing:
    ring = events.EventRing.open(fd, 0, worker_id, pid)
    ring.note_slot(worker_id)
    return ring


def open_worker_ring(fd: int, worker_id: int, pid: int) -> events.EventRing:
    driver = open_ring(fd)
    driver.note_slot(worker_id)
    driver.close()
    return events.EventRing.open(fd, 0, worker_id, pid)


@hypothesis.given(st.lists(st.integers(0, 2 * layout.RECORDS), min_size=1, max_size=5))
@hypothesis.settings(max_examples=20, deadline=None)
def test_each_record_is_read_or_counted(parts: list[int]) -> None:
    fd = os.memfd_create("events")
    os.ftruncate(fd, 4 * layout.SLOT_BYTES)
    ring = open_ring(fd)
    looked = reader.EventReader(fd, 0)
    written = read = missed = 0
    for part in parts:
        for number in range(written, written + part):
            ring.record_run(Kind.TASK, "f", float(number), 0.5, number)
        written += part
        for batch in looked.read():
            subjects = [event.subject for event in batch]
            assert subjects == list(range(written - len(subjects), written))
            read += len(subjects)
            missed += batch.missed
        assert read + missed == written
    ring.close()
    os.close(fd)


@hypothesis.given(
    st.lists(st.tuples(st.sampled_from("fg"), st.floats(0, 2e-4), st.floats(0, 1e-3)), min_size=1, max_size=300)
)
@hypothesis.settings(max_examples=50, deadline=None)
def test_merged_runs_are_counted(runs: list[tuple[str, float, float]]) -> None:
    fd = os.memfd_create("events")
    os.ftruncate(fd, 2 * layout.SLOT_BYTES)
    ring = open_ring(fd)
    for name in "fg":
        for _ in range(layout.SINGLES):
            ring.record_run(Kind.TASK, name, 0.0, 0.0, 0)
    looked = reader.EventReader(fd, 0)
    looked.read()
    now = 1.0
    for number, (name, seconds, gap) in enumerate(runs):
        ring.record_run(Kind.TASK, name, now, seconds, number)
        now += seconds + gap
    ring.flush()
    ring.flush()
    found = [event for batch in looked.read() for event in batch]
    for name in "fg":
        mine = [event for event in found if event.name == name]
        assert sum(event.runs for event in mine) == sum(run[0] == name for run in runs)
        assert sum(event.seconds for event in mine) == pytest.approx(sum(run[1] for run in runs if run[0] == name))
    assert [event.subject for event in found] == sorted({event.subject for event in found})
    assert all(event.seconds <= layout.MERGED_SECONDS + layout.SHORT_SECONDS for event in found)
    ring.close()
    os.close(fd)


def test_record_has_all_its_fields(fd: int) -> None:
    ring = open_ring(fd)
    ring.record(Kind.CALL, "Actor.call", 1.5, 0.25, 2**63 + 1, state=State.FAILED, attempt=3)
    ring.record(Kind.CALL, "Actor.call", 2.5, 0.0, attempt=2**20)
    (batch,) = reader.EventReader(fd, 0).read()
    assert (batch.worker_id, batch.pid, batch.missed) == (0, 7, 0)
    first, second = batch
    assert first == reader.Event(Kind.CALL, "Actor.call", 1.5, 0.25, 2**63 + 1, State.FAILED, 3)
    assert second.attempt == 0xFFFF, "what does not fit is cut, and harms no other field"
    ring.close()


def test_names_that_do_not_fit_are_told_apart_no_more(fd: int) -> None:
    ring = open_ring(fd)
    names = [f"name {number} {'ä' * 100}" for number in range(200)]
    for name in names:
        ring.record_run(Kind.TASK, name, 0.0, 0.0, 0)
    (batch,) = reader.EventReader(fd, 0).read()
    found = [event.name for event in batch]
    fitted = found.index("…")
    assert 0 < fitted < len(names)
    assert found == names[:fitted] + ["…"] * (len(names) - fitted)
    ring.close()


@pytest.mark.parametrize("name", ["", "\ud800", "x" * 10_000, "a\0b", "<b>"])
def test_odd_names(fd: int, name: str) -> None:
    ring = open_ring(fd)
    ring.record_run(Kind.TASK, name, 0.0, 0.0, 1)
    ring.record_run(Kind.TASK, "next", 0.0, 0.0, 2)
    (batch,) = reader.EventReader(fd, 0).read()
    assert [event.name for event in batch] == [
        name.encode("utf-8", "backslashreplace")[: layout.MAX_NAME_BYTES].decode(),
        "next",
    ]
    ring.close()


def test_slot_of_a_new_owner_begins_anew(fd: int) -> None:
    looked = reader.EventReader(fd, 0)
    first = open_worker_ring(fd, 1, 100)
    for number in range(3):
        first.record_run(Kind.TASK, "old", 0.0, 0.0, number)
    assert [len(list(batch)) for batch in looked.read()] == [3]
    first.record_run(Kind.TASK, "old", 0.0, 0.0, 3)
    first.close()
    second = events.EventRing.open(fd, 0, 1 + layout.WORKER_SLOTS, 200)
    second.record_run(Kind.TASK, "new", 0.0, 0.0, 4)
    (batch,) = looked.read()
    assert (batch.pid, [event.name for event in batch]) == (200, ["new"])
    assert batch.missed == 1, "the last of the old owner, which nobody read"
    second.close()


def test_slot_that_is_taken_up_again_goes_on(fd: int) -> None:
    ring = open_worker_ring(fd, 1, 100)
    ring.record_run(Kind.TASK, "f", 0.0, 0.0, 1)
    ring.close()
    again = events.EventRing.open(fd, 0, 1, 100)
    again.record(Kind.TASK, "f", 0.0, 0.0, 2, state=State.FAILED)
    again.record(Kind.TASK, "g", 0.0, 0.0, 3)
    (batch,) = reader.EventReader(fd, 0).read()
    assert [(event.name, event.subject) for event in batch] == [("f", 1), ("f", 2), ("g", 3)]
    assert batch.names == ["…", "f", "g"]
    again.close()


def test_file_that_is_too_short_keeps_events_private() -> None:
    fd = os.memfd_create("events")
    ring = events.EventRing.open(fd, 0, 0, 7)
    ring.note_slot(0)
    ring.record_run(Kind.TASK, "f", 0.0, 0.0, 1)
    assert reader.EventReader(fd, 0).read() == []
    ring.close()
    os.close(fd)


@hypothesis.given(st.binary(min_size=1, max_size=200), st.integers(0, layout.RECORDS_AT + 500))
@hypothesis.settings(max_examples=100, deadline=None)
def test_damaged_memory_harms_no_reader(noise: bytes, at: int) -> None:
    fd = os.memfd_create("events")
    os.ftruncate(fd, 2 * layout.SLOT_BYTES)
    ring = open_ring(fd)
    for number in range(10):
        ring.record_run(Kind.TASK, f"f{number}", 0.0, 0.0, number)
    ring.close()
    os.pwrite(fd, noise, at)
    for batch in reader.EventReader(fd, 0).read():
        list(batch)
    os.close(fd)


WRITER = """
import mmap, os, sys, time
from hocket.engine import events
from hocket.engine.events import Kind
ring = events.EventRing.open(int(sys.argv[1]), 0, 1, os.getpid())
number = 0
while True:
    ring.record_run(Kind.TASK, "f", float(number), 0.5, number)
    number += 1
    if number == 1000:
        print("begun", flush=True)
"""


def test_what_a_killed_process_wrote_is_there(fd: int) -> None:
    driver = open_ring(fd)
    driver.note_slot(1)
    looked = reader.EventReader(fd, 0)
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(fd)], pass_fds=[fd], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    assert writer.stdout.readline() == "begun\n"
    last = -1
    read = missed = 0
    for round_number in range(12):  # while it writes
        if round_number == 8:
            writer.send_signal(signal.SIGKILL)
            writer.wait()
        for batch in looked.read():
            found = list(batch)
            assert all(event == (Kind.TASK, "f", float(event.subject), 0.5, event.subject, 0, 0, 1) for event in found)
            subjects = [event.subject for event in found]
            assert subjects == list(range(subjects[0], subjects[0] + len(subjects))) if subjects else True
            assert not subjects or subjects[0] == last + 1 + batch.missed
            last = subjects[-1] if subjects else last + batch.missed
            read += len(subjects)
            missed += batch.missed
    assert read + missed == last + 1 >= 1000
    writer.stdout.close()
    driver.close()


# --- of a session -----------------------------------------------------------------------------------------------------


@hocket.remote
def double(x: int) -> int:
    return 2 * x


@hocket.remote
def pause() -> None:
    end = time.perf_counter() + layout.SHORT_SECONDS
    while time.perf_counter() < end:
        pass


@hocket.remote(max_retries=1)
def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@hocket.remote
class Relay:
    def ask(self, other: object, number: int) -> int:
        return hocket.get(other.answer.remote(number))  # type: ignore[attr-defined,no-any-return]

    def answer(self, number: int) -> int:
        if number < 0:
            raise ValueError(number)
        return number


def read_runs() -> list[tuple[str, str, int]]:
    engine = core_session.get_open_engine()
    batches = engine.parent.guardian.build_reader().read()  # type: ignore[attr-defined]
    return [
        (event.name, "FAILED" if event.state == State.FAILED else "FINISHED", event.attempt)
        for batch in batches
        for event in batch
        if event.kind in layout.RUNS
        for _ in range(event.runs)
    ]


def test_each_run_of_a_session_is_one_event() -> None:
    with hocket.init(num_cpus=2):
        hocket.get([double.remote(number) for number in range(5000)])
        first, second = Relay.remote(), Relay.remote()  # type: ignore[attr-defined]
        hocket.get([first.ask.remote(second, number) for number in range(300)])
        with pytest.raises(ValueError, match="-1"):
            hocket.get(first.ask.remote(second, -1))
        with pytest.raises(hocket.exceptions.WorkerCrashedError):
            hocket.get(die.remote())
        found = read_runs()
    assert found.count(("double", "FINISHED", 0)) == 5000
    assert found.count(("Relay.ask", "FINISHED", 0)) == found.count(("Relay.answer", "FINISHED", 0)) == 300
    assert found.count(("Relay.ask", "FAILED", 0)) == found.count(("Relay.answer", "FAILED", 0)) == 1
    assert found.count(("Relay.__init__", "FINISHED", 0)) == 2
    assert [run for run in found if run[0] == "die"] == [("die", "FAILED", 0), ("die", "FAILED", 1)]
    assert len(found) == 5000 + 2 * 301 + 2 + 2


def test_calls_in_threads_and_coroutines_are_events() -> None:
    class Busy:
        async def wait(self) -> int:
            return 1

    class Threaded:
        def work(self) -> int:
            return 1

    with hocket.init(num_cpus=2):
        busy = hocket.remote(Busy).remote()
        threaded = hocket.remote(Threaded).options(max_concurrency=4).remote()
        hocket.get([busy.wait.remote() for _ in range(200)] + [threaded.work.remote() for _ in range(200)])
        found = read_runs()
    assert found.count(("Busy.wait", "FINISHED", 0)) == found.count(("Threaded.work", "FINISHED", 0)) == 200


def test_overwritten_events_are_counted_on_the_timeline() -> None:
    with hocket.init(num_cpus=1):
        hocket.get([pause.remote() for _ in range(layout.RECORDS + 1000)])
        found = hocket.timeline() or []
    (mark,) = [event for event in found if event["ph"] == "i"]
    shown = sum(event["name"] == "pause" for event in found)
    assert mark["args"]["count"] + shown == layout.RECORDS + 1000
    assert mark["name"] == f"{mark['args']['count']} earlier events were overwritten"


def test_short_runs_share_events_and_all_are_counted() -> None:
    total = 20_000
    with hocket.init(num_cpus=1):
        hocket.get([double.remote(number) for number in range(total)])
        found = [event for event in hocket.timeline() or [] if event["ph"] == "X" and "double" in event["name"]]
    singles = [event for event in found if event["name"] == "double"]
    merged = [event for event in found if event["name"] != "double"]
    assert len(singles) >= layout.SINGLES
    assert merged
    assert len(singles) + sum(event["args"]["count"] for event in merged) == total
    assert len(found) < total / 2
    assert all(event["name"] == f"{event['args']['count']} runs of double" for event in merged)


def test_slot_size_is_whole_pages() -> None:
    assert layout.SLOT_BYTES % mmap.PAGESIZE == 0
    assert layout.RECORDS_AT % mmap.PAGESIZE == 0


def read_notes(category: str) -> list[dict[str, Any]]:
    """Return what the timeline has of a category."""
    return [event for event in hocket.timeline() or [] if event["cat"] == category]


def test_deaths_are_noted_and_wanted_ends_are_not() -> None:
    with hocket.init(num_cpus=1):
        actor = Relay.remote()  # type: ignore[attr-defined]
        hocket.get(actor.answer.remote(1))
        hocket.kill(actor)
        hocket.get(double.remote(1))
        known = {worker.pid for worker in state.list_workers() if worker.is_alive}
        hocket.wait([die.remote()])
        deaths = read_notes("death")
    assert [one["name"] for one in deaths] == ["death of a worker"] * 2, "the task was tried twice"
    assert deaths[0]["args"]["amount"] in known


def test_spilled_values_are_noted(tmp_path: Path) -> None:
    with hocket.init(num_cpus=1, object_store_memory=80 << 20, object_spilling_directory=str(tmp_path)):
        hocket.get(double.remote(1))
        kept = [hocket.put(np.zeros(30 << 20, np.uint8)) for _ in range(4)]
        spills = read_notes("spill")
        assert len(spills) >= 2
        assert all(one["args"]["amount"] >= 30 << 20 for one in spills)
        assert len(kept) == 4


def test_notes_without_an_engine_go_nowhere() -> None:
    events.note(Kind.STEP, "step", 0.0, 1.0)
