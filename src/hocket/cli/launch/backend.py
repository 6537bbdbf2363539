"""Registers Hocket's backend with torch, for ``init_process_group("hocket")`` in scripts that do not import Hocket."""

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
"""The module with torch's list of backends."""


def announce(replacement: str = "") -> None:
    """Register the name: now if torch is loaded, else as soon as it is.

    The backend's own modules are loaded at its first use.

    Args:
        replacement: The backend for a script that requests gloo. Default: gloo.
    """
    module = sys.modules.get(_PLACE)
    if module is not None:
        _register(module, replacement)
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder(replacement))


class _Finder:
    """An import hook that waits for one module, and then removes itself."""

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
    """Wrap the function that makes process groups for `init_process_group` and `new_group`, which is not public.

    It uses the replacement if a script requests gloo, by name or by default. Otherwise it keeps gloo groups alive.
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
            # A process that destroys a gloo group waits for gloo's thread, which may wait for the interpreter's lock to
            # release a tensor. If the last reference of a `DistributedDataParallel` ends the group, the process holds
            # that lock: with two ranks under accelerate, one run in five hung. This reference lasts as long as the
            # process, and the group's threads and sockets end with it.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(made[0]))
        return made

    setattr(module, internals.TORCH_GROUP_MAKER, wrapped)


def _create(*args: object) -> object:
    return importlib.import_module("hocket.collective.torch.process_group").ProcessGroup(*args)
