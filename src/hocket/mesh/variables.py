"""Variables on a mesh, whose values change and whose layouts do not; and steps that change variables.

Frameworks that compile or differentiate functions of values know no variables. Therefore, while such a function is
traced, each variable has the traced value in place of its own (`_stand_for`). In this way `value_and_gradients` and
`function` turn a program that reads and assigns variables into a function of values.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, ParamSpec, TypeVar, final

import numpy as np
import numpy.typing as npt

from hocket._base import texts
from hocket.mesh import layouts, operations, shown, tensors
from hocket.mesh.backends import contract

P = ParamSpec("P")
R = TypeVar("R")


@final
class DVariable(tensors.DTensor):
    """A DTensor that can be assigned to. In computations it acts like its value.

    Args:
        initial_value: An array, a number, or a DTensor; or a function without arguments that returns one.
        layout: The permanent layout. Default: the layout of `initial_value`, which must then be a DTensor.
        name: The name in messages and checkpoints.

    Raises:
        TypeError: No layout is known.
        ValueError: The layout does not fit, or differs from that of `initial_value`.

    Example:
        >>> import numpy as np
        >>> from hocket import mesh
        >>> one = mesh.create_mesh({"data": 1})
        >>> weights = mesh.DVariable(np.zeros(3), layout=mesh.Layout.replicated(one, 1))
        >>> weights.assign_add(np.ones(3)).numpy().tolist()
        [1.0, 1.0, 1.0]
    """

    __slots__ = ("_layout", "_name", "_value")

    def __init__(self, initial_value: Any, layout: layouts.Layout | None = None, name: str = "") -> None:
        given = initial_value() if callable(initial_value) and not hasattr(initial_value, "shape") else initial_value
        if isinstance(given, DVariable):
            given = given.value
        if layout is None:
            if not operations.is_dtensor(given):
                raise TypeError(
                    f"DVariable() received {texts.name_kind(given)} and no layout. Write DVariable(value, layout=...), "
                    "or give it a DTensor."
                )
            self._value: tensors.DTensor = given
        elif operations.is_dtensor(given):
            operations.check_layout(given, layout)
            self._value = given
        else:
            self._value = operations.copy_to_mesh(given, layout)
        self._layout = self._value.layout
        self._name = name
        shown.OWN.note_spread(name or "a variable", self._layout, self._value.shape, self._value.dtype.itemsize)
        contract.get_backend(self._value.layout.mesh.framework).register_variable(DVariable)

    @property
    def value(self) -> tensors.DTensor:
        """The current value. It stays unchanged when the variable is assigned to."""
        return self._value

    def read_value(self) -> tensors.DTensor:
        """Return the current value."""
        return self._value

    @property
    def name(self) -> str:
        """The variable's name; empty if it has none."""
        return self._name

    @property
    def layout(self) -> layouts.Layout:
        return self._layout

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

    def _compute(self, function: Callable[..., object], *args: object) -> object:
        return self._value._compute(function, *[arg.value if isinstance(arg, DVariable) else arg for arg in args])

    def __jax_array__(self) -> Any:
        """Return the value for JAX's functions."""
        return self.native

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], kinds: object, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Let PyTorch's functions accept a variable as its value."""
        return function(*[_read(arg) for arg in args], **{name: _read(arg) for name, arg in (kwargs or {}).items()})

    # --- assigning ----------------------------------------------------------------------------------------------------

    def assign(self, value: Any) -> DVariable:
        """Set the value; return the variable.

        Args:
            value: A DTensor with the variable's layout; or an array, which is spread by that layout.

        Raises:
            ValueError: The shape, the type or the layout differs from the variable's.
        """
        new = value.value if isinstance(value, DVariable) else value
        if not operations.is_dtensor(new):
            new = operations.copy_to_mesh(np.asarray(new, self.dtype) if np.isscalar(new) else new, self.layout)
        if new.shape != self.shape or new.dtype != self.dtype:
            raise ValueError(
                f"The variable{self._describe()} always is {self.dtype}{list(self.shape)}, but the value is "
                f"{new.dtype}{list(new.shape)}."
            )
        if contract.get_backend(self.layout.mesh.framework).is_traced(new):
            new = operations.relayout(new, self.layout)
        elif new.layout != self.layout:
            remedy = "relayout" if new.layout.mesh == self.layout.mesh else "copy_to_mesh"
            raise ValueError(
                f"The variable{self._describe()} always has the layout {self.layout!r}, but the value has "
                f"{new.layout!r}. Assign {remedy}(value, variable.layout)."
            )
        self._value = new
        return self

    def assign_add(self, delta: object) -> DVariable:
        """Add to the value; return the variable. See `assign`."""
        return self.assign(self._keep_layout(self + delta))

    def assign_sub(self, delta: object) -> DVariable:
        """Subtract from the value; return the variable. See `assign`."""
        return self.assign(self._keep_layout(self - delta))

    def _keep_layout(self, value: Any) -> object:
        return operations.relayout(value, self.layout) if value.shape == self.shape else value

    def _describe(self) -> str:
        return f" {self._name!r}" if self._name else ""

    def __repr__(self) -> str:
        name = f"name={self._name!r}, " if self._name else ""
        return f"DVariable({name}shape={self.shape}, dtype={self.dtype}, layout={self.layout!r})"


def _read(arg: object) -> object:
    """Return a variable's value; in a list or tuple, replace the variables with their values."""
    if isinstance(arg, (list, tuple)) and any(isinstance(one, DVariable) for one in arg):
        return type(arg)([_read(one) for one in arg])
    return arg.value if isinstance(arg, DVariable) else arg


# --- steps ------------------------------------------------------------------------------------------------------------


def value_and_gradients(
    function: Callable[P, object], variables: Sequence[DVariable], *args: P.args, **kwargs: P.kwargs
) -> tuple[Any, list[tensors.DTensor]]:
    """Call a function; return its result and its gradients by variables.

    Args:
        function: Returns a scalar; it assigns no variable.
        variables: The variables to differentiate by, all on meshes of one framework.
        *args: The function's positional arguments.
        **kwargs: The function's keyword arguments.

    Returns:
        The scalar, and a gradient for each variable.

    Raises:
        TypeError: An item of `variables` is no variable.
        ValueError: `variables` is empty.

    Example:
        >>> import numpy as np
        >>> from hocket import mesh
        >>> layout = mesh.Layout.replicated(mesh.create_mesh({"data": 1}), 1)
        >>> weights = mesh.DVariable(np.array([1.0, 2.0], "float32"), layout)
        >>> value, (slope,) = mesh.value_and_gradients(lambda: (weights * weights).sum(), [weights])
        >>> float(value), slope.numpy().tolist()
        (5.0, [2.0, 4.0])
    """
    backend = _check_variables("value_and_gradients", variables)

    def compute(values: Sequence[tensors.DTensor]) -> object:
        with _stand_for(variables, values):
            return function(*args, **kwargs)

    return backend.differentiate(compute, [one.value for one in variables])


def function(*, variables: Sequence[DVariable], donate: bool = False) -> Callable[[Callable[P, R]], Function[P, R]]:
    """Compile a step that reads and assigns variables, as ``tf.function`` does. A decorator.

    Args:
        variables: All variables that the step reads or assigns. Any other that it assigns keeps a traced value.
        donate: Whether the step may overwrite the memory of the variables' values. Then references to earlier values
            cannot be read any more. Default: no.

    Returns:
        A decorator that makes a `Function` of a step. The step is traced once for each shape and type of its arguments.

    Raises:
        TypeError: An item of `variables` is no variable.
        ValueError: `variables` is empty.

    Example:
        >>> import numpy as np
        >>> from hocket import mesh
        >>> layout = mesh.Layout.replicated(mesh.create_mesh({"data": 1}), 0)
        >>> count = mesh.DVariable(np.float32(0), layout)
        >>> @mesh.function(variables=[count])
        ... def add(number):
        ...     count.assign_add(number)
        ...     return count * 2
        >>> float(add(1.5)), float(add(1.5)), float(count)
        (3.0, 6.0, 3.0)
    """
    _check_variables("function", variables)
    return lambda step: Function(step, variables, donate=donate)


@final
class Function(Generic[P, R]):
    """A compiled step. Made by `function`.

    Args:
        step: The step.
        variables: All variables that the step reads or assigns.
        donate: Whether the step may overwrite the variables' values.
    """

    def __init__(self, step: Callable[P, R], variables: Sequence[DVariable], *, donate: bool) -> None:
        self._variables = tuple(variables)
        backend = _check_variables("function", variables)

        def compute(values: Sequence[tensors.DTensor], args: Any, kwargs: Any) -> tuple[R, list[tensors.DTensor]]:
            with _stand_for(self._variables, values):
                result = step(*args, **kwargs)
                return result, [one.value for one in self._variables]

        self._run = backend.compile(compute, [one.layout for one in self._variables], donate=donate)
        functools.update_wrapper(self, step)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the step, and assign the variables."""
        result: R
        result, values = self._run([one.value for one in self._variables], args, kwargs)
        for one, value in zip(self._variables, values, strict=True):
            one._value = value
        return result


@contextlib.contextmanager
def _stand_for(variables: Sequence[DVariable], values: Sequence[tensors.DTensor]) -> Iterator[None]:
    """Give variables other values for the duration of a block."""
    before = [one._value for one in variables]
    try:
        for one, value in zip(variables, values, strict=True):
            one._value = value
        yield
    finally:
        for one, value in zip(variables, before, strict=True):
            one._value = value


def _check_variables(caller: str, variables: Sequence[DVariable]) -> contract.Backend:
    found: list[object] = list(variables)
    strange = next((one for one in found if not isinstance(one, DVariable)), None)
    if strange is not None:
        raise TypeError(f"{caller}() takes variables, but received {texts.name_kind(strange)}. Make it a DVariable.")
    if not found:
        raise ValueError(f"{caller}() received no variables. Pass the variables that the function reads or assigns.")
    return contract.get_backend(variables[0].layout.mesh.framework)
