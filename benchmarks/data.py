"""Datasets: reading, mapping, sorting, grouping, joining, feeding, beside Ray Data and the engine by hand.

python benchmarks/data.py

`by hand` is pyarrow, DuckDB or numpy in one process, as a script without us would have it. The files are generated:
`--quick` takes a tenth of the rows. Sorting, grouping and joining read from Parquet and count what comes out.
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
FIRST = Row(name="first batch of a folder of 10,000 files", unit="s", more_is_better=False)
ROWS = [MAP, GROUP, SORT, JOIN, FEED, FIRST]

ROW_COUNT = 16_000_000
"""Of 40 bytes each in memory: 640 MB."""

MAKE = """
    import os, sys
    import numpy as np, pyarrow as pa, pyarrow.parquet as pq

    folder, count = sys.argv[1], int(sys.argv[2])
    os.makedirs(folder + "/rows")
    os.makedirs(folder + "/many")
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
    for number in range(10_000):
        with open(f"{folder}/many/{number:05}.csv", "w") as file:
            file.write(f"a,b\\n{number},x\\n")
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

    def consume(found):
        return sum(len(batch["id"]) for batch in found.iter_batches(batch_size=None))

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
    measure(lambda: len(next(iter(data.read_csv(folder + "/many").iter_batches(batch_size=10)))["a"]))
"""

OUR_JOIN = """measure(lambda: consume(rows.join(names, "inner", on="key")))"""
RAY_JOIN = """measure(lambda: consume(rows.join(names, join_type="inner", num_partitions=4, on=("key",))))"""
NO_JOIN = """print("missing")"""

BY_HAND = """
    import glob
    import duckdb, pyarrow as pa, pyarrow.dataset as ds

    connection = duckdb.connect(config={"threads": 2})
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
"""


def build_program(side: str) -> str:
    if side == "by hand":
        return textwrap.dedent(TIMED) + textwrap.dedent(BY_HAND)
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
    settings = parse_settings(__doc__.splitlines()[0], rounds=3, peers=("ray", "by hand"))
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
