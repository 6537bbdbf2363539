"""Transfers of compiled programs of JAX between devices, read from their text (HLO).

XLA decides, so this is what comes of layouts, and no plan. Each collective counts once, also what a loop repeats.
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
    """Return how many bytes each device receives in one execution of a program, by the kind of collective.

    Of an all-reduce of n bytes among k devices these are 2 n (k - 1) / k.

    Args:
        text: The compiled program's.
    """
    found = dict.fromkeys(KINDS, 0)
    for line in _LINE.finditer(_COMMENT.sub("", text)):
        result = sum(_count_bytes(array) for array in _ARRAY.finditer(line["result"]))
        if line["start"] and line["result"].startswith("("):
            result //= 2  # it names what is sent and what comes of it, of which all-reduce has one
        found[line["kind"]] += _count_share(line["kind"], result, _find_size(line["rest"]))
    return found


def _count_bytes(array: re.Match[str]) -> int:
    bits = int(re.sub(r"\D", "", array["type"]) or 8)  # f32; pred has a byte
    return math.prod([int(dim) for dim in array["dims"].split(",") if dim]) * max(bits // 8, 1)


def _find_size(rest: str) -> int:
    """Return how many devices a collective is among."""
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
    """The programs that are compiled from now on: which of them receives most.

    A program is gone with the function that it was compiled for, so `look` is called while they are in use.
    """

    def __init__(self) -> None:
        self.received: Mapping[str, int] = dict.fromkeys(KINDS, 0)
        """Bytes that each device receives in one execution of that program, by the kind of collective."""
        self._known = set(_list_programs())

    def look(self) -> None:
        """Look at what was compiled since."""
        for text in _list_programs():
            if text not in self._known:
                self._known.add(text)
                self.received = max(self.received, count_received(text), key=lambda found: sum(found.values()))


def _list_programs() -> Iterator[str]:
    """Give the texts of the programs that there are."""
    for program in jax.local_devices()[0].client.live_executables():
        for module in program.hlo_modules():
            yield module.to_string()
