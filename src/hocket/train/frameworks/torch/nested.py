"""Tensors inside of what programs nest them in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def map_tensors(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return dicts, lists and tuples, named ones too, with every tensor in them changed; anything else as it is."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: map_tensors(one, change) for key, one in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(one, change) for one in value))
    if isinstance(value, list | tuple):
        return type(value)(map_tensors(one, change) for one in value)
    return value
