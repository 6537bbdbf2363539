"""A step as a graph and the same step executed line by line: how much time ``tf.function`` saves.

Both steps take turns, so that other work on the machine slows both. The step uses TensorFlow alone; in a KerasTrainer
the graph also contains the call that averages the gradients.

    python examples/keras_graph_and_eager.py
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf


def build_step(width: int, depth: int) -> Callable[[Any, Any], Any]:
    """Build a training step of a network with many small layers, where Python takes a large share of the time."""
    generator = tf.random.Generator.from_seed(0)
    weights = [tf.Variable(generator.normal((width, width)) / width**0.5) for _ in range(depth)]

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            for weight in weights:
                x = tf.nn.relu(x @ weight)
            loss = tf.reduce_mean(tf.square(x - y))
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(0.001 * gradient)
        return loss

    return step


def measure(step: Callable[[Any, Any], Any], x: Any, y: Any, steps: int) -> float:
    """Return milliseconds per step."""
    start = time.perf_counter()
    for _ in range(steps):
        float(step(x, y))
    return 1000 * (time.perf_counter() - start) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description="tf.function against eager execution.")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    x, y = (tf.constant(np.random.default_rng(0).normal(size=(32, 64)).astype("float32")) for _ in range(2))
    eager, graph = build_step(64, 20), tf.function(build_step(64, 20))
    assert abs(float(eager(x, y)) - float(graph(x, y))) < 1e-5, "both compute the same"
    samples: dict[str, list[float]] = {"eager": [], "tf.function": []}
    for _ in range(arguments.rounds):
        samples["eager"].append(measure(eager, x, y, arguments.steps))
        samples["tf.function"].append(measure(graph, x, y, arguments.steps))
    medians = {name: statistics.median(values) for name, values in samples.items()}
    for name, value in medians.items():
        print(f"{name:12s} {value:6.2f} ms a step")
    print(f"the graph is {medians['eager'] / medians['tf.function']:.1f} times as fast")


if __name__ == "__main__":
    main()
