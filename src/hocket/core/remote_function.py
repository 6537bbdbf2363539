"""Remote functions: functions that run in worker processes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, Unpack, overload

from hocket import exceptions
from hocket._base import texts
from hocket.core import dag, environments, generators, options, placement, session, typed
from hocket.engine import contract, values
from hocket.kernel import records

_PACKAGE = __name__.partition(".")[0]

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class RemoteFunction(Generic[P, T_co]):
    """A function with calls that run in worker processes. `hocket.remote` makes it.

    The first `.remote()` captures the function, with the globals and closure variables that it uses.
    """

    def __init__(self, function: Callable[P, T_co], given: dict[str, Any]) -> None:
        options.validate(given, options.TASK_OPTIONS, f"remote function `{function.__name__}`")
        self._function = function
        self._given = given
        self._options: records.TaskOptions = options.build_task_options(given, function)
        self._names_nodes = placement.names_nodes(given)
        self._needs_ray = environments.check_supported("runtime_env", given.get("runtime_env") or {})
        self._signature = Signature(function, function.__name__)
        self._exported: contract.RemoteFunction | None = None
        self._modules = list_modules(function)
        itself: Any = self
        functools.update_wrapper(itself, function)

    # As in `typed`.
    @overload
    def remote(self, /, *args: P.args, **kwargs: P.kwargs) -> contract.ObjectRef[T_co]: ...
    @overload
    def remote(self, _1: contract.ObjectRef[object], /, *args: Any, **kwargs: Any) -> contract.ObjectRef[T_co]: ...
    @overload
    def remote(
        self, _1: object, _2: contract.ObjectRef[object], /, *args: Any, **kwargs: Any
    ) -> contract.ObjectRef[T_co]: ...
    @overload
    def remote(
        self, _1: object, _2: object, _3: contract.ObjectRef[object], /, *args: Any, **kwargs: Any
    ) -> contract.ObjectRef[T_co]: ...
    def remote(self, /, *args: Any, **kwargs: Any) -> Any:
        """Start a call and return at once.

        Returns:
            One `ObjectRef`; for ``num_returns`` of n > 1 a list of n; for 0 None; for a generator an
            `ObjectRefGenerator`.

        Raises:
            TypeError: The arguments do not fit the function's signature, or one cannot travel (`SerializationError`).
            TaskUnschedulableError: The task asks for more than the session can ever have.
        """
        if args or kwargs or not self._signature.takes_nothing:
            try:
                self._signature.check(args, kwargs)
            except TypeError as error:
                exceptions.hide_frames(error, TypeError)
                raise
        record = self._options
        try:
            engine = contract.current_engine or session.get_engine()
            exported = self._exported
            if exported is None or self._modules:
                engine.tasks.expect_work(self._modules)
            if exported is None:
                exported = self._exported = self._export()
            if engine.inherited is not None:
                record = options.inherit(record, engine.inherited)
            if self._needs_ray is not None:
                session.check_environment(engine, self._needs_ray)
            if self._names_nodes:
                placement.check_nodes(self._given, f"Task `{record.name}`")
            refs = engine.tasks.submit_task(exported, args, kwargs, record)
        except (exceptions.HocketError, KeyboardInterrupt) as error:
            exceptions.hide_frames(error)
            raise
        return refs[0] if record.num_returns == 1 else generators.wrap(refs, record.num_returns)

    def _export(self) -> contract.RemoteFunction:
        function: Any = self._function
        if self._given.get("num_returns") == "dynamic":
            function = generators.collect(function, is_retried=bool(self._given.get("retry_exceptions")))
        return values.encode_function(function, f"remote function `{self._options.name}`")

    def __repr__(self) -> str:
        return describe("RemoteFunction", f"{self._function.__name__}{self._signature}", self._given)

    @overload
    def options(self, *, num_returns: object, **given: Unpack[typed.TaskOptions]) -> Any: ...
    @overload
    def options(self, **given: Unpack[typed.TaskOptions]) -> RemoteFunction[P, T_co]: ...
    def options(self, **given: object) -> Any:
        """Return the same function with other options; this one stays as it is."""
        options.refuse_decorator_only(given, f"remote function `{self._function.__name__}`")
        other = RemoteFunction(self._function, {**self._given, **given})
        if given.get("num_returns") != "dynamic" and self._given.get("num_returns") != "dynamic":
            other._exported = self._exported
        return other

    def bind(self, /, *args: object, **kwargs: object) -> dag.FunctionNode:
        """Return a node of a graph that calls this function when the graph is executed (see `hocket.core.dag`).

        Raises:
            TypeError: The arguments do not fit the function's signature.
        """
        self._signature.check(args, kwargs)
        return dag.FunctionNode(self, args, kwargs, self._given)

    def _remote(self, args: tuple[object, ...] = (), kwargs: dict[str, object] | None = None, **given: Any) -> Any:
        return self.options(**given).remote(*args, **(kwargs or {}))

    if not TYPE_CHECKING:  # a type checker that saw this method would accept direct calls

        def __call__(self, *args, **kwargs):
            name = self._function.__name__
            raise TypeError(
                f"Remote functions cannot be called directly. Instead of {name}(...) write "
                f"hocket.get({name}.remote(...)); to run it in this process, call {name}.bare(...)."
            )

    def bare(self, /, *args: P.args, **kwargs: P.kwargs) -> T_co:
        """Run the function in this process, as if it were not remote."""
        return self._function(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return RemoteFunction, (self._function, self._given)


class Signature:
    """A function's signature, which checks arguments at the call: an error then names the caller's own line."""

    __slots__ = ("_least", "_most", "_name", "_signature", "takes_nothing")

    def __init__(self, function: Callable[..., object], name: str, *, skip_first: bool = False) -> None:
        self._name = name
        try:
            signature: inspect.Signature | None = inspect.signature(function)
        except (TypeError, ValueError):  # some built-in functions have no signature
            signature = None
        least, most = 0, 1 << 30
        if signature is not None:
            parameters = list(signature.parameters.values())[1 if skip_first else 0 :]
            signature = signature.replace(parameters=parameters)
            kinds = inspect.Parameter
            positional = [p for p in parameters if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)]
            least = sum(p.default is kinds.empty for p in positional)
            if not any(p.kind is kinds.VAR_POSITIONAL for p in parameters):
                most = len(positional)
            if any(p.kind is kinds.KEYWORD_ONLY and p.default is kinds.empty for p in parameters):
                most = -1  # only the full check can decide
        self._signature = signature
        self._least, self._most = least, most
        #: Whether a call without arguments fits. This is the usual case, which then needs no check.
        self.takes_nothing = least == 0 <= most

    def __str__(self) -> str:
        return "(...)" if self._signature is None else str(self._signature)

    def check(self, args: tuple[object, ...], kwargs: dict[str, Any]) -> None:
        """Raise TypeError if the arguments do not fit."""
        if not kwargs and self._least <= len(args) <= self._most:
            return
        if self._signature is None:
            return
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as error:
            given = [("", arg) for arg in args] + [(f"{name}=", arg) for name, arg in kwargs.items()]
            shown = ", ".join(f"{name}{texts.cut(texts.safe_repr(arg), 40)}" for name, arg in given)
            raise TypeError(
                f"{self._name}({shown}) does not fit {self._name}{self._signature}: {error}. Give the arguments that "
                "the signature names."
            ) from None


def list_modules(work: object) -> list[str]:
    """Return the modules to import before a process forks for a function or an actor's class.

    This is the module that defines it, if that belongs to this package: its imports name all that it needs.
    """
    module = getattr(work, "__module__", None)
    return [module] if isinstance(module, str) and module.partition(".")[0] == _PACKAGE else []


def describe(kind: str, what: str, given: Mapping[str, object]) -> str:
    """Return the text for a remote function or an actor class, with its options."""
    options = [f"{name}={texts.safe_repr(value)}" for name, value in given.items()]
    return f"{kind}({', '.join([texts.show_name(what), *options])})"


def raise_if_not_callable(value: object) -> None:
    """Raise TypeError if a value is neither a function nor a class, and cannot be made remote."""
    if not callable(value):
        raise TypeError(
            f"@hocket.remote takes a function or a class, but received {value!r}. Options go in as keywords: "
            "@hocket.remote(num_cpus=2)."
        )
