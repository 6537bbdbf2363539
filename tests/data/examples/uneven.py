"""Rows and files that do not all have the same columns; folders whose names are columns; files of a chosen size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from hocket import data
from hocket.data.datasource import Partitioning

EXPECTED: Any = {
    "rows": [{"a": 1, "b": None}, {"a": None, "b": 2}],
    "files": [(1, "one", 2025), (2, None, 2026)],
    "types": "int",
    "sizes": [50, 50],
    "unchanged": 100,
    "joined": 3,
}


def main(folder: str) -> Any:
    for year, columns in ((2025, {"x": [1], "s": ["one"]}), (2026, {"x": [2]})):
        path = Path(folder, "years", f"year={year}")
        path.mkdir(parents=True)
        parquet.write_table(pa.table(columns), path / "a.parquet")
    typed = Partitioning("hive", field_types={"year": int})
    files = data.read_parquet(f"{folder}/years", partitioning=typed).sort("x").take_all()
    rows = data.range(2, override_num_blocks=1).map(lambda row: {"b": 2} if row["id"] else {"a": 1})
    data.range(100, override_num_blocks=10).write_parquet(f"{folder}/sizes", min_rows_per_file=50)
    written = [parquet.read_metadata(path).num_rows for path in sorted(Path(folder, "sizes").glob("*.parquet"))]
    table = data.from_items([{"x": 1}]).union(data.from_items([{"x": 2, "y": "b"}, {"x": 3, "y": "c"}])).to_pandas()
    return {
        "rows": [dict(sorted(row.items())) for row in rows.take_all()],
        "files": [(row["x"], row["s"], row["year"]) for row in files],
        "types": type(files[0]["year"]).__name__,
        "sizes": written,
        "unchanged": data.read_parquet(f"{folder}/sizes").count(),
        "joined": len(table),
    }
