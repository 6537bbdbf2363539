"""What a user did wrong is shown with the user's own lines, down to the one that did it."""

from __future__ import annotations

import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

import hocket
from hocket.exceptions import ActorHandleNotFoundError, InfeasibleResourcesError, SerializationError, SessionClosedError


class Counter:
    def __init__(self) -> None: ...

    def add(self, amount: int) -> int:
        return amount


def add(x: int) -> int:
    return x + 1


def name_frames(kind: type[BaseException], call: Callable[..., object], *args: object, **kwargs: object) -> list[str]:
    """Return the functions that the tracebacks show below the line that makes the call."""
    with pytest.raises(kind) as caught:
        call(*args, **kwargs)
    error: BaseException = caught.value
    names = [frame.name for frame in traceback.extract_tb(error.__traceback__)][1:]
    if error.__cause__ is not None:
        names += [frame.name for frame in traceback.extract_tb(error.__cause__.__traceback__)]
    return names


def build_closure() -> Any:
    lock = threading.Lock()
    return hocket.remote(lambda: lock.locked())  # noqa: PLW0108 (the closure is what is tested)


def test_mistakes_show_no_line_of_the_package(session: hocket.SessionContext) -> None:
    counter = hocket.remote(Counter).remote()
    task = hocket.remote(add)
    closure = build_closure()
    assert name_frames(RuntimeError, hocket.init) == []
    assert name_frames(RuntimeError, hocket.init, num_cpu=1) == []
    assert name_frames(SerializationError, hocket.put, threading.Lock()) == []
    assert name_frames(SerializationError, closure.remote) == []
    assert name_frames(SerializationError, task.remote, threading.Lock()) == []
    assert name_frames(TypeError, task.remote) == []
    assert name_frames(SerializationError, counter.add.remote, threading.Lock()) == []
    assert name_frames(TypeError, counter.add.remote) == []
    assert name_frames(TypeError, hocket.remote(Counter).remote, 1) == []
    assert name_frames(ValueError, hocket.get_actor, "nobody") == []
    assert name_frames(TypeError, hocket.cancel, 3) == []
    assert name_frames(InfeasibleResourcesError, hocket.util.placement_group, [{"CPU": 99}]) == []


def test_a_session_that_is_closed_shows_no_line_of_the_package(session: hocket.SessionContext) -> None:
    counter = hocket.remote(Counter).remote()
    ref = hocket.put(1)
    hocket.shutdown()
    assert name_frames(SessionClosedError, hocket.get, ref) == []
    assert name_frames(SessionClosedError, hocket.get, [ref]) == []
    assert name_frames(SessionClosedError, hocket.wait, [ref]) == []
    assert name_frames(ActorHandleNotFoundError, counter.add.remote, 1) == []
    assert name_frames(SessionClosedError, hocket.nodes) == []


def test_an_interrupt_in_the_users_own_code_shows_that_alone(session: hocket.SessionContext) -> None:
    hocket.put(1)
    assert name_frames(KeyboardInterrupt, signal.raise_signal, signal.SIGINT) == []


@pytest.fixture
def alarm() -> Iterator[None]:
    """Interrupt what comes next."""
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.slow
@pytest.mark.needs("parallelism")
def test_an_interrupt_of_a_wait_for_an_item_shows_no_line_of_the_package(
    session: hocket.SessionContext, alarm: None
) -> None:
    @hocket.remote
    def give() -> Iterator[int]:
        time.sleep(60)
        yield 1

    items = give.remote()
    assert name_frames(KeyboardInterrupt, next, items) == []


def test_the_handler_of_a_user_stays_in_sight(session: hocket.SessionContext) -> None:
    def refuse(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(number)

    before = signal.signal(signal.SIGUSR1, refuse)
    try:
        hocket.put(1)
        assert name_frames(TimeoutError, signal.raise_signal, signal.SIGUSR1) == ["refuse"]
    finally:
        signal.signal(signal.SIGUSR1, before)
