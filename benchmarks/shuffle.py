"""Peak memory, of all processes together, of reading Parquet files once: in order, and shuffled, which needs every row
before the first.

The data are larger than the session's store by far. The peak is the sum of the proportional set sizes, looked at every
50 ms.

python benchmarks/shuffle.py
"""

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

import hocket
from hocket import data

STORE_BYTES = 200 << 20
FILE_ROWS, WIDTH = 50_000, 100
"""A file has 20 MB."""


def write_files(folder: Path, count: int) -> None:
    for number in range(count):
        values = np.random.default_rng(number).random(FILE_ROWS * WIDTH, np.float32)
        ids = np.arange(FILE_ROWS) + number * FILE_ROWS
        table = pa.table({"x": pa.FixedSizeListArray.from_arrays(pa.array(values), WIDTH), "id": ids})
        pq.write_table(table, folder / f"{number:04}.parquet", compression="none")


def read(folder: Path, how: str) -> None:
    is_over = threading.Event()
    peak = 0

    def watch() -> None:
        nonlocal peak
        while not is_over.wait(0.05):
            total = 0
            for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
                try:
                    total += process.memory_full_info().pss
                except psutil.NoSuchProcess:
                    continue
            peak = max(peak, total)

    with hocket.init(num_cpus=2, object_store_memory=STORE_BYTES):
        watcher = threading.Thread(target=watch)
        watcher.start()
        began = time.perf_counter()
        rows = data.read_parquet(sorted(str(path) for path in folder.iterdir()))
        if how == "shuffled":
            rows = rows.random_shuffle(seed=1)
        total = sum(int(batch["id"].sum()) for batch in rows.iter_batches(batch_size=1024))
        seconds = time.perf_counter() - began
        is_over.set()
        watcher.join()
    count = FILE_ROWS * sum(1 for _ in folder.iterdir())
    assert total == count * (count - 1) // 2
    print(f"{how:9} {peak >> 20:6} MiB at most  {seconds:6.1f} s", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=85, help="of 20 MB each")
    parser.add_argument("--read", nargs=2)
    given = parser.parse_args()
    if given.read:
        read(Path(given.read[0]), given.read[1])
    else:
        with tempfile.TemporaryDirectory() as folder:
            write_files(Path(folder), given.files)
            print(f"{given.files * 20 / 1000:.1f} GB under a store of {STORE_BYTES >> 20} MiB")
            for how in ("in order", "shuffled"):
                subprocess.run([sys.executable, __file__, "--read", folder, how], check=True)
