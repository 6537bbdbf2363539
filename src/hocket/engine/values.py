"""Values in the form that travels: pickle protocol 5, with large buffers beside the pickle instead of inside it.

A value is *encoded* to a pickle, the buffers of its arrays (uncopied), and the references inside it. Plain data takes the
C pickler; what it would pickle by name although no worker could import it (functions, classes, anything of
``__main__``) takes cloudpickle.

What does not work, and is found out at encoding, is explained: `explain_failure` walks the value and names the part.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import io
import pickle
import sys
import types
import warnings
from collections import ChainMap
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from hocket import exceptions, texts
from hocket.engine import callers, contract, interrupts

try:
    from _blake2 import (
        blake2b,
    )  # what `hashlib` gives; but that loads OpenSSL, which costs 2 ms, and makes each fork a tenth slower
except ImportError:  # an interpreter without it
    from hashlib import blake2b

PROTOCOL = 5

IN_BAND_BYTES = 16 * 1024
"""Buffers up to this size are copied into the pickle. A guess: a copy of 16 KiB costs about 1 us, as much as the
bookkeeping for a separate buffer."""

BESIDE_BYTES = 256 * 1024
"""A pickle of this size or more, whatever is in it, becomes a buffer itself, the first one, so that an engine treats it as it treats a
large array. The local engine's figure (`payloads.SEGMENT_BYTES`): through a socket a pickle is copied six times and counts against no
limit of memory, and a message of 2 GiB cannot be built."""

ERROR_BYTES = 16 << 20
"""How large the pickle of an exception may be. A guess: each process that waits for it gets a copy, in a message."""

FUNCTION_WARN_BYTES = 10 << 20
FUNCTION_ERROR_BYTES = 100 << 20
"""How large the pickle of a function may be, with all that it refers to, before a warning and an error. Arrays do not count: they go to
shared memory. Ray's figures."""

PLAIN_TYPES = frozenset({int, float, bool, str, bytes, type(None), complex})
"""Types whose values the C pickler writes without calling any of our code."""


Reducer = Callable[[Any], tuple[Any, ...]]
"""Returns what `pickle` makes of an object: a callable that rebuilds it, and the arguments."""

reducers: dict[type, Reducer] = {}
"""How to encode the instances of classes that the user has registered; they come before what pickle would do."""


@functools.cache
def load_pickler() -> type[pickle.Pickler]:
    """Return cloudpickle's pickler, with the user's own reducers.

    With what it imports it takes 5 ms (measured). A driver needs it for the first function that it encodes, and the guardian
    starts meanwhile (`Engine.expect_work`).
    """
    import cloudpickle

    main = sys.modules.get("__mp_main__")  # what multiprocessing makes of the script in a process that it has spawned
    if getattr(main, "__name__", "") == "__mp_main__":
        cloudpickle.register_pickle_by_value(main)

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        dispatch_table: ClassVar[Any] = ChainMap(reducers, cloudpickle.Pickler.dispatch_table)

    return Pickler


def prepare() -> None:
    """Load what it takes to encode a function, for the processes that will be forked from this one."""
    load_pickler()


class Slot:
    """Stands in a task's arguments for a reference whose value will be put there."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index

    def __reduce__(self) -> tuple[Any, ...]:
        return Slot, (self.index,)


class Encoded:
    """A value, encoded."""

    __slots__ = ("buffers", "data", "refs")

    def __init__(self, data: bytes, buffers: list[memoryview], refs: list[contract.ObjectRef[Any]]) -> None:
        #: The pickle. Empty if it is large: then it is the first of the buffers.
        self.data = data
        #: The memory of large arrays: still the caller's own, to be copied before control returns.
        self.buffers = buffers
        self.refs = refs

    def split(self) -> tuple[bytes | memoryview, list[memoryview]]:
        """Return the pickle, wherever it is, and the memory of the arrays."""
        if self.data:
            return self.data, self.buffers
        return self.buffers[0], self.buffers[1:]


_NO_REFS: list[contract.ObjectRef[Any]] = []
_NO_BUFFERS: list[memoryview] = []


def is_plain(value: Any) -> bool:
    """Tell whether the C pickler can be trusted with it: plain data, and flat containers of plain data."""
    kind = type(value)
    if kind in PLAIN_TYPES:
        return True
    if kind is tuple or kind is list:
        return len(value) <= 64 and PLAIN_TYPES.issuperset(map(type, value))
    return False


def encode_plain(value: Any) -> bytes:
    """Encode a value that `is_plain`."""
    return pickle.dumps(value, PROTOCOL)


def encode(
    value: Any,
    what: str = "value",
    explain: Callable[[Any, str, Exception], str] | None = None,
    *,
    by_index: bool = False,
) -> Encoded:
    """Encode a value; `what` names it in errors, and `explain` writes them (`explain_failure`).

    With `by_index`, `decode` has to be given handles for the references inside, in the order of `Encoded.refs`.

    Raises:
        SerializationError: Some part of it cannot travel.
    """
    if is_plain(value):
        data = pickle.dumps(value, PROTOCOL)
        if len(data) < BESIDE_BYTES:
            return Encoded(data, _NO_BUFFERS, _NO_REFS)
        return Encoded(b"", [memoryview(data)], _NO_REFS)
    buffers: list[memoryview] = []

    def take_buffer(buffer: pickle.PickleBuffer) -> bool:
        try:
            raw = buffer.raw()
        except BufferError:  # not contiguous: only a copy, inside the pickle, can carry it
            return True
        if raw.nbytes <= IN_BAND_BYTES:
            return True
        buffers.append(raw)
        return False

    stream, refs = _dump(value, what, explain, take_buffer, by_index=by_index)
    if stream.tell() < BESIDE_BYTES:
        return Encoded(stream.getvalue(), buffers, refs)
    return Encoded(b"", [stream.getbuffer(), *buffers], refs)


def encode_whole(value: Any, what: str = "value") -> Encoded:
    """Encode a value with all that it holds in the pickle, however large: for what has to fit into one message.

    Raises:
        SerializationError: Some part of it cannot travel.
    """
    if is_plain(value):
        return Encoded(pickle.dumps(value, PROTOCOL), _NO_BUFFERS, _NO_REFS)
    stream, refs = _dump(value, what, None, None, by_index=False)
    return Encoded(stream.getvalue(), _NO_BUFFERS, refs)


def _dump(
    value: Any,
    what: str,
    explain: Callable[[Any, str, Exception], str] | None,
    take_buffer: Callable[[pickle.PickleBuffer], bool] | None,
    *,
    by_index: bool,
) -> tuple[io.BytesIO, list[contract.ObjectRef[Any]]]:
    outer = contract.encoding.refs
    refs: list[contract.ObjectRef[Any]] = []
    outer_by_index = contract.encoding.by_index
    contract.encoding.refs = refs
    contract.encoding.by_index = by_index
    stream = io.BytesIO()
    try:
        load_pickler()(stream, PROTOCOL, buffer_callback=take_buffer).dump(value)
    except exceptions.HocketError:
        raise
    except Exception as error:
        if interrupts.is_from_handler(error):  # an alarm of the user's, which found a `__reduce__` at work
            raise
        raise exceptions.SerializationError(_explain_safely(explain or explain_failure, value, what, error)) from error
    finally:
        contract.encoding.refs = outer
        contract.encoding.by_index = outer_by_index
    return stream, refs


def _build_plain(data: bytes) -> Encoded:
    if len(data) < BESIDE_BYTES:
        return Encoded(data, _NO_BUFFERS, _NO_REFS)
    return Encoded(b"", [memoryview(data)], _NO_REFS)


def decode(data: bytes | memoryview, buffers: Any = (), refs: list[contract.ObjectRef[Any]] | None = None) -> Any:
    """Return a new value from its encoding; `refs` are handles for the references inside, if it was encoded by index."""
    if not data:
        data, *buffers = buffers
    if not refs:
        return pickle.loads(data, buffers=buffers)
    outer = contract.decoding.refs
    contract.decoding.refs = refs
    try:
        return pickle.loads(data, buffers=buffers)
    finally:
        contract.decoding.refs = outer


MANY = 100
"""From so many values on it is worth while to hold the garbage collector off while they are decoded."""


@contextlib.contextmanager
def hold_collector() -> Iterator[None]:
    """Decode without the cyclic garbage collector. What is decoded is no garbage, but the collector looks through all of it
    again and again while it grows: 10,000 lists of 10,000 numbers took 3.4 s with it and 2.2 s without (measured).
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def encode_arguments(
    args: tuple[Any, ...], kwargs: dict[str, Any], what: str
) -> tuple[Encoded | None, list[contract.ObjectRef[Any]]]:
    """Encode a call's arguments; return them with the references whose values are to be filled in. `what` is called.

    Each argument that is itself a reference becomes a `Slot`. None stands for "no arguments".
    """
    if not kwargs:
        if not args:
            return None, _NO_REFS
        kinds = set(map(type, args))
        if kinds <= PLAIN_TYPES:
            return _build_plain(pickle.dumps((args, kwargs), PROTOCOL)), _NO_REFS
        if kinds == _REFERENCES_ONLY:
            for ref in args:
                contract.check_current(ref)
            return Encoded(_encode_slots(len(args)), _NO_BUFFERS, _NO_REFS), list(args)
    top: list[contract.ObjectRef[Any]] = []

    def replace(argument: Any) -> Any:
        if type(argument) is contract.ObjectRef:
            contract.check_current(argument)
            top.append(argument)
            return Slot(len(top) - 1)
        return argument

    args = tuple([replace(argument) for argument in args])
    kwargs = {name: replace(argument) for name, argument in kwargs.items()}
    if top and all(type(value) is Slot or is_plain(value) for value in (*args, *kwargs.values())):
        return _build_plain(pickle.dumps((args, kwargs), PROTOCOL)), top
    return encode((args, kwargs), what, explain_arguments, by_index=True), top


_REFERENCES_ONLY = {contract.ObjectRef}


@functools.lru_cache(maxsize=16)
def _encode_slots(count: int) -> bytes:
    """Encode so many arguments that are references, and no others: a quarter of what such a call costs, if it is done each time."""
    return pickle.dumps((tuple([Slot(index) for index in range(count)]), {}), PROTOCOL)


def fill_slots(
    args: tuple[Any, ...], kwargs: dict[str, Any], found: list[Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Put the values of top-level references where their slots are."""
    args = tuple([found[value.index] if type(value) is Slot else value for value in args])
    kwargs = {name: found[value.index] if type(value) is Slot else value for name, value in kwargs.items()}
    return args, kwargs


def encode_function(value: Any, name: str) -> contract.RemoteFunction:
    """Encode a function or class by value where workers could not import it.

    Raises:
        SerializationError: Its closure or globals hold something that cannot travel.
    """
    encoded = encode(value, name)
    blob = encoded.data
    size, arrays = len(blob), encoded.buffers
    if not blob:
        pickled, arrays = encoded.split()
        size = len(pickled)
    if size > FUNCTION_WARN_BYTES:
        _judge_large_function(value, name, size)

    digest = blake2b(blob, digest_size=16)
    for buffer in encoded.buffers:  # one second for each GB, once: the price of knowing equal functions as equal
        digest.update(buffer)
    for ref in encoded.refs:  # some engines write only its place into the pickle
        digest.update(ref.hex().encode())
    if arrays:
        _note_large_arrays(value, name, arrays)
    return contract.RemoteFunction(value, name, blob, digest.digest(), tuple(encoded.refs), tuple(encoded.buffers))


def _note_large_arrays(value: Any, name: str, arrays: list[memoryview]) -> None:
    import logging

    log = logging.getLogger("hocket")
    if log.isEnabledFor(logging.INFO):
        size = sum(buffer.nbytes for buffer in arrays)
        parts = ", ".join(_name_large_parts(value)) or "an array"
        log.info("%s takes %s along: %s bytes, stored once in shared memory", name, parts, f"{size:,}")


def _judge_large_function(value: Any, name: str, size: int) -> None:
    """Warn of a large pickle of a function, or refuse it: each worker keeps its own copy."""
    parts = ", ".join(_name_large_parts(value))
    where = f" Most of it is in {parts}." if parts else ""
    advice = "Put large data into the object store with hocket.put() and pass the reference as an argument."
    if size > FUNCTION_ERROR_BYTES:
        raise ValueError(
            f"The {name} is too large ({size:,} bytes with what it refers to; the most is {FUNCTION_ERROR_BYTES:,}).{where} {advice}"
        )
    warnings.warn(
        f"The {name} is very large ({size:,} bytes with what it refers to), and each worker gets a copy.{where} {advice}",
        stacklevel=callers.find_stack_level(),
    )


def _name_large_parts(value: Any) -> list[str]:
    """Return which variables of a function or class hold large data."""
    found = []
    for step, part in list_parts(value):
        name = step.removeprefix(" -> ")
        if isinstance(value, type) and isinstance(part, types.FunctionType):
            found += [f"{inner} of {part.__name__}()" for inner in _name_large_parts(part)]
        elif not isinstance(part, types.ModuleType | type) and _measure(part) > IN_BAND_BYTES:
            found.append(name)
    return found


def _measure(value: Any) -> int:
    """Return how many bytes a value takes when encoded; 0 if it cannot be."""
    try:
        encoded = encode(value)
    except exceptions.HocketError:
        return 0
    return len(encoded.data) + sum(buffer.nbytes for buffer in encoded.buffers)


def encode_error(error: BaseException) -> bytes:
    """Encode an exception; one that cannot travel, or is too large, is replaced by a `HocketError` with its text.

    The cause of a `TaskError` is a pickle of its own, so that the error arrives also where that cannot be opened.
    """
    if issubclass(type(error), exceptions.TaskError):
        found: Any = error
        cause, note = _encode_alone(found.cause)
        return encode_whole(_Sent(found.function_name, f"{_shorten(found.traceback_str)}{note}", cause)).data
    return _encode_alone(error)[0]


def _encode_alone(error: BaseException) -> tuple[bytes, str]:
    """Return the pickle of an exception, or of what takes its place; and what is to be said of that."""
    try:
        data = encode_whole(error, "exception").data
        if len(data) > ERROR_BYTES:
            failure = (
                f"it takes {len(data):,} bytes, and the most is {ERROR_BYTES:,}. Raise one without large data in it; put the data "
                "into the object store with hocket.put() and raise with the reference."
            )
        elif issubclass(type(decode(data)), BaseException):
            return data, ""
        else:
            failure = "its __reduce__ makes something else of it"
    except BaseException as raised:  # noqa: BLE001 (a user's __reduce__ may raise anything)
        failure = texts.safe_text(raised)
    note = f"(the exception itself could not be sent: {failure})"
    kind = type(error)
    module = texts.safe_text(getattr(kind, "__module__", ""))
    substitute = exceptions.HocketError(f"{module}.{_shorten(texts.describe(error))} {note}")
    return encode_whole(substitute).data, f"{note}\n"


class _Sent:
    """A `TaskError` on its way."""

    def __init__(self, *parts: Any) -> None:
        self._parts = parts

    def __reduce__(self) -> tuple[object, ...]:
        return _open_sent, self._parts


def _open_sent(function_name: str, traceback_str: str, data: bytes) -> exceptions.TaskError:
    try:
        cause: BaseException = decode(data)
    except Exception as failure:  # noqa: BLE001 (its module may be missing here, and its __setstate__ may raise anything)
        cause = exceptions.HocketError(f"(the exception itself cannot be read here: {texts.describe(failure)})")
    return exceptions.TaskError(function_name, traceback_str, cause)


def _shorten(text: str) -> str:
    """Return a text that fits into a substitute with room to spare: both ends of a long one."""
    most = ERROR_BYTES // 256
    return text if len(text) <= 2 * most else f"{text[:most]} [...] {text[-most:]}"


# --- explaining -------------------------------------------------------------------------------------------------------

_LOCK = "create the lock inside the function, or keep it in an actor"
_CONNECTION = "open the connection inside the function or the actor's constructor"
_FILE = "pass the path and open the file inside the function"
_START = "start it inside the function, and pass what it needs"
_VALUES = "pass the values that you need of it"
_ADVICE: dict[str, str] = {
    "_thread.lock": _LOCK,
    "_thread.RLock": _LOCK,
    "threading.Condition": "create the condition inside the function, or keep it in an actor",
    "threading.Event": "wait for an object reference instead, or keep the event in an actor",
    "threading.Semaphore": "limit what runs with num_cpus or resources={...}, or keep the semaphore in an actor",
    "threading.Barrier": "wait for object references instead, or keep the barrier in an actor",
    "threading.Thread": "start the thread inside the function",
    "_thread._local": "create the thread-local state inside the function",
    "_threading_local.local": "create the thread-local state inside the function",
    "hocket.core.generators.ObjectRefGenerator": "take the references from it first, and send these as a list",
    "concurrent.futures._base.Executor": "create the pool inside the function, or use remote functions instead of it",
    "concurrent.futures._base.Future": "pass its result(), or an object reference instead",
    "multiprocessing.synchronize.SemLock": _LOCK,
    "multiprocessing.queues.Queue": "keep the queue in an actor",
    "multiprocessing.pool.Pool": "create the pool inside the function, or use remote functions instead of it",
    "queue.Queue": "keep the queue in an actor",
    "_queue.SimpleQueue": "keep the queue in an actor",
    "asyncio.events.AbstractEventLoop": "get the loop inside the function, with asyncio.get_running_loop()",
    "_asyncio.Future": "await it first and pass the result, or pass an object reference",
    "socket.socket": _CONNECTION,
    "ssl.SSLContext": "create the context inside the function or the actor's constructor",
    "sqlite3.Connection": _CONNECTION,
    "sqlite3.Cursor": "fetch the rows and pass them, or open the connection inside the function",
    "subprocess.Popen": _START,
    "builtins.generator": "pass a list, or create the generator inside the function",
    "builtins.async_generator": "pass a list, or create the generator inside the function",
    "builtins.coroutine": "pass the arguments and create the coroutine inside the function",
    "builtins.frame": "pass the values that you need instead of the frame",
    "builtins.traceback": "pass traceback.format_tb(...) of it",
    "builtins.module": "import the module inside the function",
    "weakref.ReferenceType": "pass the object itself",
    "weakref.ProxyType": "pass the object itself",
    "contextvars.ContextVar": "pass its value, with .get(), and set it inside the function",
    "_contextvars.ContextVar": "pass its value, with .get(), and set it inside the function",
    "mmap.mmap": "pass the path and map the file inside the function, or put a numpy array of the bytes",
    "_ctypes._Pointer": "pass the value that it points to, with .contents",
    "_ctypes.CFuncPtr": "load the library inside the function",
    "re.Match": "pass match.groups() or match.group()",
    "_hashlib.HASH": "pass digest() of it, or the bytes",
    "_io._IOBase": _FILE,
    "posix.ScandirIterator": "pass a list of the paths",
    "tkinter.Misc": "keep windows in the driver, and pass what they need",
}
"""What to do instead, by the full name of a class. A subclass has its parent's advice."""

_DEFAULT_ADVICE = "create it inside the function or in an actor's constructor, or give its class a __reduce__ method"
_SEARCH_DEPTH = 8


def _explain_safely(explain: Callable[[Any, str, Exception], str], value: Any, what: str, error: Exception) -> str:
    """Return the message for a value that cannot be encoded, also if it lets nobody look into it."""
    try:
        return explain(value, what, error)
    except Exception:  # noqa: BLE001 (a user's attributes may raise anything)
        return f"Cannot send {what} to another process: {texts.describe(error)}. Remedy: {_DEFAULT_ADVICE}."


def get_advice(culprit: Any) -> str:
    """Return what to do about something that cannot travel."""
    return _get_optional_advice(culprit) or _DEFAULT_ADVICE


def explain_failure(value: Any, what: str, error: Exception) -> str:
    """Return a message with the path to the part that cannot travel, and what to do instead."""
    return _explain(value, what, what, error)


def explain_arguments(value: Any, what: str, error: Exception) -> str:
    """Return the message for a call's arguments (a pair of `args` and `kwargs`), with the argument's place or name."""
    args, kwargs = value
    what = f"the arguments of {what if '`' in what else f'`{what}`'}"
    named = [(f"argument {position}", part) for position, part in enumerate(args)]
    named += [(f"argument {name!r}", part) for name, part in kwargs.items()]
    for name, part in named:
        if not can_travel(part):
            return _explain(part, name, what, error)
    return _explain(value, "a part", what, error)


def _explain(value: Any, path: str, what: str, error: Exception) -> str:
    path, culprit = _find_culprit(value, path, set(), 0)
    kind = type(culprit)
    advice = get_advice(culprit)
    return (
        f"Cannot send {what} to another process: {path} is a {kind.__module__}.{kind.__name__}, which cannot be pickled "
        f"({texts.safe_text(error)}). Remedy: {advice}."
    )


def _get_optional_advice(value: Any) -> str | None:
    names = (f"{parent.__module__}.{parent.__qualname__}" for parent in type(value).__mro__)
    return next((_ADVICE[name] for name in names if name in _ADVICE), None)


def _find_culprit(value: Any, path: str, seen: set[int], depth: int) -> tuple[str, Any]:
    """Return the path to, and the value of, the deepest part that fails by itself, or that we have advice for.

    The lock inside a thread is nothing that its user has heard of.
    """
    if depth < _SEARCH_DEPTH and id(value) not in seen and _get_optional_advice(value) is None:
        seen.add(id(value))
        for step, part in list_parts(value):
            if id(part) not in seen and not can_travel(part):
                return _find_culprit(part, path + step, seen, depth + 1)
    return path, value


def list_parts(value: Any) -> list[tuple[str, Any]]:
    """Return what a value is made of, each part with the step that leads to it."""
    if isinstance(value, types.MethodType):
        return [(" -> its object", value.__self__), (" -> its function", value.__func__)]
    if isinstance(value, types.FunctionType):
        names = value.__code__.co_freevars
        cells = [cell.cell_contents for cell in value.__closure__ or () if cell != types.CellType()]
        parts = [(f" -> closure variable {name!r}", cell) for name, cell in zip(names, cells, strict=False)]
        used = [name for name in value.__code__.co_names if name in value.__globals__]
        parts += [(f" -> global variable {name!r}", value.__globals__[name]) for name in used]
        defaults = value.__defaults__ or ()
        return parts + [(f" -> default value {position}", default) for position, default in enumerate(defaults)]
    if isinstance(value, dict):
        return [(f"[{texts.safe_repr(key)}]", part) for key, part in value.items()]
    if isinstance(value, list | tuple | set | frozenset):
        return [(f"[{position}]", part) for position, part in enumerate(value)]
    if isinstance(value, type):
        return [(f" -> class attribute {name!r}", part) for name, part in vars(value).items()]
    return [(f".{name}", part) for name, part in getattr(value, "__dict__", {}).items()]


def can_travel(value: Any) -> bool:
    """Tell whether a value can be encoded."""
    outer = contract.encoding.refs
    contract.encoding.refs = []
    try:
        load_pickler()(io.BytesIO(), PROTOCOL).dump(value)
    except Exception:  # noqa: BLE001 (a user's __reduce__ may raise anything)
        return False
    finally:
        contract.encoding.refs = outer
    return True
