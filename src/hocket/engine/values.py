"""Encoded values: pickle protocol 5, with large buffers beside the pickle instead of inside it.

A value is *encoded* to a pickle, the buffers of its arrays (uncopied), and the references inside it. Plain data takes
the C pickler. All other values take cloudpickle, because the C pickler would pickle functions, classes and anything of
``__main__`` by name, and workers could not import them.

If a value cannot be encoded, `unsendable` searches it for the part at fault, and writes the error.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import pickle
import sys
import types
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

from hocket import exceptions
from hocket._base import texts
from hocket.engine import callers, contract, interrupts, pickling, undecodable, unsendable

try:
    from _blake2 import (
        blake2b,
    )  # the same as from `hashlib`, which loads OpenSSL: that takes 2 ms, and makes each fork a tenth slower
except ImportError:  # an interpreter without this module
    from hashlib import blake2b

IN_BAND_BYTES = 16 * 1024
"""Buffers up to this size are copied into the pickle. A guess: a copy of 16 KiB costs about 1 us, as much as the
bookkeeping for a separate buffer."""

BESIDE_BYTES = 256 * 1024
"""A pickle of this size or more becomes the first buffer, so that an engine treats it like a large array. The local
engine's figure (`payloads.SEGMENT_BYTES`). A socket would copy such a pickle six times, no limit of memory would count
it, and a message of 2 GiB cannot be built."""

ERROR_BYTES = 16 << 20
"""The most bytes in the pickle of an exception. A guess: each process that waits for it gets a copy, in a message."""

FUNCTION_WARN_BYTES = 10 << 20
FUNCTION_ERROR_BYTES = 100 << 20
"""The sizes of a function's pickle, with all that the function refers to, from which Hocket warns and raises. Arrays do
not count, because they go to shared memory. Ray's figures."""

PLAIN_TYPES = frozenset({int, float, bool, str, bytes, type(None), complex})
"""Types that the C pickler writes without a call of our code."""


def prepare() -> None:
    """Load the modules that encode functions, before this process forks others."""
    pickling.load_pickler()


class Slot:
    """A placeholder in a task's arguments for the value of a reference."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index

    def __reduce__(self) -> tuple[object, ...]:
        return Slot, (self.index,)


class Encoded:
    """A value, encoded."""

    __slots__ = ("buffers", "data", "refs")

    def __init__(self, data: bytes, buffers: list[memoryview], refs: list[contract.ObjectRef[object]]) -> None:
        #: The pickle. Empty if it is large: then it is the first of the buffers.
        self.data = data
        #: The memory of large arrays. It still belongs to the caller, and must be copied before control returns.
        self.buffers = buffers
        self.refs = refs

    def split(self) -> tuple[bytes | memoryview, list[memoryview]]:
        """Return the pickle, wherever it is, and the memory of the arrays."""
        if self.data:
            return self.data, self.buffers
        return self.buffers[0], self.buffers[1:]


_NO_REFS: list[contract.ObjectRef[object]] = []
_NO_BUFFERS: list[memoryview] = []


def is_plain(value: Any) -> bool:
    """Return whether the C pickler can encode a value safely: plain data, and flat containers of plain data."""
    kind = type(value)
    if kind in PLAIN_TYPES:
        return True
    if kind is tuple or kind is list:
        return len(value) <= 64 and PLAIN_TYPES.issuperset(map(type, value))
    return False


def is_simple(value: Any, depth: int = 4) -> bool:
    """Return whether a value can certainly be encoded and decoded, without a call of the user's code. Such values are
    plain data and arrays of plain data, in lists, tuples and dicts nested up to `depth`."""
    kind = type(value)
    if kind in PLAIN_TYPES:
        return True
    if kind is list or kind is tuple:
        if depth and PLAIN_TYPES.issuperset(map(type, value)):
            return True
        return depth > 0 and all(is_simple(item, depth - 1) for item in value)
    if kind is dict:
        return depth > 0 and all(is_simple(item, depth - 1) for item in (*value, *value.values()))
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return False
    if kind is numpy.ndarray:
        return not value.dtype.hasobject
    return issubclass(kind, numpy.generic) and kind.__module__ == "numpy" and not issubclass(kind, numpy.void)


def encode_plain(value: object) -> bytes:
    """Encode a plain value; see `is_plain`."""
    return pickle.dumps(value, pickling.PROTOCOL)


def encode(
    value: object,
    what: str = "value",
    explain: Callable[[object, str, Exception], str] | None = None,
    *,
    by_index: bool = False,
) -> Encoded:
    """Encode a value; `what` names it in errors, and `explain` writes them (default: `unsendable.explain_failure`).

    With `by_index`, `decode` needs handles for the references inside, in the order of `Encoded.refs`.

    Raises:
        SerializationError: Some part of the value cannot travel.
    """
    if is_plain(value):
        return _build_plain(value, value if type(value) is tuple or type(value) is list else (value,))
    buffers: list[memoryview] = []
    stream = pickling.PickleStream(buffers, BESIDE_BYTES)

    def take_buffer(buffer: pickle.PickleBuffer) -> bool:
        try:
            raw = buffer.raw()
        except BufferError:  # not contiguous: only a copy inside the pickle can hold it
            return True
        if raw.nbytes <= IN_BAND_BYTES:
            return True
        buffers.append(raw)
        return False

    refs = _dump(value, what, explain, stream, take_buffer, by_index=by_index)
    if stream.size < BESIDE_BYTES:
        return Encoded(stream.getvalue(), buffers, refs)
    return Encoded(b"", [memoryview(stream.getvalue()), *buffers], refs)


def encode_whole(value: object, what: str = "value", *, pickler: type[pickle.Pickler] | None = None) -> Encoded:
    """Encode a value with all its buffers inside the pickle, however large; for values that have to fit into one
    message.

    Args:
        value: The value.
        what: The value's name in errors.
        pickler: The class of the pickler. Default: from `pickling.load_pickler`.
    """
    if is_plain(value):
        return Encoded(pickle.dumps(value, pickling.PROTOCOL), _NO_BUFFERS, _NO_REFS)
    stream = pickling.PickleStream(None, BESIDE_BYTES)
    refs = _dump(value, what, None, stream, None, by_index=False, pickler=pickler)
    return Encoded(stream.getvalue(), _NO_BUFFERS, refs)


def _dump(
    value: object,
    what: str,
    explain: Callable[[object, str, Exception], str] | None,
    stream: pickling.PickleStream,
    take_buffer: Callable[[pickle.PickleBuffer], bool] | None,
    *,
    by_index: bool,
    pickler: type[pickle.Pickler] | None = None,
) -> list[contract.ObjectRef[object]]:
    outer = contract.encoding.refs
    refs: list[contract.AnyRef] = []
    outer_by_index = contract.encoding.by_index
    contract.encoding.refs = refs
    contract.encoding.by_index = by_index
    try:
        kind = pickler or pickling.load_pickler()
        kind(stream, pickling.PROTOCOL, buffer_callback=take_buffer).dump(value)
    except exceptions.HocketError:
        raise
    except Exception as error:
        if contract.is_from_handler(error):  # a user's alarm, which interrupted a `__reduce__`
            raise
        texts.drop_own_frames(error)
        raise exceptions.SerializationError(
            unsendable.explain_safely(explain or unsendable.explain_failure, value, what, error)
        ) from error
    finally:
        contract.encoding.refs = outer
        contract.encoding.by_index = outer_by_index
    return refs


def _build_plain(value: object, parts: Iterable[object]) -> Encoded:
    """Encode a value of plain parts."""
    buffers = _NO_BUFFERS
    for part in parts:
        if type(part) is bytes and len(part) >= BESIDE_BYTES:
            buffers = []
            stream = pickling.PickleStream(buffers, BESIDE_BYTES)
            pickle.Pickler(stream, pickling.PROTOCOL).dump(value)
            data = stream.getvalue()
            break
    else:
        data = pickle.dumps(value, pickling.PROTOCOL)
    if len(data) < BESIDE_BYTES:
        return Encoded(data, buffers, _NO_REFS)
    return Encoded(b"", [memoryview(data), *buffers], _NO_REFS)


def decode(data: bytes | memoryview, buffers: Any = (), refs: list[contract.AnyRef] | None = None) -> Any:
    """Return a new value from its encoding; `refs` are handles for the references inside, if the value was encoded with
    `by_index`."""
    if not data:
        data, *buffers = buffers
    try:
        if not refs:
            return pickle.loads(data, buffers=buffers)
        outer = contract.decoding.refs
        contract.decoding.refs = refs
        try:
            return pickle.loads(data, buffers=buffers)
        finally:
            contract.decoding.refs = outer
    except Exception as error:
        note_decoding(error)
        raise


def note_decoding(error: Exception) -> None:
    """Add a note to an error that says that it was raised during decoding."""
    with contextlib.suppress(Exception):  # the error is a user's object, and its attributes may raise
        if not contract.is_from_handler(error) and undecodable.NOTE not in getattr(error, "__notes__", ()):
            error.add_note(undecodable.NOTE)


MANY = 100
"""From this number of values on, decoding is faster with the garbage collector off."""


@contextlib.contextmanager
def hold_collector() -> Iterator[None]:
    """Turn the garbage collector off inside this block, for decoding. Decoded values are no garbage, but the collector
    would visit all of them again and again while they grow: 10,000 lists of 10,000 numbers took 3.4 s with the
    collector and 2.2 s without (measured)."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def encode_arguments(
    args: tuple[Any, ...], kwargs: dict[str, object], what: str
) -> tuple[Encoded | None, list[contract.ObjectRef[object]]]:
    """Encode the arguments of a call on `what`; return them, and the references that are themselves arguments.

    Each argument that is itself a reference becomes a `Slot`. None stands for "no arguments".
    """
    if not kwargs:
        if not args:
            return None, _NO_REFS
        kinds = set(map(type, args))
        if kinds <= PLAIN_TYPES:
            return _build_plain((args, kwargs), args), _NO_REFS
        if kinds == _REFERENCES_ONLY:
            for ref in args:
                contract.check_current(ref)
            return Encoded(_encode_slots(len(args)), _NO_BUFFERS, _NO_REFS), list(args)
    top: list[contract.ObjectRef[object]] = []

    def replace(argument: object) -> object:
        if type(argument) is contract.ObjectRef:
            contract.check_current(argument)
            top.append(argument)
            return Slot(len(top) - 1)
        return argument

    args = tuple([replace(argument) for argument in args])
    kwargs = {name: replace(argument) for name, argument in kwargs.items()}
    if top and all(type(value) is Slot or is_plain(value) for value in (*args, *kwargs.values())):
        return _build_plain((args, kwargs), (*args, *kwargs.values())), top
    return encode((args, kwargs), what, unsendable.explain_arguments, by_index=True), top


_REFERENCES_ONLY = {contract.ObjectRef}


@functools.lru_cache(maxsize=16)
def _encode_slots(count: int) -> bytes:
    """Encode a number of arguments that are all references. Cached, because this takes a quarter of such a call's
    time."""
    return pickle.dumps((tuple([Slot(index) for index in range(count)]), {}), pickling.PROTOCOL)


def fill_slots(
    args: tuple[object, ...], kwargs: dict[str, object], found: list[object]
) -> tuple[tuple[object, ...], dict[str, object]]:
    """Replace the slots in a call's arguments by the values of their references."""
    args = tuple([found[value.index] if type(value) is Slot else value for value in args])
    kwargs = {name: found[value.index] if type(value) is Slot else value for name, value in kwargs.items()}
    return args, kwargs


def encode_function(value: object, name: str) -> contract.RemoteFunction:
    """Encode a function or a class, by value if workers cannot import it."""
    encoded = encode(value, name)
    blob = encoded.data
    size, arrays = len(blob), encoded.buffers
    if not blob:
        pickled, arrays = encoded.split()
        size = len(pickled)
    if size > FUNCTION_WARN_BYTES:
        _judge_large_function(value, name, size)

    digest = blake2b(blob, digest_size=16)
    for buffer in encoded.buffers:  # one second for each GB, once: else equal functions would have different ids
        digest.update(buffer)
    for ref in encoded.refs:  # some engines write only the reference's index into the pickle
        digest.update(ref.hex().encode())
    if arrays:
        _note_large_arrays(value, name, arrays)
    return contract.RemoteFunction(value, name, blob, digest.digest(), tuple(encoded.refs), tuple(encoded.buffers))


def _note_large_arrays(value: object, name: str, arrays: list[memoryview]) -> None:
    import logging

    log = logging.getLogger("hocket")
    if log.isEnabledFor(logging.INFO):
        size = sum(buffer.nbytes for buffer in arrays)
        parts = ", ".join(_name_large_parts(value)) or "an array"
        log.info("%s refers to %s: %s bytes, stored once in shared memory", name, parts, f"{size:,}")


def _judge_large_function(value: object, name: str, size: int) -> None:
    """Warn of a function's large pickle, or raise if it is too large: each worker keeps its own copy."""
    parts = ", ".join(_name_large_parts(value))
    where = f" Most of it is in {parts}." if parts else ""
    advice = "Put large data into the object store with hocket.put() and pass the reference as an argument."
    if size > FUNCTION_ERROR_BYTES:
        raise ValueError(
            f"The {name} is too large: {size:,} bytes with the data that it refers to, and the limit is "
            f"{FUNCTION_ERROR_BYTES:,}.{where} {advice}"
        )
    warnings.warn(
        f"The {name} is very large ({size:,} bytes with the data that it refers to), and each worker gets a "
        f"copy.{where} "
        f"{advice}",
        stacklevel=callers.find_stack_level(),
    )


def _name_large_parts(value: object) -> list[str]:
    """Return the names of the variables of a function or class that hold large data."""
    found = []
    for step, part in unsendable.list_parts(value):
        name = step.removeprefix(" -> ")
        if isinstance(value, type) and isinstance(part, types.FunctionType):
            found += [f"{inner} of {part.__name__}()" for inner in _name_large_parts(part)]
        elif not isinstance(part, types.ModuleType | type) and _measure(part) > IN_BAND_BYTES:
            found.append(name)
    return found


def _measure(value: object) -> int:
    """Return how many bytes a value takes when encoded; 0 if it cannot be encoded."""
    try:
        encoded = encode(value)
    except exceptions.HocketError:
        return 0
    return len(encoded.data) + sum(buffer.nbytes for buffer in encoded.buffers)


def encode_error(error: BaseException) -> bytes:
    """Encode an exception. A `HocketError` with its text replaces one that is too large, or cannot travel. The cause of
    a `TaskError` is a separate pickle, so that the error can be decoded even if the cause cannot."""
    if issubclass(type(error), exceptions.TaskError):
        found: Any = error
        sent = _encode_alone(found.cause)
        text = f"{_shorten(found.traceback_str)}{sent.note}"
        return encode_whole(_Sent(found.function_name, text, sent.data, sent.is_rebuilt)).data
    return _encode_alone(error).data


class _Alone(NamedTuple):
    """One exception, encoded."""

    data: bytes
    """The pickle of the exception, or of its substitute."""
    note: str = ""
    """The text for the user that says why there is a substitute."""
    is_rebuilt: bool = False
    """Whether `pickling.load_error_pickler` made the pickle, because Python's own could not be decoded."""


def _encode_alone(error: BaseException) -> _Alone:
    try:
        data = encode_whole(error, "exception").data
        if len(data) > ERROR_BYTES:
            failure = (
                f"it takes {len(data):,} bytes, and the limit is {ERROR_BYTES:,}. Raise an exception without large "
                "data: put the data into the object store with hocket.put(), and raise with the reference"
            )
        else:
            failure = _explain_opened(data, error)
            if failure:
                rebuilt = encode_whole(error, "exception", pickler=pickling.load_error_pickler()).data
                if not _explain_opened(rebuilt, error):
                    return _Alone(rebuilt, is_rebuilt=True)
            if failure in ("", _CHANGED):
                return _Alone(data)
    except BaseException as raised:  # a user's __reduce__ may raise anything
        interrupts.raise_later(raised)
        failure = texts.safe_text(raised)
    note = f"(the exception itself could not be sent: {failure})"
    kind = type(error)
    module = texts.safe_text(getattr(kind, "__module__", ""))
    substitute = exceptions.HocketError(f"{module}.{_shorten(texts.describe(error))} {note}")
    return _Alone(encode_whole(substitute).data, f"{note}\n")


_CHANGED: Final = "its text is another one when it is rebuilt"


def _explain_opened(data: bytes, error: BaseException) -> str:
    """Return the problem with the pickle of an exception; empty if decoding returns an exception with the same text."""
    try:
        opened = decode(data)
    except BaseException as raised:  # a user's constructor may raise anything
        interrupts.raise_later(raised)
        text = texts.safe_text(raised)
        return f"{text}. Pass all arguments of its class to super().__init__(), or define __reduce__ in it"
    if not issubclass(type(opened), BaseException):
        return "its __reduce__ rebuilds something that is not an exception"
    return "" if texts.safe_text(opened) == texts.safe_text(error) else _CHANGED


class _Sent:
    """The picklable form of a `TaskError`."""

    def __init__(self, *parts: object) -> None:
        self._parts = parts

    def __reduce__(self) -> tuple[object, ...]:
        return _open_sent, self._parts


def _open_sent(function_name: str, traceback_str: str, data: bytes, is_rebuilt: bool = False) -> exceptions.TaskError:
    try:
        cause: BaseException = decode(data)
    except Exception as failure:  # the cause's module may be missing, and its __setstate__ may raise anything
        cause = exceptions.HocketError(f"(the exception itself cannot be read here: {texts.describe(failure)})")
    error = exceptions.TaskError(function_name, traceback_str, cause)
    error._cause_data = data if is_rebuilt else b""
    return error


def _shorten(text: str) -> str:
    """Return a text that easily fits into a substitute: both ends of a long text."""
    most = ERROR_BYTES // 256
    return text if len(text) <= 2 * most else f"{text[:most]} [...] {text[-most:]}"
