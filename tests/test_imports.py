"""What importing costs: how many modules each room loads, and that forked processes load none of ours.

The numbers are bounds, not goals: a change that breaks one has made every program's start longer, and every worker's
that imports the same. Whoever raises one says why beside it.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import hocket
from tests import import_log

COUNT = """
import sys
{before}
known = set(sys.modules)
{program}
new = [name for name in set(sys.modules) - known if not name.startswith("hocket.testing")]
own = [name for name in new if name.partition(".")[0] == "hocket"]
others = {{name.partition(".")[0] for name in new}} - set(sys.stdlib_module_names) - {{"hocket", "__mp_main__"}}
print(len(own), *sorted(name for name in others if "cython" not in name.lower()))
"""

TORCH = "from hocket.train.torch import TorchTrainer, prepare_data_loader, prepare_model, prepare_optimizer"

LOADS = {
    # A package by itself has its names looked up when they are asked for.
    "import hocket": (3, ""),
    "import hocket.data": (5, ""),
    "import hocket.mesh": (5, ""),
    "import hocket.ps": (5, ""),
    "import hocket.train": (5, ""),
    # A program's first lines. The engine itself is loaded by `init`.
    "import hocket; hocket.init, hocket.remote, hocket.get": (41, ""),
    # pyarrow, pandas and duckdb come with the first block that is theirs.
    "from hocket import data; data.Dataset, data.range, data.read_parquet": (130, "numpy"),
    "from hocket import mesh; mesh.Mesh, mesh.Layout, mesh.create_mesh": (15, "numpy"),
    "from hocket import ps; ps.Coordinator, ps.ParameterServerStrategy, ps.Variable": (120, "numpy"),
    # The runs of trainers are in it, because a trial may be one; Optuna comes with its searcher.
    "import hocket.tune": (226, "cloudpickle numpy"),
    # All but what another strategy needs, data sets and parameter servers.
    f"from hocket import train; {TORCH}; train.RunConfig, train.report": (205, "numpy"),
}
"""By a program: how many of our modules it loads at most, and which packages of others."""

BEFORE = {program: "import torch" for program in LOADS if TORCH in program}
"""What is loaded already, and not counted."""


@pytest.mark.parametrize("program", LOADS)
def test_a_room_loads_what_it_needs(program: str) -> None:
    most, others = LOADS[program]
    source = COUNT.format(before=BEFORE.get(program, ""), program=program)
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    count, *found = done.stdout.split()
    assert found == others.split()
    assert int(count) <= most, f"{program} loads {count} of our modules"


def test_nothing_of_torch_that_few_need_is_loaded() -> None:
    source = f"{TORCH}; import sys; print([n for n in ('sympy', 'torch.distributed.tensor', 'torch._dynamo') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# --- after a fork -----------------------------------------------------------------------------------------------------

PROGRAMS = {
    "actors and tasks": """
from hocket.util import ActorPool
from hocket.util.queue import Queue

queue = Queue()
queue.put(1)
assert queue.get() == 1
""",
    "data": """
from hocket import data

class Same:
    def __call__(self, batch):
        return batch

rows = data.range(100).map(lambda row: {"id": row["id"] + 1})
assert rows.sum("id") == 5050
assert rows.sort("id", descending=True).take(1) == [{"id": 100}]
assert rows.random_shuffle().map_batches(Same, concurrency=2).count() == 100
""",
    "parameter servers": """
import numpy as np
from hocket import ps

strategy = ps.ParameterServerStrategy({"worker": 2, "server": 2})
coordinator = ps.Coordinator(strategy)
with strategy.scope():
    weights = ps.Variable(np.zeros(4), name="weights")
    table = ps.Embedding(10, 2, name="table")

def step():
    table.lookup(np.array([1]))
    weights.assign_add(np.ones(4))

for _ in range(4):
    coordinator.schedule(step)
coordinator.join()
assert weights.read_value().sum() == 16
""",
    "ranks of PyTorch": """
import tempfile
import torch
from hocket import data, train
from hocket.train.torch import TorchTrainer, prepare_model, prepare_optimizer

def loop():
    model = prepare_model(torch.nn.Linear(1, 1))
    optimizer = prepare_optimizer(torch.optim.SGD(model.parameters(), lr=0.01))
    for batch in train.get_dataset_shard("train").iter_torch_batches(batch_size=10):
        model(batch["id"].float()[:, None]).sum().backward()
        optimizer.step()
    with tempfile.TemporaryDirectory() as folder:
        train.report({"loss": 0.0}, checkpoint=train.Checkpoint.from_directory(folder))

TorchTrainer(
    loop,
    datasets={"train": data.range(40)},
    scaling_config=train.ScalingConfig(num_workers=2),
    run_config=train.RunConfig(storage_path=tempfile.mkdtemp(dir=FOLDER)),
).fit()
""",
    "trials": """
import tempfile
from hocket import tune

def trial(config):
    tune.report({"x": config["x"]})

space = {"x": tune.grid_search([1, 2])}
tune.Tuner(trial, param_space=space, run_config=tune.RunConfig(storage_path=tempfile.mkdtemp(dir=FOLDER))).fit()
""",
}
"""What our functions and actors need is imported where workers are forked from: these start some of each room's."""


@pytest.mark.slow
@pytest.mark.about_local("a process that forks the workers")
@pytest.mark.parametrize("room", PROGRAMS)
def test_workers_import_nothing_of_ours_after_their_fork(
    room: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "imports"
    monkeypatch.setenv(import_log.VARIABLE, str(log))
    monkeypatch.setenv("HOCKET_PROGRESS", "off")
    begin = f"""
import hocket, sys
from hocket.core import session
sys.path.insert(0, {str(Path(__file__).parent.parent)!r})
FOLDER = {str(tmp_path)!r}
hocket.init(num_cpus=4)
session.get_engine().tasks.expect_work([{import_log.__name__!r}])
"""
    source = f"{begin}\n{PROGRAMS[room]}\nhocket.shutdown()"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (_, loaded), *workers = import_log.read(log).items()
    assert len(loaded) > 1, "the process that forks has loaded something for them"
    assert [names for _, names in workers] == []


# --- names that come later --------------------------------------------------------------------------------------------

PACKAGES = ["hocket", "hocket.data", "hocket.mesh", "hocket.ps", "hocket.train", "hocket.train.torch"]
"""Those whose names are loaded when they are asked for."""


@pytest.mark.parametrize("package", PACKAGES)
def test_no_module_has_the_name_of_something_that_comes_later(package: str) -> None:
    """The module, once it is loaded, would be found in its place."""
    module = importlib.import_module(package)
    modules = {found.name for found in pkgutil.iter_modules(module.__path__)}
    wrong = [name for name in module.__all__ if name in modules]
    assert wrong == []


@pytest.mark.parametrize("package", PACKAGES)
def test_all_names_are_there(package: str) -> None:
    source = f"from {package} import *; import {package} as it; print([n for n in dir(it) if not hasattr(it, n)], len(it.__all__))"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    missing, count = done.stdout.rsplit(maxsplit=1)
    assert (missing, int(count)) == ("[]", len(importlib.import_module(package).__all__))


def test_a_module_that_defines_its_names_gives_all_of_them() -> None:
    source = (
        "from hocket.exceptions import *; from hocket.util import *; print(HocketError.__name__, ActorPool.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert done.stdout == "HocketError ActorPool\n"


def test_dir_has_no_inner_rooms_and_all_names() -> None:
    assert {"core", "engine", "kernel"}.isdisjoint(dir(hocket))
    assert {"get", "remote", "util", "ObjectID"} <= set(dir(hocket))


@pytest.mark.parametrize(
    "module", ["hocket.core.placement", "hocket.core.actor", "hocket.util.queue", "hocket.train.configs"]
)
def test_any_module_can_be_the_first(module: str) -> None:
    source = f"import {module}, hocket, sys; print(hocket.get.__module__, sys.modules[{module!r}].__name__)"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert done.stdout == f"hocket.core.api {module}\n"


def test_threads_may_ask_at_the_same_time() -> None:
    source = """
import threading
import hocket
gate = threading.Barrier(8)
found = []

def look(name):
    gate.wait()
    found.append(getattr(hocket, name))

names = ("get", "put", "util", "dag", "remote", "wait", "RuntimeContext", "data")
threads = [threading.Thread(target=look, args=(name,)) for name in names]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(found))
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("8\n", "")


def test_an_unknown_name_is_unknown_each_time() -> None:
    for _ in range(2):
        with pytest.raises(AttributeError, match=r"module 'hocket\.data' has no attribute 'nonsense'"):
            _ = hocket.data.nonsense  # type: ignore[attr-defined]  # what is tested
