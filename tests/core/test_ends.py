"""What nobody can reach any more ends, and what nobody reads does not grow: what only the local engine promises."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.engine.local import flow

pytestmark = pytest.mark.about_local("how far generators run ahead, and which actors end")


def wait_until(is_done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not is_done():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


# --- generators -------------------------------------------------------------------------------------------------------

LARGE_BYTES = 4 << 20
BOUND = flow.MOST_BYTES // LARGE_BYTES
"""About so many items come to the bound."""


def _make_large(path: Path, count: int) -> Iterator[Any]:
    for number in range(count):
        path.write_text(str(number))
        yield np.full(LARGE_BYTES, number % 100, dtype=np.uint8)


class _Maker:
    async def make(self, path: Path, count: int) -> Any:
        for number, item in enumerate(_make_large(path, count)):
            assert number >= 0
            yield item

    def make_all(self, path: Path, count: int) -> Iterator[Any]:
        yield from _make_large(path, count)


def _is_still(path: Path) -> bool:
    """Tell whether a generator has come to a stop near the bound."""
    try:
        before = int(path.read_text())
    except (FileNotFoundError, ValueError):  # it has not begun, or is just writing
        return False
    time.sleep(0.3)
    return before == int(path.read_text() or -1) and before >= BOUND // 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["task", "coroutine", "actor"])
def test_generator_that_nobody_reads_pauses_at_the_bound(
    session: hocket.SessionContext, tmp_path: Path, kind: str
) -> None:
    progress = tmp_path / "progress"
    maker = hocket.remote(_Maker).remote()
    functions: dict[str, Any] = {"task": hocket.remote(_make_large), "coroutine": maker.make, "actor": maker.make_all}
    items = functions[kind].remote(progress, 3 * BOUND)
    wait_until(lambda: _is_still(progress))
    assert int(progress.read_text()) <= BOUND + 1
    for number in range(2 * BOUND):
        assert hocket.get(next(items))[0] == number % 100
    assert sum(1 for _ in items) == BOUND


@pytest.mark.slow
def test_generator_whose_end_is_awaited_does_not_pause(session: hocket.SessionContext, tmp_path: Path) -> None:
    progress = tmp_path / "progress"
    items = hocket.remote(_make_large).remote(progress, BOUND + 10)
    wait_until(lambda: _is_still(progress))
    assert hocket.get(items.completed(), timeout=30) is None
    assert sum(1 for _ in items) == BOUND + 10


@pytest.mark.parametrize("limit", [0, 3, -1])
def test_flow_counts_what_was_not_taken(limit: int) -> None:
    ahead = flow.Flow(limit)
    size = flow.MOST_BYTES // 4
    states = [ahead.add(size) for _ in range(6)]
    assert states == {0: [False] * 3 + [True] * 3, 3: [False] * 2 + [True] * 4, -1: [False] * 6}[limit]
    assert ahead.find_wanted() == (5 if limit == 0 else 0)
    ahead.take(5)
    assert not ahead.is_full()


def test_flow_of_a_second_attempt_begins_where_the_reader_is() -> None:
    ahead = flow.Flow(0, 10)
    assert not any(ahead.add(flow.MOST_BYTES) for _ in range(10))
    assert ahead.add(flow.MOST_BYTES)
    assert ahead.find_wanted() == 11
