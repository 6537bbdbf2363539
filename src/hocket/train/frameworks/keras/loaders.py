"""Gives each rank its part of arrays, batch by batch, from the sample ledger.

Keras reads a data set by number, ahead of the steps, in threads of its own, and once more to see the shapes. So reading
does not move the position; the steps of a prepared model's `fit` do (`models`).

In training, a rank whose slice of the last batch is empty takes the step with another rank's row, which counts neither
for the gradients nor for the metrics. In evaluation it does not take that step.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from typing import Any, Final, final

import keras
import numpy as np

from hocket.data import cursor as cursor_module
from hocket.data import ledger
from hocket.data import loader as loader_module
from hocket.train.frameworks.keras import framework, sharding
from hocket.train.rank import worker_session


def prepare_arrays(
    x: object,
    y: object = None,
    sample_weight: object = None,
    *,
    batch_size: int = 32,
    shuffle: bool = True,
    seed: int = 0,
    drop_last: bool = False,
    name: str | None = None,
    resume: bool = True,
) -> PreparedArrays:
    """Return this rank's part of arrays, for ``fit`` and ``evaluate`` of a prepared model.

    With n ranks, n batches are processed at once. They are the ranks' slices of a *global batch* of n times the size,
    drawn from `hocket.data.Ledger`. All ranks take the same number of steps, and each row is in one batch of one rank.
    The last batch of an epoch may be shorter. Its gradients count by their rows, so the step is that of a single
    process with the global batch.

    *Going on.* Each reported checkpoint holds the position. After a restart, with any number of ranks, the first
    ``fit`` goes on there, with the rows that were not trained on. Write ``fit(data, initial_epoch=data.epoch,
    epochs=...)``. For evaluation the position does not matter, and exactly one rank sees each row, once.

    Args:
        x: The inputs: an array, or a dict, list or tuple of arrays with the same number of rows. The same in all ranks.
        y: The targets, in the same form; None if there are none.
        sample_weight: A weight for each row; None if there are none.
        batch_size: The number of rows that a rank has in a step.
        shuffle: Whether each epoch has an order of its own.
        seed: The seed of the orders.
        drop_last: Whether to leave out the rows at the end of an epoch that fill no global batch.
        name: The name of the position in checkpoints. Default: data without a name are matched by the order in which
            they are prepared.
        resume: Whether checkpoints hold the position, and restore it. Write False for data that is only evaluated.

    Raises:
        ValueError: The arrays have different numbers of rows, or too few for the ranks; the name is taken; or the
            checkpoint's position is for other rows.
        TypeError: A value has no rows.
        RuntimeError: The caller is outside a training function.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from hocket import train
        >>> from hocket.train.keras import KerasTrainer, prepare_arrays
        >>> def show():
        ...     data = prepare_arrays(np.arange(5), np.arange(5) * 2, batch_size=2, shuffle=False)
        ...     return [(x.tolist(), y.tolist()) for x, y in data]
        >>> trainer = KerasTrainer(
        ...     show,
        ...     scaling_config=train.ScalingConfig(num_workers=0),
        ...     run_config=train.RunConfig(storage_path=tempfile.mkdtemp()),
        ... )
        >>> trainer.fit().return_value
        [([0, 1], [0, 2]), ([2, 3], [4, 6]), ([4], [8])]
    """
    session = worker_session.get_session("keras.prepare_arrays")
    part, parts = session.batch_part
    given: tuple[object, ...] = (x,) if y is None else (x, y)
    if sample_weight is not None:
        if y is None:
            raise ValueError("prepare_arrays() received sample_weight without y. Pass the targets too.")
        given = (x, y, sample_weight)
    arrays = _without_lists(keras.tree.map_structure(_check_array, given))
    num_rows = _count_rows(arrays)
    if num_rows < parts:
        raise ValueError(
            f"prepare_arrays() received {num_rows} rows for {parts} ranks, but each rank needs one or more. Use fewer "
            "ranks, or more data."
        )
    cursor = loader_module.build_cursor(
        "The arrays", num_rows, batch_size, part, parts, seed=seed, shuffle=shuffle, drop_last=drop_last
    )
    if resume:
        session.follow(cursor, name, "prepare_arrays")
    whole = ledger.Ledger(num_rows, cursor.ledger.batch_size, shuffle=False)
    state = framework.FRAMEWORK.get_optional_state()
    is_joint = state is not None and isinstance(state.runtime, sharding.Runtime)
    return PreparedArrays(arrays, cursor, whole, is_joint=is_joint)


def _check_array(array: object) -> object:
    if isinstance(array, np.ndarray) and array.ndim:
        return array
    if hasattr(array, "__array__") and np.ndim(array):
        return np.asarray(array)
    raise TypeError(
        f"prepare_arrays() takes arrays with a row for each sample, but received {type(array).__name__}: "
        f"{str(array)[:80]}. Write numpy.asarray(...) first. Give a tf.data.Dataset or a DataLoader to fit() itself, "
        "and split it among the ranks yourself."
    )


def _without_lists(given: object) -> object:
    """Return a structure, on TensorFlow with tuples for lists: the data sets that Keras reads allow no lists."""
    if keras.backend.backend() != "tensorflow":
        return given
    if isinstance(given, list | tuple):
        return tuple(_without_lists(one) for one in given)
    if isinstance(given, dict):
        return {name: _without_lists(one) for name, one in given.items()}
    return given


def _count_rows(arrays: object) -> int:
    counts = [len(array) for array in keras.tree.flatten(arrays)]
    if len(set(counts)) != 1:
        raise ValueError(
            f"prepare_arrays() takes arrays with equally many rows, but received {' and '.join(map(str, counts))}. "
            "Check how they were cut."
        )
    return counts[0]


@final
class PreparedArrays(loader_module.Positioned, keras.utils.PyDataset):  # type: ignore[misc]  # Keras is not type-checked
    """One rank's batches of arrays. Made by `prepare_arrays`."""

    _cursor: cursor_module.Cursor

    def __init__(
        self, arrays: object, cursor: cursor_module.Cursor, whole: ledger.Ledger, *, is_joint: bool = False
    ) -> None:
        super().__init__()
        self._arrays = arrays
        self._cursor = cursor
        self._whole: Final = whole
        self._lock = threading.Lock()
        self._loop = 0
        self._is_joint = is_joint
        #: The batches that can be read: an epoch's in training, otherwise each row once.
        self._pass = _Pass(whole, cursor.rank, cursor.world_size, trains=False, is_joint=is_joint)

    @property
    def epoch(self) -> int:
        """The epoch that ``fit`` is in, otherwise the epoch that it begins next, from 0. For ``initial_epoch``."""
        return self._cursor.epoch + (self._cursor.steps_left == 0)

    @property
    def steps_left(self) -> int:
        """The number of steps of that epoch that are not taken yet."""
        return self._cursor.steps_left or self.steps_per_epoch

    @property
    def steps_per_epoch(self) -> int:
        """The number of steps in a whole epoch."""
        return self._cursor.ledger.steps_per_epoch

    @property
    def num_batches(self) -> int:
        """The number of batches that Keras reads."""
        return len(self._pass)

    def __len__(self) -> int:
        """Return the number of this rank's batches."""
        return len(self._pass)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        """Return a batch."""
        with self._lock:  # several threads may read
            rows = self._pass.find(index)
        batch: tuple[Any, ...] = keras.tree.map_structure(lambda array: array[rows], self._arrays)
        return batch

    def open_evaluation(self) -> PreparedArrays:
        """Return the same arrays for an evaluation, which reads each row once, at any position of a training."""
        found = copy.copy(self)
        found.end_training()
        return found

    # --- calls from `fit` of a prepared model -------------------------------------------------------------------------

    @property
    def is_partial(self) -> bool:
        """Whether the next epoch has fewer steps than others, because a checkpoint was in the middle of it."""
        return self.steps_left != self.steps_per_epoch

    def begin_training(self) -> None:
        """Make the batches of the next epoch readable."""
        loop, _ = self._cursor.begin()
        if self._cursor.steps_left == 0:
            self._cursor.leave(loop)
        self._read(self._cursor.ledger, trains=True)

    def _read(self, rows: ledger.Ledger, *, trains: bool) -> None:
        with self._lock:
            self._pass = _Pass(rows, self._cursor.rank, self._cursor.world_size, trains=trains, is_joint=self._is_joint)

    def begin_epoch(self) -> int | None:
        """Note that an epoch begins; return the number of the step with a filler row, None if there is no such step."""
        self._loop, _ = self._cursor.begin()
        self._read(self._cursor.ledger, trains=True)
        return self._pass.find_filler()

    def is_whole(self, index: int) -> bool:
        """Return whether a batch of this pass has the rows of all ranks, because they cannot share them equally."""
        return self._pass.is_whole(index)

    def take(self, count: int) -> None:
        """Note that steps were taken."""
        for _ in range(min(count, self._cursor.steps_left)):
            self._cursor.take(self._loop)

    def end_epoch(self) -> None:
        """Note that the epoch is over."""
        self._cursor.leave(self._loop)

    def end_training(self) -> None:
        """Go back to reading each row once."""
        self._read(self._whole, trains=False)


def open_evaluation(data: object) -> object:
    """Return the data that an evaluation reads: of prepared arrays, which may be in training, a copy."""
    return data.open_evaluation() if isinstance(data, PreparedArrays) else data


@final
class _Pass:
    """The slices of one pass over the rows, by number; read mostly in order.

    Args:
        rows: The start of the pass. It is not moved.
        rank: The rank of the slices.
        world_size: The number of slices of each batch.
        trains: Whether the rank takes each step. Otherwise it leaves out a step without rows.
        is_joint: Whether the ranks compute each step together, on arrays with equal parts. Then they all take it, and
            each has all rows of a batch that cannot be cut equally.
    """

    def __init__(self, rows: ledger.Ledger, rank: int, world_size: int, *, trains: bool, is_joint: bool) -> None:
        self._ledger = copy.copy(rows)
        self._rank, self._size = rank, world_size
        self._trains = trains
        self._is_joint = is_joint
        self._next = 0
        self._parts: Iterator[ledger.Slice] = iter(())
        self._rewind()
        self._count = self._ledger.steps_left
        self._last_rows, self._is_uneven = self._count_last_rows()

    def _rewind(self) -> None:
        rank, size = (0, 1) if self._is_joint else (self._rank, self._size)
        self._next, self._parts = 0, self._ledger.slices(rank, size)

    def _count_last_rows(self) -> tuple[int, bool]:
        """Return the number of this rank's rows in the last batch, and whether other ranks have another number."""
        left = self._ledger.num_rows - self._ledger.position
        rows = min(left - (self._count - 1) * self._ledger.batch_size, self._ledger.batch_size)
        first, end = ledger.cut(rows, self._rank, self._size)
        return end - first, rows % self._size != 0

    def __len__(self) -> int:
        return self._count if self._trains or self._is_joint or self._last_rows else self._count - 1

    def find_filler(self) -> int | None:
        return None if self._is_joint or self._last_rows else self._count - 1

    def is_whole(self, index: int) -> bool:
        return self._is_joint and self._is_uneven and index == self._count - 1

    def find(self, index: int) -> object:
        """Return the numbers of a batch's rows; the filler's if the batch has none."""
        if not 0 <= index < self._count:
            raise IndexError(f"There is no batch {index}: there are {self._count} batches, counted from 0.")
        if index < self._next:
            self._rewind()
        while self._next < index:
            next(self._parts)
            self._next += 1
        self._next += 1
        part = next(self._parts)
        if not self._is_joint:
            return part.indices if len(part.indices) else np.array([part.filler])
        first, end = ledger.cut(len(part.indices), self._rank, self._size)
        return part.indices if self.is_whole(index) else part.indices[first:end]
