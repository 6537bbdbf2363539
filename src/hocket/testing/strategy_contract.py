"""The contract of strategies: tests that every `hocket.train.strategies.Strategy` on host arrays must pass.

To test a strategy, inherit and name it::

    class TestMine(StrategyContract):
        strategy = ElasticAveraging(every=2)

The suite trains linear models of numpy arrays with the strategy, on one, two and three ranks, as a framework would. The
ranks take turns in one process; with ``engine = "local"`` they are processes.

Abilities that `StrategyContract.limits` may name, each with a sentence that says why it is missing:

=================== =================================================================================================
``repeats``         two runs give the same bits
``second_model``    several models train beside each other; without this ability, the second model is refused
``whole_gradients`` each average has the whole gradients; without this ability, a part of them may come in later steps,
                    such as when only the largest travel and the rest is kept for the next step
=================== =================================================================================================
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from hocket.core import session
from hocket.testing import leftovers, limits, strategy_programs
from hocket.train import configs, data_parallel_trainer, strategies
from hocket.train.strategies import hosting
from hocket.train.world import WorldConfig


class StrategyContract(limits.DeclaresLimits):
    """The contract of every strategy on host arrays."""

    strategy: ClassVar[strategies.Strategy]
    """The strategy to test. Subclasses must set it."""
    engine: ClassVar[str] = "inprocess"
    """The engine that runs the ranks."""
    is_exact_with_one_rank: ClassVar[bool] = False
    """Whether one rank gets exactly the result of plain stochastic gradient descent, to the bit."""

    @pytest.fixture(autouse=True)
    def open_session(self, tmp_path: Path) -> Iterator[None]:
        """Open a session for each test, and check that it leaves nothing."""
        self._folder = tmp_path
        before = leftovers.Leftovers.look()
        with session.init(num_cpus=2, engine=self.engine):
            yield
        assert before.list_new() == []

    # --- the description ----------------------------------------------------------------------------------------------

    def test_it_is_equal_to_its_copies(self) -> None:
        for made in (pickle.loads(pickle.dumps(self.strategy)), copy.deepcopy(self.strategy)):
            assert type(made) is type(self.strategy)
            assert made == self.strategy, "a copy is not equal: write a dataclass, or __eq__"

    def test_it_cannot_be_changed(self) -> None:
        for name, value in vars(self.strategy).items():
            with pytest.raises(AttributeError):  # write a frozen dataclass
                setattr(self.strategy, name, value)

    def test_messages_can_show_it(self) -> None:
        shown = repr(self.strategy)
        assert type(self.strategy).__name__ in shown
        assert all(f"{name}=" in shown for name in vars(self.strategy))

    def test_a_run_does_not_change_it(self) -> None:
        before = pickle.dumps(self.strategy)
        self.run(2, strategy_programs.train_model, {})
        assert pickle.dumps(self.strategy) == before

    # --- training -----------------------------------------------------------------------------------------------------

    def test_one_rank_trains(self) -> None:
        (found,) = self.run(1, strategy_programs.train_model, {})
        assert strategy_programs.compute_loss(found) < strategy_programs.compute_loss(None)
        if self.is_exact_with_one_rank:
            assert found == strategy_programs.train_plainly()

    @pytest.mark.parametrize("size", [2, 3])
    def test_ranks_train_and_are_equal_after_they_synchronize(self, size: int) -> None:
        found = self.run(size, strategy_programs.train_model, {})
        assert len(found) == size
        assert all(one == found[0] for one in found), "the ranks' parameters differ after synchronize()"
        assert strategy_programs.compute_loss(found[0]) < strategy_programs.compute_loss(None)

    def test_the_rows_of_each_rank_count(self) -> None:
        first, *others = (
            self.run(2, strategy_programs.train_model, {"rows_of": rows})[0] for rows in ([0, 1], [2, 1], [0, 2])
        )
        assert others[0] != first, "the rows of rank 0 change nothing"
        assert others[1] != first, "the rows of rank 1 change nothing"

    @pytest.mark.parametrize("size", [1, 2])
    def test_without_a_step_a_model_stays_as_it_is(self, size: int) -> None:
        given = strategy_programs.build_model(seed=1).show()
        assert self.run(size, strategy_programs.train_model, {"seed": 1, "steps": 0}) == [given] * size

    def test_to_synchronize_again_changes_nothing(self) -> None:
        found = self.run(2, strategy_programs.synchronize_again, {})
        assert all(again == once == found[0][0] for once, again in found)

    def test_an_epoch_may_begin_at_any_step(self) -> None:
        found = self.run(2, strategy_programs.train_model, {"epochs": (0, 3, 4)})
        assert found[0] == found[1]
        assert strategy_programs.compute_loss(found[0]) < strategy_programs.compute_loss(None)

    @pytest.mark.needs("repeats")
    @pytest.mark.parametrize("size", [1, 3])
    def test_two_runs_give_the_same_bits(self, size: int) -> None:
        first, second = (self.run(size, strategy_programs.train_model, {}) for _ in range(2))
        assert first == second

    def test_ranks_begin_with_what_rank_0_has(self) -> None:
        found = self.run(2, strategy_programs.train_model, {"spread": 100.0})
        assert found[0] == found[1]
        if "repeats" not in self.limits:
            assert found == self.run(2, strategy_programs.train_model, {})

    @pytest.mark.parametrize("size", [1, 2])
    def test_float64_stays_float64(self, size: int) -> None:
        found = self.run(size, strategy_programs.train_model, {"dtype": "float64"})
        values = np.frombuffer(found[0], np.float64)
        assert np.isfinite(values).all()
        assert len(values) == strategy_programs.COUNT
        assert np.any(values != values.astype(np.float32)), "the values were rounded to float32"

    @pytest.mark.parametrize("size", [1, 2])
    def test_a_model_without_parameters(self, size: int) -> None:
        assert self.run(size, strategy_programs.train_nothing, {}) == [b""] * size

    def test_a_second_model_leaves_the_first_as_it_is(self) -> None:
        if "second_model" in self.limits:
            with pytest.raises(Exception, match="model"):
                self.run(1, strategy_programs.train_two, {})
            return
        both = self.run(2, strategy_programs.train_two, {})
        assert both[0] == both[1]
        if "repeats" not in self.limits:
            assert both[0][0] == self.run(2, strategy_programs.train_model, {})[0]

    # --- steps that are not like the others ---------------------------------------------------------------------------

    def test_what_no_rows_give_does_not_count(self) -> None:
        expected = strategy_programs.FILLED
        if "whole_gradients" in self.limits:
            (expected,) = self._run_or_skip(
                1, strategy_programs.average_with_a_filler, "The strategy averages no gradients."
            )
        for found in self._run_or_skip(
            2, strategy_programs.average_with_a_filler, "The strategy averages no gradients."
        ):
            np.testing.assert_allclose(found, expected, rtol=2e-2)

    @pytest.mark.needs("whole_gradients")
    def test_gradients_count_by_their_rows(self) -> None:
        for found in self._run_or_skip(
            2, strategy_programs.average_unequal_rows, "The strategy averages no gradients."
        ):
            np.testing.assert_allclose(found, [-number / 2 for number in strategy_programs.FILLED], rtol=2e-2)

    @pytest.mark.parametrize("size", [1, 2])
    def test_a_step_that_does_not_count_changes_nothing(self, size: int) -> None:
        for before, after in self._run_or_skip(
            size, strategy_programs.step_with_a_filler, "The strategy takes no steps."
        ):
            assert before == after

    def test_only_the_chosen_parameters_change(self) -> None:
        reason = "The strategy takes no steps."
        for before, between, after in self._run_or_skip(1, strategy_programs.choose_some, reason):
            assert [old == new for old, new in zip(before, between, strict=True)] == [True, False]
            assert [old == new for old, new in zip(between, after, strict=True)] == [False, False]

    # --- the end ------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("failing", [0, 1])
    def test_an_error_in_one_rank_ends_all_and_is_told(self, failing: int) -> None:
        with pytest.raises(Exception, match="on purpose"):
            self.run(2, strategy_programs.fail_in_one, {"failing": failing})
        assert len(self.run(2, strategy_programs.train_model, {})) == 2, "the next run is not disturbed"

    def test_a_rank_that_does_nothing_is_closed(self) -> None:
        assert self.run(2, strategy_programs.do_nothing, {}) == [None, None]

    # --- how ----------------------------------------------------------------------------------------------------------

    def run(self, size: int, function: Callable[[dict[str, Any]], Any], config: dict[str, Any]) -> list[Any]:
        """Run a program of `hocket.testing.strategy_programs` in `size` ranks, and return its values by rank."""
        trainer = data_parallel_trainer.DataParallelTrainer(
            hosting.add_strategy(
                strategy_programs.GatherResults(function), self.strategy, strategy_programs.use_strategy
            ),
            train_loop_config=config,
            backend_config=WorldConfig(timeout_s=30.0),
            scaling_config=configs.ScalingConfig(num_workers=size, resources_per_worker={"CPU": 0.25}),
            run_config=configs.RunConfig(storage_path=str(self._folder)),
        )
        found: list[Any] = trainer.fit().return_value
        return found

    def _run_or_skip(self, size: int, function: Callable[[dict[str, object]], object], reason: str) -> list[Any]:
        found = self.run(size, function, {})
        if found[0] is None:
            pytest.skip(reason)
        return found
