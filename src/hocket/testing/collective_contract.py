"""The contract of collectives: tests that every group of ranks must pass.

To test a kind of group, inherit and define how to run a function in each of its ranks::

    class TestMine(CollectiveContract):
        def run(self, size, function, *args):
            return [...]  # what function(collectives, *args) returned in each rank

The suite tests the interface that strategies use, `hocket.train.strategies.strategy.Collectives`: `rank`, `size`,
`all_reduce`, `broadcast`, `all_gather_object` and `barrier`. Numbers must equal, to the last bit, numpy's result for
all ranks' arrays, combined rank by rank. `CollectiveContract.compute_expected` is for groups with another order.

Abilities that `CollectiveContract.limits` may name, each with a sentence that says why it is missing:

==================== ================================================================================================
a dtype's name       arrays of this dtype are reduced, such as ``"complex64"``
``bits``             BAND, BOR and BXOR
``complex_products`` PRODUCT of complex numbers
``order``            sums equal the reference to the bit; without this ability, they are near it, and equal in all ranks
``checked_input``    bad input is refused before the other ranks notice anything
``mismatches``       errors about unequal calls name the calls
``departures``       a rank that waits for a rank which has left gets an error
``names``            that error names the rank that has left
``processes``        ranks are processes that can be killed
==================== ================================================================================================
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
import pytest

from hocket.collective import errors
from hocket.collective.arithmetic import BITWISE, NUMPY, ReduceOp
from hocket.testing import collective_programs, limits

Array: TypeAlias = npt.NDArray[Any]


class CollectiveContract(limits.DeclaresLimits):
    """The contract of every group of ranks."""

    error: ClassVar[type[Exception]] = errors.CollectiveError
    """The error of a rank that waits in vain."""
    mismatch_error: ClassVar[type[Exception]] = errors.CollectiveMismatchError
    """The error in at least one rank when ranks call different operations."""

    def run(self, size: int, function: Callable[..., Any], *args: Any) -> list[object]:
        """Run a function in each rank of a new group, at the same time. Subclasses must override this.

        Args:
            size: The number of ranks in the group.
            function: A function of a module. It is called with the rank's collectives and `args`.
            args: Values that can be pickled.

        Returns:
            By rank, the function's value, or the exception that it raised, or an exception about the rank's death. A
            rank leaves the group when its function ends.
        """
        raise NotImplementedError(f"{type(self).__name__} needs run(self, size, function, *args).")

    def compute_expected(self, values: Sequence[Array], op: ReduceOp) -> Array:
        """Return the expected result of a reduction. Default: combined rank by rank, as in a group on one machine."""
        return combine(values, op)

    # --- numbers ------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("size", [1, 2, 3])
    def test_ranks_are_numbered(self, size: int) -> None:
        assert self._run(size, collective_programs.tell_numbers) == [(rank, size) for rank in range(size)]

    @pytest.mark.parametrize(
        "dtype", [*collective_programs.WHOLE, *collective_programs.FLOATS, *collective_programs.COMPLEX, "bool"]
    )
    def test_reductions_are_those_of_numpy(self, dtype: str) -> None:
        self.require(dtype)
        left_out = {*(BITWISE if "bits" in self.limits else ())}
        if dtype in collective_programs.COMPLEX and "complex_products" in self.limits:
            left_out.add(ReduceOp.PRODUCT)
        ops = [op for op in collective_programs.list_ops(dtype) if op not in left_out]
        for size in (2, 3):
            found = self._run(size, collective_programs.reduce_each, dtype, ops)
            assert all(one == found[0] for one in found[1:]), f"the ranks' results differ in their bits, {size=}"
            for op, shape, data in found[0]:
                expected = self.compute_expected(
                    [collective_programs.draw(dtype, shape, rank) for rank in range(size)], op
                )
                self._check(np.frombuffer(data, expected.dtype).reshape(shape), expected, f"{op.name} of {shape}")

    @pytest.mark.parametrize("size", [2, 3, 5])
    def test_sums_of_all_lengths(self, size: int) -> None:
        for op in (ReduceOp.SUM, ReduceOp.MEAN, ReduceOp.MAX):
            found = self._run(size, collective_programs.reduce_lengths, op)
            assert all(one == found[0] for one in found[1:]), "the ranks' results differ in their bits"
            for length, digest in zip(collective_programs.LENGTHS, found[0], strict=True):
                expected = self.compute_expected(
                    [collective_programs.draw_wide(length, rank) for rank in range(size)], op
                )
                if "order" not in self.limits:
                    assert digest == collective_programs.digest_of(expected), f"{op.name} of {length} numbers"

    @pytest.mark.needs("order")
    def test_sums_do_not_depend_on_who_comes_first(self) -> None:
        found = self._run(3, collective_programs.reduce_at_any_pace, 6)
        assert len({digest for digests in found for digest in digests}) == 1

    @pytest.mark.parametrize("size", [2, 3])
    def test_all_ranks_have_the_same_zeros_and_nans(self, size: int) -> None:
        found = self._run(size, collective_programs.reduce_odd_floats)
        assert all(one == found[0] for one in found[1:])
        for number, data in enumerate(found[0]):
            values, op = np.frombuffer(data), collective_programs.ODD_OPS[number // 2]
            with np.errstate(invalid="ignore"):
                expected = self.compute_expected(
                    [collective_programs.draw_odd_floats(rank) for rank in range(size)], op
                )
            lost = np.isnan(np.tile(expected, len(values) // len(expected))) & ~np.isnan(values)
            assert not lost.any(), f"{op.name} turns NaNs into numbers"

    @pytest.mark.parametrize("size", [1, 2, 3])
    def test_empty_arrays_and_single_numbers(self, size: int) -> None:
        for found in self._run(size, collective_programs.reduce_small):
            assert found == [(shape, [sum(range(1, size + 1))] * count) for shape, count in collective_programs.SMALL]

    def test_a_part_of_an_array_is_changed_and_nothing_around_it(self) -> None:
        for found in self._run(2, collective_programs.reduce_part):
            assert found == [0.0, 0.0, 3.0, 3.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0]

    def test_what_is_not_contiguous_is_reduced_or_refused(self) -> None:
        for text, values, rest in self._run(2, collective_programs.reduce_strided):
            assert rest == [0.0] * 3
            if text:
                assert "copy" in text, "the message says what to write"
            else:
                assert values == [3.0] * 3

    # --- other operations ---------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("size", [1, 2, 3])
    def test_any_rank_can_be_the_root(self, size: int) -> None:
        dtypes = [name for name in ("float64", "float16", "bfloat16", "int8", "bool") if name not in self.limits]
        for found in self._run(size, collective_programs.broadcast_each, dtypes):
            assert found == []

    @pytest.mark.parametrize("size", [1, 2, 3])
    def test_objects_of_any_size_arrive_by_rank(self, size: int) -> None:
        expected = [collective_programs.build_object(rank) for rank in range(size)]
        for found in self._run(size, collective_programs.gather_objects):
            assert found == [expected, [None] * size, [rank == 1 for rank in range(size)]]

    def test_what_one_rank_does_with_an_object_is_not_seen_by_another(self) -> None:
        for rank, found in enumerate(self._run(2, collective_programs.change_objects)):
            assert found == [[0, rank], [1, rank]]

    @pytest.mark.parametrize("size", [2, 3])
    def test_nobody_passes_a_barrier_before_all_have_come(self, size: int, tmp_path: Path) -> None:
        assert self._run(size, collective_programs.count_at_barriers, str(tmp_path), 20) == [[size] * 20] * size

    def test_ranks_of_any_pace_stay_in_step(self) -> None:
        assert self._run(3, collective_programs.call_at_any_pace, 100) == [[turn * 6 for turn in range(100)]] * 3

    def test_one_rank_has_nothing_to_do(self) -> None:
        (found,) = self._run(1, collective_programs.call_alone)
        assert found == {"values": [0.5, 1.5], "objects": [{"rank": 0}]}

    # --- mistakes -----------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("size", [1, 2])
    @pytest.mark.needs("checked_input")
    def test_bad_input_is_refused_and_leaves_the_group_as_it_is(self, size: int) -> None:
        for texts, total in self._run(size, collective_programs.call_wrongly):
            assert total == size, "the group can still be used"
            for (name, _, remedy), text in zip(collective_programs.MISTAKES, texts, strict=True):
                assert remedy in text, f"{name}: the message says what to write"

    @pytest.mark.needs("mismatches")
    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ("sum", "longer sum"),
            ("sum", "maximum"),
            ("sum", "sum of floats32"),
            ("sum", "broadcast"),
            ("sum", "objects"),
            ("sum", "barrier"),
            ("broadcast", "broadcast of rank 1"),
            ("broadcast", "objects"),
            ("barrier", "objects"),
            ("and", "or"),
        ],
    )
    def test_unequal_calls_are_named(self, one: str, other: str) -> None:
        if "bits" in self.limits and one == "and":
            pytest.skip(self.limits["bits"])
        found = self._run(2, collective_programs.call_one, [one, other])
        caught = [error for error, _ in found]
        assert all(isinstance(error, self.error) for error in caught), caught
        named = [str(error) for error in caught if isinstance(error, self.mismatch_error)]
        assert named, f"no rank's error names the calls: {caught}"
        assert all("ank 0" in text and "ank 1" in text for text in named), named
        assert all(isinstance(again, self.error) for _, again in found), "the group cannot be used any more"

    @pytest.mark.needs("departures")
    @pytest.mark.parametrize("operation", ["sum", "broadcast of rank 1", "objects", "barrier"])
    def test_whoever_waits_for_a_rank_that_has_left_hears_of_it(self, operation: str) -> None:
        first, last = self.run(2, collective_programs.leave_one_alone, operation)
        assert last is None
        assert isinstance(first, self.error), first
        if "names" not in self.limits:
            assert "ank 1" in str(first)

    @pytest.mark.needs("departures")
    def test_an_error_in_one_rank_ends_the_others(self) -> None:
        first, last, third = self.run(3, collective_programs.raise_in_one)
        assert isinstance(last, KeyError), last
        for waited in (first, third):
            assert isinstance(waited, self.error), waited

    @pytest.mark.needs("departures", "processes")
    def test_a_rank_that_is_killed_is_told_of(self) -> None:
        first, killed, third = self.run(3, collective_programs.kill_one)
        assert isinstance(killed, Exception), killed
        for waited in (first, third):
            assert isinstance(waited, self.error), waited
            if "names" not in self.limits:
                assert "ank 1" in str(waited)

    # --- how ----------------------------------------------------------------------------------------------------------

    def _run(self, size: int, function: Callable[..., object], *args: object) -> list[Any]:
        """Run a function that must return, not raise, in all ranks."""
        found = self.run(size, function, *args)
        assert len(found) == size
        for rank, one in enumerate(found):
            assert not isinstance(one, BaseException), "".join([f"rank {rank}:\n", *traceback.format_exception(one)])
        return found

    def _check(self, found: Array, expected: Array, what: str) -> None:
        is_product = found.dtype.kind == "c" and what.startswith(ReduceOp.PRODUCT.name)
        if is_product or ("order" in self.limits and found.dtype.kind not in "iub"):
            # numpy's rounding of complex products depends on the array's length and its place in memory
            near = {2: 2e-2, 4: 1e-5, 8: 1e-5}.get(found.dtype.itemsize, 1e-6)
            assert np.allclose(found.astype("complex128"), expected.astype("complex128"), rtol=near, atol=near), what
        else:
            assert found.tobytes() == expected.tobytes(), f"{what}: {found.reshape(-1)[:4]}, {expected.reshape(-1)[:4]}"


def combine(values: Sequence[Array], op: ReduceOp) -> Array:
    """Return the ranks' arrays combined one after the other, each time rounded to their dtype."""
    total = np.array(values[0])
    for value in values[1:]:
        NUMPY.combine[op](total, value, out=total)
    if op is ReduceOp.MEAN:
        np.divide(total, len(values), out=total)
    return total
