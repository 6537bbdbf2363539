"""Scopes own what a loop has started: exactly, whatever breaks in, and until it has ended."""

from __future__ import annotations

import hashlib
import importlib
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

import hocket
from hocket import exceptions
from hocket.core import scopes
from hocket.util import state

pytestmark = pytest.mark.needs("processes")


class Stop(Exception):  # noqa: N818 (it is no error)
    """What the alarm's handler raises."""


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.005)


def count_tasks(name: str) -> int:
    return sum(one.name == name and one.state not in ("FINISHED", "FAILED") for one in state.list_tasks(limit=10_000))


@hocket.remote
def nap(folder: Path) -> None:
    try:
        (folder / "begun").touch()
        while True:
            time.sleep(0.01)  # Ray interrupts between two lines, and no sleep
    finally:
        (folder / "cleared").touch()


@hocket.remote
def hash_long(folder: Path) -> None:
    (folder / "begun").touch()
    hashlib.pbkdf2_hmac("sha256", b"", b"", 100_000_000)


@hocket.remote
def get_pid() -> int:
    return os.getpid()


@pytest.mark.about_local("signals are noted while the engine works")
def test_a_scope_has_what_was_started_whenever_an_alarm_comes(session: hocket.SessionContext, tmp_path: Path) -> None:
    blockers = [nap.remote(tmp_path) for _ in range(2)]
    raised = 0

    def raise_stop(*_: object) -> None:
        raise Stop

    before = signal.signal(signal.SIGALRM, raise_stop)
    scope = scopes.Scope()
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        while raised < 100 and len(scope._tasks) < 3000:
            try:
                scope.start(get_pid)
            except Stop:
                raised += 1
    except Stop:
        raised += 1
    finally:
        is_armed = True
        while is_armed:
            try:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, before)  # which handles an alarm that the engine has noted
                is_armed = False
            except Stop:
                raised += 1
    assert count_tasks("get_pid") == len(scope._tasks) > 0
    scope.close()
    while count_tasks("get_pid"):  # `close` waits a moment only
        time.sleep(0.005)
    for blocker in blockers:
        hocket.cancel(blocker)


def test_what_a_thread_starts_meanwhile_ends_too(session: hocket.SessionContext, tmp_path: Path) -> None:
    scope = scopes.Scope()
    begun = threading.Event()
    errors = []

    def start() -> None:
        try:
            while True:
                scope.start(nap, tmp_path)
                begun.set()
        except exceptions.TaskCancelledError as error:
            errors.append(str(error))

    thread = threading.Thread(target=start)
    thread.start()
    begun.wait()
    scope.close()
    thread.join()
    assert errors == ["The loop that started this call has ended."]
    while count_tasks("nap"):
        time.sleep(0.005)


def test_a_task_is_interrupted_before_its_process_is_ended(session: hocket.SessionContext, tmp_path: Path) -> None:
    with scopes.Scope() as scope:
        scope.start(nap, tmp_path)
        wait_for(tmp_path / "begun")
    assert (tmp_path / "cleared").exists()
    (tmp_path / "begun").unlink()
    with scopes.Scope() as scope:
        ref = scope.start(hash_long, tmp_path)
        wait_for(tmp_path / "begun")
    with pytest.raises(exceptions.TaskCancelledError, match="was cancelled"):
        hocket.get(ref, timeout=30)


def test_what_is_released_goes_on(session: hocket.SessionContext) -> None:
    with scopes.Scope() as scope:
        ref = scope.start(get_pid)
        scope.release(ref)
    assert hocket.get(ref) > 0


def test_a_scope_of_a_session_that_has_ended_does_nothing(tmp_path: Path) -> None:
    with hocket.init(num_cpus=1):
        scope = scopes.Scope()
        scope.start(get_pid)
    scope.close()
    with pytest.raises(exceptions.TaskCancelledError, match="The loop that started this call has ended"):
        scope.start(get_pid)


@pytest.mark.about_local("cancelling interrupts, but not in the middle of an import")
def test_an_import_is_not_broken_off(session: hocket.SessionContext, tmp_path: Path) -> None:
    (tmp_path / "slow_to_import.py").write_text(
        f"import time\nopen({str(tmp_path / 'begun')!r}, 'x').close()\ntime.sleep(0.2)\n"  # 'x': it cannot come twice
    )

    @hocket.remote
    def import_it() -> int:
        sys.path.insert(0, str(tmp_path))
        importlib.import_module("slow_to_import")
        time.sleep(3600)
        return 0

    @hocket.remote
    def import_again() -> tuple[int, bool]:
        return os.getpid(), "slow_to_import" in sys.modules

    ref = import_it.remote()
    wait_for(tmp_path / "begun")
    hocket.cancel(ref)
    with pytest.raises(exceptions.TaskCancelledError, match="was cancelled while it ran"):
        hocket.get(ref, timeout=30)
    assert any(found for _, found in hocket.get([import_again.remote() for _ in range(8)]))


@pytest.mark.about_local("cancelling interrupts, and goes on until it has")
def test_an_interrupt_that_is_lost_comes_again(session: hocket.SessionContext, tmp_path: Path) -> None:
    @hocket.remote
    def lose_one() -> None:
        hits: list[int] = []
        before = signal.signal(signal.SIGINT, lambda number, _: hits.append(number))
        (tmp_path / "begun").touch()
        while not hits:
            pass
        signal.signal(signal.SIGINT, before)
        time.sleep(3600)

    ref = lose_one.remote()
    wait_for(tmp_path / "begun")
    hocket.cancel(ref)
    with pytest.raises(exceptions.TaskCancelledError, match="was cancelled while it ran"):
        hocket.get(ref, timeout=30)


@pytest.mark.about_local("cancelling interrupts, also where Python forgets exceptions")
def test_an_interrupt_in_a_finalizer_comes_again(session: hocket.SessionContext, tmp_path: Path) -> None:
    class Slow:
        def __del__(self) -> None:
            (tmp_path / "begun").touch()
            time.sleep(3600)

    @hocket.remote
    def drop_it() -> None:
        Slow()
        (tmp_path / "over").touch()
        time.sleep(3600)

    ref = drop_it.remote()
    wait_for(tmp_path / "begun")
    hocket.cancel(ref)
    with pytest.raises(exceptions.TaskCancelledError, match="was cancelled while it ran"):
        hocket.get(ref, timeout=30)
    assert (tmp_path / "over").exists()
