"""Programs of the ranks in `hocket.testing.strategy_contract`: a minimal framework of linear models."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, final

import numpy as np

from hocket import ps
from hocket.train import strategies
from hocket.train.rank import world
from hocket.train.strategies import Array, HostModel, Ranks, Strategy, StrategyRuntime

FEATURES: Final = 4
COUNT: Final = FEATURES + 1
"""The number of a model's parameters."""

STEPS: Final = 7
BATCH: Final = 8
RATE: Final = 0.05

FILLED: Final = [0.5, -0.25, 4.0, 1.0, -2.0]
"""Gradients of one rank, while the other rank has no rows. bfloat16 can hold them exactly."""

_here = threading.local()


@contextlib.contextmanager
def use_strategy(strategy: Strategy) -> Iterator[None]:
    """Open a strategy in the calling rank during the block."""
    joined = world.get_world("testing")
    later: Any = _NotYet(joined)
    opened = strategy.open(Ranks(joined.rank, joined.size, later if joined.size > 1 else None))
    assert isinstance(opened, StrategyRuntime), f"open() must return a StrategyRuntime, but returned {opened!r}"
    later.is_open = True
    _here.runtime = opened
    try:
        yield
    finally:
        _here.runtime = None
        opened.close()


@final
class _NotYet:
    """The ranks' collectives, with a check that `Strategy.open` keeps them but does not use them.

    Args:
        joined: The collectives.
    """

    def __init__(self, joined: strategies.Collectives) -> None:
        self._joined = joined
        self.is_open = False

    def __getattr__(self, name: str) -> object:
        assert self.is_open or name in ("rank", "size"), f"open() must not use collectives yet, but used {name!r}"
        return getattr(self._joined, name)


@final
class GatherResults:
    """A program that returns the values of all ranks.

    Args:
        function: The program of one rank.
    """

    def __init__(self, function: Callable[[dict[str, object]], object]) -> None:
        self._function = function
        functools.update_wrapper(self, function)

    def __call__(self, config: dict[str, object]) -> list[object]:
        """Run the program, and return its values by rank."""
        found = self._function(config)
        return world.get_world("testing").all_gather_object(found)


@final
class Model(HostModel):
    """A model's parameters, for plain stochastic gradient descent.

    Args:
        arrays: The parameters.
    """

    def __init__(self, arrays: Sequence[Array]) -> None:
        self.arrays = [array.copy() for array in arrays]
        self.count = 0

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The parameters' shapes."""
        return [array.shape for array in self.arrays]

    def read(self) -> list[Array]:
        """Return copies of the parameters."""
        return [array.copy() for array in self.arrays]

    def write(self, arrays: Sequence[Array]) -> None:
        """Set the parameters."""
        for mine, given in zip(self.arrays, arrays, strict=True):
            assert mine.shape == given.shape
            mine[...] = given

    def list_rules(self) -> list[tuple[str, ps.Optimizer]]:
        """Return each parameter's name, and a server's optimizer for it."""
        return [(f"parameter{number}", ps.SGD(lr=1.0)) for number in range(len(self.arrays))]

    @property
    def steps_taken(self) -> int:
        """The number of steps that were taken."""
        return self.count

    def show(self) -> bytes:
        """Return the parameters' bytes."""
        return b"".join(array.tobytes() for array in self.arrays)


@final
class Training:
    """A model and its strategy in the calling rank, driven as by a framework.

    Args:
        model: The model to train, from rank 0's parameters.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.world = world.get_world("testing")
        self.runtime: StrategyRuntime = _here.runtime.open_next()
        if not self.runtime.has_begun:
            flat = model.read_flat()
            self.world.broadcast(flat)
            model.write_flat(flat)
        self.runtime.begin(model)

    def step(self, gradients: Sequence[Array], rows: float, numbers: Sequence[int] | None = None) -> None:
        """Take a step.

        Args:
            gradients: The gradients of all parameters.
            rows: The number of rows that the gradients are the mean of.
            numbers: The indices of parameters that have gradients. Default: all.
        """
        numbers = range(len(gradients)) if numbers is None else numbers
        mine = [self.model.arrays[number] for number in numbers]
        flat = strategies.flatten_gradients([gradients[number] for number in numbers])
        dtype = flat.dtype
        if self.runtime.takes_steps:
            self.runtime.choose(numbers)
            self.runtime.take_step(flat, RATE, counts=rows > 0)
        elif self.runtime.averages_gradients:
            self.runtime.average(flat, rows)
        assert flat.dtype == dtype
        for array, part in zip(mine, strategies.unflatten(flat[:-1], [one.shape for one in mine]), strict=True):
            array[...] = part if self.runtime.takes_steps else array - array.dtype.type(RATE) * part
        flat.fill(np.nan)  # a framework may use this memory for the next step, so a strategy must not keep it
        self.model.count += 1
        self.runtime.after_steps(self.model, 1)


def build_model(dtype: str = "float32", seed: int = 0) -> Model:
    """Return an untrained linear model."""
    return Model([np.full((FEATURES, 1), 0.1 * seed, dtype), np.zeros(1, dtype)])


@functools.cache
def make_rows(step: int, rank: int) -> tuple[Array, Array]:
    """Return a rank's rows in a step, and their labels."""
    rows = np.random.default_rng(1000 * step + rank).normal(size=(BATCH, FEATURES))
    return rows, rows @ np.arange(1.0, FEATURES + 1)[:, None] + 0.5


def compute_gradients(model: Model, step: int, rank: int) -> list[Array]:
    """Return the gradients of the mean squared error."""
    rows, labels = (array.astype(model.arrays[0].dtype) for array in make_rows(step, rank))
    kernel, bias = model.arrays
    errors = rows @ kernel + bias - labels
    return [2 * rows.T @ errors / len(rows), 2 * errors.mean(0)]


def compute_loss(shown: bytes | None) -> float:
    """Return the loss of a model, given by its bytes, on rows that no rank has seen. None: an untrained model."""
    flat = np.frombuffer(shown, np.float32) if shown is not None else strategies.flatten(build_model().arrays)
    rows, labels = make_rows(STEPS + 1, 0)
    return float(np.square(rows @ flat[:FEATURES, None] + flat[FEATURES] - labels).mean())


def train_plainly() -> bytes:
    """Return the bytes of a model that one rank trains without a strategy."""
    model = build_model()
    for step in range(STEPS):
        for array, part in zip(model.arrays, compute_gradients(model, step, 0), strict=True):
            array[...] = array - array.dtype.type(RATE) * part
    return model.show()


# --- programs --------------------------------------------------------------------------------------------------------


def train_model(config: dict[str, Any]) -> bytes:
    """Train a model, and return its bytes."""
    rank = world.get_world("testing").rank
    model = build_model(config.get("dtype", "float32"), config.get("seed", 0))
    model.write_flat(model.read_flat() + config.get("spread", 0.0) * rank)
    mine = Training(model)
    for step in range(config.get("steps", STEPS)):
        if step in config.get("epochs", ()):
            mine.runtime.begin_epoch(model)
        mine.step(compute_gradients(model, step, config.get("rows_of", [0, 1, 2])[rank]), BATCH)
    mine.runtime.synchronize(model)
    return model.show()


def synchronize_again(config: dict[str, object]) -> tuple[bytes, bytes]:
    """Synchronize twice, and return the model's bytes after each time."""
    rank = world.get_world("testing").rank
    mine = Training(build_model())
    for step in range(STEPS):
        mine.step(compute_gradients(mine.model, step, rank), BATCH)
    mine.runtime.synchronize(mine.model)
    once = mine.model.show()
    mine.runtime.synchronize(mine.model)
    return once, mine.model.show()


def train_nothing(config: dict[str, object]) -> bytes:
    """Train a model without parameters."""
    mine = Training(Model([]))
    for _ in range(STEPS):
        mine.step([], BATCH)
    mine.runtime.synchronize(mine.model)
    return mine.model.show()


def train_two(config: dict[str, object]) -> tuple[bytes, bytes]:
    """Train two models by turns, and return the bytes of both."""
    rank = world.get_world("testing").rank
    both = [Training(build_model()), Training(build_model(seed=1))]
    for step in range(STEPS):
        for mine in both:
            mine.step(compute_gradients(mine.model, step, rank), BATCH)
    for mine in both:
        mine.runtime.synchronize(mine.model)
    return both[0].model.show(), both[1].model.show()


def average_with_a_filler(config: dict[str, object]) -> list[float] | None:
    """Average gradients of which only rank 0's count."""
    mine = Training(build_model())
    if mine.runtime.takes_steps or not mine.runtime.averages_gradients:
        return None
    filler = mine.world.rank == 1
    flat = np.array([np.nan] * (COUNT + 1) if filler else [*FILLED, 0.0], np.float32)
    mine.runtime.average(flat, 0 if filler else BATCH)
    return [float(value) for value in flat[:-1]]


def average_unequal_rows(config: dict[str, object]) -> list[float] | None:
    """Average gradients. Rank 1's are the mean of three times as many rows as rank 0's."""
    mine = Training(build_model())
    if mine.runtime.takes_steps or not mine.runtime.averages_gradients:
        return None
    rank = mine.world.rank
    flat = np.array([*(number * (-1) ** rank for number in FILLED), 0.0], np.float32)
    mine.runtime.average(flat, BATCH * 3**rank)
    return [float(value) for value in flat[:-1]]


def step_with_a_filler(config: dict[str, object]) -> tuple[bytes, bytes] | None:
    """Take steps that count, then a step in which no gradients count; return the parameters before and after it."""
    mine = Training(build_model())
    if not mine.runtime.takes_steps:
        return None
    rank = mine.world.rank
    for step in range(2):
        mine.step(compute_gradients(mine.model, step, rank), BATCH)
    mine.runtime.synchronize(mine.model)
    before = mine.model.show()
    mine.step([np.full_like(array, np.nan) for array in mine.model.arrays], 0)
    mine.runtime.synchronize(mine.model)
    return before, mine.model.show()


def choose_some(config: dict[str, object]) -> list[list[bytes]] | None:
    """Step the second parameter alone, then both; return the bytes of each parameter before and after."""
    mine = Training(build_model())
    if not mine.runtime.takes_steps:
        return None
    found = [[array.tobytes() for array in mine.model.arrays]]
    for step, numbers in enumerate(([1], [0, 1])):
        mine.step(compute_gradients(mine.model, step, 0), BATCH, numbers)
        found.append([array.tobytes() for array in mine.model.arrays])
    mine.runtime.synchronize(mine.model)
    return found


def fail_in_one(config: dict[str, object]) -> bytes:
    """Train a model; one rank fails in the middle."""
    rank = world.get_world("testing").rank
    mine = Training(build_model())
    for step in range(STEPS):
        if step == 2 and rank == config["failing"]:
            raise KeyError("on purpose")
        mine.step(compute_gradients(mine.model, step, rank), BATCH)
    mine.runtime.synchronize(mine.model)
    mine.world.barrier()
    return mine.model.show()


def do_nothing(config: dict[str, object]) -> None:
    """Prepare nothing."""
