"""Metrics over the rows of all ranks."""

from __future__ import annotations

from typing import Any, final

import keras
import numpy as np

from hocket.collective.world import World
from hocket.train.frameworks import global_mean
from hocket.train.frameworks.keras import framework, variables


def merge_metrics(model: Any, joined: World) -> None:
    """Replace the state of a model's metrics by that of all ranks together. All ranks call it.

    What a metric of Keras's keeps is sums: of values and of weights, of hits in each class or below each threshold.
    Added over the ranks they are what one process would have that had seen all rows. A metric of one's own says how its
    variables are to be put together: ``add_variable(..., aggregation="mean")``, for example.

    Args:
        model: It was trained or evaluated, each rank with its own rows.
        joined: The ranks.
    """
    if joined.size == 1:
        return
    states = [variable for metric in model.metrics for variable in metric.variables]
    if not states:
        return
    kinds = [getattr(variable, "aggregation", "sum") for variable in states]
    arrays = [variables.read(variable).astype(np.float64) for variable in states]
    for kind, array in zip(kinds, arrays, strict=True):
        if kind == "mean":
            array[...] = array / joined.size
        elif kind == "only_first_replica" and joined.rank:
            array[...] = 0
    flat = np.concatenate([array.reshape(-1) for array in arrays])
    joined.all_reduce(flat)
    parts = np.split(flat, np.cumsum([array.size for array in arrays])[:-1])
    for variable, kind, part in zip(states, kinds, parts, strict=True):
        if kind not in ("none", None):
            variable.assign(part.reshape(variable.shape).astype(keras.backend.standardize_dtype(variable.dtype)))


def level_state(model: Any, joined: World) -> None:
    """Give all ranks the mean of what a model keeps without training it, such as the means of BatchNormalization. All
    ranks call it."""
    states = list(model.non_trainable_weights)
    if joined.size == 1 or not states:
        return
    floats = [state for state in states if keras.backend.is_float_dtype(state.dtype)]
    flat = variables.read_flat(floats)
    joined.all_reduce(flat)
    flat /= joined.size
    variables.write_flat(floats, flat)


@final
class GlobalMean(global_mean.GlobalMean):
    """A mean over the rows of all ranks that does not depend on how many there are, to the last digit.

    For loops of one's own.

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
    _remedy = ": reduction=None in Keras"
