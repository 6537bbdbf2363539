"""The contract of frameworks: tests that every `hocket.train.frameworks.contract.Framework` must pass.

Define how a user of the framework trains a small model, and inherit::

    class Torch(framework_programs.Specimen):
        framework = "hocket.train.frameworks.torch.framework"

        def build_model(self, key): ...
        def train(self, model, rows, labels, steps, *, on_servers): ...
        def list_optimizers(self, model): ...

    class TestTorch(FrameworkContract):
        specimen = Torch()

Tests of missing abilities, by the framework's ``limits``, are skipped with the sentence there. All code runs in one or
two ranks, on the local engine. The suite does not test an adapter's own functions, or deaths of ranks.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from hocket import train
from hocket.core import session
from hocket.testing import framework_programs as programs
from hocket.testing import leftovers, limits
from hocket.train import strategies
from hocket.train.strategies import hosting


class FrameworkContract(limits.DeclaresLimits):
    """The contract of every framework."""

    specimen: ClassVar[programs.Specimen]

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def open_session(cls) -> Iterator[None]:
        """Open one session for all tests, so that modules for the ranks are loaded once."""
        before = leftovers.Leftovers.look()
        with session.init(num_cpus=2, engine="local"):
            session.get_engine().tasks.expect_work([programs.__name__, type(cls.specimen).__module__])
            yield
        assert before.list_new() == []

    @pytest.fixture(autouse=True)
    def take_folder(self, tmp_path: Path) -> None:
        """Set the folder of the runs."""
        self._folder = tmp_path

    def require(self, ability: str) -> None:
        """Skip the calling test if the framework lacks an ability."""
        declared = self.specimen.find_limits()
        if ability in declared:
            pytest.skip(declared[ability])

    def run(
        self,
        work: Callable[..., Any],
        *args: Any,
        strategy: strategies.Strategy | None = None,
        num_workers: int = 1,
    ) -> Any:
        """Call a function with the specimen in ranks, and return its value in rank 0."""
        function = hosting.add_strategy(
            functools.partial(work, self.specimen, *args), strategy, self.specimen.get_framework().use_strategy
        )
        trainer = train.DataParallelTrainer(
            function,
            backend_config=self.specimen.build_config(),
            scaling_config=train.ScalingConfig(num_workers=num_workers),
            run_config=train.RunConfig(storage_path=str(self._folder)),
        )
        return trainer.fit().return_value

    # --- a name -------------------------------------------------------------------------------------------------------

    def test_it_travels_by_name(self) -> None:
        framework = self.specimen.get_framework()
        assert pickle.loads(pickle.dumps(framework)) is framework
        assert framework.name
        assert all(text[:1].isupper() and not text.endswith(".") for text in framework.limits.values()), "sentences"

    def test_overrides_are_for_strategies(self) -> None:
        assert all(issubclass(kind, strategies.Strategy) for kind in self.specimen.get_framework().overrides)

    def test_outside_a_training_function_a_rank_is_alone_and_has_no_state(self) -> None:
        framework = self.specimen.get_framework()
        assert (framework.get_collectives("f").rank, framework.get_collectives("f").size) == (0, 1)
        with pytest.raises(RuntimeError, match=f"{framework.name}.a_test"):
            framework.get_state("a_test")

    # --- arrays -------------------------------------------------------------------------------------------------------

    def test_arrays_keep_their_bits_to_the_host_and_back(self) -> None:
        declared = self.specimen.find_limits()
        self.run(programs.check_round_trips, [dtype for dtype in programs.DTYPES if dtype not in declared])

    def test_what_is_no_array_is_refused(self) -> None:
        self.run(programs.check_refusal)

    @pytest.mark.needs("crossing")
    def test_a_step_visits_the_host_once_and_goes_on_with_what_that_makes(self) -> None:
        self.run(programs.check_crossing)

    @pytest.mark.needs("crossing")
    def test_an_error_on_the_host_ends_the_step(self) -> None:
        self.run(programs.check_crossing_error)

    # --- weights ------------------------------------------------------------------------------------------------------

    def test_weights_have_names_an_order_and_memory_of_their_own(self) -> None:
        self.run(programs.check_weights)

    def test_weights_are_saved_for_numpy_and_loaded_to_the_bit(self, tmp_path: Path) -> None:
        self.run(programs.check_saving, str(tmp_path))

    def test_weights_of_another_model_are_refused(self, tmp_path: Path) -> None:
        self.run(programs.check_other_weights, str(tmp_path))

    def test_a_seed_decides_what_is_drawn(self) -> None:
        self.run(programs.check_seeds)

    # --- strategies ---------------------------------------------------------------------------------------------------

    @pytest.mark.needs("strategies")
    def test_a_strategy_sees_each_step_and_the_end(self, tmp_path: Path) -> None:
        size = self.run(programs.learn, 3, strategy=programs.Probe(str(tmp_path / "notes")))[1]
        notes = (tmp_path / "notes").read_text().split()
        assert notes[0] == "open"
        assert "open_next" in notes[: notes.index("begin")], "each model has a runtime of its own"
        assert notes.index("begin") < notes.index(f"average:{size + 1}")
        assert notes.count(f"average:{size + 1}") == 3
        assert sum(int(note.partition(":")[2]) for note in notes if note.startswith("after")) == 3
        assert [note for note in notes if note == "close"] == ["close"] == notes[-1:]

    @pytest.mark.needs("strategies")
    def test_a_strategy_is_closed_after_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(train.TrainingFailedError, match="out of luck"):
            self.run(programs.learn_and_fail, strategy=programs.Probe(str(tmp_path / "notes")))
        assert (tmp_path / "notes").read_text().split()[-1] == "close"

    @pytest.mark.needs("strategies")
    def test_steps_are_taken_with_what_a_strategy_makes_of_gradients(self) -> None:
        before, _ = self.run(programs.learn, 0)
        once, _ = self.run(programs.learn, 1)
        twice, _ = self.run(programs.learn, 1, strategy=programs.Doubling())
        for start, one, two in zip(before, once, twice, strict=True):
            np.testing.assert_allclose(two - start, 2 * (one - start), atol=1e-5)
        assert any(not np.array_equal(start, one) for start, one in zip(before, once, strict=True))

    @pytest.mark.needs("strategies")
    def test_a_strategy_sets_parameters_after_a_step(self) -> None:
        after, _ = self.run(programs.learn, 2, strategy=programs.Setting(5.0))
        assert all(np.array_equal(array, np.full_like(array, 5.0)) for array in after)

    @pytest.mark.needs("strategies", "taken steps")
    def test_a_strategy_takes_steps(self) -> None:
        after, _ = self.run(programs.learn, 2, strategy=programs.Stepping(7.0))
        assert all(np.array_equal(array, np.full_like(array, 7.0)) for array in after)

    @pytest.mark.needs("strategies")
    def test_what_cannot_be_driven_is_refused(self) -> None:
        with pytest.raises(train.TrainingFailedError, match=r"Odd.open\(\) must return a StrategyRuntime"):
            self.run(programs.learn, 1, strategy=programs.Odd())

    # --- several ranks ------------------------------------------------------------------------------------------------

    @pytest.mark.needs("collectives")
    def test_ranks_have_collectives(self) -> None:
        assert self.run(programs.use_collectives, num_workers=2) == [[0, 0, 2, 3.0, 7.0], [1, 1, 2, 3.0, 7.0]]

    @pytest.mark.needs("strategies", "collectives")
    def test_two_ranks_take_the_steps_of_one_with_all_rows_from_what_rank_0_has(self) -> None:
        alone, _ = self.run(programs.learn, 4)
        first, second = self.run(programs.learn_part, 4, num_workers=2)
        for one, other, expected in zip(first, second, alone, strict=True):
            assert np.array_equal(one, other)
            np.testing.assert_allclose(one, expected, atol=1e-5)

    @pytest.mark.needs("strategies", "collectives")
    def test_ranks_that_meet_rarely_are_equal_in_the_end(self) -> None:
        first, second = self.run(programs.learn_part, 3, strategy=strategies.LocalSGD(2), num_workers=2)
        assert all(np.array_equal(one, other) for one, other in zip(first, second, strict=True))

    # --- servers ------------------------------------------------------------------------------------------------------

    def test_optimizers_are_converted_or_refused_by_name(self) -> None:
        self.run(programs.check_conversion)

    @pytest.mark.needs("conversion", "strategies")
    def test_servers_take_the_frameworks_own_steps(self) -> None:
        own, _ = self.run(programs.learn, 4)
        served, _ = self.run(
            functools.partial(programs.learn, on_servers=True), 4, strategy=strategies.ParameterServer(1)
        )
        for one, other in zip(own, served, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)
