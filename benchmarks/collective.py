"""Collectives of torch.distributed and data-parallel steps, over the backend "hocket" and over gloo.

python benchmarks/collective.py --only "all_reduce, 2 ranks"

Both backends are two groups of the same processes and take turns; each round has fresh processes. With `--earlier`,
the processes of both commits take turns, and gloo is left out of the table.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from _harness import EARLIER, OURS, Results, Row, Settings, build_environment, is_asked, parse_settings, show
from rich.progress import track

KIB = 1024
SIZES = {
    "4 KB": 4 * KIB,
    "64 KB": 64 * KIB,
    "1 MB": KIB * KIB,
    "4 MB": 4 * KIB * KIB,
    "25 MB": 25 * KIB * KIB,
    "100 MB": 100 * KIB * KIB,
}
OTHERS = ("reduce_scatter", "all_gather", "broadcast", "all_to_all")
MODELS = ("MLP 784-2048-2048-10", "MLP 64-32-10", "convolutions", "transformer", "LSTM")
BATCH = 64

ROWS = [
    *(
        Row(name=f"all_reduce, {ranks} ranks, {size}", unit="us", more_is_better=False)
        for ranks in (2, 4)
        for size in SIZES
    ),
    *(Row(name=f"{name}, 2 ranks, 1 MB", unit="us", more_is_better=False) for name in OTHERS),
    Row(name="barrier, 2 ranks", unit="us", more_is_better=False),
    *(Row(name=f"DDP step, 2 ranks, {model}", unit="steps/s") for model in MODELS),
    *(Row(name=f"prepared step, 2 ranks, {model}", unit="steps/s") for model in MODELS),
]

LIMIT_SECONDS = 600
"""Longest that one round of one number of ranks may take. Guessed."""


# --- in a rank --------------------------------------------------------------------------------------------------------


def build_model(name: str) -> tuple[Any, Any]:
    """Return a model and the shape of an input."""
    from torch import nn

    if name == "MLP 784-2048-2048-10":
        layers = [nn.Linear(784, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10)]
        return nn.Sequential(*layers), (784,)
    if name == "MLP 64-32-10":
        return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)), (64,)
    if name == "convolutions":
        layers = [nn.Conv2d(3, 16, 3, 2), nn.ReLU(), nn.Conv2d(16, 32, 3, 2), nn.ReLU(), nn.Flatten()]
        return nn.Sequential(*layers, nn.Linear(32 * 7 * 7, 10)), (3, 32, 32)
    if name == "transformer":
        layer = nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True)
        return nn.Sequential(nn.TransformerEncoder(layer, 2), nn.Flatten(), nn.Linear(16 * 128, 10)), (16, 128)

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.LSTM(64, 128, batch_first=True), nn.Linear(128, 10)

        def forward(self, inputs: Any) -> Any:
            return self.head(self.body(inputs)[0][:, -1])

    return Recurrent(), (16, 64)


def build_steps(name: str, group: Any, *, prepared: bool) -> Callable[[], None]:
    """Return a function that takes one step of a model that is wrapped for a group.

    Args:
        name: Of the model.
        group: None for ours.
        prepared: Whether ours is wrapped as `prepare_model` does it, and the other as a torchrun script.
    """
    import torch
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    model, shape = build_model(name)
    wrapped = DistributedDataParallel(model, process_group=group, gradient_as_bucket_view=prepared and group is None)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.01)
    inputs, labels = torch.randn(BATCH, *shape), torch.randint(10, (BATCH,))

    def step() -> None:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(wrapped(inputs), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def build_call(name: str, size: int, ranks: int, group: Any) -> Callable[[], object]:
    """Return a function that calls a collective."""
    import torch
    import torch.distributed as dist

    whole = torch.zeros(size // 4)
    part = torch.zeros(size // 4 // ranks)
    calls = {
        "all_reduce": lambda: dist.all_reduce(whole, group=group),
        "reduce_scatter": lambda: dist.reduce_scatter_single(part, whole, group=group),
        "all_gather": lambda: dist.all_gather_single(whole, part, group=group),
        "broadcast": lambda: dist.broadcast(whole, 0, group=group),
        "all_to_all": lambda: dist.all_to_all_single(whole, whole.clone(), group=group),
        "barrier": lambda: dist.barrier(group=group),
    }
    return calls[name]


def time_calls(call: Callable[[], object], count: int, wait: Callable[[], object]) -> float:
    """Return the median time of a call, in microseconds; the ranks begin each together."""
    times = []
    for _ in range(count):
        wait()
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def time_steps(step: Callable[[], object], seconds: float, wait: Callable[[], object]) -> float:
    """Return steps a second, over a number of steps that takes about so long."""
    step()
    start = time.perf_counter()
    step()
    count = max(3, min(2000, int(seconds / (time.perf_counter() - start))))
    import torch
    import torch.distributed as dist

    agreed = torch.tensor([count])
    dist.broadcast(agreed, 0)
    wait()
    start = time.perf_counter()
    for _ in range(int(agreed)):
        step()
    return int(agreed) / (time.perf_counter() - start)


def list_rows(ranks: int, only: str) -> Iterator[str]:
    for row in ROWS:
        if f"{ranks} ranks" in row.name and is_asked(row.name, only):
            yield row.name


def be_rank(rank: int, ranks: int, folder: Path, only: str, quick: bool) -> None:
    """Measure both sides by turns; rank 0 writes down what it saw."""
    import torch
    import torch.distributed as dist

    from hocket.collective import torch as backend

    backend.register()
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store: Any = getattr(dist, "FileStore")(str(folder / "store"), ranks)  # noqa: B009 (its stubs do not know it)
    dist.init_process_group("hocket", store=store, rank=rank, world_size=ranks)
    groups = {OURS: None, "gloo": dist.new_group(backend="gloo")}
    found: dict[tuple[str, str], list[float]] = {}
    for name in list_rows(ranks, only):
        first, *_, last = name.split(", ")
        size = SIZES.get(last, 0)
        is_step = first.endswith("step")
        bodies = {
            side: build_steps(last, group, prepared=first == "prepared step")
            if is_step
            else build_call(first, size, ranks, group)
            for side, group in groups.items()
        }
        count = 3 if quick else max(3, min(100, 40 * KIB * KIB // max(1, size)))
        for _ in range(1 if quick else 5):
            for side, body in bodies.items():
                if is_step:
                    value = time_steps(body, 0.05 if quick else 0.5, dist.barrier)
                else:
                    body()
                    value = time_calls(body, count, dist.barrier)
                found.setdefault((name, side), []).append(value)
    if rank == 0:
        records = [[name, side, statistics.median(values)] for (name, side), values in found.items()]
        (folder / "results").write_text(json.dumps(records))
    dist.barrier()
    os._exit(0)  # gloo's group may wait for the GIL of the thread that destroys it


# --- in the program that starts them ----------------------------------------------------------------------------------


def run_ranks(ranks: int, side: str, settings: Settings, results: Results) -> None:
    """Measure in fresh processes, of this checkout or of the earlier commit."""
    with tempfile.TemporaryDirectory(prefix="hocket-bench-") as folder:
        command = [sys.executable, __file__, "rank", folder, str(ranks), settings.only, str(int(settings.quick))]
        environment = {**build_environment(side, settings), "OMP_NUM_THREADS": "1"}  # as torchrun sets it
        processes = [subprocess.Popen([*command, str(rank)], env=environment) for rank in range(ranks)]
        try:
            statuses = [process.wait(LIMIT_SECONDS) for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
        if any(statuses):
            results.fail(f"{ranks} ranks", side, f"exit statuses {statuses}")
            return
        for name, backend, value in json.loads(Path(folder, "results").read_text()):
            shown = side if backend == OURS else backend
            if shown in settings.sides:
                results.add(name, shown, value)


def main() -> int:
    if sys.argv[1:2] == ["rank"]:
        folder, ranks, only, quick, rank = sys.argv[2:]
        be_rank(int(rank), int(ranks), Path(folder), only, quick == "1")
        return 0
    settings = parse_settings(__doc__.splitlines()[0], rounds=5, peers=("gloo",))
    results = Results(rows=[row for row in ROWS if settings.wants(row)], sides=settings.sides)
    programs = (OURS, EARLIER) if settings.earlier is not None else (OURS,)
    sizes = [number for number in (2, 4) if any(list_rows(number, settings.only))]
    turns = [(number, side) for _ in range(settings.rounds) for number in sizes for side in programs]
    for number, side in track(turns, description="collective", disable=not sys.stderr.isatty()):
        run_ranks(number, side, settings, results)
    show(results, settings, title="Collectives")
    return results.exit_status


if __name__ == "__main__":
    sys.exit(main())
