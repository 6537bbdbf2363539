"""Counts the bytes that compiled JAX programs move between devices, from the programs' text (HLO).

XLA chooses these transfers, so they are its result, not a plan. Each collective counts once, even in a loop.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Final, final

import jax

KINDS: Final = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
"""The collectives that are counted."""

_LINE: Final = re.compile(rf"= (?P<result>\([^=]*?\)|\S+) (?P<kind>{'|'.join(KINDS)})(?P<start>-start)?\((?P<rest>.*)")
_COMMENT: Final = re.compile(r"/\*.*?\*/")
_ARRAY: Final = re.compile(r"(?P<type>[a-z]+\d*)\w*\[(?P<dims>[\d,]*)\]")
_GROUPS: Final = re.compile(
    r"replica_groups=(?:\{\{(?P<listed>[\d,]+)\}|\[\d+,(?P<size>\d+)\]|mesh\[(?P<mesh>[^\]]*)\]\s*\{(?P<axes>[^}]*)\})"
)


def count_received(text: str) -> dict[str, int]:
    """Return the bytes that each device receives in one execution of a program, by the kind of collective.

    For an all-reduce of n bytes among k devices these are 2 n (k - 1) / k.

    Args:
        text: The text of the compiled program.
    """
    found = dict.fromkeys(KINDS, 0)
    for line in _LINE.finditer(_COMMENT.sub("", text)):
        result = sum(_count_bytes(array) for array in _ARRAY.finditer(line["result"]))
        if line["start"] and line["result"].startswith("("):
            result //= 2  # a -start names its input and its result, except for all-reduce
        found[line["kind"]] += _count_share(line["kind"], result, _find_size(line["rest"]))
    return found


def _count_bytes(array: re.Match[str]) -> int:
    bits = int(re.sub(r"\D", "", array["type"]) or 8)  # as in f32; pred takes a byte
    return math.prod([int(dim) for dim in array["dims"].split(",") if dim]) * max(bits // 8, 1)


def _find_size(rest: str) -> int:
    """Return the number of devices in a group of a collective."""
    groups = _GROUPS.search(rest)
    if groups is None:
        return len(jax.devices())
    if groups["mesh"] is not None:
        sizes = dict(re.findall(r"'([^']+)'=(\d+)", groups["mesh"]))
        return math.prod([int(sizes[name]) for name in re.findall(r"'([^']+)'", groups["axes"])])
    return int(groups["size"] or len(groups["listed"].split(",")))


def _count_share(kind: str, result: int, size: int) -> int:
    if kind == "collective-permute":
        return result
    if kind == "reduce-scatter":
        return result * (size - 1)
    return (2 if kind == "all-reduce" else 1) * (result * (size - 1) // size)


@final
class Programs:
    """The programs compiled since this object was made, and the largest traffic among them.

    A program goes with the function that it was compiled for, so call `look` while the functions are in use.
    """

    def __init__(self) -> None:
        self.received: Mapping[str, int] = dict.fromkeys(KINDS, 0)
        """Bytes that each device receives in one execution of the program that receives most, by kind of collective."""
        self._known = set(_list_programs())

    def look(self) -> None:
        """Look at the programs compiled since the last look."""
        for text in _list_programs():
            if text not in self._known:
                self._known.add(text)
                self.received = max(self.received, count_received(text), key=lambda found: sum(found.values()))


def _list_programs() -> Iterator[str]:
    """Yield the texts of all compiled programs."""
    for program in jax.local_devices()[0].client.live_executables():
        for module in program.hlo_modules():
            yield module.to_string()
