"""Datasets: reading, mapping, sorting, grouping, joining, images, feeding, beside Ray Data, torch's DataLoader, Hugging
Face's datasets and the engine by hand.

python benchmarks/data.py

`by hand` is pyarrow, DuckDB or numpy in one process, as a script without us would have it; `torch` is a DataLoader with
two workers for images, and one without for small rows. The files are generated: `--quick` takes a tenth of the rows.
Sorting, grouping and joining read from Parquet and count what comes out; joins give Arrow's texts on all sides.
"""

import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

from _harness import Row, Settings, build_environment, parse_settings, show, take_turns

MAP = Row(name="map_batches over Parquet", unit="s", more_is_better=False)
GROUP = Row(name="groupby, sum and mean", unit="s", more_is_better=False)
SORT = Row(name="sort by two columns", unit="s", more_is_better=False)
JOIN = Row(name="join with a small table", unit="s", more_is_better=False)
FEED = Row(name="feeding a loop of small rows", unit="rows/s")
IMAGES = Row(name="images of 400x300 decoded and resized to 64x64", unit="images/s")
FIRST = Row(name="first batch of a folder of 100,000 files", unit="s", more_is_better=False)
ROWS = [MAP, GROUP, SORT, JOIN, FEED, IMAGES, FIRST]

ROW_COUNT = 16_000_000
"""Of 40 bytes each in memory: 640 MB."""

MAKE = """
    import os, sys
    import numpy as np, pyarrow as pa, pyarrow.parquet as pq
    from PIL import Image

    folder, count = sys.argv[1], int(sys.argv[2])
    os.makedirs(folder + "/rows")
    os.makedirs(folder + "/many")
    os.makedirs(folder + "/images")
    generator = np.random.default_rng(0)
    for part in range(8):
        rows = count // 8
        pq.write_table(
            pa.table({
                "id": np.arange(part * rows, (part + 1) * rows),
                "key": generator.integers(0, 1000, rows),
                "x": generator.normal(size=rows),
                "y": generator.normal(size=rows),
                "z": generator.integers(0, 1 << 40, rows),
            }),
            f"{folder}/rows/{part}.parquet",
            row_group_size=500_000,
        )
    for number in range(count // 160):
        with open(f"{folder}/many/{number:06}.csv", "w") as file:
            file.write(f"a,b\\n{number},x\\n")
    small = generator.integers(0, 256, (30, 40, 3)).astype(np.uint8)
    for number in range(count // 8000):
        image = Image.fromarray(np.roll(small, number, axis=1)).resize((400, 300), Image.Resampling.BICUBIC)
        image.save(f"{folder}/images/{number:05}.jpg", quality=90)
"""

TIMED = """
    import sys, time
    import numpy as np

    folder, count = sys.argv[1], int(sys.argv[2])

    def measure(function):
        begin = time.perf_counter()
        found = function()
        print("result", time.perf_counter() - begin, found, flush=True)

    def change(batch):
        return {"id": batch["id"], "w": np.sqrt(batch["x"] ** 2 + batch["y"] ** 2)}
"""

DATASETS = """
    import {name}
    from {name} import data
    from {name}.data.aggregate import Mean, Sum

    {name}.init(num_cpus=2{options})
    rows = data.read_parquet(folder + "/rows")
    data.range(10).map_batches(lambda batch: batch).take_all()  # workers have started, and imported

    def consume(found, batch_format="numpy"):
        return sum(len(batch["id"]) for batch in found.iter_batches(batch_size=None, batch_format=batch_format))

    measure(lambda: consume(data.read_parquet(folder + "/rows", columns=["id", "x", "y"]).map_batches(change)))
    measure(lambda: len(rows.groupby("key").aggregate(Sum("z"), Mean("x")).take_all()))
    measure(lambda: consume(rows.sort(["key", "z"])))
    names = data.from_items([{{"key": key, "name": f"n{{key}}"}} for key in range(0, 1000, 3)])
    {join}
    small = data.range(count // 8).materialize()

    def feed():
        begin = time.perf_counter()
        found = sum(len(batch["id"]) for batch in small.iter_batches(batch_size=256))
        return found / (time.perf_counter() - begin)

    print("result", feed(), "rows a second")

    def look():
        begin = time.perf_counter()
        found = data.read_images(folder + "/images", size=(64, 64), mode="RGB").iter_batches(batch_size=32)
        return sum(len(batch["image"]) for batch in found) / (time.perf_counter() - begin)

    look()
    print("result", look(), "images a second")
    measure(lambda: len(next(iter(data.read_csv(folder + "/many").iter_batches(batch_size=10)))["a"]))
"""

OUR_JOIN = """measure(lambda: consume(rows.join(names, "inner", on="key"), "pyarrow"))"""
RAY_JOIN = """measure(lambda: consume(rows.join(names, join_type="inner", num_partitions=4, on=("key",)), "pyarrow"))"""
NO_JOIN = """print("missing")"""

BY_HAND = """
    import glob
    import duckdb, pyarrow as pa, pyarrow.dataset as ds

    connection = duckdb.connect(config={"threads": 2})
    connection.execute("SET enable_progress_bar = false")  # it would stand among the results
    source = f"read_parquet('{folder}/rows/*.parquet')"

    def consume(sql):
        return sum(batch.num_rows for batch in connection.sql(sql).to_arrow_reader(1 << 20))

    def map_by_hand():
        total = 0
        for batch in ds.dataset(folder + "/rows").to_batches(columns=["id", "x", "y"], batch_size=500_000):
            made = change({name: batch.column(name).to_numpy() for name in ("id", "x", "y")})
            total += len(made["w"])
        return total

    measure(map_by_hand)
    measure(lambda: consume(f"SELECT key, sum(z), avg(x) FROM {source} GROUP BY key"))
    measure(lambda: consume(f"SELECT * FROM {source} ORDER BY key, z"))
    names = pa.table({"key": list(range(0, 1000, 3)), "name": [f"n{key}" for key in range(0, 1000, 3)]})
    measure(lambda: consume(f"SELECT r.*, n.name FROM {source} r JOIN names n ON r.key = n.key"))
    array = np.arange(count // 8)

    def feed():
        begin = time.perf_counter()
        found = sum(len(array[at : at + 256].copy()) for at in range(0, len(array), 256))
        return found / (time.perf_counter() - begin)

    print("result", feed(), "rows a second")
    print("missing")
    print("missing")
"""

TORCH = """
    import os
    import torch
    from PIL import Image
    from torch.utils.data import DataLoader, Dataset, TensorDataset

    torch.set_num_threads(1)

    class Images(Dataset):
        def __init__(self):
            self.paths = sorted(entry.path for entry in os.scandir(folder + "/images"))

        def __len__(self):
            return len(self.paths)

        def __getitem__(self, index):
            with Image.open(self.paths[index]) as image:
                return np.asarray(image.convert("RGB").resize((64, 64), Image.Resampling.BILINEAR))

    for _ in range(4):
        print("missing")
    begin = time.perf_counter()
    rows = count // 80  # one by one: it takes its time
    found = sum(len(batch) for (batch,) in DataLoader(TensorDataset(torch.arange(rows)), batch_size=256))
    print("result", found / (time.perf_counter() - begin))
    images = DataLoader(Images(), batch_size=32, num_workers=2, persistent_workers=True)
    sum(map(len, images))
    begin = time.perf_counter()
    print("result", sum(map(len, images)) / (time.perf_counter() - begin))
    print("missing")
"""

FACE = """
    import datasets

    datasets.disable_progress_bars()
    rows = datasets.load_dataset("parquet", data_dir=folder + "/rows", split="train", cache_dir=folder + "/cache")
    rows = rows.select_columns(["id", "x", "y"]).with_format("numpy")

    def map_rows():
        made = rows.map(change, batched=True, batch_size=500_000, num_proc=2, remove_columns=["x", "y"])
        return sum(len(batch["id"]) for batch in made.iter(batch_size=500_000))

    measure(map_rows)
    for _ in range(3):
        print("missing")
    small = rows.select_columns(["id"]).select(range(count // 8))
    begin = time.perf_counter()
    found = sum(len(batch["id"]) for batch in small.iter(batch_size=256))
    print("result", found / (time.perf_counter() - begin))
    print("missing")
    print("missing")
"""


def build_program(side: str) -> str:
    if side == "by hand":
        return textwrap.dedent(TIMED) + textwrap.dedent(BY_HAND)
    if side in ("torch", "datasets"):
        return textwrap.dedent(TIMED) + textwrap.dedent(TORCH if side == "torch" else FACE)
    is_ray = side == "ray"
    options = ", include_dashboard=False, log_to_driver=False, logging_level='ERROR'" if is_ray else ""
    join = OUR_JOIN if not is_ray else RAY_JOIN if has_polars() else NO_JOIN
    made = DATASETS.format(name="ray" if is_ray else "hocket", options=options, join=join)
    return textwrap.dedent(TIMED) + textwrap.dedent(made)


def has_polars() -> bool:
    """Return whether Ray can join: its joins need polars."""
    try:
        __import__("polars")
    except ImportError:
        return False
    return True


def measure(side: str, settings: Settings, folder: str, count: int) -> list[float | None]:
    process = subprocess.run(
        [sys.executable, "-c", build_program(side), folder, str(count)],
        capture_output=True,
        text=True,
        env=build_environment(side, settings),
        check=False,
        timeout=1500,
    )
    lines = [line.split() for line in process.stdout.splitlines() if line.startswith(("result", "missing"))]
    if process.returncode or len(lines) != len(ROWS):
        raise RuntimeError(process.stderr[-2000:])
    return [float(line[1]) if len(line) > 1 else None for line in lines]


def main() -> int:
    settings = parse_settings(__doc__.splitlines()[0], rounds=3, peers=("ray", "by hand", "torch", "datasets"))
    count = ROW_COUNT // 10 if settings.quick else ROW_COUNT
    with tempfile.TemporaryDirectory(prefix="hocket-bench-") as folder:
        made = Path(folder, "data")
        made.mkdir()
        subprocess.run([sys.executable, "-c", textwrap.dedent(MAKE), str(made), str(count)], check=True)
        results = take_turns(ROWS, settings, lambda side: measure(side, settings, str(made), count))
    if results.rows:
        show(results, settings, title="Datasets")
    return results.exit_status


if __name__ == "__main__":
    sys.exit(main())
