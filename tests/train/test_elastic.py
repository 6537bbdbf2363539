"""Elastic groups: as many ranks as there are resources for, decided at the start, after failures, and while training
goes on."""

from __future__ import annotations

import importlib
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import pytest

import hocket
from hocket import train
from tests.conftest import wait_until_cpus_are_free

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("free_session")]


@pytest.fixture
def free_session(session: Any) -> None:
    """A session whose CPUs are all free: on a shared Ray, those of the test before are so only a moment later."""
    wait_until_cpus_are_free()


def fit(
    function: Any, path: Path, num_workers: Any, config: Any = None, interval_s: float = 60, **run: Any
) -> train.Result:
    return train.DataParallelTrainer(
        function,
        train_loop_config=config,
        scaling_config=train.ScalingConfig(num_workers=num_workers, elastic_resize_monitor_interval_s=interval_s),
        run_config=train.RunConfig(name="run", storage_path=path, **run),
    ).fit()


class Holder:
    """Holds a CPU."""

    def get_pid(self) -> int:
        return os.getpid()


start_holder: Any = hocket.remote(num_cpus=1)(Holder)


def hold_a_cpu() -> Any:
    holder = start_holder.remote()
    hocket.get(holder.get_pid.remote())
    return holder


def report_size(config: dict[str, Any]) -> int:
    size = train.get_context().get_world_size()
    train.report({"size": size})
    return size


class Sizes(train.UserCallback):
    """Notes how many ranks there are; frees a CPU at a step, if it was given one that is held."""

    def __init__(self, holder: Any = None, at: int = 0) -> None:
        self.seen: list[tuple[int, int]] = []
        self._holder, self._at = holder, at

    def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
        self.seen.append((run_context.num_workers, len(metrics)))
        if self._holder is not None and len(self.seen) == self._at:
            hocket.kill(self._holder)
            self._holder = None


@pytest.mark.parametrize(("held", "size"), [(0, 2), (1, 1)])
def test_as_many_as_there_are_resources_for(tmp_path: Path, held: int, size: int) -> None:
    holders = [hold_a_cpu() for _ in range(held)]
    sizes = Sizes()
    assert fit(report_size, tmp_path, (1, 4), {}, callbacks=[sizes]).return_value == size
    assert sizes.seen == [(size, size)]
    for holder in holders:
        hocket.kill(holder)
    wait_until_cpus_are_free()


def test_fewer_than_the_most_though_more_would_fit(tmp_path: Path) -> None:
    assert fit(report_size, tmp_path, (1, 1), {}).return_value == 1


def test_the_least_that_can_never_be(tmp_path: Path) -> None:
    with pytest.raises(hocket.exceptions.InfeasibleResourcesError, match=r"num_workers=3 with .*CPU: 3"):
        fit(report_size, tmp_path, (3, 4), {})


def step_and_save(config: dict[str, Any]) -> dict[str, Any]:
    """Twelve steps, each saved; rank 1 of two dies at one of them, once."""
    context = train.get_context()
    start = train.get_checkpoint()
    first = int(Path(start.path, "step").read_text()) + 1 if start else 0
    for step in range(first, 12):
        flag = Path(config["flag"])
        if step == config.get("dies_at") and context.get_world_rank() == 1 and not flag.exists():
            flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "step").write_text(str(step))
            train.report({"step": step, "size": context.get_world_size()}, train.Checkpoint(folder))
    return {"size": context.get_world_size(), "first": first}


def test_as_many_as_can_be_placed(tmp_path: Path) -> None:
    """Though there are resources for more by their sum, for which the group is not started again either."""
    result = train.DataParallelTrainer(
        step_and_save,
        train_loop_config={"flag": ""},
        scaling_config=train.ScalingConfig(
            num_workers=(1, 2), placement_strategy="STRICT_SPREAD", elastic_resize_monitor_interval_s=0
        ),
        run_config=train.RunConfig(storage_path=tmp_path),
    ).fit()
    assert result.return_value == {"size": 1, "first": 0}


class TakeCpuAfterFailure(train.UserCallback):
    def __init__(self) -> None:
        self.holder: Any = None

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        self.holder = start_holder.remote()  # it is placed as soon as the dead group's CPUs are free


def test_a_smaller_group_goes_on_after_a_failure(tmp_path: Path) -> None:
    taker = TakeCpuAfterFailure()
    result = fit(
        step_and_save,
        tmp_path,
        (1, 2),
        {"flag": str(tmp_path / "died"), "dies_at": 5},
        callbacks=[taker],
        failure_config=train.FailureConfig(max_failures=1),
    )
    assert [metrics["step"] for metrics in result.metrics_history] == list(range(12))
    assert [metrics["size"] for metrics in result.metrics_history] == [2] * 5 + [1] * 7
    assert result.return_value == {"size": 1, "first": 5}
    hocket.kill(taker.holder)


def test_a_group_grows_at_a_commit(tmp_path: Path) -> None:
    sizes = Sizes(hold_a_cpu(), at=3)
    result = fit(step_and_save, tmp_path, (1, 2), {"flag": ""}, interval_s=0, callbacks=[sizes])
    history = result.metrics_history
    assert [metrics["step"] for metrics in history] == list(range(12)), "nothing is repeated: it grew at a commit"
    grown_at = [metrics["size"] for metrics in history].index(2)
    assert grown_at >= 3
    assert [metrics["size"] for metrics in history] == [1] * grown_at + [2] * (12 - grown_at)
    assert result.return_value == {"size": 2, "first": grown_at}
    wait_until_cpus_are_free()


def wait_to_grow(config: dict[str, Any]) -> int:
    """Nothing is ever saved; alone, a rank waits for the other one."""
    train.report({"size": train.get_context().get_world_size()})
    while train.get_context().get_world_size() == 1:
        train.get_all_reported_checkpoints()  # goes to the driver and back
    return train.get_context().get_world_size()


def test_a_group_grows_though_nothing_is_saved(tmp_path: Path) -> None:
    sizes = Sizes(hold_a_cpu(), at=1)
    result = fit(wait_to_grow, tmp_path, (1, 2), {}, interval_s=0.05, callbacks=[sizes])
    assert result.return_value == 2
    assert result.metrics_history == [{"size": 2}]


class TakeAndGiveBack(TakeCpuAfterFailure):
    """Takes the CPU of the rank that died, and gives it back some reports later; notes the rows that all ranks have
    read."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[int] = []
        self.sizes: list[int] = []
        self._left = 3

    def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
        self.rows += [row for of_rank in metrics for row in of_rank["rows"]]
        self.sizes.append(len(metrics))
        if self.holder is not None:
            self._left -= 1
            if self._left == 0:
                hocket.kill(self.holder)


def read_rows(config: dict[str, Any]) -> None:
    """An epoch of 40 rows, a commit at each step; rank 1 of two dies after some, once."""
    torch_train = importlib.import_module("hocket.train.torch")
    data = importlib.import_module("torch.utils.data")
    rank, flag = train.get_context().get_world_rank(), Path(config["flag"])
    loader = data.DataLoader(list(range(40)), batch_size=2, shuffle=True)
    for step, batch in enumerate(torch_train.prepare_data_loader(loader)):
        if step == 3 and rank == 1 and not flag.exists():
            flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        with tempfile.TemporaryDirectory() as folder:
            train.report({"rows": batch.tolist()}, train.Checkpoint(folder))


def test_no_row_is_lost_or_repeated_when_the_size_changes(tmp_path: Path) -> None:
    torch_train = pytest.importorskip("hocket.train.torch")
    watch = TakeAndGiveBack()
    torch_train.TorchTrainer(
        read_rows,
        train_loop_config={"flag": str(tmp_path / "died")},
        scaling_config=train.ScalingConfig(num_workers=(1, 2), elastic_resize_monitor_interval_s=0),
        run_config=train.RunConfig(
            storage_path=tmp_path, callbacks=[watch], failure_config=train.FailureConfig(max_failures=1)
        ),
    ).fit()
    assert sorted(watch.rows) == list(range(40))
    assert watch.sizes[:6] == [2, 2, 2, 1, 1, 1], "it shrinks when a rank dies"
    assert watch.sizes[-1] == 2, "and grows when there is room again"
    assert watch.sizes == sorted(watch.sizes[:3], reverse=True) + sorted(watch.sizes[3:])


def test_one_rank_in_process(tmp_path: Path) -> None:
    hocket.shutdown()
    with hocket.init(num_cpus=2, engine="inprocess"):
        assert fit(report_size, tmp_path, (1, 1), {}).return_value == 1
