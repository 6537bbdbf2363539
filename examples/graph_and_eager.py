"""A training step as a compiled graph and in eager mode: torch.compile and jax.jit against the same code without them.

Each side trains the same small network on the same batch with plain gradient descent. In eager mode Python runs it,
operation by operation; as a graph it is a program that was compiled once. Prints one table, and saves it as a chart.

    python examples/graph_and_eager.py --png graph_and_eager.png
"""

import argparse
import itertools
import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

WIDTHS = (64, 128, 128, 10)
"""Units of each layer."""

BATCH = 32

LR = 0.1

Step = Callable[[], float]
"""A function that takes a step, waits until the step is done, and returns the loss before it."""


@dataclass(frozen=True, kw_only=True)
class Side:
    """The two steps of one framework."""

    eager: Step
    graph: Step
    graph_name: str
    """The function that makes the graph."""


def build_data() -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """Return weights, inputs and labels, the same for every side."""
    numbers = np.random.default_rng(0)
    weights = [
        numbers.normal(size=(wide, wide_next)).astype(np.float32) / wide**0.5
        for wide, wide_next in itertools.pairwise(WIDTHS)
    ]
    return weights, numbers.normal(size=(BATCH, WIDTHS[0])).astype(np.float32), numbers.integers(10, size=BATCH)


def build_torch() -> Side:
    """Build both steps in PyTorch. torch.compile takes the function that computes the loss."""
    import torch

    torch.set_num_threads(1)
    weights, inputs, labels = build_data()
    x, y = torch.tensor(inputs), torch.tensor(labels)

    def compute_loss(weights: list[torch.Tensor]) -> torch.Tensor:
        hidden = x
        for weight in weights[:-1]:
            hidden = torch.relu(hidden @ weight)
        return torch.nn.functional.cross_entropy(hidden @ weights[-1], y)

    def build(compute: Callable[[list[torch.Tensor]], torch.Tensor]) -> Step:
        parameters = [torch.tensor(weight, requires_grad=True) for weight in weights]
        optimizer = torch.optim.SGD(parameters, lr=LR)

        def step() -> float:
            optimizer.zero_grad()
            loss = compute(parameters)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            return float(loss.detach())

        return step

    return Side(eager=build(compute_loss), graph=build(torch.compile(compute_loss)), graph_name="torch.compile")


def build_jax() -> Side:
    """Build both steps in JAX. jax.jit takes the whole step as one function."""
    os.environ.setdefault("PJRT_NPROC", "1")  # one thread, as above
    import jax
    import jax.numpy as jnp

    weights, x, y = build_data()

    def compute_loss(weights: list[jax.Array]) -> jax.Array:
        hidden = x
        for weight in weights[:-1]:
            hidden = jax.nn.relu(hidden @ weight)
        return -jnp.mean(jax.nn.log_softmax(hidden @ weights[-1])[jnp.arange(BATCH), y])

    def descend(weights: list[jax.Array]) -> tuple[jax.Array, list[jax.Array]]:
        loss, gradients = jax.value_and_grad(compute_loss)(weights)
        return loss, [weight - LR * gradient for weight, gradient in zip(weights, gradients, strict=True)]

    def build(take: Callable[[list[jax.Array]], tuple[jax.Array, list[jax.Array]]]) -> Step:
        parameters = [jnp.asarray(weight) for weight in weights]

        def step() -> float:
            nonlocal parameters
            loss, parameters = take(parameters)
            return float(jax.block_until_ready((loss, parameters))[0])

        return step

    return Side(eager=build(descend), graph=build(jax.jit(descend)), graph_name="jax.jit")


SIDES: Mapping[str, Callable[[], Side]] = {"PyTorch": build_torch, "JAX": build_jax}
"""Add a function here to compare another framework."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """The measured times of one side, in milliseconds."""

    name: str
    graph_name: str
    eager_ms: float
    graph_ms: float
    first_ms: float
    """The time of the graph's first step, which compiles it."""


def measure(name: str, steps: int) -> Row:
    """Time both steps in turns, so that other work on the machine slows both; return medians."""
    side = SIDES[name]()
    losses = [side.eager()]
    start = time.perf_counter()
    losses.append(side.graph())
    first_ms = (time.perf_counter() - start) * 1000
    took: dict[Step, list[float]] = {side.eager: [], side.graph: []}
    for _ in range(steps):
        for step, times in took.items():
            start = time.perf_counter()
            losses.append(step())
            times.append((time.perf_counter() - start) * 1000)
    eager, graph = losses[0::2], losses[1::2]
    if not np.allclose(eager, graph, rtol=1e-4):
        raise RuntimeError(f"{name}: the graph's losses {graph[:5]} are not those of single steps, {eager[:5]}")
    return Row(
        name=name,
        graph_name=side.graph_name,
        eager_ms=statistics.median(took[side.eager]),
        graph_ms=statistics.median(took[side.graph]),
        first_ms=first_ms,
    )


def save_chart(rows: list[Row], path: str) -> None:
    """Draw a pair of bars for each side."""
    from matplotlib import figure

    drawing = figure.Figure(figsize=(6, 3.5), layout="constrained")
    axes = drawing.subplots()
    places = np.arange(len(rows))
    for offset, label, values in (
        (-0.2, "eager", [row.eager_ms for row in rows]),
        (0.2, "graph", [row.graph_ms for row in rows]),
    ):
        axes.bar_label(axes.bar(places + offset, values, 0.38, label=label), fmt="%.2f")
    axes.set_xticks(places, [f"{row.name}\n{row.graph_name}" for row in rows])
    axes.set_ylabel("ms a step")
    axes.legend(frameon=False)
    drawing.savefig(path, dpi=150)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--only", choices=SIDES, action="append", help="a side; default: all")
    parser.add_argument("--png", default="graph_and_eager.png")
    options = parser.parse_args()
    rows = [measure(name, options.steps) for name in options.only or SIDES]
    print(f"{'framework':<12}{'graph by':<16}{'eager ms':>10}{'graph ms':>10}{'ratio':>8}{'first graph step ms':>21}")
    for row in rows:
        print(
            f"{row.name:<12}{row.graph_name:<16}{row.eager_ms:>10.3f}{row.graph_ms:>10.3f}"
            f"{row.eager_ms / row.graph_ms:>7.1f}x{row.first_ms:>21.0f}"
        )
    for row in rows:
        if row.graph_ms > row.eager_ms:
            print(
                f"{row.graph_name} costs more here than it saves: the operations of so small a network take "
                "microseconds, and so does the call of the graph. Measure with your own."
            )
        else:
            after = (row.first_ms - row.graph_ms) / max(row.eager_ms - row.graph_ms, 1e-6)
            print(f"{row.graph_name}: its first step is paid back after {after:,.0f} steps.")
    save_chart(rows, options.png)
    print(f"saved {options.png}")
