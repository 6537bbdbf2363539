"""Functions that need something made first: pools of actors; and how many tasks run."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from tests.conftest import RunScript

import hocket
from hocket import data
from hocket.data.execution import pools

pytestmark = pytest.mark.timeout(120)


class Model:
    """Notes in a folder each time that one is made."""

    def __init__(self, folder: Path, weight: float = 1.0) -> None:
        (folder / f"{os.getpid()}-{threading.get_ident()}-{time.monotonic_ns()}").touch()
        self.weight = weight

    def __call__(self, batch: dict[str, np.ndarray], plus: float = 0.0) -> dict[str, Any]:
        made = {"y": batch["id"] * self.weight + plus, "pid": np.full(len(batch["id"]), os.getpid())}
        return {"id": batch["id"], **made}


class RowModel:
    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return {"double": row["id"] * 2}


class Same:
    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        return batch


class Even:
    def __call__(self, row: dict[str, Any]) -> bool:
        return bool(row["id"] % 2 == 0)


class Mortal:
    """Kills its process at one row, the first time."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, Any]:
        if 40 in batch["id"] and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return batch


def test_a_class_is_made_once_in_each_actor(any_session: hocket.SessionContext, tmp_path: Path) -> None:
    rows = data.range(100, override_num_blocks=10)
    found = rows.map_batches(
        Model,
        fn_constructor_args=[tmp_path],
        fn_constructor_kwargs={"weight": 2.0},
        fn_kwargs={"plus": 1.0},
        concurrency=2,
    )
    assert [row["y"] for row in found.take_all()] == [2.0 * at + 1 for at in range(100)]
    assert len(list(tmp_path.iterdir())) == 2
    assert rows.map(RowModel).filter(lambda row: row["double"] % 3 == 0).count() == 34
    assert rows.filter(Even, concurrency=1).count() == 50
    assert rows.flat_map(lambda row, count: [row] * count, fn_args=[2]).count() == 200
    strategy = data.ActorPoolStrategy(min_size=1, max_size=2)
    assert rows.map_batches(Model, fn_constructor_args=[tmp_path], compute=strategy).count() == 100


def test_a_pool_on_one_cpu_leaves_room_for_tasks(tmp_path: Path) -> None:
    with hocket.init(num_cpus=1):
        rows = data.range(100, override_num_blocks=5).map_batches(lambda batch: batch)
        found = rows.map_batches(Model, fn_constructor_args=[tmp_path]).map_batches(lambda batch: batch)
        assert found.count() == 100
        assert found.map_batches(Model, fn_constructor_args=[tmp_path], concurrency=2).count() == 100, (
            "nor for a second"
        )


def test_no_more_actors_are_made_than_there_is_of_what_they_hold(tmp_path: Path) -> None:
    with hocket.init(num_cpus=2, resources={"camera": 1}):
        rows = data.range(100, override_num_blocks=20)
        found = rows.map_batches(Model, fn_constructor_args=[tmp_path], resources={"camera": 1})
        assert found.count() == 100
    assert len(list(tmp_path.iterdir())) == 1


def test_an_actor_that_dies_is_made_again(session: hocket.SessionContext, tmp_path: Path) -> None:
    rows = data.range(100, override_num_blocks=10)
    found = rows.map_batches(Mortal, fn_constructor_args=[tmp_path / "mark"], concurrency=1)
    assert [row["id"] for row in found.take_all()] == list(range(100))
    assert (tmp_path / "mark").exists(), "the fault fired"


def test_actors_end_with_the_loop(session: hocket.SessionContext, tmp_path: Path) -> None:
    rows = data.range(1000, override_num_blocks=50).map_batches(Model, fn_constructor_args=[tmp_path])
    loop: Iterator[Any] = iter(rows.iter_batches(batch_size=20))
    pid = int(next(loop)["pid"][0])
    loop.close()  # type: ignore[attr-defined]  # it is a generator
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(pid).wait(timeout=20)


def test_a_loop_that_is_left_keeps_nobody_waiting(session: hocket.SessionContext) -> None:
    rows = data.range(100, override_num_blocks=10)
    doubled = rows.map_batches(Same).map_batches(Same)
    loop = iter(doubled.iter_rows())
    next(loop)
    assert doubled.sort("id").map_batches(Same, concurrency=2).count() == 100
    both = zip(doubled.iter_rows(), doubled.iter_rows(), strict=True)
    assert sum(row["id"] == other["id"] for row, other in both) == 100
    assert doubled.groupby("id").map_groups(Same, concurrency=2).count() == 100


def test_what_a_class_raises_is_the_readers(any_session: hocket.SessionContext) -> None:
    class Broken:
        def __init__(self) -> None:
            raise ArithmeticError("no weights")

        def __call__(self, batch: Any) -> Any:
            return batch

    with pytest.raises((ArithmeticError, hocket.exceptions.ActorDiedError), match="no weights"):
        data.range(3).map_batches(Broken).take_all()


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda rows: rows.map_batches(3), TypeError, "takes a function, but received 3"),
        (
            lambda rows: rows.map_batches(str.upper, concurrency=0),
            ValueError,
            "concurrency must be a whole number from 1",
        ),
        (lambda rows: rows.map_batches(Model, concurrency=(2, 1)), ValueError, r"must be a number or \(least, most\)"),
        (
            lambda rows: rows.map_batches(str.upper, concurrency=(1, 2)),
            TypeError,
            "is a range, which only a class can have",
        ),
        (lambda rows: rows.map_batches(str.upper, fn_constructor_args=[1]), ValueError, "are for a class, but"),
        (lambda rows: rows.map_batches(Model, num_gpus=-1), ValueError, "num_gpus must be a number from 0"),
        (lambda rows: rows.map_batches(Model, compute=3), TypeError, "compute must be a TaskPoolStrategy or an"),
        (
            lambda rows: rows.map_batches(Model, compute=data.TaskPoolStrategy()),
            ValueError,
            r"For a class, write compute=ActorPoolStrategy\(\)",
        ),
        (
            lambda rows: rows.map_batches(Model, compute=data.ActorPoolStrategy(size=1), concurrency=1),
            ValueError,
            "which set the same thing",
        ),
        (lambda rows: data.ActorPoolStrategy(size=1, min_size=1), ValueError, "so it excludes min_size, max_size"),
        (lambda rows: data.ActorPoolStrategy(min_size=3, max_size=1), ValueError, "min_size must not be more"),
        (lambda rows: data.TaskPoolStrategy(0), ValueError, "size must be a whole number from 1"),
    ],
)
def test_a_mistake_is_told_at_once(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make(data.range(3))


def test_parts(any_session: hocket.SessionContext) -> None:
    rows = data.range(10, override_num_blocks=3)
    assert [[row["id"] for row in part.take_all()] for part in rows.split_at_indices([2, 2, 99])] == [
        [0, 1],
        [],
        list(range(2, 10)),
        [],
    ]
    assert [part.count() for part in rows.split_proportionately([0.2, 0.3])] == [2, 3, 5]
    assert [part.count() for part in rows.split_proportionately([0.98, 0.01])] == [8, 1, 1]
    with pytest.raises(ValueError, match="leaves none of 10 rows for the first part"):
        rows.split_proportionately([0.05, 0.5])
    train, test = rows.train_test_split(0.25, shuffle=True, seed=1)
    assert sorted(row["id"] for row in train.union(test).take_all()) == list(range(10))
    assert (train.count(), test.count()) == (7, 3)
    assert [part.count() for part in rows.train_test_split(4)] == [6, 4]
    labels = data.from_items([{"y": at % 4 == 0, "id": at} for at in range(40)])
    train, test = labels.train_test_split(0.2, stratify="y")
    assert (train.sum("y"), test.sum("y"), train.count(), test.count()) == (8, 2, 32, 8)
    large = [2**60 + 1, None, 2**60 + 3, 4]
    parts = data.from_items([{"y": at // 2, "x": x} for at, x in enumerate(large)]).train_test_split(0.5, stratify="y")
    assert [row["x"] for part in parts for row in part.take_all()] == [large[0], large[2], large[1], large[3]]

    @hocket.remote
    def count(part: data.Dataset) -> int:
        return sum(len(batch["id"]) for _ in range(2) for batch in part.iter_batches(batch_size=3))

    assert hocket.get([count.remote(part) for part in rows.streaming_split(3)]) == [6, 6, 8]


def test_blocks_of_a_number_of_rows(any_session: hocket.SessionContext, tmp_path: Path) -> None:
    rows = data.range(10, override_num_blocks=4).repartition(target_num_rows_per_block=4)
    assert [len(batch["id"]) for batch in rows.iter_batches(batch_size=None)] == [4, 4, 2]
    mixed = data.range(100).repartition(3, shuffle=True).take_all()
    assert sorted(row["id"] for row in mixed) == list(range(100))
    assert mixed != data.range(100).take_all()
    data.range(10).write_csv(tmp_path)
    assert data.read_csv(tmp_path).input_files() == [str(path) for path in tmp_path.glob("*.csv")]
    assert data.range(10).map_batches(lambda batch: batch).size_bytes() == 80


def test_samples_are_the_same_each_time(any_session: hocket.SessionContext) -> None:
    rows = data.range(2000, override_num_blocks=4)
    kept = rows.random_sample(0.1, seed=3)
    first = kept.take_all()
    assert first == kept.take_all()
    assert 120 < len(first) < 280
    assert first != rows.random_sample(0.1, seed=4).take_all()
    assert rows.random_sample(0).count() == 0
    assert rows.random_sample(1).count() == 2000
    blocks = [batch["id"][0] for batch in rows.randomize_block_order(seed=2).iter_batches(batch_size=None)]
    assert sorted(blocks) == [0, 500, 1000, 1500]
    assert blocks != sorted(blocks)


def test_what_comes_after_a_limit_is_not_made() -> None:
    made = []

    def note(batch: Any) -> Any:
        made.append(len(batch["id"]))
        return batch

    with hocket.init(num_cpus=1, engine="inprocess"):
        rows = data.range(1000, override_num_blocks=100).map_batches(note).limit(25)
        assert rows.count() == 25
        assert rows.take_all()[-1] == {"id": 24}
    assert len(made) < 20


def test_a_plan_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    rows = data.range(3).filter(expr="id > 0").sort("id").limit(2)
    text = "1. read 1 blocks\n2. filter(id > 0)\n3. sort(id)\n4. limit(2)\nThe same rows in the same order each time."
    assert rows.explain() == text
    assert (
        rows.union(data.range(2).map(lambda row: row))
        .explain()
        .endswith("if these return the same for the same rows: union.")
    )
    with hocket.init(num_cpus=1, engine="inprocess"):
        rows.show()
    assert capsys.readouterr().out.endswith("{'id': 1}\n{'id': 2}\n")


class MortalAlways:
    """Kills its process at one row, each time, and notes it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, Any]:
        if 40 in batch["id"]:
            (self.folder / str(os.getpid())).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return batch


@pytest.mark.needs("processes")
@pytest.mark.parametrize("size", [1, 2])
def test_a_block_that_ends_its_actors_is_given_up(session: hocket.SessionContext, tmp_path: Path, size: int) -> None:
    rows = data.range(100, override_num_blocks=10)
    found = rows.map_batches(MortalAlways, fn_constructor_args=[tmp_path], concurrency=size)
    loop = found.iter_rows()
    with pytest.raises(
        hocket.exceptions.ActorDiedError, match=r"`map_batches\(MortalAlways\)` lost 4 actors, one after"
    ):
        list(loop)
    assert len(list(tmp_path.iterdir())) == 4, "as often as it is told"


@pytest.mark.needs("processes")
def test_actors_that_end_while_they_are_made_are_given_up(session: hocket.SessionContext) -> None:
    class Unborn:
        def __init__(self) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        def __call__(self, batch: Any) -> Any:
            return batch

    with pytest.raises(
        hocket.exceptions.ActorDiedError,
        match=r"`map_batches\(.*Unborn\)` lost 4 actors before they were ready to work",
    ):
        data.range(3).map_batches(Unborn, concurrency=1).take_all()


class Holder:
    """Holds CPUs."""


def test_a_pool_goes_on_with_the_actors_that_have_room(session: hocket.SessionContext) -> None:
    holder: Any = hocket.remote(num_cpus=1)(Holder).remote()
    hocket.get(holder.__ray_ready__.remote())
    rows = data.range(100, override_num_blocks=10).map_batches(Same, concurrency=2, num_cpus=1)
    assert [row["id"] for row in rows.take_all()] == list(range(100))


def test_a_pool_without_room_says_so(session: hocket.SessionContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "ROOM_SECONDS", 0.1)
    holder: Any = hocket.remote(num_cpus=2)(Holder).remote()
    hocket.get(holder.__ray_ready__.remote())
    rows = data.from_items([{"id": at} for at in range(10)]).map_batches(Same, concurrency=1, num_cpus=2)
    with pytest.raises(
        hocket.exceptions.ActorUnschedulableError,
        match=r"`map_batches\(Same\)` found no room for an actor in 0 s: each actor holds \{CPU: 2\}, but only .* of \{CPU: 2.* is free",
    ):
        rows.take_all()


INTERRUPTED = """
import time
import hocket
from hocket import data

class Slow:
    def __call__(self, batch):
        time.sleep(0.05)
        return batch

hocket.init(num_cpus=2)
for row in data.range(10_000, override_num_blocks=1000).map_batches(Slow, concurrency=2).iter_rows():
    print(row["id"], flush=True)
"""


@pytest.mark.needs("processes")
def test_an_interrupted_pool_ends_without_a_word_of_its_own(start_script: RunScript) -> None:
    script = start_script(INTERRUPTED)
    assert script.stdout is not None
    assert script.stderr is not None
    assert script.stdout.readline()
    script.send_signal(signal.SIGINT)
    _, errors = script.communicate()
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert "ignored" not in errors


class Stopping:
    """A forgotten default of ``next``."""

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        next(iter([]))
        return batch


def test_stop_iteration_of_a_step_is_an_error_of_it(any_session: hocket.SessionContext) -> None:
    with pytest.raises(hocket.exceptions.TaskError, match=r"(?s)map_batches\(Stopping\).*StopIteration"):
        data.range(20).map_batches(Stopping, concurrency=1).take_all()
    with pytest.raises(hocket.exceptions.TaskError, match="StopIteration"):
        list(data.range(20).map(lambda row: next(iter([]))).iter_rows())


@pytest.mark.parametrize(
    "asked", [{"num_gpus": 1}, {"resources": {"moon": 1}}, {"memory": 10**15}, {"num_cpus": 100}], ids=str
)
@pytest.mark.parametrize("concurrency", [1, (1, 4)], ids=str)
def test_a_pool_that_no_session_can_hold_is_refused(
    any_session: hocket.SessionContext, asked: dict[str, Any], concurrency: Any
) -> None:
    with pytest.raises(hocket.exceptions.InfeasibleResourcesError, match=r"`map_batches\(Same\)` asks for"):
        data.range(20).map_batches(Same, concurrency=concurrency, **asked).take_all()
