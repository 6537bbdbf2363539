"""Server-side optimizers: beside PyTorch's and TensorFlow's, in place and not, dense and by rows, at the borders of
blocks."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import itertools
import math
import pickle
import tracemalloc
from typing import Any

import hypothesis
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import strategies as st

from hocket import ps
from hocket.ps.rules import optimizers

Array = npt.NDArray[Any]

ALL: list[ps.Optimizer] = [
    ps.SGD(lr=0.1),
    ps.SGD(lr=0.1, weight_decay=0.2),
    ps.SGD(lr=0.1, momentum=0.9),
    ps.SGD(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.2),
    ps.Adagrad(lr=0.1),
    ps.Adagrad(lr=0.1, initial_accumulator=0.1, weight_decay=0.2),
    ps.Adam(),
    ps.Adam(lr=0.1, beta1=0.8, beta2=0.9, weight_decay=0.2),
    ps.Adam(lr=0.1, weight_decay=0.2, decoupled=True),
    ps.FTRL(lr=0.1),
    ps.FTRL(lr=0.1, lr_power=-0.3, l1=0.3, l2=0.2, beta=1.0),
]


def make_slots(optimizer: ps.Optimizer, like: Array) -> list[Array]:
    return [np.full_like(like, optimizer.slot_initial(name)) for name in optimizer.slots]


def run_dense(
    optimizer: ps.Optimizer, value: Array, gradients: list[Array], scale: float = 1.0
) -> tuple[Array, list[Array]]:
    value = value.copy()
    slots = make_slots(optimizer, value)
    for step, gradient in enumerate(gradients, 1):
        optimizer.apply(value, slots, gradient, step, value, slots, scale)
    return value, slots


def draw(seed: int, shape: tuple[int, ...], steps: int = 0, dtype: str = "float64") -> tuple[Array, list[Array]]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=shape).astype(dtype), [rng.normal(size=shape).astype(dtype) for _ in range(steps)]


# -- beside PyTorch ---------------------------------------------------------------------------------------------------

TORCH: list[tuple[ps.Optimizer, str, dict[str, Any]]] = [
    (ps.SGD(lr=0.1), "SGD", {"lr": 0.1}),
    (ps.SGD(lr=0.1, weight_decay=0.3), "SGD", {"lr": 0.1, "weight_decay": 0.3}),
    (ps.SGD(lr=0.1, momentum=0.9), "SGD", {"lr": 0.1, "momentum": 0.9}),
    (
        ps.SGD(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.3),
        "SGD",
        {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.3},
    ),
    (ps.Adagrad(lr=0.1), "Adagrad", {"lr": 0.1}),
    (
        ps.Adagrad(lr=0.1, initial_accumulator=0.2, eps=1e-3, weight_decay=0.3),
        "Adagrad",
        {"lr": 0.1, "initial_accumulator_value": 0.2, "eps": 1e-3, "weight_decay": 0.3},
    ),
    (ps.Adam(), "Adam", {}),
    (
        ps.Adam(lr=0.1, beta1=0.7, beta2=0.8, eps=1e-2, weight_decay=0.3),
        "Adam",
        {"lr": 0.1, "betas": (0.7, 0.8), "eps": 1e-2, "weight_decay": 0.3},
    ),
    (ps.Adam(lr=0.1, weight_decay=0.3, decoupled=True), "AdamW", {"lr": 0.1, "weight_decay": 0.3}),
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("ours", "name", "options"), TORCH, ids=lambda one: str(one)[:40])
def test_steps_are_those_of_pytorch(ours, name, options, dtype):
    import torch

    value, gradients = draw(0, (257,), 7, dtype)
    theirs = torch.nn.Parameter(torch.tensor(value))
    optimizer = getattr(torch.optim, name)([theirs], **options)
    for gradient in gradients:
        theirs.grad = torch.tensor(gradient)
        optimizer.step()
    found, _ = run_dense(ours, value, gradients)
    assert found.dtype == dtype
    np.testing.assert_allclose(found, theirs.detach().numpy(), rtol=1e-12 if dtype == "float64" else 2e-6, atol=1e-6)
    assert np.abs(found - value).max() > 0.005


@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")  # torch.optim.Adagrad's own
@pytest.mark.parametrize(
    ("ours", "name"),
    [(ps.Adam(lr=0.1, eps=1e-30), "SparseAdam"), (ps.Adagrad(lr=0.1), "Adagrad"), (ps.SGD(lr=0.1), "SGD")],
)
def test_rows_are_those_of_pytorch(ours, name):
    import torch

    table, _ = draw(1, (20, 3))
    theirs = torch.nn.Parameter(torch.tensor(table))
    options = (
        {"eps": 1e-30} if name == "SparseAdam" else {}
    )  # it is added before the correction there, after it in Adam
    optimizer = getattr(torch.optim, name)([theirs], lr=0.1, **options)
    slots = make_slots(ours, table)
    rng = np.random.default_rng(2)
    for step in range(1, 8):
        ids = rng.choice(20, size=6, replace=False)
        gradient = rng.normal(size=(6, 3))
        theirs.grad = torch.sparse_coo_tensor(
            torch.tensor(ids[None]), torch.tensor(gradient), (20, 3), check_invariants=True
        )
        optimizer.step()
        rows, of_rows = table[ids], [slot[ids] for slot in slots]
        ours.apply_rows(rows, of_rows, gradient, step)
        table[ids] = rows
        for slot, new in zip(slots, of_rows, strict=True):
            slot[ids] = new
    np.testing.assert_allclose(table, theirs.detach().numpy(), rtol=1e-12)


# -- FTRL, in words of the papers -------------------------------------------------------------------------------------


def follow_leader(ours: ps.FTRL, w: float, gradients: list[float]) -> float:
    """One element, as TensorFlow's documentation of Ftrl writes it."""
    n, z = ours.initial_accumulator, 0.0
    for g in gradients:
        grown = n + g**2
        sigma = (grown**-ours.lr_power - n**-ours.lr_power) / ours.lr
        n, z = grown, z + g - sigma * w
        pull = (ours.beta + n**-ours.lr_power) / ours.lr + 2 * ours.l2
        w = (math.copysign(ours.l1, z) - z) / pull if abs(z) > ours.l1 else 0.0
    return w


@pytest.mark.parametrize(
    "ours",
    [
        ps.FTRL(lr=0.1),
        ps.FTRL(lr=0.1, l1=0.5, l2=0.2),
        ps.FTRL(lr=0.3, lr_power=-0.7, initial_accumulator=0.0, beta=1.0, l1=0.5),
        ps.FTRL(lr=0.3, lr_power=0),
    ],
)
def test_ftrl_is_its_formula(ours):
    value, gradients = draw(3, (200,), 6)
    found, _ = run_dense(ours, value, gradients)
    expected = [follow_leader(ours, w, [g[at] for g in gradients]) for at, w in enumerate(value)]
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    if ours.l1:
        assert 0 < np.count_nonzero(found) < 200  # some evidence is too weak, which gives exact zeros


def test_ftrl_is_what_tensorflow_computed():
    """Golden: TensorFlow 2.21, `tf.raw_ops.ResourceApplyFtrl`, float32, three steps."""
    value = np.array([0.0, 0.5, -0.25, 1.0], np.float32)
    gradients = [
        np.array(g, np.float32) for g in ([1.0, -0.5, 0.125, 0.0], [-0.25, -0.5, 0.125, 0.0], [0.5, 2.0, -0.25, 1e-3])
    ]
    found, (total, linear) = run_dense(ps.FTRL(lr=0.1, l1=0.25, l2=0.01), value, gradients)
    np.testing.assert_allclose(found, GOLDEN[0], rtol=1e-5)
    np.testing.assert_allclose(total, GOLDEN[1], rtol=1e-6)
    np.testing.assert_allclose(linear, GOLDEN[2], rtol=1e-5)


GOLDEN = [
    [-0.090229206, 0.24528985, 0.0, 0.0],
    [1.4125, 4.5999999, 0.19374999, 0.100001],
    [1.3241665, -5.5157871, 0.072248787, 0.001],
]


def test_ftrl_without_regularisation_steps_as_adagrad():
    """And so a scaled step is a step with the learning rate scaled, which it is not with TensorFlow's formula."""
    _, gradients = draw(4, (50,), 5)
    value = np.zeros(50)
    slots = [np.full(50, 0.1), np.zeros(50)]
    other, sums = np.zeros(50), [np.full(50, 0.1)]
    for step, (gradient, scale) in enumerate(zip(gradients, [1.0, 0.25, 1.0, 0.5, 2.0], strict=True), 1):
        ps.FTRL(lr=0.1).apply(value, slots, gradient, step, value, slots, scale)
        ps.Adagrad(lr=0.1, initial_accumulator=0.1, eps=1e-30).apply(other, sums, gradient, step, other, sums, scale)
    np.testing.assert_allclose(value, other, rtol=1e-9)


# -- in place, out of place, by rows, in blocks -----------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", ALL, ids=repr)
@pytest.mark.parametrize(
    "size", [0, 1, 5, optimizers.BLOCK - 1, optimizers.BLOCK, optimizers.BLOCK + 1, 2 * optimizers.BLOCK + 3]
)
def test_all_ways_compute_the_same_bits(optimizer, size):
    value, gradients = draw(5, (size,), 3, "float32")
    dense, slots = run_dense(optimizer, value, gradients)

    old, old_slots = value.copy(), make_slots(optimizer, value)
    for step, gradient in enumerate(gradients, 1):
        before = [a.copy() for a in (old, gradient, *old_slots)]
        new, new_slots = np.full_like(old, np.nan), [np.full_like(old, np.nan) for _ in old_slots]
        optimizer.apply(old, old_slots, gradient, step, new, new_slots)
        for a, b in zip((old, gradient, *old_slots), before, strict=True):
            np.testing.assert_array_equal(a, b)
        old, old_slots = new, new_slots
    for a, b in zip([old, *old_slots], [dense, *slots], strict=True):
        np.testing.assert_array_equal(a, b)

    rows, of_rows = value.reshape(-1, 1).copy(), [s.reshape(-1, 1) for s in make_slots(optimizer, value)]
    for step, gradient in enumerate(gradients, 1):
        optimizer.apply_rows(rows, of_rows, gradient.reshape(-1, 1), step)
    for a, b in zip([rows, *of_rows], [dense, *slots], strict=True):
        np.testing.assert_array_equal(a.reshape(-1), b)
    if size:
        assert not np.array_equal(dense, value)


@hypothesis.given(
    optimizer=st.sampled_from(ALL),
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=6),
    dim=st.integers(1, 5),
    dtype=st.sampled_from(["float32", "float64"]),
    scale=st.sampled_from([1.0, 0.5, 0.0]),
    seed=st.integers(0, 1000),
)
@hypothesis.settings(max_examples=80, deadline=None)
def test_a_table_may_be_changed_piece_by_piece(optimizer, sizes, dim, dtype, scale, seed):
    rows, gradients = draw(seed, (sum(sizes), dim), 2, dtype)
    whole, slots = rows.copy(), make_slots(optimizer, rows)
    of_whole = [slot.copy() for slot in slots]
    edges = np.cumsum([0, *sizes])
    for step, gradient in enumerate(gradients, 1):
        optimizer.apply_rows(whole, of_whole, gradient, step, scale)
        for start, stop in itertools.pairwise(edges):
            optimizer.apply_rows(rows[start:stop], [s[start:stop] for s in slots], gradient[start:stop], step, scale)
    np.testing.assert_allclose(rows, whole, rtol=1e-5, atol=1e-6)  # a loop's tail may round otherwise than its body
    for a, b in zip(slots, of_whole, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("optimizer", ALL[:9], ids=repr)
def test_a_scale_multiplies_the_learning_rate(optimizer):
    value, gradients = draw(6, (40,), 4)
    other = dataclasses.replace(optimizer, lr=optimizer.lr * 0.3)
    (scaled, slots), (expected, other_slots) = (
        run_dense(optimizer, value, gradients, 0.3),
        run_dense(other, value, gradients),
    )
    for a, b in zip([scaled, *slots], [expected, *other_slots], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)
    np.testing.assert_array_equal(run_dense(optimizer, value, gradients, 0.0)[0], value)


def test_a_strided_gradient_of_rows_is_read_right():
    rows = np.zeros((4, 3), np.float32)
    gradient = np.arange(12, dtype=np.float32).reshape(3, 4).T
    ps.SGD(lr=1.0).apply_rows(rows, [], gradient, 1)
    np.testing.assert_array_equal(rows, -gradient)
    with pytest.raises(AssertionError, match="a copy would be changed in their place"):
        ps.SGD(lr=1.0).apply_rows(rows[:, :2], [], gradient[:, :2], 1)


def test_what_is_not_finite_spreads_without_a_warning():
    value = np.zeros(4, np.float32)
    gradient = np.array([np.nan, np.inf, 3e38, 1.0], np.float32)
    found, _ = run_dense(ps.Adam(lr=0.1), value, [gradient])
    assert np.isfinite(found).tolist() == [False, False, True, True]


def test_a_gradient_that_is_always_zero_moves_nothing():
    value, _ = draw(7, (10,), dtype="float32")
    zero = [np.zeros(10, np.float32)] * 3
    for optimizer in (ps.SGD(lr=0.1, momentum=0.9), ps.Adagrad(lr=0.1, eps=1.2e-38), ps.Adam(eps=1.2e-38)):
        np.testing.assert_array_equal(run_dense(optimizer, value, zero)[0], value)


@pytest.mark.parametrize("optimizer", ALL, ids=repr)
def test_nothing_of_full_length_is_made(optimizer):
    size = 8 * optimizers.BLOCK
    value, (gradient,) = draw(8, (size,), 1, "float32")
    slots = make_slots(optimizer, value)
    optimizer.apply(value, slots, gradient, 1, value, slots)  # makes the thread's scratch
    tracemalloc.start()
    try:
        optimizer.apply(value, slots, gradient, 2, value, slots)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < optimizers.BLOCK  # bytes; a block has four times as many


def test_threads_do_not_share_scratch():
    value, gradients = draw(9, (4 * optimizers.BLOCK,), 2, "float32")
    expected = [run_dense(optimizer, value, gradients)[0] for optimizer in ALL]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda optimizer: run_dense(optimizer, value, gradients)[0], ALL * 3))
    for a, b in zip(found, expected * 3, strict=True):
        np.testing.assert_array_equal(a, b)


# -- what they are ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", ALL, ids=repr)
def test_an_optimizer_travels_and_is_a_value(optimizer):
    again = pickle.loads(pickle.dumps(optimizer))
    assert again == optimizer
    assert hash(again) == hash(optimizer)
    with pytest.raises(
        dataclasses.FrozenInstanceError,
        match=r"cannot be changed: 'lr' can be set only when it is made\..*dataclasses.replace\(old, lr=...\)",
    ):
        optimizer.lr = 1.0


def test_slots_have_names_and_beginnings():
    assert ps.SGD(lr=1).slots == ()
    assert ps.SGD(lr=1, momentum=0.5).slots == ("momentum",)
    assert [ps.FTRL(lr=1).slot_initial(name) for name in ps.FTRL(lr=1).slots] == [0.1, 0.0]
    with pytest.raises(ValueError, match=r"SGD\(lr=1.0.*\) has no slot 'momentum'. Its slots: none."):
        ps.SGD(lr=1).slot_initial("momentum")
    with pytest.raises(ValueError, match=r"no slot 'm'\. Its slots: average, square."):
        ps.Adam().slot_initial("m")


def test_numbers_are_floats_whatever_they_were():
    optimizer = ps.SGD(lr=np.float64(0.5), momentum=np.float32(0.5))  # type: ignore[arg-type]
    assert (type(optimizer.lr), type(optimizer.momentum)) == (float, float)


BAD: list[tuple[type[ps.Optimizer], dict[str, Any], str]] = [
    (ps.SGD, {"lr": 0}, "lr must be a finite number above 0, but received 0. Give lr=0.01, say."),
    (ps.SGD, {"lr": -0.1}, "lr must be a finite number above 0, but received -0.1"),
    (ps.Adagrad, {"lr": math.inf}, "lr must be a finite number above 0, but received inf"),
    (ps.Adam, {"lr": math.nan}, "lr must be a finite number above 0, but received nan"),
    (ps.FTRL, {"lr": "0.1"}, "lr must be a finite number above 0, but received '0.1'"),
    (ps.SGD, {"lr": True}, "lr must be a finite number above 0, but received True"),
    (ps.SGD, {"lr": 1, "momentum": 1}, "momentum must be from 0 to less than 1, but received 1. Leave it out"),
    (ps.SGD, {"lr": 1, "nesterov": True}, "nesterov=True needs momentum, but received momentum=0.0. Give momentum=0.9"),
    (ps.SGD, {"lr": 1, "weight_decay": -1}, "weight_decay must be a finite number from 0, but received -1"),
    (ps.Adagrad, {"lr": 1, "initial_accumulator": -1}, "initial_accumulator must be a finite number from 0"),
    (
        ps.Adagrad,
        {"lr": 1, "eps": 0},
        "eps must be a finite number from 1.2e-38, .* but received 0. Leave it out for 1e-10",
    ),
    (ps.Adagrad, {"lr": 1, "weight_decay": None}, "weight_decay must be a finite number from 0, but received None"),
    (ps.Adam, {"beta1": -0.1}, "beta1 must be from 0 to less than 1, but received -0.1. Leave it out for 0.9."),
    (ps.Adam, {"beta2": 1.0}, "beta2 must be from 0 to less than 1, but received 1.0. Leave it out for 0.999."),
    (ps.Adam, {"eps": 1e-50}, "eps must be .* but received 1e-50. Leave it out for 1e-8."),
    (ps.Adam, {"weight_decay": math.inf}, "weight_decay must be a finite number from 0, but received inf"),
    (
        ps.FTRL,
        {"lr": 1, "lr_power": 0.5},
        "lr_power must be a finite number of at most 0, but received 0.5. Leave it out",
    ),
    (ps.FTRL, {"lr": 1, "lr_power": -math.inf}, "lr_power must be a finite number of at most 0, but received -inf"),
    (ps.FTRL, {"lr": 1, "l1": -1}, "l1 must be a finite number from 0, but received -1"),
    (ps.FTRL, {"lr": 1, "l2": math.nan}, "l2 must be a finite number from 0, but received nan"),
    (ps.FTRL, {"lr": 1, "initial_accumulator": 0}, "initial_accumulator, l2 and beta are all 0.* Give beta=1.0"),
]


@pytest.mark.parametrize(("kind", "options", "message"), BAD)
def test_bad_numbers_are_refused(kind, options, message):
    with pytest.raises(ValueError, match=message):
        kind(**options)


@pytest.mark.parametrize("optimizer", [ps.Adagrad(lr=0.1), ps.Adam(lr=0.1), ps.Adam(lr=0.1, is_eps_hat=True)])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_an_epsilon_is_above_zero_in_every_float(optimizer, dtype):
    """1e-8 is 0 as a float16, and 0 / 0 where a gradient is 0."""
    value, _ = run_dense(optimizer, np.ones(2, dtype), [np.array([0, 1], dtype)] * 2)
    assert value[0] == 1
    assert value[1] == pytest.approx(1 - 0.1 - 0.1 / (2**0.5 if isinstance(optimizer, ps.Adagrad) else 1), abs=0.01)
