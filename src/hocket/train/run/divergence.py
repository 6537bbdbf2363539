"""The driver's side of the divergence check (`hocket.train.rank.equality`): it compares the ranks' digests."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, final

import numpy as np
import numpy.typing as npt

from hocket.train import configs, errors
from hocket.train.rank import equality

_log = logging.getLogger("hocket.train")

MOST_OPEN: Final = 256
"""The most moments to keep that not all ranks have reached. A guess: ranks that train together are a few apart."""

ROUNDING: Final = 1e-6
"""The largest relative difference of sampled values that counts as rounding, by unlike processors or other numbers of
threads. A guess: some units in the last place of float32."""

MOST_NAMED: Final = 3
"""The number of tensors that a message names after the first."""

_PLACES: Final = {"step": "after step {number}", "end": "at the end of the training function"}


class _Seen(NamedTuple):
    """One look of a rank: its tensors' digests and samples at one moment."""

    keys: tuple[equality.Key, ...]
    digests: npt.NDArray[np.uint32]
    samples: npt.NDArray[np.float64]
    steps: int


class _Difference(NamedTuple):
    """A tensor with different values in some ranks."""

    key: equality.Key
    ranks: tuple[int, int]
    """A rank with the usual values, and the first rank with others."""
    others: tuple[int, ...]
    """All ranks with other values."""
    size: float | None
    """The largest difference of sampled values; None if a rank lacks the tensor."""
    relative: float
    """The largest difference relative to the largest value."""


@final
class DivergenceWatch:
    """The comparison of the ranks of one attempt. Used by one thread at a time.

    Args:
        config: The reaction to a difference.
        world_size: The number of ranks that send looks.
    """

    def __init__(self, config: configs.DivergenceConfig, world_size: int) -> None:
        self._config = config
        self._looking = set(range(world_size))
        self._keys: dict[int, tuple[equality.Key, ...]] = {}
        self._causes: dict[str, str] = {}
        self._open: dict[tuple[str, int], dict[int, _Seen]] = {}
        self._warned = False
        self._rows: dict[int, tuple[int, ...]] = {}

    def take(self, rank: int, look: equality.Item | None) -> None:
        """Take a rank's look, or the digests of its first rows. Compare when all ranks have sent theirs. None has no
        effect, since a report may come without a look.

        Raises:
            RanksDivergedError: Ranks differ that should be equal, and the configuration wants an error.
        """
        if isinstance(look, equality.Rows):
            self._take_rows(rank, look)
            return
        if look is None:
            return
        if look.keys is not None:
            self._keys[rank] = look.keys
            self._causes.update(look.causes or {})
        keys = self._keys[rank]
        digests, samples = np.frombuffer(look.digests, np.uint32), np.frombuffer(look.samples)
        seen = _Seen(keys, digests, samples.reshape(-1, equality.SAMPLES), look.steps)
        self._open.setdefault(look.place, {})[rank] = seen
        self._settle(look.place)
        if len(self._open) > MOST_OPEN:
            del self._open[next(iter(self._open))]

    def _take_rows(self, rank: int, rows: equality.Rows) -> None:
        self._rows[rank] = rows.digests
        is_same = self._rows.keys() >= self._looking and len({*self._rows.values()}) == 1
        if len(self._rows) > 1 and is_same and len({*rows.digests}) > 1:  # not one batch repeated
            _log.warning(
                "All %d ranks compute with the same rows: the first %d batches of each are equal, so the ranks repeat "
                "each other's work. Write loader = prepare_data_loader(loader), or get_dataset_shard(), which give "
                "each rank its own part; or skip the rows of other ranks by get_context().get_world_rank().",
                len(self._rows),
                equality.BATCHES,
            )

    def end(self, rank: int) -> None:
        """Note that a rank sends no more looks, so that no comparison waits for it.

        Raises:
            RanksDivergedError: See `take`.
        """
        self._looking.discard(rank)
        for place in list(self._open):
            self._settle(place)

    def _settle(self, place: tuple[str, int]) -> None:
        if not self._looking <= self._open[place].keys():
            return
        looks = dict(sorted(self._open.pop(place).items()))
        first, *rest = looks.values()
        if all(_is_same(first, other) for other in rest):
            return
        found = _find_differences(looks)
        if not found:
            return
        is_rounding = all(one.size is not None and one.size > 0 and one.relative <= ROUNDING for one in found)
        message = self._describe(place, looks, found, is_rounding=is_rounding)
        if self._config.action == "error" and not is_rounding:
            raise errors.RanksDivergedError(message)
        if not self._warned:
            self._warned = True
            _log.warning("%s", message)

    def _describe(
        self, place: tuple[str, int], looks: Mapping[int, _Seen], found: list[_Difference], *, is_rounding: bool
    ) -> str:
        kind, number = place
        where = _PLACES.get(kind, "at the end of an epoch" if kind.startswith("epoch") else "in report {number}")
        (what, name, _), (one, other), others, size, _ = found[0]
        steps = {rank: looks[rank].steps for rank in (one, other)}
        taken = (
            f"after {steps[one]} steps"
            if steps[one] == steps[other]
            else f"rank {one} has taken {steps[one]} steps and rank {other} {steps[other]}"
        )
        if size is None:
            said = f"only one of the ranks {one} and {other} has {_name(what, name)}"
        else:
            far = f"by up to {size:.3g} in the sampled values" if size else "in values outside of the sample"
            whose = f"rank {others[0]} has" if len(others) == 1 else f"the ranks {list(others)} have"
            said = f"{whose} values of {_name(what, name)} that differ from rank {one}'s {far}"
        more = [_name(kept, called) for (kept, called, _), *_ in found[1:]]
        listed = ", ".join(more[:MOST_NAMED]) + (f" and {len(more) - MOST_NAMED} more" if more[MOST_NAMED:] else "")
        also = f" The same holds for {listed}." if more else ""
        if is_rounding:
            return (
                f"The ranks' models differ by rounding: {where.format(number=number)} ({taken}) {said}.{also} Ranks on "
                "different processors, or with different numbers of threads, round differently. If the ranks must stay "
                "equal to the bit, give all of them the same processor and the same number of threads."
            )
        causes = self._causes.get(what, "")
        return (
            f"The ranks should have equal models, but {where.format(number=number)} ({taken}) {said}.{also} {causes} "
            "To train nevertheless, write RunConfig(divergence_config=DivergenceConfig(action='warn')), or 'ignore' to "
            "compare nothing."
        )


def _name(kind: str, name: str) -> str:
    return f"the {kind} `{name}`" if kind != "optimizer" else f"the optimizer's {name}"


def _is_same(one: _Seen, other: _Seen) -> bool:
    return one.keys == other.keys and np.array_equal(one.digests, other.digests)


def _find_differences(looks: Mapping[int, _Seen]) -> list[_Difference]:
    """Return the tensors that differ between ranks, in the order of the first rank that has them."""
    tables = {rank: {key: row for row, key in enumerate(seen.keys)} for rank, seen in looks.items()}
    found = []
    for key in dict.fromkeys(key for seen in looks.values() for key in seen.keys):
        having = {rank: table[key] for rank, table in tables.items() if key in table}
        digests = {rank: int(looks[rank].digests[row]) for rank, row in having.items()}
        if len(having) < len(looks) and not key[2]:
            lacking = tuple(rank for rank in looks if rank not in having)
            found.append(_Difference(key, (next(iter(having)), lacking[0]), lacking, None, 0.0))
        elif len(set(digests.values())) > 1:
            usual = Counter(digests.values()).most_common(1)[0][0]
            one = next(rank for rank, digest in digests.items() if digest == usual)
            others = tuple(rank for rank, digest in digests.items() if digest != usual)
            own, *theirs = (looks[rank].samples[having[rank]] for rank in (one, *others))
            size, relative = _measure(own, theirs)
            found.append(_Difference(key, (one, others[0]), others, size, relative))
    return found


def _measure(own: npt.NDArray[np.float64], theirs: list[Any]) -> tuple[float, float]:
    """Return the largest distance between a rank's values and others', absolute and relative to the largest value."""
    apart = np.nan_to_num(np.abs(np.stack(theirs) - own), nan=np.inf)
    apart[(np.stack(theirs) == own) | (np.isnan(np.stack(theirs)) & np.isnan(own))] = 0
    size = float(apart.max())
    return size, size / max(float(np.abs(own).max()), 1e-300)
