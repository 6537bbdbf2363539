"""The list of operations, on JAX."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from hocket import mesh
from tests.mesh import operations


class JaxLibrary:
    """JAX's functions, under the names of `operations.Library`."""

    @staticmethod
    def exp(a: Any) -> Any:
        return jax.numpy.exp(a)

    @staticmethod
    def tanh(a: Any) -> Any:
        return jax.numpy.tanh(a)

    @staticmethod
    def sum(a: Any, dims: tuple[int, ...]) -> Any:
        return jax.numpy.sum(a, dims)

    @staticmethod
    def mean(a: Any, dims: tuple[int, ...]) -> Any:
        return jax.numpy.mean(a, dims)

    @staticmethod
    def max(a: Any, dims: tuple[int, ...]) -> Any:
        return jax.numpy.max(a, dims)

    @staticmethod
    def softmax(a: Any, dim: int) -> Any:
        return jax.nn.softmax(a, axis=dim)

    @staticmethod
    def log_softmax(a: Any, dim: int) -> Any:
        return jax.nn.log_softmax(a, axis=dim)

    @staticmethod
    def embed(rows: Any, table: Any) -> Any:
        return jax.numpy.take(table, rows, axis=0)

    @staticmethod
    def transpose(a: Any, order: tuple[int, ...]) -> Any:
        return jax.numpy.transpose(a, order)

    @staticmethod
    def convolve(images: Any, kernel: Any, stride: int, padding: int) -> Any:
        images, kernel = (one.native if mesh.is_dtensor(one) else one for one in (images, kernel))  # as lax wants them
        places = kernel.ndim - 2
        return jax.lax.conv_general_dilated(images, kernel, (stride,) * places, [(padding, padding)] * places)


@jax.enable_x64(True)
def compare(grid: mesh.Mesh, name: str, most: int) -> int:
    """Compute an operation and its gradients for so many choices of layouts, compiled, and on one device."""
    operation = operations.OPERATIONS[name]
    given = operation.build_inputs()

    def function(*args: Any) -> Any:
        return operation.compute(JaxLibrary, *args)

    def loss(*args: Any) -> Any:
        found = function(*args)
        return (jax.numpy.sin(found.native if mesh.is_dtensor(found) else found)).sum()

    whole = function(*map(jax.numpy.asarray, given))
    gradients = jax.grad(loss, tuple(range(len(given))))
    slopes = gradients(*map(jax.numpy.asarray, given))
    compute = jax.jit(lambda *args: (function(*args), gradients(*args)))
    # XLA (JAX 0.10.2) convolves wrongly, outside of meshes of ours as well, where one axis cuts the images' lines and
    # the kernel's input channels, and there is another axis. There is nothing of ours between the two.
    cases = operation.list_cases(grid, has_orders=True, cuts_places=False)
    for layouts in operations.pick(cases, most):
        values = [mesh.copy_to_mesh(array, layout) for array, layout in zip(given, layouts, strict=True)]
        found, found_slopes = compute(*values)
        np.testing.assert_allclose(_read(found), np.asarray(whole), rtol=1e-9, atol=1e-9, err_msg=f"{layouts}")
        for one, other in zip(found_slopes, slopes, strict=True):
            np.testing.assert_allclose(_read(one), np.asarray(other), rtol=1e-9, atol=1e-9, err_msg=f"{layouts}")
    return len(cases)


def _read(value: Any) -> Any:
    return value.gather() if mesh.is_dtensor(value) else np.asarray(value)
