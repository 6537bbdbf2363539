"""Parameters that are used outside the module that has them.

Attention takes its output layer's weights, a list of parameters has no forward pass, a decoder multiplies by the
weights of an embedding. No hook of the owner sees such a use. So while modules compute, a mode looks at torch's
functions: a function that takes a stored parameter gets the tensor that layers compute with.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, final

import torch
from torch import nn, overrides
from torch.distributed import device_mesh
from torch.distributed import tensor as torch_tensor

from hocket.train.frameworks.torch.strategies import sharded_hooks

_GETTERS: Final = frozenset(["T", "mT", "H", "mH", "real", "imag"])
"""The properties of a tensor that compute; the others describe it."""

_TELLING: Final = frozenset(
    [
        "size",
        "dim",
        "numel",
        "nelement",
        "stride",
        "is_contiguous",
        "element_size",
        "is_floating_point",
        "is_complex",
        "data_ptr",
        "untyped_storage",
        "requires_grad_",
        "register_hook",
        "register_post_accumulate_grad_hook",
        "detach",
        "backward",
        "__set__",
        "__delete__",
        "__repr__",
        "__len__",
    ]
)
"""The functions that describe a parameter, or work on the stored parameter."""


_WRITING: Final = frozenset([f"__i{name}__" for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")])
"""The functions that write into their first argument without a single underscore at the end of their names."""


@final
class Uses(overrides.TorchFunctionMode):
    """A mode in which torch's functions take the tensors that layers compute with.

    Args:
        use: Returns that tensor for a stored parameter, and None for any other tensor.
        mesh: torch's mesh of the stored parameters.
    """

    def __init__(self, use: Callable[[nn.Parameter], torch.Tensor | None], mesh: device_mesh.DeviceMesh) -> None:
        super().__init__()
        self._use = use
        self._mesh = mesh

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __torch_function__(
        self, function: Callable[..., object], kinds: object, args: Sequence[object] = (), kwargs: Any = None
    ) -> object:
        writes = _writes(function)  # into its first argument
        if _computes(function) and not (writes and args and self._is_kept(args[0])):
            args = [one if writes and not number else self._open(one) for number, one in enumerate(args)]
            kwargs = {name: self._open(one) for name, one in kwargs.items()} if kwargs else {}
        return function(*args, **(kwargs or {}))

    def _open(self, one: Any) -> object:
        if isinstance(one, nn.Parameter):
            found = self._use(one)
            return one if found is None else found
        if isinstance(one, torch_tensor.DTensor) and self._is_kept(one) and not one.requires_grad:
            return one.full_tensor()  # a program has detached it from a parameter
        if type(one) in (list, tuple) and any(isinstance(inner, (nn.Parameter, torch_tensor.DTensor)) for inner in one):
            return type(one)([self._open(inner) for inner in one])
        return one

    def _is_kept(self, one: Any) -> bool:
        """Return whether a tensor, or the first of several, is laid out as stored parameters: it keeps writes."""
        first = one[0] if type(one) in (list, tuple) and one else one
        return isinstance(first, torch_tensor.DTensor) and first.device_mesh == self._mesh


def _computes(function: Callable[..., object]) -> bool:
    name = getattr(function, "__name__", "")
    if name == "__get__":
        return getattr(getattr(function, "__self__", None), "__name__", "") in _GETTERS
    return name not in _TELLING


def _writes(function: Callable[..., object]) -> bool:
    name = getattr(function, "__name__", "")
    return (name.endswith("_") and not name.endswith("__")) or name in _WRITING


class _Depth(threading.local):
    count = 0

    def __init__(self) -> None:
        self.entered = contextlib.ExitStack()


def enter_while_computing(
    model: nn.Module,
    hooks: sharded_hooks.Hooks,
    modes: Sequence[Callable[[], contextlib.AbstractContextManager[Any]]],
    take: Callable[[Any], object] | None = None,
    give: Callable[[Any], object] | None = None,
) -> None:
    """Enter contexts while the outermost of a model's modules computes: the model, or a part called by itself.

    Args:
        model: The model.
        hooks: Its hooks.
        modes: The functions that make the contexts.
        take: Converts the outermost module's arguments. Default: unchanged.
        give: Converts its result for the caller. Default: unchanged.
    """
    depth = _Depth()

    def begin(module: nn.Module, args: object, kwargs: object) -> Any:
        depth.count += 1
        if depth.count > 1:
            return None
        if torch.is_inference_mode_enabled():  # DTensors have no views in it
            depth.entered.enter_context(torch.inference_mode(mode=False))
            depth.entered.enter_context(torch.no_grad())
        for mode in modes:
            depth.entered.enter_context(mode())
        return None if take is None else (take(args), take(kwargs))

    def end(module: nn.Module, args: object, result: object) -> object:
        depth.count = max(depth.count - 1, 0)
        if depth.count:
            return None
        depth.entered.close()
        return None if give is None else give(result)

    for module in model.modules():
        hooks.before(module, begin, prepend=True, with_kwargs=True)
        hooks.after(module, end)
