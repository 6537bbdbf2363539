"""Batches as a ``tf.data.Dataset``. The first call imports TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from hocket import extras
from hocket.data import blocks, columns

Names: TypeAlias = str | Sequence[str] | Mapping[str, str]
"""One column, a list of columns, or columns by the name of the input, as Keras models with several inputs take them."""


def load() -> Any:
    """Return tensorflow.

    Raises:
        MissingExtraError: tensorflow is not installed.
    """
    remedy = "Run pip install 'hocket[tensorflow]', or use iter_batches()."
    return extras.load("tensorflow", "to_tf()", "TensorFlow", remedy)


def build_converter(dtypes: object) -> Callable[[blocks.Block], dict[str, object]]:
    """Return a function that makes tensors from a block that only the caller holds."""
    tf = load()

    def convert(block: blocks.Block) -> dict[str, object]:
        if isinstance(dtypes, Mapping):
            blocks.check_columns(list(dtypes), list(block.columns))
        arrays = block.to_batch("numpy", is_owned=True)
        found = {}
        for name, array in arrays.items():
            spec = _build_spec(tf, name, arrays)
            dtype = dtypes.get(name) if isinstance(dtypes, Mapping) else dtypes
            found[name] = tf.convert_to_tensor(_fit(name, array, spec), dtype=dtype or getattr(spec, "dtype", None))
        return found

    return convert


def build_dataset(
    begin: Callable[[], Iterator[blocks.Block]],
    example: blocks.Block,
    features: Names,
    labels: Names,
    additional: Names | None,
    specs: Sequence[object],
) -> object:
    """Return a ``tf.data.Dataset`` of (features, labels), or (features, labels, additional).

    Each loop over the dataset begins again.

    Args:
        begin: Begins a loop over blocks that only the caller holds.
        example: A block, for the types of its columns.
        features: The columns for the model.
        labels: The columns for the loss.
        additional: The columns that come third, such as weights.
        specs: The type of each of the three; None: the columns' own type.
    """
    tf = load()
    parts = [features, labels] + ([] if additional is None else [additional])
    blocks.check_columns([name for part in parts for name in _list_names(part)], list(example.columns))
    arrays = example.to_batch("numpy", is_owned=True)
    signature = tuple(
        _build_spec(tf, part, arrays) if spec is None else spec for part, spec in zip(parts, specs, strict=False)
    )

    def generate() -> Iterator[tuple[object, ...]]:
        for block in begin():
            batch = block.to_batch("numpy", is_owned=True)
            yield tuple(
                _fit(part, _arrange(part, batch), spec, is_given=given is not None)
                for part, spec, given in zip(parts, signature, specs, strict=False)
            )

    made = tf.data.Dataset.from_generator(generate, output_signature=signature)
    options = tf.data.Options()
    options.deterministic = True
    options.experimental_optimization.inject_prefetch = False  # rows read ahead would count as consumed
    options.experimental_distribute.auto_shard_policy = (
        tf.data.experimental.AutoShardPolicy.OFF
    )  # each rank reads only its part already
    return made.with_options(options)


def _list_names(part: Names) -> list[str]:
    if isinstance(part, str):
        return [part]
    return list(part.values()) if isinstance(part, Mapping) else list(part)


def _arrange(part: Names, batch: Mapping[str, object]) -> object:
    if isinstance(part, str):
        return batch[part]
    if isinstance(part, Mapping):
        return {name: batch[column] for name, column in part.items()}
    return {name: batch[name] for name in part}


def _fit(what: object, value: Any, spec: Any, *, is_given: bool = False) -> object:
    """Return arrays in the types of a spec.

    Args:
        what: The column, for the error.
        value: An array, or a dict of arrays.
        spec: The types.
        is_given: Whether the spec is the user's: then a cast may cut off fractions.
    """
    if isinstance(value, dict):
        return {name: _fit(name, inner, spec[name], is_given=is_given) for name, inner in value.items()}
    kind = spec.dtype.as_numpy_dtype
    if kind is object:
        return value
    with np.errstate(invalid="ignore"):
        found = np.asarray(value, kind)
    if found.dtype.kind in "biu" and value.dtype.kind in "biuf":
        changed = ~np.isfinite(value) if is_given else found != value
        if changed.any():
            says = "its type spec requires" if is_given else "its first rows are"
            raise ValueError(
                f"Column {what!r} must be a tensor of {found.dtype}, as {says}, but holds {value[changed][0]!r}. Fill "
                "missing values with map_batches(), or pass a feature_type_spec or label_type_spec of floats."
            )
    return found


def _build_spec(tf: Any, part: Names, arrays: Mapping[str, npt.NDArray[Any]]) -> object:
    def build(name: str) -> Any:
        array = arrays[name]
        if array.dtype.kind == "O" and len(array) and all(isinstance(value, str | bytes) for value in array):
            return tf.TensorSpec((None,), tf.string)
        columns.check_numbers(name, array, "a tensor", "pass feature_type_spec or label_type_spec")
        return tf.TensorSpec((None, *array.shape[1:]), tf.as_dtype(array.dtype))

    if isinstance(part, str):
        return build(part)
    names = part if isinstance(part, Mapping) else {name: name for name in part}
    return {name: build(column) for name, column in names.items()}
