"""A framework in one small file: linear models of numpy arrays, and stochastic gradient descent.

It stands on what every framework stands on: the contract of frameworks, the ranks' collectives (`hocket.train.world`),
strategies on host arrays, the sample ledger and the rank's session. So it has each strategy and each feature; the
matrix of frameworks has a row for each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from hocket import ps, train
from hocket.data import loader
from hocket.train import strategies, world
from hocket.train.frameworks import contract, rank_states
from hocket.train.rank import worker_session
from hocket.train.strategies import Array, hosting


@dataclass
class Model(strategies.HostModel):
    """A softmax regression, and its optimizer."""

    kernel: Array
    bias: Array
    lr: float
    count: int = 0
    """Steps that were taken."""
    runtime: strategies.StrategyRuntime = field(default_factory=strategies.StrategyRuntime)

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        return [self.kernel.shape, self.bias.shape]

    def read(self) -> list[Array]:
        return [self.kernel.copy(), self.bias.copy()]

    def write(self, arrays: Sequence[Array]) -> None:
        self.kernel, self.bias = (np.array(array, np.float32) for array in arrays)

    def list_rules(self) -> list[tuple[str, ps.Optimizer]]:
        return [(name, ps.SGD(lr=1.0)) for name in ("kernel", "bias")]

    @property
    def steps_taken(self) -> int:
        return self.count

    def step(self, rows: Array, labels: Array, num_rows: int) -> None:
        """Take a step of the mean cross-entropy with all ranks' rows. `num_rows` of this rank's rows count."""
        logits = rows @ self.kernel + self.bias
        errors = np.exp(logits - logits.max(1, keepdims=True))
        errors /= errors.sum(1, keepdims=True)
        errors[np.arange(len(labels)), labels] -= 1
        self.take(rows, errors, num_rows)

    def take(self, rows: Array, errors: Array, num_rows: int) -> None:
        """Take a step against the derivatives of each row's loss by its outputs."""
        flat = strategies.flatten_gradients([rows.T @ errors / len(rows), errors.mean(0)])
        if self.runtime.takes_steps:
            self.runtime.choose([0, 1])
            self.runtime.take_step(flat, self.lr, counts=num_rows > 0)
            self.write_flat(flat[:-1])
        else:
            if self.runtime.averages_gradients:
                self.runtime.average(flat, num_rows)
            self.write_flat(self.read_flat() - np.float32(self.lr) * flat[:-1])
        self.count += 1
        self.runtime.after_steps(self, 1)


class Rows(loader.WeighedLoader):
    """This rank's batches of arrays."""

    def __init__(
        self, arrays: Sequence[Array], batch_size: int, name: str | None = None, *, shuffle: bool = False
    ) -> None:
        session = worker_session.get_session("rows")
        place, self._arrays = (session.info.rank, session.info.world_size), arrays
        cursor = loader.build_cursor("The arrays", len(arrays[0]), batch_size, *place, shuffle=shuffle)
        session.follow(cursor, name, "Rows")
        self._cursor = cursor

    def __iter__(self) -> Iterator[list[Array]]:
        number, parts = self._get_cursor("__iter__").begin()
        chosen = ((part, part.indices if len(part.indices) else [part.filler]) for part in parts)
        batches = ((part, [array[rows] for array in self._arrays]) for part, rows in chosen)
        begun = loader.Loop(self._get_cursor("__iter__"), number, batches)
        return self._hand_out(lambda: begun)


class Framework(contract.Framework[rank_states.RuntimeState]):
    """numpy, as training needs it."""

    name = "numpy"

    def open(self, session: Any, strategy: strategies.Strategy, caller: str) -> rank_states.RuntimeState:
        return rank_states.RuntimeState(world.get_world(caller), strategy)

    def to_host(self, values: Any, caller: str) -> Array:
        if not isinstance(values, np.ndarray | np.generic):
            raise TypeError(f"{caller} takes an array, but received {values!r}. Write np.array(values).")
        return np.asarray(values)

    def from_host(self, array: Array) -> Array:
        return array.copy()

    def cross(self, arrays: Sequence[Array], change: contract.Change) -> list[Array]:
        found = [array.copy() for array in arrays]
        change([array.reshape(-1) for array in found])
        return found

    def list_weights(self, model: Model) -> list[tuple[str, Array]]:
        return [("kernel", model.kernel.copy()), ("bias", model.bias.copy())]

    def set_weights(self, model: Model, arrays: Sequence[Array]) -> Model:
        model.write(arrays)
        return model

    def convert_optimizer(self, optimizer: Any, parameter: Any) -> ps.Optimizer:
        if optimizer != "sgd":
            raise ValueError(f"Servers have no {optimizer!r} of this framework. Use 'sgd'.")
        return ps.SGD(lr=1.0)

    def seed(self, seed: int) -> None:
        """numpy is seeded already."""


FRAMEWORK: Final = Framework()


def prepare(model: Model) -> Model:
    """Have a model trained by all ranks, from rank 0's parameters."""
    joined = world.get_world("numpy")
    flat = model.read_flat()
    joined.broadcast(flat)
    model.write_flat(flat)
    model.runtime = FRAMEWORK.get_state("prepare").runtime.open_next()
    model.runtime.begin(model)
    return model


class NumpyTrainer(train.DataParallelTrainer):
    """The entry."""

    def __init__(self, function: Any, *, strategy: strategies.Strategy | None = None, **options: Any) -> None:
        whole = hosting.add_strategy(function, strategy, FRAMEWORK.use_strategy)
        super().__init__(whole, backend_config=FRAMEWORK.build_config(), **options)
