"""The pickler that values are encoded with, and what a value has to do with it."""

from __future__ import annotations

import functools
import importlib
import io
import pickle
import sys
import types
from collections import ChainMap
from collections.abc import Callable
from typing import Any, ClassVar

from hocket.engine import contract

PROTOCOL = 5

Reducer = Callable[[Any], tuple[Any, ...]]
"""Returns what `pickle` makes of an object: a callable that rebuilds it, and the arguments."""

reducers: dict[type, Reducer] = {}
"""How to encode the instances of classes that the user has registered; they come before what pickle would do."""


@functools.cache
def load_pickler() -> type[pickle.Pickler]:
    """Return cloudpickle's pickler, with the user's own reducers. With what it imports it takes 5 ms (measured). A
    driver needs it for the first function that it encodes, and the guardian starts meanwhile (`Engine.expect_work`)."""
    import cloudpickle

    main = sys.modules.get("__mp_main__")  # what multiprocessing makes of the script in a process that it has spawned
    if getattr(main, "__name__", "") == "__mp_main__":
        cloudpickle.register_pickle_by_value(main)

    theirs = cloudpickle.Pickler.dispatch_table
    reduce_code: Reducer = theirs[types.CodeType]
    own = _Own({types.CodeType: lambda code: _keep_file(code, reduce_code(code))})

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        dispatch_table: ClassVar[object] = ChainMap(reducers, own, theirs)

        def __init__(self, *args: object, **kwargs: object) -> None:
            run = sys.modules.get(_RUN_PATH)
            if run is not None:  # no worker can import it
                cloudpickle.register_pickle_by_value(run)
            super().__init__(*args, **kwargs)

    return Pickler


class _Own(dict[type, Reducer]):
    """Our reducers; modules of a class of their own, such as ``torch.ops``, are found by name like others.

    cloudpickle takes ``torch.ops`` for used where a function has the names ``torch`` and ``ops``, as in ``keras.ops``.
    """

    def __missing__(self, kind: type) -> Reducer:
        if issubclass(kind, types.ModuleType) and kind is not types.ModuleType:
            return _reduce_module
        raise KeyError(kind)


def _reduce_module(module: types.ModuleType) -> Any:
    name = module.__name__
    known = sys.modules.get(name) is module
    return (importlib.import_module, (name,)) if known else module.__reduce_ex__(PROTOCOL)


@functools.cache
def load_error_pickler() -> type[pickle.Pickler]:
    """Return the same for exceptions whose class cannot be called with ``args``. Such a class hands another text to
    ``super().__init__`` than it takes itself. What is sent of them, and of those within them, is ``args`` and their
    attributes; no constructor of the user's runs where they arrive."""
    parent: Any = load_pickler()

    class ErrorPickler(parent):  # type: ignore[misc]
        def reducer_override(self, value: Any) -> object:
            kind = type(value)
            if not issubclass(kind, BaseException) or kind in self.dispatch_table or _reduces_itself(kind):
                return super().reducer_override(value)
            found, args, *state = value.__reduce__()
            return (_rebuild_error, (found, args), *state)

    return ErrorPickler


_IS_WRITTEN_IN_PYTHON = 1 << 9
"""The flag of a class that was made while the program ran (``Py_TPFLAGS_HEAPTYPE``)."""


def _reduces_itself(kind: type) -> bool:
    """Tell whether a class of exceptions says itself what is to be pickled."""
    own = [parent for parent in kind.__mro__ if parent.__flags__ & _IS_WRITTEN_IN_PYTHON]
    return any(name in vars(parent) for parent in own for name in ("__reduce__", "__reduce_ex__"))


def _rebuild_error(kind: type[BaseException], args: tuple[object, ...]) -> BaseException:
    """Return an exception with these ``args``, without calling the constructors of its class that are in Python."""
    builtin: Any = kind
    while builtin.__flags__ & _IS_WRITTEN_IN_PYTHON:
        builtin = builtin.__base__  # the one whose memory it has, of several
    own: Any = next(parent for parent in kind.__mro__ if "__new__" in vars(parent))
    error: BaseException = (kind if own.__flags__ & _IS_WRITTEN_IN_PYTHON else builtin).__new__(kind, *args)
    builtin.__init__(error, *args)
    return error


_RUN_PATH = "<run_path>"
"""What `runpy.run_path` calls the module that it runs, unless told otherwise."""

_FILE_PLACE = 10
"""Where the name of the file stands among the arguments of `types.CodeType`."""


def _keep_file(code: types.CodeType, reduced: tuple[Any, ...]) -> tuple[object, ...]:
    """Return what cloudpickle makes of code, with the file that it is from. cloudpickle 3.1.3 writes ``<dynamic-code>``
    in its place: tracebacks would name no file and show no lines."""
    rebuild, parts = reduced
    # A new text, as cloudpickle has it: the bytes then do not depend on who else uses this one.
    name = "".join(list(code.co_filename))
    return rebuild, (*parts[:_FILE_PLACE], name, *parts[_FILE_PLACE + 1 :])


def can_travel(value: object) -> bool:
    """Tell whether a value can be encoded."""
    outer = contract.encoding.refs
    contract.encoding.refs = []
    try:
        load_pickler()(io.BytesIO(), PROTOCOL).dump(value)
    except Exception:  # a user's __reduce__ may raise anything
        return False
    finally:
        contract.encoding.refs = outer
    return True
