"""One limit for a whole pipeline, by measurement: a file ten times as large goes through it.

The peak is the sum of what the program and its workers have of their own (proportional set sizes) and of all segments
of shared memory, mapped or not, looked at every 50 ms. What Ray's own services have, those that
write to disk and read from it among them, is told apart: it is hundreds of MiB before anything is done.

python benchmarks/memory.py [--engine ray] [--limit MIB]
"""

import argparse
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

import hocket
from hocket import data
from hocket.data.aggregate import Count, Mean, Sum

ROW_BYTES = 40
GROUP_ROWS = 200_000
SERVICES = ("raylet", "gcs_server", "dashboard", "agent", "monitor", "log_monitor", "runtime_env")
RAY_SERVICES = ("ray::DashboardAgent", "ray::RuntimeEnvAgent", "SpillWorker", "RestoreWorker")


def write_file(path: Path, num_bytes: int) -> None:
    generator = np.random.default_rng(0)
    schema = pa.schema(
        [("id", pa.int64()), ("k", pa.int64()), ("x", pa.float64()), ("y", pa.float64()), ("z", pa.int64())]
    )
    with pq.ParquetWriter(path, schema, compression="none") as writer:
        for start in range(0, num_bytes // ROW_BYTES, GROUP_ROWS):
            x = generator.random((2, GROUP_ROWS))
            id_ = np.arange(start, start + GROUP_ROWS)
            writer.write_table(pa.table([id_, id_ * 7919 % 1000, x[0], x[1], id_ ^ 0x5555], schema=schema))


def change(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {**batch, "w": batch["x"] + batch["y"]}


def consume(rows: data.Dataset) -> int:
    return sum(len(batch["id"]) for batch in rows.iter_batches(batch_size=4096))


PIPELINES: dict[str, Callable[[data.Dataset], int]] = {
    "map, batch": consume,
    "map, shuffle, batch": lambda rows: consume(rows.random_shuffle(seed=1)),
    "map, shuffle, groupby": lambda rows: sum(
        row["count()"]
        for row in rows.random_shuffle(seed=1).groupby("k").aggregate(Count(), Sum("w"), Mean("x")).take_all()
    ),
    "map, sort, batch": lambda rows: consume(rows.sort("k")),
    "map, shuffle, map_groups, batch": lambda rows: consume(
        rows.random_shuffle(seed=1)
        .groupby("k")
        .map_groups(lambda group: {"id": group["id"], "m": group["w"] - group["w"].mean()})
    ),
}


def work(folder: str, engine: str, limit: int, name: str) -> None:
    data.DataContext.get_current().execution_options = data.ExecutionOptions(memory_limit=limit)
    with hocket.init(num_cpus=2, object_store_memory=limit // 6, engine=engine):
        data.range(10).map_batches(lambda batch: batch).take_all()
        input("ready\n" if sys.stdin.isatty() else "")
        began = time.perf_counter()
        count = PIPELINES[name](data.read_parquet(folder).map_batches(change))
        print(f"{count} {time.perf_counter() - began:.1f}", flush=True)


def measure(root: psutil.Process) -> tuple[int, int]:
    """Return how many bytes the program and its workers have, with all shared memory, and what Ray's services have of
    their own."""
    own = services = 0
    shared: dict[tuple[int, int], int] = {}
    for process in (root, *root.children(recursive=True)):
        try:
            name = " ".join(process.cmdline()[:3])
            lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
            shared.update(list_shared(process.pid))
        except (OSError, psutil.Error):
            continue
        found = {line.split()[0]: int(line.split()[1]) << 10 for line in lines[1:]}
        num_bytes = found.get("Pss_Anon:", 0) + found.get("Pss_File:", 0)
        if any(one in name for one in (RAY_SERVICES if "ray::" in name else SERVICES)):
            services += num_bytes
        else:
            own += num_bytes
    return own + sum(shared.values()), services


def list_shared(pid: int) -> Iterator[tuple[tuple[int, int], int]]:
    """Give the segments of shared memory that a process has, mapped or not."""
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            target = str(link.readlink())
            if target.startswith(("/memfd:", "/dev/shm/")):  # noqa: S108 (nothing is written)
                found = link.stat()
                yield (found.st_dev, found.st_ino), found.st_blocks * 512


def run(folder: str, engine: str, limit: int, name: str) -> None:
    command = [sys.executable, __file__, "--work", folder, name, "--engine", engine, "--limit", str(limit >> 20)]
    peak = most_services = 0
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        time.sleep(8 if engine == "ray" else 2)
        root = psutil.Process(child.pid)
        base, _ = measure(root)
        child.stdin.write("\n")
        child.stdin.flush()
        while child.poll() is None:
            found, services = measure(root)
            peak, most_services = max(peak, found), max(most_services, services)
            time.sleep(0.05)
        count, seconds = child.stdout.read().split()[-2:]
    verdict = "under" if peak < limit else "OVER"
    print(
        f"{engine:6} {name:32} {peak >> 20:5} MiB at most, {verdict} {limit >> 20} (before it {base >> 20}; services "
        f"{most_services >> 20})  {int(count):,} rows  {seconds} s",
        flush=True,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", default="local")
    parser.add_argument("--limit", type=int, default=1024, help="MiB")
    parser.add_argument("--only", help="a part of a pipeline's name")
    parser.add_argument("--times", type=int, default=10, help="how many times as large the file is")
    parser.add_argument("--folder", help="where the file is written")
    parser.add_argument("--work", nargs=2)
    given = parser.parse_args()
    limit = given.limit << 20
    if given.work:
        work(given.work[0], given.engine, limit, given.work[1])
    else:
        with tempfile.TemporaryDirectory(dir=given.folder) as folder:
            write_file(Path(folder, "rows.parquet"), given.times * limit)
            print(f"a file of {given.times * limit >> 20} MiB")
            for name in PIPELINES:
                if not given.only or any(one in name for one in given.only.split("|")):
                    run(folder, given.engine, limit, name)
