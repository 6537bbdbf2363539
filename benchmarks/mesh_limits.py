"""What a data parallel step on 8 virtual devices spends its time on: that of `mesh.py`, in plain JAX, with parts
left out or done otherwise.

python benchmarks/mesh_limits.py [steps]

Prints milliseconds a step: by the clock, and of the processors' time, which other programs disturb less. All take turns
in one process. What is left out makes the step wrong: a bound, and no way to train.
"""

import itertools
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec

DEVICES, SIZES, RATE, ROUNDS = 8, (784, 700, 500, 10), 0.01, 7
WHOLE, ROWS, COLUMNS = Spec(), Spec("batch"), Spec(None, "batch")


def make_parameters(*, padded: bool = False) -> tuple[list[Any], list[Any]]:
    """Return kernels and biases; padded to sizes that 8 devices divide."""
    random = np.random.default_rng(0)
    sizes = [-(-size // DEVICES) * DEVICES if padded else size for size in SIZES]
    pairs = list(itertools.pairwise(sizes))
    kernels = [random.uniform(-1, 1, pair).astype("float32") * (6 / sum(pair)) ** 0.5 for pair in pairs]
    return kernels, [np.zeros(size, "float32") for size in sizes[1:]]


def compute_loss(parameters: Any, x: Any, y: Any, *, gather: Callable[[Any], Any] = lambda x: x) -> Any:
    kernels, biases = parameters
    for number, (kernel, bias) in enumerate(zip(kernels, biases, strict=True)):
        x = gather(x @ kernel + bias)
        x = x.clip(0) if number < len(kernels) - 1 else x
    return -jnp.take_along_axis(jax.nn.log_softmax(x[:, : SIZES[-1]]), y[:, None], axis=1).mean()


def descend(parameters: Any, slopes: Any) -> Any:
    return jax.tree.map(lambda one, slope: one - RATE * slope, parameters, slopes)


def whole(parameters: Any, x: Any, y: Any) -> Any:
    loss, slopes = jax.value_and_grad(compute_loss)(parameters, x, y)
    return loss, descend(parameters, slopes)


def without_sums(parameters: Any, x: Any, y: Any) -> Any:
    loss, slopes = jax.value_and_grad(compute_loss)(parameters, x, y)
    return jax.lax.pmean(loss, "batch"), descend(parameters, slopes)


def without_update(parameters: Any, x: Any, y: Any) -> Any:
    loss, slopes = jax.value_and_grad(compute_loss)(parameters, x, y)
    return jax.lax.pmean(loss + 0 * sum(one.sum() for one in jax.tree.leaves(slopes)), "batch"), parameters


def parts_of_state(parameters: Any, x: Any, y: Any) -> Any:
    """Each device sums and updates an eighth of the rows, and gathers the others' (ZeRO)."""
    kernels, biases = parameters
    used = [jax.lax.all_gather(one, "batch", axis=0, tiled=True) for one in kernels]
    loss, (slopes, bias_slopes) = jax.value_and_grad(compute_loss)((used, biases), x, y)
    parts = [jax.lax.psum_scatter(one, "batch", scatter_dimension=0, tiled=True) / DEVICES for one in slopes]
    return jax.lax.pmean(loss, "batch"), descend(parameters, (parts, jax.lax.pmean(bias_slopes, "batch")))


def parts_of_weights(parameters: Any, x: Any, y: Any) -> Any:
    """Each device computes all rows with an eighth of the columns: not data parallel any more."""
    x, y = (jax.lax.all_gather(one, "batch", axis=0, tiled=True) for one in (x, y))

    def compute(parameters: Any) -> Any:
        return compute_loss(parameters, x, y, gather=lambda x: jax.lax.all_gather(x, "batch", axis=1, tiled=True))

    loss, slopes = jax.value_and_grad(compute)(parameters)
    return loss, descend(parameters, jax.tree.map(lambda one: one / DEVICES, slopes))


def prepare() -> dict[str, Callable[[], Any]]:
    jax.config.update("jax_num_cpu_devices", DEVICES)
    mesh = Mesh(np.array(jax.devices()), ("batch",))
    random = np.random.default_rng(0)
    batch = random.random((128, SIZES[0]), np.float32), random.integers(0, 10, 128).astype("int32")

    def spread(function: Any, kernel: Spec, bias: Spec, *, padded: bool = False) -> Callable[[], Any]:
        kernels, biases = make_parameters(padded=padded)
        place = [([NamedSharding(mesh, kernel)] * 3, [NamedSharding(mesh, bias)] * 3), NamedSharding(mesh, ROWS)]
        if function is not whole:
            function = jax.shard_map(
                function,
                mesh=mesh,
                in_specs=((kernel, bias), ROWS, ROWS),
                out_specs=(WHOLE, (kernel, bias)),
                check_vma=False,
            )
        compiled = jax.jit(function, donate_argnums=0, out_shardings=(None, place[0]))
        state = [jax.device_put((kernels, biases), place[0])]

        def step() -> float:
            loss, state[0] = compiled(state[0], *jax.device_put(batch, place[1]))
            return float(loss)

        return step

    compiled, alone = jax.jit(whole, donate_argnums=0), [jax.device_put(make_parameters(), jax.devices()[0])]

    def step_alone() -> float:
        loss, alone[0] = compiled(alone[0], *batch)
        return float(loss)

    return {
        "the step": spread(whole, WHOLE, WHOLE),
        "without sums": spread(without_sums, WHOLE, WHOLE),
        "without sums and update": spread(without_update, WHOLE, WHOLE),
        "an eighth of the state in each": spread(parts_of_state, ROWS, WHOLE, padded=True),
        "an eighth of the weights in each": spread(parts_of_weights, COLUMNS, ROWS, padded=True),
        "one device": step_alone,
    }


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    steps = prepare()
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
    for number in range(ROUNDS + 1):  # the first compiles
        for name, step in steps.items():
            start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
            for _ in range(count):
                step()
            after = resource.getrusage(resource.RUSAGE_SELF)
            spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            if number:
                found[name].append(((time.perf_counter() - start) / count * 1e3, spent / count * 1e3))
    for name, samples in found.items():
        clock, spent = np.median(samples, axis=0)
        print(f"{name:34} {clock:6.2f} ms {spent:6.2f} ms of processors' time")


if __name__ == "__main__":
    main()
