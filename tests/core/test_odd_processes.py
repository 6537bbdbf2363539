"""Drivers and workers whose surroundings are not as usual: blocked signals, lost sockets, closed loops, sessions of
yesterday."""

from __future__ import annotations

import asyncio
import os
import pathlib
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.exceptions import ActorDiedError, ActorUnavailableError, ObjectLostError, TaskError, WorkerCrashedError
from hocket.testing.suites.programs import wait_until

pytestmark = pytest.mark.about_local("what its processes inherit and lose")

SECONDS = 40
"""A wait that does not end is a failure."""


@pytest.fixture
def blocked_signals() -> Iterator[None]:
    usual = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD, signal.SIGINT])
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, usual)


@pytest.mark.usefixtures("blocked_signals")
def test_deaths_are_told_where_the_driver_blocks_the_signal_of_deaths() -> None:
    with hocket.init(num_cpus=1), pytest.raises(WorkerCrashedError, match="exited with code 3"):
        hocket.get(hocket.remote(max_retries=0)(os._exit).remote(3), timeout=SECONDS)


def ask() -> str:
    return input("Name: ")


def read_input() -> str:
    return sys.stdin.read()


def test_input_of_a_worker_is_empty(session: hocket.SessionContext) -> None:
    assert hocket.get(hocket.remote(read_input).remote(), timeout=SECONDS) == ""
    with pytest.raises(EOFError, match=r"input\('Name: '\) was called in a worker.* Call input\(\) in the driver"):
        hocket.get(hocket.remote(ask).remote(), timeout=SECONDS)


class Careless:
    def lose_everything(self) -> None:
        os.closerange(3, 1000)

    def lose_everything_later(self, delay_s: float) -> None:
        threading.Timer(delay_s, os.closerange, (3, 1000)).start()

    def leave(self, code: int) -> None:
        sys.exit(code)

    def spoil_stdout(self) -> None:
        class Spoilt:
            def write(self, text: str) -> int:
                return len(text)

            def flush(self) -> None:
                raise RuntimeError("no flush")

        sys.stdout = Spoilt()

    def get_pid(self) -> int:
        return os.getpid()


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 3])
def test_process_that_has_lost_its_socket_is_ended(size: int) -> None:
    with hocket.init(num_cpus=1):
        actor = hocket.remote(max_concurrency=size)(Careless).remote()
        pid = hocket.get(actor.get_pid.remote(), timeout=SECONDS)
        actor.lose_everything.remote()
        with pytest.raises(ActorDiedError, match=f"pid {pid}"):
            hocket.get([actor.get_pid.remote() for _ in range(1000)], timeout=SECONDS)


@pytest.mark.slow
def test_idle_process_that_loses_its_socket_is_built_again() -> None:
    with hocket.init(num_cpus=1):
        actor = hocket.remote(max_restarts=1)(Careless).remote()
        first = hocket.get(actor.get_pid.remote(), timeout=SECONDS)
        hocket.get(actor.lose_everything_later.remote(0.01), timeout=SECONDS)
        pid = first
        while pid == first:
            try:
                pid = hocket.get(actor.get_pid.remote(), timeout=SECONDS)
            except ActorUnavailableError:  # it was under way
                continue
        assert pid > 0


@pytest.mark.parametrize(("code", "told"), [(2**31, 0), (2**40 + 7, 7), (-1, 255)])
@pytest.mark.parametrize("size", [1, 2])
def test_exit_codes_are_one_byte(session: hocket.SessionContext, code: int, told: int, size: int) -> None:
    actor = hocket.remote(max_concurrency=size)(Careless).remote()
    with pytest.raises(ActorDiedError, match=f"exited with code {told}"):
        hocket.get(actor.leave.remote(code), timeout=SECONDS)


class AsyncCareless:
    async def leave(self, code: int) -> None:
        sys.exit(code)


@pytest.mark.parametrize("kind", [Careless, AsyncCareless])
def test_actor_that_exits_in_peace_is_not_built_again(session: hocket.SessionContext, kind: Any) -> None:
    actor = hocket.remote(max_restarts=2, max_task_retries=2)(kind).remote()
    with pytest.raises(ActorDiedError, match="it ended itself"):
        hocket.get(actor.leave.remote(0), timeout=SECONDS)


def test_actor_whose_stdout_cannot_be_flushed_goes_on(session: hocket.SessionContext) -> None:
    actor = hocket.remote(Careless).remote()
    hocket.get(actor.spoil_stdout.remote(), timeout=SECONDS)
    assert hocket.get(actor.get_pid.remote(), timeout=SECONDS) > 0


def test_paths_that_are_no_text_are_sent_as_text(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.setattr(sys, "path", [tmp_path, None, *sys.path])
    with hocket.init(num_cpus=1):
        found = hocket.get(hocket.remote(lambda: sys.path).remote(), timeout=SECONDS)
    assert str(tmp_path) in found


def test_event_loop_that_is_closed_breaks_no_other_wait(session: hocket.SessionContext) -> None:
    @hocket.remote
    def wait_for(event: Any) -> int:
        return int(hocket.get(event.wait.remote()))

    class Event:
        def __init__(self) -> None:
            self.event = asyncio.Event()

        async def wait(self) -> int:
            await self.event.wait()
            return 1

        async def set(self) -> None:
            self.event.set()

    event = hocket.remote(Event).remote()
    ref = wait_for.remote(event)
    loop = asyncio.new_event_loop()

    async def begin() -> asyncio.Future[int]:
        future: asyncio.Future[int] = ref.as_future()
        return future

    future = loop.run_until_complete(begin())
    loop.close()
    hocket.get(event.set.remote(), timeout=SECONDS)
    assert hocket.get(ref, timeout=SECONDS) == 1
    assert not future.done()


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit, BaseException, ValueError])
def test_callback_of_a_future_may_raise_anything(
    session: hocket.SessionContext, capsys: pytest.CaptureFixture[str], error: type[BaseException]
) -> None:
    def fail(_: object) -> None:
        raise error("raised by a callback")

    square = hocket.remote(lambda x: x * x)
    square.remote(1).future().add_done_callback(fail)
    assert [square.remote(x).future().result(timeout=SECONDS) for x in range(3)] == [0, 1, 4]
    assert hocket.get(square.remote(3), timeout=SECONDS) == 9
    shown = ""

    def is_shown() -> bool:
        nonlocal shown
        shown += capsys.readouterr().err
        return "raised by a callback" in shown or error is ValueError  # which `concurrent.futures` logs

    wait_until(is_shown)


def test_callback_of_a_future_may_close_the_session() -> None:
    hocket.init(num_cpus=1)
    closed = threading.Event()

    def close(_: object) -> None:
        hocket.shutdown()
        closed.set()

    hocket.remote(os.getpid).remote().future().add_done_callback(close)
    assert closed.wait(SECONDS)
    assert not hocket.is_initialized()


def test_shortest_switch_interval(session: hocket.SessionContext) -> None:
    usual = sys.getswitchinterval()
    square = hocket.remote(lambda x: x * x)
    sys.setswitchinterval(1e-7)
    try:
        futures = [square.remote(x).future() for x in range(200)]
        assert [future.result(timeout=SECONDS) for future in futures] == [x * x for x in range(200)]
    finally:
        sys.setswitchinterval(usual)


class Fragile:
    """Cannot be loaded as long as a file is not there."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path

    def __setstate__(self, found: dict[str, Any]) -> None:
        self.__dict__.update(found)
        if not self.path.exists():
            raise OSError("the network folder is away")


@pytest.mark.parametrize("size", [1, 100_000])
def test_function_that_could_not_be_loaded_is_loaded_again(
    session: hocket.SessionContext, tmp_path: pathlib.Path, size: int
) -> None:
    fragile, table = Fragile(tmp_path / "here"), np.arange(size)

    @hocket.remote(max_retries=0)
    def use() -> tuple[str, int]:
        return fragile.path.name, int(table[-1])

    for _ in range(3):
        with pytest.raises(TaskError, match="the network folder is away"):
            hocket.get(use.remote(), timeout=SECONDS)
    (tmp_path / "here").touch()
    assert hocket.get([use.remote() for _ in range(3)], timeout=SECONDS) == [("here", size - 1)] * 3


class Leaving:
    """Says goodbye for as long as a file is not there."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder

    def get_pid(self) -> int:
        return os.getpid()

    def note(self, number: int) -> None:
        (self.folder / f"began-{number}").touch()
        wait_until((self.folder / "leaving").exists)

    def leave(self) -> None:
        hocket.actor.exit_actor()

    def __ray_shutdown__(self) -> None:
        (self.folder / "leaving").touch()
        wait_until((self.folder / "go").exists)


@pytest.mark.parametrize("options", [{"max_concurrency": 2}, {"concurrency_groups": {"side": 1}}])
def test_what_had_not_begun_when_an_actor_left_never_begins(
    session: hocket.SessionContext, tmp_path: pathlib.Path, options: dict[str, Any]
) -> None:
    leaving = hocket.remote(**options)(Leaving).remote(tmp_path)
    pid = hocket.get(leaving.get_pid.remote())
    group = "side" if "concurrency_groups" in options else None
    first = leaving.note.options(concurrency_group=group).remote(0)
    wait_until((tmp_path / "began-0").exists)
    end = leaving.leave.remote()
    others = [leaving.note.options(concurrency_group=group).remote(number) for number in range(1, 20)]
    for ref in [first, end, *others]:
        with pytest.raises(ActorDiedError, match="ended itself"):
            hocket.get(ref, timeout=SECONDS)
    (tmp_path / "go").touch()
    wait_until(lambda: not pathlib.Path(f"/proc/{pid}").exists())
    assert sorted(path.name for path in tmp_path.glob("began-*")) == ["began-0"]


def test_time_out_of_centuries_is_none(session: hocket.SessionContext) -> None:
    ref = hocket.remote(os.getpid).remote()
    assert hocket.wait([ref], timeout=1e300) == ([ref], [])
    assert hocket.get(ref, timeout=9_223_372_036) > 0


def test_handles_of_a_closed_session_stand_for_nothing_in_the_next() -> None:
    with hocket.init(num_cpus=1):
        old, old_actor = hocket.put("old"), hocket.remote(Careless).remote()
    with hocket.init(num_cpus=1):
        new, new_actor = hocket.put("new"), hocket.remote(Careless).remote()
        pid = hocket.get(new_actor.get_pid.remote(), timeout=SECONDS)
        echo = hocket.remote(lambda x: x)
        uses = [
            lambda: hocket.get(old),
            lambda: echo.remote(old),
            lambda: echo.remote([old]),
            lambda: hocket.put({"a": old}),
            lambda: hocket.wait([old]),
            lambda: hocket.cancel(old),
            lambda: echo.remote(old_actor),
            lambda: hocket.kill(old_actor),
        ]
        for use in uses:
            with pytest.raises(ObjectLostError, match="belongs to a session that is closed"):
                use()
        assert old != new
        assert hocket.get(new) == "new"
        assert hocket.get(new_actor.get_pid.remote(), timeout=SECONDS) == pid


@pytest.mark.about_local("its ids, which begin anew in each session")
def test_what_a_program_has_pickled_is_of_its_session() -> None:
    class Named:
        def get(self) -> str:
            return "mine"

    with hocket.init(num_cpus=1):
        ref, actor = hocket.put("mine"), hocket.remote(Named).remote()
        pickled = pickle.dumps(ref), hocket.cloudpickle.dumps(actor)
        loaded: Any = pickle.loads(pickled[0])
        same: Any = pickle.loads(pickled[1])
        assert (loaded, hocket.get(loaded), hocket.get(same.get.remote())) == (ref, "mine", "mine")
        in_a_task = hocket.remote(lambda data: hocket.get(pickle.loads(data)))
        assert hocket.get(in_a_task.remote(pickled[0])) == "mine"
    with hocket.init(num_cpus=1):
        others = [hocket.put(f"other {number}") for number in range(5)]
        actors = [hocket.remote(Named).remote() for _ in range(2)]
        loaded, same = pickle.loads(pickled[0]), pickle.loads(pickled[1])
        assert loaded not in others
        assert loaded.hex() == ref.hex()
        uses: list[Callable[[], object]] = [
            lambda: hocket.get(loaded),
            lambda: hocket.get([others[0], loaded], timeout=5),
            lambda: hocket.wait([loaded]),
            lambda: hocket.remote(lambda value: value).remote(loaded),
            lambda: hocket.put([loaded]),
            lambda: loaded.future().result(timeout=5),
            lambda: hocket.get(pickle.loads(pickle.dumps(loaded))),
            lambda: hocket.cancel(loaded),
        ]
        for use in uses:
            with pytest.raises(ObjectLostError, match="belongs to a session that is closed"):
                use()
        in_a_task = hocket.remote(lambda data: hocket.get(pickle.loads(data)))
        waits_in_a_task = hocket.remote(lambda data: hocket.wait([pickle.loads(data)]))
        for task in (in_a_task, waits_in_a_task):
            with pytest.raises(ObjectLostError, match="belongs to a session that is closed"):
                hocket.get(task.remote(pickled[0]))
        for call in (same.get.remote, lambda: hocket.kill(same)):
            with pytest.raises(hocket.exceptions.HocketError, match=r"(?i)session that (was|is) (shut down|closed)"):
                call()
        assert hocket.get([one.get.remote() for one in actors]) == ["mine", "mine"]
