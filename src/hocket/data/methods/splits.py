"""Splits of a dataset into several datasets."""

from __future__ import annotations

import dataclasses
import itertools
import math
import secrets
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from hocket.data import calls, execution, plan, reading, steps
from hocket.data.methods import rows, tables
from hocket.data.methods.contract import Self

MAX_PARTS = 100_000
"""Largest number of parts of a split."""


def streaming_train_test_split(
    self: Self,
    test_size: float,
    *,
    split_type: Literal["hash", "random"] = "random",
    hash_column: str | None = None,
    seed: int | None = None,
    **of_ray: object,
) -> tuple[Self, Self]:
    """Return a dataset for training and one for tests. Nothing is executed; each reads all rows and keeps its own.

    Args:
        test_size: The probability with which a row belongs to the second dataset.
        split_type: ``"random"``; or ``"hash"``, which splits by the values of a column. Rows of one value then stay
            together, also in another dataset.
        hash_column: The column for ``"hash"``.
        seed: Selects the rows. Default: random, chosen now.
        **of_ray: Ray's keywords of scheduling. They have no effect.

    Raises:
        ValueError: `test_size` is not between 0 and 1, or the keywords contradict each other.

    Example:
        >>> from hocket import data
        >>> train, test = data.range(100).streaming_train_test_split(0.2, seed=3)
        >>> train.count() + test.count()
        100
    """
    own = ("test_size", "split_type", "hash_column", "seed")
    calls.check_scheduling("streaming_train_test_split", of_ray, own)
    if not _is_share(test_size):
        raise ValueError(f"test_size must be a share between 0 and 1, but received {test_size!r}. Write 0.2.")
    if split_type not in {"hash", "random"} or (split_type == "hash") != (hash_column is not None):
        raise ValueError(
            "split_type must be 'random', or 'hash' with a hash_column, but received "
            f"split_type={split_type!r}, hash_column={hash_column!r}."
        )
    if split_type == "hash" and seed is not None:
        raise ValueError(f"seed={seed!r} is for split_type='random' only: hashes are always the same. Leave it out.")
    reading.check_count("seed", seed, 0)
    chosen = secrets.randbelow(1 << 31) if seed is None else int(seed)
    name = f"streaming_train_test_split({test_size})"
    train = steps.TakeShare(share=test_size, seed=chosen, column=hash_column, is_test=False)
    test = dataclasses.replace(train, is_test=True)
    return self._then(plan.Step(work=train, name=name)), self._then(plan.Step(work=test, name=name))


def split(self: Self, n: int, *, equal: bool = False, locality_hints: object = None) -> list[Self]:
    """Execute the plan, and return parts of consecutive rows. Their sizes differ by at most one row.

    Args:
        n: Number of parts.
        equal: Whether to make the parts equally long, by leaving out up to ``n - 1`` rows at the end.
        locality_hints: For programs written for Ray: has no effect.

    Raises:
        ValueError: `n` is less than 1, or more than `MAX_PARTS`.
    """
    reading.check_count("n", n, 1, "split(2)", most=MAX_PARTS)
    source = execution.Source(self._store(), None)
    total = source.num_rows
    total -= total % n if equal else 0
    return _cut(self, source, [total * number // n for number in range(n + 1)])


def streaming_split(self: Self, n: int, *, equal: bool = False, locality_hints: object = None) -> list[Self]:
    """Execute the plan, and return parts for readers in other tasks and actors. See `split`.

    A part can be sent to a reader, and read in any number of loops, without waiting for the others. (In Ray, the
    readers wait for each other at each epoch. In training, `hocket.train.get_dataset_shard` gives each rank its part.)

    Raises:
        ValueError: `n` is less than 1, or more than `MAX_PARTS`.
    """
    return split(self, n, equal=equal, locality_hints=locality_hints)


def split_at_indices(self: Self, indices: Sequence[int]) -> list[Self]:
    """Execute the plan, and return the parts between these rows.

    Args:
        indices: Numbers of the rows before which to cut, in rising order. A number may repeat.

    Raises:
        ValueError: The numbers fall, or there are none.

    Example:
        >>> from hocket import data
        >>> [part.count() for part in data.range(10).split_at_indices([2, 5])]
        [2, 3, 5]
    """
    several: object = indices
    given = list(several) if isinstance(several, Iterable) else []
    for index in given:
        reading.check_count("each of indices", index, 0, "split_at_indices([10])")
    if not given or given != sorted(given):
        raise ValueError(f"indices must be rising row numbers, but received {given}. Write split_at_indices([10]).")
    source = execution.Source(self._store(), None)
    return _cut(self, source, [0, *(min(index, source.num_rows) for index in given), source.num_rows])


def split_proportionately(self: Self, proportions: Sequence[float]) -> list[Self]:
    """Execute the plan, and return parts with these shares of the rows, and a part with the rest. Each part has at
    least one row.

    Raises:
        ValueError: A share is not above 0, the shares are not below 1 together, or there are too few rows.
    """
    several: object = proportions
    given = list(several) if isinstance(several, Iterable) else []
    if not given or not all(_is_share(one) for one in given) or sum(given) >= 1:
        raise ValueError(
            f"proportions must be above 0, and their sum below 1, but received {given}. Write "
            "split_proportionately([0.8]) for 80 and 20 %."
        )
    source = execution.Source(self._store(), None)
    ends = [math.floor(source.num_rows * share + 1e-9) for share in itertools.accumulate(given)]
    most = source.num_rows
    for at in reversed(range(len(ends))):  # an empty part takes a row from the part before it, as in Ray
        most = ends[at] = min(ends[at], most - 1)
    if ends[0] <= 0:
        raise ValueError(
            f"split_proportionately({given}) leaves none of {source.num_rows} rows for the first part. Take larger "
            "shares."
        )
    return _cut(self, source, [0, *ends, source.num_rows])


def train_test_split(
    self: Self, test_size: float, *, shuffle: bool = False, seed: int | None = None, stratify: str | None = None
) -> tuple[Self, Self]:
    """Execute the plan, and return a part for training and one for tests.

    Args:
        test_size: Number of rows of the second part; below 1, its share of the rows.
        shuffle: Whether the rows are shuffled first.
        seed: Selects the shuffle.
        stratify: A column. Both parts then have the same share of each of its values. `test_size` has to be a share,
            and the rows are sorted by the column.

    Raises:
        ValueError: `test_size` is out of range, or `shuffle` and `stratify` are both given.

    Example:
        >>> from hocket import data
        >>> [part.count() for part in data.range(10).train_test_split(0.2)]
        [8, 2]
    """
    is_count = isinstance(test_size, int) and not isinstance(test_size, bool) and test_size >= 1
    if not is_count and not _is_share(test_size):
        raise ValueError(
            f"test_size must be a share between 0 and 1, or a number of rows, but received {test_size!r}. Write "
            "train_test_split(0.2)."
        )
    if stratify is not None:
        if shuffle or is_count:
            raise ValueError(
                f"stratify needs a test_size between 0 and 1, and shuffle=False, but received test_size={test_size!r} "
                f"and shuffle={shuffle!r}. Write train_test_split(0.2, stratify='y')."
            )
        return _split_groups(self, stratify, float(test_size))
    whole = (rows.random_shuffle(self, seed=seed) if shuffle else self)._store()
    source = execution.Source(whole, None)
    size = int(test_size) if is_count else math.ceil(source.num_rows * test_size - 1e-9)
    if size >= source.num_rows:
        raise ValueError(
            f"test_size={test_size} leaves none of {source.num_rows} rows for training. Use a smaller test_size."
        )
    train, test = _cut(self, source, [0, source.num_rows - size, source.num_rows])
    return train, test


def _cut(self: Self, source: execution.Source, ends: Sequence[int]) -> list[Self]:
    cuts = itertools.pairwise(ends)
    return [self._build(execution.cut_parts(source.parts, start, stop)) for start, stop in cuts]


def _split_groups(self: Self, column: str, share: float) -> tuple[Self, Self]:
    """Return the two parts of every group."""

    def cut(group: Any, *, is_test: bool) -> object:
        train = group.num_rows - math.floor(group.num_rows * share + 1e-9)
        return group.slice(train) if is_test else group.slice(0, train)

    groups = tables.groupby(self._build(self._store()), column)
    how: dict[str, Any] = {"batch_format": "pyarrow"}  # numpy lacks some types, and changes whole numbers with gaps
    parts = (groups.map_groups(cut, fn_kwargs={"is_test": flag}, **how) for flag in (False, True))
    train, test = (self._build(part._store()) for part in parts)
    return train, test


def _is_share(value: object) -> bool:
    return reading.is_number(value, 0, 1) and value not in (0, 1)
