"""What rows begin with: the same numbers whoever makes them, and numbers of the right kind.

The tests of quality look at fixed seeds, so they give the same figures in every run: they cannot fail by chance, only
by a change.
"""

from __future__ import annotations

import math
import pickle
from typing import Any

import hypothesis
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import strategies as st

from hocket import ps
from hocket.ps.rules import initializers

MASK = (1 << 64) - 1
IDS = st.integers(-(1 << 63), (1 << 63) - 1)
RANDOM: list[Any] = [ps.Uniform(-2, 3, seed=4), ps.Normal(1.0, 0.5, seed=4)]


def make(initializer: ps.Initializer, ids: Any, dim: int, dtype: str = "float32") -> npt.NDArray[Any]:
    ids = np.asarray(ids, np.int64)
    out = np.full((len(ids), dim), np.nan, dtype)
    initializer.fill(ids, out)
    return out


# -- the same, whoever makes them -------------------------------------------------------------------------------------


@pytest.mark.parametrize("initializer", RANDOM, ids=repr)
@hypothesis.given(ids=st.lists(IDS, min_size=1, max_size=30), dim=st.integers(1, 9), data=st.data())
@hypothesis.settings(max_examples=40, deadline=None)
def test_a_row_depends_on_its_id_alone(initializer, ids, dim, data):
    whole = make(initializer, ids, dim)
    order = data.draw(st.permutations(range(len(ids))))
    np.testing.assert_array_equal(make(initializer, [ids[at] for at in order], dim), whole[order])
    at = data.draw(st.integers(0, len(ids) - 1))
    np.testing.assert_array_equal(make(initializer, [ids[at]], dim)[0], whole[at])


@pytest.mark.parametrize("initializer", RANDOM, ids=repr)
def test_a_value_does_not_depend_on_how_many_columns_or_rows_there_are(initializer):
    dim = initializers.BLOCK
    wide = make(initializer, [3, 9], 2 * dim + 5)
    for columns in (1, 2, 7, dim - 1, dim, dim + 1, 2 * dim + 4):
        np.testing.assert_array_equal(make(initializer, [3, 9], columns), wide[:, :columns])
    many = make(initializer, np.arange(2 * dim + 3), 1)
    np.testing.assert_array_equal(many[[3, 9]], wide[:, :1])
    np.testing.assert_array_equal(make(initializer, np.arange(dim - 1, dim + 2), 1), many[dim - 1 : dim + 2])


@pytest.mark.parametrize("initializer", RANDOM, ids=repr)
def test_another_seed_id_or_column_is_another_number(initializer):
    other = type(initializer)(*vars(initializer).values())
    object.__setattr__(other, "seed", 5)
    found = np.concatenate([make(initializer, range(-100, 100), 50), make(other, range(-100, 100), 50)])
    assert len(np.unique(found)) > 0.99 * found.size  # of 24 bits, 20,000 numbers have a few in common


@pytest.mark.parametrize("initializer", RANDOM, ids=repr)
def test_a_wider_dtype_has_the_same_numbers(initializer):
    narrow = make(initializer, range(100), 5)
    np.testing.assert_array_equal(make(initializer, range(100), 5, "float64"), narrow)
    np.testing.assert_array_equal(make(initializer, range(100), 5, "float16"), narrow.astype("float16"))


@pytest.mark.parametrize("initializer", [*RANDOM, ps.Zeros(), ps.Constant(2.5)], ids=repr)
def test_rows_may_have_any_shape(initializer):
    ids = np.arange(6)
    flat = make(initializer, ids, 8)
    deep, vector = np.empty((6, 2, 4), np.float32), np.empty(6, np.float32)
    initializer.fill(ids, deep)
    np.testing.assert_array_equal(deep.reshape(6, 8), flat)
    initializer.fill(ids, vector)
    np.testing.assert_array_equal(vector, flat[:, 0])
    strided = np.full((6, 16), 7, np.float32)
    initializer.fill(ids, strided[:, ::2])
    np.testing.assert_array_equal(strided[:, ::2], flat)
    assert (strided[:, 1::2] == 7).all()
    for shape in [(6, 0), (6, 0, 3)]:
        initializer.fill(ids, np.empty(shape, np.float32))
    initializer.fill(ids[:0], np.empty((0, 3), np.float32))
    with pytest.raises(AssertionError, match="a copy would be filled in its place"):
        initializer.fill(ids, np.empty((6, 4, 2), np.float32).transpose(0, 2, 1))


def mix(x: int) -> int:
    x &= MASK
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK
    return x ^ x >> 31


def find_bits(seed: int, row: int, column: int) -> int:
    """The definition once more, in Python's own whole numbers, one element at a time."""
    golden = 0x9E3779B97F4A7C15
    state = mix(row * golden + mix(seed ^ golden))
    word = mix(state + (column // 2 + 1) * golden)
    return (word >> 32 * (column % 2) & 0xFFFFFFFF) >> 8


@pytest.mark.parametrize("seed", [0, 1, initializers.MAX_SEED])
def test_numbers_are_what_the_definition_says(seed):
    rows = [0, 1, -1, 12345678901, -(1 << 63), (1 << 63) - 1]
    bits = np.array([[find_bits(seed, row, column) for column in range(5)] for row in rows])
    np.testing.assert_array_equal(make(ps.Uniform(0, 1, seed=seed), rows, 5), bits / 2**24)
    columns = range(initializers.BLOCK - 3, initializers.BLOCK + 4)
    wide = make(ps.Uniform(0, 1, seed=seed), [5], initializers.BLOCK + 4)[0, columns]
    np.testing.assert_array_equal(wide * 2**24, [find_bits(seed, 5, column) for column in columns])
    found = make(ps.Normal(0, 1, seed=seed), rows, 4).reshape(len(rows), 2, 2)
    first, second = (bits[:, :4:2] + 0.5) / 2**24, bits[:, 1:4:2] / 2**24
    radius = np.sqrt(-2 * np.log(first))
    np.testing.assert_allclose(found[..., 0], radius * np.cos(2 * np.pi * second), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found[..., 1], radius * np.sin(2 * np.pi * second), rtol=1e-4, atol=1e-6)


def test_numbers_stay_what_they_were():
    """Golden: tables that are made lazily go on, with the same numbers, after a checkpoint of an older version."""
    assert initializers.VERSION == 1
    assert (make(ps.Uniform(0, 1, seed=42), [7], 4) * 2**24).astype(int).tolist() == [
        [12872549, 7424888, 4696772, 15823087]
    ]


# -- of the right kind ------------------------------------------------------------------------------------------------


def measure_correlation(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> float:
    return abs(float(np.corrcoef(a.ravel(), b.ravel())[0, 1]))


def measure_distance(sample: npt.NDArray[Any], distribution: Any) -> float:
    """Kolmogorov's and Smirnov's, times the root of the number: above 1.95 for one sample in a thousand."""
    ordered = np.sort(sample.ravel().astype(float))
    steps = np.arange(len(ordered) + 1) / len(ordered)
    at = distribution(ordered)
    return float(max(np.max(steps[1:] - at), np.max(at - steps[:-1])) * math.sqrt(len(ordered)))


def find_normal(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.array([math.erfc(-one / math.sqrt(2)) / 2 for one in x])


@pytest.mark.parametrize("ids", [range(1000), range(0, 1 << 40, 1 << 30), range(-(1 << 20), 0, 1 << 10)], ids=str)
def test_samples_have_their_distribution(ids):
    dim = 20_000 // len(ids)
    uniform, normal = make(ps.Uniform(0, 1, seed=1), ids, dim), make(ps.Normal(0, 1, seed=1), ids, dim)
    assert measure_distance(uniform, lambda x: x) < 1.95
    assert measure_distance(normal, find_normal) < 1.95
    for one in (uniform, normal):
        assert measure_correlation(one[:, :-1], one[:, 1:]) < 3.3 / math.sqrt(20_000)
        assert measure_correlation(one[:-1], one[1:]) < 3.3 / math.sqrt(20_000)


def test_neighbouring_seeds_are_independent():
    a, b = make(ps.Normal(0, 1, seed=1), range(1000), 20), make(ps.Normal(0, 1, seed=2), range(1000), 20)
    assert measure_correlation(a, b) < 3.3 / math.sqrt(20_000)
    assert measure_correlation(a[1:], b[:-1]) < 3.3 / math.sqrt(20_000)


def test_one_column_of_many_rows_has_its_distribution():
    assert measure_distance(make(ps.Uniform(0, 1, seed=3), range(20_000), 1), lambda x: x) < 1.95
    assert measure_distance(make(ps.Normal(0, 1, seed=3), range(20_000), 2)[:, 1], find_normal) < 1.95


def test_a_bell_curve_has_its_moments_and_tails():
    found = make(ps.Normal(3.0, 2.0, seed=0), range(10_000), 50).astype(float)
    z = (found - 3) / 2
    assert abs(z.mean()) < 3.3 / math.sqrt(z.size)
    assert z.std() == pytest.approx(1, abs=0.004)
    assert (z**3).mean() == pytest.approx(0, abs=0.012)
    assert (z**4).mean() == pytest.approx(3, abs=0.03)
    assert (np.abs(z) > 4).sum() == pytest.approx(500_000 * 6.334e-5, abs=20)
    assert np.abs(z).max() < 5.9


def test_uniform_numbers_lie_in_their_range():
    found = make(ps.Uniform(-0.05, 0.05, seed=0), range(10_000), 50)
    assert -0.05 <= found.min() < -0.0499
    assert 0.0499 < found.max() <= 0.05


def test_a_very_small_width_is_kept():
    assert make(ps.Normal(0, 1e-30), range(100), 4).std() == pytest.approx(1e-30, rel=0.2)


def test_constants_are_constant():
    assert make(ps.Zeros(), [1, 2], 2).tolist() == [[0, 0], [0, 0]]
    assert make(ps.Constant(-1.5), [1, 2], 2).tolist() == [[-1.5, -1.5], [-1.5, -1.5]]
    assert (make(ps.Normal(2.0, 0.0), [1, 2], 3) == 2).all()


# -- what they are ----------------------------------------------------------------------------------------------------


def test_an_initializer_travels_and_is_a_value():
    for one in (ps.Zeros(), ps.Constant(1), *RANDOM):
        again = pickle.loads(pickle.dumps(one))
        assert again == one
        assert hash(again) == hash(one)


BAD: list[tuple[Any, dict[str, Any], str]] = [
    (ps.Constant, {"value": math.nan}, r"value must be a finite number, but received nan\. Give 0\.0"),
    (ps.Constant, {"value": "1"}, "value must be a finite number, but received '1'"),
    (
        ps.Uniform,
        {"low": 1, "high": 1},
        r"low must be below high, .* low=1.0 and high=1.0\. For one number, write Constant\(1.0\)",
    ),
    (ps.Uniform, {"low": -math.inf}, "low must be a finite number, but received -inf"),
    (ps.Uniform, {"high": None}, "high must be a finite number, but received None"),
    (ps.Normal, {"stddev": -1}, r"stddev must be a finite number from 0, but received -1\. Leave it out for 0\.05"),
    (ps.Normal, {"mean": math.inf}, "mean must be a finite number, but received inf"),
    (ps.Normal, {"seed": -1}, "seed must be a whole number from 0, but received -1"),
    (ps.Uniform, {"seed": 1.5}, r"seed must be a whole number from 0, but received 1\.5"),
    (ps.Uniform, {"seed": True}, "seed must be a whole number from 0, but received True"),
    (ps.Uniform, {"seed": 1 << 64}, r"seed must be below 2\*\*64, but received 18446744073709551616"),
]


@pytest.mark.parametrize(("kind", "options", "message"), BAD)
def test_bad_numbers_are_refused(kind, options, message):
    with pytest.raises(ValueError, match=message):
        kind(**options)
