"""LightGBM's collectives in the ranks: the library calls these functions, and they call `World`.

LightGBM has two collectives: all-gather, and reduce-scatter with an addition of its own. It accepts functions for them
in place of its sockets (``LGBM_NetworkInitWithFunctions``), and calls these in the thread that trains. So nothing
listens, and a rank's death is noticed at once.

*Errors.* An error cannot pass through LightGBM, which would go on with missing data. So a rank whose collective fails
prints the error and exits. If the cause is another rank's death, the engine soon ends this rank too. The rank waits for
that first, because the run's error should be about the rank that died.
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
"""Adds one block to another. Arguments: source, target, bytes of a number, bytes."""

_ReduceScatter = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, _Int, ctypes.c_int, _Ints, _Ints, ctypes.c_int, ctypes.c_void_p, _Int,
    ctypes.POINTER(ctypes.c_void_p),
)  # fmt: skip
"""Arguments: input, its bytes, bytes of a number, the start of each rank's block, each block's bytes, number of blocks,
output, its bytes, and the address of a pointer to the function that adds."""

_AllGather = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, _Int, _Ints, _Ints, ctypes.c_int, ctypes.c_void_p, _Int
)  # fmt: skip
"""Arguments: input, its bytes, the start of each rank's block in the output, each block's bytes, number of blocks,
output, its bytes."""

_WAIT_SECONDS: Final = 10
"""Seconds that a rank waits to be ended after another's death. A guess: Ray takes a second to notice. If no rank died
but one returned too early, the others wait this long too."""


def get_network_params() -> dict[str, Any]:
    """Return the parameters with which LightGBM trains together with the other ranks. Add them to the training's.

    They are ``{"num_machines": 2}`` in two ranks, and empty in one. Add ``"tree_learner": "data_parallel"`` (or
    ``"voting"``) and ``"pre_partition": True``, because each rank has its own rows.

    Raises:
        RuntimeError: The caller is outside a training function, or its trainer did not join the ranks.

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
    """Join the calling thread's LightGBM with the other ranks', for the duration of a block."""
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
    """Return a function that calls another, and ends the process if it raises; the module's docstring says why."""

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
