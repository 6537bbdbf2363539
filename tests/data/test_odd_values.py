"""Values that few programs have: they come out as they were, or are refused by an error that names their column."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

import hocket
from hocket import data


@pytest.fixture(scope="module", autouse=True)
def session() -> Iterator[None]:
    with hocket.init(num_cpus=1, engine="inprocess"):
        yield


# --- views of lists ---------------------------------------------------------------------------------------------------

INNER: tuple[Any, ...] = (
    pa.int8(),
    pa.string(),
    pa.string_view(),
    pa.list_view(pa.int16()),
    pa.large_list_view(pa.string()),
    pa.list_(pa.list_view(pa.int8())),
    pa.large_list(pa.list_view(pa.int8())),
    pa.list_(pa.list_view(pa.string()), 2),
    pa.struct([("a", pa.list_view(pa.int8())), ("b", pa.string())]),
    pa.map_(pa.string(), pa.list_view(pa.int8())),
)
VIEWS = [*map(pa.list_view, INNER), *map(pa.large_list_view, INNER), *INNER[5:]]


def draw(kind: Any, rng: random.Random) -> Any:
    if rng.random() < 0.2:
        return None
    if pa.types.is_struct(kind):
        return {field.name: draw(field.type, rng) for field in kind}
    if pa.types.is_map(kind):
        return [(f"k{at}", draw(kind.item_type, rng)) for at in range(rng.randint(0, 2))]
    if pa.types.is_nested(kind):
        count = kind.list_size if pa.types.is_fixed_size_list(kind) else rng.randint(0, 3)
        return [draw(kind.value_type, rng) for _ in range(count)]
    return rng.choice(["", "a", "bc"]) if "string" in str(kind) else rng.randint(-9, 9)


CUTS: dict[str, Callable[[Any], list[Any]]] = {
    "whole": lambda table: [table],
    "cut": lambda table: [table.slice(3)],
    "from the middle": lambda table: [table.slice(2, 4)],
    "chunks": lambda table: [pa.concat_tables([table.slice(0, 3), table.slice(5), table.slice(1, 1)])],
    "blocks": lambda table: [table.slice(0, 3), table.slice(3)],
    "none": lambda table: [table.slice(9)],
}


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("kind", VIEWS, ids=str)
def test_views_of_lists_become_lists(kind: Any, cut: str) -> None:
    rng = random.Random(str(kind))
    tables = CUTS[cut](pa.table({"id": range(9), "x": pa.array([draw(kind, rng) for _ in range(9)], kind)}))
    found = data.from_arrow(tables).to_arrow()
    found.validate(full=True)
    assert found["x"].to_pylist() == [value for table in tables for value in table["x"].to_pylist()]
    assert "view" not in str(found["x"].type)
    if cut == "blocks":
        assert (
            data.from_arrow(tables).sort("id", descending=True).to_arrow()["x"].to_pylist()
            == (found["x"].to_pylist()[::-1])
        )


def test_views_may_share_values_and_stand_in_any_order() -> None:
    for lists, width, plain in (
        (pa.ListViewArray, pa.int32(), pa.list_(pa.string())),
        (pa.LargeListViewArray, pa.int64(), pa.large_list(pa.string())),
    ):
        views = lists.from_arrays(pa.array([3, 0, 1, 4], width), pa.array([1, 3, 2, 0], width), pa.array(list("abcd")))
        found = data.from_arrow(pa.table({"x": views})).to_arrow()
        assert found["x"].type == plain
        assert found["x"].to_pylist() == [["d"], ["a", "b", "c"], ["b", "c"], []]
