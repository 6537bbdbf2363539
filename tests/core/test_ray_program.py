"""An ordinary Ray program runs with its import changed, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import time

import numpy as np
import hocket as ray
from hocket.util.placement_group import placement_group, remove_placement_group
from hocket.util.scheduling_strategies import PlacementGroupSchedulingStrategy

ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, ignore_reinit_error=True)


@ray.remote
def square(x):
    return x * x


@ray.remote(num_returns=2)
def divide(x, y):
    return divmod(x, y)


@ray.remote(num_cpus=2)
class Counter:
    def __init__(self, start=0):
        self.value = start

    def increment(self, by=1):
        self.value += by
        return self.value


assert ray.get([square.remote(x) for x in range(4)]) == [0, 1, 4, 9]
assert ray.get(divide.remote(17, 5)) == [3, 2]

array = ray.put(np.ones((1000, 1000)))
total = ray.remote(lambda matrix: float(matrix.sum()))
assert ray.get(total.remote(array)) == 1e6

counter = Counter.options(name="counter").remote(start=10)
assert ray.get(counter.increment.remote(by=5)) == 15
assert ray.get(ray.get_actor("counter").increment.remote()) == 16

unfinished = [square.remote(x) for x in range(10)]
done = 0
while unfinished:
    ready, unfinished = ray.wait(unfinished, num_returns=min(3, len(unfinished)))
    done += len(ready)
assert done == 10


@ray.remote
def fail():
    raise KeyError("missing")


try:
    ray.get(fail.remote())
except ray.exceptions.RayTaskError as error:
    assert isinstance(error, KeyError)
else:
    raise AssertionError("it did not raise")

try:
    ray.get(ray.remote(time.sleep).remote(1), timeout=0.01)
except ray.exceptions.GetTimeoutError:
    pass

ray.kill(counter)
try:
    ray.get(counter.increment.remote())
except ray.exceptions.RayActorError:
    pass

group = placement_group([{"CPU": 1}, {"CPU": 1}], strategy="PACK")
ray.get(group.ready())
strategy = PlacementGroupSchedulingStrategy(placement_group=group, placement_group_bundle_index=0)
assert ray.get(square.options(scheduling_strategy=strategy).remote(3)) == 9
remove_placement_group(group)

assert ray.cluster_resources()["CPU"] == 4
assert ray.get_runtime_context().get_job_id()
assert ray.is_initialized()
ray.shutdown()
assert not ray.is_initialized()
print("done")
"""


def test_ordinary_ray_program(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=50)
    assert (ran.stdout, ran.stderr, ran.returncode) == ("done\n", "", 0)
