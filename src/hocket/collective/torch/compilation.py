"""Keeps torch.compile out of a process group's methods.

What a compiled function calls is compiled too, also what it calls through C++: DistributedDataParallel's forward and
backward pass inside a compiled step call the process group. The compiler cannot trace what happens there, and says so
with an internal error. ``torch.compiler.disable`` spares a method, but importing the compiler takes more than a second,
so the methods are marked when it is there: by the first operation outside compiled code after that.
DistributedDataParallel imports it and broadcasts when it is made, so for training this is early enough.

Open hole: a program that compiles its own ``dist.*`` calls, and has called none before outside compiled code.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

_COMPILER = "torch._dynamo"


def spare(kind: type, *names: str) -> None:
    """Have the compiler leave a class's methods alone, from the first call on that finds it loaded."""
    methods = {name: getattr(kind, name) for name in names}

    def mark() -> None:
        for name, method in methods.items():
            setattr(kind, name, torch.compiler.disable(method))  # type: ignore[no-untyped-call]

    for name, method in methods.items():
        setattr(kind, name, _watch(method, mark))


def _watch(method: Callable[..., object], mark: Callable[[], None]) -> Callable[..., object]:
    @functools.wraps(method)
    def call(self: object, *args: object, **kwargs: object) -> Any:
        if _COMPILER in sys.modules:
            mark()
        return method(self, *args, **kwargs)

    return call
