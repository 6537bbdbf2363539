"""Pytrees in files that numpy alone can read: an ``.npz`` with one array for each leaf, named by the leaf's path.

Types that numpy lacks (bfloat16, JAX's keys) are stored as integers of the same size, and the array ``.dtypes`` has the
original types. Names that begin with a dot are reserved: a tree with such a key is refused.
"""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import Any, Final, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from hocket.stores import local_files
from hocket.train.frameworks import weights
from hocket.train.frameworks.jax import trees

Array: TypeAlias = npt.NDArray[Any]

DTYPES: Final = ".dtypes"
"""The name of the array with the dtypes of the others, as JSON."""

_KEY: Final = "key:"
"""The prefix in the dtype of random keys, before the name of their implementation."""

_ROOT: Final = ".root"
"""The name of a tree that is one array."""


def save_pytree(path: str | os.PathLike[str], tree: object) -> None:
    """Write a pytree of arrays to a file, which ``numpy.load`` reads without JAX.

    The file is written beside its place and renamed, so it is whole or absent.

    Args:
        path: The file, which should end with ``.npz``. Its folder must exist.
        tree: Parameters, an optimizer's state, random keys, or a dict of them.

    Raises:
        TypeError: A leaf is no array, or the call is inside `jax.jit`.
        ValueError: Two leaves have the same name, or a name begins with a dot.

    Example:
        >>> import os, tempfile
        >>> import jax.numpy as jnp, numpy as np
        >>> from hocket.train.jax import save_pytree
        >>> path = os.path.join(tempfile.mkdtemp(), "params.npz")
        >>> save_pytree(path, {"dense": {"kernel": jnp.ones((2, 3)), "bias": jnp.zeros(3)}})
        >>> np.load(path)["dense/kernel"].shape
        (2, 3)
    """
    leaves, values, _ = trees.list_leaves(tree, "save_pytree")
    arrays: dict[str, Array] = {}
    for leaf, value in zip(leaves, values, strict=True):
        if isinstance(value, jax.core.Tracer):
            raise TypeError(  # an error of the caller's, like a leaf that is no array
                "save_pytree() was called inside jax.jit or another transformation of JAX, where there are no "
                "numbers yet. Save what the jitted function returns."
            )
        if trees.is_spread(value):
            raise trees.build_spread_error("save_pytree()", leaf.name)
        if leaf.name.startswith("."):
            raise ValueError(
                f"save_pytree() received an array called {leaf.name!r}, but names that begin with '.' are reserved. "
                "Rename the key."
            )
        arrays[leaf.name or _ROOT] = _to_plain(value)
    arrays[DTYPES] = np.array(
        json.dumps({leaf.name or _ROOT: _name_dtype(value) for leaf, value in zip(leaves, values, strict=True)})
    )
    with local_files.replaced(Path(path)) as file:
        weights.write(file, arrays)


def load_pytree(path: str | os.PathLike[str], like: object) -> Any:
    """Return a pytree that `save_pytree` has written, with the structure of another tree.

    Args:
        path: The file.
        like: A tree of the same structure, shapes and dtypes: the result of ``init``, or of `jax.eval_shape` on it. The
            returned arrays are spread over ranks as the arrays of this tree are.

    Raises:
        ValueError: The file holds another tree, and the message names the arrays that differ; or it holds no tree.
        FileNotFoundError: There is no such file.

    Example:
        >>> import os, tempfile
        >>> import jax.numpy as jnp
        >>> from hocket.train.jax import load_pytree, save_pytree
        >>> path = os.path.join(tempfile.mkdtemp(), "params.npz")
        >>> save_pytree(path, {"bias": jnp.arange(3.0)})
        >>> load_pytree(path, like={"bias": jnp.zeros(3)})["bias"].tolist()
        [0.0, 1.0, 2.0]
    """
    found, structure = jax.tree_util.tree_flatten_with_path(like)
    wanted = []
    for leaf_path, value in found:
        array = value if hasattr(value, "dtype") and hasattr(value, "shape") else jnp.asarray(value)
        wanted.append(trees.Leaf(trees.name_path(leaf_path), tuple(array.shape), str(array.dtype)))
    loaded = _read(path)
    there = [trees.Leaf("" if name == _ROOT else name, tuple(a.shape), str(a.dtype)) for name, a in loaded.items()]
    difference = trees.describe_difference(sorted(wanted), sorted(there), "the model", "the file")
    if difference:
        raise ValueError(
            f"The checkpoint {os.fspath(path)!r} does not fit this model or this optimizer: {difference}. Build the "
            "model that was saved, or start without the checkpoint."
        )
    pairs = [(loaded[leaf.name or _ROOT], value) for leaf, (_, value) in zip(wanted, found, strict=True)]
    return jax.tree_util.tree_unflatten(structure, [_place_like(array, value) for array, value in pairs])


def _place_like(array: object, like: object) -> object:
    """Return an array, spread over processes as another array is."""
    if not isinstance(like, jax.Array) or not trees.is_global(like) or trees.is_key(array):
        return array
    whole = np.asarray(array)
    return jax.make_array_from_callback(whole.shape, like.sharding, whole.__getitem__)


_DAMAGE: Final = (
    *(OSError, ValueError, LookupError, EOFError, TypeError, AttributeError, RecursionError),
    zipfile.BadZipFile,
)
"""The errors that reading any other file may raise."""


def _read(path: str | os.PathLike[str]) -> dict[str, Any]:
    try:
        with Path(path).open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            dtypes = json.loads(str(file[DTYPES]))
            return {name: _from_plain(file[name], dtype) for name, dtype in dtypes.items()}
    except FileNotFoundError:
        raise
    except _DAMAGE as error:
        raise ValueError(
            f"{os.fspath(path)!r} cannot be read as a pytree: {error}. Pass a file that save_pytree() has written; if "
            "it is one, it was damaged later."
        ) from error


def _name_dtype(value: Any) -> str:
    return f"{_KEY}{jax.random.key_impl(value)}" if trees.is_key(value) else str(value.dtype)


def _to_plain(value: object) -> Array:
    array = np.asarray(jax.random.key_data(value) if trees.is_key(value) else value)
    return array.view(f"u{array.dtype.itemsize}") if array.dtype.kind == "V" else array


def _from_plain(array: Array, dtype: str) -> object:
    if dtype.startswith(_KEY):
        return jax.random.wrap_key_data(array, impl=dtype.removeprefix(_KEY))
    kind = jnp.dtype(dtype)
    typed = array if array.dtype == kind else array.view(kind)
    made = jnp.asarray(typed)
    return made if made.dtype == kind else typed  # without jax_enable_x64 JAX has no 64 bits: such leaves stay numpy's
