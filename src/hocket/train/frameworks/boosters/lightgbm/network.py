"""LightGBM's collectives in the ranks: the library calls these functions, and they call `World`.

LightGBM has two: all-gather, and reduce-scatter with an addition of its own. It takes functions for them in place of
its sockets (``LGBM_NetworkInitWithFunctions``), and calls them in the thread that trains. So nothing listens, and a
rank that has died is noticed at once.

*Errors.* They cannot pass through LightGBM, which would go on with what is not there. So a rank whose collective fails
says why, and ends. If it fails because another rank has died, that is soon known, and the rank is ended: it waits for
that, so that the other one is what the error is about.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np

from hocket._base import texts
from hocket._base.internals import lightgbm as lightgbm_internals
from hocket.collective import errors
from hocket.collective.world import Array, World
from hocket.train.rank import worker_session, world

_Int = ctypes.c_int32
_Ints = ctypes.POINTER(_Int)

_Add = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, _Int)
"""Adds one block to another: source, target, bytes of a number, bytes."""

_ReduceScatter = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, _Int, ctypes.c_int, _Ints, _Ints, ctypes.c_int, ctypes.c_void_p, _Int,
    ctypes.POINTER(ctypes.c_void_p),
)  # fmt: skip
"""Input, its bytes, bytes of a number, where each rank's block begins, its bytes, how many, output, its bytes, and
where the function is that adds."""

_AllGather = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, _Int, _Ints, _Ints, ctypes.c_int, ctypes.c_void_p, _Int
)  # fmt: skip
"""Input, its bytes, where each rank's block begins in the output, its bytes, how many, output, its bytes."""

_WAIT_SECONDS: Final = 10
"""How long a rank waits to be ended because another has died. A guess: Ray takes a second to notice; a rank whose
function returned too early has not died, and keeps the others waiting as long."""


def get_network_params() -> dict[str, Any]:
    """Return the parameters that have LightGBM train with the other ranks: put them into those of the training.

    ``{"num_machines": 2}`` in two ranks, and nothing in one. Add ``"tree_learner": "data_parallel"``, or ``"voting"``,
    and ``"pre_partition": True``, because each rank has rows of its own.

    Raises:
        RuntimeError: It is called outside a training function, or by one whose trainer did not join the ranks.

    Example:
        >>> import tempfile
        >>> from hocket import train
        >>> from hocket.train.lightgbm import LightGBMTrainer, get_network_params
        >>> trainer = LightGBMTrainer(
        ...     lambda: get_network_params(),
        ...     scaling_config=train.ScalingConfig(num_workers=0),  # in this process
        ...     run_config=train.RunConfig(storage_path=tempfile.mkdtemp()),
        ... )
        >>> trainer.fit().return_value
        {}
    """
    size = world.get_world("lightgbm.get_network_params").size
    return {"num_machines": size} if size > 1 else {}


@contextlib.contextmanager
def join() -> Iterator[None]:
    """Have the calling thread's LightGBM train together with the other ranks', for the duration of a block."""
    if worker_session.get_session("lightgbm.LightGBMTrainer").info.world_size == 1:
        yield
        return
    collectives = world.get_world("lightgbm.LightGBMTrainer")
    reduce_scatter = _ReduceScatter(_end_if_it_raises(_build_reduce_scatter(collectives)))
    all_gather = _AllGather(_end_if_it_raises(_build_all_gather(collectives)))
    pointers = [ctypes.cast(function, ctypes.c_void_p) for function in (reduce_scatter, all_gather)]
    lightgbm_internals.join(collectives.size, collectives.rank, *pointers)
    try:
        yield
    finally:
        lightgbm_internals.leave()


def _build_all_gather(collectives: World) -> Callable[..., None]:
    def all_gather(
        given: int, num_bytes: int, starts: Any, counts: Any, num_blocks: int, out: int, num_out: int
    ) -> None:
        target = _view(out, num_out)
        found = collectives.all_gather_bytes(_view(given, num_bytes), counts[:num_blocks])
        for start, block in zip(starts[:num_blocks], found, strict=True):
            target[start : start + len(block)] = block

    return all_gather


def _build_reduce_scatter(collectives: World) -> Callable[..., None]:
    def reduce_scatter(
        given: int, num_bytes: int, item: int, starts: Any, counts: Any, num_blocks: int, out: int, num_out: int,
        where: Any,
    ) -> None:  # fmt: skip
        source = _view(given, num_bytes)
        blocks = zip(starts[:num_blocks], counts[:num_blocks], strict=True)
        found = collectives.all_to_all_bytes([source[start : start + count] for start, count in blocks])
        add = _Add(where[0])
        count = len(found[0])
        np.copyto(_view(out, count), found[0])
        for other in found[1:]:
            add(other.ctypes.data, out, item, count)

    return reduce_scatter


def _view(address: int, num_bytes: int) -> Array:
    if not num_bytes:
        return _NOTHING
    memory: Any = (ctypes.c_uint8 * num_bytes).from_address(address)
    return np.frombuffer(memory, np.uint8)


_NOTHING: Final = np.empty(0, np.uint8)


def _end_if_it_raises(function: Callable[..., None]) -> Callable[..., None]:
    """See the module's docstring."""

    def call(*args: object) -> None:
        try:
            function(*args)
        except BaseException as error:  # noqa: BLE001 (see the module's docstring)
            sys.stderr.write(f"LightGBM cannot train with the other ranks: {texts.describe(error)}\n")
            sys.stderr.flush()
            if isinstance(error, errors.RankDiedError):
                threading.Event().wait(_WAIT_SECONDS)
            os._exit(1)

    return call
