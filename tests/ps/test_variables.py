"""Variables against numpy, where they are, and what they refuse. Numbers: docs/ps.md."""

from __future__ import annotations

import operator
import pickle
import threading
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.extra.numpy
import numpy as np
import pytest
from hypothesis import strategies as st

from hocket import ps
from hocket.ps import errors
from hocket.ps.rules import partitioners
from tests.ps.conftest import Files

QUICK = hypothesis.settings(
    max_examples=60, deadline=None, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture]
)


@pytest.fixture(scope="module")
def module_strategy(shared_session) -> Any:
    strategy = ps.ParameterServerStrategy({"worker": 1, "server": 3}, optimizer=ps.SGD(lr=1.0))
    yield strategy
    strategy.close()


_made: dict[Any, Any] = {}


def make(strategy: ps.ParameterServerStrategy, shape: tuple[int, ...], shards: int) -> Any:
    """Return a variable of a shape; the same again, as memory is kept until the strategy ends."""
    key = id(strategy), shape, shards
    if key not in _made:
        _made[key] = strategy.make_variable(np.zeros(shape, "float32"), partitioner=ps.FixedShards(shards))
    return _made[key]


SHAPES = st.tuples(st.integers(1, 7)) | st.tuples(st.integers(1, 7), st.integers(1, 3))


@QUICK
@hypothesis.given(data=st.data(), shape=SHAPES, shards=st.integers(1, 4))
def test_reading_is_numpy(module_strategy, data, shape, shards):
    """A4 #48: every index that numpy takes, and operators from both sides."""
    array = np.arange(np.prod(shape), dtype="float32").reshape(shape) + data.draw(st.integers(-3, 3))
    variable = make(module_strategy, shape, shards).assign(array)
    index = data.draw(hypothesis.extra.numpy.basic_indices(shape, allow_newaxis=True, allow_ellipsis=True))
    np.testing.assert_array_equal(variable[index], array[index])
    mask = data.draw(hypothesis.extra.numpy.arrays(bool, shape))
    np.testing.assert_array_equal(variable[mask], array[mask])
    np.testing.assert_array_equal(variable[::-1], array[::-1])
    other = array * 2 + 1
    for one in (
        operator.add,
        operator.sub,
        operator.mul,
        operator.truediv,
        operator.lt,
        operator.ge,
        operator.eq,
        operator.pow,
    ):
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(one(variable, other), one(array, other))
            np.testing.assert_array_equal(one(other, variable), one(other, array))
    np.testing.assert_array_equal(-variable, -array)
    np.testing.assert_array_equal(abs(variable), abs(array))
    np.testing.assert_array_equal(np.maximum(variable, 1), np.maximum(array, 1))
    np.testing.assert_array_equal(np.asarray(variable, "float64"), array.astype("float64"))
    assert variable.numpy().sum() == array.sum()
    assert len(variable) == len(array)
    np.testing.assert_array_equal(list(variable), list(array))
    rows = data.draw(st.lists(st.integers(0, shape[0] - 1), max_size=5))
    np.testing.assert_array_equal(variable.sparse_read(np.array(rows, int)), array[np.array(rows, int)])
    out = np.empty(shape, "float32")
    assert variable.read_value(out) is out
    np.testing.assert_array_equal(out, array)


SCATTER = {
    "add": np.add.at,
    "sub": np.subtract.at,
    "mul": np.multiply.at,
    "div": np.divide.at,
    "min": np.minimum.at,
    "max": np.maximum.at,
}


@QUICK
@hypothesis.given(data=st.data(), shape=SHAPES, shards=st.integers(1, 4))
def test_writing_is_numpy(module_strategy, data, shape, shards):
    """A4 #48: assign, assign_add, assign_sub, and scatters with rows that repeat."""
    array = np.ones(shape, "float32")
    variable = make(module_strategy, shape, shards).assign(array)
    for _ in range(4):
        kind = data.draw(st.sampled_from(["assign", "assign_add", "assign_sub", "update", *SCATTER]))
        amount = np.float32(data.draw(st.integers(1, 4)))
        if kind.startswith("assign"):
            whole = np.full(shape, amount, "float32")
            assert getattr(variable, kind)(whole) is variable
            array = {"assign": whole, "assign_add": array + whole, "assign_sub": array - whole}[kind]
            continue
        rows = np.array(
            data.draw(st.lists(st.integers(0, shape[0] - 1), min_size=1, max_size=4, unique=kind == "update"))
        )
        values = np.full((len(rows), *shape[1:]), amount, "float32") + np.arange(len(rows), dtype="float32").reshape(
            -1, *[1] * (len(shape) - 1)
        )
        assert getattr(variable, f"scatter_{kind}")(rows, values) is variable
        if kind == "update":
            array[rows] = values
        else:
            SCATTER[kind](array, rows, values)
    np.testing.assert_allclose(variable.numpy(), array, rtol=1e-6)
    np.testing.assert_allclose(
        np.concatenate([part.numpy() for part in getattr(variable, "variables", [variable])]), array, rtol=1e-6
    )


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("shape", [(6,), (6, 3), (6, 3, 2)])
@pytest.mark.parametrize("indices", [[], [0, 2], [5, 1, 5, 5], [[0, 1], [5, 0]]])
def test_a_gradient_of_some_rows_is_that_of_the_whole(module_strategy, shape, shards, indices):
    """As the gradient of an embedding that is a plain variable."""
    with module_strategy.scope():
        variable = ps.Variable(np.zeros(shape, "float32"), partitioner=ps.FixedShards(shards), optimizer=ps.SGD(lr=1.0))
    numbers = np.array(indices, np.int64)
    values = np.arange(numbers.size * np.prod(shape[1:], dtype=int), dtype="float64") + 1
    values = values.reshape(*numbers.shape, *shape[1:])
    expected = np.zeros(shape, "float32")
    np.add.at(expected, numbers, values)
    assert module_strategy.push([(ps.IndexedSlices(values, numbers), variable)]).is_applied
    np.testing.assert_array_equal(variable.numpy(), -expected)


@pytest.mark.parametrize(
    ("values", "indices", "kind", "text"),
    [
        (np.ones((2, 3)), [0, 6], IndexError, r"has the rows 0 to 5, but received 6"),
        (np.ones((2, 3)), [-1, 0], IndexError, r"has the rows 0 to 5, but received -1"),
        (np.ones((2, 3)), [0.0, 1.0], TypeError, r"must be whole numbers, but received float64"),
        (np.ones((3, 3)), [0, 1], ValueError, r"2 rows of .* must have the shape \(2, 3\), .* but received \(3, 3\)"),
        (np.ones((2, 4)), [0, 1], ValueError, r"must have the shape \(2, 3\), .* but received \(2, 4\)"),
        (
            np.ones((2, 3), complex),
            [0, 1],
            TypeError,
            r"holds float32, but received complex128, which cannot be converted",
        ),
    ],
)
def test_a_gradient_of_rows_that_do_not_fit_is_refused(module_strategy, values, indices, kind, text):
    with module_strategy.scope():
        variable = ps.Variable(np.zeros((6, 3), "float32"), optimizer=ps.SGD(lr=1.0))
        one = ps.Variable(1.0, optimizer=ps.SGD(lr=1.0))
    with pytest.raises(kind, match=text):
        module_strategy.push([(ps.IndexedSlices(values, np.array(indices)), variable)])
    with pytest.raises(ValueError, match=r"is one number, and has no rows"):
        module_strategy.push([(ps.IndexedSlices(np.ones(1), np.array([0])), one)])


@QUICK
@hypothesis.given(shape=SHAPES, shards=st.integers(1, 4), lr=st.sampled_from([0.5, 2.0]))
def test_a_gradient_of_the_whole_goes_to_each_shard(module_strategy, shape, shards, lr):
    """A4 #50: TensorFlow wants one for each shard."""
    variable = make(module_strategy, shape, shards).assign(np.zeros(shape, "float32"))
    gradient = np.arange(np.prod(shape), dtype="float32").reshape(shape) * lr
    assert module_strategy.push([(gradient, variable)]).is_applied
    np.testing.assert_array_equal(variable.numpy(), -gradient)


@hypothesis.given(rows=st.integers(1, 50), shards=st.integers(1, 60))
def test_rows_are_split_as_evenly_as_possible(rows, shards):
    """A4 #45: 13 rows over 5 are 3, 3, 3, 2, 2."""
    sizes = partitioners.split_rows(rows, min(rows, shards))
    assert sum(sizes) == rows
    assert max(sizes) - min(sizes) <= 1
    assert sorted(sizes, reverse=True) == sizes
    assert partitioners.split_rows(13, 5) == [3, 3, 3, 2, 2]


def test_partitioners_of_a_strategy(module_strategy):
    """A4 #45, #46, #44: what is colocated is not split, nor what is one number."""
    with module_strategy.scope():
        split: Any = ps.Variable(np.zeros((13, 2)), partitioner=ps.FixedShards(5))
        assert isinstance(split, ps.ShardedVariable)
        assert [part.shape[0] for part in split.variables] == [3, 3, 3, 2, 2]
        assert isinstance(ps.Variable(3.0, partitioner=ps.FixedShards(5)), ps.Variable)
        assert len(ps.Variable(np.zeros((6, 1), "float32"), partitioner=ps.MinSize(4, 2)).servers) == 2
        assert len(ps.Variable(np.zeros((6, 1), "float32"), partitioner=ps.MaxSize(4)).servers) == 6
        beside = ps.Variable(np.zeros((13, 2)), colocate_with=split, partitioner=ps.FixedShards(5))
        assert beside.servers == split.servers[:1]
        assert split.shape == (13, 2)
        assert split.dtype == np.float32
        assert repr(split).startswith("<ShardedVariable 'variable_")


def test_bytes_are_even_over_servers(shared_session):
    """A4 #43: TensorFlow counts variables, and some servers get most of the bytes."""
    strategy = ps.ParameterServerStrategy({"worker": 1, "server": 3})
    rng = np.random.default_rng(3)
    with strategy.scope():
        for _ in range(60):
            ps.Variable(np.zeros(int(rng.integers(100, 3000)), "float32"))
            ps.Variable(np.zeros(3, "float32"))
    nbytes = strategy.statistics()["bytes"]
    assert (max(nbytes) - min(nbytes)) / np.mean(nbytes) < 0.1
    strategy.close()


@pytest.mark.parametrize("is_synchronous", [False, True])
def test_a_variable_that_cannot_be_made_leaves_nothing_behind(shared_session, is_synchronous):
    def fill_first(shape: tuple[int, ...], offset: tuple[int, ...]) -> Any:
        if offset[0]:
            raise ZeroDivisionError
        return np.ones(shape)

    def count_memory() -> int:
        found = list(Path("/proc/self/fd").iterdir())
        return sum("hocket-ps-" in str(path.readlink()) for path in found if path.is_symlink())

    strategy = ps.ParameterServerStrategy(
        {"worker": 1, "server": 2}, optimizer=ps.SGD(lr=0.1), synchronous=is_synchronous
    )
    split: dict[str, Any] = {"shape": (4,), "partitioner": ps.FixedShards(2), "name": "it"}
    with strategy.scope():
        ps.Variable([1.0])
        before = count_memory(), strategy.statistics()["bytes"]
        with pytest.raises(TypeError, match="`it` holds int32, but received float64, which cannot be converted"):
            ps.Variable([1.5], dtype="int32", name="it")
        with pytest.raises(OverflowError, match=rf"`it` holds int32, which cannot hold {2**40}"):
            ps.Variable([2**40], dtype="int32", name="it")
        with pytest.raises(ZeroDivisionError):
            ps.Variable(fill_first, **split)
        with pytest.raises(TypeError, match="`it` holds int64, but received float64, which cannot be converted"):
            ps.Variable(lambda shape: np.full(shape, 0.5), dtype="int64", **split)
        with pytest.raises(pickle.PicklingError, match="Unsendable"):
            ps.Embedding(5, 2, name="it", initializer=type("Unsendable", (ps.Uniform,), {})())
        assert (count_memory(), strategy.statistics()["bytes"]) == before
        np.testing.assert_array_equal(ps.Variable(np.ones, dtype="int64", **split).numpy(), [1, 1, 1, 1])
    strategy.close()


def test_initial_values(module_strategy):
    """A4 #47: a function is called for each shard, and told where it begins."""
    asked = []

    def fill(shape: tuple[int, ...], offset: tuple[int, ...]) -> Any:
        asked.append((shape, offset))
        return np.arange(offset[0], offset[0] + shape[0], dtype="float32").reshape(-1, 1)

    with module_strategy.scope():
        made = ps.Variable(fill, shape=(7, 1), partitioner=ps.FixedShards(3))
        np.testing.assert_array_equal(made[:, 0], np.arange(7))
        assert asked == [((3, 1), (0, 0)), ((2, 1), (3, 0)), ((2, 1), (5, 0))]
        np.testing.assert_array_equal(ps.Variable(np.ones, shape=(4,)).numpy(), np.ones(4))
        assert ps.Variable([1.5, 2.5]).dtype == np.float32
        assert ps.Variable(np.zeros(2, "float64"), dtype="float64").dtype == np.float64
        assert ps.Variable(3).dtype == np.int64
        with pytest.raises(ValueError, match=r"needs its shape: ps\.Variable\(function, shape=\(1000, 64\)\)"):
            ps.Variable(np.ones)
        with pytest.raises(ValueError, match=r"must return a value of the shape \(2,\), but returned \(3,\)"):
            ps.Variable(lambda shape: np.ones(3), shape=(2,))
        with pytest.raises(ValueError, match=r"The value has the shape \(2,\), but received shape=\(3,\)"):
            ps.Variable(np.ones(2), shape=(3,))
        with pytest.raises(TypeError, match=r"A variable holds numbers, but received <U1"):
            ps.Variable(["a"])
        named = ps.Variable(1.0, name="mine")
        with pytest.raises(ValueError, match=r"A variable named 'mine' already exists"):
            ps.Variable(1.0, name="mine")
        assert module_strategy.variables["mine"].assign_add(2.0).numpy() == named.numpy() == 3.0
        with pytest.raises(
            errors.CapacityError, match=r"takes [\d.]+ GiB with its optimizer's slots.*this machine has [\d.]+ GiB"
        ):
            ps.Variable(np.zeros, shape=(1 << 40, 4))
    with pytest.raises(RuntimeError, match=r"no strategy is in scope\. Write: with strategy\.scope\(\)"):
        ps.Variable(1.0)
    with pytest.raises(RuntimeError, match=r"no strategy is in scope"):
        ps.Embedding(3, 2)


def test_numbers_that_would_change_are_refused(module_strategy):
    with module_strategy.scope():
        variable = ps.Variable(np.zeros(2, "float32"), optimizer=ps.SGD(lr=1.0))
        number = ps.Variable(3)
        small = ps.Variable(np.zeros(2, "int16"), optimizer=None)
        table = ps.Embedding(None, 2, capacity=10, optimizer=ps.SGD(lr=1.0))
    with pytest.raises(TypeError, match=r"holds float32, but received complex128, which cannot be converted"):
        module_strategy.push([(np.full(2, 1j), variable)])
    with pytest.raises(TypeError, match=r"holds float32, but received complex128, which cannot be converted"):
        module_strategy.push([(ps.IndexedSlices(np.full((1, 2), 1j), [1]), table)])
    with pytest.raises(TypeError, match=r"holds int64, but received float64, which cannot be converted"):
        number.assign_sub(2.5)
    with pytest.raises(TypeError, match=r"holds int16, but received float64, which cannot be converted"):
        small.scatter_add([0], [1.7])
    for write in (small.assign, small.assign_add, small.assign_sub, lambda value: small.scatter_update([0, 1], value)):
        with pytest.raises(OverflowError, match=r"holds int16, which cannot hold 65536\. Make it with a larger"):
            write(np.array([1, 2**16]))
    small.assign([3, 2**15 - 1])
    assert np.asarray(small).tolist() == [3, 2**15 - 1]


def test_bad_writes_are_refused(module_strategy):
    with module_strategy.scope():
        variable = ps.Variable(np.zeros((3, 2), "float32"))
        number = ps.Variable(3)
        plain = ps.Variable(np.zeros(2), optimizer=None)
    with pytest.raises(ValueError, match=r"has the shape \(3, 2\), but was assigned \(2,\)"):
        variable.assign(np.zeros(2))
    with pytest.raises(ValueError, match=r"has the shape \(3, 2\), which \(4,\) cannot be added to"):
        variable.assign_add(np.zeros(4))
    with pytest.raises(
        TypeError,
        match=r"holds int64, but received float64, which cannot be converted safely\. Write value\.astype\('int64'\)",
    ):
        number.assign(2.5)
    for rows, shown in (([3], "3"), ([-1], "-1"), ([0, 7], "7")):
        with pytest.raises(IndexError, match=rf"has the rows 0 to 2, but received {shown}"):
            variable.scatter_add(rows, np.zeros((len(rows), 2)))
        with pytest.raises(IndexError, match=rf"has the rows 0 to 2, but received {shown}"):
            variable.sparse_read(rows)
    with pytest.raises(TypeError, match=r"must be whole numbers, but received float64"):
        variable.scatter_add([0.5], np.zeros((1, 2)))
    with pytest.raises(ValueError, match=r"is one number, and has no rows\. Use assign"):
        number.scatter_add([0], 1)
    with pytest.raises(TypeError, match=r"cannot be assigned in parts\. Use variable_\d+\.scatter_update"):
        variable[0] = 1
    with pytest.raises(TypeError, match=r"has no length: it is one number"):
        len(number)
    with pytest.raises(
        TypeError, match=r"`variable_\d+ \+= \.\.\.` would make an array of it\. Write variable_\d+\.assign_add"
    ):
        variable += 1
    with pytest.raises(
        ValueError, match=r"gradient of `variable_\d+` has the shape \(2,\), but the variable has \(3, 2\)"
    ):
        module_strategy.push([(np.zeros(2), variable)])
    with pytest.raises(ValueError, match=r"has no optimizer, so it takes no gradients"):
        module_strategy.push([(np.zeros(()), number)])
    with pytest.raises(ValueError, match=r"is named twice in one push"):
        module_strategy.push([(np.zeros((3, 2)), variable), (np.zeros((3, 2)), variable)])
    with pytest.raises(TypeError, match=r"received ndarray for a variable"):
        module_strategy.push([(np.zeros(2), np.zeros(2))])
    assert plain.numpy().tolist() == [0.0, 0.0]
    assert (int(number), float(number), bool(number)) == (3, 3.0, True)
    assert pickle.loads(pickle.dumps(variable)).shape == (3, 2)
    assert len({variable, number}) == 2


def test_push_and_pull_say_what_they_take(module_strategy: Any) -> None:
    variable = make(module_strategy, (2,), 1)
    with pytest.raises(TypeError, match=r"for a pair\. Write push\(\[\(gradient, variable\)\]\)"):
        module_strategy.push((np.zeros(2), variable))
    with pytest.raises(TypeError, match=r"pull takes a list of variables, but received `(\S+)` alone\. Write pull\("):
        module_strategy.pull(variable)
    with pytest.raises(TypeError, match=r"pull takes variables, but received 3\. Pass variables that ps\.Variable"):
        module_strategy.pull([3])
    with pytest.raises(TypeError, match=r"pull takes a list of variables, but received 3\. Write pull\("):
        module_strategy.pull(3)


@pytest.mark.parametrize("policy", ["raise", "skip", "clip"])
def test_gradients_that_are_no_numbers(shared_session, policy):
    strategy = ps.ParameterServerStrategy({"worker": 1, "server": 2}, optimizer=ps.SGD(lr=1.0), bad_gradients=policy)
    with strategy.scope():
        one, other = ps.Variable(np.zeros(2)), ps.Variable(np.zeros(3))
        table = ps.Embedding(4, 2, initializer=ps.Zeros())
    bad = [(np.array([1.0, 1.0]), one), (np.array([np.nan, np.inf, -2.0]), other)]
    worse = [(ps.IndexedSlices([[np.nan, 1.0]], [2]), table)]
    if policy == "raise":
        with pytest.raises(
            errors.NonFiniteGradientError,
            match=r"is NaN or infinite in 2 of 3 values; the first is nan at \(0,\)",
        ):
            strategy.push(bad)
        with pytest.raises(errors.NonFiniteGradientError, match=r"`embedding_2` is NaN or infinite in 1 of 2 values"):
            strategy.push(worse)
        assert one.numpy().tolist() == [0, 0]
    elif policy == "skip":
        assert not strategy.push(bad).is_applied
        assert not strategy.push(worse).is_applied
        assert one.numpy().tolist() == [0, 0]
        assert strategy.statistics()["skipped"] == 2
    else:
        assert strategy.push(bad).is_applied
        assert strategy.push(worse).is_applied
        assert (one.numpy().tolist(), other.numpy().tolist()) == ([-1, -1], [0, -2, 2])
        assert table.lookup([2]).tolist() == [[0, -1]]
    strategy.close()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"worker": 1}, r"server"),
        ({"server": 1}, r"worker"),
        ({"worker": 1, "server": 1, "chief": 2}, r"chief"),
        (5, r"cluster must be a ps\.Cluster or a dict, but received 5"),
    ],
)
def test_clusters_that_cannot_train(given, message):
    """A1 #2, #3: refused when the strategy is made, before anything is started."""
    with pytest.raises((ValueError, TypeError), match=message):
        ps.ParameterServerStrategy(given)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_staleness": -1}, r"max_staleness must be 0 or more pushes, or None for no bound, but received -1"),
        ({"bad_gradients": "drop"}, r"must be 'raise', 'skip' or 'clip', but received 'drop'"),
        ({"timeout_s": 0}, r"timeout_s must be more than 0 seconds"),
        ({"optimizer": "sgd"}, r"optimizer must be one of hocket\.ps, such as ps\.SGD\(lr=0\.1\), but received 'sgd'"),
    ],
)
def test_settings_out_of_range(settings, message):
    with pytest.raises((ValueError, TypeError), match=message):
        ps.ParameterServerStrategy({"worker": 1, "server": 1}, **settings)


@pytest.mark.needs("parallelism")
def test_increments_from_everywhere_add_up(coordinator, shared_strategy, files: Files):
    """A4 #54: from workers, and from threads of the coordinator's process."""
    with shared_strategy.scope():
        counter = ps.Variable(np.zeros(4, "int64"), partitioner=ps.FixedShards(2))

    def add_many() -> None:
        for _ in range(100):
            counter.assign_add(1)

    for _ in range(4):
        coordinator.schedule(add_many)
    threads = [threading.Thread(target=add_many) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    coordinator.join()
    assert counter.numpy().tolist() == [600] * 4


def test_a_lookup_moves_rows_and_not_the_table(module_strategy, monkeypatch):
    """A4 #49."""
    with module_strategy.scope():
        table = ps.Embedding(100_000, 4)
        matrix = ps.Variable(np.zeros((10_000, 4), "float32"), partitioner=ps.FixedShards(3))
    moved = 0
    for one in module_strategy._link.stores:
        read_rows = one.read_rows

        def count(number: int, ids: Any, out: Any = None, read_rows: Any = read_rows) -> Any:
            nonlocal moved
            value = read_rows(number, ids, out)
            moved += value.nbytes
            return value

        monkeypatch.setattr(one, "read_rows", count)
        monkeypatch.setattr(one, "read", None)
    ids = np.arange(0, 10_000, 100)
    assert table.lookup(np.concatenate([ids, ids])).shape == (200, 4)
    assert moved == 100 * 4 * 4
    moved = 0
    assert matrix.sparse_read(ids).shape == (100, 4)
    assert moved == 100 * 4 * 4


def test_no_rows_are_an_empty_list_too(module_strategy):
    with module_strategy.scope():
        variable = ps.Variable(np.ones((3, 2)), optimizer=ps.SGD(lr=1.0))
    assert variable.sparse_read([]).shape == (0, 2)
    module_strategy.push([(ps.IndexedSlices(np.zeros((0, 2)), []), variable)])
    assert variable.scatter_add([], np.zeros((0, 2))).numpy().tolist() == [[1, 1]] * 3


def test_a_variable_without_a_name_gets_one_that_is_free(shared_session):
    strategy = ps.ParameterServerStrategy({"worker": 1, "server": 1})
    with strategy.scope():
        made = [ps.Variable(0, name="variable_1"), ps.Variable(1), ps.Variable(2, name="embedding_3")]
        table = ps.Embedding(4, 1)
    assert [one.name for one in made] == ["variable_1", "variable_2", "embedding_3"]
    assert table.name == "embedding_4"
    found = strategy.snapshot()
    assert [int(found[one.name]) for one in made] == [0, 1, 2]
    strategy.close()


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), "1"])
def test_a_scale_is_a_finite_number(module_strategy, scale):
    with module_strategy.scope():
        variable = ps.Variable(np.ones(2), optimizer=ps.SGD(lr=1.0))
    with pytest.raises(ValueError, match=r"scale must be a finite number, but received .*\. Leave it out for 1\."):
        module_strategy.push([(np.ones(2), variable)], scale=scale)
    assert variable.numpy().tolist() == [1, 1]
