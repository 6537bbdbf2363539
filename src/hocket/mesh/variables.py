"""Variables on a mesh: a value that changes, whose layout does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import numpy as np
import numpy.typing as npt

from hocket.mesh import layouts, operations, tensors
from hocket.mesh.backends import contract


@final
class DVariable(tensors.DTensor):
    """A DTensor that can be assigned to. It computes as its value does.

    Args:
        initial_value: An array, a number, or a DTensor; or a function without arguments that returns one.
        layout: How it is spread, for good. Default: as `initial_value` is, which is a DTensor then.
        name: For messages and checkpoints.

    Raises:
        TypeError: No layout is known.
        ValueError: The layout does not fit, or is not that of `initial_value`.

    Example:
        >>> import numpy as np
        >>> from hocket import mesh
        >>> one = mesh.create_mesh({"data": 1})
        >>> weights = mesh.DVariable(np.zeros(3), layout=mesh.Layout.replicated(one, 1))
        >>> weights.assign_add(np.ones(3)).numpy().tolist()
        [1.0, 1.0, 1.0]
    """

    __slots__ = ("_name", "_value")

    def __init__(self, initial_value: Any, layout: layouts.Layout | None = None, name: str = "") -> None:
        given = initial_value() if callable(initial_value) and not hasattr(initial_value, "shape") else initial_value
        if isinstance(given, DVariable):
            given = given.value
        if layout is None:
            if not operations.is_dtensor(given):
                raise TypeError(
                    f"DVariable() received a {type(given).__name__} and no layout. Write DVariable(value, layout=...), "
                    "or give it a DTensor."
                )
            self._value: tensors.DTensor = given
        elif operations.is_dtensor(given):
            operations.check_layout(given, layout)
            self._value = given
        else:
            self._value = operations.copy_to_mesh(given, layout)
        self._name = name
        contract.get_backend(self._value.layout.mesh.framework).register_variable(DVariable)

    @property
    def value(self) -> tensors.DTensor:
        """What it is now. It stays that when the variable is assigned to."""
        return self._value

    def read_value(self) -> tensors.DTensor:
        """Return what it is now."""
        return self._value

    @property
    def name(self) -> str:
        """What it is called; empty if it has no name."""
        return self._name

    @property
    def layout(self) -> layouts.Layout:
        return self._value.layout

    @property
    def shape(self) -> tuple[int, ...]:
        return self._value.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._value.dtype

    @property
    def native(self) -> Any:
        return self._value.native

    def gather(self) -> npt.NDArray[Any]:
        return self._value.gather()

    def _compute(self, function: Callable[..., Any], *args: Any) -> Any:
        return self._value._compute(function, *[arg.value if isinstance(arg, DVariable) else arg for arg in args])

    # --- assigning ----------------------------------------------------------------------------------------------------

    def assign(self, value: Any) -> DVariable:
        """Set it.

        Args:
            value: A DTensor with the variable's layout, or an array, which is spread as the variable is.

        Raises:
            ValueError: The shape, the type or the layout is another one.
        """
        new = value.value if isinstance(value, DVariable) else value
        if not operations.is_dtensor(new):
            new = operations.copy_to_mesh(np.asarray(new, self.dtype) if np.isscalar(new) else new, self.layout)
        if new.shape != self.shape or new.dtype != self.dtype:
            raise ValueError(
                f"The variable{self._describe()} is {self.dtype}{list(self.shape)} for good, and the value is "
                f"{new.dtype}{list(new.shape)}."
            )
        if new.layout != self.layout:
            raise ValueError(
                f"The variable{self._describe()} has the layout {self.layout!r} for good, and the value has "
                f"{new.layout!r}. Assign relayout(value, variable.layout)."
            )
        self._value = new
        return self

    def assign_add(self, delta: Any) -> DVariable:
        """Add to it. See `assign`."""
        return self.assign(self._keep_layout(self + delta))

    def assign_sub(self, delta: Any) -> DVariable:
        """Subtract from it. See `assign`."""
        return self.assign(self._keep_layout(self - delta))

    def _keep_layout(self, value: Any) -> Any:
        return operations.relayout(value, self.layout) if value.shape == self.shape else value

    def _describe(self) -> str:
        return f" {self._name!r}" if self._name else ""

    def __repr__(self) -> str:
        name = f"name={self._name!r}, " if self._name else ""
        return f"DVariable({name}shape={self.shape}, dtype={self.dtype}, layout={self.layout!r})"
