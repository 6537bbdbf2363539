"""Functions for all values of a model at once: spread them by a `LayoutMap`, or list their layouts in a table."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, final

import numpy as np

from hocket.mesh import layout_maps, layouts, operations, relayouts, shown
from hocket.mesh.backends import contract

_NAMED: Final = 8
"""Number of names that an error lists."""


def distribute(tree: object, layout_map: layout_maps.LayoutMap) -> Any:
    """Spread the values of a model according to a layout map.

    Args:
        tree: The values, in the framework's structure. For JAX a pytree, such as Flax's parameters, whose names are
            their paths: ``"params/Dense_0/kernel"``. For PyTorch a module, with its own names: ``"0.weight"``.
        layout_map: The layouts. A module's buffers, and parameters that no rule matches, are replicated.

    Returns:
        The same structure with a DTensor for each value. A module is changed in place and returned: its parameters are
        torch's DTensors, and tied parameters stay tied. Make an optimizer after that.

    Raises:
        TypeError: A leaf is no array.
        ValueError: A layout does not fit, two rules match a name, or a rule matches no name.

    Example:
        >>> import numpy as np
        >>> from hocket import mesh
        >>> rules = mesh.LayoutMap(mesh.create_mesh({"model": 1}), {".*/kernel": [mesh.UNSHARDED, "model"]})
        >>> spread = mesh.distribute({"dense": {"kernel": np.ones((4, 2)), "bias": np.ones(2)}}, rules)
        >>> spread["dense"]["kernel"].layout.sharding_specs
        ['unsharded', 'model']
    """
    _check_map(layout_map)
    backend = operations.find_backend(layout_map.mesh)
    named, rebuild = backend.flatten(tree)
    find = build_finder(layout_map, [name for name, _ in named], backend.list_buffers(tree))
    found = [find(name, np.shape(leaf)) for name, leaf in named]  # find all layouts before any value is spread
    spread = []
    for (name, leaf), layout in zip(named, found, strict=True):
        spread.append(operations.copy_to_mesh(leaf, layout))
        shown.OWN.note_spread(name, layout, np.shape(leaf), spread[-1].dtype.itemsize)
    return rebuild(spread)


def build_finder(
    layout_map: layout_maps.LayoutMap, names: Sequence[str], buffers: Collection[str]
) -> Callable[[str, Sequence[int]], layouts.Layout]:
    """Return a function that finds the layout of a value of a model by the value's name and shape.

    Args:
        layout_map: The rules, which apply to parameters.
        names: The names of all values.
        buffers: The names of values that are no parameters.
    """
    check_rules(layout_map, [name for name in names if name not in buffers])

    def find(name: str, shape: Sequence[int]) -> layouts.Layout:
        if name in buffers:
            return layouts.Layout.replicated(layout_map.mesh, len(shape))
        return layout_map.find(name, shape)

    return find


def _check_map(layout_map: object) -> None:
    if not isinstance(layout_map, layout_maps.LayoutMap):
        raise TypeError(
            f"layout_map must be a LayoutMap, but received {layout_map!r}. Write "
            "LayoutMap(mesh, {'.*/kernel': [UNSHARDED, 'model']})."
        )


def check_rules(layout_map: layout_maps.LayoutMap, names: Sequence[str]) -> None:
    """Raise if a rule matches no name: a misspelt rule would leave its parameters replicated, without an error."""
    idle = [pattern for pattern in layout_map if not any(layout_map.matches(pattern, name) for name in names)]
    if idle:
        raise ValueError(
            f"The rule {idle[0]!r} matches no parameter. Their names are {', '.join(map(repr, names[:_NAMED]))}"
            f"{f' and {len(names) - _NAMED} more' if len(names) > _NAMED else ''}. Correct the rule, or delete it."
        )


# --- a table of layouts -----------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ParameterRow:
    """One parameter in the result of `explain`."""

    name: str
    """The parameter's path."""
    layout: layouts.Layout
    """The parameter's layout."""
    shape: tuple[int, ...]
    """The shape of the whole parameter."""
    local_shape: tuple[int, ...]
    """The shape of each device's part."""
    local_bytes: int
    """Number of the parameter's bytes on each device."""
    forward: relayouts.Plan
    """The plan that makes the parameter whole along the batch's axes, before it is used."""
    backward: relayouts.Plan
    """The plan that gives the gradient the parameter's layout, after each part of the batch has computed a term."""


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Explanation:
    """The layouts of a model's parameters, and the bytes that a step moves for parameters and gradients.

    Printed, it is a table. It does not include the bytes that operations move, such as activations of a kernel that is
    cut along its input: they depend on the model.
    """

    rows: tuple[ParameterRow, ...]
    """The parameters, in the model's order."""
    batch_dims: tuple[str, ...]
    """The mesh axes that cut the batch."""

    @property
    def global_bytes(self) -> int:
        """Number of bytes of all parameters."""
        return sum(row.local_bytes * math.prod(row.layout.shape) for row in self.rows)

    @property
    def local_bytes(self) -> int:
        """Number of bytes of parameters on each device."""
        return sum(row.local_bytes for row in self.rows)

    @property
    def moved_bytes(self) -> int:
        """Number of bytes that each device receives in a step."""
        return sum(row.forward.num_bytes + row.backward.num_bytes for row in self.rows)

    def __str__(self) -> str:
        heads = ("parameter", "shape", "layout", "a device has", "bytes", "forward", "gradient")
        body = [
            (
                row.name,
                _describe_shape(row.shape),
                "[" + ", ".join(row.layout.sharding_specs) + "]",
                _describe_shape(row.local_shape),
                f"{row.local_bytes:,}",
                _describe_plan(row.forward),
                _describe_plan(row.backward),
            )
            for row in self.rows
        ]
        widths = [max(map(len, column)) for column in zip(heads, *body, strict=True)]
        lines = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in (heads, *body)]
        lines.insert(1, "  ".join("-" * width for width in widths))
        lines.append(
            f"Of {self.global_bytes:,} B each device has {self.local_bytes:,}, and receives {self.moved_bytes:,} in a "
            "step."
        )
        return "\n".join(lines)


def explain(tree: object, layout_map: layout_maps.LayoutMap, *, batch_dims: Sequence[str] = ()) -> Explanation:
    """Describe how a model would be spread, and the bytes that a step would move, without doing either.

    A parameter that is cut along an axis of the batch is gathered before it is used, and its gradient is summed into
    parts (S. Rajbhandari, J. Rasley, O. Ruwase and Y. He, "ZeRO: Memory Optimizations Toward Training Trillion
    Parameter Models", 2020). The gradient of any other parameter is summed whole.

    Args:
        tree: The values, as for `distribute`. Objects with a `shape` and a `dtype` suffice, such as
            ``jax.eval_shape(model.init, ...)``.
        layout_map: The layouts.
        batch_dims: The mesh axes that cut the batch. Default: none, and no gradient is summed.

    Raises:
        TypeError: A leaf has no shape, or no numeric type.
        ValueError: As for `distribute`, or the mesh has no such axis.

    Example:
        >>> import numpy as np
        >>> from hocket import mesh
        >>> rules = mesh.LayoutMap(mesh.Mesh({"data": 4}), {"kernel": ["data", mesh.UNSHARDED]})
        >>> told = mesh.explain({"bias": np.ones(8), "kernel": np.ones((8, 8))}, rules, batch_dims=["data"])
        >>> told.local_bytes, told.moved_bytes
        (192, 864)
        >>> print(str(told).splitlines()[-1])
        Of 576 B each device has 192, and receives 864 in a step.
    """
    _check_map(layout_map)
    backend = contract.get_backend(
        layout_map.mesh.framework or contract.find_framework(tree) or contract.choose_framework()
    )
    named, _ = backend.flatten(tree)
    find = build_finder(layout_map, [name for name, _ in named], backend.list_buffers(tree))
    axes = (batch_dims,) if isinstance(batch_dims, str) else tuple(batch_dims)
    for axis in axes:
        layout_map.mesh.dim_size(axis)
    frozen = backend.list_frozen(tree)
    return Explanation(tuple([_explain_one(name, leaf, find, axes, frozen) for name, leaf in named]), axes)


def _explain_one(
    name: str,
    leaf: object,
    find: Callable[[str, Sequence[int]], layouts.Layout],
    batch: tuple[str, ...],
    frozen: Collection[str],
) -> ParameterRow:
    value = leaf if hasattr(leaf, "shape") and hasattr(leaf, "dtype") else np.asarray(leaf)
    shape, itemsize = tuple(value.shape), _count_bytes(value.dtype)
    layout = find(name, shape)
    used = layouts.Layout([[axis for axis in axes if axis not in batch] for axes in layout.axes], layout.mesh)
    local = layout.local_shape_from_global_shape(shape)
    slope = relayouts.plan_relayout(used.with_partial(batch), layout, shape, itemsize)
    return ParameterRow(
        name=name,
        layout=layout,
        shape=shape,
        local_shape=local,
        local_bytes=math.prod(local) * itemsize,
        forward=relayouts.plan_relayout(layout, used, shape, itemsize),
        backward=relayouts.Plan(()) if name in frozen else slope,
    )


def _count_bytes(dtype: Any) -> int:
    """Return the bytes of an element of a type, which may be any framework's."""
    size = getattr(dtype, "itemsize", None)
    return size if isinstance(size, int) else np.dtype(dtype).itemsize


def _describe_shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "a number"


def _describe_plan(plan: relayouts.Plan) -> str:
    told = [f"{step.kind.value} along {step.axis}: {step.num_bytes:,} B" for step in plan.steps if step.num_bytes]
    return ", ".join(told) or "-"
