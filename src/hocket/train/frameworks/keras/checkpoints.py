"""A model's weights, and its optimizer's, in a checkpoint's folder: ``weights.npz``, which numpy alone can read."""

from __future__ import annotations

import os
from typing import Any, Final

from hocket.train.frameworks import weights
from hocket.train.frameworks.keras import variables

_OPTIMIZER: Final = "optimizer/"
"""How the names of an optimizer's variables begin."""


def save_weights(model: object, folder: str | os.PathLike[str]) -> None:
    """Write a model's weights, and those of its optimizer if it has one, to a folder.

    With `Sharded` all ranks call it, each with a folder of its own: whole weights are put together.

    Args:
        model: Of Keras 3, on any backend.
        folder: It must exist.

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
    """Return what `save_weights` writes. If the model is spread over the ranks, all of them call it."""
    variables.attach(model)
    named = [(variable.path, variables.read(variable)) for variable in model.weights]
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and optimizer.built:
        named += [(_OPTIMIZER + variable.path, variables.read(variable)) for variable in optimizer.variables]
    return named


def is_spread(model: Any) -> bool:
    """Tell whether a rank has parts of a model's weights only."""
    variables.attach(model)
    return any(variables.is_spread(weight) for weight in model.weights)


def load_weights(model: Any, folder: str | os.PathLike[str]) -> None:
    """Set a model's weights, and its optimizer's, to what `save_weights` wrote.

    They are found by their order; Keras numbers names anew in each process.

    Args:
        model: Built, and compiled if the optimizer is to go on.
        folder: The checkpoint's.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The arrays are not this model's.
    """
    saved = weights.load(folder)
    mine = {name: array for name, array in saved.items() if not name.startswith(_OPTIMIZER)}
    _assign(f"The model {model.name!r}", list(model.weights), mine)
    theirs = {name: array for name, array in saved.items() if name.startswith(_OPTIMIZER)}
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and theirs:
        if not optimizer.built:
            optimizer.build(model.trainable_variables)
        _assign(f"Its optimizer {type(optimizer).__name__}", list(optimizer.variables), theirs)


def _assign(who: str, targets: list[Any], saved: dict[str, Any]) -> None:
    weights.check(who, [(target.path, tuple(target.shape)) for target in targets], saved)
    for target, array in zip(targets, saved.values(), strict=True):
        target.assign(array)
