"""A framework in one small file: linear models of numpy arrays, and stochastic gradient descent.

It has every strategy and every feature of the matrix of frameworks, from the base of frameworks on the host, the sample
ledger and the rank's session.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from hocket import ps, train
from hocket.data import loader
from hocket.train import strategies
from hocket.train.frameworks import host
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
        gradients = [rows.T @ errors / len(rows), errors.mean(0)]
        shared = host.share_gradients(self.runtime, self, gradients, self.lr, num_rows)
        for parameter, gradient in zip((self.kernel, self.bias), shared, strict=False):
            parameter[...] = parameter - np.float32(self.lr) * gradient
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


class Framework(host.HostFramework):
    """numpy, as training needs it."""

    name = "numpy"

    def convert_optimizer(self, optimizer: Any, parameter: Any) -> ps.Optimizer:
        if optimizer != "sgd":
            raise ValueError(f"Servers have no {optimizer!r} of this framework. Use 'sgd'.")
        return ps.SGD(lr=1.0)

    def seed(self, seed: int) -> None:
        """numpy is seeded already."""


FRAMEWORK: Final = Framework()


def prepare(model: Model) -> Model:
    """Have a model trained by all ranks, from rank 0's parameters."""
    model.runtime = FRAMEWORK.prepare(model)
    return model


class NumpyTrainer(train.DataParallelTrainer):
    """The entry."""

    def __init__(self, function: Any, *, strategy: strategies.Strategy | None = None, **options: Any) -> None:
        whole = hosting.add_strategy(function, strategy, FRAMEWORK.use_strategy)
        super().__init__(whole, backend_config=FRAMEWORK.build_config(), **options)
