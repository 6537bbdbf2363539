"""Batches of a dataset, or of a rank's part, in the formats of frameworks."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from hocket.data import blocks, reading
from hocket.data.methods.contract import Batched, Batching
from hocket.data.tensors import to_jax, to_tensorflow, to_torch

T = TypeVar("T")

PREFETCH_BATCHES = 1
"""Ray's default."""


def _begin(self: Batched, convert: Callable[[blocks.Block], T], batching: Batching) -> Iterable[T]:
    reading.check_batch_size(batching.batch_size, may_be_none=self._may_lack_size)
    reading.check_count("local_shuffle_buffer_size", batching.shuffle_buffer, 1)
    reading.check_count("local_shuffle_seed", batching.shuffle_seed, 0)
    reading.check_count("prefetch_batches", batching.prefetch_batches, 0)
    return self._loop(convert, batching)


def iter_batches(
    self: Batched,
    *,
    prefetch_batches: int = PREFETCH_BATCHES,
    batch_size: int | None = 256,
    batch_format: str | None = "default",
    drop_last: bool = False,
    local_shuffle_buffer_size: int | None = None,
    local_shuffle_seed: int | None = None,
) -> Iterable[blocks.Batch]:
    """Return an iterable of batches, for any number of loops.

    The batches belong to the caller, and may be written to.

    Args:
        prefetch_batches: Number of batches that a thread makes ahead; 0: there is no thread.
        batch_size: Number of rows of a batch. In training it counts for each rank: all ranks together take that many
            rows times their number in a step.
        batch_format: ``"default"`` or ``"numpy"`` for a dict of arrays, ``"pandas"`` for a DataFrame, ``"pyarrow"``
            or None for a Table.
        drop_last: Whether to leave out rows at the end that do not fill a batch; in training, a batch of all ranks.
        local_shuffle_buffer_size: Number of consecutive rows among which each row is shuffled. Default: no shuffle.
        local_shuffle_seed: Selects the shuffle. Default: 0, the same in each rank and run.

    Raises:
        ValueError: A number is too small, or the format does not exist.

    Example:
        >>> from hocket import data
        >>> [batch["id"].tolist() for batch in data.range(5).iter_batches(batch_size=2)]
        [[0, 1], [2, 3], [4]]
    """
    form = blocks.check_format(batch_format)
    return _begin(
        self,
        lambda block: block.to_batch(form, is_owned=True),
        Batching(batch_size, drop_last, local_shuffle_buffer_size, local_shuffle_seed, prefetch_batches),
    )


def iter_torch_batches(
    self: Batched,
    *,
    prefetch_batches: int = PREFETCH_BATCHES,
    batch_size: int | None = 256,
    dtypes: object = None,
    device: object = "auto",
    collate_fn: Callable[[dict[str, Any]], object] | None = None,
    drop_last: bool = False,
    local_shuffle_buffer_size: int | None = None,
    local_shuffle_seed: int | None = None,
    pin_memory: bool = False,
) -> Iterable[Any]:
    """Return an iterable of batches as dicts of tensors, for any number of loops.

    Args:
        prefetch_batches: See `iter_batches` for this and the arguments that are not listed here.
        dtypes: The tensors' dtype for all columns, or a dict of dtypes by column. Default: the columns' own.
        device: The tensors' device. Default: the rank's GPU if it has one, else the CPU.
        collate_fn: Makes the batch from a dict of arrays, in the place of this method. It runs in the thread that makes
            batches.
        pin_memory: Whether tensors go to the GPU through pinned memory.

    Raises:
        TypeError: A dtype is not one of torch's; or a column does not hold numbers, which the loop raises.
        MissingExtraError: torch is not installed.

    Example:
        >>> import torch
        >>> from hocket import data
        >>> rows = data.from_items([{"x": [value], "y": 2 * value} for value in range(3)])
        >>> for batch in rows.iter_torch_batches(batch_size=2, dtypes=torch.float32):
        ...     print(batch["x"].tolist(), batch["y"].tolist())
        [[0.0], [1.0]] [0.0, 2.0]
        [[2.0]] [4.0]
    """
    convert = to_torch.build_converter(
        dtypes, to_torch.find_device(device, use_gpu=self._use_gpu), collate_fn, pin_memory=pin_memory
    )
    return _begin(
        self, convert, Batching(batch_size, drop_last, local_shuffle_buffer_size, local_shuffle_seed, prefetch_batches)
    )


def iter_jax_batches(
    self: Batched,
    *,
    prefetch_batches: int = PREFETCH_BATCHES,
    batch_size: int | None = 256,
    dtypes: object = None,
    collate_fn: Callable[[dict[str, Any]], Any] | None = None,
    drop_last: bool = False,
    local_shuffle_buffer_size: int | None = None,
    local_shuffle_seed: int | None = None,
    synchronize_batches: bool = False,
    paddings: float | Mapping[str, float] | None = None,
) -> Iterable[Any]:
    """Return an iterable of batches as dicts of JAX arrays, on JAX's default device, for any number of loops.

    Args:
        prefetch_batches: See `iter_batches` for this and the arguments that are not listed here.
        dtypes: The arrays' dtype for all columns, or a dict of dtypes by column. Default: JAX's conversion, which turns
            64 bits into 32.
        collate_fn: Makes other arrays from a batch, a dict of arrays, before they become JAX's: a dict, or one array.
            It runs in the thread that makes batches.
        synchronize_batches: For programs written for Ray: has no effect.
        paddings: The number that fills up a shorter last batch: for all columns, or a dict by column. Default: it stays
            short.

    Raises:
        TypeError: A column does not hold numbers. Raised by the loop.
        ValueError: `paddings` are given, and `batch_size` is None.
        MissingExtraError: JAX is not installed.
    """
    return _begin(
        self,
        to_jax.build_converter(dtypes, collate_fn, paddings, batch_size),
        Batching(batch_size, drop_last, local_shuffle_buffer_size, local_shuffle_seed, prefetch_batches),
    )


def iter_tf_batches(
    self: Batched,
    *,
    prefetch_batches: int = PREFETCH_BATCHES,
    batch_size: int | None = 256,
    dtypes: object = None,
    drop_last: bool = False,
    local_shuffle_buffer_size: int | None = None,
    local_shuffle_seed: int | None = None,
) -> Iterable[dict[str, Any]]:
    """Return an iterable of batches as dicts of TensorFlow's tensors, for any number of loops.

    Args:
        prefetch_batches: See `iter_batches` for this and the arguments that are not listed here.
        dtypes: The tensors' dtype for all columns, or a dict of dtypes by column. Default: the columns' own.

    Raises:
        TypeError: A column holds neither numbers nor strings. Raised by the loop.
        MissingExtraError: TensorFlow is not installed.
    """
    return _begin(
        self,
        to_tensorflow.build_converter(dtypes),
        Batching(batch_size, drop_last, local_shuffle_buffer_size, local_shuffle_seed, prefetch_batches),
    )


def to_tf(
    self: Batched,
    feature_columns: to_tensorflow.Names,
    label_columns: to_tensorflow.Names,
    *,
    additional_columns: to_tensorflow.Names | None = None,
    prefetch_batches: int = PREFETCH_BATCHES,
    batch_size: int = 1,
    drop_last: bool = False,
    local_shuffle_buffer_size: int | None = None,
    local_shuffle_seed: int | None = None,
    feature_type_spec: object = None,
    label_type_spec: object = None,
    additional_type_spec: object = None,
) -> Any:
    """Return a ``tf.data.Dataset`` of pairs of features and labels, as ``model.fit`` takes it. Each loop is an epoch.

    A batch counts as done when TensorFlow asks for it. Batches that TensorFlow's own ``prefetch`` or ``cache`` has read
    ahead are not read again after a restart; use `prefetch_batches` instead.

    Args:
        feature_columns: One column, which becomes a tensor, or several, which become a dict of tensors. A dict gives
            the tensors other names.
        label_columns: The columns of the labels, in the same forms.
        additional_columns: The columns of Keras' third element, the weights, in the same forms.
        prefetch_batches: See `iter_batches` for this and the arguments that are not listed here.
        feature_type_spec: Types and shapes of the features. Default: the columns' own.
        label_type_spec: Types and shapes of the labels. Default: the columns' own.
        additional_type_spec: Types and shapes of the additional columns. Default: the columns' own.

    Raises:
        KeyError: A column does not exist.
        TypeError: A column holds neither numbers nor strings.
        MissingExtraError: TensorFlow is not installed.
    """
    tf_blocks: Iterable[blocks.Block] = _begin(
        self,
        lambda block: block,
        Batching(batch_size, drop_last, local_shuffle_buffer_size, local_shuffle_seed, prefetch_batches),
    )
    return to_tensorflow.build_dataset(
        lambda: iter(tf_blocks),
        self._peek(),
        feature_columns,
        label_columns,
        additional_columns,
        (feature_type_spec, label_type_spec, additional_type_spec),
    )


def iter_rows(self: Batched) -> Iterator[blocks.Row]:
    """Return an iterator over the rows, each a dict of Python values.

    Example:
        >>> from hocket import data
        >>> list(data.range(2).iter_rows())
        [{'id': 0}, {'id': 1}]
    """
    found: Iterable[list[blocks.Row]] = _begin(
        self, lambda block: list(block.list_rows()), Batching(self._row_batch_size, False, None, None, 0)
    )
    return itertools.chain.from_iterable(found)
