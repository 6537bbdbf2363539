"""Reads, with ctypes, the call frame that XLA passes to a host function on the CPU.

XLA's foreign function interface is a C header (``xla/ffi/api/c_api.h`` in jaxlib, version 0.3). The classes here
declare the beginnings of its structures: pointers to the memory of arguments and results, an integer attribute, and a
function that makes errors. So Python works on XLA's own memory, without a copy, without a jax array, and without
waiting for a thread of XLA's. JAX's own callbacks first make an array of each argument. That takes longer (measured: a
step that averages 41 MB took 74 ms here, and 125 to 140 with `jax.pure_callback`), and can wait for ever for the
callback's own thread.

Each structure begins with its size, which only grows between versions. A frame smaller than `_Frame` is refused.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hocket._base import texts

_METADATA: Final = 1
"""The kind of the extension with which XLA queries a handler's metadata."""

_EXECUTE: Final = 3
"""The stage in which a handler does its work."""

_INTERNAL: Final = 13
"""XLA's error code for an internal error."""


class _Extension(ctypes.Structure):
    pass


_Extension._fields_ = [("size", ctypes.c_size_t), ("kind", ctypes.c_int), ("next", ctypes.POINTER(_Extension))]


class _Version(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("_", ctypes.c_void_p), ("major", ctypes.c_int), ("minor", ctypes.c_int)]


class _Metadata(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("version", _Version), ("traits", ctypes.c_uint32)]


class _MetadataExtension(ctypes.Structure):
    _fields_ = [("base", _Extension), ("metadata", ctypes.POINTER(_Metadata))]


class _ErrorArguments(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("_", ctypes.c_void_p),
        ("message", ctypes.c_char_p),
        ("code", ctypes.c_int),
    ]


_CreateError = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_ErrorArguments))


class _Api(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("_", ctypes.c_void_p),
        ("version", _Version),
        ("internal", ctypes.c_void_p),
        ("create_error", _CreateError),
    ]


class _Values(ctypes.Structure):
    """Arguments or results."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("_", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("types", ctypes.c_void_p),
        ("values", ctypes.POINTER(ctypes.c_void_p)),
    ]


class _Attributes(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("_", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("types", ctypes.c_void_p),
        ("names", ctypes.c_void_p),
        ("values", ctypes.POINTER(ctypes.c_void_p)),
    ]


class _Buffer(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("_", ctypes.c_void_p),
        ("dtype", ctypes.c_int),
        ("data", ctypes.c_void_p),
    ]


class _Scalar(ctypes.Structure):
    _fields_ = [("dtype", ctypes.c_int), ("value", ctypes.POINTER(ctypes.c_int64))]


class _Frame(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("extension", ctypes.POINTER(_Extension)),
        ("api", ctypes.POINTER(_Api)),
        ("context", ctypes.c_void_p),
        ("stage", ctypes.c_int),
        ("arguments", _Values),
        ("results", _Values),
        ("attributes", _Attributes),
    ]


_Handler = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_Frame))

Work = Callable[[int, "list[int]", "list[int]"], None]
"""Does a handler's work, given the attribute, the arguments' addresses, and the results' addresses."""


def build_handler(work: Work) -> tuple[object, object]:
    """Return a capsule through which XLA calls a function, and an object that must live as long as XLA may call it.

    Args:
        work: The function. Its errors become errors of the compiled program, with their text.
    """

    def handle(pointer: Any) -> int | None:
        frame = pointer.contents
        try:
            if frame.extension and frame.extension.contents.kind == _METADATA:
                _introduce(frame)
            elif frame.stage == _EXECUTE:
                work(*_read(frame))
        except BaseException as error:  # noqa: BLE001 (nothing may be raised into XLA)
            return _build_error(frame, texts.describe(error))
        return None

    handler = _Handler(handle)
    new_capsule = ctypes.pythonapi.PyCapsule_New
    new_capsule.restype = ctypes.py_object
    new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return new_capsule(ctypes.cast(handler, ctypes.c_void_p), b"xla._CUSTOM_CALL_TARGET", None), handler


def view(address: int, dtype: npt.DTypeLike, count: int) -> npt.NDArray[Any]:
    """Return the memory at an address as an array. Do not use it after the call that passed the address."""
    kind = np.dtype(dtype)
    memory: Any = (ctypes.c_byte * (kind.itemsize * count)).from_address(address)
    found: npt.NDArray[Any] = np.frombuffer(memory, np.uint8).view(kind)
    return found


def _introduce(frame: _Frame) -> None:
    """Declare the interface's version: XLA's own, since the fields above have been the same since 0.1."""
    extension = ctypes.cast(frame.extension, ctypes.POINTER(_MetadataExtension)).contents
    metadata = extension.metadata.contents
    spoken = frame.api.contents.version
    metadata.version.major, metadata.version.minor = 0, spoken.minor
    metadata.traits = 0


def _read(frame: _Frame) -> tuple[int, list[int], list[int]]:
    if frame.size < ctypes.sizeof(_Frame):
        raise RuntimeError(
            f"XLA's call frame has {frame.size} bytes, but this version of hocket needs {ctypes.sizeof(_Frame)}. Use "
            "another version of jaxlib."
        )
    attribute = ctypes.cast(frame.attributes.values[0], ctypes.POINTER(_Scalar)).contents.value[0]
    return attribute, _list_addresses(frame.arguments), _list_addresses(frame.results)


def _list_addresses(values: _Values) -> list[int]:
    pointers = values.values
    kind = ctypes.POINTER(_Buffer)
    return [ctypes.cast(pointers[number], kind).contents.data or 0 for number in range(values.count)]


def _build_error(frame: _Frame, message: str) -> int:
    arguments = _ErrorArguments(ctypes.sizeof(_ErrorArguments), None, message.encode(), _INTERNAL)
    made: int = frame.api.contents.create_error(ctypes.byref(arguments))
    return made
