"""One limit for all processes of a pipeline, and what execution tells of itself."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import hocket
from hocket import data
from hocket.data import order

pytestmark = pytest.mark.timeout(120)

LIMIT = 1 << 30


@pytest.fixture
def limited() -> Iterator[None]:
    context = data.DataContext.get_current()
    before, context.execution_options = context.execution_options, data.ExecutionOptions(memory_limit=LIMIT)
    with hocket.init(num_cpus=2, object_store_memory=LIMIT // 6):
        yield
    context.execution_options = before


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_limit_holds_for_a_whole_pipeline(tmp_path: Path) -> None:
    """With a file of twice the limit; by itself the program takes ten times."""
    program = Path(__file__).parents[2] / "benchmarks" / "memory.py"
    found = subprocess.run(
        [sys.executable, program, "--limit", str(LIMIT >> 20), "--times", "2", "--folder", tmp_path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    assert found.stdout.count("under 1024") == 5, found.stdout


@pytest.mark.usefixtures("limited")
def test_more_than_memory_is_sorted_by_way_of_the_disk() -> None:
    count = 16_000_000  # 384 MB, and sorting has 341
    rows = data.range(count, override_num_blocks=32).map_batches(
        lambda batch: {"x": (batch["id"] * 7919) % count, "y": batch["id"] * 0.5, "z": batch["id"]}
    )
    at = 0
    for batch in rows.sort("x").iter_batches(batch_size=None):
        assert (batch["x"] == np.arange(at, at + len(batch["x"]))).all()
        at += len(batch["x"])
    assert at == count


@pytest.mark.usefixtures("limited")
def test_shuffle_in_two_passes_has_the_rows_of_one() -> None:
    rows = data.range(300_000, override_num_blocks=20)
    wanted = order.Order(300_000, seed=3, epoch=0).rows(np.arange(300_000))
    found = [batch["id"] for batch in rows.random_shuffle(seed=3).iter_batches(batch_size=None)]
    assert (np.concatenate(found) == wanted).all()
    kept = rows.filter(lambda row: row["id"] % 3 == 0).random_shuffle(seed=3).take_all()
    assert sorted(row["id"] for row in kept) == list(range(0, 300_000, 3))


@pytest.mark.parametrize("engine", ["local", "inprocess"])
def test_columns_that_some_blocks_lack_outlast_a_shuffle_in_two_passes(engine: str) -> None:
    context = data.DataContext.get_current()
    before, context.execution_options = context.execution_options, data.ExecutionOptions(max_bytes_in_flight=100)
    try:
        with hocket.init(num_cpus=2, engine=engine):
            for is_lacking in (lambda at: at == 0, lambda at: at > 0):  # the first block, and all others
                rows = data.range(100, override_num_blocks=10).map_batches(
                    lambda batch, is_lacking=is_lacking: (
                        {"id": batch["id"]} if is_lacking(batch["id"][0]) else {"id": batch["id"], "a": batch["id"]}
                    )
                )
                wanted = sorted((row["id"], row.get("a")) for row in rows.take_all())
                found = rows.random_shuffle(seed=1).take_all()
                assert sorted((row["id"], row.get("a")) for row in found) == wanted
    finally:
        context.execution_options = before


def test_many_small_blocks_are_shuffled_in_two_passes() -> None:
    wanted = order.Order(3000, seed=2, epoch=0).rows(np.arange(3000))
    with hocket.init(num_cpus=2):
        rows = data.range(3000, override_num_blocks=1000).random_shuffle(seed=2)
        assert [row["id"] for row in rows.iter_rows()] == wanted.tolist()


def test_store_that_is_too_large_for_the_limit_is_refused() -> None:
    context = data.DataContext.get_current()
    before, context.execution_options = context.execution_options, data.ExecutionOptions(memory_limit=LIMIT)
    try:
        with hocket.init(num_cpus=2, object_store_memory=LIMIT // 2):
            assert data.range(10).count() == 10
            assert len(data.range(10).map_batches(lambda batch: batch).take_all()) == 10  # keeps nothing
            for rows in (data.range(10).random_shuffle(), data.range(10).sort("id")):
                with pytest.raises(ValueError, match=r"hocket\.init\(object_store_memory=178956970\)"):
                    rows.take_all()
    finally:
        context.execution_options = before


def test_limit_that_nothing_fits_into_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1024 MiB, but received 1,000 bytes"):
        data.ExecutionOptions(memory_limit=1000)


def test_limit_that_is_too_small_for_the_sessions_processes_is_refused() -> None:
    options = data.ExecutionOptions(memory_limit=LIMIT)
    options.check_memory(2)
    with pytest.raises(ValueError, match="in a session of 4 CPUs these need 1342177280"):
        options.check_memory(4)


@pytest.mark.usefixtures("limited")
def test_settings_of_the_reader_hold_in_tasks() -> None:
    seen = data.range(1).map(lambda row: {"limit": data.DataContext.get_current().execution_options.memory_limit})
    assert seen.take_all() == [{"limit": LIMIT}]


def test_positions_undo_rows() -> None:
    for num_rows in (1, 2, 3, 8, 100, 1025, 10_007):
        for seed in range(3):
            drawn = order.Order(num_rows, seed=seed, epoch=1)
            positions = np.arange(num_rows)
            assert (drawn.find_positions(drawn.rows(positions)) == positions).all()


# --- stats ------------------------------------------------------------------------------------------------------------


def test_stats_tell_what_each_stage_gave() -> None:
    with hocket.init(num_cpus=2):
        rows = data.range(1000, override_num_blocks=4).map_batches(lambda batch: batch).sort("id").limit(10)
        assert "executed yet" in rows.stats()
        assert len(rows.take_all()) == 10
        lines = rows.stats().splitlines()
        assert [line.split("(")[0].split("  ")[0] for line in lines[1:-1]] == ["read -> map_batches", "sort", "limit"]
        assert lines[1].split()[-7:-4] == ["4", "1,000", "8,000"]
        assert "The reader waited" in lines[-1]
        assert "1,000" in data.range(1000).map_batches(lambda batch: batch).materialize().stats()


def test_stats_tell_that_the_reader_holds_the_pipeline_up() -> None:
    with hocket.init(num_cpus=2):
        rows = data.range(8, override_num_blocks=8).map_batches(lambda batch: batch)
        total = 0.0
        for batch in rows.iter_batches(batch_size=1, prefetch_batches=0):
            total += float(np.linalg.svd(np.random.default_rng(int(batch["id"][0])).random((700, 700)))[1][0])
        assert total
        assert "held the pipeline up" in rows.stats()
