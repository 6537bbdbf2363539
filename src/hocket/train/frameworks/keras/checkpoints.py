"""A model's weights, and its optimizer's, in a checkpoint's folder: ``weights.npz``, which numpy alone can read."""

from __future__ import annotations

import os
from typing import Any, Final

from hocket.train.frameworks import weights
from hocket.train.frameworks.keras import variables

_OPTIMIZER: Final = "optimizer/"
"""The prefix of the names of an optimizer's variables."""


def save_weights(model: object, folder: str | os.PathLike[str]) -> None:
    """Write a model's weights, and those of its optimizer if it has one, to a folder.

    With `Sharded` all ranks must call it, each with a folder of its own, because they put whole weights together.

    Args:
        model: A model of Keras 3, on any backend.
        folder: The folder. It must exist.

    Example:
        >>> import tempfile
        >>> import keras, numpy as np
        >>> from hocket.train.keras import load_weights, save_weights
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, name="last")])
        >>> folder = tempfile.mkdtemp()
        >>> save_weights(model, folder)
        >>> sorted(name.split("/")[-1] for name in np.load(f"{folder}/weights.npz"))
        ['bias', 'kernel']
        >>> load_weights(model, folder)
    """
    weights.save(folder, read_weights(model))


def read_weights(model: Any) -> list[tuple[str, Any]]:
    """Return the names and arrays that `save_weights` writes. All ranks must call it if the model is spread."""
    variables.attach(model)
    named = [(variable.path, variables.read(variable)) for variable in model.weights]
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and optimizer.built:
        named += [(_OPTIMIZER + variable.path, variables.read(variable)) for variable in optimizer.variables]
    return named


def is_spread(model: Any) -> bool:
    """Return whether a rank has only parts of a model's weights."""
    variables.attach(model)
    return any(variables.is_spread(weight) for weight in model.weights)


def load_weights(model: Any, folder: str | os.PathLike[str]) -> None:
    """Set a model's weights, and its optimizer's, to those that `save_weights` wrote.

    They are matched by their order, because Keras numbers names anew in each process.

    Args:
        model: A built model. Compile it first if its optimizer is to continue.
        folder: The checkpoint's folder.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The arrays belong to another model.
    """
    saved = weights.load(folder)
    mine = {name: array for name, array in saved.items() if not name.startswith(_OPTIMIZER)}
    _assign(f"The model {model.name!r}", list(model.weights), mine)
    theirs = {name: array for name, array in saved.items() if name.startswith(_OPTIMIZER)}
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and theirs:
        if not optimizer.built:
            optimizer.build(model.trainable_variables)
        _assign(f"The model's optimizer {type(optimizer).__name__}", list(optimizer.variables), theirs)


def _assign(who: str, targets: list[Any], saved: dict[str, Any]) -> None:
    weights.check(who, [(target.path, tuple(target.shape)) for target in targets], saved)
    for target, array in zip(targets, saved.values(), strict=True):
        target.assign(array)
