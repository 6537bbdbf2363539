"""The net under training: what ranks should have the same of is compared by digest.

A program may train another model in each rank without an error: a layer whose gradients no collective averages, a
learning rate that each rank decides by its own loss, weights that one rank alone loads. So each rank sends a few bytes
a tensor to the driver at each report, at the end of each epoch, and at the end of the training function. The driver
compares them (`hocket.train.run.divergence`) and ends the run at the first difference.

Guarantees: a look waits for nobody and is no collective, so a program gets no barrier that it did not have, and looks
of ranks that look at other moments are left uncompared. Equal bytes never look unequal. Unequal bytes look equal once
in four thousand million.

A digest is a CRC-32, of a tensor of up to 8 KB as it is. A larger one is read as rows of 509 words of 8 bytes that are
added up first, because numpy adds 16 GB a second here and zlib reads 2 (measured). The number of words is a prime, so
that rows which change places change the sums. Beside the digest a look has four of the values: how far apart they are
tells a wrong exchange from the rounding of unlike processors.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias, final

import numpy as np
import numpy.typing as npt

SAMPLES: Final = 4
"""How many values of each tensor a look has."""

BATCHES: Final = 3
"""How many of the first batches of each rank are compared."""

_DIRECT_BYTES: Final = 8192
_ROW_BYTES: Final = 509 * 8


class Equal(NamedTuple):
    """A tensor that other ranks should have the same of, as a framework gives it to the net."""

    kind: str
    """``"parameter"``, ``"buffer"`` or ``"optimizer"``: what the causes are sorted by."""
    name: str
    """What a message calls it: ``"0.weight"``, ``"exp_avg of 0.weight"``."""
    array: npt.NDArray[Any]
    """Its values, or what a device has made of them; not kept."""
    part: str = ""
    """Which part it is of a tensor that is cut over the ranks: ranks of the same part should be equal."""
    sample: npt.NDArray[Any] | None = None
    """Some of its values, if `array` is not the values themselves."""


Source: TypeAlias = Callable[[], Iterable[Equal]]
"""Returns what the other ranks should have the same of now; nothing where the strategy lets the ranks differ now."""

Key: TypeAlias = tuple[str, str, str]
"""Kind, name and part of a tensor."""


@dataclass(frozen=True, slots=True)
class Look:
    """The digests of one rank's tensors at one moment."""

    place: tuple[str, int]
    """The moment, the same in all ranks: ``("report", 3)``."""
    steps: int
    """How many steps the rank's optimizers have taken."""
    keys: tuple[Key, ...] | None
    """The tensors; None if they are those of the rank's look before."""
    digests: bytes
    """A uint32 for each."""
    samples: bytes
    """`SAMPLES` float64 for each."""
    causes: Mapping[str, str] | None
    """By kind, why a tensor may differ, and what to do. With the tensors only."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The first batches that one rank has computed with. Ranks that have the same ones train on the same rows."""

    digests: tuple[int, ...]
    """Of each."""


Item: TypeAlias = Look | Rows
"""What travels to the driver."""


def compute_digest(array: npt.NDArray[Any]) -> int:
    """Return the digest of an array's bytes.

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
    whole = flat.nbytes // _ROW_BYTES * _ROW_BYTES
    rows = flat[:whole].view(np.uint64).reshape(-1, _ROW_BYTES // 8)
    return zlib.crc32(flat[whole:].data, zlib.crc32(np.add.reduce(rows, axis=0).data))


def take_sample(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a few values of an array, evenly spaced."""
    flat = array.reshape(-1)
    return flat[:: max(1, -(-flat.size // SAMPLES))]


@final
class Watch:
    """A rank's side of the net.

    Args:
        every_n_steps: How many steps of optimizers lie between looks beside those at reports and epochs; 0: no others.
        send: Takes looks to the driver; None if nothing is to be compared.
    """

    def __init__(self, every_n_steps: int, send: Callable[[Item], None] | None) -> None:
        self._every = every_n_steps
        self._send = send
        self._sources: list[tuple[Source, Mapping[str, str]]] = []
        self._steps = 0
        self._looked = 0
        """How many steps there were at the last look."""
        self._ends = self._epochs = 0
        self._ended_epoch: int | None = None
        """The epoch that has ended, if nothing was looked at since."""
        self._keys: tuple[Key, ...] = ()
        self._lock = threading.Lock()
        self._rows: list[int] = []

    def add(self, source: Source, causes: Mapping[str, str]) -> None:
        """Have a framework's tensors compared from now on.

        Args:
            source: Returns them.
            causes: By their kind, why they may differ and what to do, for the error.
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
        """Take one of the first batches that the rank trains with, if ranks are to have different ones; return whether
        more are wanted."""
        self._rows.append(compute_digest(batch))
        is_enough = len(self._rows) == BATCHES
        if self._send is not None and is_enough:
            self._send(Rows(tuple(self._rows)))
        return self._send is not None and not is_enough

    def end(self, *, is_counted: bool = True) -> None:
        """Look at what the last steps have made; the training function has returned, or the part of it that has a
        strategy of its own.

        Args:
            is_counted: Whether all steps were counted: then nothing is looked at twice.
        """
        self._ends += 1  # a rank may come to the next end before another one comes to this one
        if self._steps > self._looked or not is_counted:
            self.look("end", self._ends)

    def end_epoch(self, number: int) -> None:
        """Look once more before the epoch is forgotten: at the report that mostly follows, or else after the next step.
        A rank may have loops that others do not have, as for an evaluation, so the steps belong to the moment."""
        if self._steps > self._looked:
            self._ended_epoch = number

    def look_at_epoch(self, number: int) -> None:
        """Look at once at the end of an epoch whose steps all ranks take. Each model that is fitted has a first epoch,
        so the moment is known by how many epochs there were: a rank may come to the next one's end before the driver
        has another rank's look at this one."""
        self._epochs += 1
        self.look(f"epoch {number}", self._epochs)

    def look(self, kind: str, number: int) -> None:
        """Send what the rank has now."""
        if self._send is None or not self._sources:
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
            if keys:
                self._send(self._pack((kind, number), tuple(keys), digests, samples))

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
        is_known, self._keys = keys == self._keys, keys
        causes = {kind: text for _, causes in self._sources for kind, text in causes.items()}
        packed = np.array(digests, np.uint32).tobytes()
        return Look(
            place, self._steps, None if is_known else keys, packed, table.tobytes(), None if is_known else causes
        )
