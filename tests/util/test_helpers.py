"""as_completed and map_unordered."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import pytest

import hocket
from hocket.util import as_completed, map_unordered


@hocket.remote
def double(x: int) -> int:
    return 2 * x


@hocket.remote
def fail() -> None:
    raise KeyError("missing")


class PlainGate:
    def __init__(self) -> None:
        self.opened = threading.Event()

    def wait(self) -> str:
        assert self.opened.wait(30)
        return "late"

    def open(self) -> None:
        self.opened.set()


Gate: Any = hocket.remote(max_concurrency=2)(PlainGate)


def test_values(any_session: hocket.SessionContext) -> None:
    refs = [double.remote(x) for x in range(25)]
    assert sorted(as_completed(refs)) == [2 * x for x in range(25)]
    assert sorted(as_completed(refs, chunk_size=1)) == [2 * x for x in range(25)]
    assert set(as_completed(refs, yield_obj_refs=True)) == set(refs)
    assert list(as_completed([])) == []


@pytest.mark.needs("parallelism")
def test_a_result_does_not_wait_for_a_chunk(session: hocket.SessionContext) -> None:
    gate = Gate.remote()
    late = gate.wait.remote()
    results = as_completed([late, double.remote(1), double.remote(2)], chunk_size=10)
    assert {next(results), next(results)} == {2, 4}
    gate.open.remote()
    assert list(results) == ["late"]


def test_map_unordered(any_session: hocket.SessionContext) -> None:
    for most in (1, 3, None):
        assert sorted(map_unordered(double, range(20), backpressure_size=most)) == [2 * x for x in range(20)]
    refs = list(map_unordered(double, range(3), yield_obj_refs=True))
    assert sorted(hocket.get(refs)) == [0, 2, 4]


def test_map_unordered_reads_only_what_it_needs(any_session: hocket.SessionContext) -> None:
    items = itertools.count()
    results = map_unordered(double, items, backpressure_size=4, chunk_size=2)
    assert all(next(results) % 2 == 0 for _ in range(10))
    assert next(items) <= 10 + 4 + 2


def test_errors_are_raised(any_session: hocket.SessionContext) -> None:
    with pytest.raises(KeyError, match="missing"):
        list(as_completed([fail.remote()]))


@pytest.mark.parametrize("size", [0, -1])
def test_bad_sizes(any_session: hocket.SessionContext, size: int) -> None:
    with pytest.raises(ValueError, match=f"`chunk_size` must be >= 1, but received {size}"):
        as_completed([], chunk_size=size)
    with pytest.raises(ValueError, match=f"`chunk_size` must be >= 1, but received {size}"):
        map_unordered(double, [], chunk_size=size)
    with pytest.raises(ValueError, match=f"backpressure_size must be positive, or None.*received {size}"):
        map_unordered(double, [], backpressure_size=size)


def test_bad_input(any_session: hocket.SessionContext) -> None:
    ref: Any = hocket.put(1)
    with pytest.raises(ValueError, match="takes distinct ObjectRefs"):
        list(as_completed([ref, ref]))
    with pytest.raises(TypeError, match="takes a list of ObjectRefs, but the list holds 3"):
        list(as_completed([3]))  # type: ignore[list-item]
    with pytest.raises(TypeError, match="takes a remote function or an actor's method, but received <built-in"):
        map_unordered(abs, [1])  # type: ignore[arg-type]
