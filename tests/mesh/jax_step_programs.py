"""What a worker with 8 virtual devices does of steps for `test_jax.py`: whose memory values have, what is compiled, and
loops that read nothing."""

from __future__ import annotations

from typing import Any

import numpy as np

from hocket import mesh
from hocket.mesh import UNSHARDED, Layout
from tests.mesh.jax_programs import make_mesh


def _make_aligned(size: int) -> Any:
    """Return an array that begins where JAX would take it over without a copy."""
    memory = np.zeros(4 * size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + 4 * size].view(np.float32)


def fill_a_buffer_again() -> None:
    """Values stay what they were when the program fills the buffer that they were made of."""
    small = make_mesh(("x", 4))
    for specs in (["x", UNSHARDED], [UNSHARDED, UNSHARDED], [UNSHARDED, "x"]):
        layout = Layout(specs, small)
        buffer = _make_aligned(16384).reshape(64, 256)
        buffer[:] = 1
        value = mesh.copy_to_mesh(buffer, layout)
        variable = mesh.DVariable(buffer, layout)
        local = _make_aligned(16384).reshape(64, 256)
        local[:] = 1
        packed = mesh.pack([local] * 4, layout)
        buffer[:] = local[:] = 2
        for made in (value, variable, packed):
            np.testing.assert_array_equal(made.gather(), 1)


def read_nothing(count: int) -> float:
    """Take many steps that sum over all devices, and look at no result before the last."""
    grid = make_mesh(("x", 8))
    weights = mesh.DVariable(np.ones((256, 128), "float32"), Layout.replicated(grid, 2))

    def compute_loss(rows: Any) -> Any:
        return ((rows @ weights) ** 2).mean()

    @mesh.function(variables=[weights], donate=True)
    def step(rows: Any) -> Any:
        loss, (slope,) = mesh.value_and_gradients(compute_loss, [weights], rows)
        weights.assign_sub(0.0 * slope)
        return loss

    loss: Any = None
    for _ in range(count):
        loss = step(mesh.copy_to_mesh(np.ones((64, 256), "float32"), Layout(["x", UNSHARDED], grid)))
    return float(loss)


def count_transpositions() -> None:
    """No transposition of a product is left where exchanging its sides does, and results are the same."""
    import jax
    import jax.numpy as jnp

    from hocket.mesh.backends.jax import backend

    random = np.random.default_rng(0)
    rows, weights = (random.standard_normal(shape).astype("float32") for shape in ((2, 8, 6), (6, 5)))

    def slope(weights: Any, rows: Any) -> Any:
        return jax.grad(lambda weights: jnp.tanh(rows @ weights).sum())(weights)

    def outer(left: Any, right: Any) -> Any:
        return jnp.einsum("bij,bjk->bki", left, right), jnp.tensordot(left, right, [[2], [1]]).transpose(1, 0, 3, 2)

    def half(weights: Any, rows: Any) -> Any:
        return jax.lax.dot(rows[0], weights, precision=("highest", "default")).T

    def count(function: Any, args: Any) -> int:
        return str(jax.make_jaxpr(function)(*args)).count("transpose[")

    for function, args, stay in (
        (slope, (weights, rows), False),
        (half, (weights, rows), False),
        (outer, (rows, rows.transpose(0, 2, 1)), True),  # of a batch, or of another order
    ):
        exchanged = backend.exchange_sides(function)
        before = count(function, args)
        assert before > 0
        assert count(exchanged, args) == (before if stay else 0), function.__name__
        for one, other in zip(*map(jax.tree_util.tree_leaves, (exchanged(*args), function(*args))), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
