"""From nothing to the first step of training on two ranks: `hocket run` beside torchrun, and a `TorchTrainer` beside
Ray Train's.

python benchmarks/launch.py
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path

from _harness import OURS, Results, Row, Settings, build_environment, name_package, parse_settings, show

RANKS = 2
LIMIT_SECONDS = 300

STEP = """
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(8, 16)).mean().backward()
optimizer.step()
dist.barrier()
moment = time.time()
with open("/proc/self/smaps_rollup") as lines:
    own = {{line.split()[0]: int(line.split()[1]) * 1024 for line in list(lines)[1:]}}
together = 0
if dist.get_rank() == 0:
    import psutil
    together = sum(child.memory_full_info().pss for child in psutil.Process({top}).children(recursive=True))
with open("{folder}/" + str(dist.get_rank()), "w") as file:
    json.dump({{"moment": moment, "resident": own["Rss:"], "share": own["Pss:"], "together": together}}, file)
dist.barrier()
"""
"""What both sides run: a step, and then a look at the clock and at the memory while all ranks are there."""

SCRIPT = """
import json
import time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
torch.manual_seed(0)
{step}
dist.destroy_process_group()
"""

TRAINER = """
import json
import time
import torch
import torch.distributed as dist
from {package} import train
from {package}.train.torch import TorchTrainer

def train_loop():
    torch.manual_seed(0)
{step}
    train.report({{"done": True}})

if __name__ == "__main__":
    TorchTrainer(
        train_loop,
        scaling_config=train.ScalingConfig(num_workers=2),
        run_config=train.RunConfig(storage_path="{folder}/storage"),
    ).fit()
"""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A program, and who runs it."""

    name: str
    source: str
    commands: dict[str, tuple[str, ...]]
    """What Python gets before the program's path, for each side."""

    def list_rows(self) -> list[Row]:
        return [
            Row(name=f"{self.name}: cold start to first optimizer step", unit="s", more_is_better=False),
            Row(name=f"{self.name}: cold start to exit", unit="s", more_is_better=False),
            Row(name=f"{self.name}: processor time of all processes", unit="s", more_is_better=False),
            Row(name=f"{self.name}: resident memory of a rank", unit="MB", more_is_better=False),
            Row(name=f"{self.name}: the same, shared pages divided", unit="MB", more_is_better=False),
            Row(name=f"{self.name}: memory of all processes", unit="MB", more_is_better=False),
        ]


CASES = (
    Case(
        name="script",
        source=SCRIPT,
        commands={
            OURS: ("-m", "hocket.cli", "run", "--workers", str(RANKS)),
            "torchrun": ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)),
        },
    ),
    Case(name="trainer", source=TRAINER, commands={OURS: (), "ray": ()}),
)


def measure(case: Case, side: str, settings: Settings, folder: Path) -> list[float]:
    """Return the value of each row, from one start of the program."""
    step = STEP.format(top=os.getpid(), folder=folder)
    step = textwrap.indent(step, "    ") if case.name == "trainer" else step
    program = folder / "train.py"
    program.write_text(case.source.format(step=step, folder=folder, package=name_package(side)))
    environment = {**build_environment(side, settings), "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # installed code has its bytecode; a checkout's is made in round 1
    before = os.times()
    start = time.time()
    done = subprocess.run(
        [sys.executable, *case.commands[name_package(side)], str(program)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
        timeout=LIMIT_SECONDS,
    )
    end = time.time()
    after = os.times()
    marks = []
    with contextlib.suppress(FileNotFoundError):
        marks = [json.loads((folder / str(rank)).read_text()) for rank in range(RANKS)]
    if done.returncode or not marks:
        raise RuntimeError(f"ended with status {done.returncode}:\n{done.stderr[-2000:]}")
    return [
        max(mark["moment"] for mark in marks) - start,
        end - start,
        (after.children_user + after.children_system) - (before.children_user + before.children_system),
        sum(mark["resident"] for mark in marks) / len(marks) / 1e6,
        sum(mark["share"] for mark in marks) / len(marks) / 1e6,
        marks[0]["together"] / 1e6,
    ]


def run(settings: Settings) -> Results:
    rows = {case.name: case.list_rows() for case in CASES}
    wanted = [row for case in CASES for row in rows[case.name] if settings.wants(row)]
    results = Results(rows=wanted, sides=settings.sides)
    cases = [case for case in CASES if any(row in wanted for row in rows[case.name])]
    for number in range(settings.rounds + 1):
        for case in cases:
            for side in [side for side in settings.sides if name_package(side) in case.commands]:
                with tempfile.TemporaryDirectory(prefix="hocket-bench-", ignore_cleanup_errors=True) as folder:
                    try:
                        values = measure(case, side, settings, Path(folder))
                    except (OSError, RuntimeError, subprocess.TimeoutExpired) as error:
                        results.fail(rows[case.name][0].name, side, str(error))
                        continue
                if number:  # the first round only brings the files into the page cache
                    for row, value in zip(rows[case.name], values, strict=True):
                        results.add(row.name, side, value)
    return results


def main() -> int:
    settings = parse_settings(__doc__.splitlines()[0], rounds=7, peers=("torchrun", "ray"))
    results = run(settings)
    if results.rows:
        show(results, settings, title=f"From nothing to the first step on {RANKS} ranks")
    return results.exit_status


if __name__ == "__main__":
    sys.exit(main())
