"""Placement: bytes and traffic balanced, and rows found again."""

from __future__ import annotations

from typing import Any

import hypothesis
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import strategies as st

from hocket.ps.rules import placement

NUM_IDS = 1_000_000
BATCH = 8192

SIZES = st.integers(0, 1 << 20)
TRAFFIC = st.none() | st.floats(0, 1 << 20)

# -- variables --------------------------------------------------------------------------------------------------------


@hypothesis.given(num_servers=st.integers(1, 8), items=st.lists(st.tuples(SIZES, TRAFFIC), max_size=40))
@hypothesis.settings(max_examples=150, deadline=None)
def test_bytes_are_balanced_up_to_the_largest_variable(num_servers, items):
    placer = placement.Placer(num_servers)
    servers = [placer.place(nbytes, traffic) for nbytes, traffic in items]
    found = placer.statistics()
    average = sum(nbytes for nbytes, _ in items) / num_servers
    largest = max((nbytes for nbytes, _ in items), default=0)
    assert max(found.num_bytes) <= max(placement.SLACK * average, average + largest) * (1 + 1e-9)
    for server in range(num_servers):
        held = [item for item, chosen in zip(items, servers, strict=True) if chosen == server]
        assert found.num_placed[server] == len(held)
        assert found.num_bytes[server] == sum(nbytes for nbytes, _ in held)
        assert found.traffic[server] == pytest.approx(sum(b if t is None else t for b, t in held))


@hypothesis.given(
    num_servers=st.integers(1, 8),
    items=st.lists(st.tuples(st.integers(0, 1 << 24), st.floats(0.0, 1.0)), max_size=30),
)
@hypothesis.settings(max_examples=100, deadline=None)
def test_variables_that_are_cut_as_planned_are_within_a_tenth_of_the_average(num_servers, items):
    placer = placement.Placer(num_servers)
    for nbytes, used in items:
        shards = placement.plan_shards(nbytes, num_servers)
        sizes = [nbytes // shards + (shard < nbytes % shards) for shard in range(shards)]
        chosen = placer.place_shards(sizes, [size * used for size in sizes])
        assert len(set(chosen)) == shards
    found = placer.statistics()
    average = sum(found.num_bytes) / num_servers
    # A variable that is not cut has less than min_shard_bytes for each server: it is that much at most.
    uncut = max((n for n, _ in items if placement.plan_shards(n, num_servers) == 1), default=0)
    rounding = len(items)  # a shard has a byte more than another
    assert max(found.num_bytes) <= max(placement.SLACK * average, average + uncut) + rounding


def make_recommender() -> list[tuple[int, float]]:
    """Bytes and traffic of a model in the order in which it is made: tables, a few rows of which move, each with a
    layer that moves whole."""
    rng = np.random.default_rng(0)
    found: list[tuple[int, float]] = []
    for rows in rng.integers(1_000, 2_000_000, size=26):
        found += [(int(rows) * 64 * 4, 4096 * 64 * 4), (256 * 64 * 4, 256 * 64 * 4), (64 * 4, 64 * 4)]
    return found


@pytest.mark.parametrize("num_servers", [3, 4, 8])
def test_a_recommender_is_balanced_where_dealing_out_in_turn_is_not(num_servers):
    model = make_recommender()
    placer, in_turn = placement.Placer(num_servers), [0] * num_servers
    for number, (nbytes, traffic) in enumerate(model):
        in_turn[number % num_servers] += nbytes
        shards = placement.plan_shards(nbytes, num_servers)
        rows = nbytes // 256
        sizes = [256 * (rows // shards + (shard < rows % shards)) for shard in range(shards)]
        placer.place_shards(sizes, [traffic / shards] * shards)
    found = placer.statistics()
    assert found.bytes_imbalance <= 1.01
    assert found.traffic_imbalance <= 1.1
    assert max(in_turn) * num_servers / sum(in_turn) > 1.1


def test_traffic_decides_where_bytes_allow_it():
    placer = placement.Placer(2)
    placer.occupy(0, 10_000, traffic=0)
    placer.occupy(1, 10_000, traffic=0)
    assert placer.place(100, traffic=5_000) == 0
    assert [placer.place(100, traffic=1_000) for _ in range(5)] == [1, 1, 1, 1, 1]
    found = placer.statistics()
    assert found.traffic == (5_000.0, 5_000.0)
    assert found.bytes_imbalance < 1.02
    for _ in range(30):
        placer.place(1_000, traffic=0 if placer.statistics().num_bytes[0] < 30_000 else 1)
    assert placer.statistics().bytes_imbalance <= placement.SLACK


def test_without_anything_known_servers_take_turns():
    placer = placement.Placer(3)
    assert [placer.place(8) for _ in range(6)] == [0, 1, 2, 0, 1, 2]
    assert [placement.Placer(3).place(0) for _ in range(2)] == [0, 0]
    empty = placement.Placer(2)
    assert [empty.place(0), empty.place(0)] == [0, 1]


def test_shards_of_one_variable_are_apart():
    placer = placement.Placer(3)
    assert sorted(placer.place_shards([5] * 3)) == [0, 1, 2]
    servers = placer.place_shards([5] * 7)
    assert sorted(np.bincount(servers).tolist()) == [2, 2, 3]
    assert placer.place_shards([]) == []
    assert placer.statistics().num_bytes in {(20, 15, 15), (15, 20, 15), (15, 15, 20)}


def test_what_is_released_makes_room():
    placer = placement.Placer(2)
    assert [placer.place(100, 0.1), placer.place(60, 0.2), placer.place(30, 0.3)] == [0, 1, 1]
    placer.release(0, 100, 0.1)
    assert placer.statistics() == placement.PlacementStatistics(
        num_placed=(0, 2), num_bytes=(0, 90), traffic=(0.0, 0.5)
    )
    assert placer.place(80) == 0


def test_bad_numbers_are_refused():
    with pytest.raises(
        ValueError, match=r"num_servers must be a whole number from 1, but received 0\. Parameters need a server"
    ):
        placement.Placer(0)
    placer = placement.Placer(2)
    with pytest.raises(
        ValueError, match=r"nbytes must be a whole number from 0, but received -1\. Give the variable's size"
    ):
        placer.place(-1)
    with pytest.raises(
        ValueError, match=r"traffic must be a finite number of bytes from 0, but received nan\. Leave it out"
    ):
        placer.place(1, float("nan"))
    with pytest.raises(ValueError, match=r"traffic must have a number for each of the 2 shards, but received \[1\.0\]"):
        placer.place_shards([1, 2], [1.0])
    with pytest.raises(ValueError, match=r"server must be from 0 to 1, but received 2\. Give what"):
        placer.occupy(2, 5)
    with pytest.raises(
        ValueError,
        match=r"server 0 holds 0 variables of 0 bytes together, so 5 bytes cannot be released\. Release each",
    ):
        placer.release(0, 5)
    with pytest.raises(ValueError, match="min_shard_bytes must be a whole number from 1, but received 0"):
        placement.plan_shards(1, 1, min_shard_bytes=0)
    with pytest.raises(ValueError, match="num_ids must be a whole number from 0, but received -1"):
        placement.count_rows(-1, 2)
    assert placer.statistics().num_placed == (0, 0)


# -- rows of tables ---------------------------------------------------------------------------------------------------


@hypothesis.given(ids=st.lists(st.integers(0, 1 << 62), max_size=50), num_shards=st.integers(1, 1 << 20))
def test_ids_are_found_again(ids, num_shards):
    array = np.array(ids, np.int64)
    shards, rows = placement.locate(array, num_shards)
    assert shards.tolist() == [one % num_shards for one in ids]
    assert rows.tolist() == [one // num_shards for one in ids]
    np.testing.assert_array_equal(placement.find_ids(shards, rows, num_shards), array)


@pytest.mark.parametrize(("num_ids", "num_shards"), [(0, 3), (2, 3), (13, 5), (100, 7), (5, 1)])
def test_rows_of_a_shard_are_dense(num_ids, num_shards):
    shards, rows = placement.locate(np.arange(num_ids), num_shards)
    counts = placement.count_rows(num_ids, num_shards)
    for shard, count in enumerate(counts):
        assert rows[shards == shard].tolist() == list(range(count))
        assert placement.find_ids(shard, np.arange(count), num_shards).tolist() == list(
            range(shard, num_ids, num_shards)
        )


def measure_work(exponent: float, once: bool) -> npt.NDArray[np.float64]:
    """How often a step asks for each id: popular ids are the low ones. If `once`, an id counts once in a batch."""
    popularity = np.arange(1.0, NUM_IDS + 1) ** -exponent
    popularity /= popularity.sum()
    return 1 - np.exp(-BATCH * popularity) if once else BATCH * popularity


def measure_imbalance(shards: npt.NDArray[Any], work: npt.NDArray[np.float64], num_shards: int) -> float:
    loads = np.bincount(shards, work, num_shards)
    return float(loads.max() / loads.mean())


@pytest.mark.parametrize("exponent", [0.8, 1.0, 1.3])
@pytest.mark.parametrize("num_shards", [2, 4, 8])
def test_ids_in_turn_are_balanced_for_zipf(exponent, num_shards):
    ids = np.arange(NUM_IDS)
    in_turn, hashed, ranges = (
        placement.locate(ids, num_shards)[0],
        placement.hash_shard(ids, num_shards),
        ids * num_shards // NUM_IDS,
    )
    once = measure_work(exponent, once=True)
    assert measure_imbalance(in_turn, once, num_shards) < 1.01
    assert measure_imbalance(hashed, once, num_shards) < 1.1
    assert measure_imbalance(ranges, once, num_shards) > 1.6
    repeated = measure_work(exponent, once=False)
    if num_shards <= 4 and exponent <= 1:  # else the most popular id alone is too much
        assert measure_imbalance(in_turn, repeated, num_shards) < 1.2
    assert measure_imbalance(hashed, np.ones(NUM_IDS), num_shards) < 1.01


@pytest.mark.parametrize("once", [True, False])
def test_ids_in_turn_are_balanced_better_than_by_a_hash(once):
    """On average: where a hash sends the few ids that matter most is luck."""
    ids, work = np.arange(NUM_IDS), measure_work(1.0, once=once)
    hashes = [measure_imbalance(placement.hash_shard(ids + start * NUM_IDS, 4), work, 4) for start in range(8)]
    assert measure_imbalance(placement.locate(ids, 4)[0], work, 4) < np.mean(hashes)


def test_ids_drawn_at_random_are_balanced_as_computed():
    ids = np.random.default_rng(0).zipf(1.3, size=(50, BATCH)) % NUM_IDS
    loads = np.zeros(4)
    for batch in ids:
        loads += np.bincount(placement.locate(np.unique(batch), 4)[0], minlength=4)
    assert loads.max() / loads.mean() < 1.02


@pytest.mark.parametrize("stride", [1, 2, 4, 8, 1000, 1 << 20, 1 << 40, -3])
def test_a_hash_balances_ids_of_any_pattern(stride):
    shards = placement.hash_shard(np.arange(20_000, dtype=np.int64) * stride, 4)
    counts = np.bincount(shards, minlength=4)
    assert counts.max() / counts.mean() < 1.05


def test_a_hash_is_the_same_everywhere():
    """Golden: it is saved where rows are."""
    ids = np.array([0, 1, 2, -1, 1 << 62, -(1 << 63)])
    assert placement.hash_shard(ids, 1 << 16).tolist() == [57888, 37130, 38744, 58585, 170, 18462]
    assert placement.hash_shard(ids, 1).tolist() == [0] * 6
    kept = ids.copy()
    placement.hash_shard(ids, 3)
    np.testing.assert_array_equal(ids, kept)
