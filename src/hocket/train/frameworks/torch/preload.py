"""Imports torch where ranks are forked from, in less time than one ``import torch`` takes.

The system's linker needs a tenth of that time for torch's library, and no lock of Python's. So a thread has it load the
library, while this one imports sympy, which is all Python's and which torch's compiler needs. The thread has ended
before a process forks.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import threading
from pathlib import Path


def _link() -> None:
    """Have the linker load torch's library, which `import torch` then finds there."""
    found = importlib.util.find_spec("torch")
    if found is not None and found.origin is not None:
        with contextlib.suppress(OSError):  # torch says it better
            ctypes.CDLL(str(Path(found.origin).with_name("lib") / "libtorch_cpu.so"))


_linker = threading.Thread(target=_link, name="hocket-linker")
_linker.start()
with contextlib.suppress(ImportError):
    importlib.import_module("sympy")
_linker.join()
importlib.import_module("torch")
