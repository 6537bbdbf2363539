"""Makes the name of our backend known to torch: ``init_process_group("hocket")`` then works in a script that imports
nothing of ours."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

NAME = "hocket"

_PLACE = "torch.distributed.distributed_c10d"
"""The module that knows the backends."""


def announce() -> None:
    """Register the name: now if torch is loaded, else as soon as it is.

    What the backend needs is loaded when it is used.
    """
    module = sys.modules.get(_PLACE)
    if module is not None:
        _register(module)
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder:
    """Waits for the module to be imported, and then is gone."""

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
                _register(module)

            loader.exec_module = exec_module
        return spec


def _register(module: Any) -> None:
    if NAME not in module.Backend.backend_list:
        module.Backend.register_backend(NAME, _create, devices=["cpu"])


def _create(*args: object) -> object:
    return importlib.import_module("hocket.collective.torch.process_group").ProcessGroup(*args)
