"""Imports torch in the process from which ranks are forked, in less time than one ``import torch`` takes.

The system's linker needs a tenth of that time for torch's library, and no lock of Python's. So a thread loads the
library with the linker, while this thread imports sympy, which is pure Python and which torch's compiler needs. The
other thread ends before a process forks.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import threading
from pathlib import Path


def _link() -> None:
    """Load torch's library with the linker. `import torch` then finds it loaded."""
    found = importlib.util.find_spec("torch")
    if found is not None and found.origin is not None:
        with contextlib.suppress(OSError):  # torch's own error is better
            ctypes.CDLL(str(Path(found.origin).with_name("lib") / "libtorch_cpu.so"))


_linker = threading.Thread(target=_link, name="hocket-linker")
_linker.start()
with contextlib.suppress(ImportError):
    importlib.import_module("sympy")
_linker.join()
importlib.import_module("torch")
