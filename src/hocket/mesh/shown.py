"""Facts about this process's meshes for viewers: layouts of recent values, and bytes moved by relayouts."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, final

from hocket._base import showing
from hocket.mesh import layouts, relayouts

MOST_VALUES: Final = 500
"""Number of values that are remembered: those that were spread last."""


@final
class Shown:
    """The layouts of values by name, and the bytes that relayouts moved. It keeps no value alive."""

    def __init__(self) -> None:
        self._values: OrderedDict[tuple[str, int], tuple[layouts.Layout, tuple[int, ...], int]] = OrderedDict()
        #: The number of steps of each kind along each axis, and the bytes that each device received in them.
        self._moved: dict[tuple[relayouts.Kind, str], tuple[int, int]] = {}
        self._is_shown = False

    def note_spread(self, name: str, layout: layouts.Layout, shape: tuple[int, ...], itemsize: int) -> None:
        """Note the layout of a value."""
        self._show()
        key = name, hash(layout.mesh)
        self._values[key] = layout, shape, itemsize
        self._values.move_to_end(key)
        if len(self._values) > MOST_VALUES:
            self._values.popitem(last=False)

    def note_moved(self, steps: Iterable[relayouts.Step]) -> None:
        """Note the steps of a relayout."""
        self._show()
        for step in steps:
            key = step.kind, step.axis
            count, moved = self._moved.get(key, (0, 0))
            self._moved[key] = count + 1, moved + step.num_bytes

    def _show(self) -> None:
        if not self._is_shown:
            self._is_shown = True
            showing.show("meshes", self, Shown._describe)

    def _describe(self) -> showing.Facts:
        return {
            "values": [_describe_value(name, *found) for (name, _), found in list(self._values.items())],
            "moved": [
                {"kind": kind.value, "axis": axis, "count": count, "bytes": moved}
                for (kind, axis), (count, moved) in list(self._moved.items())
            ],
        }


def _describe_value(name: str, layout: layouts.Layout, shape: tuple[int, ...], itemsize: int) -> showing.Facts:
    return {
        "name": name,
        "mesh": [list(one) for one in layout.mesh.dims],
        "layout": list(layout.sharding_specs),
        "shape": list(shape),
        "bytes": math.prod(shape) * itemsize,
        "local_bytes": math.prod(layout.local_shape_from_global_shape(shape)) * itemsize,
        "parts": [list(parts) for parts in layout.offset_to_shard()],
    }


OWN: Final = Shown()
"""The facts about this process."""
