"""Steps on the rows of a dataset, block by block, and on their order. Each method adds a step to the plan."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, final

from hocket import keywords
from hocket.data import blocks, calls, order, plan, reading, steps
from hocket.data.expressions import text, tree
from hocket.data.methods.contract import Self


@final
@dataclass(frozen=True)
class RandomSeedConfig:
    """A seed, as Ray specifies it.

    Args:
        seed: The seed. Default: a random one, chosen when the dataset is made.
        reseed_after_execution: For programs written for Ray: a dataset has the same rows in the same order each time.
        use_timestamp_as_default: For programs written for Ray: has no effect.
    """

    seed: int | None = None
    reseed_after_execution: bool = True
    use_timestamp_as_default: bool = False


Seed: TypeAlias = int | RandomSeedConfig | None


def choose_seed(seed: Seed) -> int:
    """Return the seed, or a random one if there is none."""
    seed = seed.seed if isinstance(seed, RandomSeedConfig) else seed
    reading.check_count("seed", seed, 0)
    return secrets.randbelow(1 << 31) if seed is None else min(int(seed), order.MAX_SEED)


# --- calls of functions -----------------------------------------------------------------------------------------------


def map_batches(
    self: Self,
    fn: Callable[..., blocks.Batch | Iterator[blocks.Batch]] | type,
    *,
    batch_size: int | Literal["auto"] | None = None,
    compute: calls.TaskPoolStrategy | calls.ActorPoolStrategy | None = None,
    batch_format: str | None = "default",
    zero_copy_batch: bool = True,
    fn_args: Iterable[object] | None = None,
    fn_kwargs: Mapping[str, object] | None = None,
    fn_constructor_args: Iterable[object] | None = None,
    fn_constructor_kwargs: Mapping[str, object] | None = None,
    num_cpus: float | None = None,
    num_gpus: float | None = None,
    memory: float | None = None,
    concurrency: int | tuple[int, int] | tuple[int, int, int] | None = None,
    **remote_args: object,
) -> Self:
    """Call a function with batches. The batches that it returns become the rows.

    A class is for objects that take long to make, such as a model. Each of several actors makes one instance, and calls
    it. If an actor dies, another one processes its block again, up to three times.

    Args:
        fn: Takes a batch and returns a batch, in any format and of any length; or yields several. Or a class whose
            instances do this.
        batch_size: Largest number of rows of a batch: blocks are cut, not joined. Default, and ``"auto"``: whole
            blocks.
        compute: Ray's other form of `concurrency`.
        batch_format: Format of the batches for `fn`: ``"default"`` or ``"numpy"`` for a dict of arrays, ``"pandas"``,
            ``"pyarrow"``.
        zero_copy_batch: Whether arrays are read-only views of shared memory. False gives copies.
        fn_args: More arguments for `fn`.
        fn_kwargs: More keyword arguments for `fn`.
        fn_constructor_args: Arguments for the class.
        fn_constructor_kwargs: Keyword arguments for the class.
        num_cpus: How many CPUs a task or an actor holds. Default: a task 1, or 0 if it holds GPUs; an actor 0.
        num_gpus: How many GPUs each holds.
        memory: How many bytes of memory each holds.
        concurrency: Largest number of tasks, or number of actors. For a class also the least and the largest number:
            the pool starts more actors while all have enough to do. Default: as many as there is room for.
        **remote_args: Further options of `hocket.remote`.

    Raises:
        TypeError: `fn` is neither a function nor a class whose instances can be called.
        ValueError: The batch size is less than 1, or the format does not exist.

    Example:
        >>> from hocket import data
        >>> data.range(3).map_batches(lambda batch, by: {"id": batch["id"] * by}, fn_kwargs={"by": 10}).take_all()
        [{'id': 0}, {'id': 10}, {'id': 20}]
        >>> class Model:
        ...     def __init__(self, weight):
        ...         self.weight = weight  # made once, in each of two actors
        ...     def __call__(self, batch):
        ...         return {"guess": batch["id"] * self.weight}
        >>> data.range(3).map_batches(Model, fn_constructor_args=[0.5], concurrency=2).take_all()
        [{'guess': 0.0}, {'guess': 0.5}, {'guess': 1.0}]
    """
    size = None if batch_size == "auto" else batch_size
    reading.check_batch_size(size, may_be_none=True)
    call = calls.Call(
        verb="map_batches",
        fn=fn,
        args=fn_args,
        kwargs=fn_kwargs,
        constructor_args=fn_constructor_args,
        constructor_kwargs=fn_constructor_kwargs,
        concurrency=concurrency,
        compute=compute,
        num_cpus=num_cpus,
        num_gpus=num_gpus,
        memory=memory,
        more=calls.read_options("map_batches", fn, remote_args, keywords.list_names(map_batches)),
    )
    form = blocks.check_format(batch_format)
    return self._then(call.build(steps.MapBatches, batch_size=size, batch_format=form, is_shared=zero_copy_batch))


def map_rows(self: Self, fn: Callable[..., blocks.Row | Awaitable[blocks.Row]] | type, **how: Any) -> Self:
    """Call a function with each row, a dict of Python values. The row that it returns replaces the row.

    `map_batches` is many times faster.

    Args:
        fn: Takes a row and returns a row. Or a class whose instances do this.
        **how: ``fn_args``, ``fn_kwargs``, ``concurrency`` and others; see `map_batches`.

    Raises:
        TypeError: `fn` is neither a function nor a class whose instances can be called.

    Example:
        >>> from hocket import data
        >>> data.range(2).map(lambda row: {"square": row["id"] ** 2}).take_all()
        [{'square': 0}, {'square': 1}]
    """
    return self._then(calls.read_call("map", fn, how).build(steps.MapRows))


def flat_map(
    self: Self,
    fn: Callable[..., list[blocks.Row] | Awaitable[list[blocks.Row]] | AsyncIterator[blocks.Row]] | type,
    **how: object,
) -> Self:
    """Call a function with each row. The list of rows that it returns replaces the row.

    Args:
        fn: Takes a row and returns a list of rows. Or a class whose instances do this.
        **how: See `map`.

    Raises:
        TypeError: `fn` is neither a function nor a class whose instances can be called.
    """
    return self._then(calls.read_call("flat_map", fn, how).build(steps.FlatMapRows))


def filter_rows(
    self: Self, fn: Callable[..., object] | type | None = None, *, expr: object = None, **how: object
) -> Self:
    """Keep the rows for which a function returns a true value, or for which an expression is true.

    Args:
        fn: Takes a row. Or a class whose instances do this.
        expr: Used in the place of a function, and many times faster: a text such as ``"x > 3 and y in ['a', 'b']"``, an
            expression of `hocket.data.expressions`, ``col("x") > 3``, or one of ``pyarrow.compute``. An expression is
            not true where a value is missing.
        **how: See `map`.

    Raises:
        TypeError: `fn` is neither a function nor a class whose instances can be called, or `expr` is not an expression.
        ValueError: `fn` and `expr` are both given, or neither, or the text is not an expression.

    Example:
        >>> from hocket import data
        >>> data.range(9).filter(lambda row: row["id"] % 4 == 1).take_all()
        [{'id': 1}, {'id': 5}]
        >>> data.range(9).filter(expr="id > 2 and not id > 4").take_all()
        [{'id': 3}, {'id': 4}]
    """
    if isinstance(fn, tree.Expr):
        raise TypeError(
            f"filter() takes an expression only by its keyword expr, but received {fn!r:.80} without it. Write "
            "filter(expr=col('x') > 3)."
        )
    if (fn is None) == (expr is None):
        raise ValueError(
            f"filter() needs either a function or expr=, but received {'neither' if fn is None else 'both'}. Write "
            "filter(expr='x > 3')."
        )
    if expr is None:
        return self._then(calls.read_call("filter", fn, how, ("expr",)).build(steps.FilterRows))
    calls.read_call("filter", fn, how, ("expr",))  # raises for an unknown keyword first
    if how:
        raise ValueError(f"filter(expr=...) calls no function, so {sorted(how)} would have no effect. Leave this out.")
    work = steps.FilterExpression(text.read(expr), given=f"{expr!s:.80}")
    return self._then(plan.Step(work=work, name=f"filter({expr!s:.40})"))


# --- choice of rows ---------------------------------------------------------------------------------------------------


def limit(self: Self, limit: int) -> Self:
    """Keep the first rows. Later blocks are not made, except those of tasks that run ahead.

    Raises:
        ValueError: `limit` is negative.

    Example:
        >>> from hocket import data
        >>> data.range(1000).limit(2).take_all()
        [{'id': 0}, {'id': 1}]
    """
    reading.check_count("limit", limit, 0, "limit(100)")
    return self._then(plan.Limit(int(limit)))


def random_sample(self: Self, fraction: float, *, seed: Seed = None) -> Self:
    """Keep each row with the same probability.

    Args:
        fraction: The probability, from 0 to 1. About this share of the rows is kept.
        seed: Selects the rows. Default: random, chosen now. This dataset then has the same rows each time.

    Raises:
        ValueError: The fraction or the seed is out of range.
    """
    if not reading.is_number(fraction, 0, 1):
        raise ValueError(f"fraction must be from 0 to 1, but received {fraction!r}. Write random_sample(0.1).")
    work = steps.SampleRows(fraction, seed=choose_seed(seed))
    return self._then(plan.Step(work=work, name=f"random_sample({fraction})"))


# --- the order and the number of blocks -------------------------------------------------------------------------------


def random_shuffle(self: Self, *, seed: Seed = None, num_blocks: int | None = None, **of_ray: object) -> Self:
    """Put all rows into another order.

    If it is the last operation, training does not move rows for it: the ledger computes another order for each epoch. A
    batch then has rows from all over the data.

    Args:
        seed: Selects the order. Default: random, chosen now. This dataset then has the same order each time.
        num_blocks: Number of blocks afterwards. Default: as before.
        **of_ray: Ray's keywords of scheduling, such as ``num_cpus``. They have no effect.

    Raises:
        ValueError: The seed is not a whole number, or is negative.
        TypeError: A keyword does not exist.

    Example:
        >>> from hocket import data
        >>> [row["id"] for row in data.range(6).random_shuffle(seed=1).take_all()]
        [2, 3, 0, 4, 1, 5]
    """
    calls.read_options("random_shuffle", None, of_ray, ("seed", "num_blocks"))
    shuffled = self._then(plan.Shuffle(choose_seed(seed)))
    return shuffled if num_blocks is None else repartition(shuffled, num_blocks)


def randomize_block_order(self: Self, *, seed: Seed = None) -> Self:
    """Put the blocks into another order, and leave the rows of each block where they are. It is cheaper than a shuffle.

    Args:
        seed: Selects the order. Default: random, chosen now. This dataset then has the same order each time.

    Raises:
        ValueError: The seed is not a whole number, or is negative.
    """
    return self._then(plan.BlockOrder(choose_seed(seed)))


def repartition(
    self: Self, num_blocks: int | None = None, target_num_rows_per_block: int | None = None, *, shuffle: bool = False
) -> Self:
    """Cut the same rows, in the same order, into another number of blocks.

    Args:
        num_blocks: Number of blocks.
        target_num_rows_per_block: Number of rows of each block but the last. Used in the place of `num_blocks`.
        shuffle: Whether the rows are shuffled first; see `random_shuffle`.

    Raises:
        ValueError: A number is less than 1, or both numbers are given, or neither.
    """
    if (num_blocks is None) == (target_num_rows_per_block is None):
        raise ValueError(
            "repartition() needs either num_blocks or target_num_rows_per_block, but received "
            f"{'neither' if num_blocks is None else 'both'}. Write repartition(8)."
        )
    reading.check_count("num_blocks", num_blocks, 1)
    reading.check_count("target_num_rows_per_block", target_num_rows_per_block, 1)
    rows = random_shuffle(self) if shuffle else self
    return rows._then(plan.Repartition(num_blocks, target_num_rows_per_block))
