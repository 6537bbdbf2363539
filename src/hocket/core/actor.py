"""Actors: objects in worker processes, their classes, handles and methods."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import time
import types
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Concatenate, NoReturn, ParamSpec, TypeVar, Unpack, overload

from hocket import exceptions, keywords
from hocket._base import texts
from hocket.core import dag, environments, generators, options, placement, remote_function, session, typed
from hocket.engine import contract, values
from hocket.kernel import records

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")

_METHOD_OPTIONS = "__hocket_method_options__"

_SPECIAL_METHODS = ("__ray_ready__", "__ray_call__", "__ray_terminate__")
"""Methods of every actor: return when it is built, run a function on it, and end it after its pending calls."""

_NAME_SECONDS = 0.001
"""How long to wait before the next look for an actor that another process is just creating. A guess."""


@overload
def method(function: Callable[Concatenate[S, P], T], /) -> typed.Method[S, P, T]: ...
@overload
def method(*, num_returns: object, **given: Unpack[typed.MethodOptions]) -> Callable[[Callable[..., Any]], Any]: ...
@overload
def method(
    **given: Unpack[typed.MethodOptions],
) -> Callable[[Callable[Concatenate[S, P], T]], typed.Method[S, P, T]]: ...
def method(*functions: object, **given: object) -> Any:
    """Give a method of an actor class its default options. Without options, ``@method`` is for type checkers: see
    `TypedActor`.

    Args:
        *functions: The method; by decoration.
        **given: ``num_returns``: how many references a call returns (default 1, or as many as a generator yields).
            ``concurrency_group``: which threads run the method. ``max_task_retries``, ``retry_exceptions``: when a call
            gets another attempt.

    Example:
        >>> import hocket
        >>> @hocket.remote
        ... class Splitter:
        ...     @hocket.method(num_returns=2)
        ...     def split(self, word):
        ...         return word[:1], word[1:]
        >>> head, tail = Splitter.remote().split.remote("hocket")
        >>> hocket.get([head, tail])
        ['h', 'ocket']
    """
    if len(functions) == 1 and callable(functions[0]) and not given:
        return functions[0]
    if functions or not given:
        raise ValueError(
            "@hocket.method is used either without parentheses or with keywords, such as "
            f"@hocket.method(num_returns=2); received {functions!r} and {given!r}."
        )
    options.validate(given, options.METHOD_OPTIONS, "@hocket.method")

    def mark(function: Callable[..., object]) -> Callable[..., Any]:
        setattr(function, _METHOD_OPTIONS, given)
        return function

    return mark


class ActorClassInheritanceException(TypeError):  # noqa: N818 (Ray's name)
    """A class inherits from a remote class."""


class ActorClass:
    """A class with instances in worker processes. `hocket.remote` makes it."""

    def __init__(self, cls: type, given: dict[str, Any]) -> None:
        options.validate(given, options.ACTOR_OPTIONS, f"actor class `{cls.__name__}`")
        if inspect.iscoroutinefunction(inspect.getattr_static(cls, "__init__")):
            raise TypeError(
                f"`{cls.__name__}.__init__` is a coroutine function, and a constructor cannot be awaited. Write `def "
                "__init__`: in an asynchronous actor it runs on the event loop and may call asyncio.create_task; "
                "await in a method."
            )
        _refuse_remote_methods(cls)
        self._take(cls, given)
        _ = self._signature, self._record  # each raises if the class is wrong
        self.__doc__ = cls.__doc__

    def _take(self, cls: type, given: dict[str, Any]) -> None:
        self._cls = cls
        self._given = given
        self._names_nodes = placement.names_nodes(given)
        self._needs_ray = environments.check_supported("runtime_env", given.get("runtime_env") or {})
        self._exported: contract.RemoteFunction | None = None
        self.__name__ = cls.__name__
        self.__module__ = cls.__module__

    @functools.cached_property
    def _signature(self) -> remote_function.Signature:
        constructor = inspect.getattr_static(self._cls, "__init__")
        return remote_function.Signature(constructor, self._cls.__name__, skip_first=True)

    @functools.cached_property
    def _record(self) -> records.ActorOptions:
        """The options and methods."""
        # Made on first use: in a worker, a class that refers to itself has no methods at first.
        methods = tuple(
            (name, options.build_method_options(getattr(function, _METHOD_OPTIONS, {}), function, name))
            for name, function in inspect.getmembers(self._cls, callable)
            if not name.startswith("__") or name == "__call__"
        )
        return dataclasses.replace(options.build_actor_options(self._given, self._cls, ""), methods=methods)

    @exceptions.hide_frames_of
    def remote(self, /, *args: object, **kwargs: object) -> ActorHandle:
        """Build an actor and return a handle on it at once.

        Raises:
            TypeError: The arguments do not fit the constructor, or one cannot travel.
            ActorAlreadyExistsError: A living actor has the name.
            ActorUnschedulableError: The actor asks for more than the session can ever have.
        """
        engine = contract.current_engine or session.get_engine()
        record = self._record
        if not record.namespace:
            record = dataclasses.replace(record, namespace=engine.view.get_context().namespace)
        if engine.inherited is not None:
            record = dataclasses.replace(
                record,
                creation=options.inherit(record.creation, engine.inherited),
                lifetime_shape=options.inherit_shape(record.lifetime_shape, engine.inherited),
            )
        session.check_environment(engine, self._needs_ray)
        if self._names_nodes:
            placement.check_nodes(self._given, f"Actor `{record.class_name}`")
        if not self._given.get("get_if_exists"):
            return self._create(engine, args, kwargs, record)
        if not record.name:
            raise ValueError("get_if_exists=True needs a name: write .options(name='...', get_if_exists=True).")
        while True:
            known = engine.actors.find_actor(record.name, record.namespace)
            if known is not None:
                return ActorHandle(known.ref, known.options)
            try:
                return self._create(engine, args, kwargs, record)
            except exceptions.ActorAlreadyExistsError:  # another process was faster: take its actor
                time.sleep(_NAME_SECONDS)

    def _create(
        self, engine: contract.Engine, args: tuple[object, ...], kwargs: dict[str, object], record: records.ActorOptions
    ) -> ActorHandle:
        self._signature.check(args, kwargs)
        modules = remote_function.list_modules(self._cls)
        if self._exported is None or modules:
            engine.tasks.expect_work(modules)
        if self._exported is None:
            self._exported = values.encode_function(self._cls, f"actor class `{self._cls.__name__}`")
        info = engine.tasks.create_actor(self._exported, args, kwargs, record)
        return ActorHandle(info.ref, info.options, self._cls)

    def options(self, **given: Unpack[typed.ActorOptions]) -> ActorClass:
        """Return the same class with other options; this one stays as it is."""
        options.refuse_decorator_only(given, f"actor class `{self._cls.__name__}`")
        other = ActorClass(self._cls, {**self._given, **given})
        other._exported = self._exported
        return other

    def bind(self, /, *args: object, **kwargs: object) -> dag.ClassNode:
        """Return a node of a graph that creates this actor when the graph is executed (see `hocket.core.dag`).

        Raises:
            TypeError: The arguments do not fit the constructor.
            ValueError: An argument is an `InputNode`.
        """
        self._signature.check(args, kwargs)
        return dag.ClassNode(self, args, kwargs, self._given)

    def _remote(
        self, args: tuple[object, ...] = (), kwargs: dict[str, object] | None = None, **given: Any
    ) -> ActorHandle:
        return self.options(**given).remote(*args, **(kwargs or {}))

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the class: a constant, or a static or class method, which runs in this process."""
        if name.startswith("__") or "_cls" not in self.__dict__:
            raise AttributeError(name)
        found = getattr(self._cls, name)
        return UnboundMethod(self._cls, name, found) if isinstance(found, types.FunctionType) else found

    def __call__(self, *args: object, **kwargs: object) -> Any:
        name = self._cls.__name__
        raise TypeError(f"Actors cannot be instantiated directly. Instead of {name}() write {name}.remote().")

    def __repr__(self) -> str:
        return remote_function.describe("ActorClass", self._cls.__qualname__, self._given)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *(name for name in dir(self._cls) if not name.startswith("_"))})

    def __mro_entries__(self, bases: tuple[object, ...]) -> tuple[type, ...]:
        raise ActorClassInheritanceException(
            f"Inheriting from the actor class `{self._cls.__name__}` is not supported. Inherit from the plain class, "
            "and put @hocket.remote on the subclass only."
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_class, (self._cls, self._given)


def _refuse_remote_methods(cls: type) -> None:
    """Raise TypeError if `hocket.remote` decorates a method: it would then be no method of the actor."""
    for parent in cls.__mro__:
        for name, value in vars(parent).items():
            if not isinstance(value, remote_function.RemoteFunction):
                continue
            if value._function.__qualname__ == f"{parent.__qualname__}.{name}":
                raise TypeError(
                    f"The method `{parent.__name__}.{name}` is decorated with @hocket.remote, and so is its class "
                    f"`{cls.__name__}`, whose methods are remote already. Remove @hocket.remote from the method; for "
                    "options use @hocket.method(num_returns=2)."
                )


class UnboundMethod:
    """A method as an attribute of an actor class: it takes any object as ``self``, but has no ``remote``."""

    def __init__(self, cls: type, name: str, function: Callable[..., object]) -> None:
        functools.update_wrapper(self, function)
        self._cls = cls
        self._name = name
        self._function = function

    def __call__(self, *args: object, **kwargs: object) -> object:
        return self._function(*args, **kwargs)

    def __getattr__(self, name: str) -> NoReturn:
        if name in ("remote", "options", "bind"):
            raise AttributeError(f"`{self._cls.__name__}.{self._name}` is a method. {explain_unbound(self)}")
        raise AttributeError(f"'function' object has no attribute {name!r}")

    def __repr__(self) -> str:
        return repr(self._function)

    def __reduce__(self) -> tuple[object, ...]:
        return getattr, (self._cls, self._name)


def explain_unbound(method: UnboundMethod) -> str:
    """Return the advice for a remote call of a method on an actor class."""
    name = method._cls.__name__
    actor = name[:1].lower()
    return f"Build an actor first: {actor} = {name}.remote(...); {actor}.{method._name}.remote(...)."


def _rebuild_class(cls: type, given: dict[str, object]) -> ActorClass:
    """Return an actor class from its pickle."""
    # The class may still lack its methods, because they may refer to this very object.
    rebuilt = ActorClass.__new__(ActorClass)
    rebuilt._take(cls, given)
    return rebuilt


def exit_actor() -> NoReturn:
    """End the actor that runs the calling method, after its ``__ray_shutdown__`` hook and its exit functions.

    This call and the calls after it fail with `ActorDiedError`; the actor is not built again. The actor ends even if
    the method catches the exception. A thread or an asyncio task in the background may call this, too.

    Raises:
        TypeError: The calling code does not run in an actor.
    """
    engine = session.get_engine()
    if engine.view.get_context().actor_id is None:
        raise TypeError("exit_actor() works only inside a method of an actor. Elsewhere use hocket.kill(actor).")
    engine.actors.request_exit()
    raise exceptions.ActorExit


class ActorHandle:
    """A handle on an actor. ``handle.method.remote(...)`` calls a method.

    A handle can be passed to tasks and other actors. When the last handle is gone, the actor finishes its calls and
    ends.
    """

    def __init__(self, ref: contract.ObjectRef[None], record: records.ActorOptions, cls: type | None = None) -> None:
        self._ref = ref
        self._record = record
        self._cls = cls
        self._methods = dict(record.methods)

    def __getattr__(self, name: str) -> ActorMethod:
        methods = self.__dict__.get("_methods")
        if methods is None:
            raise AttributeError(name)
        name = str.__str__(name)  # `getattr` takes members of an enumeration, too
        if name in methods:
            found = ActorMethod(self._ref, self._cls, name, self._record, methods[name])
        elif name in _SPECIAL_METHODS:
            found = ActorMethod(self._ref, None, name, self._record, records.MethodOptions())
        elif name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        else:
            raise AttributeError(self._explain_missing(name))
        self.__dict__[name] = found
        return found

    def _explain_missing(self, name: str) -> str:
        """Return the error message for a name that is no method."""
        known = sorted(known for known in self._methods if not known.startswith("_"))
        text = f"Actor class `{self._record.class_name}` has no method {name!r}. It has {known}."
        constructor = getattr(self._cls, "__init__", None)
        stored: tuple[str, ...] = getattr(getattr(constructor, "__code__", None), "co_names", ())
        if name in stored or (self._cls is not None and hasattr(self._cls, name)):
            return f"{text} An attribute of an actor cannot be read from outside: write a method that returns it."
        question = keywords.suggest(name, known)
        return text + (question or " To read an attribute of an actor, write a method that returns it.")

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._methods, *_SPECIAL_METHODS})

    @property
    def _actor_id(self) -> contract.Id:
        return contract.Id(self._ref.hex())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ActorHandle) and self._ref is other._ref

    def __hash__(self) -> int:
        return hash(self._ref)

    def __repr__(self) -> str:
        return f"Actor({texts.show_name(self._record.class_name)}, {self._ref.hex()})"

    def __reduce__(self) -> tuple[Any, ...]:
        return ActorHandle, (self._ref, self._record)


class ActorMethod:
    """One method of one actor. It holds the actor's reference, because its handle would make a cycle."""

    __slots__ = (
        *("_actor", "_cls", "_given", "_is_dynamic", "_is_limited", "_method", "_name", "_options", "_ref"),
        "_signature",
    )

    def __init__(
        self,
        ref: contract.ObjectRef[None],
        cls: type | None,
        name: str,
        actor: records.ActorOptions,
        method: records.MethodOptions,
        given: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        self._ref = ref
        self._cls = cls
        self._name = name
        self._actor = actor
        self._method = method
        self._given = given
        self._is_limited = actor.max_pending_calls >= 0
        label = f"{actor.class_name}.{name}"
        self._options = options.build_call_options(method, actor, label, given)
        function = inspect.getattr_static(cls, name, None) if cls is not None else None
        returns = given.get("num_returns")
        #: Whether the method returns the references to all its items together.
        self._is_dynamic = method.is_dynamic if returns is None else returns == "dynamic"
        is_static = isinstance(function, staticmethod)
        if isinstance(function, staticmethod | classmethod):
            function = function.__func__
        self._signature = (
            remote_function.Signature(function, label, skip_first=not is_static) if function is not None else None
        )

    def remote(self, /, *args: object, **kwargs: object) -> Any:
        """Start a call; return at once one `ObjectRef`, a list of them, a generator or None, by ``num_returns``.

        Raises:
            TypeError: The arguments do not fit the method, or one cannot travel.
            PendingCallsLimitExceeded: The actor has ``max_pending_calls`` unanswered calls of this caller.
        """
        signature = self._signature
        if signature is not None and (args or kwargs or not signature.takes_nothing):
            try:
                signature.check(args, kwargs)
            except TypeError as error:
                exceptions.hide_frames(error, TypeError)
                raise
        ref = self._ref
        name = self._name
        if self._is_dynamic:
            retries = bool(self._options.retry_exceptions)
            name, args = "__ray_call__", (generators.call_and_collect, name, self._options.name, retries, *args)
        try:
            if self._is_limited:
                ref._engine.actors.check_pending(ref)
            refs = ref._engine.tasks.submit_call(ref, name, args, kwargs, self._options)
        except (exceptions.HocketError, KeyboardInterrupt) as error:
            exceptions.hide_frames(error)
            raise
        returns = self._options.num_returns
        return refs[0] if returns == 1 else generators.wrap(refs, returns)

    def bind(self, /, *args: object, **kwargs: object) -> dag.ClassMethodNode | tuple[dag.DAGNode, ...]:
        """Return a node of a graph that calls this method when the graph is executed. With ``num_returns`` above 1,
        return a node for each return.
        """
        if self._signature is not None:
            self._signature.check(args, kwargs)
        return dag.bind_method(self._name, self, self._options.num_returns, args, kwargs)

    @overload
    def options(self, *, num_returns: Any, **given: Unpack[typed.MethodOptions]) -> ActorMethod: ...
    @overload
    def options(self, **given: Unpack[typed.MethodOptions]) -> ActorMethod: ...
    def options(self, **given: object) -> ActorMethod:
        """Return the same method with other options: the options of `method`, and ``name``."""
        options.validate(given, options.METHOD_OPTIONS, f"method `{self._options.name}`")
        return ActorMethod(self._ref, self._cls, self._name, self._actor, self._method, {**self._given, **given})

    def _remote(self, args: tuple[object, ...] = (), kwargs: dict[str, object] | None = None, **given: Any) -> Any:
        return self.options(**given).remote(*args, **(kwargs or {}))

    def __repr__(self) -> str:
        signature = "(...)" if self._signature is None else str(self._signature)
        return f"ActorMethod({texts.show_name(f'{self._actor.class_name}.{self._name}{signature}')})"

    def __call__(self, *args: object, **kwargs: object) -> object:
        raise TypeError(
            f"Actor methods cannot be called directly. Instead of actor.{self._name}(...) write "
            f"actor.{self._name}.remote(...)."
        )
