"""From a step that a backend computes, compiled or not, to the host and back: gradients in, gradients out.

All gradients travel as one flat array, with the number of rows behind them as its last element. Copies of it a step, on CPU:

==========  ===========================================================================================================================
backend     copies
==========  ===========================================================================================================================
TensorFlow  one to put them together, one for an array that may be written to, and none back, since TensorFlow takes numpy's memory over
JAX         the same, and one back
torch       one to put them together; the collective works in that memory, and the gradients become views of it
==========  ===========================================================================================================================

The collective adds its own: into shared memory and out again (`hocket.collective.host_group`).

What an error on the host looks like depends on the backend, and is not what was raised. `Crossing` keeps that.

TensorFlow's XLA cannot call the host; JAX's can, and torch.compile leaves the compiled code for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias, final

import keras
import numpy as np
import numpy.typing as npt

OnHost: TypeAlias = Callable[[npt.NDArray[Any], float], None]
"""Changes an array in place, given the number of rows; its last element has no meaning."""


@final
class Crossing:
    """Takes one backend's gradients to the host and back.

    Args:
        on_host: What to do with them there.
    """

    def __init__(self, on_host: OnHost) -> None:
        self._on_host = on_host
        self.error: BaseException | None = None
        """What `on_host` has raised. The backend's own error only quotes it."""
        self._cross: Final = _CROSS[keras.backend.backend()]

    def begin(self) -> None:
        """Forget an error."""
        self.error = None

    def average(self, gradients: Sequence[Any], rows: Any) -> list[Any]:
        """Return gradients as the host made them; None stays None.

        Args:
            gradients: The backend's tensors, all of the step.
            rows: Of how many rows they are the mean: a number, or a tensor where it is not known yet.
        """
        there = [gradient for gradient in gradients if gradient is not None]
        if not there:
            return list(gradients)
        back = iter(self._cross(self._call, there, rows))
        return [None if gradient is None else next(back) for gradient in gradients]

    def _call(self, flat: npt.NDArray[Any]) -> npt.NDArray[Any]:
        try:
            self._on_host(flat, float(flat[-1]))
        except BaseException as error:
            self.error = error
            raise
        return flat


def _choose_dtype(gradients: Sequence[Any]) -> str:
    """Return what to add up in: halves lose too much."""
    names = {keras.backend.standardize_dtype(gradient.dtype) for gradient in gradients}
    return "float64" if "float64" in names else "float32"


def _find_sizes(gradients: Sequence[Any]) -> list[int]:
    return [math.prod(gradient.shape) for gradient in gradients]


def _cross_tensorflow(call: Callable[..., Any], given: Sequence[Any], rows: Any) -> list[Any]:
    import tensorflow as tf

    gradients = [tf.convert_to_tensor(gradient) for gradient in given]  # of an embedding, only some rows are there
    dtype = tf.as_dtype(_choose_dtype(gradients))
    parts = [tf.reshape(tf.cast(gradient, dtype), [-1]) for gradient in gradients]
    flat = tf.concat([*parts, tf.reshape(tf.cast(rows, dtype), [1])], 0)
    averaged = tf.numpy_function(lambda array: call(np.array(array)), [flat], dtype)
    sizes = _find_sizes(gradients)
    averaged.set_shape([sum(sizes) + 1])
    back = tf.split(averaged, [*sizes, 1])
    return [
        tf.cast(tf.reshape(part, gradient.shape), gradient.dtype)
        for part, gradient in zip(back, gradients, strict=False)
    ]


def _cross_jax(call: Callable[..., Any], gradients: Sequence[Any], rows: Any) -> list[Any]:
    import jax
    from jax.experimental import io_callback

    numpy = jax.numpy
    dtype = _choose_dtype(gradients)
    parts = [gradient.astype(dtype).reshape(-1) for gradient in gradients]
    flat = numpy.concatenate([*parts, numpy.asarray([rows], dtype)])
    shape = jax.ShapeDtypeStruct(flat.shape, flat.dtype)
    averaged = io_callback(lambda array: call(np.array(array)), shape, flat, ordered=True)
    ends = np.cumsum(_find_sizes(gradients))
    back = numpy.split(averaged, ends)
    return [
        part.reshape(gradient.shape).astype(gradient.dtype) for part, gradient in zip(back, gradients, strict=False)
    ]


def _cross_torch(call: Callable[..., Any], gradients: Sequence[Any], rows: Any) -> list[Any]:
    import torch

    def cross() -> list[Any]:
        dtype = getattr(torch, _choose_dtype(gradients))
        parts = [gradient.detach().reshape(-1).to(dtype) for gradient in gradients]
        flat = torch.cat([*parts, torch.tensor([float(rows)], dtype=dtype, device=parts[0].device)])
        on_host = flat.cpu()  # itself, if it is there
        call(on_host.numpy())
        back = torch.split(on_host.to(flat.device), [*_find_sizes(gradients), 1])
        return [part.view(gradient.shape).to(gradient.dtype) for part, gradient in zip(back, gradients, strict=False)]

    outside: Callable[[], list[Any]] = torch.compiler.disable(cross)  # type: ignore[no-untyped-call]
    return outside()


_CROSS: Final = {"tensorflow": _cross_tensorflow, "jax": _cross_jax, "torch": _cross_torch}
