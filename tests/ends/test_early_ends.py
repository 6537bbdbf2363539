"""A loop or call that ends early returns within a second, cancels its tasks, and frees their CPUs within another.

Each place (`places`) is left in each way while work of eight seconds goes on in it. The seconds are printed; the bound
of the tests is generous, but shorter than that work.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import hocket
from tests.ends import places

pytestmark = [pytest.mark.needs("processes"), pytest.mark.slow]

MOST_SECONDS = 5.0
"""How long it may take on a busy machine: much longer than the promise, and shorter than a nap."""


class Stop(Exception):  # noqa: N818 (it is no error)
    """What a handler, or the body of a loop, raises."""


def raise_stop(*_: object) -> None:
    raise Stop


def _list_names(folder: Path, ending: str) -> list[str]:
    return sorted(path.stem for path in folder.glob(f"*.{ending}"))


def wait_for_nap(folder: Path, is_over: Callable[[], bool] = lambda: False) -> None:
    while not _list_names(folder, "begun") and not is_over():
        time.sleep(0.005)


@contextlib.contextmanager
def signalled(folder: Path, number: int) -> Iterator[list[float]]:
    """Send this process a signal once a nap has begun; give a list that has the moment then."""
    sent: list[float] = []
    is_over = threading.Event()

    def send() -> None:
        wait_for_nap(folder, is_over.is_set)
        if not is_over.is_set():
            sent.append(time.monotonic())
            os.kill(os.getpid(), number)

    before = signal.signal(signal.SIGALRM, raise_stop)
    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield sent
    finally:
        is_over.set()
        thread.join()
        signal.signal(signal.SIGALRM, before)


def run_to_end(begin: Callable[[], Any]) -> None:
    for _ in begin() or ():
        pass


def by_signal(number: int, error: type[BaseException]) -> Callable[[places.Begin, Path], float]:
    def leave(begin: places.Begin, folder: Path) -> float:
        raised: type[BaseException] | None = None
        with signalled(folder, number) as sent:
            try:
                run_to_end(begin)
            except BaseException as found:  # noqa: BLE001 (`pytest.raises` would keep what the traceback holds)
                raised = type(found)
        assert raised is error
        return sent[0]

    return leave


def by_break(begin: places.Begin, folder: Path) -> float:
    left = 0.0
    for _ in begin():
        wait_for_nap(folder)
        left = time.monotonic()
        break
    return left


def by_exception(begin: places.Begin, folder: Path) -> float:
    left = 0.0

    def loop() -> None:
        nonlocal left
        for _ in begin():
            wait_for_nap(folder)
            left = time.monotonic()
            raise Stop

    with pytest.raises(Stop):
        loop()
    return left


def by_collector(begin: places.Begin, folder: Path) -> float:
    """Leave an iterator in a cycle, for the garbage collector."""
    gc.collect()
    gc.freeze()  # to look through all that the tests have imported would take seconds on a busy machine
    try:
        iterator = iter(begin())
        next(iterator)
        wait_for_nap(folder)
        cycle: list[object] = [iterator]
        cycle.append(cycle)
        left = time.monotonic()
        del iterator, cycle
        gc.collect()
    finally:
        gc.unfreeze()
    return left


LEAVE_ANY = {
    "alarm": by_signal(signal.SIGALRM, Stop),
    "Ctrl-C": by_signal(signal.SIGINT, KeyboardInterrupt),
}
LEAVE_LOOPS = {**LEAVE_ANY, "break": by_break, "exception": by_exception, "collector": by_collector}

IN_SHORT = [
    ("iter_batches", "break"),
    ("iter_batches in C", "collector"),
    ("iter_rows", "exception"),
    ("materialize", "alarm"),
    ("write_parquet", "Ctrl-C"),
    ("stubborn", "alarm"),
    ("pool map", "alarm"),
    ("pool imap", "break"),
    ("tuner fit", "alarm"),
]
"""A part for each run of the tests."""

ALL = [
    *((place, way) for place in places.CALLS for way in LEAVE_ANY),
    *((place, way) for place in places.LOOPS for way in LEAVE_LOOPS),
]


@pytest.mark.parametrize(
    ("place", "way"), [pytest.param(*one, marks=() if one in IN_SHORT else pytest.mark.long) for one in ALL]
)
def test_what_a_loop_or_call_has_started_ends_with_it(
    shared_session: hocket.SessionContext, tmp_path: Path, place: str, way: str
) -> None:
    make = {**places.CALLS, **places.LOOPS}[place]
    with make(places.Nap(tmp_path)) as begin:
        left = LEAVE_LOOPS[way](begin, tmp_path)
        returned = time.monotonic()
    total = hocket.cluster_resources()["CPU"]
    while hocket.available_resources().get("CPU") != total or list_naps(tmp_path):
        assert time.monotonic() < returned + MOST_SECONDS, (hocket.available_resources(), list_naps(tmp_path))
        time.sleep(0.005)
    print(f"{place} by {way}: returned after {returned - left:.2f} s, free {time.monotonic() - returned:.2f} s later")
    assert returned - left < MOST_SECONDS
    assert _list_names(tmp_path, "ended") == []
    names = [thread.name for thread in threading.enumerate()]
    assert "hocket-data" not in names
    assert sum(name == "hocket-pool" for name in names) == 0


def list_naps(folder: Path) -> list[str]:
    """Return the naps that go on."""
    left = _list_names(folder, "left")
    return [name for name in _list_names(folder, "begun") if name not in left and is_alive(int(name.split("-")[0]))]


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_every_part_for_each_run_is_there() -> None:
    assert set(IN_SHORT) <= set(ALL)
    assert len(ALL) >= 100
