"""The coordinator's process is killed: the next one goes on from the checkpoint, and nothing of the old one is left.

A5 #67.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.conftest import RunScript

pytestmark = pytest.mark.about_local("how its processes die")

PROGRAM = """
import pathlib
import numpy as np
import hocket
from hocket import ps

if __name__ == "__main__":
    hocket.init()
    strategy = ps.ParameterServerStrategy({{"worker": 2, "server": 2}}, optimizer=ps.SGD(lr=1.0))
    with strategy.scope():
        weights = ps.Variable(np.zeros(4, "float32"), name="weights")
        seen = ps.Variable(np.zeros(120, "int64"), name="seen")
    coordinator = ps.Coordinator(strategy)
    path = pathlib.Path({path!r})
    if path.exists():
        coordinator.restore(path)
    items = iter(coordinator.create_per_worker_dataset(list(range(120))))

    def step():
        seen.scatter_add([next(items)], 1)
        strategy.pull([weights])
        strategy.push([(np.full(4, -1.0), weights)])

    while (done := coordinator.statistics()["finished_closures"]) < 120:
        for _ in range(20):
            coordinator.schedule(step)
        coordinator.join()
        coordinator.save(path)
        print("saved", strategy.version, flush=True)
    found = ps.load_checkpoint(path)
    print("end", found.version, found["weights"].tolist(), sorted(set(found["seen"].tolist())), flush=True)
    hocket.shutdown()
"""


def test_killed_at_any_time_it_goes_on_with_exact_counts(start_script: RunScript, tmp_path: Path) -> None:
    program = PROGRAM.format(path=str(tmp_path / "checkpoint"))
    killed = 0
    while True:
        process = start_script(program)
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line.strip())
            if killed < 3 and line.startswith("saved"):
                process.send_signal(signal.SIGKILL)
                killed += 1
                break
        process.wait()
        if lines and lines[-1].startswith("end"):
            break
    assert killed == 3
    assert lines[-1] == "end 120 [120.0, 120.0, 120.0, 120.0] [1]"
