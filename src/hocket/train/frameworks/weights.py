"""A model's arrays in a file that numpy alone can read: ``weights.npz`` in a checkpoint's folder, an array for each
variable, by name.

``numpy.load(path)["dense/kernel"]`` returns one array. numpy has no bfloat16, so such a variable is stored as float32,
which holds each of its values.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]

FILE_NAME: Final = "weights.npz"
"""The file's name in the checkpoint's folder."""


def save(folder: str | os.PathLike[str], arrays: Iterable[tuple[str, npt.ArrayLike]]) -> Path:
    """Write named arrays to a folder; return the file's path.

    Args:
        folder: The folder. It must exist.
        arrays: Names and arrays. A name that occurs again gets a number.

    Example:
        >>> import tempfile
        >>> from hocket.train.frameworks import weights
        >>> folder = tempfile.mkdtemp()
        >>> weights.save(folder, [("dense/kernel", [[1.0]]), ("dense/bias", [0.5]), ("dense/bias", [2.0])]).name
        'weights.npz'
        >>> {name: array.tolist() for name, array in weights.load(folder).items()}
        {'dense/kernel': [[1.0]], 'dense/bias': [0.5], 'dense/bias.1': [2.0]}
    """
    path = Path(folder, FILE_NAME)
    named: dict[str, Array] = {}
    for name, value in arrays:
        array = np.asarray(value)
        named[_find_free(name, named)] = array if array.dtype.kind in "biufcU" else array.astype(np.float32)
    write(path, named)
    return path


def write(file: str | os.PathLike[str] | IO[bytes], arrays: Mapping[str, Array]) -> None:
    """Write arrays as ``numpy.savez`` does. ``savez`` takes names as keywords, so no array could be ``file``."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def _find_free(name: str, taken: Mapping[str, object]) -> str:
    number, found = 0, name
    while found in taken:
        number += 1
        found = f"{name}.{number}"
    return found


def load(folder: str | os.PathLike[str]) -> dict[str, Array]:
    """Return the arrays of a folder, by name, in the order in which they were saved.

    Raises:
        FileNotFoundError: There is no such file.
    """
    path = Path(folder, FILE_NAME)
    if not path.is_file():
        raise FileNotFoundError(
            f"{str(folder)!r} has no {FILE_NAME}. Pass a checkpoint that ReportCheckpointCallback or save_weights() "
            "has written."
        )
    with np.load(path, allow_pickle=False) as found:
        return {name: found[name] for name in found.files}


def check(who: str, targets: Sequence[tuple[str, tuple[int, ...]]], saved: Mapping[str, Array]) -> None:
    """Raise an error if a model's arrays and a file's differ in number or, compared in order, in shape.

    Args:
        who: The owner of the arrays, for the message: "The model 'net'".
        targets: Names and shapes of the model's arrays.
        saved: The result of `load`.
    """
    if len(targets) != len(saved):
        raise ValueError(
            f"{who} has {len(targets)} variables, but the checkpoint has {len(saved)}: {', '.join(saved) or 'none'}. "
            "Build the model as it was when it was saved, before loading; in Keras begin it with keras.Input."
        )
    for (name, shape), (other, array) in zip(targets, saved.items(), strict=True):
        if tuple(shape) != array.shape:
            raise ValueError(
                f"{who}'s variable {name!r} has the shape {tuple(shape)}, but the checkpoint's {other!r} has "
                f"{array.shape}. Build the model as it was when it was saved."
            )
