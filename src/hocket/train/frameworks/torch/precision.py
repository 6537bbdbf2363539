"""Mixed precision: the forward pass in halves, the weights and their updates in full."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, final

import torch

from hocket._base.internals import torch as torch_internals
from hocket.train.frameworks.torch.strategies import averaging

DTYPES: Final = (torch.bfloat16, torch.float16)
"""The dtypes for the forward pass."""

GROWTH_STEPS: Final = 2000
"""The steps after which the scale grows. As in torch's GradScaler, like the first scale and its factors."""


@final
class Precision:
    """The precision of a rank's numbers.

    Args:
        dtype: The dtype of the forward pass. float16 has few exponents, so losses are scaled up before the backward
            pass, and gradients down right after it.
        device: The device that computes it.
        world_size: The number of ranks.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device, world_size: int) -> None:
        self.dtype = dtype
        self.device_type = device.type
        self.scaler = LossScale(device, world_size) if dtype is torch.float16 else None
        """The scale of losses; None if gradients need none."""

    def adapt_model(self, model: torch.nn.Module) -> None:
        """Make a model's forward pass compute in the dtype."""
        model.forward = _Forward(model, self.device_type, self.dtype)
        if self.scaler is not None:
            self.scaler.add_model(model)


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
        return torch_internals.map_tensors(_widen, outputs)


def _widen(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype in DTYPES else tensor


@final
class LossScale:
    """The factor of losses in the backward pass. Gradients are divided by it right after the pass: between
    ``backward(loss)`` and ``optimizer.step()`` they have their true values, and may be clipped.

    Overflows are noted right after the pass too, since clipping may hide them. The scale is halved after an overflow,
    and doubled after `GROWTH_STEPS` iterations without one, however many optimizers step in an iteration.

    Gradients that are averaged in the step, such as those of ``no_sync``, may overflow in one rank alone. All ranks
    leave the step out then: it has a collective, in which the others would wait.

    Args:
        device: The device of the gradients.
        world_size: The number of ranks.
    """

    def __init__(self, device: torch.device, world_size: int) -> None:
        self.scale = 65536.0
        self._device = device
        self._world_size = world_size
        self._models: list[weakref.ref[torch.nn.Module]] = []
        self._optimizers: weakref.WeakKeyDictionary[torch.optim.Optimizer, bool] = weakref.WeakKeyDictionary()
        """Whether each optimizer's gradients have overflowed in the last backward pass."""
        self._good_steps = 0
        #: Whether there was a step since the scale was adapted, and whether a step was left out.
        self._stepped = self._left_out = False

    def add_model(self, model: torch.nn.Module) -> None:
        """Have a model's gradients divided after each backward pass."""
        self._models.append(weakref.ref(model))

    def add_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Have the gradients of an optimizer's parameters divided after each backward pass."""
        self._optimizers[optimizer] = False

    @torch.no_grad()
    def backward(self, loss: torch.Tensor, **kwargs: object) -> None:
        """Compute the gradients of a loss by way of the scaled loss."""
        if self._stepped:
            self._adapt()
        stepped = {one: _list_parameters(one) for one in self._optimizers}
        models = [model for model in (ref() for ref in self._models) if model is not None]
        everything = {p for parameters in (*stepped.values(), *(m.parameters() for m in models)) for p in parameters}
        _multiply(everything, self.scale)  # earlier gradients, to which the new ones are added
        with torch.enable_grad():
            (loss * self.scale).backward(**kwargs)  # type: ignore[no-untyped-call]
        _multiply(everything, 1 / self.scale)
        self._optimizers.update({one: not _are_finite(parameters) for one, parameters in stepped.items()})

    def take_step(self, optimizer: torch.optim.Optimizer) -> bool:
        """Note that an optimizer is about to step; return whether it may. All ranks get the same answer."""
        has_overflowed = averaging.is_any(self._optimizers[optimizer], self._device, self._world_size)
        self._optimizers[optimizer] = False
        self._stepped, self._left_out = True, self._left_out or has_overflowed
        return not has_overflowed

    def _adapt(self) -> None:
        self._good_steps = 0 if self._left_out else self._good_steps + 1
        if self._left_out:
            self.scale /= 2
        elif self._good_steps == GROWTH_STEPS:
            self.scale, self._good_steps = self.scale * 2, 0
        self._stepped = self._left_out = False


def _list_parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _list_gradients(parameters: Iterable[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Yield lists of gradients that torch processes together; a sparse one is alone."""
    kinds: dict[object, list[torch.Tensor]] = {}
    for one in (parameter.grad for parameter in parameters):
        if one is not None and one.layout == torch.strided:
            kinds.setdefault((type(one), one.dtype, one.device), []).append(one)
        elif one is not None:
            yield [one]
    yield from kinds.values()


def _multiply(parameters: Iterable[torch.Tensor], factor: float) -> None:
    for gradients in _list_gradients(parameters):
        if gradients[0].layout == torch.strided:
            torch_internals.multiply(gradients, factor)
        else:
            gradients[0].mul_(factor)


def _are_finite(parameters: Iterable[torch.Tensor]) -> bool:
    for gradients in _list_gradients(parameters):
        is_dense = gradients[0].layout == torch.strided
        values = gradients if is_dense else [gradients[0].coalesce().values()]
        largest = torch.stack(torch_internals.compute_largest(values))
        if not bool(torch.isfinite(largest).all()):
            return False
    return True


@final
class ScaledOptimizer(torch.optim.Optimizer):
    """An optimizer with gradients from scaled losses. Everything except the step is the optimizer's own.

    Args:
        optimizer: The optimizer.
        scaler: Decides whether a step is left out because its gradients have overflowed.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, scaler: LossScale) -> None:
        # Not torch's own __init__: parameters and state are the optimizer's.
        self._optimizer = optimizer
        self._scaler = scaler
        scaler.add_optimizer(optimizer)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("_optimizer", "_scaler"):
            raise AttributeError(name)
        return getattr(self._optimizer, name)

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The optimizer's parameter groups."""
        return self._optimizer.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The optimizer's state."""
        return self._optimizer.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """The optimizer's defaults."""
        return self._optimizer.defaults

    def step(self, closure: None = None) -> Any:  # type: ignore[override]
        """Step, unless a gradient is not finite in a rank."""
        if closure is not None:
            raise ValueError("With accelerate(amp=True) in float16, step() takes no closure. Use dtype=torch.bfloat16.")
        return self._optimizer.step() if self._scaler.take_step(self._optimizer) else None

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
