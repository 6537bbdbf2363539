"""Variables that live on servers.

A `Variable` is one array on one server; a `ShardedVariable` is one array whose rows are split over several servers.
Both read and write like numpy arrays, and pickle as the addresses of their shards alone. Names are TensorFlow's.

Reading copies: ``v + 1``, ``v[3]`` and ``numpy.asarray(v)`` each read the variable. ``strategy.pull`` reads several
variables at once, and notes that a gradient will follow; in a closure each reading notes that, too.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator
from typing import Any, NoReturn, final

import numpy as np
import numpy.lib.mixins

from hocket.ps import checks, scope
from hocket.ps.access import closure_context, links
from hocket.ps.stores import records
from hocket.ps.stores.memory import Array
from hocket.ps.variables import foreign, handles


class BaseVariable(handles.Handle, numpy.lib.mixins.NDArrayOperatorsMixin, abc.ABC):
    """The base class of `Variable` and `ShardedVariable`.

    Attributes:
        name: The name in messages and checkpoints.
        shape: The shape of the whole variable.
        dtype: The type of the elements.
    """

    shape: tuple[int, ...]
    _parts: tuple[records.DenseSpec, ...]
    """The specs of the shards, in the order of their rows."""
    _FIELDS = ("shape",)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} shape={self.shape} dtype={self.dtype}>"

    # -- reading --

    def read_value(self, out: Array | None = None) -> Array:
        """Return a copy of the value.

        Args:
            out: Receives the copy; contiguous, of the variable's shape and dtype. Default: a new array.
        """
        foreign.refuse_in_graph(self.name)
        link = links.open_link(self._address)
        link.enter(closure_context.get_optional_context())
        if len(self._parts) == 1:
            part = self._parts[0]
            return link.stores[part.server].read(part.number, out=out)
        result = np.empty(self.shape, self.dtype) if out is None else out
        for part, rows in zip(self._parts, self.list_rows(), strict=True):
            link.stores[part.server].read(part.number, out=result[rows])
        return result

    numpy = value = read_value

    def list_rows(self) -> list[slice]:
        """Return the range of rows in each shard."""
        if not self.shape:
            return [slice(None)]
        ends = np.cumsum([part.shape[0] for part in self._parts]).tolist()
        return [slice(end - part.shape[0], end) for part, end in zip(self._parts, ends, strict=True)]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        value = self.read_value()
        return value if dtype is None else value.astype(dtype)

    def __array_ufunc__(self, ufunc: object, method: str, *inputs: object, **kwargs: Any) -> Any:
        for out in kwargs.get("out") or ():
            if isinstance(out, BaseVariable):
                raise TypeError(
                    f"`{out.name}` is a variable on a server, and an operation in place cannot change it: `{out.name} "
                    f"+= ...` would make an array of it. Write {out.name}.assign_add(...), assign_sub(...) or "
                    "assign(...)."
                )
        return getattr(ufunc, method)(*(_read(given) for given in inputs), **kwargs)

    def __getitem__(self, index: Any) -> Any:
        return self.read_value()[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.read_value())

    def __setitem__(self, index: object, value: object) -> NoReturn:
        raise TypeError(
            f"`{self.name}` is a variable on a server, and cannot be assigned in parts. Use "
            f"{self.name}.scatter_update(rows, values), or assign(value) for the whole."
        )

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError(f"`{self.name}` has no length: it is one number.")
        return self.shape[0]

    def __bool__(self) -> bool:
        return bool(self.read_value())

    def __float__(self) -> float:
        return float(self.read_value())

    def __int__(self) -> int:
        return int(self.read_value())

    __hash__ = object.__hash__

    def sparse_read(self, indices: object) -> Array:
        """Return rows by number. Only these rows are transferred.

        Raises:
            IndexError: A number is out of range.
        """
        foreign.refuse_in_graph(self.name)
        link = links.open_link(self._address)
        ids = self._check_ids(indices)
        link.enter(closure_context.get_optional_context())
        result: Array = np.empty((*ids.shape, *self.shape[1:]), self.dtype)
        for part, rows in zip(self._parts, self.list_rows(), strict=True):
            mine = (ids >= rows.start) & (ids < rows.stop)
            if mine.any():
                result[mine] = link.stores[part.server].read_rows(part.number, ids[mine] - rows.start)
        return result

    # -- writing --

    def assign(self, value: object) -> Any:
        """Set the value; return the variable.

        Raises:
            ValueError: The value's shape is not the variable's.
        """
        return self._update("assign", value)

    def assign_add(self, delta: object) -> Any:
        """Add to the value, atomically in each shard; return the variable.

        Raises:
            ValueError: The shape does not fit.
        """
        return self._update("add", delta)

    def assign_sub(self, delta: object) -> Any:
        """Subtract from the value; return the variable.

        Raises:
            ValueError: The shape does not fit.
        """
        return self._update("add", np.negative(checks.fit_into(self.name, delta, self.dtype)))

    def scatter_update(self, indices: object, updates: object) -> Any:
        """Set rows by number; return the variable."""
        return self._scatter("update", indices, updates)

    def scatter_add(self, indices: object, updates: object) -> Any:
        """Add to rows by number; a row named twice counts twice. Return the variable."""
        return self._scatter("add", indices, updates)

    def scatter_sub(self, indices: object, updates: object) -> Any:
        """Subtract from rows by number; return the variable."""
        return self._scatter("sub", indices, updates)

    def scatter_mul(self, indices: object, updates: object) -> Any:
        """Multiply rows by number; return the variable."""
        return self._scatter("mul", indices, updates)

    def scatter_div(self, indices: object, updates: object) -> Any:
        """Divide rows by number; return the variable."""
        return self._scatter("div", indices, updates)

    def scatter_min(self, indices: object, updates: object) -> Any:
        """Take the smaller of each element, in rows by number; return the variable."""
        return self._scatter("min", indices, updates)

    def scatter_max(self, indices: object, updates: object) -> Any:
        """Take the larger of each element, in rows by number; return the variable."""
        return self._scatter("max", indices, updates)

    def sum_rows(self, indices: object, values: object) -> Array:
        """Return a gradient of the variable's shape, from a gradient of some rows.

        Args:
            indices: [...], the numbers of rows. A row named twice counts twice.
            values: [..., *shape[1:]], a row for each number.

        Raises:
            TypeError: The numbers are not integers, or the values do not fit into the variable's type.
            ValueError: The values do not have a row for each number, or a row has another shape.
            IndexError: A number is out of range.
        """
        ids = self._check_ids(indices)
        given = checks.fit_into(self.name, values, self.dtype)
        wanted = (*ids.shape, *self.shape[1:])
        if given.shape != wanted:
            raise ValueError(
                f"The gradient of {ids.size} rows of `{self.name}` must have the shape {wanted}, a row for each "
                f"index, but received {given.shape}."
            )
        whole = np.zeros(self.shape, self.dtype)
        with np.errstate(over="ignore", invalid="ignore"):  # the push looks for NaN and infinity later
            np.add.at(whole, ids.reshape(-1), given.reshape(-1, *self.shape[1:]))
        return whole

    def build_operations(self, gradient: object, scale: float = 1.0) -> dict[int, list[records.Operation]] | None:
        """Return a gradient's operations on each server; None if it is not finite, and the push is to be skipped.

        Args:
            gradient: The gradient, of the variable's shape.
            scale: The factor of the learning rate.

        Raises:
            NonFiniteGradientError: The gradient is not finite, and the policy is to raise.
            ValueError: The variable takes no gradients, or the gradient has another shape.
        """
        gradient = np.asarray(gradient)
        if gradient.dtype != self.dtype and self.optimizer is not None:
            gradient = checks.fit_into(self.name, gradient, self.dtype)
        gradient = links.open_link(self._address).admit(self.name, gradient)
        if gradient is None:
            return None
        if self.optimizer is None:
            raise ValueError(
                f"`{self.name}` has no optimizer, so it takes no gradients. Write ps.Variable(..., "
                "optimizer=ps.SGD(lr=0.1)), or ParameterServerStrategy(..., optimizer=...) for all."
            )
        if gradient.shape != self.shape:
            raise ValueError(
                f"The gradient of `{self.name}` has the shape {gradient.shape}, but the variable has {self.shape}."
            )
        found: dict[int, list[records.Operation]] = {}
        for part, rows in zip(self._parts, self.list_rows(), strict=True):
            piece = gradient if not self.shape else gradient[rows]
            found.setdefault(part.server, []).append(records.Operation(part.number, "gradient", piece, None, scale))
        return found

    def _update(self, kind: str, value: object) -> object:
        foreign.refuse_in_graph(self.name)
        link = links.open_link(self._address)
        given = np.asarray(value)
        if kind == "assign" and given.shape != self.shape:
            raise ValueError(f"`{self.name}` has the shape {self.shape}, but was assigned {given.shape}.")
        given = checks.fit_into(self.name, given, self.dtype)
        if not _fits(given.shape, self.shape):
            raise ValueError(f"`{self.name}` has the shape {self.shape}, which {given.shape} cannot be added to.")
        here = closure_context.get_optional_context()
        if len(self._parts) == 1:
            part = self._parts[0]
            link.update(here, part.server, [records.Operation(part.number, kind, given)])
            return self
        whole = np.broadcast_to(given, self.shape)
        for part, rows in zip(self._parts, self.list_rows(), strict=True):
            link.update(here, part.server, [records.Operation(part.number, kind, np.ascontiguousarray(whole[rows]))])
        return self

    def _scatter(self, kind: str, indices: object, updates: object) -> object:
        foreign.refuse_in_graph(self.name)
        link = links.open_link(self._address)
        ids = self._check_ids(indices)
        values = np.broadcast_to(checks.fit_into(self.name, updates, self.dtype), (*ids.shape, *self.shape[1:]))
        here = closure_context.get_optional_context()
        for part, rows in zip(self._parts, self.list_rows(), strict=True):
            mine = (ids >= rows.start) & (ids < rows.stop)
            if mine.any():
                link.update(
                    here,
                    part.server,
                    [records.Operation(part.number, f"scatter_{kind}", values[mine], ids[mine] - rows.start)],
                )
        return self

    def _check_ids(self, indices: object) -> Array:
        ids = checks.read_ids(indices)
        if ids.dtype.kind not in "iu":
            raise TypeError(f"Row numbers of `{self.name}` must be whole numbers, but received {ids.dtype}.")
        if not self.shape:
            raise ValueError(f"`{self.name}` is one number, and has no rows. Use assign, assign_add or assign_sub.")
        if ids.size and (ids.min() < 0 or ids.max() >= self.shape[0]):
            bad = ids[(ids < 0) | (ids >= self.shape[0])]
            raise IndexError(f"`{self.name}` has the rows 0 to {self.shape[0] - 1}, but received {bad.flat[0]}.")
        return ids.astype(np.int64)


@final
class Variable(BaseVariable):
    """An array on one server, made under ``strategy.scope()``. A partitioner may turn it into a `ShardedVariable`.

    Args:
        initial_value: An array, or a function of a shape, which is called for each shard.
        **settings: ``name``, ``shape``, ``dtype``, ``optimizer``, ``partitioner``, ``colocate_with``: see
            `ParameterServerStrategy.make_variable`.

    Raises:
        RuntimeError: No strategy is in scope.
        ValueError: A setting breaks its rule.
        CapacityError: The variable does not fit into memory.

    Example:
        >>> from hocket import ps
        >>> strategy = ps.ParameterServerStrategy({"worker": 1, "server": 1})
        >>> with strategy.scope():
        ...     weights = ps.Variable([1.0, 2.0], name="weights")
        >>> weights.assign_add([1.0, 1.0]) * 10
        array([20., 30.], dtype=float32)
        >>> strategy.close()
    """

    def __new__(cls, initial_value: object, **settings: object) -> Any:  # the result may be a ShardedVariable
        """Make the variable on the servers of the strategy in scope."""
        return scope.require_strategy("ps.Variable").make_variable(initial_value, **settings)

    def __init__(self, initial_value: object, **settings: object) -> None:
        """Do nothing: `__new__` has made the variable."""


@final
class ShardedVariable(BaseVariable):
    """An array whose rows are split over several servers. Made when a partitioner returns more than one shard."""

    @property
    def variables(self) -> list[Variable]:
        """The shards, each as a variable of its own."""
        found = [records.VariableRecord(part.name, part.shape, part.dtype, (part,)) for part in self._parts]
        return [handles.build(Variable, self._address, one) for one in found]


def _fits(shape: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    """Tell whether an array of one shape can be broadcast to the other."""
    try:
        return np.broadcast_shapes(shape, whole) == whole
    except ValueError:
        return False


def _read(given: object) -> object:
    return given.read_value() if isinstance(given, BaseVariable) else given
