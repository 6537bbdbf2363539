"""Parameter servers: two workers and one server, beside TensorFlow's ParameterServerStrategy.

Each sample of a side is a program of its own, from nothing to its last row; the sides take turns. Both sides do the
same: closures that do nothing; closures that draw a number, add it to a variable and read it; a perceptron
784-700-500-10 on batches of 128, whose gradients SGD applies; a table of 200,000 x 64 of which a batch of 256 bags of
32 ids (Zipf, 1.3) is looked up, summed, and pushed back. Our workers compute with torch, on a thread each; TensorFlow's
are as it sets them up itself.

`in place` is ours without the journal: updates write over the values that they read, and a process that dies in the
middle leaves half an update. It tells what surviving costs.

The last row is how long two workers, of which one takes five times as long for a step, need to bring a perceptron's
loss down: ours alone, asynchronous beside `synchronous`, where a step is the mean of both and, being of twice the
batch, twice as long.

python benchmarks/parameter_server.py
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from _harness import OURS, Results, Row, Settings, parse_settings, show

WORKERS, SERVERS = 2, 1
WIDTHS, BATCH = (784, 700, 500, 10), 128
TABLE_ROWS, DIM, BAGS, BAG = 200_000, 64, 256, 32
LOOKUPS = BAGS * BAG
ZIPF = 1.3
LIMIT_SECONDS = 600

STARTUP, EMPTY, COUNTING, NETWORK, TABLE, HASHED, UNEVEN = (
    "start-up to first result",
    "empty closures",
    "counting closures",
    "perceptron 784-700-500-10",
    "table, 256 bags of 32 ids",
    "table of hashed ids, the same",
    "to one loss, a worker of two slower",
)
ROWS = (
    Row(name=STARTUP, unit="s", more_is_better=False),
    Row(name=EMPTY, unit="closures/s"),
    Row(name=COUNTING, unit="closures/s"),
    Row(name=NETWORK, unit="steps/s"),
    Row(name=TABLE, unit="lookups/s"),
    Row(name=HASHED, unit="lookups/s"),
    Row(name=UNEVEN, unit="s", more_is_better=False),
)

SLOWNESS = 5
"""How many times longer than the other's the slow worker's steps take."""

LOSS, RATE, MOST_STEPS = 1.9, 0.02, 5_000
"""The loss to come to, from 2.3; the learning rate; and after how many steps it is given up."""

IN_PLACE = "in place"
SYNCHRONOUS = "synchronous"
TENSORFLOW = "tensorflow"

Measure = Callable[[int], float]
"""Runs so many closures, and returns the row's figure."""

COUNTS = {STARTUP: 1, EMPTY: 20_000, COUNTING: 20_000, NETWORK: 400, TABLE: 2_000, HASHED: 2_000, UNEVEN: 1}
"""How many closures a row has with us. TensorFlow, which is slower, has a part of them."""


def build_network_batches() -> list[tuple[Any, Any]]:
    generator = np.random.default_rng(0)
    images = generator.random((4096, WIDTHS[0]), np.float32)
    labels = ((images - 0.5) @ generator.normal(size=(WIDTHS[0], WIDTHS[-1]))).argmax(1)
    return [(images[start : start + BATCH], labels[start : start + BATCH]) for start in range(0, 4096, BATCH)]


def build_id_batches() -> list[Any]:
    ids = np.random.default_rng(0).zipf(ZIPF, size=(4096, BAG)) % TABLE_ROWS
    return [ids[start : start + BAGS].astype(np.int64) for start in range(0, 4096, BAGS)]


def build_weights() -> list[Any]:
    generator = np.random.default_rng(1)
    pairs = itertools.pairwise(WIDTHS)
    weights = [generator.normal(0, 0.05, pair).astype(np.float32) for pair in pairs]
    return weights + [np.zeros(width, np.float32) for width in WIDTHS[1:]]


# --- ours ------------------------------------------------------------------------------------------------------------


class Network:
    """What a worker has of the perceptron: room for the weights, which each step pulls into it."""

    def __init__(self) -> None:
        import torch

        torch.set_num_threads(1)
        self.torch = torch
        self.loss = float("nan")
        self.weights = [torch.from_numpy(weight) for weight in build_weights()]
        for weight in self.weights:
            weight.requires_grad_()

    def compute_gradients(self, images: Any, labels: Any) -> list[Any]:
        """The gradients of the loss, as numpy arrays."""
        torch = self.torch
        count = len(WIDTHS) - 1
        hidden = torch.from_numpy(images)
        for number, (weight, bias) in enumerate(zip(self.weights[:count], self.weights[count:], strict=True)):
            hidden = torch.addmm(bias, hidden, weight)
            if number < count - 1:
                hidden = torch.relu(hidden)
        loss = torch.nn.functional.cross_entropy(hidden, torch.from_numpy(labels))
        self.loss = loss.item()
        return [gradient.numpy() for gradient in torch.autograd.grad(loss, self.weights)]


def write_in_place() -> None:
    """Take the journal out of this process' updates."""
    dense, rows = (importlib.import_module(f"hocket.ps.{name}") for name in ("dense", "rows"))

    def prepare_dense(shard: Any, operation: Any) -> None:
        current = int(shard._header[dense.DONE]) & 1
        if operation.kind == "gradient":
            gradient = np.ascontiguousarray(operation.value).reshape(-1)
            value, slots = shard._values[current], shard._slots[current]
            shard._steps[current] += 1
            step = int(shard._steps[current])
            shard.spec.optimizer.apply(value, slots, gradient, step, value, slots, operation.scale)
        else:
            assert operation.kind == "add", operation.kind
            value = shard._values[current].reshape(shard.spec.shape)
            np.add(value, operation.value, out=value)

    def prepare_rows(shard: Any, operation: Any) -> None:
        which = shard.make(operation.ids)
        work = shard._get_work(len(which))
        for part, values in zip(shard._parts, work, strict=True):
            np.take(part, which, axis=0, out=values, mode="clip")
        step = int(shard._header[rows.STEP]) + 1
        shard.spec.optimizer.apply_rows(work[0], work[1:], operation.value, step, operation.scale)
        for part, values in zip(shard._parts, work, strict=True):
            part[which] = values
        shard._hits[which] += 1
        shard._last_steps[which] = step
        shard._header[rows.STEP] = step

    dense.DenseShard.prepare = prepare_dense
    rows.TableShard.prepare = prepare_rows


@contextlib.contextmanager
def open_synchronous() -> Iterator[dict[str, Measure]]:
    with importlib.import_module("hocket").init(num_cpus=WORKERS):
        yield {UNEVEN: lambda _: learn_unevenly(synchronous=True)}


@contextlib.contextmanager
def open_ours(*, has_journal: bool) -> Iterator[dict[str, Measure]]:
    hocket, ps = importlib.import_module("hocket"), importlib.import_module("hocket.ps")
    with hocket.init(num_cpus=WORKERS):
        strategy = ps.ParameterServerStrategy({"worker": WORKERS, "server": SERVERS}, optimizer=ps.SGD(lr=0.01))
        with strategy.scope():
            total = ps.Variable(np.float32(0))
        coordinator = ps.Coordinator(strategy)
        how = coordinator.per_worker((lambda: None) if has_journal else write_in_place)
        numbers = iter(coordinator.create_per_worker_dataset(lambda: itertools.cycle(range(1, 6))))

        def do_nothing() -> None:
            pass

        def count(numbers: Any, how: Any) -> Any:
            return total.assign_add(next(numbers)).numpy()

        def step_network(batches: Any, network: Any) -> None:
            for weight, variable in zip(network.weights, variables, strict=True):
                variable.read_value(weight.detach().numpy())
            strategy.push(zip(network.compute_gradients(*next(batches)), variables, strict=True))

        def step_table(table: Any, batches: Any) -> None:
            lookup = table.pull(next(batches))
            errors = lookup.expand().sum(1) - 1.0
            gradient = np.broadcast_to((2.0 / errors.size) * errors[:, None, :], (BAGS, BAG, DIM))
            strategy.push([(lookup.gradient(gradient), table)])

        def rate(amount: int, function: Any, *args: Any) -> Measure:
            def measure(closures: int) -> float:
                for _ in range(closures // 10):
                    coordinator.schedule(function, args)
                coordinator.join()
                begun = time.perf_counter()
                for _ in range(closures):
                    coordinator.schedule(function, args)
                coordinator.join()
                return closures * amount / (time.perf_counter() - begun)

            return measure

        coordinator.schedule(count, (numbers, how)).fetch()
        arrived = time.time()
        coordinator.join()
        with strategy.scope():
            variables = [ps.Variable(weight) for weight in build_weights()]
            start = ps.Uniform(-1, 1)
            table = ps.Embedding(TABLE_ROWS, DIM, initializer=start)
            hashed = ps.Embedding(None, DIM, capacity=TABLE_ROWS, initializer=start)
        images = iter(coordinator.create_per_worker_dataset(lambda: itertools.cycle(build_network_batches())))
        ids = iter(coordinator.create_per_worker_dataset(lambda: itertools.cycle(build_id_batches())))
        network = coordinator.per_worker(Network)
        yield {
            STARTUP: lambda _: arrived,
            EMPTY: rate(1, do_nothing),
            COUNTING: rate(1, count, numbers, how),
            NETWORK: rate(1, step_network, images, network),
            TABLE: rate(LOOKUPS, step_table, table, ids),
            HASHED: rate(LOOKUPS, step_table, hashed, ids),
            **({UNEVEN: lambda _: learn_unevenly(synchronous=False)} if has_journal else {}),
        }
        strategy.close()


def learn_unevenly(*, synchronous: bool) -> float:
    """Return how many seconds it takes until the mean loss of the last 20 steps is low enough."""
    ps = importlib.import_module("hocket.ps")
    rule = ps.SGD(lr=RATE * (WORKERS if synchronous else 1))
    cluster = {"worker": WORKERS, "server": SERVERS}
    strategy = ps.ParameterServerStrategy(cluster, optimizer=rule, synchronous=synchronous)
    with strategy.scope():
        variables = [ps.Variable(weight) for weight in build_weights()]
    coordinator = ps.Coordinator(strategy, modules=("torch",))
    network = coordinator.per_worker(Network)
    batches = coordinator.per_worker(
        lambda: itertools.cycle(build_network_batches()[ps.get_current_worker_index() :: WORKERS])
    )

    def step(network: Any, batches: Any) -> tuple[float, float]:
        values = strategy.pull(variables)
        begun = time.perf_counter()
        for weight, value in zip(network.weights, values, strict=True):
            weight.detach().numpy()[...] = value
        gradients = network.compute_gradients(*next(batches))
        if ps.get_current_worker_index() == 0:
            time.sleep((SLOWNESS - 1) * (time.perf_counter() - begun))
        strategy.push(zip(gradients, variables, strict=True))
        return time.time(), network.loss

    assert len(coordinator.read_all(network)) == WORKERS  # they are there, with what they import
    begun = time.time()
    values = [coordinator.schedule(step, (network, batches)) for _ in range(MOST_STEPS)]
    try:
        return wait_for_loss(values) - begun
    finally:
        strategy.close()


def wait_for_loss(values: list[Any]) -> float:
    """Return when the loss was low enough."""
    known: list[tuple[float, float]] = []
    while values:
        known += [value.fetch() for value in values if value.is_ready]
        values = [value for value in values if not value.is_ready]
        known.sort()
        for end in range(20, len(known)):
            if sum(loss for _, loss in known[end - 20 : end]) < 20 * LOSS:
                return known[end - 1][0]
        time.sleep(0.02)
    raise RuntimeError(f"the loss is not {LOSS} after {MOST_STEPS} steps: the last were {known[-3:]}")


# --- TensorFlow's ----------------------------------------------------------------------------------------------------


def find_port() -> int:
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def import_tensorflow() -> Any:
    os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", GRPC_FAIL_FAST="use_caller", CUDA_VISIBLE_DEVICES="")
    return importlib.import_module("tensorflow")


def serve_tensorflow(cluster: str, job: str, index: int) -> None:
    """A worker's or a server's process."""
    tf = import_tensorflow()
    tf.config.threading.set_inter_op_parallelism_threads(
        2
    )  # as TensorFlow's guide has it: one thread can wait for itself
    spec = tf.train.ClusterSpec(json.loads(cluster))
    tf.distribute.Server(spec, job_name=job, task_index=index, protocol="grpc").join()


@contextlib.contextmanager
def open_tensorflow() -> Iterator[dict[str, Measure]]:
    jobs = {"worker": WORKERS, "ps": SERVERS}
    cluster = {job: [f"127.0.0.1:{find_port()}" for _ in range(count)] for job, count in jobs.items()}
    command = [sys.executable, __file__, "--serve", json.dumps(cluster)]
    processes = [subprocess.Popen([*command, job, str(index)]) for job, count in jobs.items() for index in range(count)]
    try:
        yield build_tensorflow(cluster)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def build_tensorflow(cluster: dict[str, list[str]]) -> dict[str, Measure]:
    tf = import_tensorflow()
    spec = tf.train.ClusterSpec(cluster)
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec, rpc_layer="grpc")
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        total = tf.Variable(0.0)

    @tf.function  # type: ignore[untyped-decorator]
    def do_nothing() -> Any:
        return tf.constant(0)

    @tf.function  # type: ignore[untyped-decorator]
    def count(numbers: Any) -> Any:
        total.assign_add(next(numbers))
        return total.read_value()

    def rate(amount: int, function: Any, *datasets: Callable[[], Any]) -> Measure:
        args = tuple(iter(coordinator.create_per_worker_dataset(dataset)) for dataset in datasets)

        def measure(closures: int) -> float:
            closures = max(10, closures // 10)
            for _ in range(closures // 10):
                coordinator.schedule(function, args)
            coordinator.join()
            begun = time.perf_counter()
            for _ in range(closures):
                coordinator.schedule(function, args)
            coordinator.join()
            return closures * amount / (time.perf_counter() - begun)

        return measure

    def load_numbers() -> Any:
        return tf.data.Dataset.from_tensor_slices(tf.range(1.0, 6.0)).repeat()

    def load_images() -> Any:
        images, labels = (np.stack(arrays) for arrays in zip(*build_network_batches(), strict=True))
        return tf.data.Dataset.from_tensor_slices((images, labels)).repeat().prefetch(2)

    def load_ids() -> Any:
        return tf.data.Dataset.from_tensor_slices(np.stack(build_id_batches())).repeat().prefetch(2)

    coordinator.schedule(count, (iter(coordinator.create_per_worker_dataset(load_numbers)),)).fetch()
    arrived = time.time()
    with strategy.scope():
        variables = [tf.Variable(weight) for weight in build_weights()]
        table = tf.Variable(tf.random.uniform([TABLE_ROWS, DIM], -1, 1))
    return {
        STARTUP: lambda _: arrived,
        EMPTY: rate(1, do_nothing),
        COUNTING: rate(1, count, load_numbers),
        NETWORK: rate(1, build_network_step(tf, variables), load_images),
        TABLE: rate(LOOKUPS, build_table_step(tf, table), load_ids),
    }


def build_network_step(tf: Any, variables: list[Any]) -> Any:
    """TensorFlow's closure for a batch of the perceptron."""
    layers = len(WIDTHS) - 1

    @tf.function  # type: ignore[untyped-decorator]
    def step(batches: Any) -> None:
        images, labels = next(batches)
        with tf.GradientTape() as tape:
            hidden = images
            for number, (weight, bias) in enumerate(zip(variables[:layers], variables[layers:], strict=True)):
                hidden = hidden @ weight + bias
                if number < layers - 1:
                    hidden = tf.nn.relu(hidden)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, hidden))
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(0.01 * gradient)

    return step


def build_table_step(tf: Any, table: Any) -> Any:
    """TensorFlow's closure for a batch of bags of ids."""

    @tf.function  # type: ignore[untyped-decorator]
    def step(batches: Any) -> None:
        ids = next(batches)
        with tf.GradientTape() as tape:
            bags = tf.reduce_sum(tf.nn.embedding_lookup(table, ids), 1)
            loss = tf.reduce_mean(tf.square(bags - 1.0))
        gradient = tape.gradient(loss, table)
        table.scatter_sub(tf.IndexedSlices(0.01 * gradient.values, gradient.indices))

    return step


# --- measuring -------------------------------------------------------------------------------------------------------


def measure_side(side: str, file: Path, begun: float, *, only: list[str], quick: bool) -> None:
    """All rows of a side, in this process and what it starts."""
    openers: dict[str, Callable[[], contextlib.AbstractContextManager[dict[str, Measure]]]] = {
        OURS: lambda: open_ours(has_journal=True),
        IN_PLACE: lambda: open_ours(has_journal=False),
        SYNCHRONOUS: open_synchronous,
        TENSORFLOW: open_tensorflow,
    }
    with openers[side]() as measures, file.open("a") as output:
        for row, measure in measures.items():
            if row in only:
                value = measure(max(1, COUNTS[row] // (20 if quick else 1)))
                print(json.dumps([row, value - begun if row == STARTUP else value]), file=output, flush=True)


def run_side(side: str, settings: Settings, results: Results) -> None:
    """Start a fresh process that measures."""
    with tempfile.TemporaryDirectory(prefix="hocket-bench-") as folder:
        file, log = Path(folder, "rows"), Path(folder, "log")
        file.touch()
        only = json.dumps([row.name for row in results.rows])
        command = [sys.executable, __file__, "--side", side, "--rows", only, "--file", str(file)]
        with log.open("w") as output:
            process = subprocess.Popen(
                [*command, "--begun", repr(time.time()), *(["--quick"] if settings.quick else [])],
                stdout=output,
                stderr=output,
            )
            try:
                failure = f"exit status {status}" if (status := process.wait(LIMIT_SECONDS)) else ""
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                failure = f"stopped after {LIMIT_SECONDS} s"
        for line in file.read_text().splitlines():
            row, value = json.loads(line)
            results.add(row, side, value)
        if failure:
            results.fail("the whole side", side, f"{failure}\n{log.read_text()[-2000:]}")


def main() -> int:
    parser = argparse.ArgumentParser(add_help=False)
    for name in ("--side", "--rows", "--file", "--begun"):
        parser.add_argument(name)
    parser.add_argument("--serve", nargs=3)
    parser.add_argument("--quick", action="store_true")
    given, _ = parser.parse_known_args()
    if given.serve:
        serve_tensorflow(given.serve[0], given.serve[1], int(given.serve[2]))
        return 0
    if given.side:
        only = json.loads(given.rows)
        measure_side(given.side, Path(given.file), float(given.begun), only=only, quick=given.quick)
        return 0
    settings = parse_settings((__doc__ or "").splitlines()[0], rounds=5, peers=(TENSORFLOW, IN_PLACE, SYNCHRONOUS))
    results = Results(rows=[row for row in ROWS if settings.wants(row)], sides=settings.sides)
    for _ in range(settings.rounds):
        for side in settings.sides:
            run_side(side, settings, results)
    show(results, settings, title="Parameter servers")
    return results.exit_status


if __name__ == "__main__":
    sys.exit(main())
