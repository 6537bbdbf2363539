"""Exact means, and with them evaluations that do not show the number of ranks."""

from __future__ import annotations

import math
import pickle
from fractions import Fraction

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from hocket.data import ExactMean, Ledger, exact


def evaluate(values, batch_size: int, world_size: int, *, pads: bool) -> ExactMean:
    """The mean of values, each rank adding its own, as if computed from rows."""
    total = ExactMean()
    for rank in reversed(range(world_size)):
        mean = ExactMean()
        for part in Ledger(len(values), batch_size, shuffle=False).slices(rank, world_size):
            if pads:
                mean.add(values[part.padded_indices], part.weights)
            else:
                mean.add(values[part.indices])
        total.merge(pickle.loads(pickle.dumps(mean)))
    return total


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_an_evaluation_gives_the_metric_of_one_process(world_size):
    random = np.random.default_rng(0)
    for size in range(1, 201):
        correct = random.random(size) < 0.7
        losses = random.lognormal(0, 4, size)
        whole = math.fsum(losses)
        for batch_size in (4, 64):
            accuracy = evaluate(correct, batch_size, world_size, pads=bool(size % 2))
            assert accuracy.count == size
            assert accuracy.compute() == int(correct.sum()) / size
            loss = evaluate(losses, batch_size, world_size, pads=bool(size % 2))
            assert loss.compute() == evaluate(losses, size, 1, pads=False).compute()
            assert loss.compute() == pytest.approx(whole / size, rel=1e-15)


def test_plain_sums_do_show_the_number_of_ranks():
    """What the exact sum is for; if this failed, the test above would prove nothing of it."""
    losses = np.random.default_rng(0).lognormal(0, 4, 200)
    sums = {
        sum(
            float(np.sum(losses[part.indices])) for rank in range(ranks) for part in Ledger(200, 64).slices(rank, ranks)
        )
        for ranks in (1, 2, 3, 5)
    }
    assert len(sums) > 1


finite = st.floats(allow_nan=False, allow_infinity=False)


@hypothesis.given(values=st.lists(finite, min_size=1, max_size=50), cut=st.integers(0, 50))
@hypothesis.settings(max_examples=300, deadline=None)
def test_a_mean_is_the_rounded_true_mean(values, cut):
    one, other = ExactMean(), ExactMean()
    one.add(values[:cut])
    other.add(values[cut:])
    assert one.merge(other).compute() == float(sum(map(Fraction, values)) / len(values))


@pytest.mark.parametrize(
    "values",
    [
        [5e-324, 5e-324, 1e-310],
        [1.7976931348623157e308] * 3,
        [1e308, 1.0, -1e308],
        [-0.0, 0.0],
        [-(2.0**-1074), 3 * 2.0**-1074],
    ],
)
def test_the_ends_of_the_range(values):
    mean = ExactMean()
    mean.add(values)
    assert mean.compute() == float(sum(map(Fraction, values)) / len(values))


def test_many_values_are_added_in_parts(monkeypatch):
    monkeypatch.setattr(exact, "_CHUNK", 100)
    values = np.random.default_rng(1).normal(size=1234)
    mean = ExactMean()
    mean.add(values)
    assert mean.compute() == float(sum(map(Fraction, values.tolist())) / 1234)


def test_the_largest_part_loses_nothing():
    digits = 1 - 2.0**-53  # every bit of its digits is set
    mean = ExactMean()
    mean.add(np.full(exact._CHUNK, -digits))
    mean.add(np.full(exact._CHUNK, digits))
    mean.add([1.0])
    assert mean.compute() == 1 / (2 * exact._CHUNK + 1)


def test_values_of_any_shape_and_kind():
    mean = ExactMean()
    mean.add(np.ones((2, 3), np.float32), np.array([[1, 0, 0], [1, 1, 1]], np.bool_))
    mean.add(7)
    mean.add([])
    assert (mean.count, mean.compute()) == (5, 11 / 5)


@pytest.mark.parametrize(
    ("values", "weights", "message"),
    [
        (
            0.5,
            [1, 1],
            r"received 2 weights for 1 values\. Pass the loss of each row, not the mean loss: reduction='none' in PyTorch\.",
        ),
        ([1.0, 2.0], [1, 0.5], r"A weight must be 0 or 1, but received 0\.5\. To weigh rows"),
        ([1.0], [float("nan")], r"A weight must be 0 or 1, but received nan"),
        ([1.0, float("nan")], None, r"A value must be finite to have an exact sum, but received nan\."),
        ([float("-inf"), 1.0], [1, 0], r"A value must be finite to have an exact sum, but received -inf\."),
    ],
)
def test_what_has_no_exact_sum_is_refused(values, weights, message):
    mean = ExactMean()
    with pytest.raises(ValueError, match=message):
        mean.add(values, weights)
    assert mean.count == 0


def test_a_mean_of_nothing_is_refused():
    with pytest.raises(
        ValueError, match=r"An ExactMean without values has no mean\. .* merge\(\) the ExactMeans of all ranks"
    ):
        ExactMean().compute()
