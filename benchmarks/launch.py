"""From nothing to the first step of a torchrun script on two ranks: `hocket run` beside torchrun.

python benchmarks/launch.py
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _harness import Results, Row, Settings, parse_settings, show

RANKS = 2
FIRST_STEP = Row(name="cold start to first optimizer step", unit="s", more_is_better=False)
EXIT = Row(name="cold start to exit", unit="s", more_is_better=False)
CPU = Row(name="processor time of all processes", unit="s", more_is_better=False)

SCRIPT = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(8, 16)).mean().backward()
optimizer.step()
dist.barrier()
if dist.get_rank() == 0:
    print("stepped", flush=True)
dist.destroy_process_group()
"""
"""What both sides run, unchanged; rank 0 speaks as soon as all ranks have taken their step."""

COMMANDS = {
    "hocket": ("-m", "hocket.cli", "run", "--workers", str(RANKS)),
    "torchrun": ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)),
}


def measure(side: str, script: Path) -> tuple[float, float, float]:
    """Seconds from the start of the launcher to the first step and to its end, and the processor's."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # installed code has its bytecode; a checkout's is made in round 1
    before = os.times()
    start = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, *COMMANDS[side], str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        line = process.stdout.readline()
        first = time.perf_counter() - start
        complaints = process.stderr.read()
        status = process.wait()
    end = time.perf_counter() - start
    if line != "stepped\n" or status:
        raise RuntimeError(f"printed {line!r} and ended with status {status}:\n{complaints[-2000:]}")
    after = os.times()
    used = (after.children_user + after.children_system) - (before.children_user + before.children_system)
    return first, end, used


def run(settings: Settings) -> Results:
    rows = (FIRST_STEP, EXIT, CPU)
    results = Results(rows=[row for row in rows if settings.wants(row)], sides=settings.sides)
    with tempfile.TemporaryDirectory(prefix="hocket-bench-") as folder:
        script = Path(folder, "train.py")
        script.write_text(SCRIPT)
        for number in range(settings.rounds + 1):
            for side in settings.sides:
                try:
                    values = measure(side, script)
                except (OSError, RuntimeError) as error:
                    results.fail(EXIT.name, side, str(error))
                    continue
                if number:  # the first round only brings the files into the page cache
                    for row, value in zip(rows, values, strict=True):
                        results.add(row.name, side, value)
    return results


def main() -> int:
    settings = parse_settings(__doc__.splitlines()[0], rounds=7, peers=("torchrun",))
    results = run(settings)
    if results.rows:
        show(results, settings, title=f"A torchrun script on {RANKS} ranks")
    return results.exit_status


if __name__ == "__main__":
    sys.exit(main())
