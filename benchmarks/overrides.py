"""What a framework's own implementation of a strategy gains over the one on host arrays, which all frameworks share.

python benchmarks/overrides.py

A network of 1.3 million parameters, two ranks. Sides take turns; each run is one `fit`, and the time of a step is the
median of rank 0's steps. A subclass of a strategy has no override, so it runs on host arrays.
"""

import argparse
import hashlib
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from _harness import describe_machine

import hocket
from hocket import train
from hocket.train import strategies

WIDTH, ROWS = 512, 64
WARM_STEPS = 16


class HostLocalSGD(strategies.LocalSGD):  # type: ignore[misc]  # a subclass, to leave out its overrides
    """`LocalSGD` on host arrays."""


STRATEGIES: dict[str, Callable[[type[strategies.LocalSGD]], strategies.Strategy]] = {
    "LocalSGD(1)": lambda kind: kind(1),
    "LocalSGD(8)": lambda kind: kind(8),
    "LocalSGD(8, outer=Nesterov())": lambda kind: kind(8, outer=strategies.Nesterov()),
}


def train_torch(config: dict[str, Any]) -> tuple[float, str]:
    """Train, and return the seconds of a step and a digest of the weights."""
    import torch

    from hocket.train.torch import prepare_model, prepare_optimizer, synchronize

    torch.manual_seed(0)
    layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(5)]
    model = prepare_model(torch.nn.Sequential(*layers))
    optimizer = prepare_optimizer(torch.optim.SGD(model.parameters(), lr=0.01))
    generator = torch.Generator().manual_seed(train.get_context().get_world_rank())
    seconds = []
    for _ in range(WARM_STEPS + config["steps"]):
        inputs = torch.rand(ROWS, WIDTH, generator=generator)
        started = time.perf_counter()
        loss = (model(inputs) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seconds.append(time.perf_counter() - started)
    synchronize()
    weights = np.concatenate([p.detach().numpy().reshape(-1) for p in model.parameters()])
    return statistics.median(seconds[WARM_STEPS:]), hashlib.sha256(weights.tobytes()).hexdigest()


def train_jax(config: dict[str, Any]) -> tuple[float, str]:
    """Train, and return the seconds of a step and a digest of the weights."""
    import jax
    import jax.numpy as jnp
    import optax

    from hocket.train.jax import prepare_optimizer, prepare_params, synchronize

    keys = jax.random.split(jax.random.key(0), 5)
    params = prepare_params([jax.random.normal(key, (WIDTH, WIDTH)) / WIDTH**0.5 for key in keys])
    optimizer = prepare_optimizer(optax.sgd(0.01))
    state = optimizer.init(params)

    def compute_loss(params: Any, inputs: Any) -> Any:
        for weights in params:
            inputs = inputs @ weights
        return jnp.mean(inputs**2)

    @jax.jit  # type: ignore[untyped-decorator]
    def step(params: Any, state: Any, inputs: Any) -> Any:
        updates, state = optimizer.update(jax.grad(compute_loss)(params, inputs), state, params)
        return optax.apply_updates(params, updates), state

    draws = np.random.default_rng(train.get_context().get_world_rank())
    seconds = []
    for _ in range(WARM_STEPS + config["steps"]):
        inputs = draws.random((ROWS, WIDTH), np.float32)
        started = time.perf_counter()
        params, state = jax.block_until_ready(step(params, state, inputs))
        seconds.append(time.perf_counter() - started)
    params, state = synchronize(params, state)
    weights = np.concatenate([np.asarray(one).reshape(-1) for one in params])
    return statistics.median(seconds[WARM_STEPS:]), hashlib.sha256(weights.tobytes()).hexdigest()


def measure(framework: str, strategy: strategies.Strategy, steps: int) -> tuple[float, str]:
    """Return the milliseconds of a step of one run, and the digest of its weights."""
    from hocket.train.jax import JaxTrainer
    from hocket.train.torch import TorchTrainer

    trainer, function = (TorchTrainer, train_torch) if framework == "torch" else (JaxTrainer, train_jax)
    with tempfile.TemporaryDirectory(prefix="hocket-bench-") as folder:
        result = trainer(
            function,
            train_loop_config={"steps": steps},
            strategy=strategy,
            scaling_config=train.ScalingConfig(num_workers=2),
            run_config=train.RunConfig(storage_path=folder),
        ).fit()
    seconds, digest = result.return_value
    return seconds * 1e3, digest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=96)
    args = parser.parse_args()
    kinds: dict[str, type[strategies.LocalSGD]] = {"override": strategies.LocalSGD, "host arrays": HostLocalSGD}
    print(describe_machine())
    print("| framework | strategy | override, ms a step | host arrays, ms | host / override | same bits |")
    print("|---|---|--:|--:|--:|---|")
    with hocket.init(num_cpus=2, logging_level="ERROR"):
        for framework in ("torch", "jax"):
            for name, build in STRATEGIES.items():
                found: dict[str, list[float]] = {side: [] for side in kinds}
                digests: dict[str, str] = {}
                for number in range(args.rounds):
                    for side in sorted(kinds, reverse=bool(number % 2)):
                        milliseconds, digests[side] = measure(framework, build(kinds[side]), args.steps)
                        found[side].append(milliseconds)
                own, host = (statistics.median(found[side]) for side in kinds)
                same = "yes" if len(set(digests.values())) == 1 else "no"
                print(f"| {framework} | {name} | {own:.3f} | {host:.3f} | {host / own:.2f}x | {same} |", flush=True)


if __name__ == "__main__":
    main()
