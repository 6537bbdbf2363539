"""Steps on the rows of a data set, block by block, and on their order: each method adds one to the plan."""

from __future__ import annotations

import functools
import operator
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
    """A seed, as Ray has it.

    Args:
        seed: Which one. Default: a random one, chosen when the data set is made.
        reseed_after_execution: For programs written for Ray: a data set has the same rows in the same order each time.
        use_timestamp_as_default: The same: has no effect.
    """

    seed: int | None = None
    reseed_after_execution: bool = True
    use_timestamp_as_default: bool = False


Seed: TypeAlias = int | RandomSeedConfig | None


def choose_seed(seed: Seed) -> int:
    """Return a seed, or a random one."""
    seed = seed.seed if isinstance(seed, RandomSeedConfig) else seed
    reading.check_count("seed", seed, 0)
    return secrets.randbelow(1 << 31) if seed is None else min(int(seed), order.MAX_SEED)


# --- with functions ---------------------------------------------------------------------------------------------------


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
    """Call a function with batches; what it returns are the rows.

    A class is made once in each of some actors, and its instances are called: for what takes long to make, such as
    a model. An actor that dies is made again, three times, and its block is done again.

    Args:
        fn: Takes a batch and returns one, in any format and of any length; or yields several. Or a class whose
            instances do.
        batch_size: How many rows a batch has at most: blocks are cut, not joined. Default, and ``"auto"``: whole
            blocks.
        compute: As `concurrency`, in Ray's other form.
        batch_format: What `fn` is given: ``"default"`` or ``"numpy"`` for a dict of arrays, ``"pandas"``,
            ``"pyarrow"``.
        zero_copy_batch: Whether arrays are read-only, because they look into shared memory. False gives copies.
        fn_args: More arguments for `fn`.
        fn_kwargs: The same, by name.
        fn_constructor_args: What a class is made from.
        fn_constructor_kwargs: The same, by name.
        num_cpus: How many CPUs a task or an actor holds. Default: a task 1, or 0 if it holds GPUs; an actor 0.
        num_gpus: How many GPUs.
        memory: How many bytes of memory.
        concurrency: How many tasks or actors there are at most. Of a class also two numbers, between which the
            number of actors is: more are started while all have enough to do. Default: as many as there is room
            for.
        **remote_args: Further options of `hocket.remote`.

    Raises:
        TypeError: `fn` is neither a function nor a class whose instances can be called.
        ValueError: The batch size is less than 1, or there is no such format.

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
    return self._then(
        call.build(
            steps.map_batches,
            keeps_rows=False,
            batch_size=size,
            batch_format=form,
            is_shared=zero_copy_batch,
        )
    )


def map_rows(self: Self, fn: Callable[..., blocks.Row | Awaitable[blocks.Row]] | type, **how: Any) -> Self:
    """Call a function with each row, a dict of Python values; what it returns is the row.

    `map_batches` is many times faster.

    Args:
        fn: Takes a row and returns one. Or a class whose instances do.
        **how: ``fn_args``, ``fn_kwargs``, ``concurrency`` and others; see `map_batches`.

    Raises:
        TypeError: `fn` is neither a function nor a class whose instances can be called.

    Example:
        >>> from hocket import data
        >>> data.range(2).map(lambda row: {"square": row["id"] ** 2}).take_all()
        [{'square': 0}, {'square': 1}]
    """
    return self._then(calls.read_call("map", fn, how).build(steps.map_rows, keeps_rows=True))


def flat_map(
    self: Self,
    fn: Callable[..., list[blocks.Row] | Awaitable[list[blocks.Row]] | AsyncIterator[blocks.Row]] | type,
    **how: object,
) -> Self:
    """Call a function with each row; what it returns is a list of rows.

    Args:
        fn: Takes a row and returns a list of rows. Or a class whose instances do.
        **how: See `map`.

    Raises:
        TypeError: `fn` is neither a function nor a class whose instances can be called.
    """
    return self._then(calls.read_call("flat_map", fn, how).build(steps.flat_map_rows, keeps_rows=False))


def filter_rows(
    self: Self, fn: Callable[..., object] | type | None = None, *, expr: object = None, **how: object
) -> Self:
    """Keep the rows of which a function says something true, or for which an expression is true.

    Args:
        fn: Takes a row. Or a class whose instances do.
        expr: In the place of a function, and many times faster: a text such as ``"x > 3 and y in ['a', 'b']"``, or
            an expression of `hocket.data.expressions`, ``col("x") > 3``, or of ``pyarrow.compute``. Where a value
            is missing it is not true.
        **how: See `map`.

    Raises:
        TypeError: `fn` is neither a function nor a class whose instances can be called, or `expr` no expression.
        ValueError: Both are given, or neither, or the text is no expression.

    Example:
        >>> from hocket import data
        >>> data.range(9).filter(lambda row: row["id"] % 4 == 1).take_all()
        [{'id': 1}, {'id': 5}]
        >>> data.range(9).filter(expr="id > 2 and not id > 4").take_all()
        [{'id': 3}, {'id': 4}]
    """
    if isinstance(fn, tree.Expr):
        raise TypeError("filter() takes an expression by name. Write filter(expr=col('x') > 3).")
    if (fn is None) == (expr is None):
        raise ValueError("filter() takes a function, or expr=, and one of them. Write filter(expr='x > 3').")
    if expr is None:
        return self._then(calls.read_call("filter", fn, how, ("expr",)).build(steps.filter_rows, keeps_rows=False))
    calls.read_call("filter", fn, how, ("expr",))  # an unknown keyword is the first fault that it names
    if how:
        raise ValueError(f"filter(expr=...) calls no function, so {sorted(how)} says nothing. Leave it out.")
    read = text.read(expr)
    step = functools.partial(steps.filter_expression, expression=read, given=f"{expr!s:.80}")
    scan = operator.methodcaller("filter", read)
    return self._then(plan.Step(apply=step, name=f"filter({expr!s:.40})", keeps_rows=False, scan=scan))


# --- which rows -------------------------------------------------------------------------------------------------------


def limit(self: Self, limit: int) -> Self:
    """Keep the first rows. Blocks that come later are not made, but for those that run ahead.

    Raises:
        ValueError: The number is negative.

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
        fraction: The probability, from 0 to 1. About so many of the rows are kept.
        seed: Which rows. Default: random ones, chosen now, so that this data set has the same rows each time.

    Raises:
        ValueError: The fraction or the seed cannot be.
    """
    if not reading.is_number(fraction, 0, 1):
        raise ValueError(f"fraction must be from 0 to 1, but received {fraction!r}. Write random_sample(0.1).")
    step = functools.partial(steps.sample_rows, fraction=fraction, seed=choose_seed(seed))
    name = f"random_sample({fraction})"
    return self._then(plan.Step(apply=step, name=name, keeps_rows=False, is_numbered=True))


# --- the order and the number of blocks -------------------------------------------------------------------------------


def random_shuffle(self: Self, *, seed: Seed = None, num_blocks: int | None = None, **of_ray: object) -> Self:
    """Put all rows into another order.

    Where it comes last, training moves no row for it: the ledger computes another order for each epoch. A batch is
    then of rows from all over the data.

    Args:
        seed: Which order. Default: a random one, chosen now, so that this data set has the same order each time.
        num_blocks: Into how many blocks they are cut then. Default: as before.
        **of_ray: ``num_cpus`` and others of Ray's that say how it is scheduled: they have no effect.

    Raises:
        ValueError: The seed is no whole number, or negative.
        TypeError: There is no such keyword.

    Example:
        >>> from hocket import data
        >>> [row["id"] for row in data.range(6).random_shuffle(seed=1).take_all()]
        [2, 3, 0, 4, 1, 5]
    """
    calls.read_options("random_shuffle", None, of_ray, ("seed", "num_blocks"))
    shuffled = self._then(plan.Shuffle(choose_seed(seed)))
    return shuffled if num_blocks is None else repartition(shuffled, num_blocks)


def randomize_block_order(self: Self, *, seed: Seed = None) -> Self:
    """Put the blocks into another order, and leave the rows of each where they are: cheaper than a shuffle.

    Args:
        seed: Which order. Default: a random one, chosen now, so that this data set has the same order each time.

    Raises:
        ValueError: The seed is no whole number, or negative.
    """
    return self._then(plan.BlockOrder(choose_seed(seed)))


def repartition(
    self: Self, num_blocks: int | None = None, target_num_rows_per_block: int | None = None, *, shuffle: bool = False
) -> Self:
    """Cut the same rows, in the same order, into another number of blocks.

    Args:
        num_blocks: How many blocks.
        target_num_rows_per_block: How many rows a block has, but for the last; in the place of `num_blocks`.
        shuffle: Whether the rows are shuffled first; see `random_shuffle`.

    Raises:
        ValueError: A number is less than 1, or both are given, or neither.
    """
    if (num_blocks is None) == (target_num_rows_per_block is None):
        raise ValueError(
            "repartition() takes num_blocks or target_num_rows_per_block, and one of them. Write repartition(8)."
        )
    reading.check_count("num_blocks", num_blocks, 1)
    reading.check_count("target_num_rows_per_block", target_num_rows_per_block, 1)
    rows = random_shuffle(self) if shuffle else self
    return rows._then(plan.Repartition(num_blocks, target_num_rows_per_block))
