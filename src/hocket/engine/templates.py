"""Rules for a process that loads modules and is then forked: it uses no GPU, since CUDA does not work in a fork.

torch's `torch.cuda.is_available` initialises CUDA, and some modules (Keras on PyTorch) call it at their import. Within
`load_modules_only`, torch asks the driver's management library (NVML) instead.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Final

_ASKS_NVML: Final = "PYTORCH_NVML_BASED_CUDA_CHECK"

GPU_FILE: Final = os.environ.get("HOCKET_GPU_FILE", "/dev/nvidia-uvm")
"""A file that is open in each process that uses CUDA, and in no other; tests without a GPU name another file."""


@contextlib.contextmanager
def load_modules_only() -> Iterator[None]:
    """Have torch answer questions about GPUs without CUDA in this block."""
    usual = os.environ.get(_ASKS_NVML)
    os.environ[_ASKS_NVML] = "1"
    try:
        yield
    finally:
        if usual is None:
            del os.environ[_ASKS_NVML]
        else:
            os.environ[_ASKS_NVML] = usual


def uses_gpu() -> bool:
    """Return whether this process uses a GPU. It then must not be forked for work on a GPU."""
    if not os.path.exists(GPU_FILE):
        return False
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor of the listing itself is gone
            found.add(os.readlink(f"/proc/self/fd/{fd}"))
    return GPU_FILE in found


def explain_use(module: str) -> str:
    """Return why a process that has loaded a module cannot be forked, and the remedy."""
    return (
        f"the import of {module} used a GPU in the process that workers are forks of, and CUDA does not work in a "
        "fork. Let functions and constructors use the GPU, not a module's own lines: for PyTorch these must not call "
        ".cuda(), .to('cuda') or torch.cuda.init()."
    )
