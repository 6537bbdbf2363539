"""A network of dense layers on a mesh of 8 virtual devices: steps a second beside TensorFlow's DTensor and beside the
same step in plain JAX with the same shardings; what it costs to pack and unpack 100 MB; and a transformer in PyTorch on
2 ranks, beside torch's own FSDP2 and tensor parallel layers over gloo.

python benchmarks/mesh.py

A step spreads a batch of 128 rows from numpy, computes 784-700-500-10 with a cross entropy, descends, and returns the
loss, which the program reads each time: a loop that does not lets plain JAX abort on virtual devices of few processors.
Each sample is a process of its own.
"""

import json
import subprocess
import sys

import _mesh_torch
from _harness import OURS, Row, Settings, build_environment, parse_settings, show, take_turns

PLAIN, TENSORFLOW, COPY, GLOO = "plain jax", "tensorflow", "memcpy", "gloo"

DATA = Row(name="steps, batch=8", unit="steps/s")
BOTH = Row(name="steps, batch=2 and model=4", unit="steps/s")
PACK = Row(name="pack 100 MB", unit="ms", more_is_better=False)
UNPACK = Row(name="unpack 100 MB", unit="ms", more_is_better=False)
FULLY = Row(name="PyTorch, 2 ranks, fully sharded", unit="steps/s")
TENSOR = Row(name="PyTorch, 2 ranks, tensor parallel", unit="steps/s")
JAX_ROWS, TORCH_ROWS = (DATA, BOTH, PACK, UNPACK), (FULLY, TENSOR)
ROWS = (*JAX_ROWS, *TORCH_ROWS)

COMMON = """
import json, sys, time
import numpy as np
SIZES, STEPS, RATE = (784, 700, 500, 10), int(sys.argv[1]), 0.01
random = np.random.default_rng(0)
images = random.random((128, 784), np.float32)
labels = random.integers(0, 10, 128).astype("int32")
big = np.ones((8, 3_276_800), np.float32)
def make(i):
    limit = (6 / (SIZES[i] + SIZES[i + 1])) ** 0.5
    return random.uniform(-limit, limit, (SIZES[i], SIZES[i + 1])).astype("float32"), np.zeros(SIZES[i + 1], "float32")
def rate(step):
    for _ in range(3): float(step())
    start = time.perf_counter()
    for _ in range(STEPS): float(step())
    return STEPS / (time.perf_counter() - start)
def clock(call):
    found = []
    for _ in range(5):
        start = time.perf_counter()
        call()
        found.append(1e3 * (time.perf_counter() - start))
    return sorted(found)[2]
SPECS = ((None, "model"), ("model", None), (None, None))
"""

PROGRAMS = {
    OURS: """
import jax, jax.numpy as jnp
from hocket import mesh
from hocket.mesh import DVariable, Layout, UNSHARDED
def measure(dims):
    grid = mesh.create_mesh(dims)
    pick = lambda name: name if name in dict(dims) else UNSHARDED
    variables = []
    for i, spec in enumerate(SPECS):
        layout = Layout([pick(name) for name in spec], grid)
        kernel, bias = make(i)
        variables += [DVariable(kernel, layout), DVariable(bias, layout.delete([0]))]
    def compute(x, y):
        for i in range(3):
            x = x @ variables[2 * i] + variables[2 * i + 1]
            x = x.clip(0) if i < 2 else x
        return -jnp.take_along_axis(jax.nn.log_softmax(x.native), y.native[:, None], axis=1).mean()
    @mesh.function(variables=variables, donate=True)
    def take_step(x, y):
        loss, slopes = mesh.value_and_gradients(compute, variables, x, y)
        for one, slope in zip(variables, slopes): one.assign_sub(RATE * slope)
        return loss
    rows, ids = Layout(["batch", UNSHARDED], grid), Layout(["batch"], grid)
    return rate(lambda: take_step(mesh.copy_to_mesh(images, rows), mesh.copy_to_mesh(labels, ids)))
found = [measure([("batch", 8)]), measure([("batch", 2), ("model", 4)])]
grid = mesh.create_mesh([("batch", 8)])
layout = Layout(["batch", UNSHARDED], grid)
parts = [big[i : i + 1] for i in range(8)]
packed = mesh.pack(parts, layout)
found.append(clock(lambda: jax.block_until_ready(mesh.pack(parts, layout).native)))
found.append(clock(lambda: [np.array(part) for part in mesh.unpack(packed)]))
print(json.dumps(found))
""",
    PLAIN: """
import jax, jax.numpy as jnp
jax.config.update("jax_num_cpu_devices", 8)
from jax.sharding import Mesh, NamedSharding, PartitionSpec
def measure(dims):
    names = [name for name, _ in dims]
    grid = Mesh(np.array(jax.devices()).reshape([size for _, size in dims]), names)
    pick = lambda name: name if name in names else None
    place = lambda array, *spec: jax.device_put(array, NamedSharding(grid, PartitionSpec(*map(pick, spec))))
    params = []
    for i, spec in enumerate(SPECS):
        kernel, bias = make(i)
        params += [place(kernel, *spec), place(bias, spec[1])]
    shardings = [one.sharding for one in params]
    def compute(params, x, y):
        for i in range(3):
            x = x @ params[2 * i] + params[2 * i + 1]
            x = x.clip(0) if i < 2 else x
        return -jnp.take_along_axis(jax.nn.log_softmax(x), y[:, None], axis=1).mean()
    def take_step(params, x, y):
        loss, slopes = jax.value_and_grad(compute)(params, x, y)
        return loss, [one - RATE * slope for one, slope in zip(params, slopes)]
    take_step = jax.jit(take_step, donate_argnums=0, out_shardings=(None, shardings))
    def step():
        nonlocal params
        loss, params = take_step(params, place(images, "batch", None), place(labels, "batch"))
        return loss
    return rate(step)
print(json.dumps([measure([("batch", 8)]), measure([("batch", 2), ("model", 4)])]))
""",
    TENSORFLOW: """
import tensorflow as tf
from tensorflow.experimental import dtensor
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 8
)
def measure(dims):
    grid = dtensor.create_mesh(dims, devices=[f"CPU:{i}" for i in range(8)])
    pick = lambda name: name if name in dict(dims) else dtensor.UNSHARDED
    variables = []
    for i, spec in enumerate(SPECS):
        layout = dtensor.Layout([pick(name) for name in spec], grid)
        for array, one in zip(make(i), (layout, layout.delete([0]))):
            variables.append(dtensor.DVariable(dtensor.relayout(dtensor.copy_to_mesh(
                tf.constant(array), dtensor.Layout.replicated(grid, array.ndim)), one)))
    @tf.function
    def take_step(x, y):
        with tf.GradientTape() as tape:
            for i in range(3):
                x = tf.matmul(x, variables[2 * i]) + variables[2 * i + 1]
                x = tf.nn.relu(x) if i < 2 else x
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=x))
        for one, slope in zip(variables, tape.gradient(loss, variables)): one.assign_sub(RATE * slope)
        return loss
    count = dict(dims)["batch"]
    rows, ids = dtensor.Layout(["batch", dtensor.UNSHARDED], grid), dtensor.Layout(["batch"], grid)
    def spread(array, layout):
        parts = tf.split(tf.constant(array), count)
        return dtensor.pack([part for part in parts for _ in range(8 // count)], layout)
    return rate(lambda: take_step(spread(images, rows), spread(labels, ids)))
print(json.dumps([measure([("batch", 8)]), measure([("batch", 2), ("model", 4)])]))
""",
    COPY: """
parts = [big[i : i + 1] for i in range(8)]
copy = lambda: [part.copy() for part in parts]
copy()
print(json.dumps([clock(copy)] * 2))
""",
}


def measure(side: str, settings: Settings) -> list[float | None]:
    """Return a side's figures, one a row; None where it has none."""
    found: dict[Row, float] = {}
    if side != GLOO and any(map(settings.wants, JAX_ROWS)):
        figures = run(COMMON + PROGRAMS.get(side, PROGRAMS[OURS]), side, settings)
        found |= dict(zip((PACK, UNPACK) if side == COPY else JAX_ROWS, figures, strict=False))
    if side not in (PLAIN, TENSORFLOW, COPY) and any(map(settings.wants, TORCH_ROWS)):
        program = _mesh_torch.COMMON + (_mesh_torch.GLOO if side == GLOO else _mesh_torch.OURS)
        found |= dict(zip(TORCH_ROWS, run(program, side, settings), strict=True))
    return [found.get(row) for row in ROWS]


def run(program: str, side: str, settings: Settings) -> list[float]:
    """Run a program in a process of its own, and return the figures that it prints."""
    command = [sys.executable, "-c", program, "5" if settings.quick else "100"]
    environment = {**build_environment(side, settings), "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=environment)
    if done.returncode:
        raise RuntimeError(f"ended with status {done.returncode}: {done.stderr[-500:]}")
    figures: list[float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main() -> int:
    settings = parse_settings(__doc__.splitlines()[0], rounds=5, peers=(PLAIN, TENSORFLOW, COPY, GLOO))
    results = take_turns(ROWS, settings, lambda side: measure(side, settings))
    if results.rows:
        show(results, settings, title="Meshes")
    return results.exit_status


if __name__ == "__main__":
    sys.exit(main())
