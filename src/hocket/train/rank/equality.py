"""The divergence check: digests show whether ranks have the same model, where they should.

A program may train a different model in each rank without an error. Examples: no collective averages the gradients of a
layer, each rank decides the learning rate by its own loss, only one rank loads weights. So each rank sends a "look", a
few bytes for each tensor, to the driver: at each report, at the end of each epoch, and at the end of the training
function. The driver compares looks (`hocket.train.run.divergence`) and ends the run at the first difference.

Guarantees: a look is no collective and waits for no other rank, so a program gets no new barrier. Looks at different
moments are not compared. Equal bytes never look unequal. Unequal bytes look equal once in four thousand million.

A look also has four values of each tensor. Their distance distinguishes a wrong exchange from the rounding of unlike
processors.
"""

from __future__ import annotations

import contextlib
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias, final

import numpy as np
import numpy.typing as npt

SAMPLES: Final = 4
"""The number of values of each tensor in a look."""

BATCHES: Final = 3
"""The number of each rank's first batches to compare."""

_DIRECT_BYTES: Final = 8192
_ROW_BYTES: Final = 509 * 8  # 509 words, a prime: rows of a tensor that change places then change the sums


class Equal(NamedTuple):
    """A tensor that should be equal in all ranks, as a framework passes it to the check."""

    kind: str
    """``"parameter"``, ``"buffer"`` or ``"optimizer"``: the key of its possible causes."""
    name: str
    """The name in messages: ``"0.weight"``, ``"exp_avg of 0.weight"``."""
    array: npt.NDArray[Any]
    """The values, or a device's digest of them; not kept."""
    part: str = ""
    """The shard's name, if the tensor is sharded over the ranks. Ranks with the same shard should be equal."""
    sample: npt.NDArray[Any] | None = None
    """Some of the values, if `array` is not the values themselves."""


Source: TypeAlias = Callable[[], Iterable[Equal]]
"""Returns the tensors that should be equal in all ranks now; none where the strategy lets the ranks differ now."""

Key: TypeAlias = tuple[str, str, str]
"""Kind, name and part of a tensor."""


@dataclass(frozen=True, slots=True)
class Look:
    """The digests of one rank's tensors at one moment."""

    place: tuple[str, int]
    """The moment, the same in all ranks: ``("report", 3)``."""
    steps: int
    """The number of steps of the rank's optimizers."""
    keys: tuple[Key, ...] | None
    """The tensors; None if they are the same as in the rank's last look."""
    digests: bytes
    """A uint32 for each tensor."""
    samples: bytes
    """`SAMPLES` float64 for each tensor."""
    causes: Mapping[str, str] | None
    """By kind, why a tensor may differ, and what to do. None if `keys` is None."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The first batches that one rank has computed with. Ranks with the same batches train on the same rows."""

    digests: tuple[int, ...]
    """The digest of each batch."""


Item: TypeAlias = Look | Rows
"""An item that travels to the driver."""


def compute_digest(array: npt.NDArray[Any]) -> int:
    """Return the digest of an array's bytes: a CRC-32.

    Example:
        >>> import numpy as np
        >>> from hocket.train.rank import equality
        >>> values = np.arange(10_000.0)
        >>> equality.compute_digest(values) == equality.compute_digest(values.copy())
        True
        >>> equality.compute_digest(values) == equality.compute_digest(values[::-1])
        False
    """
    if array.nbytes <= _DIRECT_BYTES and array.flags.c_contiguous and array.dtype.kind in "fiub":
        return zlib.crc32(array.data)  # most tensors of small models
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    if flat.nbytes <= _DIRECT_BYTES:
        return zlib.crc32(flat.data)
    # The CRC-32 of the sum of the rows, because numpy adds 16 GB a second here, and zlib reads 2 (measured).
    whole = flat.nbytes // _ROW_BYTES * _ROW_BYTES
    rows = flat[:whole].view(np.uint64).reshape(-1, _ROW_BYTES // 8)
    return zlib.crc32(flat[whole:].data, zlib.crc32(np.add.reduce(rows, axis=0).data))


def take_sample(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a few values of an array, evenly spaced."""
    flat = array.reshape(-1)
    return flat[:: max(1, -(-flat.size // SAMPLES))]


@final
class Watch:
    """A rank's side of the divergence check.

    Args:
        every_n_steps: The number of optimizer steps between looks, beside those at reports and epochs; 0: no others.
        send: Sends looks to the driver; None if nothing is to be compared.
    """

    def __init__(self, every_n_steps: int, send: Callable[[Item], None] | None) -> None:
        self._every = every_n_steps
        self._send = send
        self._sources: list[tuple[Source, Mapping[str, str]]] = []
        self._steps = 0
        self._looked = 0
        """The number of steps at the last look."""
        self._ends = self._epochs = 0
        self._ended_epoch: int | None = None
        """The epoch that has ended, if there was no look since."""
        self._keys: tuple[Key, ...] = ()
        self._lock = threading.Lock()
        self._rows: list[int] = []

    def add(self, source: Source, causes: Mapping[str, str]) -> None:
        """Compare a framework's tensors from now on.

        Args:
            source: Returns the tensors.
            causes: By kind of tensor, why it may differ and what to do, for the error.
        """
        self._sources.append((source, causes))

    def count_step(self) -> None:
        """Note that an optimizer has taken a step."""
        self._steps += 1
        if self._ended_epoch is not None:
            self.look(f"epoch {self._ended_epoch}", self._steps)
        elif self._every and self._steps % self._every == 0:
            self.look("step", self._steps)

    def take_rows(self, batch: npt.NDArray[Any]) -> bool:
        """Take one of the first batches that the rank trains with; return whether more are wanted.

        Called only where ranks should have different batches."""
        self._rows.append(compute_digest(batch))
        is_enough = len(self._rows) == BATCHES
        if self._send is not None and is_enough:
            self._send(Rows(tuple(self._rows)))
        return self._send is not None and not is_enough

    def end(self, *, is_counted: bool = True) -> None:
        """Send a look at the end of the training function, or of a part of it with a strategy of its own.

        Args:
            is_counted: Whether all steps were counted. If so, there is no look without a new step.
        """
        self._ends += 1  # a rank may come to the next end before another one comes to this one
        if self._steps > self._looked or not is_counted:
            self.look("end", self._ends)

    def end_epoch(self, number: int) -> None:
        """Note the end of an epoch. The look comes with the report that usually follows, or after the next step.

        The number of steps is part of the moment, because a rank may have extra loops, as for an evaluation."""
        if self._steps > self._looked:
            self._ended_epoch = number

    def look_at_epoch(self, number: int) -> None:
        """Send a look at the end of an epoch with the same steps in all ranks.

        The count of epochs is part of the moment: `number` comes again with each fitted model, and a rank may end its
        next epoch before the driver has all looks at this one."""
        self._epochs += 1
        self.look(f"epoch {number}", self._epochs)

    def look(self, kind: str, number: int) -> None:
        """Send a look at the rank's present tensors."""
        with self.take_look(kind, number) as look:
            if look is not None and self._send is not None:
                self._send(look)

    @contextlib.contextmanager
    def take_look(self, kind: str, number: int) -> Iterator[Look | None]:
        """Yield a look at the rank's present tensors, which the caller sends in the block; None if nothing is compared.

        Looks of other threads wait meanwhile: a look without keys has those of the look that was sent before."""
        if self._send is None or not self._sources:
            yield None
            return
        with self._lock:
            self._ended_epoch = None
            keys: list[Key] = []
            digests: list[int] = []
            samples: list[npt.NDArray[Any]] = []
            for source, _ in self._sources:
                for kept, name, array, part, sample in source():
                    keys.append((kept, name, part))
                    digests.append(compute_digest(array))
                    samples.append(take_sample(array) if sample is None else sample)
            self._looked = self._steps
            yield self._pack((kind, number), tuple(keys), digests, samples) if keys else None

    def _pack(
        self,
        place: tuple[str, int],
        keys: tuple[Key, ...],
        digests: Sequence[int],
        samples: Sequence[npt.NDArray[Any]],
    ) -> Look:
        table = np.zeros((len(keys), SAMPLES))
        for row, sample in zip(table, samples, strict=True):
            row[: sample.size] = sample.real
        packed = np.array(digests, np.uint32).tobytes()
        if keys == self._keys:
            return Look(place, self._steps, None, packed, table.tobytes(), None)
        self._keys = keys
        causes = {kind: text for _, causes in self._sources for kind, text in causes.items()}
        return Look(place, self._steps, keys, packed, table.tobytes(), causes)
