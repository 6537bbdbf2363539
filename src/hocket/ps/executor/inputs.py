"""The coordinator's side of the datasets and values that workers have for themselves.

Each dataset or value has a number, and a *source* that makes it in a worker (`streams`). The user's iterator or value
has a holder, which goes with its last copy; then the coordinator makes the workers drop their objects. The coordinator
remembers the passes over datasets in the order in which they began. So a checkpoint can hold the position of each pass,
and a resumed program continues from there.
"""

from __future__ import annotations

import collections
import itertools
import weakref
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final, final

from hocket.core import actor, api
from hocket.engine import contract
from hocket.ps import errors
from hocket.ps.executor import streams
from hocket.ps.stores import memory


@final
class Inputs:
    """All datasets and values of a coordinator. Changes under the scheduler's lock, except for `released`."""

    def __init__(self) -> None:
        self.sources: Final[dict[int, tuple[contract.AnyRef, memory.Memory | None]]] = {}
        """The source of each dataset or value: a reference to it, and memory to keep for it."""
        self.released: Final[collections.deque[int]] = collections.deque()
        """Numbers without a holder. Appended at any moment, without the lock."""
        self._numbers = itertools.count()
        self._passes: list[int] = []
        self._counts: dict[int, int] = {}
        """Number of items of each pass over a sequence."""
        self._restored: list[Any] = []
        """The positions of the previous run's passes."""

    def add(self, source: contract.ObjectRef[object], kept: memory.Memory | None = None) -> tuple[int, object]:
        """Register the source of a dataset or a value; return its number and its holder."""
        number = next(self._numbers)
        self.sources[number] = source, kept
        holder = _Holder()
        weakref.finalize(holder, self.released.append, number).atexit = False
        if kept is not None:
            weakref.finalize(holder, kept.close).atexit = False
        return number, holder

    def begin_calls(
        self, source: contract.ObjectRef[streams.FromFunction], positions: Mapping[int, dict[int, int]]
    ) -> streams.PerWorkerIterator:
        """Begin a pass over the items that a function returns.

        Args:
            source: A reference to a `streams.FromFunction`.
            positions: The number of items of each pass that each worker has drawn, by worker. Changed if the pass
                continues from a checkpoint.
        """
        restored = self._take_restored("positions")
        number, holder = self.add(source)
        if restored is not None:
            begun = {int(worker): position for worker, position in restored["positions"].items()}
            if set(begun) != set(positions):
                raise errors.CheckpointMismatchError(
                    f"A dataset made of a function was read by the workers {sorted(begun)} when the checkpoint was "
                    f"written, but now there are {sorted(positions)}. Start as many workers as before, or make the "
                    "dataset of a sequence, which is dealt to any number."
                )
            for worker, position in begun.items():
                positions[worker][number] = position
        self._passes.append(number)
        return streams.PerWorkerIterator(number, holder)

    def begin_deal(
        self, items: contract.ObjectRef[Sequence[object]], count: int, handle: actor.ActorHandle
    ) -> streams.PerWorkerIterator:
        """Begin a pass over a sequence."""
        restored = self._take_restored("left")
        if restored is not None and restored["count"] != count:
            raise errors.CheckpointMismatchError(
                f"A dataset had {restored['count']} items when the checkpoint was written, but has {count} now. Use "
                "the same dataset."
            )
        kept = memory.create(streams.count_deal_bytes(count), "deal")
        streams.build_deal(kept, count, None if restored is None else restored["left"])
        number, holder = self.add(api.put(streams.FromSequence(items, count, kept.ref, handle)), kept)
        self._counts[number] = count
        self._passes.append(number)
        return streams.PerWorkerIterator(number, holder)

    def take_released(self) -> list[int]:
        """Forget the datasets and values without a holder; return their numbers."""
        taken = []
        while self.released:
            number = self.released.popleft()
            self.sources.pop(number, None)
            taken.append(number)
        return taken

    def describe_passes(
        self, positions: Mapping[int, Mapping[int, int]], removed: Mapping[int, Mapping[int, int]]
    ) -> list[object]:
        """Return the position of each pass, as JSON allows; None for a pass without a holder.

        Args:
            positions: The number of items of each pass that each worker has drawn in closures that ended, by worker.
            removed: The same numbers for removed workers.
        """
        return [self._describe(number, positions, removed) for number in self._passes]

    def is_scattered(
        self,
        number: int,
        positions: Mapping[int, Mapping[int, int]],
        living: AbstractSet[int],
        drawing: AbstractSet[int],
    ) -> bool:
        """Tell whether the remaining items of a dealt dataset are not all available to one worker.

        Call it while no closure draws from the dataset.

        Args:
            number: The dataset's number.
            positions: The number of items of each dataset that each worker has drawn, by worker, with removed workers.
            living: The workers that run closures.
            drawing: The living workers that have not found the dataset empty.
        """
        _, kept = self.sources.get(number, (None, None))
        if kept is None:
            return False
        deal = streams.Deal(kept.ref, self._counts[number])
        holders = {worker for worker, done in _choose(positions, number).items() if deal.list_owned(worker, done)}
        return len(holders) > 1 or not holders <= living or (not drawing and bool(deal.list_left({})))

    def deal_left(self, number: int, positions: Mapping[int, Mapping[int, int]]) -> None:
        """Deal the remaining items of a dealt dataset once more. Call it while no closure draws from the dataset; every
        worker must open its stream again before its next closure."""
        _, kept = self.sources[number]
        assert kept is not None, "only what is dealt is dealt again"
        streams.Deal(kept.ref, self._counts[number]).deal_left(_choose(positions, number))

    def restore(self, passes: Sequence[object]) -> None:
        """Let the passes that begin from now on continue from the positions of `describe_passes`."""
        self._restored = list(passes)

    @property
    def has_begun(self) -> bool:
        """Whether any pass has begun."""
        return bool(self._passes)

    def close(self) -> None:
        """Close all memory."""
        for _, kept in self.sources.values():
            if kept is not None:
                kept.close()
        self.sources.clear()

    def _describe(
        self, number: int, positions: Mapping[int, Mapping[int, int]], removed: Mapping[int, Mapping[int, int]]
    ) -> dict[str, object] | None:
        if number not in self.sources:
            return None
        _, kept = self.sources[number]
        if kept is None:
            drawn = _choose(positions, number)
            return {"positions": {str(worker): position for worker, position in drawn.items()}}
        count = self._counts[number]
        left = streams.Deal(kept.ref, count).list_left(_choose({**removed, **positions}, number))
        return {"left": left, "count": count}

    def _take_restored(self, kind: str) -> Any:
        """Return the position at which the next pass begins; None: at its beginning."""
        if len(self._passes) >= len(self._restored):
            return None
        kept = self._restored[len(self._passes)]
        if kept is not None and kind not in kept:
            raise errors.CheckpointMismatchError(
                f"Dataset {len(self._passes)} was {'a function' if kind == 'left' else 'a sequence'} when the "
                "checkpoint was written. Begin the same datasets in the same order."
            )
        return kept


def _choose(positions: Mapping[int, Mapping[int, int]], number: int) -> dict[int, int]:
    """Return the number of items of one pass that each worker has drawn."""
    return {worker: drawn.get(number, 0) for worker, drawn in positions.items()}


class _Holder:
    """An object that lives as long as any copy of an iterator or value."""

    __slots__ = ("__weakref__",)
