"""Generators that wait for their readers, and lose their workers meanwhile.

``HOCKET_TEST_STREAM_KILLS=3000 pytest tests/core/test_flows.py`` kills more often; ``HOCKET_TEST_SEED=17`` draws the
same kills again.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import hocket
from hocket.testing.suites import programs
from tests.conftest import SESSION_CPUS

pytestmark = [pytest.mark.slow, pytest.mark.about_local("how its processes die")]

KILLS = int(os.environ.get("HOCKET_TEST_STREAM_KILLS", "40"))

SECONDS = 50
"""A wait that does not end is a failure."""

LIMIT = 4
ITEMS = 40


class Gated:
    """An argument that notes who opens it, and from the second time on opens only behind a gate."""

    def __init__(self, gate: Any, folder: Path) -> None:
        self.parts = gate, folder

    def __reduce__(self) -> tuple[Any, ...]:
        return open_gated, self.parts


def open_gated(gate: Any, folder: Path) -> None:
    lives = len(list(folder.iterdir()))
    (folder / f"{lives}-{os.getpid()}").touch()
    if lives:
        hocket.get(gate.wait.remote())


class Source:
    def produce(self, gated: object) -> Iterator[int]:
        yield from range(ITEMS)


def produce(gated: object) -> Iterator[int]:
    yield from range(ITEMS)


@pytest.mark.parametrize("is_actor", [False, True])
def test_reader_that_goes_on_before_the_next_attempt_yields_is_not_forgotten(
    session: object, tmp_path: Path, is_actor: bool
) -> None:
    gate = hocket.remote(num_cpus=0)(programs.AsyncGate).remote()
    gated = Gated(gate, tmp_path)
    if is_actor:
        made = hocket.remote(num_cpus=SESSION_CPUS, max_restarts=1, max_task_retries=1)(Source).remote()
        items = made.produce.options(_generator_backpressure_num_objects=LIMIT).remote(gated)
    else:
        task = hocket.remote(num_cpus=SESSION_CPUS, max_retries=1)(produce)
        items = task.options(_generator_backpressure_num_objects=LIMIT).remote(gated)
    found = [hocket.get(next(items))]
    # The CPUs are lent when the generator waits for its reader, and not before: then all that it may yield is there.
    hocket.get(hocket.remote(programs.get_pid).remote(), timeout=SECONDS)
    os.kill(int(next(tmp_path.iterdir()).name.partition("-")[2]), signal.SIGKILL)
    programs.wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
    found += [hocket.get(next(items)) for _ in range(LIMIT)]
    # The second attempt has heard all that was said to it when its call comes back.
    hocket.get(gate.open.remote())
    for _ in range(ITEMS - len(found)):
        assert hocket.wait([items.head], timeout=SECONDS)[0], f"the generator stands after {found}"
        found.append(hocket.get(next(items)))
    assert found == list(range(ITEMS))
    assert next(items, None) is None


class Plain:
    def count(self) -> Iterator[tuple[int, int]]:
        for number in range(ITEMS):
            yield number, os.getpid()


class Asynchronous:
    async def count(self) -> AsyncIterator[tuple[int, int]]:
        for number in range(ITEMS):
            yield number, os.getpid()


def count() -> Iterator[tuple[int, int]]:
    yield from Plain().count()


class Stream:
    """One generator after the other, read to its end."""

    def __init__(self, source: Any, limit: int) -> None:
        self.source = source.options(_generator_backpressure_num_objects=limit)
        self.open()

    def open(self) -> None:
        self.items = self.source.remote()
        self.read = 0
        self.pid = 0

    def take(self) -> None:
        assert hocket.wait([self.items.head], timeout=SECONDS)[0], f"a generator stands at item {self.read}"
        ref = next(self.items, None)
        if ref is None:
            assert self.read == ITEMS
            self.open()
            return
        number, self.pid = hocket.get(ref)
        assert number == self.read
        self.read += 1


@pytest.mark.timeout(60 + 2 * KILLS)
def test_streams_go_on_whenever_their_workers_are_killed(session: object) -> None:
    seed = int(os.environ.get("HOCKET_TEST_SEED", random.randrange(10**6)))
    print(f"seed {seed}, {KILLS} kills")
    chance = random.Random(seed)
    made = hocket.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)
    sources: list[Any] = [hocket.remote(num_cpus=0, max_retries=-1)(count)] * 5
    sources += [made(Plain).remote().count]
    sources += [made(Plain).options(max_concurrency=2).remote().count] * 2
    sources += [made(Asynchronous).remote().count] * 2
    streams = [Stream(source, chance.randint(1, 5)) for source in sources]
    hits = charged = 0
    while hits < KILLS:
        for _ in range(chance.randint(1, 2 * len(streams))):
            chance.choice(streams).take()
        victim = chance.choice(streams)
        if victim.pid:
            try:
                os.kill(victim.pid, signal.SIGKILL)
            except ProcessLookupError:  # the worker was killed when another stream's was
                continue
            hits += 1
            charged += victim.read < ITEMS
            for _ in range(chance.randint(0, 8)):
                victim.take()
    print(f"{hits} workers killed, {charged} of them while the stream was read")
    assert charged > KILLS // 2
    for stream in streams:
        while stream.read < ITEMS:
            stream.take()
