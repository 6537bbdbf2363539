"""Hooks on the modules of one model. A copy of the model gets its own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, final

import torch
from torch import nn

from hocket._base.internals import torch as torch_internals


@final
class Hooks:
    """The hooks of one model.

    They must be functions: a copy of a module has the same functions, and copies of anything else.
    """

    def __init__(self) -> None:
        self._registered: list[tuple[nn.Module, int]] = []

    def before(self, module: nn.Module, hook: Callable[..., object], **options: bool) -> None:
        """Register a hook before a module computes."""
        self._registered.append((module, module.register_forward_pre_hook(_leave(hook), **options).id))

    def after(self, module: nn.Module, hook: Callable[..., object]) -> None:
        """Register a hook after a module has computed or raised."""
        self._registered.append((module, module.register_forward_hook(_leave(hook), always_call=True).id))

    def before_loading(self, module: nn.Module, hook: Callable[..., object]) -> None:
        """Register a hook before a module loads its parameters."""
        register: Callable[..., Any] = module.register_load_state_dict_pre_hook
        self._registered.append((module, register(hook).id))

    def remove_from_copies(self, copies: Mapping[int, object]) -> None:
        """Remove the hooks from copies of the modules, or of some of them.

        Args:
            copies: The copies, by the ``id`` of the modules.
        """
        for module, number in self._registered:
            if id(module) in copies:
                for kind in torch_internals.HOOKS:
                    copies[id(module)].__dict__.get(kind, {}).pop(number, None)


def _leave(hook: Callable[..., object]) -> Callable[..., object]:
    """Return a hook that torch's compiler does not look into."""
    disable: Callable[..., Callable[..., object]] = torch.compiler.disable
    return disable(hook)


def follow_copies(model: nn.Module, adapt: Callable[[nn.Module, Mapping[int, Any]], None]) -> None:
    """Adapt copies of a model, and of modules in it, which `copy.deepcopy` and its callers make.

    Args:
        model: The model.
        adapt: Called with a copy, and with the copies of all its components, by the ``id`` of the originals.
    """
    copied: list[nn.Module] = []  # the modules that are being copied, the outermost first

    def follow(module: nn.Module) -> None:
        def copy_module(memo: dict[int, object]) -> object:
            del module.__dict__["__deepcopy__"]  # otherwise `copy.deepcopy` would call this function again
            copied.append(module)
            try:
                made = copy.deepcopy(module, memo)
            finally:
                copied.pop()
                module.__dict__["__deepcopy__"] = copy_module
            if not copied:
                adapt(made, memo)
            return made

        module.__dict__["__deepcopy__"] = copy_module

    for module in model.modules():
        follow(module)
