"""Correct results of torch's functions on its ``DTensor``, for every layout.

For each operation, torch derives the layout of the result. If it cannot, or derives a wrong one (a convolution along a
dim that is cut), this module computes the operation on the ranks' parts, after relayouts by their plans:

- A convolution keeps the batch's rows and the kernel's output channels cut.
- An embedding keeps its table cut. Along axes that cut the table's rows, each rank looks up the rows that it has, with
  zeros for the others, as terms of a sum.
- Attention keeps heads and rows cut.
- Any other function without a rule gets each value whole.

Gradients take the same way back; they are terms of a sum if the ranks have seen different rows.

All functions pass through the mode `Functions`, which holds for a block. In the block, a plain tensor beside a spread
value counts as one that all ranks have.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, final

import torch
from torch import overrides
from torch.distributed import tensor as torch_tensor
from torch.nn import functional

from hocket._base.internals import torch as torch_internals
from hocket.mesh import layouts, meshes
from hocket.mesh.backends.torch import attention, linear, relayouts

_NO_RULE: Final = "Sharding propagation failed"
"""Text in torch's error for an operation without a rule for its inputs' layouts, unless it is NotImplementedError."""


_NOT_COMPUTING: Final = frozenset(["__get__", "__set__", "backward"])
_PLAIN: Final = frozenset([int, float, bool, complex, str, type(None), torch.dtype, torch.device, torch.Size, slice])
"""Types of arguments that cannot contain tensors."""


@final
class Functions(overrides.TorchFunctionMode):
    """A mode that makes torch's functions correct on DTensors, for a block."""

    def __torch_function__(
        self, function: Callable[..., Any], kinds: object, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        return _compute(function, tuple(args), kwargs or {})


def flatten(tree: Any) -> list[Any]:
    """Return the leaves of nested tuples, lists and dicts."""
    return torch_internals.list_leaves(tree)


def map_leaves(tree: object, function: Callable[[Any], object]) -> Any:
    """Return the same tuples, lists and dicts with each leaf replaced by the function's result."""
    return torch_internals.map_leaves(function, tree)


def _compute(function: Callable[..., object], args: tuple[object, ...], kwargs: Mapping[str, object]) -> object:
    name = getattr(function, "__name__", "")
    if name in _NOT_COMPUTING:
        return function(*args, **kwargs)
    given, is_mixed = _look(args, None)
    if kwargs:
        given, is_among_named = _look(kwargs.values(), given)
        is_mixed = is_mixed or is_among_named
    if given is None:
        return function(*args, **kwargs)
    mesh = relayouts.find_mesh(given.device_mesh)
    if is_mixed:
        args, kwargs = map_leaves((args, kwargs), lambda one: _replicate(one, mesh))
    ours = _OURS.get(function)
    if ours is not None:
        if "input" in kwargs:  # torch's name of the first argument in all of these functions
            args, kwargs = (kwargs["input"], *args), {name: one for name, one in kwargs.items() if name != "input"}
        found = ours(function, mesh, *args, **kwargs)
        if found is not NotImplemented:
            return found
    try:
        return function(*args, **kwargs)
    except RuntimeError as error:  # includes NotImplementedError
        if not isinstance(error, NotImplementedError) and _NO_RULE not in str(error):
            raise
        if name.endswith("_") or kwargs.get("out") is not None:
            raise  # the function writes into a spread value
        return _compute_whole(function, mesh, args, kwargs, error)


def _look(some: Iterable[Any], given: torch_tensor.DTensor | None) -> tuple[torch_tensor.DTensor | None, bool]:
    """Return `given` or else the first DTensor, and whether there are values other than plain numbers and DTensors.

    This runs before every function, so it looks at types alone: `isinstance` calls torch's metaclass, in Python."""
    is_mixed = False
    for one in some:
        kind = type(one)
        if kind in _PLAIN:
            continue
        if issubclass(kind, torch_tensor.DTensor):
            given = one if given is None else given
        elif kind in (tuple, list):
            given, is_inner_mixed = _look(one, given)
            is_mixed = is_mixed or is_inner_mixed
        elif kind is dict:
            given, is_inner_mixed = _look(one.values(), given)
            is_mixed = is_mixed or is_inner_mixed
        else:
            is_mixed = True
            if given is None:
                inner = [leaf for leaf in flatten(one) if isinstance(leaf, torch_tensor.DTensor)]
                given = inner[0] if inner else None
    return given, is_mixed


def _replicate(one: object, mesh: meshes.Mesh) -> object:
    """Return a plain tensor as a replicated DTensor."""
    if isinstance(one, torch.Tensor) and one.ndim and not isinstance(one, torch_tensor.DTensor):
        return relayouts.build_dtensor(one, layouts.Layout.replicated(mesh, one.ndim))
    return one


# --- by parts ---------------------------------------------------------------------------------------------------------


def _convolve(
    function: Callable[..., object],
    mesh: meshes.Mesh,
    images: object,
    weight: Any,
    bias: Any = None,
    stride: object = 1,
    padding: object = 0,
    dilation: object = 1,
    groups: int = 1,
) -> object:
    """Compute a convolution of this rank's rows of the batch, for this rank's output channels of the kernel."""
    cut = read_layout(weight, mesh).axes[0] if groups == 1 else ()
    return _convolve_rows(function, mesh, images, weight, bias, cut, (stride, padding, dilation, groups))


def _convolve_transposed(
    function: Callable[..., object],
    mesh: meshes.Mesh,
    images: object,
    weight: object,
    bias: object = None,
    *rest: object,
    **more: object,
) -> object:
    """Compute a transposed convolution of this rank's rows of the batch."""
    return _convolve_rows(function, mesh, images, weight, bias, (), rest, **more)


def _convolve_rows(
    function: Callable[..., Any],
    mesh: meshes.Mesh,
    images: Any,
    weight: Any,
    bias: Any,
    channels: tuple[str, ...],
    rest: Sequence[object],
    **more: object,
) -> torch_tensor.DTensor:
    """Compute a convolution on this rank's rows and output channels.

    Args:
        function: The convolution of plain tensors.
        mesh: The mesh.
        images: The batch, or one image.
        weight: The weights.
        bias: The bias of each output channel; or None.
        channels: The axes that cut the output channels.
        rest: The other positional arguments.
        **more: The other keyword arguments.
    """
    has_batch = images.ndim == weight.ndim
    given = read_layout(images, mesh).axes[0] if has_batch else ()
    rows = tuple([axis for axis in given if axis not in channels])
    places = [()] * (weight.ndim - 2)
    found = function(
        relayouts.move(images, layouts.Layout([*([rows] if has_batch else []), (), *places], mesh), channels),
        relayouts.move(weight, layouts.Layout([channels, (), *places], mesh), rows),
        None if bias is None else relayouts.move(bias, layouts.Layout([channels], mesh), rows),
        *rest,
        **more,
    )
    return relayouts.build_dtensor(found, layouts.Layout([*([rows] if has_batch else []), channels, *places], mesh))


def _embed(
    function: Callable[..., Any],
    mesh: meshes.Mesh,
    numbers: object,
    weight: Any,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> object:
    """Look up rows of a table: each rank looks up the rows that it has."""
    if max_norm is not None:
        raise NotImplementedError(
            f"embedding(max_norm={max_norm}) writes into its table, but each rank has only a part of the table. Leave "
            "max_norm out, and scale the table after a step."
        )
    if sparse:
        raise NotImplementedError(
            "embedding(sparse=True) makes sparse gradients, which DTensors do not support. Write sparse=False."
        )
    whole = len(weight)
    if scale_grad_by_freq or not isinstance(numbers, torch_tensor.DTensor):
        return NotImplemented
    layout = read_layout(weight, mesh).with_partial(())
    rows, columns = layout.axes
    batch = [[axis for axis in axes if axis not in (*rows, *columns)] for axes in read_layout(numbers, mesh).axes]
    asked = relayouts.move(numbers, layouts.Layout(batch, mesh))
    held = relayouts.move(weight, layout, [axis for axes in batch for axis in axes])
    if asked.numel() and not 0 <= int(asked.min()) <= int(asked.max()) < whole:
        raise IndexError(
            f"embedding() takes row numbers from 0 to {whole - 1}, but received {int(asked.min())} to "
            f"{int(asked.max())}."
        )
    first = layout.get_part(0, mesh.locate(relayouts.get_number(mesh))) * len(held)
    is_here = (asked >= first) & (asked < first + len(held))
    padding = padding_idx % whole - first if padding_idx is not None else -1
    found = function(
        torch.where(is_here, asked - first, 0), held, padding_idx=padding if 0 <= padding < len(held) else None
    )
    if rows:
        found = torch.where(is_here.unsqueeze(-1), found, 0)
    return linear.add_up(relayouts.build_dtensor(found, layouts.Layout([*batch, columns], mesh, partial=rows)), mesh)


def _normalize_batch(
    function: Callable[..., object],
    mesh: meshes.Mesh,
    images: object,
    running_mean: object,
    running_var: object,
    weight: object = None,
    bias: object = None,
    training: bool = False,
    *rest: object,
    **more: object,
) -> object:
    """Compute batch normalization with running means on the whole batch, so that each rank gets the same means."""
    if not training or running_mean is None:
        return NotImplemented
    args = (images, running_mean, running_var, weight, bias, training, *rest)
    return _compute_whole(function, mesh, args, more, None)


def _compute_by_rows(function: Callable[..., Any], mesh: meshes.Mesh, images: Any, *args: Any, **kwargs: Any) -> Any:
    """Compute a function that treats each row of the batch by itself, on this rank's rows; weights are whole."""
    rows = read_layout(images, mesh).axes[0] if images.ndim > 1 else ()

    def take(one: object) -> Any:
        if not isinstance(one, torch_tensor.DTensor):
            return one
        return relayouts.move(one, layouts.Layout.replicated(mesh, one.ndim), rows)

    given = relayouts.move(images, layouts.Layout([rows, *[()] * (images.ndim - 1)], mesh))
    found = function(given, *map(take, args), **{name: take(one) for name, one in kwargs.items()})
    return relayouts.build_dtensor(found, layouts.Layout([rows, *[()] * (found.ndim - 1)], mesh))


def _cumulate(function: Callable[..., Any], mesh: meshes.Mesh, value: Any, dim: int, **more: Any) -> Any:
    """Compute a function that runs along a dim: that dim is gathered, the others stay cut."""
    axes = list(read_layout(value, mesh).axes)
    axes[dim] = ()
    layout = layouts.Layout(axes, mesh)
    found = function(relayouts.move(value, layout), dim, **more)
    return map_leaves(found, lambda one: relayouts.build_dtensor(one, layout))


def _reduce(function: Callable[..., Any], mesh: meshes.Mesh, value: Any, *args: Any, **kwargs: Any) -> Any:
    """Compute a reduction other than a sum: its dims are gathered, the others stay cut. The gradient depends on which
    element is the largest, and a rank cannot know that from its part."""
    dims = kwargs.get("dim", args[0] if args else ())
    if isinstance(dims, torch.Tensor) or not isinstance(value, torch_tensor.DTensor):
        return NotImplemented  # the elementwise maximum or minimum of two values
    numbers = [dims] if isinstance(dims, int) else list(dims or ())
    if not numbers:
        return _compute_whole(function, mesh, (value, *args), kwargs, None)
    taken = {number % value.ndim for number in numbers}
    axes = [() if dim in taken else one for dim, one in enumerate(read_layout(value, mesh).axes)]
    found = function(relayouts.move(value, layouts.Layout(axes, mesh)), *args, **kwargs)
    left = [one for dim, one in enumerate(axes) if dim not in taken]

    def wrap(one: torch.Tensor) -> object:
        return relayouts.build_dtensor(one, layouts.Layout(axes if one.ndim == value.ndim else left, mesh))

    return map_leaves(found, wrap)


def _compute_norm(function: Callable[..., Any], mesh: meshes.Mesh, value: Any, *args: Any, **kwargs: Any) -> Any:
    """Compute a norm of infinite order as a maximum or minimum; torch's own rules handle the others."""
    order, dim = kwargs.pop("ord", args[0] if args else 2), kwargs.pop("dim", args[1] if args[1:] else None)
    if not (isinstance(order, (int, float)) and math.isinf(order)):
        return NotImplemented

    def compute(one: torch.Tensor, dim: Any, *more: Any, **named: Any) -> Any:
        return function(one, order, dim, *more, **named)

    return _reduce(compute, mesh, value, dim, *args[2:], **kwargs)


def _unflatten(function: Callable[..., Any], mesh: meshes.Mesh, value: Any, dim: Any, sizes: Any) -> Any:
    """Split a dim into several. It stays cut if the parts divide the first of the new dims."""
    if not isinstance(dim, int) or not isinstance(value, torch_tensor.DTensor):
        return NotImplemented
    dim %= value.ndim
    axes = list(read_layout(value, mesh).axes)
    found: torch.Tensor = torch.unflatten(torch.empty(value.shape[dim], device="meta"), 0, sizes)
    sizes = list(found.shape)  # with a -1 replaced
    parts = math.prod([mesh.dim_size(axis) for axis in axes[dim]])
    if sizes[0] % parts:
        axes[dim], parts = (), 1
    local = relayouts.move(value, layouts.Layout(axes, mesh))
    axes[dim : dim + 1] = [axes[dim], *[()] * (len(sizes) - 1)]
    return relayouts.build_dtensor(function(local, dim, [sizes[0] // parts, *sizes[1:]]), layouts.Layout(axes, mesh))


def _normalize(
    function: Callable[..., Any],
    mesh: meshes.Mesh,
    value: Any,
    p: float = 2.0,
    dim: int = 1,
    eps: float = 1e-12,
    out: Any = None,
) -> Any:
    """Normalize into a tensor that all ranks have, as spectral normalization does."""
    if out is None or not isinstance(out, torch_tensor.DTensor) or not read_layout(out, mesh).is_fully_replicated:
        return NotImplemented
    whole = relayouts.move(value, layouts.Layout.replicated(mesh, value.ndim))
    out.to_local().copy_(function(whole, p, dim, eps))
    return out


def _compute_together(function: Callable[..., object], mesh: meshes.Mesh, *args: object, **kwargs: object) -> Any:
    """Compute a function that needs whole values."""
    return _compute_whole(function, mesh, args, kwargs, None)


def _multiply(function: Callable[..., object], mesh: meshes.Mesh, *args: object, **kwargs: object) -> Any:
    """Compute a dense layer's product on parts."""
    return linear.compute(mesh, *args, **kwargs)


def _compute_mean(
    function: Callable[..., Any],
    mesh: meshes.Mesh,
    value: Any,
    dim: Any = None,
    keepdim: bool = False,
    dtype: Any = None,
    **more: Any,
) -> Any:
    """Compute a mean as a sum and a quotient: torch would leave means of parts, whose gradients it cannot lay out."""
    kind = dtype or value.dtype
    if more or not kind.is_floating_point:
        return NotImplemented
    dims = [dim] if isinstance(dim, int) else list(dim or range(value.ndim))  # as in torch, no dims mean all
    count = math.prod([value.shape[one] for one in dims])
    if not count:
        return NotImplemented
    wide = torch.float32 if kind in (torch.float16, torch.bfloat16) else kind  # a sum may overflow half precision
    return (torch.sum(value, dims, keepdim=keepdim, dtype=wide) / count).to(kind)


def _read(function: Callable[..., Any], mesh: meshes.Mesh, value: Any) -> Any:
    """Return numbers for Python from the whole value, because each rank has only a part."""
    return function(relayouts.move(value.detach(), layouts.Layout.replicated(mesh, value.ndim)))


def _attend(function: Callable[..., Any], mesh: meshes.Mesh, *args: Any, **kwargs: Any) -> Any:
    """Compute attention for this rank's heads and rows."""
    return attention.attend(function, *args, **kwargs)


def _build_opened(function: Any) -> Callable[..., Any]:
    """Return a copy of one of torch's Python functions that skips the check for modes like ours, so that the functions
    which it calls pass through our mode."""
    names = {**function.__globals__, "has_torch_function": lambda values: False}
    opened = types.FunctionType(function.__code__, names, function.__name__, function.__defaults__)
    opened.__kwdefaults__ = function.__kwdefaults__
    return opened


_attend_opened: Final = _build_opened(functional.multi_head_attention_forward)


def _attend_with_weights(function: Callable[..., object], mesh: meshes.Mesh, *args: object, **kwargs: object) -> Any:
    """Compute attention with its dense layers: our mode handles each function that it calls."""
    with Functions():
        return _attend_opened(*args, **kwargs)


def read_layout(value: torch_tensor.DTensor, mesh: meshes.Mesh) -> layouts.Layout:
    """Return a DTensor's layout."""
    settled = relayouts.settle(value)
    return relayouts.read_placements(settled.placements, settled.ndim, mesh)


_OURS: Final[Mapping[Callable[..., Any], Callable[..., Any]]] = {
    **dict.fromkeys((functional.conv1d, functional.conv2d, functional.conv3d), _convolve),
    **dict.fromkeys(
        (functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d), _convolve_transposed
    ),
    functional.embedding: _embed,
    functional.batch_norm: _normalize_batch,
    functional.normalize: _normalize,
    torch.unflatten: _unflatten,
    torch.Tensor.unflatten: _unflatten,
    functional.linear: _multiply,
    functional.scaled_dot_product_attention: _attend,
    functional.multi_head_attention_forward: _attend_with_weights,
    **dict.fromkeys(
        (functional.avg_pool1d, functional.avg_pool2d, functional.avg_pool3d, functional.group_norm, functional.prelu),
        _compute_by_rows,
    ),
    **{
        getattr(kind, name): _cumulate
        for kind in (torch, torch.Tensor)
        for name in ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp")
    },
    **dict.fromkeys(
        (
            functional.mse_loss,
            functional.smooth_l1_loss,
            functional.huber_loss,
            functional.binary_cross_entropy,
            functional.soft_margin_loss,
            functional.cosine_embedding_loss,
        ),
        _compute_together,
    ),
    **{
        getattr(kind, name): _reduce
        for kind in (torch, torch.Tensor)
        for name in ("amax", "amin", "max", "min", "aminmax", "prod", "any", "all")
    },
    torch.linalg.vector_norm: _compute_norm,
    torch.mean: _compute_mean,
    torch.Tensor.mean: _compute_mean,
    **{
        getattr(torch.Tensor, name): _read
        for name in ("item", "tolist", "__float__", "__int__", "__bool__", "__index__", "__complex__")
    },
    **{
        getattr(kind, name): _compute_together for kind in (torch, torch.Tensor) for name in ("std", "var", "logsumexp")
    },
    **dict.fromkeys((torch.std_mean, torch.var_mean, torch_internals.get_weight_norm()), _compute_together),
}
"""Replacements of functions for which torch 2.13 has wrong rules, or no rules for their gradients:

- A convolution's result is cut like the images, without the pixels beside a cut.
- Sums along a cut dim begin anew in each part.
- A table whose rows two axes cut is refused, or its gradient is.
- Running means are lost.
- logsumexp has slopes of the wrong parts.
- Means of losses are of the rank's part, and so is a sum that becomes a number.
- A maximum has no gradient, or none that is a number.
- any() adds up.
- For attention, see `attention`.
"""


# --- whole ------------------------------------------------------------------------------------------------------------


def _compute_whole(
    function: Callable[..., Any], mesh: meshes.Mesh, args: Any, kwargs: Any, error: BaseException | None
) -> Any:
    """Compute a function without a rule on whole values, identically in each rank."""

    def move(one: Any) -> Any:
        if not isinstance(one, torch_tensor.DTensor):
            return one
        return relayouts.move(one, layouts.Layout.replicated(mesh, one.ndim))

    args, kwargs = map_leaves((args, kwargs), move)
    before = torch.get_rng_state()
    found = function(*args, **kwargs)
    if not torch.equal(before, torch.get_rng_state()):
        raise NotImplementedError(
            f"{getattr(function, '__name__', function)}() draws random numbers, which would differ between ranks, and "
            "PyTorch has no rule for how its inputs are spread. Draw the random numbers separately, as a value on the "
            "mesh."
        ) from error
    return map_leaves(found, lambda one: _wrap_whole(one, mesh))


def _wrap_whole(one: object, mesh: meshes.Mesh) -> Any:
    if not isinstance(one, torch.Tensor):
        return one
    return relayouts.build_dtensor(one, layouts.Layout.replicated(mesh, one.ndim))
