"""The functions that a training function calls around the backward pass and the step."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from hocket.train.frameworks.torch import devices, framework, precision


def prepare_optimizer(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Make an optimizer's steps go through the trainer's strategy, and through `accelerate`.

    With `AllReduce` and without `accelerate` nothing changes; `LocalSGD` and `ParameterServer` need the call. With
    `ParameterServer` the parameters are on the servers from here on.

    Args:
        optimizer: An optimizer of a prepared model's parameters.

    Returns:
        The optimizer to step: mostly the same object.

    Raises:
        TypeError: `optimizer` is no optimizer of torch's.
        ValueError: The optimizer was prepared already, or steps something that the strategy cannot follow.
        RuntimeError: The caller is outside a training function.

    Example:
        >>> import tempfile, torch
        >>> from hocket import train
        >>> from hocket.train.torch import LocalSGD, TorchTrainer, prepare_model, prepare_optimizer, synchronize
        >>> def train_loop():
        ...     model = prepare_model(torch.nn.Linear(1, 1))
        ...     optimizer = prepare_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        ...     for step in range(10):
        ...         optimizer.zero_grad()
        ...         (model(torch.ones(1, 1)) - 1).square().sum().backward()
        ...         optimizer.step()
        ...     synchronize()
        ...     train.report({"output": round(model(torch.ones(1, 1)).item(), 1)})
        >>> trainer = TorchTrainer(
        ...     train_loop,
        ...     strategy=LocalSGD(4),
        ...     scaling_config=train.ScalingConfig(num_workers=0),
        ...     run_config=train.RunConfig(storage_path=tempfile.mkdtemp()),
        ... )
        >>> trainer.fit().metrics
        {'output': 1.0}
    """
    state = framework.FRAMEWORK.get_state("prepare_optimizer")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(
            f"prepare_optimizer() takes an optimizer of torch.optim, but received {optimizer!r}. Write "
            "prepare_optimizer(torch.optim.SGD(...))."
        )
    scaler = state.precision.scaler if state.precision is not None else None
    if scaler is not None and not state.exchange.shares_gradients:
        raise ValueError(
            f"With float16 a rank skips the steps whose gradients overflow, and with {state.strategy.title} each rank "
            "would skip different steps. Use accelerate(amp=True, dtype=torch.bfloat16)."
        )
    adapted = state.exchange.adapt_optimizer(optimizer)
    state.add_optimizer(adapted)
    return adapted if scaler is None else precision.ScaledOptimizer(adapted, scaler)


def accelerate(amp: bool = False, *, dtype: torch.dtype | None = None) -> None:
    """Make models that are prepared afterwards compute their forward passes in mixed precision.

    Weights, gradients and updates stay in full precision, and so do outputs: halves are converted to float32. Pass the
    loss to `backward` then, and the optimizer to `prepare_optimizer`.

    Args:
        amp: Whether to use mixed precision. False changes nothing.
        dtype: ``torch.bfloat16``, the default if the device has it, or ``torch.float16``, which needs scaled losses.

    Raises:
        ValueError: `dtype` is another one.
        RuntimeError: It is a second call, comes after something was prepared, or is outside a training function.

    Example:
        >>> import tempfile, torch
        >>> from hocket import train
        >>> from hocket.train import torch as hocket_torch
        >>> def train_loop():
        ...     hocket_torch.accelerate(amp=True)
        ...     model = hocket_torch.prepare_model(torch.nn.Linear(2, 1))
        ...     optimizer = hocket_torch.prepare_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        ...     loss = model(torch.ones(1, 2)).square().sum()
        ...     hocket_torch.backward(loss)
        ...     optimizer.step()
        ...     train.report({"dtypes": [str(loss.dtype), str(model.weight.dtype)]})
        >>> trainer = hocket_torch.TorchTrainer(
        ...     train_loop,
        ...     scaling_config=train.ScalingConfig(num_workers=0),
        ...     run_config=train.RunConfig(storage_path=tempfile.mkdtemp()),
        ... )
        >>> trainer.fit().metrics
        {'dtypes': ['torch.float32', 'torch.float32']}
    """
    state = framework.FRAMEWORK.get_state("accelerate")
    if state.precision is not None:
        raise RuntimeError("accelerate() was called already in this training function. Call it once.")
    if state.has_prepared:
        raise RuntimeError("accelerate() was called after a model or an optimizer was prepared. Call it before.")
    if dtype is not None and dtype not in precision.DTYPES:
        raise ValueError(
            f"dtype must be torch.bfloat16 or torch.float16, but received {dtype}. Leave it out for what suits the "
            "device."
        )
    if amp:
        device = devices.get_device()
        state.precision = precision.Precision(dtype or _choose_dtype(device), device, state.world_size)


def _choose_dtype(device: torch.device) -> torch.dtype:
    has_bfloat16 = device.type != "cuda" or torch.cuda.is_bf16_supported()
    return torch.bfloat16 if has_bfloat16 else torch.float16


def backward(tensor: torch.Tensor, **kwargs: object) -> None:
    """Compute the gradients of a loss, scaled before if `accelerate` requires it.

    The gradients are those of the unscaled loss, so they can be clipped before the step.

    Args:
        tensor: The loss.
        kwargs: Arguments of ``tensor.backward``.

    Raises:
        RuntimeError: The caller is outside a training function.
    """
    state = framework.FRAMEWORK.get_state("backward")
    scaler = state.precision.scaler if state.precision is not None else None
    backward: Callable[..., None] = tensor.backward if scaler is None else functools.partial(scaler.backward, tensor)
    backward(**kwargs)
