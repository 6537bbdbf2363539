"""Two actors that each read a part of a data set, twice, after Ray Data's guide on splits for distributed training."""

from __future__ import annotations

from typing import Any

import hocket as ray
from hocket import data

EXPECTED: Any = {"rows": [64, 64, 64, 64], "whole": 2 * sum(range(128)), "batches": [16, 16]}


class Reader:
    """Stands for a rank of a training run."""

    def read(self, part: Any, epochs: int) -> tuple[list[int], int, int]:
        rows, total, batches = [], 0, 0
        for _ in range(epochs):
            count = 0
            for batch in part.iter_batches(batch_size=8):
                count += len(batch["id"])
                total += int(batch["id"].sum())
                batches += 1
            rows.append(count)
        return rows, total, batches


def main(folder: str) -> Any:
    parts = data.range(128, override_num_blocks=8).streaming_split(2, equal=True)
    readers = [ray.remote(Reader).options(num_cpus=0).remote() for _ in parts]
    found = ray.get([reader.read.remote(part, 2) for reader, part in zip(readers, parts, strict=True)])
    return {
        "rows": [count for rows, _, _ in found for count in rows],
        "whole": sum(total for _, total, _ in found),
        "batches": [batches for _, _, batches in found],
    }
