"""The frame around the user's code in Ray's workers.

A remote function travels as the pickle that `hocket.engine.values` made of it, and its large arrays in Ray's object
store, so that it captures the same things at the same moment as on every engine. An actor is a *shell*: a class made
for Ray that holds an instance of the user's class, with a method of its own for each of the user's. What the user's
code raises leaves as our `TaskError`.
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
"""The method of a shell that does what ``__ray_call__`` does on an actor: Ray's own would run on the shell."""

RETURNS = "__hocket_returns__"
"""The keyword argument that says in a call of a shell how many values it is to return, unless that is one: Ray does not
tell it."""

_STOPS = (KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError, ray.exceptions.AsyncioActorExit)
"""How Ray stops what runs: these pass as they are."""


_sending = threading.local()


class Code:
    """A function or class on its way to workers.

    Args:
        function: What travels.
        buffers: Ray's reference on the memory of its large arrays; None if there is none.
        home: A function that opens a worker's side of the session, and what it is called with.
    """

    def __init__(self, function: contract.RemoteFunction, buffers: Any, home: Any) -> None:
        self._blob = function.blob
        #: The references in its closure: Ray has to see them to count them.
        self._captured = list(function.captured)
        self._buffers = buffers
        self._home = home
        self._value: object = None

    def load(self) -> Any:
        """Return the function or class; the first time in a process, open its side of the session and unpickle it."""
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
    """Return the function that Ray runs in the place of the user's; for a generator one, which Ray makes several
    results of."""
    name, count = options.name, options.num_returns

    def run(*args: object, **kwargs: Any) -> Any:
        try:
            result = code.load()(*args, **kwargs)
            if type(result) is types.GeneratorType:
                _refuse_generator(name, result)
            return result
        except BaseException as error:  # whatever the user's code raises is the caller's to see
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
        with _Explaining(name):  # as a whole: Ray would keep the first error of a generator that it tries again
            taken = _split(name, count, itertools.islice(code.load()(*args, **kwargs), count))
            return taken[0] if taken is not None and count == 1 else taken

    chosen = run if count == 1 else run_and_split
    if count == records.STREAMING or (is_generator and count):
        chosen = run_and_take if count > 0 and options.retry_exceptions else run_generator
    chosen.__name__ = chosen.__qualname__ = name
    return chosen


def build_failure(error: BaseException, options: records.TaskOptions) -> Callable[..., object]:
    """Return a function that raises, for Ray to run in the place of one that cannot."""

    def fail() -> Any:
        raise error

    def fail_as_generator() -> object:
        yield from fail()

    chosen = fail_as_generator if options.num_returns == records.STREAMING else fail
    chosen.__name__ = chosen.__qualname__ = options.name
    return chosen


def _refuse_generator(name: str, result: object) -> NoReturn:
    """Raise what every engine does where a generator is a result: Ray would take its items for several results."""
    problem = TypeError("cannot pickle 'generator' object")
    raise exceptions.SerializationError(unsendable.explain_result(result, f"the result of `{name}`", problem))


def _split(name: str, count: int, result: Any) -> tuple[object, ...] | None:
    """Return the results of a task or call with several returns, one for each."""
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
    """Around the user's code: what it raises leaves as the caller shall see it.

    A generator would not let a StopIteration through.
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
"""Whether this worker has noted something that the driver may ask for as soon as it has the result."""

is_exiting = False
"""Whether the actor of this worker has asked for its end."""


def _send_nothing() -> None:
    """The messages of a process before it opens its side of a session."""


_send_news: Callable[[], None] = _send_nothing


def set_news(send: Callable[[], None]) -> None:
    """Say how this process sends what it has noted."""
    global _send_news  # noqa: PLW0603 (a process has one worker's notes)
    _send_news = send


def finish() -> None:
    """Tell it. What runs in the place of the user's code travels by value, and would find copies of the variables
    above."""
    global has_news  # noqa: PLW0603 (a process has one worker's notes)
    if has_news:
        has_news = False
        _send_news()


def raise_for_caller(name: str, error: BaseException) -> NoReturn:
    """Raise what the caller sees of an exception of the user's code."""
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
    except BaseException:  # it cannot travel, and is replaced
        sent = None
    if sent is None:
        sent = values.decode(values.encode_error(failure))
    sent = sent.as_instanceof_cause()
    sent.__dict__[_RAISED] = _Kind(type(failure.cause))
    raise sent from None


_RAISED = "_hocket_raised"
"""The attribute of an error that has the class of what was raised, in the worker where it was."""


class _Kind:
    """A class that stays in its process: elsewhere there is None."""

    def __init__(self, kind: type) -> None:
        self.kind = kind

    def __reduce__(self) -> tuple[object, ...]:
        return type(None), ()


class _Retried(type):
    """Makes classes that stand for those of ``retry_exceptions``. Ray compares the error that leaves the task, which is
    of another class where what was raised cannot travel, or where its class lets nobody inherit."""

    kinds: tuple[type[BaseException], ...]

    def __instancecheck__(cls, error: object) -> bool:
        raised = getattr(error, _RAISED, None)
        return issubclass(type(error) if raised is None else raised.kind, cls)

    def __subclasscheck__(cls, kind: type) -> bool:
        return issubclass(kind, cls.kinds)


def build_retried(kinds: tuple[type[BaseException], ...]) -> type[BaseException]:
    """Return a class that Ray takes for all of these."""
    return cast("type[BaseException]", _Retried("Retried", (Exception,), {"kinds": kinds}))


# --- actors -----------------------------------------------------------------------------------------------------------


class Shell:
    """The class of every actor, for Ray. Subclasses are made by `build_class`."""

    __hocket_code__: ClassVar[Code]
    __hocket_options__: ClassVar[records.ActorOptions]

    def __init__(self, *args: object, **kwargs: object) -> None:
        global current_options  # noqa: PLW0603 (a process has one actor)
        current_options = self.__hocket_options__
        with _Explaining(f"{self.__hocket_options__.class_name}.__init__"):
            self.__hocket_instance__ = self.__hocket_code__.load()(*args, **kwargs)


def _format_instance(shell: Any) -> str:
    try:
        return repr(shell.__hocket_instance__)
    except Exception:  # Ray also asks when the constructor has raised, and would end the process for an error
        return f"{shell.__hocket_options__.class_name}()"


async def _wait() -> None:
    """Do nothing, as a coroutine."""


current_options: records.ActorOptions | None = None
"""The options of the actor that lives in this process."""


def build_class(code: Code, cls: type, options: records.ActorOptions) -> type:
    """Return the class that Ray runs in the place of the user's."""
    members: dict[str, object] = {
        name: _build_method(name, inspect.getattr_static(cls, name), f"{options.class_name}.{name}")
        for name, _ in options.methods
    }
    members |= {"__hocket_code__": code, "__hocket_options__": options, CALL_FUNCTION: _build_caller(options)}
    if (
        getattr(cls, "__repr__", None) is not object.__repr__
    ):  # Ray then calls the actor so, wherever it would name the class
        members["__repr__"] = _format_instance
    if (
        options.is_async
    ):  # Ray looks for a coroutine among the methods, and the user's may be hidden behind two underscores
        members["__hocket_wait__"] = _wait
    if hasattr(cls, "__ray_shutdown__"):
        members["__ray_shutdown__"] = lambda self: self.__hocket_instance__.__ray_shutdown__()
    return type(options.class_name, (Shell,), members)


def _build_method(name: str, function: object, label: str) -> Callable[..., object]:
    if isinstance(function, staticmethod | classmethod):
        function = function.__func__

    def call(self: Any, *args: object, **kwargs: Any) -> Any:
        count = kwargs.pop(RETURNS, 1)
        try:
            return _hand_over(label, count, methods.get_method(self.__hocket_instance__, name)(*args, **kwargs))
        except BaseException as error:  # whatever the user's code raises is the caller's to see
            raise_for_caller(label, error)
        finally:
            finish()

    def generate(self: Any, *args: Any, **kwargs: Any) -> object:
        kwargs.pop(RETURNS, None)
        with _Explaining(label):
            items = methods.get_method(self.__hocket_instance__, name)(*args, **kwargs)
            for item in _number_items(items):  # noqa: UP028 (the same)
                yield item

    async def await_call(self: Any, *args: Any, **kwargs: Any) -> object:
        count = kwargs.pop(RETURNS, 1)
        with _Explaining(label):
            return _hand_over(label, count, await methods.get_method(self.__hocket_instance__, name)(*args, **kwargs))

    async def generate_async(self: Any, *args: Any, **kwargs: Any) -> AsyncIterator[object]:
        kwargs.pop(RETURNS, None)
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
        count = kwargs.pop(RETURNS, 1)
        with _Explaining(label):
            return _hand_over(label, count, function(self.__hocket_instance__, *args, **kwargs))

    async def call_and_await(self: Any, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> object:
        count = kwargs.pop(RETURNS, 1)
        with _Explaining(label):
            result = function(self.__hocket_instance__, *args, **kwargs)
            return _hand_over(label, count, await result if inspect.iscoroutine(result) else result)

    return call_and_await if options.is_async else call_function


def _hand_over(label: str, count: int, result: Any) -> object:
    """Return what a method gives to Ray for what the user's has returned, of which so many values are wanted."""
    if count == records.STREAMING:
        return _give_items(label, result)
    if count == 1 and type(result) is types.GeneratorType:
        _refuse_generator(label, result)
    return result


def _give_items(label: str, items: Iterable[object]) -> Iterator[object]:
    with _Explaining(label):
        yield from _number_items(items)


def _number_items(items: Iterable[object]) -> Iterator[object]:
    """Give the items of a generator, and note in this thread which of them is sent: Ray encodes each before it asks for
    the next one."""
    for index, item in enumerate(items):
        _sending.index = index
        try:
            yield item
        finally:
            _sending.index = None


def explain_results() -> None:
    """Have Ray's encoder in this worker say which part of a value cannot be encoded. Ray pickles a result after the
    user's code has returned, and its error has the reason but not the part."""
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
