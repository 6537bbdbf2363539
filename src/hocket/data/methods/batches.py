"""Batches of a data set, or of a rank's part of one, in the forms that frameworks take."""

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
    """Return something to loop over, any number of times: batches of rows.

    They are the caller's own, and may be written to.

    Args:
        prefetch_batches: How many batches a thread makes ahead; 0 for none.
        batch_size: How many rows a batch has. In training: each rank's, so that all ranks together take so many
            times their number in a step.
        batch_format: ``"default"`` or ``"numpy"`` for a dict of arrays, ``"pandas"`` for a DataFrame, ``"pyarrow"``
            or None for a Table.
        drop_last: Whether to leave out rows at the end that do not fill a batch; in training, one of all ranks.
        local_shuffle_buffer_size: Among how many rows that follow one another each row is shuffled. Default: not at
            all.
        local_shuffle_seed: Which shuffle. Default: 0, the same in each rank and run.

    Raises:
        ValueError: A number is too small, or there is no such format.

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
    """Return something to loop over, any number of times: batches as a dict of tensors.

    Args:
        prefetch_batches: See `iter_batches`, and the other arguments that are not named here.
        dtypes: What the tensors are made: one dtype for all columns, or a dict of them by column. Default: as the
            columns are.
        device: Where they go. Default: the rank's GPU if it has one, else the CPU.
        collate_fn: Makes the batch of a dict of arrays, in place of this method. It runs in the thread that makes
            batches.
        pin_memory: Whether they go through pinned memory to the GPU.

    Raises:
        TypeError: A column holds no numbers, or a dtype is none of torch's. The first is raised by the loop.
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
    """Return something to loop over, any number of times: batches as a dict of JAX arrays, on JAX's default device.

    Args:
        prefetch_batches: See `iter_batches`, and the other arguments that are not named here.
        dtypes: What the arrays are made: one dtype for all columns, or a dict of them by column. Default: as JAX
            converts them, which makes 64 bits 32.
        collate_fn: Makes other arrays of a batch, a dict of arrays, before they become JAX's: a dict, or one array.
            It runs in the thread that makes batches.
        synchronize_batches: For programs written for Ray: has no effect.
        paddings: With what a last batch that is shorter is filled up: a number for all columns, or a dict by
            column. Default: it stays short.

    Raises:
        TypeError: A column holds no numbers. Raised by the loop.
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
    """Return something to loop over, any number of times: batches as a dict of TensorFlow's tensors.

    Args:
        prefetch_batches: See `iter_batches`, and the other arguments that are not named here.
        dtypes: What the tensors are made: one dtype for all columns, or a dict of them by column. Default: as the
            columns are.

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
    """Return a ``tf.data.Dataset`` of pairs of features and labels, as ``model.fit`` takes it; an epoch each time
    that it is looped over.

    A batch counts as done when TensorFlow asks for it. What its own ``prefetch`` or ``cache`` adds is read ahead,
    and after a restart not read again; use `prefetch_batches`.

    Args:
        feature_columns: One column, which gives a tensor, or several, which give a dict of tensors. A dict gives
            the tensors other names.
        label_columns: The same, for the labels.
        additional_columns: The same, for what Keras takes third: weights.
        prefetch_batches: See `iter_batches`, and the other arguments that are not named here.
        feature_type_spec: Types and shapes of the features. Default: as the columns are.
        label_type_spec: The same, for the labels.
        additional_type_spec: The same, for the additional columns.

    Raises:
        KeyError: There is no such column.
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
    """Give each row as a dict of Python values.

    Example:
        >>> from hocket import data
        >>> list(data.range(2).iter_rows())
        [{'id': 0}, {'id': 1}]
    """
    found: Iterable[list[blocks.Row]] = _begin(
        self, lambda block: list(block.list_rows()), Batching(self._row_batch_size, False, None, None, 0)
    )
    return itertools.chain.from_iterable(found)
