"""Graphs of calls, written once with ``.bind(...)`` and executed many times.

``.bind`` takes the arguments of ``.remote``, makes a node, and starts nothing. ``node.execute(...)`` starts all nodes
that the node needs, each once, and returns the result of the last call's ``.remote``. It finds nodes in arguments, and
in lists, tuples, sets and dicts inside them.

The kinds of nodes: `FunctionNode` (a task), `ClassNode` (an actor, new for each `execute`), `ClassMethodNode` (a call
on such an actor, or on a living one), `InputNode` (the arguments of `execute`), `MultiOutputNode` (several results).
The names and the meaning are Ray's. Ray's compiled graphs are not supported.

Nodes use their targets only through ``.remote``, so this module needs no other module of `core`.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, NoReturn, Protocol, Self, final


class Callee(Protocol):
    """A node's target: a remote function, an actor class, or a method of an actor."""

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Start a call, or an actor."""


class ActorSource(Callee, Protocol):
    """The parts of an actor class that a graph uses."""

    __name__: str
    _methods: tuple[tuple[str, object], ...]


class Given:
    """The arguments of one `execute`."""

    __slots__ = ("args", "kwargs")

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.args = args
        self.kwargs = kwargs

    def get_whole(self) -> object:
        """Return the only argument; raise TypeError if there are more, or none."""
        if len(self.args) == 1 and not self.kwargs:
            return self.args[0]
        raise TypeError(
            f"The graph uses its InputNode as one value, but execute() received {len(self.args)} positional and "
            f"{len(self.kwargs)} keyword arguments. Call execute(value), or use parts in the graph, such as "
            "input_node[0] or input_node.name."
        )

    def get_part(self, key: int | str, *, is_attribute: bool) -> object:
        """Return an argument by position or name; if there is a single positional argument, that part of it."""
        try:
            if len(self.args) == 1 and not self.kwargs:
                return getattr(self.args[0], str(key)) if is_attribute else self.args[0][key]
            return self.args[key] if isinstance(key, int) else self.kwargs[key]
        except (AttributeError, LookupError, TypeError) as error:
            shown = f".{key}" if is_attribute else f"[{key!r}]"
            kind = next(
                kind
                for kind in (AttributeError, IndexError, KeyError, TypeError, LookupError)
                if isinstance(error, kind)
            )
            raise kind(
                f"execute() received {self}, but the graph uses input_node{shown}. Pass the arguments that the graph "
                "uses."
            ) from error

    def __str__(self) -> str:
        shown = [repr(type(value).__name__) for value in self.args] + [f"{name}=..." for name in self.kwargs]
        return f"({', '.join(shown)})"


class DAGNode(abc.ABC):
    """One step of a graph, made by ``.bind(...)``; nothing runs before `execute`.

    Several nodes may use one node. It runs once for each `execute`, and its result goes to all of them.
    """

    def __init__(self, args: Sequence[Any], kwargs: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        self._args = tuple(args)
        self._kwargs = dict(kwargs)
        self._options = dict(options)

    def execute(self, *args: Any, **kwargs: Any) -> Any:
        """Start all nodes that this node needs, and return its result at once.

        Args:
            *args: The values for the graph's `InputNode`.
            **kwargs: The values for the graph's `InputNode` by name.

        Returns:
            The result of ``.remote``: an `ObjectRef`, or a list of them for ``num_returns`` above 1; for a `ClassNode`
            a handle; for a `MultiOutputNode` a list of results.

        Raises:
            TypeError: The arguments do not fit the graph's `InputNode`, or a function in the graph.
            AssertionError: The graph has more than one `InputNode`.
        """
        given = Given(args, kwargs)
        results: dict[DAGNode, object] = {}
        for node in _sort(self):
            results[node] = node._run(results, given)
        return results[self]

    def get_args(self) -> tuple[Any, ...]:
        """Return the positional arguments that were bound."""
        return self._args

    def get_kwargs(self) -> dict[str, Any]:
        """Return the keyword arguments that were bound."""
        return dict(self._kwargs)

    def get_options(self) -> dict[str, Any]:
        """Return the options that ``.options(...)`` set before the bind."""
        return dict(self._options)

    def experimental_compile(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse to compile the graph: Ray's compiled graphs are not supported.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError(
            "Compiled graphs (experimental_compile) are not supported. Call node.execute(...) instead: it takes the "
            "same arguments and returns references."
        )

    def __getattr__(self, name: str) -> Any:
        _refuse(self, name)

    def _list_needed(self) -> Iterator[DAGNode]:
        """Yield the nodes that have to run before this node."""
        yield from _find_nodes(self._args)
        yield from _find_nodes(self._kwargs)

    @abc.abstractmethod
    def _run(self, results: Mapping[DAGNode, object], given: Given) -> object:
        """Start this node, when the nodes that it needs have their results."""

    def _fill(self, results: Mapping[DAGNode, object]) -> tuple[tuple[object, ...], dict[str, object]]:
        return _replace(self._args, results), _replace(self._kwargs, results)


@final
class FunctionNode(DAGNode):
    """A call of a remote function: ``fn.bind(...)``.

    Example:
        >>> import hocket
        >>> @hocket.remote
        ... def add(x, y):
        ...     return x + y
        >>> three = add.bind(1, 2)
        >>> hocket.get(add.bind(three, three).execute())
        6
    """

    def __init__(
        self, function: Callee, args: Sequence[Any], kwargs: Mapping[str, Any], options: Mapping[str, Any]
    ) -> None:
        super().__init__(args, kwargs, options)
        self._function = function

    def _run(self, results: Mapping[DAGNode, object], given: Given) -> Any:
        args, kwargs = self._fill(results)
        return self._function.remote(*args, **kwargs)


@final
class ClassNode(DAGNode):
    """An actor that does not live yet: ``Actor.bind(...)``.

    Each `execute` creates it anew; all calls in the graph share it.

    Example:
        >>> import hocket
        >>> @hocket.remote
        ... class Counter:
        ...     def __init__(self, start):
        ...         self.value = start
        ...     def add(self, amount):
        ...         self.value += amount
        ...         return self.value
        >>> counter = Counter.bind(10)
        >>> step = counter.add.bind(1)
        >>> hocket.get([step.execute(), counter.add.bind(5).execute()])
        [11, 16]
    """

    def __init__(
        self, actor_class: ActorSource, args: Sequence[Any], kwargs: Mapping[str, Any], options: Mapping[str, Any]
    ) -> None:
        super().__init__(args, kwargs, options)
        self._actor_class = actor_class
        #: The call that was bound last: calls on one actor run in the order in which they were bound.
        self._latest: ClassMethodNode | None = None
        for node in self._list_needed():
            if isinstance(node, InputNode):
                raise ValueError(
                    "InputNode handles user dynamic input the DAG, and cannot be used as args, kwargs, or "
                    f"other_args_to_resolve in ClassNode constructor: the arguments of `{actor_class.__name__}` are "
                    "fixed when the graph is built. Pass the input to a method: actor.method.bind(input_node)."
                )

    def __getattr__(self, name: str) -> BindableMethod:
        source = self.__dict__.get("_actor_class")  # missing while the node is being unpickled
        if source is None or name not in dict(source._record.methods):
            _refuse(self, name, f"Actor class `{source.__name__}`" if source is not None else "")
        return BindableMethod(self, name, {})

    def _run(self, results: Mapping[DAGNode, object], given: Given) -> object:
        args, kwargs = self._fill(results)
        return self._actor_class.remote(*args, **kwargs)


@final
class BindableMethod:
    """A method of a `ClassNode`: ``node.method.bind(...)``."""

    def __init__(self, parent: ClassNode, name: str, given: Mapping[str, object]) -> None:
        self._parent = parent
        self._name = name
        self._given = dict(given)

    def bind(self, /, *args: object, **kwargs: object) -> ClassMethodNode:
        """Add a call to the graph, after the calls of the same actor that were bound before."""
        node = ClassMethodNode(self._name, args, kwargs, self._given, parent=self._parent)
        self._parent._latest = node
        return node

    def options(self, **given: object) -> BindableMethod:
        """Return the same method with other options."""
        return BindableMethod(self._parent, self._name, {**self._given, **given})

    def __getattr__(self, name: str) -> object:
        _refuse(self, name)


@final
class ClassMethodNode(DAGNode):
    """A call of an actor's method: ``node.method.bind(...)`` or ``handle.method.bind(...)``.

    Args:
        name: The method's name.
        args: The arguments of the call.
        kwargs: The arguments of the call by name.
        options: The options of the call.
        parent: The node of the actor, if the actor does not live yet.
        method: The method of a living actor.
    """

    def __init__(
        self,
        name: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        options: Mapping[str, Any],
        *,
        parent: ClassNode | None = None,
        method: Callee | None = None,
    ) -> None:
        super().__init__(args, kwargs, options)
        self._name = name
        self._parent = parent
        self._method = method
        self._previous = parent._latest if parent is not None else None

    def get_method_name(self) -> str:
        """Return the name of the method."""
        return self._name

    def _list_needed(self) -> Iterator[DAGNode]:
        if self._parent is not None:
            yield self._parent
        if self._previous is not None:
            yield self._previous
        yield from super()._list_needed()

    def _run(self, results: Mapping[DAGNode, object], given: Given) -> object:
        method = self._method
        if method is None:
            assert self._parent is not None
            found = getattr(results[self._parent], self._name)
            method = found.options(**self._options) if self._options else found
        args, kwargs = self._fill(results)
        return method.remote(*args, **kwargs)


@final
class ReturnNode(DAGNode):
    """One of several references that a call on a living actor returns."""

    def __init__(self, call: ClassMethodNode, position: int) -> None:
        super().__init__((call, position), {}, {})

    def _run(self, results: Mapping[DAGNode, Any], given: Given) -> object:
        call, position = self._args
        return results[call][position]


@final
class InputNode(DAGNode):
    """A placeholder for the arguments of `execute`. Open it by ``with``; its attributes and items are nodes, too.

    Example:
        >>> import hocket
        >>> from hocket.dag import InputNode, MultiOutputNode
        >>> @hocket.remote
        ... def add(x, y):
        ...     return x + y
        >>> with InputNode() as given:
        ...     graph = MultiOutputNode([add.bind(given[0], 1), add.bind(given.y, 2)])
        >>> hocket.get(graph.execute(10, y=20))
        [11, 22]
    """

    def __init__(self, *args: Any, input_type: Any = None, **kwargs: Any) -> None:
        if args or kwargs:
            raise ValueError(
                f"InputNode should not take any args or kwargs, but received {(*args, *kwargs)!r}. Give the values to "
                "execute()."
            )
        super().__init__((), {}, {})
        self._was_entered = False

    def __enter__(self) -> Self:
        self._was_entered = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def __getitem__(self, key: int | str) -> InputAttributeNode:
        if not isinstance(key, int | str):
            raise AssertionError(
                "Please only use int index or str as first-level key to access fields of dag input, but received "
                f"{key!r}."
            )
        return InputAttributeNode(self, key, is_attribute=False)

    def __getattr__(self, name: str) -> InputAttributeNode:
        if name.startswith("_") or name == "remote":
            _refuse(self, name)
        return InputAttributeNode(self, name, is_attribute=True)

    def _check_entered(self) -> None:
        if not self._was_entered:
            raise AssertionError(
                "InputNode is a singleton instance that should be only used in context manager for dag building and "
                "execution. Write: with InputNode() as input_node: ..."
            )

    def _run(self, results: Mapping[DAGNode, object], given: Given) -> object:
        self._check_entered()
        return given.get_whole()


@final
class InputAttributeNode(DAGNode):
    """A part of the arguments of `execute`: ``input_node[0]``, ``input_node["key"]`` or ``input_node.name``."""

    def __init__(self, input_node: InputNode, key: int | str, *, is_attribute: bool) -> None:
        super().__init__((), {}, {})
        self._input_node = input_node
        self._key = key
        self._is_attribute = is_attribute

    @property
    def key(self) -> int | str:
        """The position or name."""
        return self._key

    def _run(self, results: Mapping[DAGNode, object], given: Given) -> object:
        self._input_node._check_entered()
        return given.get_part(self._key, is_attribute=self._is_attribute)


@final
class MultiOutputNode(DAGNode):
    """Several results of one graph: `execute` returns a list of them.

    Args:
        args: The nodes.

    Raises:
        ValueError: `args` is no list or tuple.
    """

    def __init__(self, args: list[DAGNode] | tuple[DAGNode, ...]) -> None:
        if not isinstance(args, list | tuple):
            raise ValueError(
                f"Invalid input type for `args`, {type(args)}: MultiOutputNode takes a list or tuple of nodes. Write "
                "MultiOutputNode([node])."
            )
        super().__init__(args, {}, {})

    def _run(self, results: Mapping[DAGNode, object], given: Given) -> Any:
        return list(self._fill(results)[0])


def bind_method(
    name: str,
    method: Callee,
    num_returns: int,
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> ClassMethodNode | tuple[DAGNode, ...]:
    """Return the node for a call on a living actor; for ``num_returns`` above 1, a node for each return."""
    node = ClassMethodNode(name, args, kwargs, {}, method=method)
    return node if num_returns <= 1 else tuple([ReturnNode(node, position) for position in range(num_returns)])


def _refuse(node: object, name: str, owner: str = "") -> NoReturn:
    if name == "remote":
        raise AttributeError(
            f".remote() cannot be used on {type(node)}. To execute the task graph for this node, use .execute()."
        )
    raise AttributeError(f"{owner or type(node).__name__} has no attribute {name!r}.")


def _sort(last: DAGNode) -> list[DAGNode]:
    """Return the node and all nodes that it needs, each after the nodes that it needs itself."""
    # A loop and not a recursion, because a graph may be deep.
    order: list[DAGNode] = []
    seen = {last}
    stack = [(last, iter(list(last._list_needed())))]
    while stack:
        node, needed = stack[-1]
        for other in needed:
            if other not in seen:
                seen.add(other)
                stack.append((other, iter(list(other._list_needed()))))
                break
        else:
            order.append(node)
            stack.pop()
    inputs = {node for node in order if isinstance(node, InputNode)}
    inputs |= {node._input_node for node in order if isinstance(node, InputAttributeNode)}
    if len(inputs) > 1:
        raise AssertionError(  # Ray's class, and its sentence
            f"Each DAG should only have one unique InputNode, but this one has {len(inputs)}. Open only one, with "
            "`with InputNode() as given:`; for several arguments use given[0], given[1] or given.name."
        )
    return order


def _find_nodes(value: Any) -> Iterator[DAGNode]:
    if isinstance(value, DAGNode):
        yield value
    elif type(value) in (list, tuple, set, frozenset):
        for part in value:
            yield from _find_nodes(part)
    elif type(value) is dict:
        for part in value.values():
            yield from _find_nodes(part)


def _replace(value: Any, results: Mapping[DAGNode, Any]) -> Any:
    """Return a value with each node in it replaced by the node's result."""
    if isinstance(value, DAGNode):
        return results[value]
    kind = type(value)
    if kind in (list, tuple, set, frozenset):
        return kind([_replace(part, results) for part in value])
    if kind is dict:
        return {name: _replace(part, results) for name, part in value.items()}
    return value
