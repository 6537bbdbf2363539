"""SIGTERM is a notice: the training function saves first, then the group is started again, and that is no failure."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from hocket import train
from hocket.engine import descendants
from hocket.testing.suites.programs import wait_until
from hocket.train import collective
from hocket.train.run import preemption_policy
from tests.conftest import RunScript, wait_until_cpus_are_free

pytestmark = pytest.mark.needs("processes")

FAR_SECONDS = 600
"""What a rank waits for that nobody waits for: a test that does end it runs into its time-out."""


def fit(function: Any, path: Path, config: Any, callbacks: Any = (), **failure: Any) -> train.Result:
    return train.DataParallelTrainer(
        function,
        train_loop_config=config,
        scaling_config=train.ScalingConfig(num_workers=2),
        run_config=train.RunConfig(
            name="run", storage_path=path, callbacks=callbacks, failure_config=train.FailureConfig(**failure)
        ),
    ).fit()


def save_when_told(config: dict[str, Any]) -> dict[str, Any]:
    """Ten steps, none of them saved but where a rank is told to end: rank 1 is at steps 2 and 6, once each."""
    rank = train.get_context().get_world_rank()
    start = train.get_checkpoint()
    first = int(Path(start.path, "step").read_text()) + 1 if start else 0
    told = None
    for step in range(first, 10):
        flag = Path(config["flags"], f"told-{step}")
        if rank == 1 and step in (2, 6) and not flag.exists():
            flag.touch()
            os.kill(os.getpid(), signal.SIGTERM)
        while (info := train.get_preemption_info()) is None and step in (2, 6):
            pass  # the signal's handler runs in another thread: it is a matter of microseconds, and of all ranks alike
        checkpoint = None
        with tempfile.TemporaryDirectory() as folder:
            if info is not None:
                told = (info.preempted_ranks, len(info.preempted_node_ids), info.deadline_ms is not None)
                Path(folder, "step").write_text(str(step))
                checkpoint = train.Checkpoint(folder)
            train.report({"step": step, "first": first, "told": told}, checkpoint)
    return {"first": first}


@pytest.mark.slow
@pytest.mark.usefixtures("session")
def test_nothing_is_lost_and_no_failure_is_counted(tmp_path: Path) -> None:
    result = fit(save_when_told, tmp_path, {"flags": str(tmp_path)})
    history = result.metrics_history
    assert [metrics["step"] for metrics in history] == list(range(10))
    assert [metrics["first"] for metrics in history] == [0] * 3 + [3] * 4 + [7] * 3, "it goes on where it was told"
    told = [metrics["told"] for metrics in history if metrics["told"]]
    assert told == [[[1], 1, True]] * 2  # metrics are plain data: tuples are lists in them
    assert result.return_value == {"first": 7}
    with pytest.raises(train.PreemptionError, match=r"^Rank 1 received SIGTERM\. The run's folder has") as caught:
        fit(save_when_told, tmp_path / "again", {"flags": str(clear(tmp_path))}, max_preemption_failures=1)
    assert caught.value.preemption_info.preempted_ranks == [1]
    assert not caught.value.drain_timed_out
    wait_until_cpus_are_free()


def clear(path: Path) -> Path:
    for flag in path.glob("told-*"):
        flag.unlink()
    return path


def wait_for_the_end(config: dict[str, Any]) -> None:
    """Rank 0 is told to end, and goes on."""
    if train.get_context().get_world_rank() == 0:
        os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(FAR_SECONDS)


@pytest.mark.slow
@pytest.mark.usefixtures("session")
def test_who_never_saves_has_his_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preemption_policy, "NOTICE_SECONDS", 0.1)
    with pytest.raises(train.PreemptionError, match="no checkpoint was committed before the time was over") as caught:
        fit(wait_for_the_end, tmp_path, {}, max_preemption_failures=0)
    assert caught.value.drain_timed_out
    assert caught.value.preemption_info.preempted_ranks == [0]


@pytest.mark.slow
@pytest.mark.usefixtures("session")
def test_an_elastic_group_that_is_to_end_is_waited_for_in_peace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not grow, so the time to look whether it can is no time to wake up at."""
    looks: list[float] = []
    look = preemption_policy.PreemptionPolicy.look

    def count(policy: preemption_policy.PreemptionPolicy, now: float) -> None:
        looks.append(now)
        look(policy, now)

    monkeypatch.setattr(preemption_policy.PreemptionPolicy, "look", count)
    monkeypatch.setattr(preemption_policy, "NOTICE_SECONDS", 0.5)
    with pytest.raises(train.PreemptionError):
        train.DataParallelTrainer(
            wait_for_the_end,
            train_loop_config={"flag": str(tmp_path / "flag")},
            scaling_config=train.ScalingConfig(num_workers=(2, 64), elastic_resize_monitor_interval_s=0.05),
            run_config=train.RunConfig(
                storage_path=tmp_path, failure_config=train.FailureConfig(max_preemption_failures=0)
            ),
        ).fit()
    assert len(looks) < 100


def end_a_child_then_oneself(config: dict[str, Any]) -> list[int]:
    """A fork of rank 0 is told to end; then rank 0 is, and when all know of it, again."""
    is_known = Path(config["statuses"]).exists()
    collective.barrier()  # both have looked
    if is_known:
        return [int(status) for status in Path(config["statuses"]).read_text().split()]
    is_first = train.get_context().get_world_rank() == 0
    if is_first:
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(FAR_SECONDS,))
        child.start()
        child.terminate()
        child.join()
        Path(config["statuses"]).write_text(f"{child.exitcode}")
        os.kill(os.getpid(), signal.SIGTERM)
    while train.get_preemption_info() is None:
        pass
    if is_first:
        os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(FAR_SECONDS)
    return []


class CountExceptions(train.UserCallback):
    def __init__(self) -> None:
        self.ranks: list[list[int]] = []

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        self.ranks.append(list(worker_exceptions))


@pytest.mark.slow
@pytest.mark.needs("forks")
@pytest.mark.usefixtures("session")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_rank_that_ends_after_the_notice_is_no_failure(tmp_path: Path) -> None:
    counter = CountExceptions()
    config = {"statuses": str(tmp_path / "statuses")}
    result = fit(end_a_child_then_oneself, tmp_path, config, callbacks=[counter])
    assert result.return_value == [-signal.SIGTERM], "the fork of a rank took its first SIGTERM as its end"
    assert counter.ranks == [[0]]


DRIVER = """
import os, sys, tempfile, threading
from pathlib import Path
import hocket
from hocket import train

def loop(config):
    first = 0
    if train.get_checkpoint() is not None:
        first = int(Path(train.get_checkpoint().path, "step").read_text()) + 1
    step = first
    while config["saves"] or step < 3:
        if train.get_context().get_world_rank() == 0:
            print(os.getpid() if step == first else "step", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "step").write_text(str(step))
            train.report({"step": step}, train.Checkpoint(folder) if config["saves"] else None)
        step += 1
    train.collective.barrier()
    threading.Event().wait(600)

hocket.init(num_cpus=2)
try:
    train.DataParallelTrainer(
        loop,
        train_loop_config={"saves": sys.argv[1] == "saves"},
        scaling_config=train.ScalingConfig(num_workers=2),
        run_config=train.RunConfig(name="run", storage_path=sys.argv[2]),
    ).fit()
except train.PreemptionError as error:
    print("ended:", error.preemption_info.preempted_ranks, error.drain_timed_out, flush=True)
"""


@pytest.mark.slow
def test_the_driver_ends_after_a_commit(tmp_path: Path, start_script: RunScript) -> None:
    for has_saved in (True, False):
        folder = tmp_path / str(has_saved)
        words = "saves" if has_saved else "never"
        script = start_script(f"import sys; sys.argv = ['driver', {words!r}, {str(folder)!r}]\n{DRIVER}")
        assert script.stdout is not None
        for _ in range(3):
            assert script.stdout.readline(), script.stderr.read() if script.stderr else ""
        script.send_signal(signal.SIGTERM)
        lines = script.stdout.read().splitlines()  # what a rank prints may come after it
        assert script.wait() == 0
        assert f"ended: [0, 1] {not has_saved}" in lines, "who never saves is ended at once"
    checkpoints = train.Result.from_path(tmp_path / "True" / "run").metrics_history
    assert [metrics["step"] for metrics in checkpoints] == list(range(len(checkpoints)))


STOPPED = """
import os, signal, tempfile, threading
import hocket
from hocket import train

def loop():
    print(os.getpid(), flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
    threading.Event().wait(600)

hocket.init(num_cpus=2)
try:
    run_config = train.RunConfig(storage_path=tempfile.mkdtemp())
    train.DataParallelTrainer(loop, scaling_config=train.ScalingConfig(num_workers=2), run_config=run_config).fit()
except train.PreemptionError as error:
    print("ended:", error.preemption_info.preempted_ranks, flush=True)
"""


@pytest.mark.slow
def test_the_driver_ends_though_its_ranks_are_stopped(start_script: RunScript) -> None:
    """None of them passes the notice back."""
    script = start_script(STOPPED)
    assert script.stdout is not None
    pids = [int(script.stdout.readline().split()[-1]) for _ in range(2)]  # Ray puts a name before it
    wait_until(lambda: all(map(descendants.is_stopped, pids)))
    script.send_signal(signal.SIGTERM)
    assert "ended: [0, 1]" in script.stdout.read().splitlines()
    assert script.wait() == 0


STUBBORN = """
import os, sys, tempfile, threading
import hocket
from hocket import train
from hocket.train.rank import preemption_signals

preemption_signals.END_SECONDS = 0.5

class Slow(train.UserCallback):
    def after_report(self, run_context, metrics, checkpoint):
        print("reported", flush=True)
        if sys.argv[1] == "in fit":
            threading.Event().wait(600)

def loop():
    train.report({"step": 1})
    threading.Event().wait(600)

hocket.init(num_cpus=1)
run_config = train.RunConfig(storage_path=tempfile.mkdtemp(), callbacks=[Slow()])
trainer = train.DataParallelTrainer(
    loop, scaling_config=train.ScalingConfig(num_workers=1), run_config=run_config
)
try:
    trainer.fit()
except Exception as error:  # as pytest does, and a loop that tries again
    print(type(error).__name__, flush=True)
if sys.argv[1] == "again":
    trainer.fit()
threading.Event().wait(600)
"""


@pytest.mark.slow
@pytest.mark.parametrize("where", ["after fit", "again", "in fit"])
def test_the_driver_ends_though_it_goes_on(
    start_script: RunScript, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setenv("HOCKET_TRAIN_PREEMPTION_NOTICE_S", "0.5")
    script = start_script(f"import sys; sys.argv = ['driver', {where!r}]\n{STUBBORN}")
    assert script.stdout is not None
    while script.stdout.readline() != "reported\n":
        assert script.poll() is None
    script.send_signal(signal.SIGTERM)
    output, errors = script.communicate()
    assert script.returncode == -signal.SIGTERM
    assert ("PreemptionError" in output) == (where != "in fit")
    assert "received SIGTERM while it trained" in errors


@pytest.mark.slow
def test_a_second_sigterm_ends_the_driver_at_once(tmp_path: Path, start_script: RunScript) -> None:
    words = DRIVER.replace('config["saves"] or step < 3', "step < 1")
    words = words.replace("collective.barrier()", "collective.barrier(); print('saved', flush=True)")
    script = start_script(f"import sys; sys.argv = ['driver', 'saves', {str(tmp_path)!r}]\n{words}")
    assert script.stdout is not None
    while not script.stdout.readline().endswith("saved\n"):  # Ray puts a name before it
        assert script.poll() is None
    script.send_signal(signal.SIGTERM)
    wait_until(lambda: not _catches_sigterm(script.pid))
    script.send_signal(signal.SIGTERM)
    script.communicate()
    assert script.returncode == -signal.SIGTERM


def _catches_sigterm(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)
