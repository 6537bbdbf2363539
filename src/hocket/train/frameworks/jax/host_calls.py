"""Lets a compiled step call the ranks' collectives.

On the CPU a step calls through XLA's foreign function interface (`frames`), and the collective works in place, on XLA's
own memory. XLA knows that the call has a side effect, so it makes the calls of a program in the program's order, which
is the same in all ranks. `JaxConfig` makes each rank run its programs one after another. On other devices a step calls
through `jax.experimental.io_callback`, ordered, which copies to the host and back.

All arrays of a step travel together. Small arrays are joined in one buffer per dtype, which costs a copy there and one
back. Larger arrays travel as they are.

Before ranks exchange some arrays for the first time, they compare their shapes and names. Trees that differ are named
in an error; without that, the ranks would hang, or add up arrays that do not belong together.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import jax
import jax.numpy as jnp
import numpy as np
from jax import experimental, ffi

from hocket.collective import arithmetic, errors
from hocket.collective import world as collective_world
from hocket.train.frameworks.jax import frames, trees
from hocket.train.rank import equality, worker_session, world

TARGET: Final = "hocket_all_reduce"
"""The name under which XLA knows the call."""

ALONE_BYTES: Final = 1 << 20
"""The size from which an array travels alone, without a copy. Measured on two cores: 20 arrays of 64 KB took a third of
the time together, 20 of 1 MB as long, and four of 4 MB half as much again."""

Collective = Callable[[collective_world.Array], None]


@final
@dataclass(frozen=True, kw_only=True)
class CrossingPlan:
    """The arrays that travel in one call."""

    caller: str
    """The function that the user called."""
    op: arithmetic.ReduceOp
    leaves: tuple[trees.Leaf, ...]
    buffers: tuple[tuple[str, int], ...]
    """Dtype and number of elements of each buffer."""
    groups: tuple[tuple[int, ...], ...]
    """The leaves that each buffer holds, in order."""
    visitor: str = ""
    """The name of the visitor that changes the arrays; see `visit`. Empty: `op` combines them."""
    watched: tuple[tuple[str, str, int], ...] = ()
    """The contents of the last buffer, which is not reduced: kind, name, number of values. `equality` compares them."""

    @property
    def number(self) -> int:
        """A constant that identifies the plan in a compiled program; the same in all processes."""
        digest = hashlib.blake2b(
            repr((self.caller, self.op, self.leaves, self.buffers, self.visitor, self.watched)).encode(), digest_size=8
        )
        return int.from_bytes(digest.digest(), "little", signed=True)


_plans: dict[int, CrossingPlan] = {}
_handlers: list[object] = []
_lock = threading.Lock()
_samples: weakref.WeakKeyDictionary[collective_world.World, dict[int, Any]] = weakref.WeakKeyDictionary()
_agreed: weakref.WeakKeyDictionary[collective_world.World, set[int]] = weakref.WeakKeyDictionary()


def all_reduce(
    arrays: Sequence[object],
    leaves: Sequence[trees.Leaf],
    caller: str,
    op: arithmetic.ReduceOp = arithmetic.ReduceOp.MEAN,
    travel_as: Callable[[Any], object] | None = None,
    watched: Mapping[str, object] | None = None,
) -> list[Any]:
    """Return the mean over all ranks of each array, or the result of `op`. Works inside `jax.jit` and outside.

    All ranks must pass the same number of arrays, of the same shapes and dtypes. `travel_as` maps an array's dtype to
    the dtype in which it travels. By default halves travel as float32, since sums of halves lose too much, and others
    as they are. `watched` has trees, by kind, for `equality` to compare.
    """
    if not arrays:
        return []
    # One compiled program, even when the user's code is not jitted.
    return list(_travel(tuple(arrays), tuple(leaves), caller, op, travel_as or widen, "", watched or {}))


Visitor = Callable[[Sequence[tuple[trees.Leaf, collective_world.Array]]], None]
"""A function that changes flat host arrays in place."""

_visitors: dict[str, Visitor] = {}


def add_visitor(name: str, visitor: Visitor) -> None:
    """Register a visitor under a name, for `visit`."""
    _visitors[name] = visitor


def visit(arrays: Sequence[object], leaves: Sequence[trees.Leaf], caller: str, name: str) -> list[Any]:
    """Return arrays as changed on the host by a visitor, given by name. Works inside `jax.jit` and outside. Halves
    travel as float32."""
    return list(_travel(tuple(arrays), tuple(leaves), caller, arithmetic.ReduceOp.SUM, widen, name, {}))


@functools.partial(jax.jit, static_argnums=(1, 2, 3, 4, 5))
def _travel(
    arrays: Sequence[Any],
    leaves: tuple[trees.Leaf, ...],
    caller: str,
    op: arithmetic.ReduceOp,
    choose: Callable[[Any], Any],
    visitor: str,
    watched: Mapping[str, object],
) -> list[object]:
    dtypes = [jnp.dtype(choose(array.dtype)) for array in arrays]
    groups = _group(arrays, dtypes)
    buffers = [_join(arrays, group, dtypes[group[0]]) for group in groups]
    names, sample = _take_sample(watched)
    if names:
        buffers.append(sample)
    plan = CrossingPlan(
        caller=caller,
        op=op,
        leaves=leaves,
        buffers=tuple((str(buffer.dtype), buffer.size) for buffer in buffers),
        groups=tuple(tuple(group) for group in groups),
        visitor=visitor,
        watched=names,
    )
    _plans[plan.number] = plan
    found: dict[int, Any] = {}
    for group, buffer in zip(groups, _call(plan, buffers), strict=False):
        sizes = [arrays[number].size for number in group]
        parts = jnp.split(buffer.reshape(-1), np.cumsum(sizes)[:-1]) if len(group) > 1 else [buffer]
        for number, part in zip(group, parts, strict=True):
            found[number] = part.reshape(arrays[number].shape).astype(arrays[number].dtype)
    return [found[number] for number in range(len(arrays))]


def widen(dtype: Any) -> Any:
    """Return the dtype in which arrays are added up. Sums of halves would lose too much."""
    # With float32 a mean of halves is rounded once, as in the other frameworks.
    return jnp.float32 if jnp.dtype(dtype).itemsize < 4 and jnp.issubdtype(dtype, jnp.floating) else dtype


def computes_here() -> bool:
    """Return whether the host's processors compute."""
    return bool(jax.default_backend() == "cpu")


def wait_for_steps() -> None:
    """Wait until the device has made all requested calls. Call this before a collective of the host's own."""
    if not computes_here():  # on CPUs a step has ended when it returns: see `JaxConfig`
        jax.effects_barrier()


def _group(arrays: Sequence[Any], dtypes: Sequence[Any]) -> list[list[int]]:
    """Return groups of arrays, by number. The arrays of a group share a buffer."""
    together: dict[object, list[int]] = {}
    alone = []
    for number, (array, dtype) in enumerate(zip(arrays, dtypes, strict=True)):
        if array.size * dtype.itemsize >= ALONE_BYTES:
            alone.append([number])
        else:
            together.setdefault(dtype, []).append(number)
    return [*together.values(), *alone]


def _join(arrays: Sequence[object], group: Sequence[int], dtype: object) -> Any:
    if len(group) == 1:
        return jnp.asarray(arrays[group[0]], dtype)
    return jnp.concatenate([jnp.asarray(arrays[number], dtype).reshape(-1) for number in group])


def _call(plan: CrossingPlan, buffers: list[Any]) -> list[Any]:
    """Call the host. Under `jax.vmap`, call it once for all elements of the batch."""

    @jax.custom_batching.custom_vmap  # type: ignore[untyped-decorator]  # JAX does not type it
    def call(*given: Any) -> tuple[Any, ...]:
        return tuple(_bind(plan, list(given)))

    @call.def_vmap  # type: ignore[untyped-decorator]  # the same
    def call_once(count: int, is_batched: Sequence[bool], *given: Any) -> tuple[tuple[Any, ...], tuple[bool, ...]]:
        if plan.visitor:
            raise ValueError(
                f"{plan.caller}() was called inside jax.vmap, but the strategy works on whole models. Use AllReduce(), "
                "or write a loop instead of vmap."
            )
        whole = [
            one if batched else jnp.broadcast_to(one, (count, *one.shape))
            for one, batched in zip(given, is_batched, strict=True)
        ]
        buffers = tuple((dtype, size * count) for dtype, size in plan.buffers)
        wide = dataclasses.replace(plan, buffers=buffers)
        _plans[wide.number] = wide
        found = _call(wide, [one.reshape(-1) for one in whole])
        return tuple(new.reshape(one.shape) for new, one in zip(found, whole, strict=True)), (True,) * len(whole)

    return list(call(*buffers))


def _bind(plan: CrossingPlan, buffers: list[Any]) -> list[Any]:
    shapes = [jax.ShapeDtypeStruct(buffer.shape, buffer.dtype) for buffer in buffers]
    if not computes_here():
        return list(experimental.io_callback(_Copied(plan), shapes, *buffers, ordered=True))
    with _lock:
        if not _handlers:
            capsule, handler = frames.build_handler(_work)
            ffi.register_ffi_target(TARGET, capsule, platform="cpu")
            _handlers.append(handler)
    call = ffi.ffi_call(
        TARGET, shapes, has_side_effect=True, input_output_aliases={number: number for number in range(len(buffers))}
    )
    return list(call(*buffers, plan=np.int64(plan.number)))


def _work(number: int, arguments: list[int], results: list[int]) -> None:
    """Run a plan on XLA's memory. XLA calls this."""
    plan = _plans[number]
    arrays = []
    for (dtype, count), source, target in zip(plan.buffers, arguments, results, strict=True):
        array = frames.view(target, jnp.dtype(dtype), count) if count else np.empty(0, jnp.dtype(dtype))
        if count and source != target:  # XLA still needs the argument, so the result has memory of its own
            np.copyto(array, frames.view(source, jnp.dtype(dtype), count))
        arrays.append(array)
    _reduce(plan, arrays)


@final
class _Copied:
    """A function that runs a plan on copies, for arrays outside the host's memory.

    Args:
        plan: The arrays that travel.
    """

    def __init__(self, plan: CrossingPlan) -> None:
        self._plan = plan

    def __call__(self, *given: object) -> list[collective_world.Array]:
        arrays = [np.array(array) for array in given]
        _reduce(self._plan, arrays)
        return arrays


def _reduce(plan: CrossingPlan, arrays: Sequence[collective_world.Array]) -> None:
    if plan.visitor:
        _visitors[plan.visitor](_split(plan, arrays))
        return
    ranks = world.get_world(f"jax.{plan.caller}")
    agree(ranks, plan.number, plan.leaves, plan.caller)
    for array in arrays[:-1] if plan.watched else arrays:
        if array.size:
            ranks.all_reduce(array, plan.op)
    if plan.watched and arrays[-1].size == sum(count for _, _, count in plan.watched):
        _samples.setdefault(ranks, {})[plan.number] = (plan.watched, np.array(arrays[-1]))
        worker_session.get_session("jax.prepare_optimizer").watch.count_step()


def _split(
    plan: CrossingPlan, arrays: Sequence[collective_world.Array]
) -> list[tuple[trees.Leaf, collective_world.Array]]:
    """Return the leaves' parts of the buffers, in the order of the leaves."""
    found: dict[int, collective_world.Array] = {}
    for group, array in zip(plan.groups, arrays, strict=True):
        sizes = [math.prod(plan.leaves[number].shape) for number in group]
        found.update(zip(group, np.split(array.reshape(-1), np.cumsum(sizes)[:-1]), strict=True))
    return [(leaf, found[number]) for number, leaf in enumerate(plan.leaves)]


def _take_sample(watched: Mapping[str, object]) -> tuple[tuple[tuple[str, str, int], ...], Any]:
    """Return the names of watched arrays, and some evenly spaced values of each: reading all would slow a step down."""
    names, parts = [], []
    for kind, tree in watched.items():
        for path, value in jax.tree_util.tree_flatten_with_path(tree)[0]:
            if value.size and not trees.is_key(value) and not jnp.issubdtype(value.dtype, jnp.complexfloating):
                some = value.reshape(-1)[:: max(1, value.size // equality.SAMPLES)][: equality.SAMPLES]
                parts.append(some.astype(jnp.float32))
                names.append((kind, trees.name_path(path), int(some.size)))
    return tuple(names), jnp.concatenate(parts) if parts else None


def list_watched(ranks: collective_world.World) -> Iterator[equality.Equal]:
    """Yield the values that should be equal in all ranks, as they were before the last steps."""
    wait_for_steps()
    for number, (names, array) in enumerate(_samples.get(ranks, {}).values()):
        parts = np.split(array, np.cumsum([count for _, _, count in names])[:-1])
        for (kind, name, _), part in zip(names, parts, strict=True):
            yield equality.Equal(kind, f"{name} (optimizer {number})" if number else name, part)


def agree(ranks: collective_world.World, number: int, leaves: Sequence[trees.Leaf], caller: str) -> None:
    """Compare the ranks' arrays by name, shape and dtype, unless this rank has done so before."""
    agreed = _agreed.setdefault(ranks, set())
    if number in agreed:
        return
    first, *others = ranks.all_gather_object(tuple(leaves))
    for rank, other in enumerate(others, 1):
        if other != first:
            difference = trees.describe_difference(first, other, "rank 0", f"rank {rank}")
            raise errors.CollectiveMismatchError(
                f"{caller}() received different arrays in the ranks: {difference}. Build the same model in all ranks, "
                "and make the call at the same steps in all of them."
            )
    agreed.add(number)
