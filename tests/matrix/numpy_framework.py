"""A framework in one small file: linear models of numpy arrays, and stochastic gradient descent.

It stands on what every framework stands on: the ranks' collectives (`hocket.train.world`), strategies on host arrays, the sample ledger and the rank's session. So it
has each strategy and each feature; the matrix of frameworks has a row for each.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from hocket import ps, train
from hocket.data import loader
from hocket.train import strategies, world
from hocket.train.frameworks import rank_states, weights
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

    def predict(self, rows: Array) -> Array:
        chosen: Array = (rows @ self.kernel + self.bias).argmax(1)
        return chosen

    def compute_gradients(self, rows: Array, labels: Array) -> Array:
        """Return the gradients of the mean loss, as a strategy takes them."""
        logits = rows @ self.kernel + self.bias
        errors = np.exp(logits - logits.max(1, keepdims=True))
        errors /= errors.sum(1, keepdims=True)
        errors[np.arange(len(labels)), labels] -= 1
        return strategies.flatten_gradients([rows.T @ errors / len(rows), errors.mean(0)])

    def step(self, rows: Array, labels: Array, num_rows: int) -> None:
        """Take a step with the rows of all ranks.

        Args:
            rows: This rank's.
            labels: Theirs.
            num_rows: How many of them count.
        """
        flat = self.compute_gradients(rows, labels)
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
        rank, size = session.info.rank, session.info.world_size
        self._arrays = arrays
        cursor = loader.build_cursor("The arrays", len(arrays[0]), batch_size, rank, size, shuffle=shuffle)
        session.follow(cursor, name, "Rows")
        self._cursor = cursor

    def __iter__(self) -> Iterator[list[Array]]:
        number, parts = self._get_cursor("__iter__").begin()
        batches = ((part, [array[self._choose(part)] for array in self._arrays]) for part in parts)
        begun = loader.Loop(self._get_cursor("__iter__"), number, batches)
        return self._hand_out(lambda: begun)

    @staticmethod
    def _choose(part: Any) -> Any:
        return part.indices if len(part.indices) else np.array([part.filler])


class State:
    """A rank's strategy, at work."""

    def __init__(self, strategy: strategies.Strategy) -> None:
        joined = world.get_world("numpy")
        opened = strategy.open(strategies.Ranks(joined.rank, joined.size, joined))
        assert isinstance(opened, strategies.StrategyRuntime), "this framework has no objects of its own"
        self.runtime = opened

    def close(self) -> None:
        self.runtime.close()


STATES: Final = rank_states.RankStates("numpy", lambda session, strategy, caller: State(strategy))


def use_strategy(strategy: strategies.Strategy) -> contextlib.AbstractContextManager[None]:
    return STATES.use(strategy)


def prepare(model: Model) -> Model:
    """Have a model trained by all ranks, from rank 0's parameters."""
    joined = world.get_world("numpy")
    flat = model.read_flat()
    joined.broadcast(flat)
    model.write_flat(flat)
    model.runtime = STATES.get("prepare").runtime.open_next()
    model.runtime.begin(model)
    return model


def save(model: Model, folder: str | Path) -> None:
    weights.save(folder, [("kernel", model.kernel), ("bias", model.bias)])


def load(model: Model, folder: str | Path) -> None:
    model.write(list(weights.load(folder).values()))


class NumpyTrainer(train.DataParallelTrainer):
    """The entry."""

    def __init__(self, function: Any, *, strategy: strategies.Strategy | None = None, **options: Any) -> None:
        whole = hosting.add_strategy(function, strategy, use_strategy)
        super().__init__(whole, backend_config=world.WorldConfig(), **options)
