"""Counts the bytes that this process has received in torch collectives, by kind.

The counts follow `hocket.mesh`: they are the bytes that ranks must exchange, whatever the method. An all-reduce of n
bytes among k ranks counts 2 n (k - 1) / k. Messages between two ranks, broadcasts and barriers do not count. Counting
takes well under a microsecond a collective. The module also remembers the largest tensor in an operation of any kind:
ranks that share their training exchange tensors as large as a parameter.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import torch

_received: Final[dict[str, int]] = {"all-reduce": 0, "all-gather": 0, "reduce-scatter": 0, "all-to-all": 0}

_largest = [0]


def note_sizes(tensors: Iterable[torch.Tensor]) -> None:
    """Note the sizes of tensors in an operation of any kind."""
    for tensor in tensors:
        _largest[0] = max(_largest[0], tensor.numel())


def find_largest() -> int:
    """Return the number of elements of the largest tensor in an operation so far."""
    return _largest[0]


def forget_sizes() -> None:
    """Reset `find_largest`."""
    _largest[0] = 0


def count(kind: str, tensor: torch.Tensor, times: int, parts: int = 1) -> None:
    """Count a tensor's bytes as received, multiplied by `times` and divided by `parts`."""
    _received[kind] += tensor.nbytes * times // parts


def read() -> dict[str, int]:
    """Return the bytes received so far, by kind."""
    return dict(_received)


def read_total() -> int:
    """Return the bytes received so far."""
    return sum(_received.values())
