"""A recommender on parameter servers: tables of a million rows, learnt from a click log by workers that may die.

The network is a small DLRM (M. Naumov et al., "Deep Learning Recommendation Model for Personalization and
Recommendation Systems", 2019). It combines four rows: one for the user, one for the item, the mean of the rows of the
item's tags, and one that a perceptron makes from four numbers. The products of each two of these rows go into another
perceptron, which returns the probability of a click. The tables and the weights of both perceptrons live on the
servers, and the servers' Adagrad updates them. Workers pull the rows of a batch, compute with PyTorch, JAX or Keras,
and push gradients. The frameworks differ only in the three classes below.

Users and items are distributed as in practice: a few appear often, most of them once or never. Users are hashed: their
ids are any 64-bit numbers. The taste of a user is a known function of the ids. So the best possible AUC is known, and
is printed beside the recommender's.

    python examples/recommender.py --framework jax
    python examples/recommender.py --kill-every 0.5     # kill a worker or a server twice a second

No push is lost or counts twice, even when processes are killed.
"""

import argparse
import collections
import contextlib
import itertools
import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.progress import Progress

import hocket
from hocket import exceptions, ps

NUM_TAGS, TAGS_PER_ITEM = 1000, 8
NUM_NUMBERS = 4
HIDDEN = 32
ZIPF = 1.2
AHEAD = 32
"""How many steps are scheduled ahead, so that no worker waits."""

FIRST_TEST = 1 << 30
"""The number of the first batch of the test."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The options of the command line."""

    framework: str = "torch"
    num_workers: int = 2
    num_servers: int = 2
    users: int = 1_000_000
    items: int = 1_000_000
    dim: int = 16
    steps: int = 2000
    batch: int = 256
    test_batches: int = 40
    lr: float = 0.1
    kill_every: float | None = None
    """Seconds from one kill to the next."""
    kill_after: int | None = None
    """Steps from one kill to the next."""
    quiet: bool = False


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The results of a training."""

    auc: float
    best_auc: float
    """The AUC of the probabilities with which the clicks were drawn."""
    steps: int
    """The number of applied updates."""
    killed_workers: int
    killed_servers: int
    seconds: float


# --- the click log: each batch is a function of its number ------------------------------------------------------------


@dataclass(frozen=True)
class Batch:
    """Rows of the log."""

    users: Any
    items: Any
    tags: Any
    numbers: Any
    labels: Any
    probabilities: Any
    """The probabilities of a click; the model does not see them."""


def make_batch(settings: Settings, number: int) -> Batch:
    generator = np.random.default_rng([7, number])
    users = generator.zipf(ZIPF, settings.batch) % settings.users
    items = generator.zipf(ZIPF, settings.batch) % settings.items
    tags = (items[:, None] * 31 + np.arange(TAGS_PER_ITEM) ** 2) % NUM_TAGS
    numbers = generator.normal(size=(settings.batch, NUM_NUMBERS)).astype(np.float32)
    tastes, qualities = plant(users, 1), plant(items, 2)
    logits = (tastes[:, 1:] * qualities[:, 1:]).sum(1) + tastes[:, 0] + qualities[:, 0] + numbers[:, 0] - 0.5
    logits += plant(tags.reshape(-1), 3)[:, 0].reshape(tags.shape).mean(1)
    probabilities = 1 / (1 + np.exp(-logits))
    labels = (generator.random(settings.batch) < probabilities).astype(np.float32)
    names = users.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)  # as if ids were hashes of names
    return Batch(names.view(np.int64), items, tags, numbers, labels, probabilities)


def plant(ids: Any, seed: int) -> Any:
    """Return four numbers for each id, which depend only on the id and the seed."""
    found = np.empty((len(ids), 4), np.float32)
    ps.Normal(seed=seed, stddev=1.0).fill(np.asarray(ids, np.int64), found)
    return found


def compute_auc(labels: Any, scores: Any) -> float:
    """Return the probability that a click is ranked above an item that was not clicked (Mann and Whitney's U). Ties
    count as half."""
    unique, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[places]
    clicks = int(labels.sum())
    above = ranks[labels > 0].sum() - clicks * (clicks + 1) / 2
    assert len(unique) > 1, "all scores are equal"
    return float(above / (clicks * (len(labels) - clicks)))


# --- the network, in three frameworks ---------------------------------------------------------------------------------


def list_shapes(dim: int) -> list[tuple[int, ...]]:
    """Return the shapes of weights and biases of both perceptrons: first that for the numbers, then the last."""
    layers = [(NUM_NUMBERS, HIDDEN), (HIDDEN, dim), (dim + 6, HIDDEN), (HIDDEN, 1)]
    return [shape for pair in layers for shape in (pair, pair[1:])]


class TorchNetwork:
    """The network in PyTorch: from weights, rows [batch, 3, dim] and numbers to logits, or to a loss and gradients."""

    def __init__(self, dim: int) -> None:
        import torch

        torch.set_num_threads(1)
        self.torch = torch
        self.pairs = torch.triu_indices(4, 4, offset=1)

    def compute_logits(self, weights: Any, rows: Any, numbers: Any) -> Any:
        torch = self.torch
        hidden = torch.relu(torch.addmm(weights[1], numbers, weights[0]))
        fourth = torch.addmm(weights[3], hidden, weights[2])
        four = torch.cat([rows, fourth[:, None]], 1)
        agreement = (four @ four.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        hidden = torch.relu(torch.addmm(weights[5], torch.cat([fourth, agreement], 1), weights[4]))
        return torch.addmm(weights[7], hidden, weights[6])[:, 0]

    def score(self, weights: list[Any], rows: Any, numbers: Any) -> Any:
        torch = self.torch
        logits = self.compute_logits(
            [torch.from_numpy(weight) for weight in weights], torch.from_numpy(rows), torch.from_numpy(numbers)
        )
        return logits.numpy()

    def differentiate(self, weights: list[Any], rows: Any, numbers: Any, labels: Any) -> tuple[float, list[Any], Any]:
        torch = self.torch
        leaves = [torch.from_numpy(array).requires_grad_() for array in (*weights, rows)]
        logits = self.compute_logits(leaves[:-1], leaves[-1], torch.from_numpy(numbers))
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, torch.from_numpy(labels))
        *found, of_rows = (gradient.numpy() for gradient in torch.autograd.grad(loss, leaves))
        return loss.item(), found, of_rows


class JaxNetwork:
    """The network in JAX."""

    def __init__(self, dim: int) -> None:
        import jax

        self.jax = jax
        self.logits = jax.jit(self.compute_logits)
        self.gradients = jax.jit(jax.value_and_grad(self.compute_loss, argnums=(0, 1)))

    def compute_logits(self, weights: Any, rows: Any, numbers: Any) -> Any:
        jnp = self.jax.numpy
        hidden = self.jax.nn.relu(numbers @ weights[0] + weights[1])
        fourth = hidden @ weights[2] + weights[3]
        four = jnp.concatenate([rows, fourth[:, None]], 1)
        first, second = np.triu_indices(4, 1)
        agreement = (four @ four.transpose(0, 2, 1))[:, first, second]
        hidden = self.jax.nn.relu(jnp.concatenate([fourth, agreement], 1) @ weights[4] + weights[5])
        return (hidden @ weights[6] + weights[7])[:, 0]

    def compute_loss(self, weights: Any, rows: Any, numbers: Any, labels: Any) -> Any:
        logits = self.compute_logits(weights, rows, numbers)
        return self.jax.numpy.mean(self.jax.nn.softplus(logits) - labels * logits)

    def score(self, weights: list[Any], rows: Any, numbers: Any) -> Any:
        return np.asarray(self.logits(weights, rows, numbers))

    def differentiate(self, weights: list[Any], rows: Any, numbers: Any, labels: Any) -> tuple[float, list[Any], Any]:
        loss, (found, of_rows) = self.gradients(weights, rows, numbers, labels)
        return float(loss), [np.asarray(gradient) for gradient in found], np.asarray(of_rows)


class KerasNetwork(JaxNetwork):
    """The network in Keras on JAX: a model, called as a function of weights."""

    def __init__(self, dim: int) -> None:
        os.environ["KERAS_BACKEND"] = "jax"
        import keras

        super().__init__(dim)
        layers, ops = keras.layers, keras.ops
        rows, numbers = keras.Input((3, dim)), keras.Input((NUM_NUMBERS,))
        fourth = layers.Dense(dim)(layers.Dense(HIDDEN, activation="relu")(numbers))
        four = ops.concatenate([rows, ops.expand_dims(fourth, 1)], 1)
        each = ops.reshape(ops.matmul(four, ops.transpose(four, (0, 2, 1))), (-1, 16))
        agreement = ops.take(each, np.flatnonzero(np.triu(np.ones((4, 4)), 1)), 1)
        hidden = layers.Dense(HIDDEN, activation="relu")(ops.concatenate([fourth, agreement], 1))
        self.model = keras.Model([rows, numbers], layers.Dense(1)(hidden))
        assert [weight.shape for weight in self.model.weights] == list_shapes(dim)

    def compute_logits(self, weights: Any, rows: Any, numbers: Any) -> Any:
        outputs, _ = self.model.stateless_call(weights, [], [rows, numbers])
        return outputs[:, 0]


NETWORKS: dict[str, Any] = {"torch": TorchNetwork, "jax": JaxNetwork, "keras": KerasNetwork}
MODULES = {"torch": ("torch",), "jax": ("jax",), "keras": ("hocket.train.frameworks.keras_preloads.jax",)}
"""The modules that workers import.

They are loaded once, in the process from which workers are forked, so a worker that replaces another starts quickly.
"""


# --- training ---------------------------------------------------------------------------------------------------------


class Killer:
    """A killer of workers and servers, in turn, as often as the settings say."""

    def __init__(self, settings: Settings, strategy: Any, coordinator: Any) -> None:
        self.settings, self.strategy, self.coordinator = settings, strategy, coordinator
        self.random = random.Random(0)  # noqa: S311 (no secrets)
        self.killed = {"worker": 0, "server": 0}
        self.next_time = time.monotonic() + (settings.kill_every or 0)

    def look(self, step: int) -> None:
        """Kill a process if it is time; called after each step."""
        every, after = self.settings.kill_every, self.settings.kill_after
        if not ((every and time.monotonic() >= self.next_time) or (after and (step + 1) % after == 0)):
            return
        self.next_time = time.monotonic() + (every or 0)
        kind = min(self.killed, key=lambda kind: self.killed[kind])
        while not self.kill(kind) and not self.coordinator.done():  # an idle worker is not replaced
            time.sleep(0.01)  # the last killed process is still being replaced

    def kill(self, kind: str) -> bool:
        """Kill a process of this kind; return False if it was just away, or has ended in the meantime."""
        with contextlib.suppress(exceptions.ActorError, ProcessLookupError):
            os.kill(self.random.choice(self.list_pids(kind)), signal.SIGKILL)
            self.killed[kind] += 1
            return True
        return False

    def list_pids(self, kind: str) -> list[int]:
        if kind == "server":
            return list(self.strategy.get_server_pids())
        return list(self.coordinator.get_worker_pids().values())


def train(settings: Settings) -> Outcome:
    """Train and test, in the open session."""
    strategy = ps.ParameterServerStrategy(
        {"worker": settings.num_workers, "server": settings.num_servers},
        optimizer=ps.Adagrad(lr=settings.lr, initial_accumulator=0.001),
    )
    with strategy.scope():
        start = ps.Normal(stddev=0.1)
        tables = [
            ps.Embedding(None, settings.dim, capacity=settings.users, name="users", initializer=start),
            ps.Embedding(settings.items, settings.dim, name="items", initializer=start),
            ps.Embedding(NUM_TAGS, settings.dim, name="tags", initializer=start),
        ]
        generator = np.random.default_rng(0)
        weights = [
            ps.Variable((generator.normal(size=shape) * (len(shape) - 1) / shape[0] ** 0.5).astype(np.float32))
            for shape in list_shapes(settings.dim)
        ]
    coordinator = ps.Coordinator(strategy, modules=MODULES[settings.framework])
    network = coordinator.per_worker(lambda: NETWORKS[settings.framework](settings.dim))

    def pull(batch: Batch) -> tuple[list[Any], Any]:
        users, items, tags = (
            table.pull(ids) for table, ids in zip(tables, (batch.users, batch.items, batch.tags), strict=True)
        )
        return [users, items, tags], np.stack([users.expand(), items.expand(), tags.expand().mean(1)], 1)

    def step(network: Any, numbers: Any) -> float:
        """Compute the gradients of one batch in a worker, and push them."""
        batch = make_batch(settings, next(numbers))
        (users, items, tags), rows = pull(batch)
        loss, found, of_rows = network.differentiate(strategy.pull(weights), rows, batch.numbers, batch.labels)
        of_tags = np.broadcast_to(of_rows[:, 2:] / TAGS_PER_ITEM, (*batch.tags.shape, settings.dim))
        gradients = [users.gradient(of_rows[:, 0]), items.gradient(of_rows[:, 1]), tags.gradient(of_tags)]
        strategy.push(zip([*found, *gradients], [*weights, *tables], strict=True))
        return float(loss)

    def test(network: Any, number: int) -> tuple[Any, Any, Any]:
        batch = make_batch(settings, FIRST_TEST + number)
        _, rows = pull(batch)
        return batch.labels, network.score(strategy.pull(weights), rows, batch.numbers), batch.probabilities

    begun = time.monotonic()
    numbers = iter(coordinator.create_per_worker_dataset(range(settings.steps)))
    losses = (coordinator.schedule(step, (network, numbers)) for _ in range(settings.steps))
    killer = Killer(settings, strategy, coordinator)
    for number, loss in enumerate(follow(losses, settings)):
        assert np.isfinite(loss)
        killer.look(number)
    coordinator.join()
    seconds = time.monotonic() - begun
    tested = coordinator.fetch(
        [coordinator.schedule(test, (network, number)) for number in range(settings.test_batches)]
    )
    labels, scores, probabilities = (np.concatenate(arrays) for arrays in zip(*tested, strict=True))
    outcome = Outcome(
        auc=compute_auc(labels, scores),
        best_auc=compute_auc(labels, probabilities),
        steps=strategy.statistics()["pushes"],
        killed_workers=killer.killed["worker"],
        killed_servers=killer.killed["server"],
        seconds=seconds,
    )
    strategy.close()
    return outcome


def follow(losses: Iterator[Any], settings: Settings) -> Iterator[float]:
    """Yield each closure's loss, in the order of scheduling, and show a smoothed loss.

    `AHEAD` closures are scheduled ahead, so that no worker waits.
    """
    ahead = collections.deque(itertools.islice(losses, AHEAD))
    with Progress(disable=settings.quiet, transient=True) as progress:
        task = progress.add_task("training", total=settings.steps)
        smooth = None
        while ahead:
            loss = ahead.popleft().fetch()
            ahead.extend(itertools.islice(losses, 1))
            smooth = loss if smooth is None else 0.98 * smooth + 0.02 * loss
            progress.update(task, advance=1, description=f"loss {smooth:.3f}")
            yield loss


def main() -> None:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    usual = Settings()
    parser.add_argument("--framework", choices=sorted(NETWORKS), default=usual.framework)
    parser.add_argument("--kill-every", type=float, metavar="SECONDS", help="kill a worker or a server so often")
    parser.add_argument("--kill-after", type=int, metavar="STEPS", help="the same, counted in steps")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    for name in ("num_workers", "num_servers", "users", "items", "dim", "steps", "batch"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=getattr(usual, name), help=" ")
    settings = Settings(**vars(parser.parse_args()))
    with hocket.init():
        outcome = train(settings)
    print(f"{outcome.steps} steps in {outcome.seconds:.1f} s, {outcome.steps / outcome.seconds:.0f} a second")
    if settings.kill_every or settings.kill_after:
        print(f"killed: {outcome.killed_workers} workers and {outcome.killed_servers} servers")
    print(f"AUC {outcome.auc:.4f}; the best possible is {outcome.best_auc:.4f}")


if __name__ == "__main__":
    main()
