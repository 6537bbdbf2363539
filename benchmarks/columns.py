"""What a block's columns cost as numpy arrays and as Arrow arrays: batches, slices, other orders, images, flags.

python benchmarks/columns.py

Processor seconds, the best of nine; Arrow's batches are turned into numpy arrays, which training functions take.
"""

import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa
from _harness import describe_machine

from hocket.data import arrow

ROWS, BATCH = 1_000_000, 256
IMPORT = "import time, numpy; begin = time.process_time(); import pyarrow; print(time.process_time() - begin)"


def measure(function: Callable[[], object], times: int = 1) -> float:
    """Return the microseconds of one call."""
    best = float("inf")
    for _ in range(9):
        begin = time.process_time()
        for _ in range(times):
            function()
        best = min(best, (time.process_time() - begin) / times)
    return best * 1e6


def show(what: str, *microseconds: float) -> None:
    print(f"| {what} | {' | '.join(f'{value:,.1f}' for value in microseconds)} |")


def main() -> None:
    draws = np.random.default_rng(0)
    floats, digits = draws.random(ROWS), draws.random((ROWS // 16, 28, 28), np.float32)
    held, tensors = pa.array(floats), pa.FixedShapeTensorArray.from_numpy_ndarray(digits)
    flags = floats < 0.5
    held_flags = pa.array(flags)
    chosen, order = draws.integers(0, len(digits), BATCH), draws.permutation(len(digits))
    print(describe_machine())
    print("| what | numpy, us | Arrow, us |\n|---|--:|--:|")
    show(
        f"a batch of {BATCH} random floats",
        measure(lambda: floats.take(chosen), 1000),
        measure(lambda: held.take(pa.array(chosen)).to_numpy(), 1000),
    )
    show(
        f"a slice of {BATCH} floats",
        measure(lambda: floats[BATCH : 2 * BATCH], 1000),
        measure(lambda: held.slice(BATCH, BATCH).to_numpy(), 1000),
    )
    show(
        f"a batch of {BATCH} random images of 28 x 28",
        measure(lambda: digits.take(chosen, axis=0), 50),
        measure(lambda: tensors.take(pa.array(chosen)).to_numpy_ndarray(), 50),
    )
    show(
        f"a slice of {BATCH} images of 28 x 28",
        measure(lambda: digits[BATCH : 2 * BATCH], 1000),
        measure(lambda: tensors.slice(BATCH, BATCH).to_numpy_ndarray(), 1000),
    )
    show(
        f"all {len(digits):,} images in another order",
        measure(lambda: digits.take(order, axis=0)),
        measure(lambda: tensors.take(pa.array(order))),
    )
    show(f"{ROWS:,} flags, as numpy", 0.0, measure(lambda: held_flags.to_numpy(zero_copy_only=False)))
    sides = draws.integers(200, 400, (200, 2)).tolist()
    images = [draws.integers(0, 255, (*side, 3)).astype(np.uint8) for side in sides]
    packed = arrow.pack_arrays(images)
    show(
        "200 images of different shapes, in and out",
        0.0,
        measure(lambda: arrow.pack_arrays(images)) + measure(lambda: arrow.list_tensors(packed)),
    )
    command = [sys.executable, "-c", IMPORT]
    made = [float(subprocess.run(command, capture_output=True, check=True).stdout) for _ in range(9)]
    show("to import it", 0.0, min(made) * 1e6)


if __name__ == "__main__":
    main()
