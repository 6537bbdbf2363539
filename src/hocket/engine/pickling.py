"""The picklers that encode values and exceptions, and the file that they write to."""

from __future__ import annotations

import functools
import importlib
import io
import pickle
import sys
import types
from collections import ChainMap
from collections.abc import Callable
from typing import Any, ClassVar, Final, final

from hocket.engine import contract

PROTOCOL = 5

Reducer = Callable[[Any], tuple[Any, ...]]
"""A function that returns the reduced form of an object: a callable that rebuilds it, and the callable's arguments."""

reducers: dict[type, Reducer] = {}
"""The reducers that the user has registered, by class; they come before pickle's own."""


@functools.cache
def load_pickler() -> type[pickle.Pickler]:
    """Return cloudpickle's pickler, with the user's own reducers. It takes 5 ms with its imports (measured). A driver
    needs it for the first function that it encodes; meanwhile the guardian starts (`Tasks.expect_work`)."""
    import cloudpickle

    main = sys.modules.get("__mp_main__")  # the script's module in a process that multiprocessing has spawned
    if getattr(main, "__name__", "") == "__mp_main__":
        cloudpickle.register_pickle_by_value(main)

    theirs = cloudpickle.Pickler.dispatch_table
    reduce_code: Reducer = theirs[types.CodeType]
    own = _Own({types.CodeType: lambda code: _keep_file(code, reduce_code(code))})

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        dispatch_table: ClassVar[object] = ChainMap(reducers, own, theirs)

        def __init__(self, *args: object, **kwargs: object) -> None:
            run = sys.modules.get(_RUN_PATH)
            if run is not None:  # no worker can import that module
                cloudpickle.register_pickle_by_value(run)
            super().__init__(*args, **kwargs)

    return Pickler


class _Own(dict[type, Reducer]):
    """Our own reducers. Modules of a subclass, such as ``torch.ops``, are pickled by name like others.

    cloudpickle assumes that a function uses ``torch.ops`` if the function has the names ``torch`` and ``ops``, as in
    ``keras.ops``.

    The memory of torch's tensors and JAX's arrays travels beside the pickle, as that of numpy's arrays does.
    """

    def __missing__(self, kind: type) -> Reducer:
        modules, place, name = _TENSORS.get(kind.__name__, _NO_TENSOR)
        if kind.__module__ in modules:
            internals = importlib.import_module(place)  # the framework is loaded, as its object shows
            reduce: Reducer = getattr(internals, name)
            self[kind] = reduce
            return reduce
        if issubclass(kind, types.ModuleType) and kind is not types.ModuleType:
            return _reduce_module
        raise KeyError(kind)


_TORCH = "hocket._base.internals.torch"
_TENSORS = {
    "Tensor": (("torch",), _TORCH, "reduce_tensor"),
    "TypedStorage": (("torch.storage",), _TORCH, "reduce_typed_storage"),
    "UntypedStorage": (("torch.storage",), _TORCH, "reduce_storage"),
    "ArrayImpl": (("jaxlib._jax", "jaxlib.xla_extension"), "hocket._base.internals.jax_arrays", "reduce_array"),
}
"""By a class's name: the modules that may define it, and the module and name of its reducer."""

_NO_TENSOR: tuple[tuple[str, ...], str, str] = ((), "", "")


def _reduce_module(module: types.ModuleType) -> Any:
    name = module.__name__
    known = sys.modules.get(name) is module
    return (importlib.import_module, (name,)) if known else module.__reduce_ex__(PROTOCOL)


@functools.cache
def load_error_pickler() -> type[pickle.Pickler]:
    """Return a pickler for exceptions with a class that cannot be called with ``args``. Such a class passes other
    arguments to ``super().__init__`` than it takes itself. The pickler sends ``args`` and the attributes of these
    exceptions, and of the exceptions in them; decoding calls no constructor of the user's."""
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
    """Return whether a class of exceptions defines its own reduced form."""
    own = [parent for parent in kind.__mro__ if parent.__flags__ & _IS_WRITTEN_IN_PYTHON]
    return any(name in vars(parent) for parent in own for name in ("__reduce__", "__reduce_ex__"))


def _rebuild_error(kind: type[BaseException], args: tuple[object, ...]) -> BaseException:
    """Return an exception with these ``args``, without a call of its class's own ``__init__``."""
    builtin: Any = kind
    while builtin.__flags__ & _IS_WRITTEN_IN_PYTHON:
        builtin = builtin.__base__  # of several bases, the one that determines the memory layout
    own: Any = next(parent for parent in kind.__mro__ if "__new__" in vars(parent))
    error: BaseException = (kind if own.__flags__ & _IS_WRITTEN_IN_PYTHON else builtin).__new__(kind, *args)
    builtin.__init__(error, *args)
    return error


_RUN_PATH = "<run_path>"
"""The default name of the module that `runpy.run_path` runs."""

_FILE_PLACE = 10
"""The position of the file's name among the arguments of `types.CodeType`."""


def _keep_file(code: types.CodeType, reduced: tuple[Any, ...]) -> tuple[object, ...]:
    """Return cloudpickle's reduced form of code, with the file's name. cloudpickle 3.1.3 writes ``<dynamic-code>``
    instead, so that tracebacks name no file and show no lines."""
    rebuild, parts = reduced
    # A new text, as in cloudpickle: the pickle's bytes then do not depend on other uses of the same text.
    name = "".join(list(code.co_filename))
    return rebuild, (*parts[:_FILE_PLACE], name, *parts[_FILE_PLACE + 1 :])


def can_travel(value: object) -> bool:
    """Return whether a value can be encoded."""
    outer = contract.encoding.refs
    contract.encoding.refs = []
    try:
        load_pickler()(io.BytesIO(), PROTOCOL).dump(value)
    except Exception:  # a user's __reduce__ may raise anything
        return False
    finally:
        contract.encoding.refs = outer
    return True


# --- the file of a pickle ---------------------------------------------------------------------------------------------


_TAKE_BUFFER: Final = pickle.NEXT_BUFFER + pickle.TUPLE1 + pickle.REDUCE


@final
class PickleStream:
    """The file that a pickler writes to, which puts large `bytes` beside the pickle, as picklers do with buffers.

    A pickler asks ``buffer_callback`` about the buffers of arrays only. It hands `bytes` and `bytearray` objects of
    64 KiB or more to its file as they are, in a call of ``write`` of their own, and their header is the end of the call
    before (CPython's pickler in C; PEP 3154 has the frames). So the file can keep the object itself, and replace its
    header by the opcodes that make the object from the next buffer. Whatever a pickler writes in another way stays in
    the pickle.

    Args:
        buffers: Takes the memory of large objects; the pickler's ``buffer_callback`` must append to the same list,
            since a pickle takes its buffers in order. None: all objects stay in the pickle.
        beside_bytes: The size from which an object is large, 64 KiB or more.
    """

    __slots__ = ("_beside_bytes", "_buffers", "_chunks", "size")

    def __init__(self, buffers: list[memoryview] | None, beside_bytes: int) -> None:
        self._buffers = buffers
        self._beside_bytes = beside_bytes
        self._chunks: list[bytes] = []
        self.size = 0
        """The size of the pickle in bytes."""

    def write(self, data: bytes | bytearray | pickle.PickleBuffer) -> int:
        """Take the next part of the pickle. Called by the pickler."""
        if isinstance(data, pickle.PickleBuffer):  # that is to stay in the pickle
            data = bytes(data)
        size = len(data)
        if self._buffers is not None and size >= self._beside_bytes and self._begin_beside(data):
            self._buffers.append(memoryview(data))
            return size
        self._chunks.append(data if type(data) is bytes else bytes(data))
        self.size += size
        return size

    def _begin_beside(self, data: bytes | bytearray) -> bool:
        """Replace the header of an object; return False if the last part does not end with a header of this object."""
        if not self._chunks or _is_frame(data):
            return False
        last, size = self._chunks[-1], len(data)
        if type(data) is bytearray:
            header = pickle.BYTEARRAY8 + size.to_bytes(8, "little")
        elif size < 1 << 32:
            header = pickle.BINBYTES + size.to_bytes(4, "little")
        else:
            header = pickle.BINBYTES8 + size.to_bytes(8, "little")
        if not last.endswith(header):
            return False
        self._chunks[-1] = (
            last[: -len(header)] + pickle.GLOBAL + b"builtins\n%b\n" % type(data).__name__.encode() + _TAKE_BUFFER
        )
        self.size += len(self._chunks[-1]) - len(last)
        return True

    def getvalue(self) -> bytes:
        """Return the pickle."""
        return b"".join(self._chunks)


def _is_frame(data: bytes | bytearray) -> bool:
    """Return whether data may be a part of a pickle, and no object of the user's: such parts begin with a frame."""
    return data[:1] == pickle.FRAME and int.from_bytes(data[1:9], "little") <= len(data) - 9
