"""Transactions on a server's memory: processes are killed at each point of one, and the next who comes puts it
right."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hocket import ps
from hocket.ps import errors
from hocket.ps.stores import dense, memory, records, rows, store

POINTS = ["begun", "prepared", "committed", "finished"]


class Server:
    """A server's memory with a dense variable, a table of row numbers and one of hashed ids."""

    def __init__(self, timeout_s: float = 20.0) -> None:
        self.kept = [memory.create(store.count_book_bytes(), "book")]
        store.build_book(self.kept[0])
        self.timeout_s = timeout_s
        self.store = self.open()
        rule = ps.Adagrad(lr=0.5)
        spec = records.DenseSpec(0, 0, "dense", (3, 2), 0, "float32", rule, records.NO_MEMORY)
        made = self._make(dense.plan(spec.shape, spec.dtype, len(rule.slots)).nbytes)
        spec = records.DenseSpec(0, 0, "dense", (3, 2), 0, "float32", rule, made)
        store.build_shard(spec, np.ones((3, 2)))
        self.store.add(spec)
        for number, is_hashed in ((1, False), (2, True)):
            table = records.TableSpec(
                number,
                0,
                f"table{number}",
                20,
                2,
                "float32",
                rule,
                ps.Uniform(),
                is_hashed,
                1,
                0,
                None,
                records.NO_MEMORY,
            )
            table = records.replace_memory(table, self._make(rows.plan(table).nbytes), None)
            store.build_shard(table)
            self.store.add(table)

    def _make(self, nbytes: int) -> memory.MemoryRef:
        self.kept.append(memory.create(nbytes, "shard"))
        return self.kept[-1].ref

    def open(self) -> store.Store:
        return store.Store(self.kept[0].ref, 0, self.timeout_s)

    def look(self) -> dict[str, Any]:
        """Return all numbers, after what a dead process left was put right."""
        with self.store.locked():
            state = self.store.get_shard(0).export()
        return {
            "version": self.store.version,
            "dense": self.store.read(0).tolist(),
            "state": {name: np.array(value).tolist() for name, value in state.items()},
            "rows": self.store.read_rows(1, np.arange(20)).tolist(),
            "hashed": self.store.read_rows(2, np.array([5, 2**40, -7])).tolist(),
        }

    def close(self) -> None:
        for one in self.kept:
            one.close()


@pytest.fixture
def server():
    made = Server()
    yield made
    made.close()


def make_push(factor: float = 1.0) -> list[records.Operation]:
    gradient = np.full((3, 2), factor, "float32")
    return [
        records.Operation(0, "gradient", gradient),
        records.Operation(1, "rows_gradient", gradient[:2], np.array([3, 17])),
        records.Operation(2, "rows_gradient", gradient, np.array([5, 2**40, -7])),
    ]


def run_in_child(body: Callable[[], None]) -> int:
    """Run something in a fork; return how it ended."""
    child = os.fork()
    if not child:
        try:
            body()
        finally:
            os._exit(7)
    return os.waitpid(child, 0)[1]


def kill_at(server: Server, point: str, occurrence: int, ticket: records.Ticket | None, operations: Any) -> None:
    """Have a child push, and die at a point."""

    def body() -> None:
        mine = server.open()
        left = occurrence

        def hook(name: str) -> None:
            nonlocal left
            if name == point:
                if not left:
                    os.kill(os.getpid(), signal.SIGKILL)
                left -= 1

        mine.on_point = hook
        mine.push(ticket, operations)

    assert os.WTERMSIG(run_in_child(body)) == signal.SIGKILL, "the child got past the point"


CASES = [(point, which) for point in POINTS for which in range(3 if point in ("begun", "prepared") else 1)]


@pytest.mark.parametrize(("point", "occurrence"), CASES)
def test_a_process_dies_in_a_push(server, point, occurrence):
    """All or nothing, and once: a death at each point, for dense and table operations."""
    server.store.push(records.Ticket(0, 1, 0), make_push())
    before = server.look()
    twin = Server()
    twin.store.push(records.Ticket(0, 1, 0), make_push())
    twin.look()
    twin.store.push(records.Ticket(0, 2, 0), make_push(2.0))
    after = twin.look()
    twin.close()
    assert before != after
    kill_at(server, point, occurrence, records.Ticket(0, 2, 0), make_push(2.0))
    recoveries = server.store.recoveries
    is_committed = point in ("committed", "finished")
    assert server.look() == (after if is_committed else before)
    assert server.store.recoveries == recoveries + 1
    assert server.store.push(records.Ticket(0, 2, 0), make_push(2.0)) is not is_committed  # sent again by its successor
    assert server.look() == after
    assert server.store.version == 2
    assert server.store.count_applied(0, 2) == 1


@pytest.mark.parametrize("kind", ["assign", "add", "scatter_add", "rows_assign", "rows_add"])
@pytest.mark.parametrize("point", POINTS)
def test_a_process_dies_in_each_operation(server, kind, point):
    value = np.full((3, 2), 4.0, "float32")
    if kind.startswith("rows"):
        operation = records.Operation(2, kind, value, np.array([5, 9, 11]))
    else:
        operation = records.Operation(0, kind, value, np.array([0, 0, 2]))
    before = server.look()
    kill_at(server, point, 0, None, [operation])
    twin = Server()
    twin.store.push(None, [operation])
    assert server.look() == (twin.look() if point in ("committed", "finished") else before)
    twin.close()


def test_deaths_one_after_the_other(server):
    """One dies while it puts right what another left."""
    kill_at(server, "prepared", 2, records.Ticket(0, 1, 0), make_push())
    kill_at(server, "prepared", 0, records.Ticket(1, 1, 0), make_push())
    kill_at(server, "committed", 0, records.Ticket(2, 1, 0), make_push())
    kill_at(server, "finished", 0, records.Ticket(3, 1, 0), make_push())  # of the push before it, which it finishes
    server.look()
    assert server.store.version == 1
    assert server.store.recoveries == 4
    assert [server.store.count_applied(holder, 1) for holder in range(4)] == [0, 0, 1, 0]


def test_an_error_in_a_push_undoes_all_of_it(server):
    before = server.look()
    too_many = records.Operation(2, "rows_add", np.ones((30, 2), "float32"), np.arange(100, 130))
    with pytest.raises(
        errors.CapacityError, match=r"has room for 20 ids on server 0 and holds .*received 30 new ones.*larger capacity"
    ):
        server.store.push(records.Ticket(0, 1, 0), [*make_push()[:2], too_many])
    assert server.look() == before
    assert server.store.push(records.Ticket(0, 1, 0), make_push())
    assert not server.store.push(records.Ticket(0, 1, 0), make_push())


def test_tickets(server):
    """A2 #15: what tells a push from others."""
    add = [records.Operation(0, "add", np.ones((3, 2), "float32"))]
    answers = [
        server.store.push(records.Ticket(*ticket), add)
        for ticket in [(0, 1, 0), (0, 1, 0), (0, 1, 1), (0, 1, 0), (1, 1, 0), (0, 2, 0), (0, 1, 5), (0, 2, 0)]
    ]
    assert answers == [True, False, True, False, True, True, False, False]
    assert server.store.version == 4
    assert server.store.read(0)[0, 0] == 5.0


@pytest.mark.parametrize("threads", [4])
def test_threads_of_one_process_share_a_store(server, threads):
    """A4 #54."""
    one = [records.Operation(0, "add", np.ones((3, 2), "float32"))]

    def run() -> None:
        for _ in range(200):
            server.store.push(None, one)

    running = [threading.Thread(target=run) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert server.store.read(0).tolist() == [[801.0, 801.0]] * 3


def test_a_reader_never_sees_half_an_update(server):
    """A child writes arrays of one number, and is killed in the middle again and again."""
    child = os.fork()
    if not child:
        try:
            mine = server.open()
            for number in range(10**9):
                mine.push(None, [records.Operation(0, "assign", np.full((3, 2), float(number), "float32"))])
        finally:
            os._exit(7)
    for _ in range(2000):
        assert len(set(server.store.read(0).reshape(-1).tolist())) == 1
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    last = server.store.read(0)[0, 0]
    server.look()
    assert server.store.read(0)[0, 0] in (last, last + 1)


def test_a_stopped_holder_is_waited_for_and_named():
    server = Server(timeout_s=0.3)
    child = os.fork()
    if not child:
        try:
            mine = server.open()
            mine.on_point = lambda name: os.kill(os.getpid(), signal.SIGSTOP)
            mine.push(None, [records.Operation(0, "add", np.ones((3, 2), "float32"))])
        finally:
            os._exit(7)
    os.waitpid(child, os.WUNTRACED)
    with pytest.raises(errors.PushTimeoutError, match=r"server 0 has been locked by another process for 0 s.*SIGCONT"):
        server.store.push(None, [records.Operation(0, "add", np.ones((3, 2), "float32"))])
    assert server.store.read(0)[0, 0] == 1.0  # reading does not wait
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert server.store.push(None, [records.Operation(0, "add", np.ones((3, 2), "float32"))])
    assert server.look()["dense"][0][0] == 2.0
    server.close()


def test_memory_whose_keeper_is_gone():
    kept = memory.create(store.count_book_bytes(), "book")
    store.build_book(kept)
    kept.close()
    with pytest.raises((errors.ServerLostError, OSError), match=r"is gone|is another file here"):
        store.Store(kept.ref, 0, 1.0)
    assert not memory.is_reachable(kept.ref)
