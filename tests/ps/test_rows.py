"""Tables against a dict: ids by number and hashed, lazily made, updated, undone, evicted, saved, and grown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hocket
from hocket import ps
from hocket.ps import errors
from hocket.ps.stores import memory, records, rows

DIM = 3
START = ps.Uniform(-1, 1, seed=3)
OPTIMIZERS = [ps.SGD(lr=0.5), ps.Adagrad(lr=0.5, initial_accumulator=0.1), ps.Adam(lr=0.5)]


class Table:
    """A shard with memory of its own."""

    def __init__(self, room: int, optimizer: Any, *, is_hashed: bool, eviction: ps.Eviction | None = None) -> None:
        self.spec = records.TableSpec(
            0, 0, "table", room, DIM, "float32", optimizer, START, is_hashed, 1, 0, eviction, records.NO_MEMORY
        )
        self.kept = memory.create(rows.plan(self.spec).nbytes, "test")
        self.shard = rows.TableShard(self.spec, self.kept)

    def read(self, ids: Any) -> Any:
        """What `Store.read_rows` does."""
        found = self.shard.read(ids)
        if found is None:
            self.shard.make(ids)
            found = self.shard.read(ids)
        assert found is not None
        return found


class Model:
    """What a table is to its user: for each id a row and its slots."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer
        self.known: dict[int, list[Any]] = {}
        self.step = 0
        self.updates = 0

    def get(self, one: int) -> list[Any]:
        if one not in self.known:
            row = np.empty((1, DIM), np.float32)
            START.fill(np.array([one]), row)
            slots = [np.full(DIM, self.optimizer.slot_initial(name), np.float32) for name in self.optimizer.slots]
            self.known[one] = [row[0], *slots]
        return self.known[one]

    def apply(self, kind: str, ids: Any, values: Any) -> None:
        self.updates += 1
        self.step += kind == "rows_gradient"
        for one, value in zip(ids.tolist(), values, strict=True):
            parts = self.get(one)
            if kind == "rows_gradient":
                self.optimizer.apply(parts[0], parts[1:], value, self.step, parts[0], parts[1:])
            else:
                parts[0][:] = value + parts[0] if kind == "rows_add" else value


def check_export(shard: Any, model: Model, evicts: bool) -> dict[str, Any]:
    found: dict[str, Any] = shard.export()
    names = found["ids"].tolist()
    assert len(set(names)) == len(names)
    if evicts:  # what is forgotten begins anew
        model.known = {one: parts for one, parts in model.known.items() if one in set(names)}
    assert set(names) == set(model.known)
    for place, one in enumerate(names):
        for part, want in zip([found["value"], *found["slots"]], model.known[one], strict=True):
            np.testing.assert_allclose(part[place], want, rtol=1e-5, atol=1e-6)
    assert (found["step"], found["updates"]) == (model.step, model.updates)
    return found


def check_hits(before: dict[str, Any], after: dict[str, Any], asked: Any) -> None:
    """Each id that was asked for was hit once more."""
    hits, new = (dict(zip(one["ids"].tolist(), one["hits"].tolist(), strict=True)) for one in (before, after))
    assert all(new[one] == hits.get(one, 0) + 1 for one in asked.tolist())


def check_who_went(before: dict[str, Any], after: dict[str, Any], by: str, asked: Any) -> None:
    """Nobody went who was used more, or later, than one who stayed and was not asked for."""
    order = dict(zip(before["ids"].tolist(), before["last_steps" if by == "age" else "hits"].tolist(), strict=True))
    stayed = set(after["ids"].tolist())
    gone = set(order) - stayed
    assert not gone & set(asked.tolist())
    if gone:
        others = [order[one] for one in set(order) & stayed - set(asked.tolist())]
        assert max(order[one] for one in gone) <= min(others, default=2**62)


@settings(deadline=None, max_examples=25)
@given(
    st.integers(0, 2**32 - 1), st.sampled_from(OPTIMIZERS), st.sampled_from(["numbers", "hashed", "age", "frequency"])
)
def test_a_table_does_what_a_dict_does(seed, optimizer, kind):
    generator = np.random.default_rng(seed)
    room = 40
    eviction = ps.Eviction(by=kind, fraction=0.2) if kind in ("age", "frequency") else None
    table = Table(room, optimizer, is_hashed=kind != "numbers", eviction=eviction)
    names = (
        np.arange(room)
        if kind == "numbers"
        else generator.integers(-(2**63), 2**63 - 1, 3 * room if eviction else room)
    )
    model, shard = Model(optimizer), table.shard
    before = shard.export()
    for _ in range(20):
        asked = generator.choice(names, generator.integers(1, 13), replace=False)
        action = generator.choice(["read", "rows_gradient", "rows_add", "rows_assign", "undone", "restored"])
        if action == "read":
            asked = generator.choice(asked, len(asked) * 2)  # some twice, in any order
            found = table.read(asked)
            after = shard.export()
            model.known = {one: parts for one, parts in model.known.items() if one in set(after["ids"].tolist())}
            for one, row in zip(asked.tolist(), found, strict=True):
                np.testing.assert_allclose(row, model.get(one)[0], rtol=1e-5, atol=1e-6)
        elif action == "restored":
            copy = Table(room, optimizer, is_hashed=kind != "numbers", eviction=eviction)
            copy.read(generator.choice(names, 5, replace=False))  # what was there is gone
            copy.shard.prepare(records.Operation(0, "restore", before))
            table, shard = copy, copy.shard
        else:
            values = generator.normal(size=(len(asked), DIM)).astype(np.float32)
            operation = records.Operation(0, "rows_gradient" if action == "undone" else action, values, asked)
            shard.prepare(operation)
            kept = set(shard.export()["ids"].tolist())
            model.known = {one: parts for one, parts in model.known.items() if one in kept}
            check_hits(before, shard.export(), asked)
            if action == "undone":
                shard.undo()
                shard.undo()
                for one in asked.tolist():
                    model.get(one)
            else:
                shard.commit()
                shard.commit()
                shard.undo()  # nothing is left to undo
                model.apply(action, asked, values)
        after = check_export(shard, model, eviction is not None)
        if eviction is not None and action != "restored":
            check_who_went(before, after, kind, asked)
        before = after


def test_ids_that_want_the_same_place_find_each_other():
    """All ids of one place of the index, as many as there is room for: each is found behind the others, over the
    index's end."""
    table = Table(50, ps.SGD(lr=1.0), is_hashed=True)
    many = np.arange(200_000)
    places = table.shard._index._hash(many)
    ids = many[places == len(table.shard._index._places) - 1][:50]
    assert len(ids) == 50
    found = np.concatenate([table.read(ids[::-1][:7]), table.read(ids)])
    want = np.empty((50, DIM), np.float32)
    START.fill(ids, want)
    np.testing.assert_array_equal(found, np.concatenate([want[::-1][:7], want]))
    with pytest.raises(
        errors.CapacityError, match="has room for 50 ids on server 0 and holds 50, but received 1 new ones"
    ):
        table.read(np.array([-1]))
    np.testing.assert_array_equal(table.read(ids), want)


def test_old_rows_can_be_given_up():
    table = Table(10, ps.SGD(lr=1.0), is_hashed=True)
    for one in range(4):
        table.shard.prepare(records.Operation(0, "rows_add", np.ones((1, DIM)), np.array([one])))
        table.shard.commit()
    assert table.shard.evict_idle(2) == 2
    assert sorted(table.shard.export()["ids"].tolist()) == [2, 3]
    assert table.shard.statistics() == {"rows": 2, "evicted": 2, "updates": 4}


def test_rows_that_are_not_there_take_no_memory():
    table = Table(1_000_000, ps.Adam(), is_hashed=True)
    asked = np.random.default_rng(0).integers(0, 2**62, 500)
    table.read(asked)
    table.shard.prepare(records.Operation(0, "rows_gradient", np.ones((500, DIM), np.float32), asked))
    table.shard.commit()
    assert table.kept.ref.nbytes > 100 * 2**20
    assert Path(table.kept.ref.path).stat().st_blocks * 512 < 500 * 2 * 4096  # two pages an id, of the index above all


@pytest.mark.parametrize("number", [10_000, None])
def test_rows_are_the_same_on_any_number_of_servers(number):
    generator = np.random.default_rng(0)
    asked = [generator.zipf(1.3, (40, 8)) % 10_000 for _ in range(4)]
    gradients = [generator.normal(size=(40, 8, DIM)).astype(np.float32) for _ in range(4)]
    found = []
    with hocket.init(engine="inprocess"):
        for servers in (1, 2, 3):
            strategy = ps.ParameterServerStrategy({"worker": 1, "server": servers}, optimizer=OPTIMIZERS[1])
            with strategy.scope():
                table = ps.Embedding(number, DIM, capacity=None if number else 10_000, initializer=START)
            for turn, (ids, gradient) in enumerate(zip(asked, gradients, strict=True)):
                lookup = table.pull(ids if servers != 2 else ids.astype(np.int32))
                pushed = lookup.gradient(gradient) if turn % 2 else ps.IndexedSlices(gradient, ids)
                strategy.push([(pushed, table)])
            found.append(table.lookup(np.arange(2_000)))
            assert table.servers == tuple(range(servers))
            strategy.close()
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


def test_what_a_lookup_and_a_push_refuse():
    with hocket.init(engine="inprocess"):
        strategy = ps.ParameterServerStrategy({"worker": 1, "server": 1}, optimizer=ps.SGD(lr=1.0))
        with strategy.scope():
            table = ps.Embedding(10, 2, initializer=ps.Zeros())
        lookup = table.pull([[1, 2], [2, 2]])
        with pytest.raises(
            ValueError, match=r"must have the shape \(2, 2, 'dim'\), a row for each requested id, but received \(2, 2\)"
        ):
            lookup.gradient(np.ones((2, 2)))
        with pytest.raises(
            errors.NonFiniteGradientError,
            match=r"is NaN or infinite in 1 of 8 values; the first is nan at \(1, 0, 1\)",
        ):
            strategy.push(
                [(ps.IndexedSlices(np.where(np.arange(8).reshape(2, 2, 2) == 5, np.nan, 1), [[1, 2], [2, 2]]), table)]
            )
        with pytest.raises(errors.NonFiniteGradientError, match="is inf at"):  # of two finite numbers
            strategy.push([(ps.IndexedSlices(np.full((2, 2), 3e38, np.float32), [4, 4]), table)])
        assert not table.lookup(np.arange(10)).any()
        out = np.empty((2, 2, 2), np.float32)
        assert lookup.expand(out) is out
        for use in (
            lambda: lookup @ np.ones(2),
            lambda: np.ones(2) @ lookup,
            lambda: lookup + 1,
            lambda: np.ones(2) - lookup,
            lambda: np.asarray(lookup),
            lambda: lookup[0],
        ):
            with pytest.raises(TypeError, match=r"has each row once, and is not an array\. Write \.expand\(\)"):
                use()
        with pytest.raises(
            TypeError, match=r"cannot be indexed, .* Write .*\.lookup\(3\), or .*\.pull\(\.\.\.\)\.expand"
        ):
            table[3]
        with pytest.raises(TypeError, match=r"name its rows, .* Write ps\.IndexedSlices\(values, ids\)"):
            strategy.push([(np.ones((10, 2)), table)])
        assert table.pull([]).expand().shape == (0, 2)
        assert table.lookup(()).shape == (0, 2)
        with pytest.raises(TypeError, match=r"are whole numbers, but received float64\. Write ids\.astype\('int64'\)"):
            table.pull(np.empty(0))
        strategy.close()


@pytest.mark.parametrize(("policy", "row"), [("skip", [0.0, 0.0]), ("clip", [-1.0, -4.0])])
def test_a_gradient_that_is_no_number_is_skipped_or_cleaned(policy, row):
    with hocket.init(engine="inprocess"):
        strategy = ps.ParameterServerStrategy(
            {"worker": 1, "server": 1}, optimizer=ps.SGD(lr=1.0), bad_gradients=policy
        )
        with strategy.scope():
            table = ps.Embedding(10, 2, initializer=ps.Zeros())
        outcome = strategy.push([(ps.IndexedSlices(np.array([[1.0, 2.0], [np.nan, np.inf]]), [3, 3]), table)])
        assert outcome.is_applied == (policy == "clip")
        assert table.lookup(3).tolist() == row
        strategy.close()


@pytest.mark.parametrize("by", ["age", "frequency"])
def test_rows_that_are_asked_for_stay_when_others_make_room(by):
    """Also where a tenth of the table is more than the rows that are not asked for."""
    table = Table(100, ps.SGD(lr=1.0), is_hashed=True, eviction=ps.Eviction(by=by))
    write(table, np.arange(58))
    ids = np.concatenate([np.arange(55), np.arange(1000, 1045)])
    write(table, ids)
    assert (table.read(ids)[:, 0] == ids).all()
    assert table.shard.statistics()["rows"] == 100


def write(table: Table, ids: Any) -> None:
    values = np.repeat(ids[:, None], DIM, axis=1).astype(np.float32)
    table.shard.prepare(records.Operation(0, "rows_assign", values, ids))
    table.shard.commit()


def test_a_push_of_no_rows_is_undone_as_any_other():
    table = Table(4, ps.Adam(), is_hashed=False)
    nothing = records.Operation(0, "rows_gradient", np.zeros((0, DIM), np.float32), np.zeros(0, np.int64))
    table.shard.prepare(nothing)
    table.shard.undo()
    assert table.shard.export()["step"] == table.shard.export()["updates"] == 0
    table.shard.prepare(nothing)
    table.shard.commit()
    table.shard.undo()
    assert table.shard.export()["step"] == table.shard.export()["updates"] == 1


def test_two_snapshots_at_a_time_have_each_its_own_moment():
    table = Table(4, ps.SGD(lr=1.0), is_hashed=False)
    one, two = np.arange(1), np.arange(2)
    write(table, two)
    first, _, none = table.shard.begin_snapshot()
    table.shard.prepare(records.Operation(0, "rows_assign", np.full((1, DIM), 5.0), one))
    _, ids, second = table.shard.begin_snapshot()
    table.shard.prepare(records.Operation(0, "rows_assign", np.full((1, DIM), 6.0), one))
    assert none is None
    assert second is not None
    assert ids.tolist() == [0, 1]
    assert second[:, 0].tolist() == [5.0, 1.0]
    assert table.shard.snapshot.finish(first)[:, 0].tolist() == [0.0, 1.0]
    assert table.shard.begin_snapshot()[2] is None


@pytest.mark.parametrize(("dtype", "number"), [("int8", 1), ("uint8", 200), ("float16", 60_000)])
def test_gradients_of_one_id_are_added_up_in_the_tables_type(dtype, number):
    ids, values = np.full(300, 3), np.full((300, 1), number, dtype)
    with hocket.init(engine="inprocess"):
        strategy = ps.ParameterServerStrategy({"worker": 1, "server": 1}, optimizer=ps.SGD(lr=1.0))
        with strategy.scope():
            table = ps.Embedding(4, 1, initializer=ps.Zeros())
        strategy.push([(ps.IndexedSlices(values, ids), table)])
        assert table.lookup([3]).item() == -300 * number
        table.add_rows(ids, values)
        assert table.lookup([3]).item() == 0
        strategy.push([(table.pull(ids).gradient(values), table)])
        assert table.lookup([3]).item() == -300 * number
        strategy.close()
