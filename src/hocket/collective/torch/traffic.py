"""How many bytes this process has received in collectives of torch, by kind.

Counted as `hocket.mesh` counts what a relayout moves, by what the ranks must exchange and not by how they do it: an
all-reduce of n bytes among k ranks is 2 n (k - 1) / k. Messages between two ranks, broadcasts and barriers are not in
it. Counting takes well under a microsecond a collective. It also knows the largest tensor that was in an operation of
any kind: ranks that share what they learn exchange something as large as a parameter.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import torch

_received: Final[dict[str, int]] = {"all-reduce": 0, "all-gather": 0, "reduce-scatter": 0, "all-to-all": 0}

_largest = [0]


def note_sizes(tensors: Iterable[torch.Tensor]) -> None:
    """Note that these were in an operation, of whatever kind."""
    for tensor in tensors:
        _largest[0] = max(_largest[0], tensor.numel())


def find_largest() -> int:
    """Return how many numbers the largest tensor had that was in an operation until now."""
    return _largest[0]


def forget_sizes() -> None:
    """Have `find_largest` begin again."""
    _largest[0] = 0


def count(kind: str, tensor: torch.Tensor, times: int, parts: int = 1) -> None:
    """Note that this rank receives a tensor's bytes so many times, or so many of its parts."""
    _received[kind] += tensor.nbytes * times // parts


def read() -> dict[str, int]:
    """Return the bytes received until now, by kind."""
    return dict(_received)


def read_total() -> int:
    """Return the bytes received until now."""
    return sum(_received.values())
