"""Tensors nested in containers."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import torch


def map_tensors(value: object, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return dicts, lists, tuples and dataclasses with every tensor in them changed; any other value unchanged."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changed = copy.copy(value)
        for field in dataclasses.fields(value):
            one = map_tensors(getattr(value, field.name), change)
            if one is not getattr(value, field.name):
                (object.__setattr__ if _is_frozen(value) else setattr)(changed, field.name, one)
        return changed
    if isinstance(value, dict):
        return {key: map_tensors(one, change) for key, one in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(one, change) for one in value))
    if isinstance(value, list | tuple):
        return type(value)(map_tensors(one, change) for one in value)
    return value


def _is_frozen(value: Any) -> bool:
    return bool(value.__dataclass_params__.frozen)
