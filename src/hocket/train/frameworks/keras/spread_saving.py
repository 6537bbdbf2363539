"""Keras's own ways to save a model, of a model that is spread over the ranks.

Keras writes values as numpy arrays, which a rank that has parts of them cannot make alone. So all ranks call ``save``,
``save_weights``, ``export`` and ``get_state_tree`` (as those of a run do with a ``ModelCheckpoint`` in each): parts are
put together, Keras does what it does, and then the model has its parts again.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeGuard

from hocket.collective.world import World
from hocket.train.frameworks.keras import variables

WRITERS: Final = ("save", "save_weights", "export")
"""Methods of a model whose first argument is the path that they write to."""


def write(
    model: Any, joined: World, writer: Callable[..., object], filepath: object, *args: object, **kwargs: object
) -> Any:
    """Write a whole model. Of ranks that give the same path on the same machine, the first one writes.

    It returns when all ranks have written, so that each finds the file.

    Args:
        model: Spread or not.
        joined: The ranks; all of them call this.
        writer: Keras's method.
        filepath: Its first argument.
    """
    place = (socket.gethostname(), str(Path(filepath).absolute()) if _is_path(filepath) else str(joined.rank))
    is_first = joined.all_gather_object(place).index(place) == joined.rank
    trouble = returned = None
    try:
        with hold_whole(model):
            returned = writer(filepath, *args, **kwargs) if is_first else None
    except Exception as error:
        trouble = f"{type(error).__name__}: {error}"
        raise
    finally:
        troubles = joined.all_gather_object(trouble)
    for rank, text in enumerate(troubles):
        if text is not None:
            raise RuntimeError(f"Rank {rank} could not write the model {model.name!r}: {text}")
    return returned


def _is_path(given: object) -> TypeGuard[str | os.PathLike[str]]:
    return isinstance(given, (str, os.PathLike))


@contextlib.contextmanager
def hold_whole(model: Any) -> Iterator[None]:
    """Have each rank's variables be whole within. All ranks enter it."""
    variables.attach(model)
    optimizer = getattr(model, "optimizer", None)
    given = [*model.variables, *(optimizer.variables if optimizer is not None else ())]
    parts = [(variable, variable.value) for variable in given if variables.is_spread(variable)]
    for variable, _ in parts:
        variable.assign(variables.read(variable))
    try:
        yield
    finally:
        for variable, part in parts:
            variable.assign(part)
