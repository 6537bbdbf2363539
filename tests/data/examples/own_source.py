"""A source and a target of one's own, after Ray Data's guide "Advanced: Read and write custom file types"."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from hocket import data
from hocket.data.block import BlockMetadata
from hocket.data.datasource import Datasource, ReadTask, RowBasedFileDatasink

EXPECTED: Any = {"count": 12, "total": 66, "notes": 12, "again": 66, "blocks": 3}


class Numbers(Datasource):
    """Numbers from 0, in parts of four."""

    def __init__(self, count: int) -> None:
        self.count = count

    def estimate_inmemory_data_size(self) -> int | None:
        return 8 * self.count

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        def read(start: int) -> Iterable[Any]:
            return [pa.table({"x": list(range(start, start + 4))})]

        return [
            ReadTask(
                lambda start=start: read(start),  # type: ignore[misc]
                BlockMetadata(num_rows=4, size_bytes=32, input_files=None, exec_stats=None),
            )
            for start in range(0, self.count, 4)
        ]


class Notes(RowBasedFileDatasink):
    """A file of JSON for each row."""

    def write_row_to_file(self, row: dict[str, Any], file: Any) -> None:
        file.write(json.dumps({"x": int(row["x"])}).encode())


def main(folder: str) -> Any:
    rows = data.read_datasource(Numbers(12), override_num_blocks=3)
    rows.write_datasink(Notes(f"{folder}/notes", file_format="json"))
    return {
        "count": rows.count(),
        "total": rows.sum("x"),
        "notes": len(list(Path(folder, "notes").glob("*.json"))),
        "again": data.read_json(f"{folder}/notes").sum("x"),
        "blocks": rows.materialize().num_blocks(),
    }
