"""The functions of the package `hocket` itself: `remote`, `get`, `wait`, `put` and so on."""

from __future__ import annotations

import inspect
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Never, ParamSpec, Protocol, TypeVar, Unpack, cast, overload

from hocket import exceptions
from hocket._base import texts
from hocket.core import actor as actors
from hocket.core import advice, context, generators, remote_function, session, typed
from hocket.engine import contract, undecodable

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A", bound=typed.TypedMeta)
W = TypeVar("W", bound="contract.ObjectRef[Any] | generators.ObjectRefGenerator[Any]")


class Decorator(Protocol):
    """The decorator that `hocket.remote` returns if it is called with options."""

    @overload
    def __call__(self, target: A, /) -> A: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, target: type[T], /) -> actors.ActorClass: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, target: Callable[..., typed.Nothing], /) -> remote_function.RemoteFunction[..., Any]: ...
    @overload
    def __call__(self, target: Callable[P, Iterator[T]], /) -> typed.GeneratorFunction[P, T]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, target: Callable[P, T], /) -> remote_function.RemoteFunction[P, T]: ...


@overload
def remote(target: A, /) -> A: ...  # type: ignore[overload-overlap]
@overload
def remote(target: type[T], /) -> actors.ActorClass: ...  # type: ignore[overload-overlap]
@overload
def remote(target: Callable[..., typed.Nothing], /) -> remote_function.RemoteFunction[..., Any]: ...
@overload
def remote(target: Callable[P, Iterator[T]], /) -> typed.GeneratorFunction[P, T]: ...  # type: ignore[overload-overlap]
@overload
def remote(target: Callable[P, T], /) -> remote_function.RemoteFunction[P, T]: ...
@overload
def remote(*, num_returns: object, **options: Unpack[typed.RemoteOptions]) -> Callable[[Any], Any]: ...
@overload
def remote(**options: Unpack[typed.RemoteOptions]) -> Decorator: ...
def remote(*targets: object, **options: object) -> Any:
    """Make a function or a class remote: ``@remote`` or ``@remote(num_cpus=2, ...)``.

    Args:
        *targets: The function or class; by decoration.
        **options: For both: ``num_cpus`` (default 1; an actor holds 0 while it lives), ``num_gpus``, ``resources``,
            ``name``, ``scheduling_strategy``, ``runtime_env``. For functions: ``num_returns`` (1), ``max_retries`` (3,
            after the death of a worker), ``retry_exceptions`` (False), ``max_calls``. For classes: ``namespace``,
            ``lifetime``, ``max_concurrency`` (1; 1,000 with coroutines), ``concurrency_groups``, ``max_restarts`` (0),
            ``max_task_retries`` (0), ``max_pending_calls``, ``get_if_exists``. The page docs/core.md explains each.

    Raises:
        ValueError: An option is unknown or breaks a rule.
        TypeError: An option has the wrong type, or the target is no function or class.

    Example:
        >>> import hocket
        >>> @hocket.remote
        ... def add(x, y):
        ...     return x + y
        >>> hocket.get(add.remote(add.remote(1, 2), 3))
        6
    """
    if targets and not options and len(targets) == 1:
        return _make_remote(targets[0], {})
    if targets or not options:
        raise AssertionError(
            "@hocket.remote is used either without parentheses or with keywords, such as @hocket.remote(num_cpus=2); "
            f"received {targets!r} and {options!r}."
        )
    return lambda target: _make_remote(target, options)


def _make_remote(target: Any, options: dict[str, object]) -> object:
    if isinstance(target, remote_function.RemoteFunction | actors.ActorClass):
        raise TypeError(
            f"`{getattr(target, '__name__', target)}` is remote already. Use .options(...) to change how it runs."
        )
    if isinstance(target, actors.ActorMethod | actors.UnboundMethod):
        raise TypeError(
            f"@hocket.remote takes a function or a class, but received {target!r}. {advice.suggest_call(target)}"
        )
    remote_function.raise_if_not_callable(target)
    if inspect.isclass(target):
        return actors.ActorClass(target, options)
    if inspect.iscoroutinefunction(target):
        raise ValueError(
            f"`{target.__name__}` is a coroutine function, and a remote function must be an ordinary one. Call "
            "asyncio.run(...) inside it, or make it a method of an actor."
        )
    if not hasattr(target, "__name__"):
        target.__name__ = type(target).__name__
    return remote_function.RemoteFunction(target, options)


def put(value: T) -> contract.ObjectRef[T]:
    """Store a value and return a reference to it.

    Large arrays go to shared memory, from which other processes read them without a copy.

    Raises:
        TypeError: The value is a reference already, or cannot travel (`SerializationError`).
        ObjectStoreFullError: There is no memory left.

    Example:
        >>> import hocket
        >>> hocket.get(hocket.put([1, 2]))
        [1, 2]
    """
    if issubclass(type(value), contract.ObjectRef):  # the value's own `__class__` may raise
        raise TypeError(
            f"hocket.put() takes a value, but received the reference {value!r}. Use the reference itself, or "
            "put([ref]) to store a list that holds it."
        )
    try:
        return session.get_engine().objects.put(value)
    except (exceptions.HocketError, KeyboardInterrupt) as error:
        exceptions.hide_frames(error)
        raise


@overload
def get(object_refs: contract.ObjectRef[T], *, timeout: float | None = None) -> T: ...
@overload
def get(object_refs: list[contract.ObjectRef[T]], *, timeout: float | None = None) -> list[T]: ...
@overload
def get(
    object_refs: generators.ObjectRefGenerator[T], *, timeout: float | None = None
) -> generators.ObjectRefGenerator[T]: ...
def get(object_refs: Any, *surplus: Any, timeout: float | None = None, **unknown: Any) -> Any:
    """Wait for a value, or for a list of values, and return it.

    The value belongs to the caller: arrays are writable, and no other process sees the changes.

    Args:
        object_refs: One reference, or a list of them (duplicates allowed).
        timeout: Seconds to wait at most; 0 only looks; None waits without end.

    Raises:
        GetTimeoutError: Not all values were there in time. The error is also a TimeoutError.
        TaskError: The task raised. The error is also an instance of the raised error's class.
        SessionClosedError: The reference's session is closed.
        ValueError: `object_refs` is neither a reference nor a list of references.
    """
    if surplus or unknown:
        raise TypeError(advice.explain_surplus("get", surplus, unknown, ("timeout",)))
    if type(object_refs) is contract.ObjectRef:
        if timeout is not None:
            _check_timeout(timeout)
        try:
            engine = contract.current_engine or session.get_open_engine()
            try:
                return engine.objects.get((object_refs,), timeout)[0]
            except Exception as error:
                _explain(engine, (object_refs,), error)
                raise
        except (exceptions.HocketError, KeyboardInterrupt) as error:
            exceptions.hide_frames(error)
            raise
    if isinstance(object_refs, generators.ObjectRefGenerator):  # as Ray does
        return object_refs
    if not isinstance(object_refs, list):
        raise ValueError(
            f"hocket.get() takes an ObjectRef or a list of them, but received {texts.safe_repr(object_refs)} of the "
            f"type {type(object_refs).__name__}. {advice.suggest(object_refs)}"
        )
    if not _REFERENCES_ONLY.issuperset(map(type, object_refs)):
        wrong = next(ref for ref in object_refs if type(ref) is not contract.ObjectRef)
        raise ValueError(
            f"hocket.get() takes an ObjectRef or a list of them, but the list holds {texts.safe_repr(wrong)} of the "
            f"type {type(wrong).__name__}. {advice.suggest_flat(wrong) or advice.suggest(wrong)}"
        )
    if timeout is not None:
        _check_timeout(timeout)
    # A reference implies a session. If that is closed, for example because a thread is late, this opens no new one.
    try:
        engine = session.get_open_engine() if object_refs else session.get_engine()
        try:
            return engine.objects.get(object_refs, timeout)
        except Exception as error:
            _explain(engine, object_refs, error)
            raise
    except (exceptions.HocketError, KeyboardInterrupt) as error:
        exceptions.hide_frames(error)
        raise


def _explain(engine: contract.Engine, refs: Sequence[contract.AnyRef], error: Exception) -> None:
    """Raise a better error than `get` has if a value has come but cannot be unpickled in this process."""
    if len(refs) > 1 and engine.unfetched is not None and not isinstance(error, exceptions.GetTimeoutError):
        engine.unfetched.note_asked(refs)
    if not isinstance(error, exceptions.HocketError) and undecodable.is_from_decoding(error):
        explained = undecodable.explain(_name_unopened(engine, refs), error)
        raise explained from explained.__cause__


def _name_unopened(engine: contract.Engine, refs: Sequence[contract.AnyRef]) -> str:
    """Return the name, for a message, of the first value that cannot be unpickled."""
    for ref in refs:
        try:
            engine.objects.get((ref,), 0)
        except Exception:  # noqa: BLE001 (a user's class raises it)
            found = engine.view.list_records("tasks", [("task_id", "=", ref.task_id())], 1)
            return f"The result of `{found[0]['name']}`" if found else f"The value of {ref!r}"
    return "A value"


def _check_timeout(timeout: float) -> None:
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise TypeError(
            f"timeout must be a number of seconds, or None to wait without end, but received {timeout!r} "
            f"({type(timeout).__name__})."
        )
    if not timeout >= 0:
        raise ValueError(f"timeout must be 0 or more seconds, or None to wait without end, but received {timeout!r}.")


def wait(
    refs: list[W],
    *surplus: Never,
    num_returns: int = 1,
    timeout: float | None = None,
    fetch_local: bool = True,
    **unknown: Never,
) -> tuple[list[W], list[W]]:
    """Wait until some of the objects have a value. An error counts as a value.

    Args:
        refs: References, without duplicates. A generator stands for its next item.
        num_returns: How many objects to wait for. Exactly so many are returned as ready, even if more are.
        timeout: Seconds to wait at most; then fewer may be ready. None waits without end.
        fetch_local: For Ray programs; it has no meaning on one machine.

    Returns:
        The ready references, and the rest; each in the order of `refs`.

    Raises:
        TypeError: `refs` is not a list of references.
        ValueError: There are duplicates, or `num_returns` does not lie between 1 and the number of references.
    """
    if surplus or unknown:
        raise TypeError(advice.explain_surplus("wait", surplus, unknown, ("num_returns", "timeout")))
    if not isinstance(refs, list):
        raise TypeError(
            f"hocket.wait() takes a list of ObjectRefs, but received {texts.name_kind(refs)}. Write "
            f"hocket.wait({'list(refs)' if isinstance(refs, Iterable) else '[ref]'})."
        )
    if not _REFERENCES_ONLY.issuperset(map(type, refs)):
        if all(type(ref) in (contract.ObjectRef, generators.ObjectRefGenerator) for ref in refs):
            return _wait_for_generators(refs, num_returns, timeout)
        wrong = next(ref for ref in refs if type(ref) not in (contract.ObjectRef, generators.ObjectRefGenerator))
        raise TypeError(
            f"hocket.wait() takes a list of ObjectRefs, but the list holds {wrong!r}. Pass the references "
            "that .remote() returned."
        )
    if len(set(refs)) != len(refs):
        raise ValueError(
            f"hocket.wait() takes distinct ObjectRefs, but {len(refs) - len(set(refs))} of the {len(refs)} are "
            "repetitions. Write hocket.wait(list(dict.fromkeys(refs)))."
        )
    if timeout is not None:
        _check_timeout(timeout)
    if not refs:
        return [], []
    if type(num_returns) is not int:
        raise TypeError(
            f"num_returns must be a whole number, but received {num_returns!r} ({type(num_returns).__name__})."
        )
    if not 1 <= num_returns <= len(refs):
        raise ValueError(
            f"num_returns must lie between 1 and the number of refs ({len(refs)}), but received {num_returns!r}."
        )
    try:
        there = session.get_open_engine().objects.wait(cast("list[contract.AnyRef]", refs), num_returns, timeout)
    except (exceptions.HocketError, KeyboardInterrupt) as error:
        exceptions.hide_frames(error)
        raise
    return list(itertools.compress(refs, there)), list(itertools.compress(refs, map(operator.not_, there)))


advice.hide_surplus(get)
advice.hide_surplus(wait)

_REFERENCES_ONLY = frozenset({contract.ObjectRef})


def _wait_for_generators(given: list[W], num_returns: int, timeout: float | None) -> tuple[list[W], list[W]]:
    heads: list[contract.AnyRef] = [
        one.head if isinstance(one, generators.ObjectRefGenerator) else one for one in given
    ]
    ready = set(wait(heads, num_returns=num_returns, timeout=timeout)[0])
    pairs = list(zip(given, heads, strict=True))
    return [one for one, head in pairs if head in ready], [one for one, head in pairs if head not in ready]


@exceptions.hide_frames_of
def cancel(
    ref: contract.ObjectRef[object] | generators.ObjectRefGenerator[object],
    *,
    force: bool = False,
    recursive: bool = True,
) -> None:
    """Stop the task that makes an object.

    `get` of the object then raises `TaskCancelledError`, which is a `TaskError`, too, if the task ran.

    A task that has not started never runs. A running task gets a KeyboardInterrupt. A finished task keeps its value. A
    call of an asynchronous actor is cancelled through asyncio. A running call of an ordinary actor can only look at
    `RuntimeContext.is_canceled`, and its result is dropped.

    Args:
        ref: The result of the task's `.remote()`.
        force: End the worker process instead of interrupting it.
        recursive: Also cancel the tasks and the calls on actors that the task submitted, and all that these submitted.

    Raises:
        TypeError: `ref` is no reference.
        ValueError: `ref` is from a call of an actor, and `force` is set.
    """
    if isinstance(ref, generators.ObjectRefGenerator):
        ref = ref.completed()
    if not isinstance(ref, contract.ObjectRef):
        raise TypeError(
            f"hocket.cancel() takes an ObjectRef, but received {texts.safe_repr(ref)}. To end an actor, use "
            "hocket.kill(actor)."
        )
    engine = session.get_open_engine()
    contract.check_current(ref)
    engine.tasks.cancel(ref, force=force, recursive=recursive)


@exceptions.hide_frames_of
def kill(actor: actors.ActorHandle | typed.TypedActor, *, no_restart: bool = True) -> None:
    """End an actor now, in the middle of its calls. Its pending calls fail with `ActorDiedError`.

    Args:
        actor: The actor's handle.
        no_restart: Whether the end is final. If False, the actor is built again as often as ``max_restarts`` allows.

    Raises:
        ValueError: `actor` is no actor handle.
    """
    if not isinstance(actor, actors.ActorHandle):
        raise ValueError(
            f"hocket.kill() takes an actor handle, but received {texts.safe_repr(actor)}. To stop a task, use "
            "hocket.cancel(ref)."
        )
    engine = session.get_open_engine()
    contract.check_current(actor._ref)
    engine.actors.kill_actor(actor._ref, no_restart=no_restart)


@exceptions.hide_frames_of
def get_actor(name: str, namespace: str | None = None) -> actors.ActorHandle:
    """Return a handle on the living actor with this name.

    Raises:
        ValueError: There is no such actor.
    """
    given: object = name
    if not isinstance(given, str):
        raise TypeError(f"name must be text, but received {texts.safe_repr(given)}. Write hocket.get_actor('counter').")
    if not name:
        raise ValueError(
            "Please supply a non-empty value to get_actor, such as the name given in .options(name='...')."
        )
    engine = session.get_engine()
    namespace = namespace or engine.view.get_context().namespace
    info = engine.actors.find_actor(name, namespace)
    if info is None:
        raise ValueError(
            f"Failed to look up actor with name {texts.safe_repr(name, 200)} in namespace {namespace!r}. Actors get "
            "names with .options(name='...'), and lose them when they end."
        )
    return actors.ActorHandle(info.ref, info.options)


@exceptions.hide_frames_of
def get_runtime_context() -> context.RuntimeContext:
    """Return the context of the calling code: ids, resources, names."""
    engine = session.get_engine()
    return context.RuntimeContext(engine.view.get_context(), engine)


@exceptions.hide_frames_of
def get_gpu_ids() -> list[Any]:
    """Return the GPUs that the calling task or actor may use, as Ray does.

    They are the names (text) in ``CUDA_VISIBLE_DEVICES`` at the time when the session was opened, or the GPUs' indices
    if it was not set.
    """
    return list(session.get_engine().view.get_context().gpu_ids)


@exceptions.hide_frames_of
def nodes() -> list[dict[str, Any]]:
    """Return a description of each node, with Ray's keys."""
    return session.get_open_engine().resources.list_nodes()


@exceptions.hide_frames_of
def cluster_resources() -> dict[str, float]:
    """Return the session's total amounts, by resource name."""
    return session.get_open_engine().resources.get_total_resources()


@exceptions.hide_frames_of
def available_resources() -> dict[str, float]:
    """Return the amounts that are free now, by resource name; a resource that is used up is left out."""
    return session.get_open_engine().resources.get_free_resources()


def error_info() -> list[exceptions.ErrorRecord]:
    """Return the failures of this session, oldest first: exceptions of tasks and deaths of workers.

    Without a session the list is empty.

    Example:
        >>> import hocket
        >>> ref = hocket.remote(lambda: 1 / 0).remote()
        >>> [(record.error_type, record.message) for record in hocket.error_info()]
        [('ZeroDivisionError', 'division by zero')]
    """
    engine = contract.current_engine
    return [] if engine is None else engine.view.list_errors()
