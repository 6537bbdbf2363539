"""Gives each rank its part of arrays, batch by batch, from the sample ledger.

All batches of a rank have the same number of rows, so a jitted step is compiled once. A shorter batch is filled up with
copies of one of its rows, of weight 0. A loop gets the weights with every batch, so it cannot overlook them. With these
weights the mean of ``losses * weights`` in each rank, averaged over the ranks, is the mean over the rows of the global
batch. The weights are 1 except in a batch that was filled up.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

import jax
import numpy as np

from hocket.data import cursor as cursor_module
from hocket.data import ledger
from hocket.data import loader as loader_module
from hocket.train.frameworks.jax import devices, framework, trees
from hocket.train.rank import worker_session

Place = Callable[[Sequence[Any]], Sequence[Any]]


def prepare_arrays(
    arrays: object,
    batch_size: int,
    *,
    shuffle: bool = True,
    seed: int = 0,
    drop_last: bool = False,
    name: str | None = None,
    resume: bool = True,
) -> PreparedArrays:
    """Return a loader of this rank's part of the rows of arrays.

    With n ranks, n batches are processed at once. They are the ranks' slices of a *global batch* of n times the size,
    drawn from `hocket.data.Ledger`. All ranks take the same number of steps, and each row is in one batch of one rank.
    With `Sharded`, ranks that share a batch have the same slice, and a batch is a global array with the rows of all.

    *Going on.* Each reported checkpoint holds the loader's position. After a restart, with any number of ranks, the
    first loop over the loader goes on there, with the rows that were not handed out. A batch counts as done when the
    loop has it, so report after the step. A loop that counts epochs begins at ``loader.epoch``. Prepare it once, not in
    every epoch.

    Args:
        arrays: A pytree of arrays of numpy or JAX with the same number of rows, such as ``(images, labels)``. They are
            not moved or copied; a ``numpy.memmap`` is read batch by batch.
        batch_size: The number of rows in a batch of one rank.
        shuffle: Whether each epoch has another order, the same in all ranks.
        seed: The seed of the order; the same in all ranks.
        drop_last: Whether to leave out rows that fill no global batch. Otherwise the last batches are filled up with
            rows of weight 0.
        name: The name of the loader's position in checkpoints. Default: loaders without a name are matched by the order
            in which they are prepared.
        resume: Whether checkpoints hold the position, and restore it.

    Raises:
        TypeError: A leaf is no array, or a setting has the wrong type.
        ValueError: The arrays have no rows, or different numbers of rows; an epoch would have no batch; the name is
            taken, or is no name; or the checkpoint's position is for other rows.
        RuntimeError: The caller is outside a training function.

    Example:
        >>> import tempfile, numpy as np
        >>> from hocket import train
        >>> from hocket.train.jax import JaxTrainer, prepare_arrays
        >>> def show_rows():
        ...     loader = prepare_arrays({"x": np.arange(5.0)}, batch_size=4, shuffle=False)
        ...     return [(batch["x"].tolist(), weights.tolist()) for batch, weights in loader]
        >>> JaxTrainer(
        ...     show_rows,
        ...     scaling_config=train.ScalingConfig(num_workers=0),
        ...     run_config=train.RunConfig(storage_path=tempfile.mkdtemp()),
        ... ).fit().return_value
        [([0.0, 1.0, 2.0, 3.0], [1.0, 1.0, 1.0, 1.0]), ([4.0, 4.0, 4.0, 4.0], [4.0, 0.0, 0.0, 0.0])]
    """
    session = worker_session.get_session("jax.prepare_arrays")
    leaves, values, structure = trees.list_leaves(arrays, "prepare_arrays")
    num_rows = _count_rows(leaves, "prepare_arrays")
    if batch_size < 1:
        raise ValueError(f"batch_size must be 1 row or more, but received {batch_size!r}. 32 is usual.")
    cursor = loader_module.build_cursor(
        "The arrays", num_rows, batch_size, *session.batch_part, seed=seed, shuffle=shuffle, drop_last=drop_last
    )
    if resume:
        session.follow(cursor, name, "prepare_arrays")
    exchange = framework.FRAMEWORK.get_state("prepare_arrays")
    place = functools.partial(exchange.place_batch, device=devices.get_device())
    return PreparedArrays([np.asarray(value) for value in values], structure, cursor, place)


def prepare_batch(batch: object) -> Any:
    """Return a batch of the rank's rows, ready for a step. For rows that do not come from `prepare_arrays`, such as
    those of `hocket.train.get_dataset_shard`.

    With `Sharded` the result is a global array with the rows of all ranks, so all ranks must call this with the same
    number of rows. With the other strategies the batch is moved to the rank's device.

    Args:
        batch: A pytree of arrays with the same number of rows.

    Raises:
        TypeError: A leaf is no array.
        ValueError: The arrays, or the ranks, have different numbers of rows.
        RuntimeError: The caller is outside a training function.

    Example:
        >>> import tempfile, numpy as np
        >>> from hocket import train
        >>> from hocket.train.jax import JaxTrainer, prepare_batch
        >>> JaxTrainer(
        ...     lambda: prepare_batch({"x": np.ones((4, 2))})["x"].shape,
        ...     scaling_config=train.ScalingConfig(num_workers=0),
        ...     run_config=train.RunConfig(storage_path=tempfile.mkdtemp()),
        ... ).fit().return_value
        (4, 2)
    """
    exchange = framework.FRAMEWORK.get_state("prepare_batch")
    leaves, values, structure = trees.list_leaves(batch, "prepare_batch")
    count = _count_rows(leaves, "prepare_batch")
    if exchange.needs_equal_rows:
        counts = framework.FRAMEWORK.get_collectives("prepare_batch").all_gather_object(count)
        if len(set(counts)) > 1:
            raise ValueError(
                f"prepare_batch() needs equally many rows in all ranks, but they have {counts}. Leave the last batch "
                "out, as iter_batches(drop_last=True) does, or use prepare_arrays(), which fills it up."
            )
    placed = exchange.place_batch([np.asarray(value) for value in values], devices.get_device())
    return jax.tree_util.tree_unflatten(structure, placed)


def _count_rows(leaves: list[trees.Leaf], caller: str) -> int:
    if not leaves:
        raise ValueError(f"{caller}() received a pytree without arrays. Pass the data, such as (images, labels).")
    for leaf in leaves:
        if not leaf.shape:
            raise ValueError(
                f"{caller}() takes arrays whose first dimension is the rows, but {leaf.name or 'the array'!r} "
                "is one number. Keep it out of the tree."
            )
    first = leaves[0]
    other = next((leaf for leaf in leaves if leaf.shape[0] != first.shape[0]), None)
    if other is not None:
        raise ValueError(
            f"{caller}() takes arrays with equally many rows, but {first.name!r} has {first.shape[0]} and "
            f"{other.name!r} has {other.shape[0]}. Check how they were made: the first dimension must be the rows."
        )
    return first.shape[0]


@final
class PreparedArrays(loader_module.LedgerLoader):
    """A loader of one rank's batches.

    Made by `prepare_arrays`. A loop over the loader is one epoch, and gets pairs of a batch and its weights.

    Args:
        columns: The arrays.
        structure: The structure of the tree whose leaves the arrays are.
        cursor: The loader's position.
        place: Moves a batch's arrays to the memory where steps compute.

    Example:
        >>> import tempfile, jax.numpy as jnp, numpy as np
        >>> from hocket import train
        >>> from hocket.train.jax import JaxTrainer, prepare_arrays
        >>> def take_steps():
        ...     loader = prepare_arrays(np.arange(8.0), batch_size=4)
        ...     for epoch in range(loader.epoch, 2):  # after a restart, the epoch that was interrupted
        ...         for batch, weights in loader:
        ...             loss = jnp.mean(jnp.square(batch) * weights)  # here the step would follow
        ...             left = loader.steps_left
        ...     return loader.epoch, left, len(loader)
        >>> JaxTrainer(
        ...     take_steps,
        ...     scaling_config=train.ScalingConfig(num_workers=0),
        ...     run_config=train.RunConfig(storage_path=tempfile.mkdtemp()),
        ... ).fit().return_value
        (2, 0, 2)
    """

    _cursor: cursor_module.Cursor

    def __init__(self, columns: list[Any], structure: object, cursor: cursor_module.Cursor, place: Place) -> None:
        self._columns = columns
        self._structure = structure
        self._cursor = cursor
        self._place = place

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        loop, parts = self._cursor.begin()
        begun = loader_module.Loop(self._cursor, loop, ((part, self._read(part)) for part in parts))
        return self._hand_out(lambda: begun)

    def __len__(self) -> int:
        """Return the number of batches in a whole epoch, in each rank."""
        return self._cursor.ledger.steps_per_epoch

    def _read(self, part: ledger.Slice) -> tuple[object, object]:
        rows = part.padded_indices
        weights = part.weights * np.float32(part.width * part.world_size / part.batch_rows)
        found = self._place([*(column[rows] for column in self._columns), weights])
        return jax.tree_util.tree_unflatten(self._structure, found[:-1]), found[-1]
