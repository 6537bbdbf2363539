"""Data parallel training with JAX: two ranks beside one rank on one core, and what an average of gradients costs.

python benchmarks/train_jax.py --only rows

`one core` is the same training function in one rank that is pinned to a core; `both cores` is one rank whose XLA has as
many threads as the machine has cores. `io_callback` is JAX's own way to call Python from a compiled program, with the
same collective behind it. Each sample is a training of its own; the sides take turns.
"""

import itertools
import os
import statistics
import sys
import tempfile
import time
from typing import Any

from _harness import OURS, Results, Row, Settings, has_package, parse_settings, show
from rich.progress import track

import hocket
from hocket import train

NUM_RANKS = 2

BATCH = 256
"""Rows of a batch of one rank.

With them a step of the larger network takes some 10 ms of a core, and the average of its gradients 1 ms.
"""

NETWORKS = {
    "rows: 784-512-512-10": (784, 512, 512, 10),
    "rows: 784-1024-1024-10": (784, 1024, 1024, 10),
}

SIZES = {"average of 4 KB": 1 << 10, "average of 1 MB": 1 << 18, "average of 25 MB": 25 << 18}

OF_PROCESSOR = ", processor"
"""What a row is called that counts the ranks' seconds of processor, all together, instead of those of the clock: on a
busy machine they say more. Twice its ratio is what two free cores would give.
"""

ROWS = (
    *(Row(name=name, unit="rows/s") for name in NETWORKS),
    *(Row(name=f"{name}{OF_PROCESSOR}", unit="rows/s") for name in NETWORKS),
    *(Row(name=name, unit="ms", more_is_better=False) for name in SIZES),
)


def train_network(config: dict[str, Any]) -> float:
    """Return how many rows all ranks have trained on in a second, of the clock or of their processors."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from hocket.train.jax import average_gradients
    from hocket.train.rank import world

    if config["pin"]:
        os.sched_setaffinity(0, {0})
    widths = config["widths"]
    numbers = np.random.default_rng(0)
    params = [jnp.asarray(numbers.normal(size=pair) * 0.05, jnp.float32) for pair in itertools.pairwise(widths)]
    x = jnp.asarray(numbers.normal(size=(BATCH, widths[0])), jnp.float32)
    y = jnp.asarray(numbers.integers(widths[-1], size=BATCH))

    def compute_loss(params: list[Any]) -> Any:
        hidden = x
        for weight in params[:-1]:
            hidden = jax.nn.relu(hidden @ weight)
        return -jnp.mean(jax.nn.log_softmax(hidden @ params[-1])[jnp.arange(BATCH), y])

    def step(params: list[Any]) -> list[Any]:
        gradients = average_gradients(jax.grad(compute_loss)(params))
        return [weight - 0.01 * gradient for weight, gradient in zip(params, gradients, strict=True)]

    run = jax.jit(step, donate_argnums=0)
    size = train.get_context().get_world_size()
    for _ in range(5):
        params = run(params)
    jax.block_until_ready(params)
    start, start_cpu = time.perf_counter(), time.process_time()
    for _ in range(config["steps"]):
        params = run(params)
    jax.block_until_ready(params)
    took, took_cpu = time.perf_counter() - start, time.process_time() - start_cpu
    of_all = sum(world.get_world("train_jax").all_gather_object(took_cpu))
    return float(config["steps"] * BATCH * size / (of_all if config["of_processor"] else took))


def average(config: dict[str, Any]) -> float:
    """Return how many milliseconds an average takes."""
    import jax
    import jax.numpy as jnp

    from hocket.train.frameworks.jax import host_calls
    from hocket.train.jax import average_gradients

    if config["by_callback"]:
        host_calls.computes_here = lambda: False  # this process is the rank's alone
    run = jax.jit(average_gradients, donate_argnums=0)
    found = run(jnp.ones(config["size"], jnp.float32))
    times = []
    for _ in range(config["steps"]):
        jax.block_until_ready(found)
        start = time.perf_counter()
        found = jax.block_until_ready(run(found))
        times.append((time.perf_counter() - start) * 1000)
    return statistics.median(times)


def fit(function: Any, config: dict[str, Any], num_workers: int, num_cpus: float) -> float:
    from hocket.train.jax import JaxTrainer

    with tempfile.TemporaryDirectory() as folder:
        trainer = JaxTrainer(
            function,
            train_loop_config=config,
            scaling_config=train.ScalingConfig(num_workers=num_workers, resources_per_worker={"CPU": num_cpus}),
            run_config=train.RunConfig(storage_path=folder),
        )
        return float(trainer.fit().return_value)


def measure(row: Row, side: str, *, quick: bool) -> float | None:
    """Return a sample; None if the side has no such row."""
    name = row.name.removesuffix(OF_PROCESSOR)
    if name in NETWORKS:
        if side == "io_callback":
            return None
        config = {
            "widths": NETWORKS[name],
            "steps": 5 if quick else 100,
            "pin": side == "one core",
            "of_processor": row.name != name,
        }
        num_workers, num_cpus = {OURS: (NUM_RANKS, 1), "one core": (1, 1), "both cores": (1, NUM_RANKS)}[side]
        return fit(train_network, config, num_workers, num_cpus)
    if side not in (OURS, "io_callback"):
        return None
    size = SIZES[row.name]
    config = {"size": size, "steps": 5 if quick else max(50, 200_000 // size), "by_callback": side == "io_callback"}
    return fit(average, config, NUM_RANKS, 1)


def run(settings: Settings) -> Results:
    results = Results(rows=[row for row in ROWS if settings.wants(row)], sides=settings.sides)
    turns = [(row, side) for row in results.rows for _ in range(settings.rounds) for side in settings.sides]
    with hocket.init(num_cpus=NUM_RANKS):
        for row, side in track(turns, description="jax", disable=not sys.stderr.isatty()):
            value = measure(row, side, quick=settings.quick)
            if value is not None:
                results.add(row.name, side, value)
    return results


def main() -> int:
    settings = parse_settings(__doc__.splitlines()[0], rounds=7, peers=("one core", "both cores", "io_callback"))
    if not has_package("jax"):
        return 1
    results = run(settings)
    show(results, settings, title="Training with JAX")
    return results.exit_status


if __name__ == "__main__":
    sys.exit(main())
