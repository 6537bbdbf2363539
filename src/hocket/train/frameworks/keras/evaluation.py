"""Metrics and states over the rows of all ranks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, final

import keras
import numpy as np

from hocket._base.internals import keras as keras_internals
from hocket.collective.world import World
from hocket.train.frameworks import global_mean
from hocket.train.frameworks.keras import framework, variables

_DIGESTED_BYTES: Final = 1 << 26
"""The size from which only some rows of an array are digested. A guess: a twentieth of a second."""


def digest_rows(data: object) -> str | None:
    """Return a digest of arrays, to be compared between ranks; None if `data` has anything else."""
    arrays = [one for one in keras.tree.flatten(data) if one is not None]
    if not arrays or not all(isinstance(one, np.ndarray) or keras.ops.is_tensor(one) for one in arrays):
        return None
    found = hashlib.blake2b(digest_size=16)
    for one in arrays:
        array = np.asarray(keras.ops.convert_to_numpy(one))
        found.update(repr((array.shape, str(array.dtype))).encode())
        some = array[:: max(1, array.nbytes // _DIGESTED_BYTES)] if array.ndim else array
        found.update(repr(some.tolist()).encode() if array.dtype.hasobject else np.ascontiguousarray(some).tobytes())
    return found.hexdigest()


def merge_metrics(model: Any, joined: World, *, is_same: bool | None) -> None:
    """Replace the state of a model's metrics by that of all ranks together. All ranks call it.

    Keras's metrics keep sums: of values and of weights, of hits in each class or below each threshold. Added over the
    ranks, these are the sums of one process that had seen all rows. A user's own metric declares how its variables are
    combined: ``add_variable(..., aggregation="mean")``, for example. If all ranks had the same rows (`is_same`), these
    count once. With None, the rows are the same if the metrics are, to the bit.
    """
    states = [variable for metric in model.metrics for variable in metric.variables]
    if joined.size == 1 or not states:
        return
    kinds = [getattr(variable, "aggregation", "sum") for variable in states]
    arrays = [variables.read(variable).astype(np.float64) for variable in states]
    if is_same is None:
        digests = joined.all_gather_object(digest_rows(arrays))
        is_same = digests == digests[:1] * joined.size
    for kind, array in zip(kinds, arrays, strict=True):
        if kind == "mean" and not is_same:
            array[...] = array / joined.size
        elif (kind == "only_first_replica" or is_same) and joined.rank:
            array[...] = 0
    _add_up(states, arrays, joined, [number for number, kind in enumerate(kinds) if kind not in ("none", None)])


def _add_up(states: Sequence[Any], arrays: Sequence[Any], joined: World, chosen: Sequence[int]) -> None:
    """Set some variables to the sums of all ranks' arrays."""
    if not arrays:
        return
    flat = np.concatenate([array.reshape(-1) for array in arrays])
    joined.all_reduce(flat)
    parts = np.split(flat, np.cumsum([array.size for array in arrays])[:-1])
    for number in chosen:
        state = states[number]
        state.assign(parts[number].reshape(state.shape).astype(keras.backend.standardize_dtype(state.dtype)))


def read_results(model: Any) -> dict[str, float]:
    """Return the numbers among the results of a model's metrics, by the metric's number and the result's name. The
    metrics of ``compile(metrics=)`` are one metric with a dict as its result."""
    found: dict[str, float] = {}
    for number, metric in enumerate(model.metrics):
        if metric.variables:
            result = metric.result()
            given = result if isinstance(result, Mapping) else {metric.name: result}
            found |= {f"{number} {path[-1]}": value for path, value in _list_numbers(given)}
    return found


def merge_logs(
    logs: Mapping[str, Any], before: Mapping[str, float], after: Mapping[str, float], joined: World, rows: float
) -> dict[str, Any]:
    """Return the last logs of a user's own step, for all ranks' rows. All ranks call it.

    A value that is a result of this rank's metrics (`before`) becomes the result of all ranks (`after`). Any other
    number is the step's own: it becomes the ranks' mean, weighted by the step's rows (0 if they do not count). Dicts
    stay dicts.
    """
    numbers = dict(_list_numbers(logs))
    matches = {
        path: [key for key, result in before.items() if np.isclose(result, value, rtol=1e-6, equal_nan=True)]
        for path, value in numbers.items()
    }
    merged = {}
    given = [one for one in joined.all_gather_object((rows, numbers, matches)) if one[0]] or [(1.0, numbers, matches)]
    total = sum(count for count, _, _ in given)
    for path, number in numbers.items():
        common = [key for key in after if all(key in keys.get(path, ()) for _, _, keys in given)]
        common.sort(key=lambda key: key.partition(" ")[2] != path[-1])
        mean = sum(count * values.get(path, number) for count, values, _ in given) / total
        merged[path] = after[common[0]] if common else mean
    return _replace_numbers(logs, merged)


def _list_numbers(logs: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], float]]:
    """Yield the numbers in logs, with the keys that lead to each."""
    for name, value in logs.items():
        if isinstance(value, Mapping):
            yield from _list_numbers(value, (*above, name))
        elif _is_number(value):
            yield (*above, name), _to_float(value)


def _replace_numbers(
    logs: Mapping[str, Any], numbers: Mapping[tuple[str, ...], float], above: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return logs with other numbers, by the keys that lead to each."""
    return {
        name: _replace_numbers(value, numbers, (*above, name))
        if isinstance(value, Mapping)
        else numbers.get((*above, name), value)
        for name, value in logs.items()
    }


def _to_float(value: Any) -> float:
    return float(keras.ops.convert_to_numpy(value) if keras.ops.is_tensor(value) else value)


def _is_number(value: object) -> bool:
    return np.ndim(value) == 0 and not isinstance(value, str | bytes) and value is not None  # type: ignore[arg-type]


# --- the state of layers ----------------------------------------------------------------------------------------------


def list_states(model: Any) -> list[Any]:
    """Return the weights that a model keeps without training them and that ranks have in common. Left out are the
    states that stateful layers keep of each row."""
    of_rows = {
        id(state)
        for layer in keras_internals.list_layers(model)
        if getattr(layer, "stateful", False)
        for state in keras.tree.flatten(getattr(layer, "states", None))
    }
    return [state for state in model.non_trainable_weights if id(state) not in of_rows]


def list_counts(model: Any) -> list[Any]:
    """Return the counts of a model's layers: weights that are added up over the ranks."""
    return [state for state in list_states(model) if _find_kind(state) == "sum"]


def list_row_states(model: Any) -> list[Any]:
    """Return the weights in which a model's layers sum up the rows: counts, and floats such as the means of
    BatchNormalization."""
    return [
        state for state in list_states(model) if _find_kind(state) == "sum" or keras.backend.is_float_dtype(state.dtype)
    ]


def _find_kind(state: Any) -> str:
    return getattr(state, "aggregation", None) or "none"


def level_state(model: Any, joined: World, before: Sequence[Any]) -> None:
    """Make a model's untrained weights equal in all ranks, as Keras's ``aggregation`` says. All ranks call it.

    Sums grow by the amounts that all ranks have added since `before`, the values of `list_counts` that they had in
    common. For ``"only_first_replica"`` rank 0's value counts. Other floats, such as the means of BatchNormalization,
    are averaged; whole numbers of ``"none"`` stay.
    """
    states = list_states(model)
    if joined.size == 1 or not states:
        return
    exact = [state for state in states if _find_kind(state) in ("sum", "only_first_replica")]
    floats = [
        state
        for state in states
        if keras.backend.is_float_dtype(state.dtype) and not any(state is one for one in exact)
    ]
    if floats:
        flat = variables.read_flat(floats)
        joined.all_reduce(flat)
        flat /= joined.size
        variables.write_flat(floats, flat)
    starts = {id(state): start for state, start in zip(list_counts(model), before, strict=False)}
    arrays = []
    for state in exact:
        array = variables.read(state).astype(np.float64)
        arrays.append(array if not joined.rank else array - starts.get(id(state), array))
    _add_up(exact, arrays, joined, range(len(exact)))


@final
class GlobalMean(global_mean.GlobalMean):
    """A mean over the rows of all ranks. It does not depend on the number of ranks, to the last digit.

    For a user's own loops.

    See `hocket.data.ExactMean`. ``evaluate`` of a prepared model is exact without it, to the digits of float32.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from hocket import train
        >>> from hocket.train.keras import GlobalMean, KerasTrainer
        >>> def evaluate():
        ...     accuracy = GlobalMean()
        ...     accuracy.add(np.array([3, 1, 4, 1]) == np.array([3, 1, 4, 2]))
        ...     return accuracy.compute()
        >>> KerasTrainer(
        ...     evaluate,
        ...     scaling_config=train.ScalingConfig(num_workers=0),
        ...     run_config=train.RunConfig(storage_path=tempfile.mkdtemp()),
        ... ).fit().return_value
        0.75
    """

    _framework = framework.FRAMEWORK
    _remedy = " (reduction=None in Keras)"
