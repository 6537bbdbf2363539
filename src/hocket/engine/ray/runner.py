"""The code around the user's code in Ray's workers.

A remote function travels as a pickle from `hocket.engine.values`, with its large arrays in Ray's object store: so it
captures the same things at the same moment as on every engine. An actor is a *shell*: a class for Ray that holds an
instance of the user's class, and has a method for each of the user's methods. Exceptions of the user's code leave as
our `TaskError`.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import threading
import types
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any, ClassVar, NoReturn, cast

import ray

from hocket import exceptions
from hocket._base.internals import ray as ray_internals
from hocket.engine import contract, methods, pickling, rules, unsendable, values
from hocket.engine.ray import notes
from hocket.kernel import records

CALL_FUNCTION = "__hocket_call__"
"""The method of a shell in place of ``__ray_call__``: Ray's own would run a function on the shell, not on the actor."""

RETURNS = "__hocket_returns__"
"""The keyword argument for the number of a call's results, if that is not 1: Ray does not pass it to the method."""

SELF = "__hocket_self__"
"""The keyword argument for a user's argument called self, a name that Ray's own functions need for themselves."""

_STOPS = (KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError, ray.exceptions.AsyncioActorExit)
"""The exceptions by which Ray stops running code: these are not wrapped."""


_sending = threading.local()


class Code:
    """A function or class that travels to workers.

    Args:
        function: The function or class.
        buffers: Ray's reference to the memory of its large arrays; None if there is none.
        home: A function that opens a worker's side of the session, and its arguments.
    """

    def __init__(self, function: contract.RemoteFunction, buffers: Any, home: Any) -> None:
        self._blob = function.blob
        #: The references in the function's closure: Ray has to see them to count them.
        self._captured = list(function.captured)
        self._buffers = buffers
        self._home = home
        self._value: object = None

    def load(self) -> Any:
        """Return the function or class. The first call in a process unpickles it, and opens its side of the session."""
        if self._value is None:
            enter, args = self._home
            enter(*args)
            buffers = [] if self._buffers is None else ray.get(self._buffers)
            self._value = values.decode(self._blob, [bytearray(buffer) for buffer in buffers], self._captured)
        return self._value

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild_code, (self._blob, self._captured, self._buffers, self._home)


def _rebuild_code(blob: bytes, captured: list[contract.AnyRef], buffers: object, home: object) -> Code:
    code = Code.__new__(Code)
    code._blob, code._captured, code._buffers, code._home, code._value = blob, captured, buffers, home, None
    return code


# --- functions --------------------------------------------------------------------------------------------------------


def build_function(code: Code, options: records.TaskOptions, *, is_generator: bool) -> Callable[..., object]:
    """Return the function that Ray runs instead of the user's; for a generator, a generator function, whose items
    become several results in Ray."""
    name, count = options.name, options.num_returns

    def run(*args: object, **kwargs: Any) -> Any:
        try:
            result = code.load()(*args, **kwargs)
            if type(result) is types.GeneratorType:
                _refuse_generator(name, result)
            return result
        except BaseException as error:  # the caller must see any error of the user's code
            raise_for_caller(name, error)
        finally:
            finish()

    def run_and_split(*args: object, **kwargs: object) -> object:
        with _Explaining(name):
            return _split(name, count, code.load()(*args, **kwargs))

    def run_generator(*args: Any, **kwargs: object) -> object:
        with _Explaining(name):
            for item in _number_items(code.load()(*args, **kwargs)):  # noqa: UP028 (Ray sends values in)
                yield item

    def run_and_take(*args: object, **kwargs: object) -> object:
        with _Explaining(name):  # no generator: Ray would keep the error of a generator's first attempt
            taken = _split(name, count, itertools.islice(code.load()(*args, **kwargs), count))
            return taken[0] if taken is not None and count == 1 else taken

    chosen = run if count == 1 else run_and_split
    if count == records.STREAMING or (is_generator and count):
        chosen = run_and_take if count > 0 and options.retry_exceptions else run_generator
    chosen.__name__ = chosen.__qualname__ = name
    return chosen


def build_failure(error: BaseException, options: records.TaskOptions) -> Callable[..., object]:
    """Return a function that raises an error, which Ray runs instead of a function that cannot run."""

    def fail() -> Any:
        raise error

    def fail_as_generator() -> object:
        yield from fail()

    chosen = fail_as_generator if options.num_returns == records.STREAMING else fail
    chosen.__name__ = chosen.__qualname__ = options.name
    return chosen


def _refuse_generator(name: str, result: object) -> NoReturn:
    """Raise the error of every engine for a generator as a result: Ray would take its items as several results."""
    problem = TypeError("cannot pickle 'generator' object")
    raise exceptions.SerializationError(unsendable.explain_result(result, f"the result of `{name}`", problem))


def _split(name: str, count: int, result: Any) -> tuple[object, ...] | None:
    """Return the results of a task or call, one for each return; None if it has none."""
    try:
        results = tuple(result) if count else ()
    except TypeError:
        raise ValueError(
            f"Task `{name}` has num_returns={count} but returned {result!r}. Return exactly {count} values."
        ) from None
    if len(results) != count:
        raise ValueError(
            f"Task `{name}` has num_returns={count} but returned {len(results)} values. Return exactly {count}."
        )
    return results or None


class _Explaining:
    """A block around the user's code, which turns its exceptions into those that the caller sees.

    It is a class, because a generator-based context manager would not let a StopIteration through.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        try:
            if error is not None:
                raise_for_caller(self._name, error)
        finally:
            finish()


has_news = False
"""Whether this worker has unsent notes, which the driver may read as soon as it has the result."""

is_exiting = False
"""Whether the actor of this worker has called `exit_actor`."""


def _send_nothing() -> None:
    """Send no notes: the process has not opened its side of a session yet."""


_send_news: Callable[[], None] = _send_nothing


def set_news(send: Callable[[], None]) -> None:
    """Set the function that sends this process's notes."""
    global _send_news  # noqa: PLW0603 (a process has one worker's notes)
    _send_news = send


def finish() -> None:
    """Send this worker's notes, if there are any."""
    # A function of this module: the code around the user's travels by value, with copies of the variables above.
    global has_news  # noqa: PLW0603 (a process has one worker's notes)
    if has_news:
        has_news = False
        _send_news()


def raise_for_caller(name: str, error: BaseException) -> NoReturn:
    """Raise the error that the caller sees for an exception of the user's code."""
    kind = type(error)
    if is_exiting or issubclass(kind, exceptions.ActorExit):
        ray.actor.exit_actor()
    failure: Any = error if issubclass(kind, _STOPS) else rules.wrap_error(name, error)
    if failure is error:
        raise error
    notes.note_failure(name, failure.cause)
    global has_news  # noqa: PLW0603 (see above)
    has_news = True
    try:
        encoded = values.encode(failure)
        is_sendable = len(encoded.data) + sum(view.nbytes for view in encoded.buffers) <= values.ERROR_BYTES
        sent: Any = values.decode(encoded.data, encoded.buffers, encoded.refs) if is_sendable else None
    except BaseException:  # the error cannot travel, and is replaced
        sent = None
    if sent is None:
        sent = values.decode(values.encode_error(failure))
    sent = sent.as_instanceof_cause()
    sent.__dict__[_RAISED] = _Kind(type(failure.cause))
    raise sent from None


_RAISED = "_hocket_raised"
"""The attribute of an error, in the worker that raised it, that holds the original error's class."""


class _Kind:
    """A holder of a class that must not leave its process: its pickle is None."""

    def __init__(self, kind: type) -> None:
        self.kind = kind

    def __reduce__(self) -> tuple[object, ...]:
        return type(None), ()


class _Retried(type):
    """The metaclass of classes that stand for the classes of ``retry_exceptions``. Ray compares the class of the error
    that leaves the task. That differs from the original's if the original cannot travel, or if its class forbids
    subclasses."""

    kinds: tuple[type[BaseException], ...]

    def __instancecheck__(cls, error: object) -> bool:
        raised = getattr(error, _RAISED, None)
        return issubclass(type(error) if raised is None else raised.kind, cls)

    def __subclasscheck__(cls, kind: type) -> bool:
        return issubclass(kind, cls.kinds)


def build_retried(kinds: tuple[type[BaseException], ...]) -> type[BaseException]:
    """Return a class that stands for several classes of exceptions in Ray's comparison."""
    return cast("type[BaseException]", _Retried("Retried", (Exception,), {"kinds": kinds}))


# --- actors -----------------------------------------------------------------------------------------------------------


def rename_self(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return keyword arguments as a shell takes them, in the same order."""
    return {SELF if name == "self" else name: value for name, value in kwargs.items()} if "self" in kwargs else kwargs


def _read_keywords(kwargs: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """Return the user's keyword arguments, and the number of results, of the keyword arguments of a shell's method."""
    count = kwargs.pop(RETURNS, 1)
    if SELF in kwargs:
        kwargs = {"self" if name == SELF else name: value for name, value in kwargs.items()}
    return kwargs, count


class Shell:
    """The base of the classes that Ray uses for actors. `build_class` makes its subclasses."""

    __hocket_code__: ClassVar[Code]
    __hocket_options__: ClassVar[records.ActorOptions]

    def __init__(self, *args: object, **kwargs: object) -> None:
        global current_options  # noqa: PLW0603 (a process has one actor)
        current_options = self.__hocket_options__
        with _Explaining(f"{self.__hocket_options__.class_name}.__init__"):
            self.__hocket_instance__ = self.__hocket_code__.load()(*args, **_read_keywords(kwargs)[0])


def _format_instance(shell: Any) -> str:
    try:
        return repr(shell.__hocket_instance__)
    except Exception:  # Ray also calls this after the constructor raised, and an error would end the process
        return f"{shell.__hocket_options__.class_name}()"


async def _wait() -> None:
    """Do nothing, as a coroutine."""


current_options: records.ActorOptions | None = None
"""The options of the actor in this process; None if it has none."""


def build_class(code: Code, cls: type, options: records.ActorOptions) -> type:
    """Return the class that Ray uses instead of the user's."""
    members: dict[str, object] = {
        name: _build_method(name, inspect.getattr_static(cls, name), f"{options.class_name}.{name}")
        for name, _ in options.methods
    }
    members |= {"__hocket_code__": code, "__hocket_options__": options, CALL_FUNCTION: _build_caller(options)}
    if (
        getattr(cls, "__repr__", None) is not object.__repr__
    ):  # Ray then uses this text for the actor instead of the class's name
        members["__repr__"] = _format_instance
    if (
        options.is_async
    ):  # Ray looks for a coroutine among the methods, but ignores those with names that begin with two underscores
        members["__hocket_wait__"] = _wait
    if hasattr(cls, "__ray_shutdown__"):
        members["__ray_shutdown__"] = lambda self: self.__hocket_instance__.__ray_shutdown__()
    return type(options.class_name, (Shell,), members)


def _build_method(name: str, function: object, label: str) -> Callable[..., object]:
    if isinstance(function, staticmethod | classmethod):
        function = function.__func__

    def call(self: Any, *args: object, **kwargs: Any) -> Any:
        kwargs, count = _read_keywords(kwargs)
        try:
            return _hand_over(label, count, methods.get_method(self.__hocket_instance__, name)(*args, **kwargs))
        except BaseException as error:  # the caller must see any error of the user's code
            raise_for_caller(label, error)
        finally:
            finish()

    def generate(self: Any, *args: Any, **kwargs: Any) -> object:
        kwargs, _ = _read_keywords(kwargs)
        with _Explaining(label):
            items = methods.get_method(self.__hocket_instance__, name)(*args, **kwargs)
            for item in _number_items(items):  # noqa: UP028 (the same)
                yield item

    async def await_call(self: Any, *args: Any, **kwargs: Any) -> object:
        kwargs, count = _read_keywords(kwargs)
        with _Explaining(label):
            return _hand_over(label, count, await methods.get_method(self.__hocket_instance__, name)(*args, **kwargs))

    async def generate_async(self: Any, *args: Any, **kwargs: Any) -> AsyncIterator[object]:
        kwargs, _ = _read_keywords(kwargs)
        with _Explaining(label):
            async for item in methods.get_method(self.__hocket_instance__, name)(*args, **kwargs):
                yield item

    chosen: Callable[..., object] = call
    if inspect.isgeneratorfunction(function):
        chosen = generate
    elif inspect.isasyncgenfunction(function):
        chosen = generate_async
    elif inspect.iscoroutinefunction(function):
        chosen = await_call
    chosen.__name__ = chosen.__qualname__ = name
    return chosen


def _build_caller(options: records.ActorOptions) -> Callable[..., object]:
    label = f"{options.class_name}.__ray_call__"

    def call_function(self: Any, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> object:
        kwargs, count = _read_keywords(kwargs)
        with _Explaining(label):
            return _hand_over(label, count, function(self.__hocket_instance__, *args, **kwargs))

    async def call_and_await(self: Any, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> object:
        kwargs, count = _read_keywords(kwargs)
        with _Explaining(label):
            result = function(self.__hocket_instance__, *args, **kwargs)
            return _hand_over(label, count, await result if inspect.iscoroutine(result) else result)

    return call_and_await if options.is_async else call_function


def _hand_over(label: str, count: int, result: Any) -> object:
    """Return the value that a shell's method returns to Ray, from the user's result and the number of results."""
    if count == records.STREAMING:
        return _give_items(label, result)
    if count == 1 and type(result) is types.GeneratorType:
        _refuse_generator(label, result)
    return result


def _give_items(label: str, items: Iterable[object]) -> Iterator[object]:
    with _Explaining(label):
        yield from _number_items(items)


def _number_items(items: Iterable[object]) -> Iterator[object]:
    """Yield the items of a generator, and note for this thread the index of the current one: Ray encodes each item
    before it takes the next."""
    for index, item in enumerate(items):
        _sending.index = index
        try:
            yield item
        finally:
            _sending.index = None


def explain_results() -> None:
    """Have Ray's encoder in this worker name the part of a value that cannot be encoded. Ray pickles a result after the
    user's code has returned, and its own error has the reason but not the part."""
    context = ray_internals.get_serializer()
    encode = context.serialize
    if getattr(encode, "explains", False):
        return

    def serialize(value: object) -> object:
        try:
            return encode(value)
        except (ray.exceptions.RayError, exceptions.HocketError):
            raise
        except Exception as error:
            if pickling.can_travel(value):
                raise
            index = getattr(_sending, "index", None)
            kind = "the result" if index is None else f"item {index}"
            what = f"{kind} of `{ray.get_runtime_context().get_task_name()}`"
            raise exceptions.SerializationError(unsendable.explain_result(value, what, error)) from None

    serialize.explains = True  # type: ignore[attr-defined]
    context.serialize = serialize
