"""Values that are spread over a mesh.

A `DTensor` behaves like the whole array, wherever its parts are. Only an implicit conversion of a spread value to numpy
is refused, because it would gather the value silently. Call `numpy()` of a replicated value, or `gather`, instead.
"""

from __future__ import annotations

import abc
import contextlib
import importlib
import math
import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from hocket.mesh import layouts


def find_dtype(name: str) -> np.dtype[Any]:
    """Return numpy's type of that name; includes bfloat16.

    Raises:
        TypeError: numpy has no such type, or needs ``ml_dtypes`` for it.
    """
    with contextlib.suppress(ImportError):
        importlib.import_module("ml_dtypes")  # registers its types with numpy
    try:
        return np.dtype(name)
    except TypeError as error:
        raise TypeError(f"numpy has no type {name!r}. For bfloat16 run pip install ml_dtypes.") from error


class DTensor(abc.ABC):
    """One value on the devices of a mesh. Made by `copy_to_mesh`, `pack`, `call_with_layout` and `relayout`.

    Operators, indexing and the framework's own functions accept it like an array, and return a DTensor.
    """

    @property
    @abc.abstractmethod
    def layout(self) -> layouts.Layout:
        """The layout of the value."""

    @property
    @abc.abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole value."""

    @property
    @abc.abstractmethod
    def dtype(self) -> np.dtype[Any]:
        """The type of the elements."""

    @property
    @abc.abstractmethod
    def native(self) -> Any:
        """The framework's own value; for JAX a global array."""

    def read_value(self) -> DTensor:
        """Return the value: a variable's current value, or the value itself."""
        return self

    @property
    def ndim(self) -> int:
        """Number of dims."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements of the whole value."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Number of bytes of the whole value."""
        return self.size * self.dtype.itemsize

    @abc.abstractmethod
    def gather(self) -> npt.NDArray[Any]:
        """Return the whole value as a numpy array; all parts move to this process."""

    def numpy(self) -> npt.NDArray[Any]:
        """Return a replicated value as a numpy array.

        Raises:
            TypeError: The value is spread. Call `gather()` to move all of it here, or `unpack` it.
        """
        if not self.layout.is_fully_replicated:
            raise TypeError(
                f"A value with the layout {self.layout.sharding_specs}"
                f"{f' and sums along {list(self.layout.partial)}' if self.layout.partial else ''} is spread over "
                "devices. To move all of it here, call its gather(); for each device's part, call unpack(value)."
            )
        return self.gather()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        found = self.numpy()
        return found if dtype is None else found.astype(dtype)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("A scalar has no length.")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return (self[number] for number in range(len(self)))

    # --- as an array --------------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def _compute(self, function: Callable[..., object], *args: object) -> object:
        """Call a function of the framework's arrays, with the arrays of DTensors among the arguments; return a DTensor.
        Return NotImplemented if an argument cannot be combined with arrays."""

    def __getattr__(self, name: str) -> Any:
        """Return a method or property of the array: `sum`, `T`, `reshape` and so on."""
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        if callable(getattr(self.native, name)):
            return lambda *args, **kwargs: self._compute(
                lambda one, *others: getattr(one, name)(*others, **kwargs), self, *args
            )
        return self._compute(lambda one: getattr(one, name), self)

    def __bool__(self) -> bool:
        return bool(self.numpy())

    def __float__(self) -> float:
        return float(self.numpy())

    def __int__(self) -> int:
        return int(self.numpy())

    def __add__(self, other: object) -> Any:
        return self._compute(operator.add, self, other)

    def __radd__(self, other: object) -> Any:
        return self._compute(operator.add, other, self)

    def __sub__(self, other: object) -> Any:
        return self._compute(operator.sub, self, other)

    def __rsub__(self, other: object) -> Any:
        return self._compute(operator.sub, other, self)

    def __mul__(self, other: object) -> Any:
        return self._compute(operator.mul, self, other)

    def __rmul__(self, other: object) -> Any:
        return self._compute(operator.mul, other, self)

    def __truediv__(self, other: object) -> Any:
        return self._compute(operator.truediv, self, other)

    def __rtruediv__(self, other: object) -> Any:
        return self._compute(operator.truediv, other, self)

    def __floordiv__(self, other: object) -> Any:
        return self._compute(operator.floordiv, self, other)

    def __rfloordiv__(self, other: object) -> Any:
        return self._compute(operator.floordiv, other, self)

    def __mod__(self, other: object) -> Any:
        return self._compute(operator.mod, self, other)

    def __rmod__(self, other: object) -> Any:
        return self._compute(operator.mod, other, self)

    def __pow__(self, other: object) -> Any:
        return self._compute(operator.pow, self, other)

    def __rpow__(self, other: object) -> Any:
        return self._compute(operator.pow, other, self)

    def __matmul__(self, other: object) -> Any:
        return self._compute(operator.matmul, self, other)

    def __rmatmul__(self, other: object) -> Any:
        return self._compute(operator.matmul, other, self)

    def __lt__(self, other: object) -> Any:
        return self._compute(operator.lt, self, other)

    def __le__(self, other: object) -> Any:
        return self._compute(operator.le, self, other)

    def __gt__(self, other: object) -> Any:
        return self._compute(operator.gt, self, other)

    def __ge__(self, other: object) -> Any:
        return self._compute(operator.ge, self, other)

    def __eq__(self, other: object) -> Any:
        return self._compute(operator.eq, self, other)

    def __ne__(self, other: object) -> Any:
        return self._compute(operator.ne, self, other)

    def __neg__(self) -> Any:
        return self._compute(operator.neg, self)

    def __abs__(self) -> Any:
        return self._compute(operator.abs, self)

    def __getitem__(self, index: object) -> Any:
        return self._compute(operator.getitem, self, index)

    __array_priority__ = 1000
    __array_ufunc__ = None  # lets an array on the left defer its operators to this class
    __hash__ = None  # type: ignore[assignment]  # like an array's: == compares the elements

    def __repr__(self) -> str:
        return f"DTensor(shape={self.shape}, dtype={self.dtype}, layout={self.layout!r})"
