"""Errors that nobody has fetched are shown once, when the session ends; no others are."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hocket
from hocket import data
from hocket.core import session
from hocket.kernel import tasks as kernel_tasks

ENGINES = ("local", "inprocess")

pytestmark = pytest.mark.timeout(60)


@hocket.remote
def fail(text: str) -> None:
    raise ValueError(text)


@hocket.remote
def follow(value: object) -> object:
    return value


@hocket.remote
def fetch_inside() -> str:
    with pytest.raises(ValueError, match="inner"):
        hocket.get(fail.remote("inner"))
    return "fetched"


@hocket.remote
def count() -> Iterator[int]:
    yield 1
    raise ValueError("generator")


class _Actor:
    def fail(self) -> None:
        raise RuntimeError("in a call")


class _Unborn:
    def __init__(self) -> None:
        raise KeyError("no constructor")

    def call(self) -> None: ...


Actor: Any = hocket.remote(_Actor)
Unborn: Any = hocket.remote(_Unborn)


@hocket.remote(max_retries=0)
def die() -> None:
    os._exit(3)


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, capfd: pytest.CaptureFixture[str]) -> Iterator[str]:
    with hocket.init(num_cpus=2, engine=request.param):
        yield request.param


def end(capfd: pytest.CaptureFixture[str]) -> list[str]:
    """End the session; return what it writes to stderr."""
    hocket.shutdown()
    return capfd.readouterr().err.splitlines()


def test_each_kind_is_shown_once_with_its_count(engine: str, capfd: pytest.CaptureFixture[str]) -> None:
    hocket.wait([fail.remote("dropped")])
    hocket.wait([fail.remote("dropped"), follow.remote(fail.remote("passed on"))], num_returns=2)
    kept = [Actor.remote().fail.remote(), Unborn.remote().call.remote()]
    hocket.wait(kept, num_returns=2)
    first, *kinds = end(capfd)
    assert first == (
        "5 errors of tasks were never fetched: hocket.get() on a task's reference raises its error. "
        "HOCKET_UNFETCHED_ERRORS=off hides this."
    )
    assert kinds[0] == "  fail: ValueError: dropped (2 times)"
    assert sorted(kinds[1:4]) == [
        "  _Actor.fail: RuntimeError: in a call",
        "  _Unborn.__init__: KeyError: 'no constructor'",
        "  fail: ValueError: passed on",
    ]
    assert kinds[-1] == "ValueError: dropped"
    assert end(capfd) == []


def test_a_worker_that_dies_is_shown(capfd: pytest.CaptureFixture[str]) -> None:
    with hocket.init(num_cpus=1, engine="local"):
        hocket.wait([die.remote()])
        first, second, *_ = end(capfd)
    assert first.startswith("The error of a task was never fetched: ")
    assert second.startswith("  die: WorkerCrashedError: The worker (pid ")


def test_what_was_fetched_is_not_shown(engine: str, capfd: pytest.CaptureFixture[str]) -> None:
    async def wait() -> None:
        await fail.remote("awaited")

    with pytest.raises(ValueError, match="plain"):
        hocket.get(fail.remote("plain"))
    with pytest.raises(ValueError, match="passed on"):
        hocket.get(follow.remote(fail.remote("passed on")))
    with pytest.raises(ValueError, match="future"):
        fail.remote("future").future().result()
    with pytest.raises(ValueError, match="awaited"):
        asyncio.run(wait())
    with pytest.raises(RuntimeError, match="in a call"):
        hocket.get(Actor.remote().fail.remote())
    with pytest.raises(hocket.exceptions.ActorDiedError, match="no constructor"):
        hocket.get(Unborn.remote().call.remote())
    with pytest.raises(ValueError, match="generator"):
        hocket.get(list(count.remote()))
    assert hocket.get(fetch_inside.remote()) == "fetched"
    many = [fail.remote(str(number)) for number in range(20)]
    with pytest.raises(ValueError, match=r"\d"):
        hocket.get(many)
    hocket.wait(many, num_returns=20)
    assert end(capfd) == []


def test_what_ends_otherwise_is_not_shown(engine: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    @hocket.remote(max_retries=3, retry_exceptions=True)
    def flaky() -> None:
        with contextlib.suppress(FileExistsError), (tmp_path / "mark").open("x"):
            raise ValueError("once")

    cancelled = follow.options(num_cpus=2).remote(follow.remote(1))
    hocket.cancel(cancelled)
    hocket.wait([cancelled, flaky.remote()], num_returns=2)
    with pytest.raises(ZeroDivisionError):
        data.range(100, override_num_blocks=10).map(lambda row: {"x": row["id"] // 0}).take_all()
    killed = Actor.remote()
    hocket.kill(killed)
    hocket.wait([killed.fail.remote()])
    assert end(capfd) == []


def test_it_can_be_switched_off(
    engine: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOCKET_UNFETCHED_ERRORS", "off")
    hocket.wait([fail.remote("hidden")])
    assert end(capfd) == []


def test_what_is_remembered_is_bounded(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_tasks, "MOST_UNFETCHED", 7)
    with hocket.init(num_cpus=1, engine="inprocess"):
        for number in range(20):
            hocket.wait([fail.remote(str(number))])
        unfetched = session.get_engine().unfetched
        assert unfetched is not None
        assert len(unfetched.list_errors()) == 7
        lines = end(capfd)
    assert "  and 2 other kinds; hocket.error_info() lists the last 1,000." in lines
