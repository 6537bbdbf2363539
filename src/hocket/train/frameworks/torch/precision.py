"""Mixed precision: the forward pass in halves, the weights and their updates in full."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, final

import torch
from torch.utils import _pytree as pytree

DTYPES: Final = (torch.bfloat16, torch.float16)
"""What the forward pass can be computed in."""


@final
class Precision:
    """What a rank computes in.

    Args:
        dtype: The forward pass's. float16 has few exponents, so losses are scaled up before the backward pass, and
            gradients down before the step.
        device: Where it is computed.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype = dtype
        self.device_type = device.type
        self.scaler = torch.amp.GradScaler(device.type) if dtype is torch.float16 else None
        """None if gradients need no scale."""

    def adapt_model(self, model: torch.nn.Module) -> None:
        """Have a model's forward pass computed in the dtype."""
        model.forward = _Forward(model, self.device_type, self.dtype)


@final
class _Forward:
    """A model's ``forward``, in mixed precision. It can be copied and pickled with the model."""

    def __init__(self, model: torch.nn.Module, device_type: str, dtype: torch.dtype) -> None:
        self._model = model
        self._function = type(model).forward
        self._device_type = device_type
        self._dtype = dtype

    def __call__(self, *args: object, **kwargs: object) -> object:
        with torch.autocast(self._device_type, self._dtype):
            outputs = self._function(self._model, *args, **kwargs)
        return pytree.tree_map_only(torch.Tensor, _widen, outputs)


def _widen(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype in DTYPES else tensor


@final
class ScaledOptimizer(torch.optim.Optimizer):
    """An optimizer whose gradients were computed from scaled losses. Everything but the step is the optimizer's own.

    Args:
        optimizer: What steps.
        scaler: Scales the gradients down first, and leaves a step out whose gradients overflowed.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler) -> None:
        # Not torch's own __init__: parameters and state are the optimizer's.
        self._optimizer = optimizer
        self._scaler = scaler

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("_optimizer", "_scaler"):
            raise AttributeError(name)
        return getattr(self._optimizer, name)

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The optimizer's."""
        return self._optimizer.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The optimizer's."""
        return self._optimizer.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """The optimizer's."""
        return self._optimizer.defaults

    def step(self, closure: None = None) -> Any:  # type: ignore[override]
        """Step, unless a gradient is not finite; adapt the scale."""
        if closure is not None:
            raise ValueError("With accelerate(amp=True) in float16, step() takes no closure. Use dtype=torch.bfloat16.")
        stepped = self._scaler.step(self._optimizer)
        self._scaler.update()
        return stepped

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients."""
        self._optimizer.zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters to the optimizer."""
        self._optimizer.add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state."""
        return self._optimizer.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, object]) -> None:
        """Load the optimizer's state."""
        self._optimizer.load_state_dict(dict(state_dict))

    def __repr__(self) -> str:
        return f"ScaledOptimizer({self._optimizer!r})"
