"""Variables of other frameworks, in a strategy's scope and in closures: some are converted, others refused.

A framework's variable lives in the process that made it. A closure would copy it to each worker, and each worker would
change its own copy. The program would print the unchanged original: a wrong number, without an error. Therefore:

- A ``tf.Variable`` made in a scope is made on the servers, as in TensorFlow.
- Weights of Keras layers and PyTorch modules are refused in a scope: their frameworks need them in their own form.
- A closure that takes along variables of TensorFlow or Keras is refused.

This module imports no framework: a program that has not loaded a framework has none of its variables.
"""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NoReturn

_KERAS = ("keras.", "tf_keras.")

_REMEDY = (
    "Train it with KerasTrainer, TorchTrainer or JaxTrainer and strategy=ParameterServer(...), which puts its weights "
    "on servers; or make ps.Variable(...) for the numbers that servers hold, and make the model in the closure."
)


@contextlib.contextmanager
def adopted(make: Callable[..., object]) -> Iterator[None]:
    """Let ``tf.Variable`` in a ``with`` block make a variable on servers, through the function `make`."""
    with contextlib.ExitStack() as stack:
        tensorflow = sys.modules.get("tensorflow")
        if tensorflow is not None and hasattr(tensorflow, "variable_creator_scope"):
            stack.enter_context(tensorflow.variable_creator_scope(_build_creator(tensorflow, make)))
        modules: Any = sys.modules.get("torch.nn.modules.module")
        if modules is not None:
            hook = modules.register_module_parameter_registration_hook(_refuse_parameter)
            stack.callback(hook.remove)
        yield


def _build_creator(tensorflow: Any, make: Callable[..., object]) -> Callable[..., object]:
    def create(_: Callable[..., object], **given: object) -> object:
        if _is_from_keras(sys._getframe(1)):
            raise TypeError(
                "A Keras layer or model makes its weights in strategy.scope(), where they would stay in this "
                f"process. {_REMEDY}"
            )
        initial, name, dtype, shape = (given.get(key) for key in ("initial_value", "name", "dtype", "shape"))
        value = tensorflow.convert_to_tensor(initial() if callable(initial) else initial, dtype=dtype)
        if shape is not None and not tensorflow.TensorShape(shape).is_compatible_with(value.shape):
            raise ValueError(
                f"tf.Variable(shape={shape!r}) does not fit its initial value, which has the shape "
                f"{tuple(value.shape)}."
            )
        return make(value.numpy(), name=name, dtype=value.dtype.as_numpy_dtype)

    return create


def _is_from_keras(frame: types.FrameType | None) -> bool:
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith(_KERAS):
            return True
        frame = frame.f_back
    return False


def _refuse_parameter(module: object, name: str, parameter: object) -> None:
    raise TypeError(
        f"{type(module).__name__}.{name}: a PyTorch module makes a parameter in strategy.scope(), where it would stay "
        f"in this process. {_REMEDY}"
    )


# --- closures ---------------------------------------------------------------------------------------------------------


def refuse_captured(fn: object) -> None:
    """Raise if a function refers to variables of TensorFlow or Keras, or to layers of Keras."""
    function = getattr(fn, "python_function", fn)  # the Python function inside a `tf.function`
    _refuse_among(fn, list_captured(function))


def refuse_arguments(fn: object, args: Iterable[object], kwargs: Mapping[str, object]) -> None:
    """Raise if a closure's arguments include variables of TensorFlow or Keras, or layers of Keras."""
    _refuse_among(fn, [*((f"argument {index}", one) for index, one in enumerate(args)), *kwargs.items()])


def _refuse_among(fn: object, found: Iterable[tuple[str, object]]) -> None:
    kinds = _list_kinds()
    if not kinds:
        return
    for name, value in found:
        for one in _flatten(value):
            if isinstance(one, kinds):
                _refuse(getattr(getattr(fn, "python_function", fn), "__qualname__", repr(fn)), name, one)


def _list_kinds() -> tuple[type, ...]:
    found = []
    for module, names in (
        ("tensorflow", ("Variable",)),
        ("keras", ("Variable", "Layer")),
        ("tf_keras", ("layers.Layer",)),
    ):
        loaded: object = sys.modules.get(module)
        for name in names:
            kind = loaded
            for part in name.split("."):
                kind = getattr(kind, part, None)
            if isinstance(kind, type):
                found.append(kind)
    return tuple(found)


def list_captured(function: object) -> list[tuple[str, object]]:
    """Return the globals and closure variables that a function refers to, by name."""
    function = getattr(function, "__func__", function)
    if not isinstance(function, types.FunctionType):
        return []
    found = [(name, function.__globals__[name]) for name in function.__code__.co_names if name in function.__globals__]
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # an empty cell
            found.append((name, cell.cell_contents))
    return found


def _flatten(value: object) -> Iterator[object]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple | set):
        for one in value:
            yield from _flatten(one)
    else:
        yield value


def _refuse(closure: str, name: str, value: object) -> NoReturn:
    raise TypeError(
        f"The closure {closure} captures `{name}`, a {type(value).__module__.partition('.')[0]} "
        f"{type(value).__name__}. Each worker would change its own copy, and none would be on the servers. Make "
        "variables under strategy.scope(), with ps.Variable(...) or tf.Variable(...). For a model: "
        f"{_REMEDY[0].lower()}{_REMEDY[1:]}"
    )


# --- graphs -----------------------------------------------------------------------------------------------------------


_OFF_THE_GRAPH = (
    "once, while it records the graph, and not in each call. Take @tf.function off the closure, and put it on the "
    "part that only computes: read the variables before, pass in their values, and push the results."
)


def is_graph(fn: object) -> bool:
    """Tell whether a function was made by ``tf.function``."""
    return hasattr(fn, "python_function")


def list_taken(fn: Any, args: Iterable[object], kwargs: Mapping[str, object]) -> list[tuple[str, object]]:
    """Return the values that a closure made by ``tf.function`` refers to, and its arguments, by name."""
    given = [*((f"argument {index}", one) for index, one in enumerate(args)), *kwargs.items()]
    return [*list_captured(fn.python_function), *given]


def refuse_graph(fn: Any, name: str) -> NoReturn:
    """Raise because a closure made by ``tf.function`` takes along a variable on servers or a per-worker value."""
    closure = getattr(fn.python_function, "__qualname__", repr(fn))
    raise TypeError(f"The closure {closure} is a @tf.function that would use `{name}` {_OFF_THE_GRAPH}")


def refuse_in_graph(name: str, is_what: str = "is on a server") -> None:
    """Raise if TensorFlow is recording a graph. A call on a variable on a server would run once, during the recording,
    and not in each call of the graph.

    Args:
        name: The name of the variable or value.
        is_what: The reason why it cannot be part of the graph.
    """
    tensorflow: object = sys.modules.get("tensorflow")
    if tensorflow is None or not hasattr(tensorflow, "inside_function") or not tensorflow.inside_function():
        return
    raise RuntimeError(f"`{name}` {is_what}, and @tf.function would read or change it {_OFF_THE_GRAPH}")
