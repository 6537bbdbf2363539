"""TensorFlow's own parameter servers: a counter that must end at 15.

Workers add the items of their datasets to a variable on a server; the chief schedules the additions. The program is
the usual introduction to ``tf.distribute.ParameterServerStrategy``, unchanged. Here the trainer starts chief, workers
and servers, each with its TF_CONFIG.

    python examples/parameter_server_tensorflow.py                             # 1 worker, 1 server
    python examples/parameter_server_tensorflow.py --workers 2 --servers 2

With one worker, five steps take the numbers 1 to 5. With several workers each has a dataset of its own, so the sum
would depend on which worker takes which step. There all numbers are 3, and the sum is 15 again.
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import hocket
from hocket import train
from hocket.train.tensorflow import ParameterServers, TensorflowTrainer


def count(config: dict[str, Any]) -> None:
    """Schedule the additions; runs in the chief."""
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

    with strategy.scope():
        counter = tf.Variable(0.0)

    @tf.function  # type: ignore[untyped-decorator]  # TensorFlow is not type-checked
    def worker_fn(
        iterator: object,
    ) -> object:  # TensorFlow resolves annotations, and `Any` does not travel with the function
        counter.assign_add(next(iterator))  # type: ignore[call-overload]
        return counter.read_value()

    def dataset_fn() -> object:
        numbers = [1.0, 2.0, 3.0, 4.0, 5.0] if config["workers"] == 1 else [3.0]
        return tf.data.Dataset.from_tensor_slices(numbers).repeat()

    iterator = iter(coordinator.create_per_worker_dataset(dataset_fn))
    seen = [coordinator.schedule(worker_fn, args=(iterator,)) for _ in range(config["steps"])]
    coordinator.join()
    train.report({"counter": float(counter.numpy()), "last": max(float(value.fetch()) for value in seen)})


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--engine", default="local", help="local, or ray")
    parser.add_argument("--cpus", type=float, default=0.25, help="how much of a CPU each process holds")
    given = parser.parse_args()
    with hocket.init(engine=given.engine), tempfile.TemporaryDirectory() as folder:
        result = TensorflowTrainer(
            count,
            train_loop_config={"workers": given.workers, "steps": given.steps},
            strategy=ParameterServers(num_servers=given.servers),
            scaling_config=train.ScalingConfig(num_workers=given.workers, resources_per_worker={"CPU": given.cpus}),
            run_config=train.RunConfig(storage_path=folder),
        ).fit()
    assert result.metrics is not None
    print(f"{given.steps} steps of {given.workers} workers: the counter is {result.metrics['counter']:g}")


if __name__ == "__main__":
    main()
