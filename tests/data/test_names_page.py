"""The page of names says what is there, and names all that Ray has."""

from __future__ import annotations

import functools
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests import names_pages

from hocket import data
from hocket.data import (
    aggregate,
    context,
    datasource,
    expressions,
    grouped_data,
    iterator,
    preprocessor,
    preprocessors,
)

PAGE = Path(__file__).parents[2] / "docs" / "data_names.md"

OURS: dict[str, Any] = {
    "ray.data": data,
    "Dataset": data.Dataset,
    "GroupedData": data.GroupedData,
    "DataIterator": data.DataIterator,
    "ray.data.aggregate": aggregate,
    "ray.data.expressions": expressions,
    "Expr": expressions.Expr,
    **{f"Expr.{space}": getattr(expressions.col("x"), space) for space in ("str", "list", "struct", "dt")},
    "Expr.arr": None,
    "Expr.map": None,
    "ray.data.preprocessors": preprocessors,
    "ray.data.datasource": datasource,
}

RAYS = """
import json

import ray.data
from ray.data import aggregate, datasource, expressions, grouped_data, preprocessors


def list_public(found):
    return [name for name in dir(found) if not name.startswith("_")]


kinds = {name: getattr(aggregate, name) for name in list_public(aggregate)}
names = {
    "ray.data": ray.data.__all__,
    "Dataset": list_public(ray.data.Dataset),
    "GroupedData": list_public(grouped_data.GroupedData),
    "DataIterator": list_public(ray.data.DataIterator),
    "ray.data.aggregate": [
        name for name, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, aggregate.AggregateFn)
    ],
    "ray.data.expressions": [name for name in expressions.__all__ if not name.startswith("_")],
    "Expr": list_public(expressions.Expr),
    "ray.data.preprocessors": preprocessors.__all__,
    "ray.data.datasource": [name for name in datasource.__all__ if not name.startswith("_")],
}
for space in ("str", "list", "struct", "dt", "arr", "map"):
    names[f"Expr.{space}"] = list_public(type(getattr(expressions.col("x"), space)))
print(json.dumps({title: sorted(set(found)) for title, found in names.items()}))
"""


@functools.cache
def read_page() -> dict[str, tuple[list[str], list[str]]]:
    return names_pages.read(PAGE, "##")


def test_the_page_has_all_sections() -> None:
    assert list(read_page()) == list(OURS)
    assert sum(len(there) for there, _ in read_page().values()) > 250


@pytest.mark.parametrize("title", OURS)
def test_what_the_page_says_is_so(title: str) -> None:
    there, gone = read_page()[title]
    assert [name for name in there if not names_pages.is_there(OURS[title], name)] == [], (
        "the page says that they are there"
    )
    assert [name for name in gone if names_pages.is_there(OURS[title], name)] == [], (
        "the page says that they are not there"
    )


def test_modules_have_rays_names() -> None:
    assert context.DataContext is data.DataContext
    assert grouped_data.GroupedData is data.GroupedData
    assert iterator.DataIterator is data.DataIterator
    assert preprocessor.Preprocessor is data.Preprocessor


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed.")
def test_the_page_names_all_that_ray_has() -> None:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", RAYS], capture_output=True, text=True, check=True)
    rays = json.loads(done.stdout.splitlines()[-1])
    assert {title: sorted([*there, *gone]) for title, (there, gone) in read_page().items()} == rays
