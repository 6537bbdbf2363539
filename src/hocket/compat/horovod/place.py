"""The calling rank's place: Horovod's functions that need no framework.

The place comes from the trainer in a trainer's rank, and from the environment under ``hocket run`` or torchrun.
Otherwise the process is alone.
"""

from __future__ import annotations

import enum
import os
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from hocket.train.rank import worker_session


class Op(enum.Enum):
    """The reductions of the ranks' tensors, with Horovod's names.

    Adasum exists only for programs that choose the reduction by an argument; its use is refused.
    """

    AVERAGE = "Average"
    SUM = "Sum"
    MIN = "Min"
    MAX = "Max"
    PRODUCT = "Product"
    ADASUM = "Adasum"


@dataclass(frozen=True, kw_only=True)
class Place:
    """The calling rank's place."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    in_trainer: bool
    """Whether one of Hocket's trainers runs the rank."""


_places: weakref.WeakKeyDictionary[worker_session.WorkerSession, Place] = weakref.WeakKeyDictionary()
_own: Place | None = None  # of a process that no trainer has started


def enter() -> Place:
    """Find the calling rank's place, and allow the use of Horovod's functions."""
    global _own  # noqa: PLW0603 (Horovod's verbs are the process's)
    session = worker_session.get_optional_session()
    if session is not None:
        info = session.info
        _places[session] = Place(
            rank=info.rank,
            size=info.world_size,
            local_rank=info.local_rank,
            local_size=info.local_world_size,
            in_trainer=True,
        )
        return _places[session]
    size = int(os.environ.get("WORLD_SIZE", "1"))
    _own = Place(
        rank=int(os.environ.get("RANK", "0")),
        size=size,
        local_rank=int(os.environ.get("LOCAL_RANK", "0")),
        local_size=int(os.environ.get("LOCAL_WORLD_SIZE", str(size))),
        in_trainer=False,
    )
    return _own


def leave() -> None:
    """End the use of Horovod's functions."""
    global _own  # noqa: PLW0603 (see above)
    session = worker_session.get_optional_session()
    if session is None:
        _own = None
    else:
        _places.pop(session, None)


def _find() -> Place | None:
    session = worker_session.get_optional_session()
    return _own if session is None else _places.get(session)


def get_place() -> Place:
    """Return the calling rank's place."""
    found = _find()
    if found is None:
        raise ValueError("Horovod's verbs need hvd.init() first. Call it at the beginning of the training function.")
    return found


def is_initialized() -> bool:
    """Return whether `init` was called, and `shutdown` was not."""
    return _find() is not None


def rank() -> int:
    """Return the calling rank's index."""
    return get_place().rank


def size() -> int:
    """Return the number of ranks."""
    return get_place().size


def local_rank() -> int:
    """Return the calling rank's index among those of its machine."""
    return get_place().local_rank


def local_size() -> int:
    """Return the number of ranks on the calling rank's machine."""
    return get_place().local_size


def cross_rank() -> int:
    """Return the index of the calling rank's machine, assuming the same number of ranks on all machines."""
    found = get_place()
    return found.rank // found.local_size


def cross_size() -> int:
    """Return the number of machines, assuming the same number of ranks on all machines."""
    found = get_place()
    return -(-found.size // found.local_size)


def is_homogeneous() -> bool:
    """Return whether all machines have the same number of ranks, as far as this rank can see."""
    found = get_place()
    return found.size % found.local_size == 0


def choose_op(op: object, average: bool | None) -> Op:
    """Return the reduction that `op` or the older `average` names."""
    if op is not None and average is not None:
        raise ValueError("op and average cannot both be given. Pass op: op=hvd.Sum is the same as average=False.")
    if op is None:
        return Op.SUM if average is False else Op.AVERAGE
    if not isinstance(op, Op) or op is Op.ADASUM:
        raise ValueError(
            f"op must be hvd.Average, hvd.Sum, hvd.Min, hvd.Max or hvd.Product, but received {op!r}. Adasum is not "
            "supported."
        )
    return op


_NEUTRAL: Final[dict[str, tuple[object, ...]]] = {
    "name": (None, ...),
    "use_locking": (None, False),
    "device_dense": (None, ""),
    "device_sparse": (None, ""),
    "compression": (None,),
    "sparse_as_dense": (None, False, True),
    "backward_passes_per_step": (None, 1),
    "average_aggregated_gradients": (None, False, True),
    "gradient_predivide_factor": (None, ...),
    "num_groups": (None, ...),
    "groups": (None, ...),
    "process_set": (None,),
    "scale_local_gradients": (None, False, True),
}
"""Arguments of Horovod's ``DistributedOptimizer``, with the values that are safe to ignore here; ``...`` means all
values."""


def refuse_options(options: Mapping[str, object]) -> None:
    """Raise for arguments of Horovod's ``DistributedOptimizer`` that need an effect which is not supported."""
    for name, value in options.items():
        neutral = _NEUTRAL.get(name)
        if neutral is None:
            raise TypeError(
                f"DistributedOptimizer() has no argument {name!r}, here or in Horovod. Its arguments include "
                f"{', '.join(sorted(_NEUTRAL))}."
            )
        if ... not in neutral and value not in neutral:
            refuse("DistributedOptimizer", **{name: (value, None)})


def is_built() -> bool:
    """Return False, because none of Horovod's libraries is used."""
    return False


def refuse(verb: str, **given: tuple[object, object]) -> None:
    """Raise for an argument of Horovod that has no meaning here and is not at its default."""
    for name, (value, default) in given.items():
        if value != default:
            raise ValueError(
                f"{verb}() does not support {name}={value!r}. Leave it out, or use hocket's own adapters "
                "(docs/horovod.md)."
            )
