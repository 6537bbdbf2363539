"""Takes the gradients of a backend's step, compiled or not, to the host and back.

All gradients travel as one flat array; its last element is the number of rows. On CPUs a step copies the array:

- TensorFlow: once to join the gradients, and once for a writable array. The way back needs no copy, since TensorFlow
  takes over numpy's memory.
- JAX: as TensorFlow, and once on the way back.
- torch: once to join the gradients. The collective works in that memory, and the gradients become views of it.

The collective makes copies of its own: into shared memory and out again (`hocket.collective.host_group`).

On TensorFlow an `Embedding` layer has a gradient of single rows, as ``tf.IndexedSlices``. A row that a batch names
twice has two entries. Keras's optimizers there square each entry by itself, so with the sum of both they would compute
another step. If `Crossing` has a `gather` function, such gradients keep this form: the entries of all ranks, one after
another, as one process would have them. They travel behind the array.

Each backend turns an error on the host into an error of its own. `Crossing` keeps the original.

TensorFlow's XLA cannot call the host; JAX's can, and torch.compile leaves the compiled code for the call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias, final

import keras
import numpy as np

from hocket.train.strategies import strategy

OnHost: TypeAlias = Callable[[strategy.Array, float], None]
"""A function that changes an array in place, given the number of rows. The array's last element has no meaning."""

Gather: TypeAlias = Callable[[Sequence[strategy.Slices], float], Sequence[strategy.Slices]]
"""A function from a rank's gradients of single rows, and its number of rows, to those of all ranks. It runs before
`OnHost`."""


@final
class Crossing:
    """The way of one backend's gradients to the host and back.

    Args:
        on_host: Changes the gradients there.
        gather: Gathers gradients of single rows. Default: they become whole.
    """

    def __init__(self, on_host: OnHost, gather: Gather | None = None) -> None:
        self._on_host = on_host
        self._gather = gather
        self.error: BaseException | None = None
        """The error that `on_host` or `gather` has raised. The backend's own error only quotes it."""
        self._cross: Final = _CROSS[keras.backend.backend()]

    def begin(self) -> None:
        """Forget the last error."""
        self.error = None

    @property
    def keeps_slices(self) -> bool:
        """Whether gradients of single rows keep that form."""
        return self._gather is not None

    def average(self, gradients: Sequence[object], rows: object) -> list[Any]:
        """Return the gradients as the host has changed them; None stays None.

        Args:
            gradients: The backend's tensors, all of the step.
            rows: The number of rows over which they are the mean: a number, or a tensor if it is not known yet.
        """
        there = [gradient for gradient in gradients if gradient is not None]
        if not there:
            return list(gradients)
        back = iter(self._cross(self, there, rows))
        return [None if gradient is None else next(back) for gradient in gradients]

    def call(
        self, flat: strategy.Array, slices: Sequence[strategy.Slices] = ()
    ) -> tuple[strategy.Array, Sequence[strategy.Slices]]:
        """Change arrays on the host. The backend calls this there."""
        try:
            rows = float(flat[-1])
            gathered = self._gather(slices, rows) if self._gather is not None and slices else ()
            self._on_host(flat, rows)
        except BaseException as error:
            self.error = error
            raise
        return flat, gathered


def _choose_dtype(gradients: Sequence[Any]) -> str:
    """Return the dtype in which gradients are added up. Sums of halves would lose too much."""
    names = {keras.backend.standardize_dtype(gradient.dtype) for gradient in gradients}
    return "float64" if "float64" in names else "float32"


def _find_sizes(gradients: Sequence[Any]) -> list[int]:
    return [math.prod(gradient.shape) for gradient in gradients]


def _cross_tensorflow(crossing: Crossing, given: Sequence[object], rows: object) -> list[object]:
    import tensorflow as tf

    some = [one for one in given if crossing.keeps_slices and isinstance(one, tf.IndexedSlices)]
    whole = [tf.convert_to_tensor(one) for one in given if not any(one is other for other in some)]
    dtype = tf.as_dtype(_choose_dtype(given))
    parts = [tf.reshape(tf.cast(gradient, dtype), [-1]) for gradient in whole]
    flat = tf.concat([*parts, tf.reshape(tf.cast(rows, dtype), [1])], 0)
    sent = [tensor for one in some for tensor in (tf.cast(one.indices, tf.int64), tf.cast(one.values, dtype))]

    def call(array: Any, *arrays: Any) -> Any:
        averaged, gathered = crossing.call(np.array(array), list(zip(arrays[::2], arrays[1::2], strict=True)))
        return [averaged, *(array for slices in gathered for array in slices)]

    dtypes = [dtype, *(tensor.dtype for tensor in sent)]
    returned = tf.numpy_function(call, [flat, *sent], dtypes)
    averaged, *gathered = returned if isinstance(returned, list) else [returned]  # eagerly, one result is no list
    averaged.set_shape([None])
    split = tf.split(averaged, [*(tf.size(gradient) for gradient in whole), 1], num=len(whole) + 1)
    back = iter(_reshape_like(part, gradient) for part, gradient in zip(split, whole, strict=False))
    pairs = iter(zip(gathered[::2], gathered[1::2], strict=True))
    return [_rebuild_slices(one, *next(pairs)) if any(one is other for other in some) else next(back) for one in given]


def _reshape_like(part: Any, gradient: Any) -> Any:
    """Return a part of the array in a gradient's shape and dtype. The shape may be known only when the step is
    computed, for example that of a layer on sequences."""
    import tensorflow as tf

    back = tf.cast(tf.reshape(part, tf.shape(gradient)), gradient.dtype)
    return tf.ensure_shape(back, gradient.shape)


def _rebuild_slices(like: Any, indices: Any, values: Any) -> object:
    import tensorflow as tf

    indices.set_shape([None])
    values.set_shape([None, *like.values.shape[1:]])
    return tf.IndexedSlices(tf.cast(values, like.dtype), tf.cast(indices, like.indices.dtype), like.dense_shape)


def _cross_jax(crossing: Crossing, gradients: Sequence[Any], rows: object) -> list[object]:
    import jax
    from jax.experimental import io_callback

    numpy = jax.numpy
    dtype = _choose_dtype(gradients)
    parts = [gradient.astype(dtype).reshape(-1) for gradient in gradients]
    flat = numpy.concatenate([*parts, numpy.asarray([rows], dtype)])
    shape = jax.ShapeDtypeStruct(flat.shape, flat.dtype)
    averaged = io_callback(lambda array: crossing.call(np.array(array))[0], shape, flat, ordered=True)
    ends = np.cumsum(_find_sizes(gradients))
    back = numpy.split(averaged, ends)
    return [
        part.reshape(gradient.shape).astype(gradient.dtype) for part, gradient in zip(back, gradients, strict=False)
    ]


def _cross_torch(crossing: Crossing, gradients: Sequence[Any], rows: Any) -> list[object]:
    import torch

    def cross() -> list[object]:
        dtype = getattr(torch, _choose_dtype(gradients))
        parts = [gradient.detach().reshape(-1).to(dtype) for gradient in gradients]
        flat = torch.cat([*parts, torch.tensor([float(rows)], dtype=dtype, device=parts[0].device)])
        on_host = flat.cpu()  # no copy, if it is there
        crossing.call(on_host.numpy())
        back = torch.split(on_host.to(flat.device), [*_find_sizes(gradients), 1])
        return [part.view(gradient.shape).to(gradient.dtype) for part, gradient in zip(back, gradients, strict=False)]

    outside: Callable[[], list[object]] = torch.compiler.disable(cross)  # type: ignore[no-untyped-call]
    return outside()


_CROSS: Final = {"tensorflow": _cross_tensorflow, "jax": _cross_jax, "torch": _cross_torch}
