"""Sums over equal ids, against the plain way to add them up."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hocket import ps
from hocket.ps.stores import slices


def add_up(ids, values):
    """Return each id once, rising, and the sums of its rows, in float64."""
    unique, places = np.unique(ids, return_inverse=True)
    sums = np.zeros((len(unique), values.shape[-1]))
    np.add.at(sums, places.reshape(-1), values.reshape(-1, values.shape[-1]))
    return unique, sums


@st.composite
def asked_ids(draw):
    """Ids of which a few are many, as all three ways of adding need them."""
    seed, count, size = draw(st.integers(0, 2**32 - 1)), draw(st.integers(0, 60)), draw(st.sampled_from([1, 3, 40]))
    low = draw(st.sampled_from([0, -5, 2**40, -(2**63)]))
    return low + np.random.default_rng(seed).zipf(draw(st.sampled_from([1.2, 3.0])), (count, size)) % 100


@settings(deadline=None)
@given(asked_ids(), st.integers(1, 5), st.sampled_from(["own", "bags", "columns", "one", "strided"]))
def test_sums_of_equal_ids_are_those_of_a_loop(ids, dim, kind):
    generator = np.random.default_rng(0)
    shape = (*ids.shape, dim)
    values = {
        "own": lambda: generator.normal(size=shape),
        "bags": lambda: np.broadcast_to(generator.normal(size=(len(ids), 1, dim)), shape),
        "columns": lambda: np.broadcast_to(generator.normal(size=(ids.shape[1], dim)), shape),
        "one": lambda: np.broadcast_to(generator.normal(), shape),
        "strided": lambda: generator.normal(size=(*ids.shape, 2 * dim))[..., ::2],
    }[kind]()
    found = slices.group(ids.reshape(-1))
    unique, sums = add_up(ids, values)
    assert found.ids.tolist() == unique.tolist()
    assert (found.ids[found.find_places()] == ids.reshape(-1)).all()
    np.testing.assert_allclose(found.sum_rows(values), sums, rtol=1e-9, atol=1e-9)
    again, combined = ps.IndexedSlices(values, ids).combine()
    assert again.tolist() == unique.tolist()
    np.testing.assert_allclose(combined, sums, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int64"])
def test_sums_keep_the_kind_of_number(dtype):
    ids = np.repeat([3, 1, 2], [40, 1, 3])
    sums = slices.group(ids).sum_rows(np.ones((44, 2), dtype))
    assert sums.dtype == dtype
    assert sums.tolist() == [[1, 1], [3, 3], [40, 40]]


@pytest.mark.parametrize("repeats", [False, True])
def test_a_value_that_is_no_number_stays_with_its_id(repeats):
    ids = np.repeat([[1], [2], [3]], 40, axis=1)
    values = np.array([[1.0, 2.0], [np.nan, np.inf], [3.0, 4.0]], np.float32)[:, None]
    values = np.broadcast_to(values, (3, 40, 2))
    sums = slices.group(ids.reshape(-1)).sum_rows(values if repeats else values.copy())
    assert sums[[0, 2]].tolist() == [[40.0, 80.0], [120.0, 160.0]]
    assert np.isnan(sums[1, 0])
    assert sums[1, 1] == np.inf


def test_a_sum_beyond_all_numbers_is_infinite_without_a_warning():
    large = np.full((3, 1), 3e38, np.float32)
    assert slices.group(np.array([1, 1, 2])).sum_rows(large)[:, 0].tolist() == [np.inf, np.float32(3e38)]


def test_the_same_ids_add_up_to_the_same_bits():
    generator = np.random.default_rng(0)
    ids, values = generator.zipf(1.3, 5000) % 500, generator.normal(size=(5000, 8)).astype(np.float32)
    first, second = slices.group(ids).sum_rows(values), slices.group(ids.copy()).sum_rows(values.copy())
    assert first.tobytes() == second.tobytes()


def test_rows_without_ids_are_refused():
    with pytest.raises(ValueError, match=r"a row for each id: values of the shape \(3, 'dim'\), but received \(2, 4\)"):
        ps.IndexedSlices(np.ones((2, 4)), np.arange(3)).combine()
