"""Draws which device holds which part of a value, in a terminal or in a file."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import rich.console
import rich.table
import rich.text

from hocket import extras
from hocket.mesh import layouts, operations


class _Grid(NamedTuple):
    """The parts of a value as a grid: lines for the first dim that is cut, columns for the others."""

    title: str
    lines: list[str]
    columns: list[str]
    cells: dict[tuple[str, str], list[int]]
    """The numbers of the devices that hold each part, by line and column."""


def visualize(
    value: Any, shape: Sequence[int] | None = None, *, path: str | os.PathLike[str] | None = None
) -> Path | None:
    """Draw which device holds which part of a value.

    Args:
        value: A DTensor, or a layout.
        shape: The shape of the whole value, if `value` is a layout.
        path: A file for the picture, such as ``"kernel.png"``, which matplotlib draws. Default: it is printed.

    Returns:
        The path of the file, if `path` is given.

    Raises:
        TypeError: `value` is neither a DTensor nor a layout, or a layout has no shape.
        ValueError: The layout does not fit the shape.
        ImportError: matplotlib is missing.

    Example:
        >>> import tempfile
        >>> from hocket.mesh import UNSHARDED, Layout, Mesh, visualize
        >>> layout = Layout(["x", UNSHARDED], Mesh({"x": 2, "y": 2}))
        >>> visualize(layout, (8, 4), path=tempfile.mkdtemp() + "/rows.png").name
        'rows.png'
    """
    if operations.is_dtensor(value):
        layout, shape = value.layout, value.shape
    elif isinstance(value, layouts.Layout) and shape is not None:
        layout = value
    else:
        raise TypeError(
            f"visualize() takes a DTensor, or a layout and a shape, but received {value!r} and {shape!r}. Write "
            "visualize(layout, (64, 8))."
        )
    assert shape is not None
    grid = _lay_out(layout, tuple(shape))
    if path is not None:
        return _save(grid, Path(path))
    table = rich.table.Table("", *grid.columns, show_lines=True)
    for line in grid.lines:
        table.add_row(line, *[_name_devices(grid.cells[line, column]) for column in grid.columns])
    console = rich.console.Console()
    console.print(rich.text.Text(grid.title), table, sep="\n")
    return None


def _lay_out(layout: layouts.Layout, shape: tuple[int, ...]) -> _Grid:
    places = layout.slices(shape)
    cut = [dim for dim in range(layout.rank) if layout.num_shards(dim) > 1]
    down, across = cut[:1], cut[1:]
    if len(cut) < 2:
        down, across = ([0], [max([1, *cut])]) if layout.rank > 1 else ([*range(layout.rank)], [])
    names = [(_name_part(place, down), _name_part(place, across)) for place in places]
    cells: dict[tuple[str, str], list[int]] = {}
    for number, name in enumerate(names):
        cells.setdefault(name, []).append(number)
    sums = f", terms of a sum along {', '.join(layout.partial)}" if layout.partial else ""
    title = f"{' x '.join(map(str, shape)) or 'a number'} as {layout.sharding_specs}{sums}, on {layout.mesh.describe()}"
    ordered = [
        name for _, name in sorted(zip(places, names, strict=True), key=lambda pair: [one.start for one in pair[0]])
    ]
    lines, columns = (list(dict.fromkeys(side)) for side in zip(*ordered, strict=True))
    return _Grid(title, lines, columns, cells)


def _name_part(place: tuple[slice, ...], dims: Sequence[int]) -> str:
    return ", ".join(f"dim {dim}: {place[dim].start} to {place[dim].stop - 1}" for dim in dims)


def _name_devices(numbers: Sequence[int]) -> str:
    return f"device{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"


def _save(grid: _Grid, path: Path) -> Path:
    figures = extras.load("matplotlib.figure", "A picture of a mesh", "matplotlib", "Run pip install 'hocket[plot]'.")
    figure = figures.Figure(figsize=(2 + 1.6 * len(grid.columns), 1 + 0.7 * len(grid.lines)), layout="constrained")
    axes = figure.add_subplot()
    colors: dict[tuple[int, ...], int] = {}
    shades = [
        [colors.setdefault(tuple(grid.cells[line, column]), len(colors)) for column in grid.columns]
        for line in grid.lines
    ]
    axes.imshow(shades, cmap="Pastel1", vmin=0, vmax=8, aspect="auto")
    for (row, line), (place, column) in itertools.product(enumerate(grid.lines), enumerate(grid.columns)):
        axes.text(place, row, _name_devices(grid.cells[line, column]), ha="center", va="center", fontsize=9)
    axes.set_xticks(range(len(grid.columns)), grid.columns)
    axes.set_yticks(range(len(grid.lines)), grid.lines)
    axes.set_title(grid.title, fontsize=10)
    figure.savefig(path, dpi=150)
    return path
