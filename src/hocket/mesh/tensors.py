"""Values that are spread over a mesh.

A `DTensor` behaves as the array that it stands for: it is whole, wherever its parts are. Only reading it as numpy's
is refused while it is spread, because that would gather it in silence; `numpy()` of a replicated one, and `gather`, say
it aloud.
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
    """Return the type of that name, bfloat16 too.

    Raises:
        TypeError: numpy has none, or needs ``ml_dtypes`` for it.
    """
    with contextlib.suppress(ImportError):
        importlib.import_module("ml_dtypes")  # which makes its types known to numpy
    try:
        return np.dtype(name)
    except TypeError as error:
        raise TypeError(f"numpy has no type {name!r}. For bfloat16 run pip install ml_dtypes.") from error


class DTensor(abc.ABC):
    """One value on the devices of a mesh. Made by `copy_to_mesh`, `pack`, `call_with_layout` and `relayout`.

    Operators, indexing and the framework's own functions take it as they take an array, and return another one.
    """

    @property
    @abc.abstractmethod
    def layout(self) -> layouts.Layout:
        """How it is spread."""

    @property
    @abc.abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole."""

    @property
    @abc.abstractmethod
    def dtype(self) -> np.dtype[Any]:
        """The type of its elements."""

    @property
    @abc.abstractmethod
    def native(self) -> Any:
        """The framework's own value: of JAX a global array."""

    def read_value(self) -> DTensor:
        """Return the value: of a variable what it is now, of a value itself."""
        return self

    @property
    def ndim(self) -> int:
        """How many dims it has."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """How many elements the whole has."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """How many bytes the whole has."""
        return self.size * self.dtype.itemsize

    @abc.abstractmethod
    def gather(self) -> npt.NDArray[Any]:
        """Return the whole as a numpy array, which moves all parts here."""

    def numpy(self) -> npt.NDArray[Any]:
        """Return a replicated value as a numpy array.

        Raises:
            TypeError: It is spread: say `gather()` if all of it is to be moved here, or `unpack` it.
        """
        if not self.layout.is_fully_replicated:
            raise TypeError(
                f"A value with the layout {self.layout.sharding_specs}"
                f"{f' and sums along {list(self.layout.partial)}' if self.layout.partial else ''} is spread over "
                "devices. To move all of it here call its gather(); for what each device has, unpack(value)."
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
        """Call a function of the framework's arrays with what DTensors among the arguments stand for; return a DTensor,
        or NotImplemented if an argument is none that goes with arrays."""

    def __getattr__(self, name: str) -> Any:
        """A method or property of the array: `sum`, `T`, `reshape` and so on."""
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
    __array_ufunc__ = None  # numpy leaves operators with an array on the left to us
    __hash__ = None  # type: ignore[assignment]  # as an array's: == compares the elements

    def __repr__(self) -> str:
        return f"DTensor(shape={self.shape}, dtype={self.dtype}, layout={self.layout!r})"
