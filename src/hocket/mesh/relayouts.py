"""Plans from one layout to another: the collectives, their order, and the bytes that each device receives.

There are seven kinds of steps. Six move a tensor along one mesh axis. The cost is the bytes that one device receives in
ring and pairwise algorithms, which are optimal in this number (R. Thakur, R. Rabenseifner and W. Gropp, "Optimization
of Collective Communication Operations in MPICH", 2005). With n devices along the axis, each with b bytes before a step:

- `SPLIT` takes the device's part of a dim that it has whole: 0.
- `SPREAD` makes a replica a term of a sum, with zeros on all devices but the first: 0.
- `ALL_GATHER` puts a dim together: (n - 1) b.
- `ALL_TO_ALL` puts one dim together and cuts another: (n - 1) b / n.
- `ALL_REDUCE` computes a sum: 2 (n - 1) b / n.
- `REDUCE_SCATTER` computes a sum and leaves each device its part: (n - 1) b / n.
- `PERMUTE` changes the order of several axes that cut one dim: b.

A plan is a cheapest path from layout to layout, where each edge is a step (E. Dijkstra, "A note on two problems in
connexion with graphs", 1959). So no detour is cheaper, and costs obey the triangle inequality. Of equally cheap plans
the one with the fewest steps is taken.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from hocket.mesh import layouts


class Kind(Enum):
    """A kind of step."""

    SPLIT = "split"
    SPREAD = "spread"
    ALL_GATHER = "all-gather"
    ALL_TO_ALL = "all-to-all"
    ALL_REDUCE = "all-reduce"
    REDUCE_SCATTER = "reduce-scatter"
    PERMUTE = "permute"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of a plan."""

    kind: Kind
    axis: str
    """The mesh axis along which devices talk; for `PERMUTE` the axes of the dim in their new order, with commas."""
    dim: int = -1
    """The tensor's dim that is put together, permuted, or newly cut; -1 for `ALL_REDUCE` and `SPREAD`."""
    from_dim: int = -1
    """The dim that `ALL_TO_ALL` puts together."""
    target: layouts.Layout
    """The layout after the step."""
    num_bytes: int
    """Number of bytes that each device receives."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps of a relayout, in order."""

    steps: tuple[Step, ...]

    @property
    def num_bytes(self) -> int:
        """Number of bytes that each device receives in all steps."""
        return sum(step.num_bytes for step in self.steps)

    def describe(self) -> str:
        """Return the steps in a line: ``all-gather of dim 0 along data (4,096 B)``."""
        return ", ".join(_describe_step(step) for step in self.steps) or "nothing to do"


class _Cost(NamedTuple):
    num_bytes: int
    steps: int


def plan_relayout(source: layouts.Layout, target: layouts.Layout, global_shape: Sequence[int], itemsize: int) -> Plan:
    """Return the cheapest plan from one layout to another.

    Args:
        source: The tensor's layout.
        target: The new layout, on the same mesh.
        global_shape: The shape of the whole tensor.
        itemsize: The bytes of an element.

    Raises:
        ValueError: The layouts are of different meshes or numbers of dims, or one of them does not divide the shape.

    Example:
        >>> from hocket.mesh import Layout, Mesh, plan_relayout
        >>> mesh = Mesh({"data": 4})
        >>> rows, columns = Layout.batch_sharded(mesh, "data", 2), Layout.inner_sharded(mesh, "data", 2)
        >>> plan_relayout(rows, columns, (64, 64), itemsize=4).describe()
        'all-to-all from dim 0 to dim 1 along data (3,072 B)'
    """
    if source.mesh != target.mesh:
        raise ValueError(
            f"A relayout needs one mesh, but the tensor is on {source.mesh!r} and the layout is on {target.mesh!r}. "
            "Copy the tensor with copy_to_mesh first."
        )
    shape = tuple(global_shape)
    for layout in (source, target):
        layout.local_shape_from_global_shape(shape)
    return _find_plan(source, target, shape, itemsize)


@functools.lru_cache(maxsize=4096)
def _find_plan(source: layouts.Layout, target: layouts.Layout, shape: tuple[int, ...], itemsize: int) -> Plan:
    numbers = itertools.count()  # breaks ties, because the heap cannot compare layouts
    best = {source: _Cost(0, 0)}
    came_by: dict[layouts.Layout, tuple[layouts.Layout, Step]] = {}
    heap = [(best[source], next(numbers), source)]
    done: set[layouts.Layout] = set()
    while heap:
        cost, _, layout = heapq.heappop(heap)
        if layout == target:
            break
        if layout in done:
            continue
        done.add(layout)
        for step in _list_steps(layout, shape, itemsize):
            reached = _Cost(cost.num_bytes + step.num_bytes, cost.steps + 1)
            if step.target not in best or reached < best[step.target]:
                best[step.target] = reached
                came_by[step.target] = layout, step
                heapq.heappush(heap, (reached, next(numbers), step.target))
    steps: list[Step] = []
    layout = target
    while layout != source:
        layout, step = came_by[layout]
        steps.append(step)
    return Plan(tuple(reversed(steps)))


def _list_steps(layout: layouts.Layout, shape: tuple[int, ...], itemsize: int) -> Iterator[Step]:
    """Yield every step that is possible from a layout."""
    mesh, held = layout.mesh, math.prod(layout.local_shape_from_global_shape(shape)) * itemsize
    cut = {name for axes in layout.axes for name in axes}
    for dim, axes in enumerate(layout.axes):
        if not axes:
            continue
        axis, size = axes[-1], mesh.dim_size(axes[-1])
        whole = _replace(layout, {dim: axes[:-1]})
        yield Step(kind=Kind.ALL_GATHER, axis=axis, dim=dim, target=whole, num_bytes=(size - 1) * held)
        for other in range(layout.rank):
            moved = _replace(whole, {other: (*whole.axes[other], axis)})
            if other != dim and _divides(moved, shape):
                received = _share(held, size)
                yield Step(kind=Kind.ALL_TO_ALL, axis=axis, dim=other, from_dim=dim, target=moved, num_bytes=received)
        for order in itertools.permutations(axes):
            if order != axes:
                turned = _replace(layout, {dim: order})
                yield Step(kind=Kind.PERMUTE, axis=",".join(order), dim=dim, target=turned, num_bytes=held)
    for axis in mesh.dim_names:
        if axis in cut:
            continue
        is_partial, size = axis in layout.partial, mesh.dim_size(axis)
        others = [name for name in layout.partial if name != axis]
        if is_partial:
            summed = layout.with_partial(others)
            yield Step(kind=Kind.ALL_REDUCE, axis=axis, target=summed, num_bytes=2 * _share(held, size))
        else:
            yield Step(kind=Kind.SPREAD, axis=axis, target=layout.with_partial([*others, axis]), num_bytes=0)
        for dim, axes in enumerate(layout.axes):
            parted = _replace(layout.with_partial(others), {dim: (*axes, axis)})
            if _divides(parted, shape):
                kind = Kind.REDUCE_SCATTER if is_partial else Kind.SPLIT
                yield Step(
                    kind=kind, axis=axis, dim=dim, target=parted, num_bytes=_share(held, size) if is_partial else 0
                )


def count_least(source: layouts.Layout, target: layouts.Layout, global_shape: Sequence[int], itemsize: int) -> int:
    """Return the bytes that the device which lacks most must receive under any algorithm: its new part without the
    elements that it has already. For layouts without `partial` axes.
    """
    if source.partial or target.partial:
        raise ValueError("count_least() takes layouts without `partial` axes.")
    pairs = zip(source.slices(global_shape), target.slices(global_shape), strict=True)
    return itemsize * max(_count_lacking(has, needs) for has, needs in pairs)


def _count_lacking(has: tuple[slice, ...], needs: tuple[slice, ...]) -> int:
    wanted: int = math.prod([part.stop - part.start for part in needs])
    common = 1
    for one, other in zip(has, needs, strict=True):
        common *= max(0, int(min(one.stop, other.stop)) - int(max(one.start, other.start)))
    return wanted - common


def _share(held: int, size: int) -> int:
    """Return (n - 1) / n of the bytes, rounded up to whole bytes."""
    return -(-held * (size - 1) // size)


def _replace(layout: layouts.Layout, axes: dict[int, tuple[str, ...]]) -> layouts.Layout:
    specs = [axes.get(dim, given) for dim, given in enumerate(layout.axes)]
    return layouts.Layout(specs, layout.mesh, partial=layout.partial)


def _divides(layout: layouts.Layout, shape: tuple[int, ...]) -> bool:
    return all(length % parts == 0 for length, parts in zip(shape, layout.shape, strict=True))


def _describe_step(step: Step) -> str:
    where = {
        Kind.ALL_TO_ALL: f" from dim {step.from_dim} to dim {step.dim}",
        Kind.ALL_REDUCE: "",
        Kind.SPREAD: "",
    }.get(step.kind, f" of dim {step.dim}")
    return f"{step.kind.value}{where} along {step.axis} ({step.num_bytes:,} B)"
