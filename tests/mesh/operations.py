"""What the tests of meshes compute: one list of operations, for every framework, and the layouts to try them with.

An operation is written once, on a `Library`, which each framework's tests supply. `list_cases` gives an operation's
inputs for every choice of layouts on a mesh.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from hocket.mesh import Layout, Mesh
from tests.mesh.simulated import list_layouts

SIZES = [{"x": 1}, {"x": 2}, {"x": 4}, {"x": 2, "y": 2}, {"x": 2, "y": 4}]
"""The meshes: names and sizes of their axes."""


class Library(Protocol):
    """A framework's functions. Arrays have operators already."""

    def exp(self, a: Any) -> Any:
        """e to the power of each."""

    def tanh(self, a: Any) -> Any:
        """The hyperbolic tangent."""

    def sum(self, a: Any, dims: tuple[int, ...]) -> Any:
        """The sum over these dims."""

    def mean(self, a: Any, dims: tuple[int, ...]) -> Any:
        """The mean over these dims."""

    def max(self, a: Any, dims: tuple[int, ...]) -> Any:
        """The largest over these dims."""

    def softmax(self, a: Any, dim: int) -> Any:
        """Powers of e that add up to 1 along a dim."""

    def log_softmax(self, a: Any, dim: int) -> Any:
        """The logarithm of it."""

    def embed(self, rows: npt.NDArray[np.int64], table: Any) -> Any:
        """The rows of a table with these numbers, which every device has."""

    def transpose(self, a: Any, order: tuple[int, ...]) -> Any:
        """The dims in another order."""

    def convolve(self, images: Any, kernel: Any, stride: int, padding: int) -> Any:
        """The convolution in torch's order of dims: rows, channels, and one place or two."""


Compute = Callable[..., Any]


@dataclass(frozen=True)
class Operation:
    """One of the list."""

    name: str
    compute: Compute
    """Takes a `Library` and the arrays."""
    shapes: tuple[tuple[int, ...], ...]

    def build_inputs(self) -> list[npt.NDArray[np.float64]]:
        """Make the arrays, always the same."""
        random = np.random.default_rng(0)
        return [random.normal(size=shape) for shape in self.shapes]

    def list_cases(self, mesh: Mesh, *, has_orders: bool, cuts_places: bool = True) -> list[tuple[Layout, ...]]:
        """Return every choice of layouts for its arrays.

        Args:
            mesh: The mesh.
            has_orders: Whether axes that cut one dim together come in every order, or in the mesh's alone.
            cuts_places: Whether a convolution's images are cut along their lines and columns, too.
        """
        fitting = [_list_fitting(mesh, shape, has_orders=has_orders) for shape in self.shapes]
        if not cuts_places and self.name.startswith("convolution"):
            fitting = [[layout for layout in some if not any(layout.axes[2:])] for some in fitting]
        return list(itertools.product(*fitting))


def _list_fitting(mesh: Mesh, shape: Sequence[int], *, has_orders: bool) -> list[Layout]:
    order = mesh.dim_names.index
    return [
        layout
        for layout in list_layouts(mesh, len(shape), partial=False)
        if all(length % parts == 0 for length, parts in zip(shape, layout.shape, strict=True))
        and (has_orders or all(list(axes) == sorted(axes, key=order) for axes in layout.axes))
    ]


def pick(cases: Sequence[tuple[Layout, ...]], most: int) -> list[tuple[Layout, ...]]:
    """Return no more than so many of the cases, evenly spread."""
    count = min(most, len(cases))
    return [cases[number * len(cases) // count] for number in range(count)]


# --- the list ---------------------------------------------------------------------------------------------------------

_MATRIX = (8, 16)
_CUBE = (8, 8, 16)
_ROWS = np.array([[3, 1, 7], [0, 3, 5]])


def _list_operations() -> Iterator[Operation]:
    yield Operation("matmul", lambda lib, a, b: a @ b, (_MATRIX, (16, 8)))
    yield Operation("matmul of batches", lambda lib, a, b: a @ b, (_CUBE, (8, 16, 8)))
    yield Operation("matmul of a batch and a matrix", lambda lib, a, b: a @ b, (_CUBE, (16, 8)))
    yield Operation("elementwise", lambda lib, a, b: lib.tanh(a) * b / 3 + a - a * b, (_MATRIX, _MATRIX))
    yield Operation("elementwise, broadcast", lambda lib, a, b: lib.exp(a * b) + b, (_MATRIX, (16,)))
    yield Operation("elementwise, broadcast both ways", lambda lib, a, b: a * b - a, ((8, 1), (1, 16)))
    for reduction, dims in itertools.product(("sum", "mean", "max"), ((0,), (1,), (0, 1))):
        yield Operation(f"{reduction} over {dims}", _reduce(reduction, dims), (_MATRIX,))
    yield Operation("reductions together", _normalize, (_MATRIX,))
    for dim in (0, 1):
        yield Operation(f"softmax over {dim}", _softmax(dim), (_MATRIX,))
    yield Operation("log_softmax", lambda lib, a: lib.log_softmax(a, 1), (_MATRIX,))
    yield Operation("embedding", lambda lib, table: lib.embed(_ROWS, table), (_MATRIX,))
    yield Operation("transpose", lambda lib, a: lib.transpose(a, (1, 0)), (_MATRIX,))
    yield Operation("transpose of a cube", lambda lib, a: lib.transpose(a, (2, 0, 1)), (_CUBE,))
    yield Operation("transpose and matmul", lambda lib, a, b: a @ lib.transpose(b, (1, 0)), (_MATRIX, _MATRIX))
    kernel = (8, 8, 3, 3)
    yield Operation("convolution", _convolve(1, 1), ((8, 8, 8, 8), kernel))
    yield Operation("convolution with strides", _convolve(2, 0), ((8, 8, 8, 8), kernel))
    yield Operation("convolution of lines", _convolve(1, 1), (_CUBE, (8, 8, 3)))


def _reduce(name: str, dims: tuple[int, ...]) -> Compute:
    return lambda lib, a: getattr(lib, name)(a, dims)


def _normalize(lib: Library, a: Any) -> Any:
    return lib.sum(a, (0,)) * lib.sum(lib.mean(a, (1,)), (0,)) + lib.max(a, (0,))


def _softmax(dim: int) -> Compute:
    return lambda lib, a: lib.softmax(a, dim)


def _convolve(stride: int, padding: int) -> Compute:
    return lambda lib, images, kernel: lib.convolve(images, kernel, stride, padding)


OPERATIONS = {one.name: one for one in _list_operations()}
"""By their names."""

_REDUCTIONS = ("sum", "mean", "max", "reductions")
_BEGINNINGS = (
    "matmul",
    "elementwise",
    _REDUCTIONS,
    ("softmax", "log_softmax"),
    "embedding",
    "transpose",
    "convolution",
)
FAMILIES = [[name for name in OPERATIONS if name.startswith(beginning)] for beginning in _BEGINNINGS]
"""The names of each family."""

SAMPLE = (
    "matmul",
    "elementwise, broadcast",
    "mean over (0,)",
    "max over (1,)",
    "softmax over 1",
    "embedding",
    "transpose and matmul",
    "convolution",
)
"""One or two of each family, for ordinary tests. All of them: in the long ones."""
