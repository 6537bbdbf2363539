"""Expressions: what they compute, beside Python's own rules, and what they refuse."""

from __future__ import annotations

import copy
import datetime as dt
import math
import operator
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import hocket
from hocket import data
from hocket.data.expressions import Expr, col, lit, udf

untyped_col: Any = col
pytestmark = pytest.mark.timeout(120)

NUMBERS = [7, -7, 3, 0, None, 12]
OTHERS = [2, 2, -2, 5, 1, None]
TEXTS = ["Ab cd", "", None, " x ", "ümlaut", "aXbX"]


@pytest.fixture(scope="module", autouse=True)
def here() -> Iterator[hocket.SessionContext]:
    with hocket.init(num_cpus=2, engine="inprocess") as context:
        yield context


def build_rows(override_num_blocks: int = 2) -> data.Dataset:
    rows = [{"x": x, "y": y, "s": s} for x, y, s in zip(NUMBERS, OTHERS, TEXTS, strict=True)]
    return data.from_items(rows, override_num_blocks=override_num_blocks)


def compute(expr: Expr, rows: data.Dataset | None = None) -> list[Any]:
    return [row["z"] for row in (build_rows() if rows is None else rows).with_column("z", expr).take_all()]


@pytest.mark.parametrize(
    "sign",
    [
        *(operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod),
        *(operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge),
    ],
)
def test_signs_have_pythons_rules(sign: Callable[[Any, Any], Any]) -> None:
    wanted = [None if None in (x, y) else sign(x, y) for x, y in zip(NUMBERS, OTHERS, strict=True)]
    assert compute(sign(col("x"), col("y"))) == wanted
    alone = [None if x is None else sign(x, 4) for x in NUMBERS]
    assert compute(sign(col("x"), 4)) == alone
    if sign not in (operator.truediv, operator.floordiv, operator.mod):
        assert compute(sign(4, col("x"))) == [None if x is None else sign(4, x) for x in NUMBERS]
    assert compute(sign(9, col("y"))) == [None if y is None else sign(9, y) for y in OTHERS]
    floats = build_rows().with_column("x", col("x") * 1.5)
    wanted = [None if x is None or y is None else sign(x * 1.5, y) for x, y in zip(NUMBERS, OTHERS, strict=True)]
    assert compute(sign(col("x"), col("y")), floats) == wanted


def test_conditions_with_missing_values() -> None:
    assert compute((col("x") > 0) & col("s").is_not_null()) == [True, False, False, False, None, True]
    assert compute((col("x") > 0) | (col("y") > 1)) == [True, True, True, True, None, True]
    assert compute(~(col("x") > 0)) == [False, True, False, True, None, False]
    assert compute(col("x").is_null()) == [False, False, False, False, True, False]
    assert compute(col("x").is_in([7, 0, 99])) == [True, False, False, True, False, False]
    assert compute(col("x").not_in([7, 0.0])) == [False, True, True, False, True, True]
    assert compute(col("s").is_in([])) == [False] * 6
    gone = data.from_numpy({"f": np.array([1.0, np.nan])})
    assert compute(col("f").is_null(), gone) == [False, True]


@pytest.mark.parametrize(
    ("expr", "wanted"),
    [
        (col("s").str.upper(), ["AB CD", "", None, " X ", "ÜMLAUT", "AXBX"]),
        (col("s").str.len(), [5, 0, None, 3, 6, 4]),
        (col("s").str.byte_len(), [5, 0, None, 3, 7, 4]),
        (col("s").str.strip(), ["Ab cd", "", None, "x", "ümlaut", "aXbX"]),
        (col("s").str.rstrip("X"), ["Ab cd", "", None, " x ", "ümlaut", "aXb"]),
        (col("s").str.contains("b"), [True, False, None, False, False, True]),
        (col("s").str.starts_with("A"), [True, False, None, False, False, False]),
        (col("s").str.match_regex("X$"), [False, False, None, False, False, True]),
        (col("s").str.replace("X", "--"), ["Ab cd", "", None, " x ", "ümlaut", "a--b--"]),
        (col("s").str.slice(0, 2), ["Ab", "", None, " x", "üm", "aX"]),
        (col("s").str.split(" "), [["Ab", "cd"], [""], None, ["", "x", ""], ["ümlaut"], ["aXbX"]]),
        (col("s").str.split_whitespace().list.len(), [2, 1, None, 3, 1, 1]),
        (col("s").str.split("X").list.get(0), ["Ab cd", "", None, " x ", "ümlaut", "a"]),
        (col("s").str.count("X"), [0, 0, None, 0, 0, 2]),
        (col("s").str.count_regex("[a-c]"), [2, 0, None, 0, 1, 2]),
        (col("s").str.find_regex("[cX]"), [3, -1, None, -1, -1, 1]),
        (
            col("s").str.split_regex("[ X]+").list.sort(),
            [["Ab", "cd"], [""], None, ["", "", "x"], ["ümlaut"], ["", "a", "b"]],
        ),
        (col("s").str.repeat(2).str.len(), [10, 0, None, 6, 12, 8]),
        (col("s").str.is_alpha(), [False, False, None, False, True, True]),
        (col("s").str.is_lower(), [False, False, None, True, True, False]),
        (col("s").str.is_ascii(), [True, True, None, True, False, True]),
        (col("s").str.lpad(4, "."), ["Ab cd", "....", None, ". x ", "ümlaut", "aXbX"]),
        (col("s") + "!", ["Ab cd!", "!", None, " x !", "ümlaut!", "aXbX!"]),
        (lit("a") + col("s"), ["aAb cd", "a", None, "a x ", "aümlaut", "aaXbX"]),
    ],
)
def test_texts(expr: Expr, wanted: list[Any]) -> None:
    assert compute(expr) == wanted


def test_numbers_and_types() -> None:
    floats = data.from_numpy({"f": np.array([1.5, -2.5, 4.0])})
    assert compute(col("f").floor(), floats) == [1, -3, 4]
    assert compute(col("f").ceil(), floats) == [2, -2, 4]
    assert compute(col("f").round(), floats) == [2, -2, 4]
    assert compute(col("f").trunc(), floats) == [1, -2, 4]
    assert compute(col("f").abs().power(0.5), floats) == [math.sqrt(1.5), math.sqrt(2.5), 2.0]
    assert compute(col("f").sign(), floats) == [1, -1, 1]
    assert compute(-col("f"), floats) == [-1.5, 2.5, -4.0]
    assert compute((col("f") * 2).cast("int32"), floats) == [3, -5, 8]
    assert compute(lit(None), floats) == [None] * 3
    found = floats.with_columns({"a": col("f") + 1, "f": lit("text"), "b": col("f").alias("other")}).take(1)
    assert found == [{"f": "text", "a": 2.5, "b": 1.5}]
    typed = data.from_numpy({"f": np.array([1], np.float32)}).with_column("g", col("f") * 2)
    assert typed.take_batch()["g"].dtype == np.float32


def test_large_whole_numbers_beside_fractions() -> None:
    large = [2**60 + 1, -5]
    rows = data.from_arrow(pa.table({"i": large, "u": pa.array([2**64 - 1, 3], pa.uint64()), "f": [0.5, 2.5]}))
    assert compute(col("i") * 1e-9, rows) == [one * 1e-9 for one in large]
    assert compute(1.5 + col("i"), rows) == [1.5 + one for one in large]
    assert compute(col("u") - col("f"), rows) == [2**64 - 1 - 0.5, 0.5]
    assert compute(col("i") // 2.5, rows) == [one // 2.5 for one in large]
    assert compute(col("i") % 2.5, rows) == [one % 2.5 for one in large]
    assert compute(col("i") ** 1.0, rows) == [float(one) for one in large]
    assert compute(2.0 ** (col("i") * 0), rows) == [1.0] * len(large)
    assert compute(col("i").floor(), rows) == [float(one) for one in large]
    assert compute(col("u").log2(), rows) == [64, math.log2(3)]
    assert compute(col("i") < 2**64, rows) == [True, True]
    assert compute(col("u") >= 2**65, rows) == [False, False]
    with pytest.raises(ValueError, match="cannot be computed: overflow"):
        compute(col("i") * 1024, rows)


def test_times_lists_and_dicts() -> None:
    when = dt.datetime(2026, 3, 4, 5, 6, 7)  # noqa: DTZ001 (a column without a zone)
    rows = data.from_arrow(pa.table({"t": [when, None], "d": [{"x": 1}, {"x": 2}], "l": [[1, 2, 3], [4]]}))
    assert compute(col("t").dt.year(), rows) == [2026, None]
    assert compute(col("t").dt.strftime("%Y-%m"), rows) == ["2026-03", None]
    assert compute(col("t").dt.floor("day"), rows) == [when.replace(hour=0, minute=0, second=0), None]
    assert compute(col("d").struct.field("x") + 1, rows) == [2, 3]
    assert compute(col("l").list.get(0), rows) == [1, 4]
    assert compute(col("l").list.slice(0, 2), rows) == [[1, 2], [4]]


def test_parts_by_brackets() -> None:
    rows = data.from_arrow(pa.table({"d": [{"x": 1}, {"x": 2}], "l": [[1, 2, 3], [4]]}))
    assert compute(col("d").struct["x"], rows) == [1, 2]
    assert compute(col("l").list[0], rows) == [1, 4]
    assert compute(col("l").list[0:2], rows) == [[1, 2], [4]]
    assert compute(col("l").list[1:], rows) == [[2, 3], []]


def test_texts_in_a_dictionary() -> None:
    rows = data.from_arrow(pa.table({"s": pa.array(["a", "b", None, "a"]).dictionary_encode()}))
    assert compute(col("s") + "_X", rows) == ["a_X", "b_X", None, "a_X"]
    assert compute(col("s").str.upper(), rows) == ["A", "B", None, "A"]
    assert rows.filter(expr=col("s").is_in(["a"])).count() == 2


def test_names_with_dots() -> None:
    rows = data.from_items([{"sepal.length": 6.0}, {"sepal.length": 4.0}])
    assert rows.filter(expr="sepal.length > 5.0").take_all() == [{"sepal.length": 6.0}]
    with pytest.raises(ValueError, match=r"'sepal.len\(\)', which a condition on columns cannot contain"):
        rows.filter(expr="sepal.len() > 5.0")


def test_functions_of_a_users() -> None:
    @udf("float32")
    def share(part: pa.Array, whole: pa.Array) -> pa.Array:
        return pc.divide(part.cast("float64"), whole)

    rows = data.range(3).with_column("share", share(col("id"), 2) + 1)
    assert rows.take_all() == [{"id": 0, "share": 1.0}, {"id": 1, "share": 1.5}, {"id": 2, "share": 2.0}]
    with pytest.raises(ValueError, match=r"gives \[1\] for 3 rows. A function of udf\(\) takes Arrow arrays"):
        data.range(3).with_column("x", udf()(lambda numbers: [1])(col("id"))).take_all()


def test_rows_are_chosen(tmp_path: Path) -> None:
    rows = build_rows()
    assert [row["x"] for row in rows.filter(expr=col("x") > 2).take_all()] == [7, 3, 12]
    assert [row["x"] for row in rows.filter(expr="x % 2 == 1 and x // 2 < 2").take_all()] == [-7, 3]
    assert rows.filter(expr=lit(None)).count() == 0
    assert rows.filter(expr=(col("s").str.len() > 3) & ~col("x").is_null()).count() == 2
    data.range(1000).write_parquet(tmp_path)
    read = data.read_parquet(tmp_path, filter=(col("id") >= 5) & (col("id") < 8) & col("id").is_in([5, 6, 99]))
    assert [row["id"] for row in read.take_all()] == [5, 6]
    with pytest.raises(ValueError, match=r"calls modulo\(\), which cannot be evaluated while files are read"):
        data.read_parquet(tmp_path, filter=col("id") % 2 == 0)


@pytest.mark.parametrize("how", [{}, {"columns": ["i"]}, {"include_row_hash": True}], ids=["all", "one", "hashed"])
@pytest.mark.parametrize(
    ("condition", "wanted"),
    [
        (col("i") > 5.5, [2**60 + 1]),
        ("i / 2 < 3.0", [5]),
        (col("u") > 1, [2**60 + 1]),
        (col("u") > col("i"), [2**60 + 1]),
        (col("i").is_in([2.5, 5.0]), [5]),
        (col("i") > 2**64, []),
    ],
    ids=repr,
)
def test_large_whole_numbers_of_files(condition: Any, wanted: list[int], how: Any, tmp_path: Path) -> None:
    columns = {"i": [2**60 + 1, 5], "u": pa.array([2**64 - 1, 1], pa.uint64())}
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    found = data.read_parquet(tmp_path, filter=condition, **how).take_all()
    assert [row["i"] for row in found] == wanted
    assert all(len(row) == {"columns": 1, "include_row_hash": 3}.get(next(iter(how), ""), 2) for row in found)


def test_expressions_can_be_sent_and_read() -> None:
    expr = (col("x") * 2 + 1 > 3) & ~col("s").is_in(["a"]) | (col("t").str.slice(1) == "b")
    again = pickle.loads(pickle.dumps(expr))
    assert repr(again) == repr(expr) == repr(copy.deepcopy(expr))
    assert repr(expr) == (
        "((((col('x') * 2) + 1) > 3) & ~col('s').is_in(values=('a',))) | "
        "(col('t').str.slice(start=1, stop=None, step=1) == 'b')"
    )
    assert col("x").name == "x"
    assert (col("x") + 1).alias("y").name == "y"
    assert (col("x") + 1).name is None
    assert len({col("x"), col("x")}) == 2
    assert (col("x") + 1).structurally_equals(col("x") + 1)
    assert not (col("x") + 1).structurally_equals(col("x") + 2)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda rows: rows.with_column("z", 5), TypeError, r"with_column\('z'\) takes an expression, but received 5"),
        (lambda rows: rows.with_column(5, col("x")), TypeError, "takes the name of a column, but received 5"),
        (lambda rows: rows.with_columns({}), TypeError, r"with_columns\(\) takes a dict, but received {}"),
        (lambda rows: rows.with_column("z", col("gone") + 1).take(1), KeyError, "no column 'gone': the columns are"),
        (
            lambda rows: rows.with_column("z", col("s") * 2).take(1),
            ValueError,
            r"with_column\('z', col\('s'\) \* 2\) cannot be computed: .*'s' \(string\)",
        ),
        (lambda rows: rows.with_column("z", col("x") // 0).take(1), ValueError, "cannot be computed: divide by zero"),
        (lambda rows: rows.with_column("z", col("x") * 2**62).take(1), ValueError, "cannot be computed: overflow"),
        (
            lambda rows: rows.filter(expr=col("x") + 1).take(1),
            ValueError,
            "gives int64, but a condition must give True",
        ),
        (lambda rows: rows.filter(col("x") > 1), TypeError, r"Write filter\(expr=col\('x'\) > 3\)"),
        (lambda rows: rows.filter(expr=5), TypeError, "expr must be a text or an expression, but received 5"),
        (lambda rows: col("x") > 1 and col("y") > 1, TypeError, "is neither true nor false .* Write & for and"),
        (lambda rows: 1 < col("x") < 3, TypeError, "is neither true nor false"),
        (lambda rows: col("x").is_in("abc"), TypeError, r"is_in\(\) takes a list of values, but received 'abc'"),
        (
            lambda rows: untyped_col("x").list["y"],
            TypeError,
            r"indexed by a whole number or a slice, but received 'y'. Write .list\[0\]",
        ),
        (
            lambda rows: untyped_col("x").struct[0],
            TypeError,
            r"values are selected by name, but received 0. Write .struct\['x'\]",
        ),
        (lambda rows: untyped_col(3), TypeError, r"col\(\) takes the name of a column, but received 3"),
    ],
)
def test_a_mistake_is_told(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make(build_rows())


def test_quotients_and_rests_of_fractions_are_pythons() -> None:
    pairs = [(1.0, 0.1), (5.5, 0.1), (1e300, 0.1), (-5.0, math.inf), (5.0, math.inf), (-7.5, 2.0), (7.5, -2.0)]
    rows = data.from_items([{"x": x, "y": y} for x, y in [*pairs, (None, 1.0)]])
    found = rows.with_column("q", col("x") // col("y")).with_column("r", col("x") % col("y")).take_all()
    assert [(row["q"], row["r"]) for row in found[:-1]] == [(x // y, x % y) for x, y in pairs]
    assert found[-1]["q"] is None or math.isnan(found[-1]["q"])
    with pytest.raises(ValueError, match="divide by zero"):
        rows.with_column("q", col("x") // 0.0).take_all()
    lists = data.from_arrow(pa.table({"x": [[3.0, math.nan, 1.0, None, 2.0]]}))
    assert lists.with_column("s", col("x").list.sort()).take(1)[0]["s"][:3] == [1.0, 2.0, 3.0]
