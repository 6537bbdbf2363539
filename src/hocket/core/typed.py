"""The types of remote functions and actors, for mypy, pyright and editors. At run time there is only `TypedActor`.

A reference may stand for any argument, which no single signature can express. So each ``remote`` has several: the
function's own, which finds wrong arguments, and one for a reference in each of the first three positions, which does
not check the other arguments. A checker rejects references given by keyword; give them by position.

A checker cannot see that the methods of a class become remote. So an actor's methods accept anything, unless the class
inherits from `TypedActor`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    ParamSpec,
    Protocol,
    TypedDict,
    TypeVar,
    Unpack,
    final,
    overload,
)

if TYPE_CHECKING:
    from hocket.core import dag, generators
    from hocket.engine.contract import ObjectRef

P = ParamSpec("P")
S_contra = TypeVar("S_contra", contravariant=True)
S = TypeVar("S")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
A = TypeVar("A", bound="TypedMeta")


if TYPE_CHECKING:

    class _Placing(TypedDict, total=False):
        num_cpus: float | None
        num_gpus: float | None
        resources: Mapping[str, float] | None
        memory: float | None
        accelerator_type: str | None
        scheduling_strategy: object
        placement_group: object
        placement_group_bundle_index: int
        placement_group_capture_child_tasks: bool | None
        label_selector: Mapping[str, str] | None
        fallback_strategy: list[object] | None
        runtime_env: Mapping[str, object] | None
        name: str | None
        enable_task_events: bool
        enable_tensor_transport: object
        _labels: Mapping[str, str] | None
        _metadata: Mapping[str, object] | None

    class _Returning(TypedDict, total=False):
        retry_exceptions: bool | Sequence[type[BaseException]] | None
        _generator_backpressure_num_objects: int | None
        _num_objects_per_yield: int | None

    class _OfTasks(TypedDict, total=False):
        max_retries: int | None

    class _OfActors(TypedDict, total=False):
        namespace: str | None
        lifetime: str | None
        max_concurrency: int | None
        max_restarts: int | None
        max_task_retries: int | None
        max_pending_calls: int | None
        allow_out_of_order_execution: bool | None
        get_if_exists: bool

    class TaskOptions(_Placing, _Returning, _OfTasks, total=False):
        """The keywords of ``.options()`` of a remote function, besides ``num_returns``."""

    class ActorOptions(_Placing, _OfActors, total=False):
        """The keywords of ``.options()`` of an actor class."""

    class RemoteOptions(_Placing, _Returning, _OfTasks, _OfActors, total=False):
        """The keywords of `hocket.remote`, besides ``num_returns``."""

        max_calls: int | None
        concurrency_groups: object

    class MethodOptions(_Returning, total=False):
        """The keywords of `hocket.method` and of a method's ``.options()``, besides ``num_returns``."""

        max_task_retries: int | None
        concurrency_group: str | None
        name: str | None
        enable_task_events: bool
        tensor_transport: object

    class TypedMeta(type):
        """A mark of `TypedActor` for type checkers; at run time it is `type`."""
else:
    TypedMeta = type


class TypedActor(metaclass=TypedMeta):
    """A base class for actors whose calls a type checker checks. Decorate each method with `hocket.method`.

    An actor works without it, too, but a type checker then accepts any call of its methods.

    Example:
        >>> import hocket
        >>> @hocket.remote
        ... class Counter(hocket.TypedActor):
        ...     def __init__(self, start: int) -> None:
        ...         self.total = start
        ...
        ...     @hocket.method
        ...     def add(self, amount: int) -> int:
        ...         self.total += amount
        ...         return self.total
        >>> counter = Counter.remote(3)  # Counter.remote("3") is an error for a type checker
        >>> hocket.get(counter.add.remote(4))  # and the result is an int
        7
    """

    if TYPE_CHECKING:

        @classmethod
        def remote(cls: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
            """Build an actor and return a handle on it at once."""

        @classmethod
        def options(cls: Callable[P, T], **given: Unpack[ActorOptions]) -> TypedClass[P, T]:
            """Return the same class with other options."""


if TYPE_CHECKING:

    class TypedClass(Protocol[P, T_co]):
        """The result of `TypedActor.options`."""

        def remote(self, *args: P.args, **kwargs: P.kwargs) -> T_co:
            """Build an actor and return a handle on it at once."""

    @final
    class Nothing:
        """A type that no function returns: the result that a checker infers when it treats a class as a function."""

    class GeneratorFunction(Protocol[P, T_co]):
        """A remote generator function."""

        @overload
        def remote(self, *args: P.args, **kwargs: P.kwargs) -> generators.ObjectRefGenerator[T_co]: ...
        @overload
        def remote(self, _1: ObjectRef[Any], /, *args: Any, **kwargs: Any) -> generators.ObjectRefGenerator[T_co]: ...
        @overload
        def remote(
            self, _1: Any, _2: ObjectRef[Any], /, *args: Any, **kwargs: Any
        ) -> generators.ObjectRefGenerator[T_co]: ...
        @overload
        def remote(
            self, _1: Any, _2: Any, _3: ObjectRef[Any], /, *args: Any, **kwargs: Any
        ) -> generators.ObjectRefGenerator[T_co]: ...
        @overload
        def options(self, *, num_returns: Any, **given: Unpack[TaskOptions]) -> Any: ...
        @overload
        def options(self, **given: Unpack[TaskOptions]) -> GeneratorFunction[P, T_co]: ...

        def bind(self, *args: object, **kwargs: object) -> dag.FunctionNode:
            """Return a node of a graph that calls this function."""

        def bare(self, *args: P.args, **kwargs: P.kwargs) -> Iterator[T_co]:
            """Run the function in this process."""

    class Method(Protocol[S_contra, P, T_co]):
        """A method of a `TypedActor`: it has ``remote`` on a handle, and is an ordinary method in the class."""

        @overload
        def __get__(self, instance: None, owner: object) -> Callable[Concatenate[Any, P], T_co]: ...
        @overload
        def __get__(self, instance: object, owner: object) -> BoundMethod[P, T_co]: ...
        def __call__(self, instance: S_contra, /, *args: P.args, **kwargs: P.kwargs) -> T_co:
            """Call it as an ordinary function."""

    class BoundMethod(Protocol[P, T_co]):
        """A method of a `TypedActor`, on a handle or on ``self``."""

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T_co:
            """Call it in this process, which works inside the class only."""

        @overload
        def remote(self: BoundMethod[..., Nothing], *args: Any, **kwargs: Any) -> Any: ...
        @overload
        def remote(self: BoundMethod[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> ObjectRef[T]: ...
        @overload
        def remote(  # type: ignore[overload-overlap]
            self: BoundMethod[P, Iterator[T] | AsyncIterator[T]], *args: P.args, **kwargs: P.kwargs
        ) -> generators.ObjectRefGenerator[T]: ...
        @overload
        def remote(self, *args: P.args, **kwargs: P.kwargs) -> ObjectRef[T_co]: ...
        @overload
        def remote(self, _1: ObjectRef[Any], /, *args: Any, **kwargs: Any) -> ObjectRef[T_co]: ...
        @overload
        def remote(self, _1: Any, _2: ObjectRef[Any], /, *args: Any, **kwargs: Any) -> ObjectRef[T_co]: ...
        @overload
        def remote(self, _1: Any, _2: Any, _3: ObjectRef[Any], /, *args: Any, **kwargs: Any) -> ObjectRef[T_co]: ...
        @overload
        def options(self, *, num_returns: Any, **given: Unpack[MethodOptions]) -> Any: ...
        @overload
        def options(self, **given: Unpack[MethodOptions]) -> BoundMethod[P, T_co]: ...

        def bind(self, *args: object, **kwargs: object) -> Any:
            """Return a node of a graph that calls this method."""
