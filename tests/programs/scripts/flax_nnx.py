"""A perceptron of Flax NNX, trained data-parallel over the devices of all processes by one program.

Written after https://flax.readthedocs.io/en/latest/guides/flax_gspmd.html and
https://docs.jax.dev/en/latest/multi_process.html (both Apache-2.0). `python flax_nnx.py ADDRESS NUMBER` is one of two
processes; `python flax_nnx.py hocket` gives the same function to a trainer.
"""

import json
import sys
import tempfile


def train_func() -> dict:
    import jax
    import numpy as np
    import optax
    from flax import nnx
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    class Perceptron(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.first = nnx.Linear(8, 16, rngs=rngs)
            self.second = nnx.Linear(16, 1, rngs=rngs)

        def __call__(self, x: jax.Array) -> jax.Array:
            return self.second(nnx.relu(self.first(x)))

    mesh = Mesh(np.array(jax.devices()), ("data",))
    model = Perceptron(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    graph, state = nnx.split((model, optimizer))
    state = jax.tree.map(
        lambda leaf: jax.make_array_from_process_local_data(NamedSharding(mesh, PartitionSpec()), np.asarray(leaf)),
        state,
    )

    @jax.jit
    def step(state, x, y):
        model, optimizer = nnx.merge(graph, state)
        loss, gradients = nnx.value_and_grad(lambda model: ((model(x) - y) ** 2).mean())(model)
        optimizer.update(model, gradients)
        return nnx.state((model, optimizer)), loss

    rows = NamedSharding(mesh, PartitionSpec("data"))
    losses = []
    for number in range(10):
        x = np.random.default_rng(number).normal(size=(32, 8)).astype(np.float32)
        own = slice(16 * jax.process_index(), 16 * (jax.process_index() + 1))
        y = x.sum(axis=1, keepdims=True)
        state, loss = step(state, *(jax.make_array_from_process_local_data(rows, part[own]) for part in (x, y)))
        losses.append(float(loss))
    total = sum(float(np.abs(np.asarray(leaf)).sum()) for leaf in jax.tree.leaves(state))
    return {"processes": jax.process_count(), "devices": jax.device_count(), "losses": losses, "total": total}


def run_alone(address: str, number: int) -> None:
    import jax

    jax.distributed.initialize(address, num_processes=2, process_id=number)
    found = train_func()
    if number == 0:
        sys.stdout.write(json.dumps(found) + "\n")


def run_with_hocket() -> None:
    from hocket import train
    from hocket.train.jax import JaxConfig, JaxTrainer

    result = JaxTrainer(
        train_func,
        jax_config=JaxConfig(distributed=True),
        scaling_config=train.ScalingConfig(num_workers=2),
        run_config=train.RunConfig(storage_path=tempfile.mkdtemp()),
    ).fit()
    sys.stdout.write(json.dumps(result.return_value) + "\n")


if __name__ == "__main__":
    if sys.argv[1] == "hocket":
        run_with_hocket()
    else:
        run_alone(sys.argv[1], int(sys.argv[2]))
