"""Modules of PyTorch on a mesh, changed in place: parameters and buffers become torch's ``DTensor``.

Tied parameters stay one. A spread module accepts values on the mesh, and plain tensors that all ranks have, and returns
values on the mesh. Hooks around its forward pass convert the values, and enter `functions`. In the backward pass, a
gradient gets its parameter's layout.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch
from torch import nn
from torch.distributed import tensor as torch_tensor
from torch.optim import optimizer as torch_optimizer

from hocket._base import texts
from hocket._base.internals import torch as torch_internals
from hocket.mesh import layouts, meshes, tensors
from hocket.mesh.backends.torch import functions, relayouts, values

_REPLACED: Final = "_hocket_replaced"
"""The attribute of a parameter that its module has replaced."""


def list_values(module: nn.Module) -> list[tuple[str, object]]:
    """Return the parameters and the saved buffers with their names, each once."""
    named = [
        *module.named_parameters(),
        *((name, buffer) for name, buffer, is_kept in _list_buffers(module) if is_kept),
    ]
    return [(name, values.adopt(value) if isinstance(value, torch_tensor.DTensor) else value) for name, value in named]


def list_buffers(module: nn.Module) -> list[str]:
    """Return the names of the saved buffers."""
    return [name for name, _, is_kept in _list_buffers(module) if is_kept]


def list_frozen(module: nn.Module) -> list[str]:
    """Return the names of the values without a gradient."""
    return [name for name, value in module.named_parameters() if not value.requires_grad] + list_buffers(module)


def _list_buffers(module: nn.Module) -> Iterator[tuple[str, torch.Tensor, bool]]:
    """Yield the buffers with their names, and whether they are saved."""
    for name, buffer in module.named_buffers():
        path, _, own = name.rpartition(".")
        yield name, buffer, own not in torch_internals.list_unsaved_buffers(module.get_submodule(path))


def fill(module: nn.Module, given: Sequence[object]) -> nn.Module:
    """Put other values into a module, in the order of `list_values`. Values on a mesh spread the module.

    A module that has these layouts already, from here or from a training strategy, keeps its parameters, with new
    values.

    Returns:
        The module.
    """
    pairs = [
        (_find(module, name), _open(name, value)) for (name, _), value in zip(list_values(module), given, strict=True)
    ]
    if _copy_into(pairs):
        return module
    by_old = {id(old): value for old, value in pairs}
    mesh = next((value.layout.mesh for value in given if isinstance(value, tensors.DTensor)), None)
    if mesh is not None:
        for _, buffer, is_kept in _list_buffers(module):
            if not is_kept and not isinstance(buffer, torch_tensor.DTensor):
                by_old[id(buffer)] = relayouts.build_dtensor(
                    buffer.detach(), layouts.Layout.replicated(mesh, buffer.ndim)
                )
    new: dict[int, Any] = {}
    for part in module.modules():
        for own in (torch_internals.get_parameters(part), torch_internals.get_buffers(part)):
            for name, old in own.items():
                if old is not None and id(old) in by_old:
                    own[name] = new.setdefault(id(old), _replace(old, by_old[id(old)]))
    if mesh is not None:
        for part in module.modules():
            _hook(part)
        _refuse_steps_of_old()
    return module


@torch.no_grad()
def _copy_into(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> bool:
    """Copy values into parameters and buffers; return False, without a copy, if the layouts differ."""
    if not any(isinstance(old, torch_tensor.DTensor) for old, _ in pairs) or not all(_fits(*pair) for pair in pairs):
        return False
    for old, value in pairs:
        local = value.to_local() if isinstance(value, torch_tensor.DTensor) else value
        (old.to_local() if isinstance(old, torch_tensor.DTensor) else old).copy_(local)
    return True


def _fits(old: torch.Tensor, value: torch.Tensor) -> bool:
    """Tell whether a rank's part of a value can replace its part of another."""
    if not isinstance(value, torch_tensor.DTensor):
        return not isinstance(old, torch_tensor.DTensor)
    if isinstance(old, torch_tensor.DTensor):
        return (old.device_mesh, old.placements) == (value.device_mesh, value.placements)
    return not isinstance(old, nn.Parameter) and all(one.is_replicate() for one in value.placements)


def _find(module: nn.Module, name: str) -> Any:
    path, _, own = name.rpartition(".")
    return getattr(module.get_submodule(path), own)


def _open(name: str, value: object) -> torch.Tensor:
    if isinstance(value, values.TorchTensor):
        return value.native.detach()
    if isinstance(value, torch.Tensor):
        return value.detach()
    raise TypeError(f"The value {name!r} of a module must be a tensor, but received {texts.name_kind(value)}.")


def _replace(old: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return the replacement of a parameter or a buffer, and mark a replaced parameter."""
    if not isinstance(old, nn.Parameter):
        return value
    made = nn.Parameter(value, requires_grad=old.requires_grad)
    if isinstance(made, torch_tensor.DTensor):
        lay_out_gradients(made)
    setattr(old, _REPLACED, True)
    return made


def lay_out_gradients(parameter: Any) -> None:
    """Give the gradients of a parameter on a mesh the parameter's layout, even if it becomes trainable later."""
    if not parameter.is_floating_point() and not parameter.is_complex():
        return  # has no gradient
    is_trained = parameter.requires_grad
    parameter.requires_grad_(True)  # torch refuses hooks on other parameters
    parameter.register_hook(_Alike(parameter))
    parameter.requires_grad_(is_trained)


class _Alike:
    """A hook that gives a gradient the layout of its parameter.

    Args:
        parameter: The parameter.
    """

    def __init__(self, parameter: torch_tensor.DTensor) -> None:
        mesh = relayouts.find_mesh(parameter.device_mesh)
        self._layout = relayouts.read_placements(parameter.placements, parameter.ndim, mesh)
        self._place = parameter.device_mesh, parameter.placements

    @torch.no_grad()
    def __call__(self, slope: torch.Tensor) -> torch.Tensor:
        if not isinstance(slope, torch_tensor.DTensor) or (slope.device_mesh, slope.placements) == self._place:
            return slope
        return relayouts.build_dtensor(relayouts.move(slope, self._layout), self._layout)


# --- the forward pass -------------------------------------------------------------------------------------------------


class _Begun(threading.local):
    """The modules that are computing in this thread, and the contexts that the outermost has entered."""

    def __init__(self) -> None:
        self.modules: list[tuple[nn.Module, contextlib.ExitStack]] = []


_begun: Final = _Begun()


def _hook(module: nn.Module) -> None:
    if _begin not in torch_internals.list_early_hooks(module):
        module.register_forward_pre_hook(_begin, with_kwargs=True)
        module.register_forward_hook(_end, always_call=True)


def _begin(module: nn.Module, args: object, kwargs: object) -> tuple[Any, Any]:
    """Prepare a module's forward pass: unwrap the arguments, and enter `Functions` for the outermost module."""
    entered = contextlib.ExitStack()
    if not _begun.modules:
        entered.enter_context(functions.Functions())
    _begun.modules.append((module, entered))
    opened: tuple[object, object] = functions.map_leaves(
        (args, kwargs), lambda one: one.read_value().native if isinstance(one, tensors.DTensor) else one
    )
    return opened


def _end(module: nn.Module, args: object, result: object) -> object:
    """Finish a module's forward pass, even if it has raised: leave `Functions`, and wrap the result."""
    if not _begun.modules or _begun.modules[-1][0] is not module:
        return result
    _begun.modules.pop()[1].close()
    return result if _begun.modules else functions.map_leaves(result, _wrap)


def _wrap(one: object) -> object:
    return values.wrap(one, _find_mesh(one)) if isinstance(one, torch_tensor.DTensor) else one


def _find_mesh(one: torch_tensor.DTensor) -> meshes.Mesh:
    return relayouts.find_mesh(one.device_mesh)


# --- optimizers -------------------------------------------------------------------------------------------------------

_checks: Final[list[object]] = []
"""The handle of the check, once it is registered."""


def _refuse_steps_of_old() -> None:
    """Make steps of optimizers fail if they were made before their module was spread: they would train nothing."""
    if not _checks:
        _checks.append(torch_optimizer.register_optimizer_step_pre_hook(_check_step))


def _check_step(stepped: torch.optim.Optimizer, args: object, kwargs: object) -> None:
    if any(hasattr(parameter, _REPLACED) for group in stepped.param_groups for parameter in group["params"]):
        raise RuntimeError(
            f"This {type(stepped).__name__} holds parameters that mesh.distribute() has replaced, so it would train "
            "nothing. Make the optimizer after distribute()."
        )
