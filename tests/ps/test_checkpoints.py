"""Checkpoints of variables: saved with n servers, loaded with m, and readable without either.

A4 #51, A5 #67, #72, A6 #75, #76.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hocket import ps

pytestmark = pytest.mark.usefixtures("session")


def _make(servers: int, optimizer: ps.Optimizer | None = None) -> ps.ParameterServerStrategy:
    strategy = ps.ParameterServerStrategy({"worker": 1, "server": servers}, optimizer=optimizer or ps.Adam(lr=0.1))
    with strategy.scope():
        ps.Variable(
            np.arange(39, dtype="float32").reshape(13, 3), name="dense/sharded", partitioner=ps.FixedShards(servers)
        )
        ps.Variable(1.5, name="scalar")
        ps.Variable(np.arange(5), name="counts")
        ps.Embedding(11, 4, name="rows")
        ps.Embedding(None, 4, name="hashed", capacity=100)
    return strategy


def _train(strategy: ps.ParameterServerStrategy, steps: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    found: dict[str, Any] = dict(strategy.variables)
    for _ in range(steps):
        rows, hashed = random.integers(0, 11, 6), random.integers(-(2**60), 2**60, 3)
        strategy.push(
            [
                (random.normal(size=(13, 3)), found["dense/sharded"]),
                (random.normal(), found["scalar"]),
                (ps.IndexedSlices(random.normal(size=(6, 4)), rows), found["rows"]),
                (ps.IndexedSlices(random.normal(size=(3, 4)), hashed), found["hashed"]),
            ]
        )
        found["counts"].assign_add(1)


def _read(strategy: ps.ParameterServerStrategy) -> list[bytes]:
    found = strategy.snapshot()
    hashed = found["hashed"]
    return [
        found["dense/sharded"].tobytes(),
        found["scalar"].tobytes(),
        found["counts"].tobytes(),
        found["rows"].lookup(np.arange(11)).tobytes(),
        hashed.ids.tobytes(),
        hashed.rows.tobytes(),
    ]


@pytest.mark.parametrize("servers", [1, 2, 5])
def test_saved_with_three_servers_loaded_with_others_trains_on_bit_by_bit(tmp_path: Path, servers: int) -> None:
    """A4 #51: TensorFlow narrows this to variables without slots."""
    first = _make(3)
    _train(first, 4, seed=1)
    path = first.save(tmp_path / "checkpoint", {"epoch": 2})
    _train(first, 4, seed=2)

    second = _make(servers)
    assert second.restore(path) == {"epoch": 2}
    _train(second, 4, seed=2)

    assert _read(second) == _read(first)
    first.close()
    second.close()


def test_a_checkpoint_is_read_with_numpy_alone_and_without_servers(tmp_path: Path) -> None:
    """A1 #9: the evaluator needs only the folder."""
    strategy = _make(2)
    _train(strategy, 3, seed=0)
    path = Path(strategy.save(tmp_path / "checkpoint"))
    live = strategy.snapshot()
    strategy.close()

    assert np.array_equal(np.load(path / "dense%2Fsharded" / "value.npy"), live["dense/sharded"])
    assert np.load(path / "dense%2Fsharded" / "average.npy").shape == (13, 3)
    assert json.loads((path / "manifest.json").read_text())["variables"]["scalar"]["step"] == 3
    found = ps.load_checkpoint(path)
    ids = np.arange(11)
    assert np.array_equal(found["rows"].lookup(ids), live["rows"].lookup(ids))
    assert found["counts"].tolist() == [3, 4, 5, 6, 7]


def test_what_does_not_fit_is_named_and_nothing_is_changed(tmp_path: Path) -> None:
    strategy = ps.ParameterServerStrategy({"worker": 1, "server": 1}, optimizer=ps.SGD(lr=0.1))
    with strategy.scope():
        weights = ps.Variable(np.zeros((2, 3), "float32"), name="weights")
    path = strategy.save(tmp_path / "checkpoint")
    weights.assign(np.ones((2, 3)))

    other = ps.ParameterServerStrategy({"worker": 1, "server": 1}, optimizer=ps.SGD(lr=0.1))
    with other.scope():
        ps.Variable(np.zeros((2, 4), "float32"), name="weights")
    with pytest.raises(ps.CheckpointMismatchError, match=r"`weights` is float32\[2, 4\] here, but float32\[2, 3\] in"):
        other.restore(path)
    third = ps.ParameterServerStrategy({"worker": 1, "server": 1}, optimizer=ps.Adagrad(lr=0.1))
    with third.scope():
        kept = ps.Variable(np.ones((2, 3), "float32"), name="weights")
    with pytest.raises(ps.CheckpointMismatchError, match=r"keeps \['sum'\] here, but kept \[\] in"):
        third.restore(path)
    assert kept.numpy().sum() == 6
    with third.scope():
        ps.Variable(0.0, name="more")
    with pytest.raises(ps.CheckpointMismatchError, match=r"checkpoint lacks \['more'\]\. Make the same"):
        third.restore(path)
    fourth = ps.ParameterServerStrategy({"worker": 1, "server": 1})
    with pytest.raises(
        ps.CheckpointMismatchError, match=r"checkpoint has \['weights'\], which this strategy lacks\. Make"
    ):
        fourth.restore(path)
    with fourth.scope():
        ps.Variable(0.0, name="more")
    with pytest.raises(ps.CheckpointMismatchError, match=r"lacks \['more'\], and .* has \['weights'\], which"):
        fourth.restore(path)
    with pytest.raises(FileNotFoundError, match="is not a checkpoint of variables"):
        strategy.restore(tmp_path)
    with pytest.raises(FileExistsError, match="is not a checkpoint"):
        strategy.save(tmp_path)
    for one in (strategy, other, third):
        one.close()


def test_a_table_that_is_too_small_for_a_checkpoint_leaves_all_as_it_is(tmp_path: Path) -> None:
    def make(capacity: int) -> ps.ParameterServerStrategy:
        strategy = ps.ParameterServerStrategy({"worker": 1, "server": 1})
        with strategy.scope():
            ps.Variable(1.0, name="first")
            ps.Embedding(None, 1, name="table", capacity=capacity, initializer=ps.Zeros())
        return strategy

    found: dict[str, Any]
    large, small = make(90), make(50)
    found = dict(large.variables)
    found["table"].assign_rows(np.arange(90), np.ones((90, 1)))
    path = large.save(tmp_path / "checkpoint")
    found = dict(small.variables)
    found["first"].assign(5.0)
    found["table"].assign_rows([7], [[70.0]])
    with pytest.raises(ps.CapacityError, match="has room for 50 ids on server 0, but 90 of the 90 in"):
        small.restore(path)
    assert float(found["first"]) == 5.0
    assert found["table"].lookup([7, 8]).tolist() == [[70.0], [0.0]]
    large.close()
    small.close()


def test_a_checkpoint_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    strategy = _make(1)
    path = Path(strategy.save(tmp_path / "checkpoint"))
    before = (path / "manifest.json").read_text()
    with pytest.raises(TypeError, match="not JSON serializable"):
        strategy.save(path, {"bad": object()})
    assert (path / "manifest.json").read_text() == before
    assert [one.name for one in tmp_path.iterdir()] == ["checkpoint"]
    strategy.close()


def test_a_sidecar_evaluator_takes_the_newest_and_tolerates_deletion(tmp_path: Path) -> None:
    """A6 #75, #76."""
    strategy = ps.ParameterServerStrategy({"worker": 1, "server": 1})
    with strategy.scope():
        step = ps.Variable(0, name="step")
    seen: list[int] = []

    def evaluate(found: ps.Snapshot) -> int:
        seen.append(int(found["step"]))
        return seen[-1]

    evaluator = ps.SidecarEvaluator(evaluate, tmp_path / "checkpoints", max_evaluations=3)
    assert evaluator.evaluate_newest() is None
    for number in (1, 2, 3):
        step.assign(number)
        strategy.save(tmp_path / "checkpoints" / f"checkpoint-{number}")
    (tmp_path / "checkpoints" / ".half").mkdir()
    assert evaluator.evaluate_newest() is not None
    assert evaluator.evaluate_newest() is None
    shutil.rmtree(tmp_path / "checkpoints" / "checkpoint-3")
    (tmp_path / "checkpoints" / "checkpoint-3").mkdir()  # deleted, but for its folder
    assert evaluator.evaluate_newest() is not None
    assert seen == [3, 2]
    live = ps.SidecarEvaluator(evaluate, strategy, max_evaluations=1)
    assert [result.value for result in live.start()] == [3]
    with pytest.raises(ValueError, match="must be 1 or more"):
        ps.SidecarEvaluator(evaluate, strategy, max_evaluations=0)
    with pytest.raises(TypeError, match="must be a function of a snapshot"):
        ps.SidecarEvaluator("accuracy", strategy)  # type: ignore[arg-type]
    strategy.close()


def test_a_snapshot_is_one_cut_while_training_goes_on() -> None:
    """E2 #10: all rows and variables of a push, or none of it."""
    strategy = ps.ParameterServerStrategy({"worker": 2, "server": 2}, optimizer=ps.SGD(lr=1.0))
    with strategy.scope():
        table = ps.Embedding(20_000, 8, initializer=ps.Zeros(), name="table")
        total = ps.Variable(np.zeros(3, "float32"), name="total")
    coordinator = ps.Coordinator(strategy)

    def step(number: int) -> None:
        ids = np.random.default_rng(number).choice(20_000, 500, replace=False)
        strategy.push([(ps.IndexedSlices(np.full((500, 8), -1.0), ids), table), (np.full(3, -500.0), total)])

    for number in range(300):
        coordinator.schedule(step, args=(number,))
    versions = []
    while not coordinator.done():
        found = strategy.snapshot()
        versions.append(found.version)
        rows = found["table"].lookup(np.arange(20_000))
        assert rows.sum(0).tolist() == [found.version * 500.0] * 8
        assert found["total"].tolist() == [found.version * 500.0] * 3
    assert strategy.snapshot().version == 300
    assert len(set(versions)) > 2  # some were taken in the middle
    strategy.close()


def _flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize(
    ("name", "damage", "kind", "match"),
    [
        (
            "manifest.json",
            lambda file: file.write_bytes(b"\xff\xfe{}"),
            ps.CheckpointDamagedError,
            "is damaged: it is not JSON",
        ),
        (
            "manifest.json",
            lambda file: file.write_text("[1]"),
            ps.CheckpointDamagedError,
            "is damaged: it is not a manifest",
        ),
        ("weights/value.npy", _flip, ps.CheckpointDamagedError, "is damaged: it has changed since it was written"),
        (
            "weights/value.npy",
            lambda file: file.write_bytes(file.read_bytes()[:-9]),
            ps.CheckpointDamagedError,
            "it has changed",
        ),
        ("weights/value.npy", lambda file: file.unlink(), FileNotFoundError, "is gone"),
    ],
    ids=["text", "other", "bit", "cut", "gone"],
)
def test_a_damaged_checkpoint_is_refused_by_file(
    tmp_path: Path, name: str, damage: Any, kind: type[Exception], match: str
) -> None:
    strategy = ps.ParameterServerStrategy({"worker": 1, "server": 1})
    with strategy.scope():
        weights = ps.Variable(np.ones((2, 3), "float32"), name="weights")
    path = Path(strategy.save(tmp_path / "checkpoint"))
    weights.assign(np.zeros((2, 3)))
    damage(path / name)
    for read in (strategy.restore, ps.load_checkpoint):
        with pytest.raises(kind, match=f"{name}'.*{match}"):
            read(path)
    assert weights.numpy().sum() == 0
    strategy.close()


def test_it_goes_to_a_store_and_back(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    path = f"memory://{tmp_path.name}/runs/checkpoint"
    with contextlib.closing(_make(2)) as strategy:
        _train(strategy, 5, 0)
        assert strategy.save(path, {"epoch": 3}) == path
        before = _read(strategy)
        _train(strategy, 5, 1)
        strategy.save(path, {"epoch": 4})  # in place of the first
        after = _read(strategy)
        assert ps.load_checkpoint(path)["counts"].tolist() == [10, 11, 12, 13, 14]
    with contextlib.closing(_make(3)) as strategy:
        assert strategy.restore(path) == {"epoch": 4}
        assert _read(strategy) == after != before
        with pytest.raises(FileNotFoundError, match=r"There is no folder 'memory://.*/gone' in the store"):
            strategy.restore(f"memory://{tmp_path.name}/gone")
        with pytest.raises(FileExistsError, match=r"exists but has no manifest\.json"):
            strategy.save(f"memory://{tmp_path.name}/runs")
        with pytest.raises(ValueError, match="has the unknown scheme 'floppy'"):
            strategy.save("floppy://a/b")
    with pytest.raises(ValueError, match="SidecarEvaluator's folder must be a path of this machine"):
        ps.SidecarEvaluator(len, "memory://x")


def test_a_path_that_cannot_be_saved_to_is_named(tmp_path: Path):
    strategy = _make(1)
    given: list[tuple[Any, Any, str]] = [
        (b"bytes", TypeError, r"must be a str or a pathlib.Path, but received b'bytes'.*os.fsdecode"),
        ("", ValueError, r"The path of a checkpoint is empty"),
        (".", (ValueError, FileExistsError), r"is an existing folder.*Give the path of a folder in it"),
        (str(tmp_path / ".."), (ValueError, FileExistsError), r"is an existing folder"),
    ]
    for path, kind, text in given:
        with pytest.raises(kind, match=text):
            strategy.save(path)
    (tmp_path / "latest").symlink_to(tmp_path / "nothing")
    for _ in range(3):
        strategy.restore(strategy.save(tmp_path / "latest"))
    strategy.close()


def test_a_sidecar_evaluator_sees_a_checkpoint_that_is_replaced(tmp_path: Path) -> None:
    strategy = ps.ParameterServerStrategy({"worker": 1, "server": 1})
    with strategy.scope():
        step = ps.Variable(0, name="step")
    evaluator = ps.SidecarEvaluator(lambda found: int(found["step"]), tmp_path)
    found = []
    for number in range(3):
        step.assign(number)
        strategy.save(tmp_path / "latest")
        found += [evaluator.evaluate_newest(), evaluator.evaluate_newest()]
    assert [one and one.value for one in found] == [0, None, 1, None, 2, None]
    strategy.close()


class Ones(ps.Initializer):
    """One of the user's own."""

    def fill(self, ids: Any, out: Any) -> None:
        """Write ones."""
        out[...] = 1


def test_what_a_checkpoint_cannot_know_of_a_row_is_not_made_up(tmp_path: Path) -> None:
    def make() -> ps.ParameterServerStrategy:
        strategy = ps.ParameterServerStrategy({"worker": 1, "server": 2})
        with strategy.scope():
            ps.Embedding(4, 2, name="table", initializer=Ones())
        return strategy

    first, second = make(), make()
    table: Any = first.variables["table"]
    assert table.lookup([2]).tolist() == [[1, 1]]
    path = first.save(tmp_path / "checkpoint")
    loaded = ps.load_checkpoint(path)["table"]
    assert loaded.lookup([2]).tolist() == [[1, 1]]
    with pytest.raises(
        ps.CheckpointMismatchError, match=r"no row for the id 3, and it does not hold '.*Ones', the initializer"
    ):
        loaded.lookup([2, 3])
    second.restore(path)
    assert second.snapshot()["table"].lookup([2, 3]).tolist() == [[1, 1], [1, 1]]
    assert loaded.lookup([]).shape == (0, 2)
    with pytest.raises(TypeError, match="Ids are whole numbers, but received float64"):
        loaded.lookup([2.5])
    first.close()
    second.close()
