"""Each strategy on host arrays, against the contract of strategies."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import hocket
from hocket.testing.strategy_contract import StrategyContract
from hocket.train import strategies
from tests.train.elastic_averaging import ElasticAveraging

pytestmark = [pytest.mark.timeout(60), pytest.mark.about_local("nothing: it opens the engines that it names")]


class TestAllReduce(StrategyContract):
    strategy = strategies.AllReduce()
    is_exact_with_one_rank = True


@pytest.mark.slow
@pytest.mark.long
class TestAllReduceInProcesses(TestAllReduce):
    engine = "local"


class TestAllReduceInHalves(StrategyContract):
    strategy = strategies.AllReduce(compression="fp16")
    is_exact_with_one_rank = True


class TestAllReduceInBfloat16(StrategyContract):
    strategy = strategies.AllReduce(compression="bf16")
    is_exact_with_one_rank = True

    @pytest.fixture(autouse=True)
    def need_bfloat16(self) -> None:
        pytest.importorskip("ml_dtypes", reason="numpy has bfloat16 from ml_dtypes: pip install ml_dtypes")


class TestLocalSGD(StrategyContract):
    strategy = strategies.LocalSGD(3)
    is_exact_with_one_rank = True


class TestLocalSGDAtEachStep(StrategyContract):
    strategy = strategies.LocalSGD(1)
    is_exact_with_one_rank = True


class TestLocalSGDLater(StrategyContract):
    strategy = strategies.LocalSGD(2, begin_after=3)
    is_exact_with_one_rank = True


class TestLocalSGDWithNesterov(StrategyContract):
    strategy = strategies.LocalSGD(3, outer=strategies.Nesterov())


class TestElasticAveraging(StrategyContract):
    strategy = ElasticAveraging(2)


class TestParameterServer(StrategyContract):
    strategy = strategies.ParameterServer()
    is_exact_with_one_rank = True
    limits: ClassVar = {"second_model": "The servers hold the weights of one model."}


class TestTwoParameterServers(TestParameterServer):
    strategy = strategies.ParameterServer(2, max_staleness=1)


@pytest.mark.slow
@pytest.mark.long
class TestParameterServerInProcesses(TestParameterServer):
    engine = "local"
    limits: ClassVar = {**TestParameterServer.limits, "repeats": "Ranks push when they are ready."}


@dataclasses.dataclass(frozen=True)
class SendLargest(strategies.Strategy):
    """Only the largest numbers travel; the rest is added to the next step's (Stich, Cordonnier and Jaggi, 2018)."""

    count: int
    loses: float = 0.0
    """Which part of the average is lost where a rank has no rows: a mistake."""

    def open(self, ranks: strategies.Ranks) -> strategies.StrategyRuntime:
        return SendLargestRuntime(self, ranks)


class SendLargestRuntime(strategies.StrategyRuntime):
    def __init__(self, settings: SendLargest, ranks: strategies.Ranks) -> None:
        self._settings = settings
        self._ranks = ranks
        self._kept: Any = 0.0

    def open_next(self) -> strategies.StrategyRuntime:
        return SendLargestRuntime(self._settings, self._ranks)

    def average(self, flat: strategies.Array, rows: float) -> None:
        sent = np.zeros_like(flat)
        if rows:
            whole = self._kept + flat[:-1]
            largest = np.argsort(-np.abs(whole), kind="stable")[: self._settings.count]
            sent[largest], sent[-1] = whole[largest] * whole.dtype.type(rows), rows
            self._kept = whole
            self._kept[largest] = 0
        self._ranks.world.all_reduce(sent)
        flat[:] = sent / max(1, sent[-1])
        if not rows:
            flat *= 1 - self._settings.loses


class TestSendLargest(StrategyContract):
    strategy = SendLargest(2)
    limits: ClassVar = {"whole_gradients": "What does not travel is added to the next step's gradients."}


def test_gradients_in_parts_must_not_count_fillers_either(tmp_path: Path) -> None:
    judge: Any = type("Judge", (TestSendLargest,), {"strategy": SendLargest(2, loses=0.5), "_folder": tmp_path})()
    with (
        hocket.init(engine="inprocess", num_cpus=2),
        pytest.raises(AssertionError),
    ):
        judge.test_what_no_rows_give_does_not_count()


@dataclasses.dataclass
class Wrong(strategies.Strategy):
    """Can be changed, and makes a runtime with a mistake."""

    runtime: type[WrongRuntime]

    def open(self, ranks: strategies.Ranks) -> strategies.StrategyRuntime:
        return self.runtime(ranks)


class WrongRuntime(strategies.StrategyRuntime):
    """Averages nothing."""

    def __init__(self, ranks: strategies.Ranks) -> None:
        self._world = ranks.world
        self._sum: Any = 0.0


class CountsFillers(WrongRuntime):
    def average(self, flat: strategies.Array, rows: float) -> None:
        self._world.all_reduce(flat)
        flat /= self._world.size


class RoundsToFloat32(WrongRuntime):
    averages_gradients = False

    def after_steps(self, model: strategies.HostModel, count: int) -> None:
        flat = model.read_flat().astype(np.float32)
        self._world.all_reduce(flat)
        model.write_flat(flat / self._world.size)


class SharesMomentum(CountsFillers):
    def average(self, flat: strategies.Array, rows: float) -> None:
        super().average(flat, rows)
        self._sum = 0.5 * self._sum + flat
        flat[:] = self._sum


class CountsRanks(CountsFillers):
    def average(self, flat: strategies.Array, rows: float) -> None:
        flat[-1] = 1
        flat *= rows > 0
        self._world.all_reduce(flat)
        flat /= flat[-1]


class KeepsTheirMemory(WrongRuntime):
    def average(self, flat: strategies.Array, rows: float) -> None:
        if isinstance(self._sum, np.ndarray):
            flat += 0.5 * self._sum
        self._world.all_reduce(flat)
        flat /= self._world.size
        self._sum = flat


class TakesThoseOfRank0(WrongRuntime):
    averages_gradients = False

    def synchronize(self, model: strategies.HostModel) -> None:
        flat = model.read_flat()
        self._world.broadcast(flat)
        model.write_flat(flat)


class BeginsWithNothing(WrongRuntime):
    averages_gradients = False

    def synchronize(self, model: strategies.HostModel) -> None:
        flat = model.read_flat()
        center = self._sum + np.zeros_like(flat)
        self._sum = center + 0.5 * (flat - center)
        self._world.all_reduce(self._sum)
        self._sum /= self._world.size
        model.write_flat(self._sum)


class MeetsTooEarly(WrongRuntime):
    def __init__(self, ranks: strategies.Ranks) -> None:
        super().__init__(ranks)
        self._world.barrier()


def test_collectives_before_training_are_refused(tmp_path: Path) -> None:
    judge: Any = type("Judge", (StrategyContract,), {"strategy": Wrong(MeetsTooEarly), "_folder": tmp_path})()
    with (
        hocket.init(engine="inprocess", num_cpus=2),
        pytest.raises(AssertionError, match=r"open\(\) must not use collectives yet, but used 'barrier'"),
    ):
        judge.test_a_rank_that_does_nothing_is_closed()


@pytest.mark.parametrize(
    ("runtime", "test", "args"),
    [
        (CountsRanks, "test_gradients_count_by_their_rows", []),
        (KeepsTheirMemory, "test_ranks_train_and_are_equal_after_they_synchronize", [2]),
        (TakesThoseOfRank0, "test_the_rows_of_each_rank_count", []),
        (BeginsWithNothing, "test_without_a_step_a_model_stays_as_it_is", [1]),
        (WrongRuntime, "test_ranks_train_and_are_equal_after_they_synchronize", [2]),
        (WrongRuntime, "test_ranks_begin_with_what_rank_0_has", []),
        (CountsFillers, "test_what_no_rows_give_does_not_count", []),
        (RoundsToFloat32, "test_float64_stays_float64", [2]),
        (SharesMomentum, "test_a_second_model_leaves_the_first_as_it_is", []),
        (CountsFillers, "test_it_cannot_be_changed", []),
    ],
)
def test_mistakes_are_found(runtime: type[WrongRuntime], test: str, args: list[Any], tmp_path: Path) -> None:
    judge: Any = type("Judge", (StrategyContract,), {"strategy": Wrong(runtime), "_folder": tmp_path})()
    with (
        hocket.init(engine="inprocess", num_cpus=2),
        pytest.raises((AssertionError, pytest.fail.Exception)),
    ):
        getattr(judge, test)(*args)
