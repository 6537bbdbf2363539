"""The package without its public names, until somebody looks for one.

The guardian is to fork the first worker as soon as it can, and the public names load everything: the driver's engine,
graphs, placement groups. Without them it is there 11 ms sooner, of 42 (measured). So it starts with a module `hocket`
that can be imported from, but whose own code has not run (`processes` makes it), and catches up when it has nothing
else to do: workers that are forked later have all names from birth. An earlier one runs the code when somebody looks
for a name that is not there.

A name that is a module of the package is imported, and no more: our own modules look for those while they are half
loaded themselves, and the package's code would not find in them what it wants.

Threads may look at the same time. Each then runs the code, which only imports, and so is as often run as once; imports
have their own locks. That nobody waits for anybody else here is what rules out a deadlock with those.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
import types

LOADING = "HOCKET_LOADING"
"""The environment variable that names what the guardian imports just now for its workers."""

_PACKAGE = __name__.partition(".")[0]

_running = threading.local()
"""``_running.here`` is set while this thread runs the package's code."""


class _Unfinished(types.ModuleType):
    """The package, as long as its code has not run."""

    def __getattr__(self, name: str) -> object:
        module = f"{_PACKAGE}.{name}"
        if not name.startswith("_") and importlib.util.find_spec(module) is not None:
            return importlib.import_module(module)
        finish()
        return types.ModuleType.__getattribute__(self, name)

    def __dir__(self) -> list[str]:
        finish()
        return list(types.ModuleType.__dir__(self))

    def __reduce__(self) -> tuple[object, ...]:
        return importlib.import_module, (_PACKAGE,)  # as cloudpickle has it for modules, and this is no plain one yet


def defer() -> None:
    """Have the package's code run on the first look for a name that only it defines, if it has not run."""
    package = sys.modules[_PACKAGE]
    if not hasattr(package, "__version__"):
        package.__class__ = _Unfinished


def finish() -> None:
    """Run the package's code now, if it has not run; nothing while this thread is at it."""
    package = sys.modules[_PACKAGE]
    if type(package) is not _Unfinished or hasattr(_running, "here"):
        return
    assert package.__spec__ is not None
    assert package.__spec__.loader is not None
    _running.here = True
    try:
        package.__spec__.loader.exec_module(package)
    finally:
        del _running.here
    package.__class__ = types.ModuleType  # type: ignore[assignment]
