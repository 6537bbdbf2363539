"""Whether a function uses a module, found by a look at its code. It is not run."""

from __future__ import annotations

import contextlib
import functools
import inspect
import types
from collections.abc import Callable, Iterator

FUNCTIONS_READ = 50
"""How many functions are looked into at most. A guess: it takes less than a millisecond."""


def finds(function: Callable[..., object], module: str) -> bool:
    """Tell whether a function, or one of the same module that it names, names a module or something from it.

    Args:
        function: Where to begin: a function, a method, an object that can be called, or a `functools.partial`, which
            stands for its function and its arguments. Of an object the functions of its class are read.
        module: Its full name; what is attached to `torch` as ``optim`` is ``"torch.optim"``.

    Example:
        >>> import torch
        >>> from hocket.train.frameworks.torch import mentions
        >>> def step(model):
        ...     return torch.optim.SGD(model.parameters())
        >>> mentions.finds(step, "torch.optim"), mentions.finds(step, "torch.fft")
        (True, False)
    """
    row = [found for found in _open(function) if isinstance(found, types.FunctionType)]
    for number, found in enumerate(row):  # it grows
        if number == FUNCTIONS_READ:
            break
        names = {name for code in _walk(found.__code__) for name in code.co_names}
        values = [*map(found.__globals__.get, names), *_open_cells(found)]
        if module.rpartition(".")[2] in names or any(_is_from(value, module) for value in values):
            return True
        called = (value for value in values if isinstance(value, types.FunctionType))
        row += [value for value in called if _is_from(value, found.__module__) and not any(value is one for one in row)]
    return False


def _open(given: object) -> Iterator[object]:
    """Give the functions that an object stands for."""
    found = inspect.unwrap(given) if callable(given) else given
    if isinstance(found, functools.partial):
        for part in (found.func, *found.args, *found.keywords.values()):
            yield from _open(part)
    elif isinstance(found, types.FunctionType):
        yield found
    elif isinstance(found, types.MethodType):
        yield from (found.__func__, *vars(type(found.__self__)).values())
    else:
        yield from vars(type(found)).values()


def _is_from(value: object, module: str) -> bool:
    if isinstance(value, types.ModuleType):
        return f"{value.__name__}.".startswith(f"{module}.")
    return isinstance(value, types.FunctionType | type) and f"{value.__module__}.".startswith(f"{module}.")


def _open_cells(function: types.FunctionType) -> Iterator[object]:
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # nothing is in it yet
            yield cell.cell_contents


def _walk(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _walk(constant)
