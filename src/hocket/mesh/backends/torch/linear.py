"""`torch.nn.functional.linear` on spread values: one product on each rank, and the fewest sums.

torch splits the function into views, products and additions, and derives a layout for each. Here, along an axis:

- If the weight's rows (its output) are cut, the value is whole, and the result is cut in its last dim. The value's
  gradient stays as terms of a sum, so the gradients of several layers of one value, as in attention, are added up once.
- If the weight's columns (its input) and the value's last dim are cut, the products are summed, then the bias is added.
- If another dim of the value is cut, or none, and the weight is whole, the result is cut like the value. Gradients of
  weight and bias are added up.

As in Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism" (2019).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import torch
from torch.distributed import tensor as torch_tensor
from torch.nn import functional

from hocket.mesh import layouts, meshes
from hocket.mesh.backends.torch import relayouts


def compute(mesh: meshes.Mesh, value: Any, weight: Any, bias: Any = None) -> object:
    """Return the product; NotImplemented for values with other layouts."""
    given = [one for one in (value, weight, bias) if one is not None]
    has_ranks = value.ndim >= 2 and weight.ndim == 2
    if not has_ranks or torch.is_autocast_enabled("cpu"):
        return NotImplemented
    if not all(isinstance(one, torch_tensor.DTensor) for one in given):
        return NotImplemented
    given = [relayouts.settle(one) for one in given]
    value = given[0] = add_up(given[0], mesh)
    plan = _plan(mesh, *[relayouts.read_placements(one.placements, one.ndim, mesh) for one in given])
    return NotImplemented if plan is None else _apply(value, weight, bias, plan)


def add_up(value: torch_tensor.DTensor, mesh: meshes.Mesh) -> torch_tensor.DTensor:
    """Return a value without terms of a sum: it is added up once, and not by each consumer."""
    if not any(one.is_partial() for one in value.placements):
        return value
    layout = relayouts.read_placements(value.placements, value.ndim, mesh).with_partial(())
    return relayouts.build_dtensor(relayouts.move(value, layout), layout)


class _Layouts:
    """The layouts of the values of one product.

    Args:
        value: The layout of the left factor.
        weight: The layout of the weight.
        product: The layout of the result, before it is added up.
    """

    def __init__(self, value: layouts.Layout, weight: layouts.Layout, product: layouts.Layout) -> None:
        self.product = product
        self.result = product.with_partial(())
        self.bias = layouts.Layout([weight.axes[0]], weight.mesh)
        rows = [axis for axes in value.axes[:-1] for axis in axes]
        self.value_slope = value.with_partial(weight.axes[0])
        self.weight_slope = weight.with_partial(rows)
        self.bias_slope = self.bias.with_partial(rows)


@functools.lru_cache(maxsize=1024)
def _plan(
    mesh: meshes.Mesh, value: layouts.Layout, weight: layouts.Layout, bias: layouts.Layout | None = None
) -> _Layouts | None:
    outputs, inputs = weight.axes
    rows = {axis for axes in value.axes[:-1] for axis in axes}
    fits = (
        value.axes[-1] == inputs
        and not weight.partial
        and not rows & {*outputs, *inputs}
        and (bias is None or (bias.axes[0] == outputs and not bias.partial))
    )
    if not fits:
        return None
    return _Layouts(value, weight, layouts.Layout([*value.axes[:-1], outputs], mesh, partial=inputs))


class _Linear(torch.autograd.Function):
    """The product with its gradients."""

    @staticmethod
    def forward(ctx: Any, value: Any, weight: Any, bias: Any, plan: _Layouts) -> torch.Tensor:
        ctx.plan = plan
        ctx.save_for_backward(value, weight)
        own = value.to_local(), weight.to_local(), None if bias is None else bias.to_local()
        if not plan.product.partial:
            return relayouts.build_dtensor(functional.linear(*own), plan.result)
        total = relayouts.run_plan(functional.linear(*own[:2]), plan.product, plan.result)
        return relayouts.build_dtensor(total if own[2] is None else total.add_(own[2]), plan.result)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *slopes: Any) -> object:
        plan: _Layouts = ctx.plan
        saved_value, saved_weight = ctx.saved_tensors
        value, weight = saved_value.to_local(), saved_weight.to_local()
        slope = relayouts.move(slopes[0], plan.result)
        flat = slope.flatten(0, -2)
        found: list[object] = [None] * 4
        if ctx.needs_input_grad[0]:
            found[0] = relayouts.build_dtensor(slope @ weight, plan.value_slope)
        if ctx.needs_input_grad[1]:
            found[1] = relayouts.build_dtensor(flat.T @ value.flatten(0, -2), plan.weight_slope)
        if ctx.needs_input_grad[2]:
            found[2] = relayouts.build_dtensor(flat.sum(0), plan.bias_slope)
        return tuple(found)


_apply: Final[Callable[..., torch.Tensor]] = _Linear.apply
