"""The order of an epoch: a bijection, the same everywhere, and well mixed.

The tests of quality count fixed seeds, so they give the same figures in every run: they cannot fail by chance, only by
a change.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import hypothesis
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import strategies as st

from hocket.data import order

MASK = (1 << 64) - 1
Counts = npt.NDArray[np.int64]


def list_rows(num_rows: int, seed: int = 0, epoch: int = 0, shuffle: bool = True) -> list[int]:
    found: list[int] = order.Order(num_rows, seed=seed, epoch=epoch, shuffle=shuffle).rows(np.arange(num_rows)).tolist()
    return found


# -- a bijection ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_rows", [*range(1, 100), 1023, 1024, 1025, 4095, 4096, 4097, 8192, 8193, 20_000])
def test_each_row_stands_at_one_position(num_rows):
    assert sorted(list_rows(num_rows, seed=num_rows)) == list(range(num_rows))


@hypothesis.given(num_rows=st.integers(1, 30_000), seed=st.integers(0, order.MAX_SEED), epoch=st.integers(0, 1 << 70))
@hypothesis.settings(max_examples=60, deadline=None)
def test_each_row_stands_at_one_position_for_any_seed(num_rows, seed, epoch):
    assert sorted(list_rows(num_rows, seed, epoch)) == list(range(num_rows))


def test_without_shuffling_rows_stand_as_they_are():
    assert list_rows(1000, seed=3, epoch=4, shuffle=False) == list(range(1000))


def test_what_is_returned_is_not_what_was_given():
    positions = np.arange(5)
    order.Order(5, seed=0, epoch=0, shuffle=False).rows(positions)[:] = 0
    assert positions.tolist() == [0, 1, 2, 3, 4]


def test_a_row_depends_on_its_position_alone():
    whole = list_rows(20_000, seed=1)
    some = order.Order(20_000, seed=1, epoch=0)
    for position in (0, 1, 8191, 8192, 12_345, 19_999):
        assert some.rows(np.array([position])).tolist() == [whole[position]]
    assert some.rows(np.array([5, 5, 3], np.int64)).tolist() == [whole[5], whole[5], whole[3]]
    assert some.rows(np.array([], np.int64)).tolist() == []


# -- the same everywhere ----------------------------------------------------------------------------------------------


def mix(x: int) -> int:
    x &= MASK
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK
    return x ^ x >> 31


def find_row(num_rows: int, seed: int, epoch: int, position: int) -> int:
    """The definition once more, in Python's own whole numbers, one position at a time."""
    bases = [math.isqrt(num_rows - 1) + 1]
    bases.append(-(-num_rows // bases[0]))
    state = mix(mix(seed + 0x9E3779B97F4A7C15) + epoch)
    while True:
        digits = list(divmod(position, bases[1]))
        for number in range(8 if num_rows > 1024 else 24):
            key = mix(state + (number + 1) * 0x9E3779B97F4A7C15)
            step = (digits[(number + 1) % 2] + key) * 0xBF58476D1CE4E5B9 & MASK
            step = (step ^ step >> 32) * 0x94D049BB133111EB & MASK
            base = bases[number % 2]
            digits[number % 2] = (digits[number % 2] + ((step >> 32) * base >> 32)) % base
        position = digits[0] * bases[1] + digits[1]
        if position < num_rows:
            return position


@hypothesis.given(
    data=st.data(), num_rows=st.integers(1, order.MAX_ROWS) | st.integers(1, 2000), epoch=st.integers(0, 1 << 64)
)
@hypothesis.settings(max_examples=200, deadline=None)
def test_the_order_is_the_one_that_is_defined(data, num_rows, epoch):
    seed = data.draw(st.integers(0, order.MAX_SEED))
    positions = data.draw(st.lists(st.integers(0, num_rows - 1), min_size=1, max_size=5))
    found = order.Order(num_rows, seed=seed, epoch=epoch).rows(np.array(positions, np.int64))
    assert found.dtype == np.int64
    assert found.tolist() == [find_row(num_rows, seed, epoch, position) for position in positions]


@pytest.mark.parametrize(
    ("num_rows", "seed", "epoch", "golden"),
    [
        (1, 0, 0, [0]),
        (2, 0, 0, [1, 0]),
        (10, 0, 0, [1, 0, 9, 3, 7, 2, 6, 4, 8, 5]),
        (10, 0, 1, [1, 0, 3, 9, 6, 7, 8, 5, 2, 4]),
        (10, 1, 0, [0, 8, 3, 9, 5, 1, 2, 6, 7, 4]),
        (60_000, 42, 3, [15140, 8867, 1519, 44481, 15107, 15058, 50709, 56139, 59161, 24526]),
        (
            order.MAX_ROWS,
            order.MAX_SEED,
            1 << 40,
            [
                148195706717178,
                267171631409620,
                265231443432216,
                231517140090797,
                207680390694958,
                21879762579816,
                87445633744688,
                100241054198883,
                34817401867148,
                26800820458918,
            ],
        ),
    ],
)
def test_the_order_never_changes(num_rows, seed, epoch, golden):
    """A state saved by one release must mean the same to the next.

    Whoever changes these values raises `order.VERSION`.
    """
    assert order.VERSION == 1
    positions = np.arange(min(10, num_rows))
    assert order.Order(num_rows, seed=seed, epoch=epoch).rows(positions).tolist() == golden


# -- well mixed -------------------------------------------------------------------------------------------------------


def measure_unevenness(counts: Counts, freedom: int | None = None) -> float:
    """How many standard deviations chi-square is above its mean, when all cells are equally likely."""
    expected = counts.sum() / counts.size
    freedom = counts.size - 1 if freedom is None else freedom
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / math.sqrt(2 * freedom))


def count_grid(first: npt.NDArray[np.int64], second: npt.NDArray[np.int64], num_rows: int, cells: int = 40) -> Counts:
    places = first * cells // num_rows * cells + second * cells // num_rows
    return np.bincount(places, minlength=cells * cells).reshape(cells, cells)


def measure_orders(num_rows: int) -> float:
    """Whether each of all orders of few rows is equally frequent over seeds."""
    numbers = {rows: number for number, rows in enumerate(itertools.permutations(range(num_rows)))}
    found = [numbers[tuple(list_rows(num_rows, seed))] for seed in range(3000)]
    return measure_unevenness(np.bincount(found, minlength=len(numbers)))


def measure_places(num_rows: int) -> float:
    """Whether each row stands at each position equally often over seeds."""
    counts = np.zeros((num_rows, num_rows), np.int64)
    for seed in range(2000):
        counts[np.arange(num_rows), list_rows(num_rows, seed)] += 1
    return measure_unevenness(counts, (num_rows - 1) ** 2)


def measure_neighbours(num_rows: int) -> float:
    """Whether the steps from one row to the next are equally frequent over epochs."""
    counts = np.zeros(num_rows, np.int64)
    for epoch in range(2000):
        counts += np.bincount(np.diff(list_rows(num_rows, 9, epoch)) % num_rows, minlength=num_rows)
    return measure_unevenness(counts[1:])


def measure_epochs_of_few(num_rows: int) -> float:
    """Whether all differences between the same position in two epochs are equally frequent."""
    rows = np.array([list_rows(num_rows, 5, epoch) for epoch in range(2000)])
    return measure_unevenness(np.bincount((np.diff(rows, axis=0) % num_rows).ravel(), minlength=num_rows))


def measure_whole(num_rows: int) -> float:
    """Whether rows are spread evenly over positions."""
    rows = np.array(list_rows(num_rows, 5))
    return measure_unevenness(count_grid(np.arange(num_rows), rows, num_rows), 39**2)


def measure_series(num_rows: int) -> float:
    """Whether a row says nothing of the next one, nor of the one that differs in the other digit."""
    rows = np.array(list_rows(num_rows, 6))
    stride = -(-num_rows // (math.isqrt(num_rows - 1) + 1))
    return max(measure_unevenness(count_grid(rows[:-by], rows[by:], num_rows), 39**2) for by in (1, stride))


def measure_pairs(num_rows: int) -> float:
    """Whether an order says nothing of those of the next epoch and of the next seed."""
    one = np.array(list_rows(num_rows, 7, 4))
    others = [np.array(list_rows(num_rows, seed, epoch)) for seed, epoch in ((7, 5), (8, 4), (8, 3))]
    return max(measure_unevenness(count_grid(one, other, num_rows), 39**2) for other in others)


LIMIT = 4.0
"""Standard deviations. With two cells to count, an even shuffle would go above it once in 100 choices of seeds, with
many once in 10,000. The seeds are chosen and stay.
"""

MEASUREMENTS: list[tuple[Callable[[int], float], int]] = [
    *((measure_orders, num_rows) for num_rows in (2, 3, 4, 5)),
    *((measure_places, num_rows) for num_rows in (5, 10, 64)),
    *((measure_neighbours, num_rows) for num_rows in (7, 10, 64, order.FEW_ROWS + 1)),
    *((measure_epochs_of_few, num_rows) for num_rows in (7, 10, 64)),
    *(
        (measure, num_rows)
        for measure in (measure_whole, measure_series, measure_pairs)
        for num_rows in (20_011, 65_536)
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("measure", "num_rows"), MEASUREMENTS)
def test_orders_are_even(measure, num_rows):
    assert abs(measure(num_rows)) < LIMIT


@pytest.mark.slow
@pytest.mark.parametrize(
    ("measure", "num_rows", "rounds"),
    [
        (measure_orders, 5, 6),
        (measure_places, 10, 2),
        (measure_neighbours, 10, 4),
        (measure_whole, 20_011, 2),
        (measure_series, 20_011, 2),
        (measure_pairs, 20_011, 2),
    ],
)
def test_the_measurements_see_an_order_of_too_few_rounds(monkeypatch, measure, num_rows, rounds):
    monkeypatch.setattr(order, "ROUNDS", rounds)
    monkeypatch.setattr(order, "ROUNDS_FOR_FEW", rounds)
    assert measure(num_rows) > 2 * LIMIT


@pytest.mark.parametrize("num_rows", [101, 5000])
def test_epochs_share_no_more_places_than_by_chance(num_rows):
    """Two random orders agree at one position on average, whatever their length."""
    rows = np.array([list_rows(num_rows, 11, epoch) for epoch in range(60)])
    pairs = list(itertools.combinations(range(60), 2))
    same = sum(int((rows[one] == rows[other]).sum()) for one, other in pairs)
    assert abs(same - len(pairs)) < LIMIT * math.sqrt(len(pairs))
