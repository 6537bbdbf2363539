"""Makes the name of our backend known to torch: ``init_process_group("hocket")`` then works in a script that imports
nothing of ours."""

from __future__ import annotations

import ctypes
import functools
import importlib
import importlib.machinery
import importlib.util
import inspect
import re
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from hocket._base import internals

NAME = "hocket"

_PLACE = "torch.distributed.distributed_c10d"
"""The module that knows the backends."""


def announce(replacement: str = "") -> None:
    """Register the name: now if torch is loaded, else as soon as it is.

    What the backend needs is loaded when it is used.

    Args:
        replacement: What a script gets that asks for gloo. Default: gloo.
    """
    module = sys.modules.get(_PLACE)
    if module is not None:
        _register(module, replacement)
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder(replacement))


class _Finder:
    """Waits for the module to be imported, and then is gone."""

    def __init__(self, replacement: str) -> None:
        self._replacement = replacement

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != _PLACE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                _register(module, self._replacement)

            loader.exec_module = exec_module
        return spec


def _register(module: Any, replacement: str) -> None:
    if NAME not in module.Backend.backend_list:
        module.Backend.register_backend(NAME, _create, devices=["cpu"])
        _wrap_making(module, replacement)


def _wrap_making(module: Any, replacement: str) -> None:
    """Change how process groups are made: of another backend where a script asks for gloo, by name or by leaving it
    out; and so that a group of gloo is never destroyed.

    A process that destroys one waits for gloo's thread, which may wait for the interpreter's lock to let go of a
    tensor; if the group ends with the last reference of a `DistributedDataParallel`, the process has that lock. With
    two ranks under accelerate one run in five stood still. So each group keeps a reference for as long as the process
    lives, whose end is that of its threads and sockets, too.

    Both `init_process_group` and `new_group` make theirs by one function, which is not public.
    """
    make = getattr(module, internals.TORCH_GROUP_MAKER)
    signature = inspect.signature(make)

    @functools.wraps(make)
    def wrapped(*args: object, **kwargs: object) -> object:
        given = signature.bind(*args, **kwargs)
        asked = str(given.arguments.get("backend") or "undefined")
        if asked == "undefined" and replacement:
            torch = sys.modules["torch"]
            asked = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        if replacement:
            given.arguments["backend"] = re.sub(r"\bgloo\b", replacement, asked)
        made = make(*given.args, **given.kwargs)
        if not replacement and ("gloo" in asked or asked == "undefined"):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(made[0]))
        return made

    setattr(module, internals.TORCH_GROUP_MAKER, wrapped)


def _create(*args: object) -> object:
    return importlib.import_module("hocket.collective.torch.process_group").ProcessGroup(*args)
