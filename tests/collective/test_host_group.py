"""Collectives of one host on numpy arrays, in real processes that are stopped and killed."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent import futures
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.collective import errors, host_group, peer_monitor, rendezvous, segment
from hocket.engine import stack_questions

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.about_local("memory that the processes of one machine share"),
    pytest.mark.usefixtures("session"),
]

Group = host_group.HostGroup
Body = Callable[[Group], Any]


class Folder:
    """A folder as a store."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, key: str, text: str) -> None:
        file = self._path / key.replace("/", "-")
        file.with_suffix(f".{os.getpid()}").write_text(text)
        file.with_suffix(f".{os.getpid()}").rename(file)

    def read(self, key: str) -> str:
        file = self._path / key.replace("/", "-")
        while not file.exists():
            time.sleep(0.001)
        return file.read_text()


def run_rank(body: Body, path: Path, rank: int, size: int, timeout_s: float) -> Any:
    group = rendezvous.join(Folder(path), rank, range(size), timeout_s=timeout_s)
    try:
        return body(group)
    finally:
        group.close()


def start(body: Body, size: int, folder: Path, timeout_s: float = 30.0) -> list[Any]:
    path = folder / os.urandom(4).hex()
    path.mkdir()
    task = hocket.remote(num_cpus=0.25, max_retries=0)(run_rank)
    return [task.remote(body, path, rank, size, timeout_s) for rank in range(size)]


def run(body: Body, size: int, folder: Path, timeout_s: float = 30.0) -> list[Any]:
    found: list[Any] = hocket.get(start(body, size, folder, timeout_s))
    return found


def test_nobody_burns_a_core_while_waiting(tmp_path: Path) -> None:
    def body(group: Group) -> float:
        if group.rank == 1:
            sender = group.find_sender(0)  # waits in the same way
            mine = np.empty(1, np.uint8)
            group.finish(group.messages.receive(mine, sender, 0), sender)
        before = time.process_time()
        if group.rank == 0:
            deadline = time.monotonic() + 1.0
            while time.monotonic() < deadline:
                time.sleep(0.01)
            group.finish(group.messages.send(np.zeros(1, np.uint8), 1, 0), 1)
        group.barrier()
        return time.process_time() - before

    assert max(run(body, 2, tmp_path)) < 0.5


def test_killed_rank_is_named(tmp_path: Path) -> None:
    def body(group: Group) -> str:
        group.barrier()
        if group.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(errors.RankDiedError) as caught:
            group.all_reduce(np.ones(3))
        with pytest.raises(errors.RankDiedError):
            group.barrier()
        return str(caught.value)

    refs = start(body, 3, tmp_path)
    with pytest.raises(hocket.exceptions.WorkerCrashedError, match="SIGKILL"):
        hocket.get(refs[1])
    for rank in (0, 2):
        text = hocket.get(refs[rank])
        assert text.startswith("Rank 1 (pid ")
        assert f"died while rank {rank} waited for it in all_reduce(24 bytes of f64, sum)" in text


def test_stopped_rank_is_told_of(tmp_path: Path) -> None:
    def body(group: Group) -> str:
        pid = group._rounds.memory.words[segment.find_header(1) + segment.PID]
        group.barrier()
        if group.rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
            return ""
        with pytest.raises(errors.CollectiveTimeoutError) as caught:
            group.all_reduce(np.ones(3))
        os.kill(pid, signal.SIGCONT)
        return str(caught.value)

    text = run(body, 2, tmp_path, timeout_s=0.5)[0]
    assert "is stopped, for example by SIGSTOP or Ctrl-Z. `kill -CONT" in text
    assert "test_host_group.py" in text, "the stack of the one that waits"


def test_an_interrupted_rank_leaves_the_group(tmp_path: Path) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def body(group: Group) -> str:
        if group.rank == 1:
            Folder(tmp_path).read("interrupted")
            group.all_reduce(np.ones(3))  # what rank 0 had for it is there
            with pytest.raises(errors.RankDiedError) as caught:
                group.barrier()
            return str(caught.value)
        handler = signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(KeyboardInterrupt):
            group.all_reduce(np.ones(3))
        signal.signal(signal.SIGALRM, handler)
        Folder(tmp_path).write("interrupted", "")
        with pytest.raises(errors.CollectiveError) as left:
            group.barrier()
        return str(left.value)

    mine, theirs = run(body, 2, tmp_path)
    assert "all_reduce(24 bytes of f64, sum) was interrupted by KeyboardInterrupt. Make a new group" in mine
    assert "has left the group, but rank 1 waits for it in barrier" in theirs


def test_a_stall_is_reported_and_waited_through(tmp_path: Path) -> None:
    def body(group: Group) -> list[str]:
        import logging

        peer_monitor.STALL_SECONDS = 0.3
        told: list[str] = []

        class Handler(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                told.append(record.getMessage())
                told_path.touch()

        logging.getLogger("hocket.collective").addHandler(Handler())
        while group.rank == 1 and not told_path.exists():  # the other one has reported
            time.sleep(0.01)
        value = np.ones(2)
        group.all_reduce(value)
        return [*told, str(value.tolist())]

    told_path = tmp_path / "told"
    report, result = run(body, 2, tmp_path)[0]
    assert result == "[2.0, 2.0]"
    assert "Rank 0 has waited for 0 s in all_reduce(16 bytes of f64, sum) for rank 1" in report
    assert "has not arrived; its last operation is nothing" in report


def test_messages_of_another_size_are_refused(tmp_path: Path) -> None:
    def body(group: Group) -> str:
        if group.rank == 0:
            group.finish(group.messages.send(np.zeros(8, np.uint8), 1, 3), 1)
            group.barrier()
            return ""
        group.find_sender(3)
        with pytest.raises(errors.CollectiveMismatchError) as caught:
            group.messages.receive(np.zeros(9, np.uint8), 0, 3)
        group.barrier()
        return str(caught.value)

    text = run(body, 2, tmp_path)[1]
    assert "receives 9 bytes with tag 3 from rank 0, which sent 8 bytes with that tag" in text


def test_a_message_of_another_size_waits_for_an_array_of_its_size(tmp_path: Path) -> None:
    """Whoever asked for it wrongly hears of it, and not whoever moves the messages."""

    def body(group: Group) -> list[Any]:
        if group.rank == 0:
            group.barrier()
            group.finish(group.messages.send(np.arange(8, dtype=np.uint8), 1, 3), 1)
            group.finish(group.messages.send(np.arange(2, dtype=np.uint8), 1, 4), 1)
            group.barrier()
            return []
        wrong = group.messages.receive(np.zeros(9, np.uint8), 0, 3)
        other = np.zeros(2, np.uint8)
        group.barrier()
        group.finish(group.messages.receive(other, 0, 4), 0)
        with pytest.raises(errors.CollectiveMismatchError, match="receives 9 bytes with tag 3 from rank 0"):
            group.finish(wrong, 0)
        right = np.zeros(8, np.uint8)
        group.finish(group.messages.receive(right, 0, 3), 0)
        group.barrier()
        return [other.tolist(), right.tolist()]

    assert run(body, 2, tmp_path)[1] == [[0, 1], list(range(8))]


def test_ranks_that_first_send_and_then_receive_do_not_wait_for_each_other(tmp_path: Path) -> None:
    """Of messages that are longer than what can be on its way, in a ring and each to each."""
    count = 300_000

    def body(group: Group) -> list[Any]:
        found = []
        for steps in [(1,), (1, 2)]:
            for step in steps:
                other = (group.rank + step) % 3
                group.finish(group.messages.send(np.full(count, 3 * group.rank + other, np.uint8), other, 0), other)
            for step in steps:
                other = (group.rank - step) % 3
                got = np.zeros(count, np.uint8)
                group.finish(group.messages.receive(got, other, 0), other)
                assert (got == got[0]).all()
                found.append(int(got[0]) - 3 * other - group.rank)
        return found

    assert run(body, 3, tmp_path) == [[0, 0, 0]] * 3


def test_threads_of_one_rank_send_and_receive_at_once(tmp_path: Path) -> None:
    count, size = 20, 300_000  # more than a ring holds, so that messages are moved in parts

    def body(group: Group) -> list[Any]:
        other = 1 - group.rank

        def send(tag: int) -> None:
            for number in range(count):
                given = np.full(size if number % 10 == 0 else 50, number, np.uint8)
                group.finish(group.messages.send(given, other, tag), other)

        def receive(tag: int) -> list[bool]:
            found = []
            for number in range(count):
                taken = np.empty(size if number % 10 == 0 else 50, np.uint8)
                group.finish(group.messages.receive(taken, other, tag), other)
                found.append(bool((taken == number).all()))
            return found

        with futures.ThreadPoolExecutor(6) as pool:
            sent = [pool.submit(send, tag) for tag in range(3)]
            received = [pool.submit(receive, tag) for tag in range(3)]
            for one in sent:
                one.result()
            return [all(one.result()) and len(one.result()) == count for one in received]

    assert run(body, 2, tmp_path) == [[True] * 3] * 2


def test_a_thread_that_has_sent_does_not_wait_for_one_that_receives(tmp_path: Path) -> None:
    """The other rank answers the first thread after it has heard of the second one twice."""
    size = 300_000  # more than a ring holds

    def body(group: Group) -> int:
        taken = np.empty(1, np.uint8)
        if group.rank:
            for _ in range(2):
                group.finish(group.messages.receive(np.empty(size, np.uint8), 0, 1), 0)
            group.finish(group.messages.send(np.ones(1, np.uint8), 0, 2), 0)
            return 1
        waiting = threading.Thread(target=lambda: group.finish(group.messages.receive(taken, 1, 2), 1))
        waiting.start()
        for _ in range(2):
            group.finish(group.messages.send(np.zeros(size, np.uint8), 1, 1), 1)
        waiting.join()
        return int(taken[0])

    assert run(body, 2, tmp_path) == [1, 1]


def test_nobody_sends_to_oneself(tmp_path: Path) -> None:
    def body(group: Group) -> str:
        with pytest.raises(ValueError, match="can send to and receive from the other ranks") as caught:
            group.messages.send(np.zeros(8, np.uint8), group.rank, 3)
        return str(caught.value)

    assert "(this is rank 1)" in run(body, 2, tmp_path)[1]


def test_a_closed_group_says_so(tmp_path: Path) -> None:
    def body(group: Group) -> str:
        group.close()
        group.close()
        with pytest.raises(errors.CollectiveError, match="The group is closed"):
            group.barrier()
        return "done"

    assert run(body, 2, tmp_path) == ["done", "done"]


def run_python(seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        pass


def sleep_with_the_lock(seconds: float) -> None:
    """Sleep in C without letting another thread run; a signal ends one sleep of two."""
    for _ in range(2):
        ctypes.PyDLL(None).usleep(int(seconds / 2 * 1e6))


@pytest.mark.parametrize("instead", [run_python, sleep_with_the_lock])
def test_stacks_come_from_python_and_from_c_that_keeps_the_lock(
    tmp_path: Path, instead: Callable[[float], None]
) -> None:
    def body(group: Group) -> str:
        stack_questions.STACK_SECONDS = 0.2
        if group.rank == 1:
            instead(3.0)
        try:
            group.all_reduce(np.ones(2))
        except errors.CollectiveError as error:
            return str(error)
        return ""

    waited, _ = run(body, 2, tmp_path, timeout_s=0.5)
    _, _, of_rank_1 = waited.partition("Rank 1 (pid ")
    assert f"in {instead.__name__}" in of_rank_1
    assert "Rank 0 has waited" in waited


def call_wrongly(group: Group) -> list[str]:
    """Make each mistake that a call can be refused for; return what was said."""
    ones, size = np.ones(8, np.uint8), group.size
    short = [np.ones(7, np.uint8)] * size
    mistakes: list[Callable[[], None]] = [
        lambda: group.all_gather([ones] * (size - 1), ones),
        lambda: group.all_gather(short, ones),
        lambda: group.gather(short, ones, group.rank),
        lambda: group.scatter(ones, short, group.rank),
        lambda: group.all_to_all([ones] * size, short),
        lambda: group.reduce_scatter(ones, short),
        lambda: group.broadcast(ones, size),
        lambda: group.reduce(np.ones(3), -1),
        lambda: group.all_reduce(np.zeros(2, "datetime64[s]")),
        lambda: group.all_reduce([1.0, 2.0]),
    ]
    texts = []
    for mistake in mistakes:
        with pytest.raises((ValueError, TypeError, AttributeError)) as caught:
            mistake()
        texts.append(str(caught.value))
    return texts


def test_a_call_with_wrong_arguments_leaves_the_group_as_it_is(tmp_path: Path) -> None:
    def body(group: Group) -> tuple[list[str], float]:
        texts = call_wrongly(group)
        values = np.ones(3)
        group.all_reduce(values)
        return texts, float(values[0])

    for texts, total in run(body, 2, tmp_path):
        assert total == 2.0
        assert texts[0] == "targets must be 2 parts of 8 elements, one for each rank, but received [8]."
        assert texts[6] == "root must be one of the ranks 0 to 1, but received 2."
        assert "op=SUM does not support datetime64[s]" in texts[8]


def test_a_rank_that_has_ended_is_not_waited_for(tmp_path: Path) -> None:
    def body(group: Group) -> str:
        group.barrier()
        if group.rank == 0:
            group.messages.send(np.arange(8, dtype=np.uint8), 1, 0)
            host_group.end_all()
            Folder(tmp_path).read("seen")
            return ""
        received = np.zeros(8, np.uint8)
        group.finish(group.messages.receive(received, 0, 0), 0)  # what it sent before is there
        assert received.tolist() == list(range(8))
        with pytest.raises(errors.RankDiedError) as caught:
            group.all_reduce(np.ones(3))
        Folder(tmp_path).write("seen", "")
        return str(caught.value)

    text = run(body, 2, tmp_path)[1]
    assert text.startswith("Rank 0 (pid ")
    assert "has ended: its function returned. Rank 1 has waited for it in all_reduce(24 bytes of f64, sum) for " in text
