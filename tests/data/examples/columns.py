"""Columns that are computed of others by expressions, and rows chosen by them, after Ray Data's guide "Transforming
data"."""

from __future__ import annotations

from typing import Any

from hocket import data
from hocket.data.aggregate import AggregateFn, Count, ValueCounter
from hocket.data.expressions import col, lit

EXPECTED: Any = {
    "first": {"name": " ada ", "born": 1815, "age": 211, "short": "ada", "old": True, "source": "book"},
    "kept": [("alan", 114), ("grace", 120)],
    "unknown": 1,
    "chosen": ["grace"],
    "letters": 13,
    "kinds": [("book", 4)],
    "counted": (["book"], [4]),
}

PEOPLE = [
    {"name": " ada ", "born": 1815},
    {"name": "alan", "born": 1912},
    {"name": "grace", "born": 1906},
    {"name": "x", "born": None},
]


def main(folder: str) -> Any:
    people = data.from_items(PEOPLE)
    columns = (
        people.with_column("age", 2026 - col("born"))
        .with_column("short", col("name").str.strip())
        .with_column("old", (col("age") > 200) & col("born").is_not_null())
        .with_column("source", lit("book"))
    ).materialize()
    kept = columns.filter(expr=(col("age") <= 200) & ~col("born").is_null())
    letters = AggregateFn(
        init=lambda key: 0,
        accumulate_row=lambda found, row: found + len(row["short"]),
        merge=lambda one, other: one + other,
        name="letters",
    )
    counter = columns.aggregate(ValueCounter("source"))["value_counter(source)"]
    return {
        "first": columns.take(1)[0],
        "kept": [(row["name"], row["age"]) for row in kept.sort("age").take_all()],
        "unknown": people.filter(expr=col("born").is_null()).count(),
        "chosen": [row["name"] for row in columns.filter(expr=col("name").is_in(["grace", "none"])).take_all()],
        "letters": columns.aggregate(letters)["letters"],
        "kinds": [(row["source"], row["count()"]) for row in columns.groupby("source").aggregate(Count()).take_all()],
        "counted": (counter["values"], counter["counts"]),
    }
