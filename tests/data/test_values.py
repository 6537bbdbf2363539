"""A column that nobody touches comes out with the type and every bit that it had: types x operations.

Each case makes a dataset of a few blocks with a column of one type, empty blocks and blocks of missing values among
them, and does one thing to it that leaves the column alone. What comes out is compared with what Arrow, or numpy, had
before. ``HOCKET_TEST_SEED=20001`` repeats the day of a failure.
"""

from __future__ import annotations

import datetime as dt
import decimal
import io
import math
import os
import random
import struct
import tempfile
import uuid
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd  # type: ignore[import-untyped,unused-ignore]  # it may lack its stubs
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import parquet

import hocket
from hocket import data
from hocket.data import aggregate
from hocket.data.expressions import col

pytestmark = pytest.mark.timeout(300)

TODAY = int(os.environ.get("HOCKET_TEST_SEED", dt.datetime.now(dt.UTC).date().toordinal()))

Make = Callable[[random.Random], object]


def whole(bits: int, *, signed: bool) -> Make:
    least, most = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return lambda rng: rng.choice([least, most, 0, 1, most // 2 + 1, rng.randint(least, most)])


def fraction(rng: random.Random) -> float:
    return rng.choice([0.5, -0.0, 0.0, math.nan, math.inf, -math.inf, 2.0**-14, float(rng.randint(-2000, 2000))])


def text(rng: random.Random) -> str:
    return rng.choice(["", "a", "é", "\U0001f600", "a\0b", "NaN", str(rng.random())])


def blob(rng: random.Random) -> bytes:
    return rng.choice([b"", b"\0", b"\xff\xfe", rng.randbytes(5)])


def digits(precision: int, scale: int) -> Make:
    return lambda rng: decimal.Decimal(rng.randint(-(10**precision) + 1, 10**precision - 1)).scaleb(
        -scale, decimal.Context(prec=80)
    )


def listed(make: Make, most: int = 3, least: int = 0) -> Make:
    return lambda rng: [None if rng.random() < 0.2 else make(rng) for _ in range(rng.randint(least, most))]


def mapped(make: Make) -> Make:
    return lambda rng: [(f"k{at}", None if rng.random() < 0.3 else make(rng)) for at in range(rng.randint(0, 2))]


def dicts(**makes: Make) -> Make:
    return lambda rng: {name: None if rng.random() < 0.3 else make(rng) for name, make in makes.items()}


BIG = whole(62, signed=True)
SMALL = whole(31, signed=True)
KINDS: dict[str, tuple[Any, Make]] = {
    **{f"int{bits}": (getattr(pa, f"int{bits}")(), whole(bits, signed=True)) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": (getattr(pa, f"uint{bits}")(), whole(bits, signed=False)) for bits in (8, 16, 32, 64)},
    **{kind.__name__: (kind(), fraction) for kind in (pa.float16, pa.float32, pa.float64)},
    "bool": (pa.bool_(), lambda rng: rng.random() < 0.5),
    "string": (pa.string(), text),
    "large_string": (pa.large_string(), text),
    "binary": (pa.binary(), blob),
    "large_binary": (pa.large_binary(), blob),
    "binary5": (pa.binary(5), lambda rng: rng.randbytes(5)),
    "date32": (pa.date32(), whole(15, signed=True)),
    "date64": (pa.date64(), lambda rng: rng.randint(-9000, 9000) * 86_400_000),
    **{f"time32_{unit}": (pa.time32(unit), lambda rng: rng.randint(0, 86_399)) for unit in ("s", "ms")},
    **{f"time64_{unit}": (pa.time64(unit), lambda rng: rng.randint(0, 86_399_999_999)) for unit in ("us", "ns")},
    **{
        f"timestamp_{unit}_{zone}": (pa.timestamp(unit, zone), BIG if unit == "ns" else SMALL)
        for unit in ("s", "ms", "us", "ns")
        for zone in (None, "Asia/Tokyo")
    },
    "timestamp_offset": (pa.timestamp("us", "+05:30"), SMALL),
    **{f"duration_{unit}": (pa.duration(unit), BIG if unit == "ns" else SMALL) for unit in ("s", "ms", "us", "ns")},
    "interval": (pa.month_day_nano_interval(), lambda rng: (rng.randint(0, 9), rng.randint(0, 9), rng.randint(0, 9))),
    "decimal32": (pa.decimal32(7, 2), digits(7, 2)),
    "decimal128": (pa.decimal128(10, 2), lambda rng: digits(rng.randint(1, 10), 2)(rng)),
    "decimal0": (pa.decimal128(38, 0), digits(38, 0)),
    "decimal256": (pa.decimal256(60, 3), digits(60, 3)),
    "word": (pa.dictionary(pa.int8(), pa.string()), text),
    "ordered": (pa.dictionary(pa.int32(), pa.int64(), ordered=True), whole(3, signed=True)),
    "uuid": (pa.uuid(), lambda rng: rng.randbytes(16)),
    "list": (pa.list_(pa.int32()), listed(SMALL)),
    "list_of_big": (pa.list_(pa.uint64()), listed(whole(64, signed=False))),
    "large_list": (pa.large_list(pa.float32()), listed(fraction)),
    "pair": (pa.list_(pa.float32(), 2), listed(fraction, 2, 2)),
    "list_of_ns": (pa.list_(pa.timestamp("ns", "Asia/Tokyo")), listed(BIG)),
    "list_of_half": (pa.list_(pa.float16()), listed(fraction)),
    "list_of_words": (pa.list_(pa.dictionary(pa.int8(), pa.string())), listed(text)),
    "lists": (pa.list_(pa.list_(pa.int16())), listed(listed(whole(16, signed=True)))),
    "struct": (
        pa.struct([("x", pa.int64()), ("X", pa.duration("ns")), ("t", pa.string())]),
        dicts(x=whole(64, signed=True), X=BIG, t=text),
    ),
    "structs": (
        pa.list_(pa.struct([("a", pa.int8()), ("b", pa.date32())])),
        listed(dicts(a=whole(8, signed=True), b=whole(15, signed=True))),
    ),
    "map": (pa.map_(pa.string(), pa.int64()), mapped(whole(64, signed=True))),
    "tensor": (pa.fixed_shape_tensor(pa.float32(), (2, 2)), lambda rng: [fraction(rng) for _ in range(4)]),
    "half_tensor": (pa.fixed_shape_tensor(pa.float16(), (2,)), lambda rng: [fraction(rng) for _ in range(2)]),
}


def build(kind: Any, make: Make, rng: random.Random, count: int, gaps: float) -> Any:
    values = [None if rng.random() < gaps else make(rng) for _ in range(count)]
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, pa.array(values, kind.storage_type))
    if pa.types.is_dictionary(kind):
        held = pa.array(values, kind.value_type)
        if not kind.ordered:
            return held.dictionary_encode().cast(kind)
        known = held.unique().drop_null().sort()  # the same order in each block
        return pa.DictionaryArray.from_arrays(pc.index_in(held, known).cast(kind.index_type), known, ordered=True)
    if pa.types.is_float16(kind):
        return pa.array([None if value is None else np.float16(cast("float", value)) for value in values], kind)
    return pa.array(values, kind)


def fill(kind: str, rng: random.Random) -> list[pa.Table]:
    """Return tables with a column x of a type, some without rows, or without values."""
    type_, make = KINDS[kind]
    tables, start = [], 0
    for number in range(rng.randint(1, 4)):
        count = 0 if number and rng.random() < 0.2 else rng.randint(1, 5)
        column = build(type_, make, rng, count, rng.choice([0.0, 0.0, 0.4, 1.0]))
        ids = pa.array(range(start, start + count), pa.int64())
        keys = pa.array([rng.randint(0, 2) for _ in range(count)], pa.int64())
        tables.append(pa.table({"id": ids, "k": keys, "x": column}))
        start += count
    return tables


def bits(value: Any) -> object:
    """Return what a value of Arrow's is, so that only the same bits are equal."""
    if not value.is_valid:
        return None
    kind = value.type
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType) or types.is_dictionary(kind):
        return bits(value.value)
    if types.is_floating(kind):
        return struct.pack("<d", float(value.as_py()))
    if types.is_struct(kind):
        return {field.name: bits(value[field.name]) for field in kind}
    if types.is_nested(kind):
        return [bits(one) for one in value.values]
    return value.value if types.is_temporal(kind) and not types.is_interval(kind) else value.as_py()


def read(column: Any) -> list[object]:
    return [bits(value) for value in column]


def choose(name: str) -> str | None:
    return None if name == "None" else name


def touch(batch: Any) -> Any:
    """Return a batch with another column changed, and this one as it is."""
    if isinstance(batch, dict):
        return {**batch, "k": batch["k"] + 1}
    if isinstance(batch, pd.DataFrame):
        return batch.assign(k=batch["k"] + 1)
    return batch.set_column(1, "k", pa.array([key.as_py() + 1 for key in batch["k"]], pa.int64()))


def restrict(frame: Any) -> Any:
    return frame.rename(columns={"x": "y"}).drop(columns=["k"]).rename(columns={"y": "x"})


def write(rows: data.Dataset, most: int | None = None) -> data.Dataset:
    with tempfile.TemporaryDirectory() as folder:
        rows.write_parquet(folder, max_rows_per_file=most)
        return data.read_parquet(folder).materialize()


def pass_on(form: str) -> Callable[[data.Dataset], data.Dataset]:
    return lambda rows: rows.map_batches(lambda batch: batch, batch_format=choose(form))


def touch_in(form: str) -> Callable[[data.Dataset], data.Dataset]:
    return lambda rows: rows.map_batches(touch, batch_format=form, batch_size=3)


def group_in(form: str) -> Callable[[data.Dataset], data.Dataset]:
    return lambda rows: rows.groupby("k").map_groups(lambda group: group, batch_format=form)


OPERATIONS: dict[str, Callable[[data.Dataset], data.Dataset]] = {
    "nothing": lambda rows: rows,
    "map": lambda rows: rows.map(lambda row: row),
    "map_copy": lambda rows: rows.map(lambda row: {"x": row["x"], "id": row["id"]}),
    "flat_map": lambda rows: rows.flat_map(lambda row: [row]),
    "filter": lambda rows: rows.filter(lambda row: row["id"] >= 0),
    "filter_expr": lambda rows: rows.filter(expr=col("id") >= 0),
    **{f"map_batches_{form}": pass_on(form) for form in ("numpy", "pandas", "pyarrow", "None")},
    **{f"touch_{form}": touch_in(form) for form in ("numpy", "pandas", "pyarrow")},
    "map_batches_owned": lambda rows: rows.map_batches(lambda batch: batch, zero_copy_batch=False),
    "map_batches_yields": lambda rows: rows.map_batches(lambda batch: iter([batch]), batch_size=2),
    "map_batches_frames": lambda rows: rows.map_batches(restrict, batch_format="pandas"),
    "twice": lambda rows: rows.map_batches(lambda batch: batch).map_batches(touch, batch_format="pandas"),
    **{f"map_groups_{form}": group_in(form) for form in ("numpy", "pandas", "pyarrow")},
    "add_column": lambda rows: rows.add_column("z", lambda frame: frame["id"] * 2),
    "with_column": lambda rows: rows.with_column("z", col("id") * 2),
    "rename": lambda rows: rows.rename_columns({"x": "X"}).rename_columns({"X": "x"}),
    "sort": lambda rows: rows.sort("id", descending=True),
    "shuffle": lambda rows: rows.random_shuffle(seed=1),
    "repartition": lambda rows: rows.repartition(2),
    "limit": lambda rows: rows.limit(100),
    "union": lambda rows: rows.filter(lambda row: row["id"] < 2).union(rows.filter(lambda row: row["id"] >= 2)),
    "zip": lambda rows: rows.select_columns(["id"]).zip(rows.select_columns(["x"])),
    "join": lambda rows: rows.select_columns(["id", "x"]).join(rows.select_columns(["id", "k"]), on="id"),
    "join_right": lambda rows: rows.select_columns(["id"]).join(
        rows.select_columns(["id", "x"]), "left_outer", on="id"
    ),
    "as_list": lambda rows: rows.groupby("id").aggregate(aggregate.AsList("x", alias_name="xs")),
    "split": lambda rows: rows.split(2)[0].union(rows.split(2)[1]),
    "write": write,
    "write_small": lambda rows: write(rows, 2),
}

CANNOT = {"write": ("interval",), "write_small": ("interval",)}
"""What Arrow's Parquet has no type for."""


def check_case(kind: str, operation: str, seed: int) -> None:
    rng = random.Random(zlib.crc32(f"{kind} {operation} {seed}".encode()))
    tables = fill(kind, rng)
    before = pa.concat_tables(tables)
    if operation.startswith("write"):  # Parquet itself has no seconds
        parquet.write_table(before, file := io.BytesIO())
        before = parquet.read_table(file)
    made = OPERATIONS[operation](data.from_blocks(tables)).materialize()
    found = made.to_arrow()
    order = sorted(range(len(found)), key=found["id"].to_pylist().__getitem__)
    assert found["id"].take(order).to_pylist() == before["id"].to_pylist()
    if operation == "as_list":
        assert [read(values.values)[0] for values in found["xs"].take(order)] == read(before["x"])
        return
    assert read(found["x"].take(order)) == read(before["x"])
    if before["x"].null_count < len(before):
        assert found.schema.field("x").type == before.schema.field("x").type


# --- columns of numpy's -----------------------------------------------------------------------------------------------

SHAPES: dict[str, tuple[int, ...]] = {"": (), "pairs": (2,), "grids": (2, 3), "empty": (0,), "flat": (2, 0)}
ARRAYS = {
    f"{dtype}_{name}": (np.dtype(dtype), shape)
    for dtype in (
        "?",
        "i1",
        "i8",
        "u2",
        "u8",
        "f2",
        "f4",
        "f8",
        "M8[D]",
        "M8[s]",
        "M8[ns]",
        "m8[us]",
        "m8[ns]",
        "U3",
        "S3",
    )
    for name, shape in SHAPES.items()
    if shape or dtype[0] not in "US"
} | {f"{dtype}_ragged": (np.dtype(dtype), None) for dtype in ("?", "u1", "i8", "f2", "f4", "M8[us]", "m8[ns]", "U3")}


def draw(dtype: np.dtype[Any], shape: tuple[int, ...], rng: np.random.Generator) -> Any:
    if dtype.kind in "US":
        words = np.array(["", "ab", "abc"], dtype)
        return words[rng.integers(0, 3, shape)]
    if dtype.kind in "mM":
        return rng.integers(-9000, 9000, shape).astype(dtype)
    raw = rng.integers(0, 256, (*shape, dtype.itemsize), np.uint8)
    return raw[..., 0] > 127 if dtype.kind == "b" else raw.copy().view(dtype)[..., 0]


def hold(rows: list[Any]) -> Any:
    found = np.empty(len(rows), object)
    for at, row in enumerate(rows):
        found[at] = row
    return found


def fill_arrays(kind: str, seed: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng([zlib.crc32(kind.encode()), seed])
    dtype, shape = ARRAYS[kind]
    blocks, start = [], 0
    for _ in range(rng.integers(1, 4)):
        count = int(rng.integers(1, 5))
        if shape is None:
            column = hold([draw(dtype, tuple(rng.integers(0, 3, 2)), rng) for _ in range(count)])
        else:
            column = draw(dtype, (count, *shape), rng)
        blocks.append({"id": np.arange(start, start + count), "k": rng.integers(0, 3, count), "x": column})
        start += count
    return blocks


def show(value: Any) -> object:
    """Return what a row holds, so that only the same bits of the same type are equal."""
    if isinstance(value, np.ndarray):
        return (
            value.dtype.kind if value.dtype.kind in "US" else value.dtype.str,
            value.shape,
            value.tobytes() if value.dtype.kind not in "US" else value.tolist(),
        )
    if isinstance(value, float):
        return struct.pack("<d", value)
    return pd.Timestamp(value) if isinstance(value, dt.datetime) else value


def check_arrays(kind: str, operation: str, seed: int) -> None:
    given = fill_arrays(kind, seed)
    made = OPERATIONS[operation](data.from_blocks(given)).materialize()
    rows = sorted(made.take_all(), key=lambda row: row["id"])
    found = [row["xs"][0] if operation == "as_list" else row["x"] for row in rows]
    column = [value for block in given for value in block["x"]]
    if operation == "as_list":  # Arrow's lists have no arrays inside
        assert len(found) == len(column)
        return
    dtype, shape = ARRAYS[kind]
    if operation.startswith("write") and dtype == "M8[s]" and shape != ():  # Parquet itself has no seconds
        column = [value.astype("M8[ms]") for value in column]
    if shape == ():
        column = [
            (pd.Timestamp if dtype.kind == "M" else pd.Timedelta)(one) if "ns" in kind else one.item() for one in column
        ]
    assert [show(value) for value in found] == [show(value) for value in column]
    batch = made.take_batch(100)["x"]
    is_same_shape = shape is not None and dtype.kind not in "US"
    assert not is_same_shape or operation.startswith("write") or batch.dtype == dtype


@pytest.fixture(scope="module", autouse=True)
def inprocess() -> Iterator[None]:
    """Run tasks here: a case takes milliseconds."""
    with hocket.init(num_cpus=2, engine="inprocess"):
        yield


def run_cases(seed: int, kind: str, operations: list[str]) -> None:
    wrong = {}
    for operation in operations:
        if kind in CANNOT.get(operation, ()):
            continue
        try:
            (check_case if kind in KINDS else check_arrays)(kind, operation, seed)
        except Exception as error:  # noqa: BLE001 (each is listed)
            wrong[operation] = f"{type(error).__name__}: {str(error).strip()[-300:]}"
    assert not wrong, f"HOCKET_TEST_SEED={seed}: {kind}: " + "\n".join(f"{name}: {why}" for name, why in wrong.items())


@pytest.mark.parametrize("kind", [*KINDS, *ARRAYS])
def test_a_column_that_is_left_alone_keeps_type_and_bits(kind: str) -> None:
    """Each type meets a quarter of the operations, and each operation a quarter of the types."""
    turn = [*KINDS, *ARRAYS].index(kind) % 4
    run_cases(1, kind, list(OPERATIONS)[turn::4])


@pytest.mark.parametrize("kind", [*KINDS, *ARRAYS])
def test_so_it_does_today(kind: str) -> None:
    """Each type meets all operations, with other values each day."""
    run_cases(TODAY, kind, list(OPERATIONS))


# --- views ------------------------------------------------------------------------------------------------------------

PLAIN = [kind for kind, (type_, _) in KINDS.items() if not pa.types.is_nested(type_) and "tensor" not in kind]


@pytest.mark.parametrize("kind", [kind for kind in PLAIN if kind not in ("interval", "uuid", "time64_ns")])
def test_a_view_is_what_arrow_makes(kind: str) -> None:
    (table, *_) = (one for one in (fill(kind, random.Random(seed))[0] for seed in range(50)) if len(one) > 2)
    rows = data.from_arrow(table)
    right = table.to_pandas()["x"]
    pd.testing.assert_series_equal(rows.to_pandas()["x"], right)
    pd.testing.assert_series_equal(rows.take_batch(99, batch_format="pandas")["x"], right)
    batch = rows.take_batch(99)["x"]
    array = table["x"].combine_chunks().to_numpy(zero_copy_only=False)
    assert batch.dtype == array.dtype
    assert [show(value) for value in batch.tolist()] == [show(value) for value in array.tolist()]
    assert [bits_of(row["x"], table) for row in rows.take_all()] == [
        bits_of(value, table) for value in table["x"].to_pylist()
    ]


def bits_of(value: Any, table: pa.Table) -> object:
    return bits(pa.scalar(value, table.schema.field("x").type))


def test_a_part_of_a_column_keeps_what_only_its_type_says() -> None:
    kinds = {
        "text": pa.array(["a", "b", None], pa.large_string()),
        "price": pa.array([decimal.Decimal("1.50"), decimal.Decimal("2.25"), None], pa.decimal128(10, 2)),
        "when": pa.array([1, 2, None], pa.timestamp("us", "Asia/Tokyo")),
        "day": pa.array([1, 2, None], pa.date32()),
        "word": pa.array(["x", "y", "x"]).dictionary_encode().cast(pa.dictionary(pa.int16(), pa.string())),
        "id": pa.array([0, 1, 2]),
    }
    table = pa.table(kinds)
    rows = data.from_arrow(table)
    for form in ("numpy", "pandas"):
        cut = rows.map_batches(cut_batch, batch_format=form).to_arrow()
        assert cut.schema.types == table.schema.types, form
        assert cut.to_pylist() == table.slice(1).to_pylist()
    local = rows.map_batches(lambda frame: frame.assign(when=frame["when"].dt.tz_localize(None)), batch_format="pandas")
    assert local.to_arrow().schema.field("when").type == pa.timestamp("us")  # as the function wanted it


def cut_batch(batch: Any) -> Any:
    return batch.iloc[1:] if isinstance(batch, pd.DataFrame) else {name: values[1:] for name, values in batch.items()}


def test_what_a_function_changes_is_changed() -> None:
    big = 2**53 + 1
    table = pa.table({"x": pa.array([big, None]), "l": pa.array([[1, None], [2]]), "d": [{"a": 1}, {"a": None}]})
    rows = data.from_arrow(table)

    def write_into(batch: Any) -> Any:
        batch["x"][1] = 5
        batch["l"][0][0] = 7
        batch["d"][0]["a"] = 3
        return batch

    changed = rows.map_batches(write_into, zero_copy_batch=False).take_all()
    assert [row["x"] for row in changed] == [float(big - 1), 5.0]
    assert (changed[0]["l"][0], changed[0]["d"]) == (7.0, {"a": 3})

    def write_into_row(row: Any) -> Any:
        row["l"].append(9)
        row["d"]["a"] = 4
        return row

    assert [row["l"] for row in rows.map(write_into_row).take_all()] == [[1, None, 9], [2, 9]]
    assert rows.map(write_into_row).take_all()[0] == {"x": big, "l": [1, None, 9], "d": {"a": 4}}
    swapped = rows.map_batches(lambda batch: {"y": batch["x"], "x": batch["x"] * 0}).take_all()
    assert [row["y"] for row in swapped] == [big, None]
    assert rows.map(lambda row: {"z": row["x"]}).take_all() == [{"z": big}, {"z": None}]


# --- values that come from Python, and types that meet ----------------------------------------------------------------

FINE = pd.Timestamp(1_577_836_800_123_456_789)


@pytest.mark.parametrize(
    "value",
    [
        FINE,
        FINE.tz_localize("Asia/Tokyo"),
        pd.Timedelta(123_456_789),
        [FINE],
        {"a": [FINE]},
        2**63,
        2**64,
        "\ud800",
        dt.date(2020, 1, 2),
        uuid.UUID(int=5),
        np.array([["a", "bc"]]),
        np.array([1 + 2j]),
    ],
)
def test_a_value_of_python_stays_what_it_is(value: Any) -> None:
    for rows in (data.from_items([{"x": value}, {"x": None}]), data.range(2).map(lambda row: {"x": value})):
        (found, *_) = (row["x"] for row in rows.map(lambda row: {"x": row["x"]}).take_all())
        assert show(found) == show(value)


def test_values_of_several_kinds_stay_apart() -> None:
    for several in ([dt.date(2020, 1, 1), dt.datetime(2020, 1, 1, 5)], ["a", b"b"], [2**53 + 1, 0.5], [2**63 + 1, -1]):  # noqa: DTZ001 (without a zone)
        assert [row["item"] for row in data.from_items(several).take_all()] == several


def tables(*columns: Any) -> data.Dataset:
    return data.from_arrow([pa.table({"x": column}) for column in columns])


BIG_AND_NEGATIVE = (pa.array([2**63 + 1, 1], pa.uint64()), pa.array([-1, 1], pa.int64()))


def test_blocks_with_and_without_signs_meet_without_loss() -> None:
    rows = tables(*BIG_AND_NEGATIVE)
    values = [2**63 + 1, 1, -1, 1]
    assert [row["x"] for row in rows.take_all()] == values
    assert [type(row["x"]) for row in rows.take_all()] == [int] * 4
    assert rows.to_arrow()["x"].to_pylist() == values
    assert [row["x"] for row in rows.sort("x").take_all()] == sorted(values)
    assert rows.unique("x") == [-1, 1, 2**63 + 1]
    assert [row["count()"] for row in rows.groupby("x").count().take_all()] == [1, 2, 1]
    assert (rows.sum("x"), rows.min("x"), rows.max("x")) == (sum(values), -1, 2**63 + 1)
    assert [int(value) for (batch,) in [rows.iter_batches()] for value in batch["x"]] == values
    left, right = (tables(column) for column in BIG_AND_NEGATIVE)
    assert left.join(right, on="x").take_all() == [{"x": 1}]
    small = tables(pa.array([1, 2], pa.uint64()), pa.array([-3], pa.int64())).sort("x")
    assert small.to_arrow().schema.field("x").type == pa.int64()
    mixed = data.from_numpy([np.array([2**63], np.uint64), np.array([-1])])
    assert [row["data"] for row in mixed.take_all()] == [2**63, -1]


def test_whole_numbers_beside_fractions_are_exact_or_refused() -> None:
    assert tables(pa.array([1]), pa.array([0.5])).to_arrow()["x"].to_pylist() == [1.0, 0.5]
    rows = tables(pa.array([2**53 + 1]), pa.array([0.5]))
    assert [row["x"] for row in rows.take_all()] == [2**53 + 1, 0.5]
    with pytest.raises(TypeError, match="Column 'x' is int64 in some blocks and must become double to join the others"):
        rows.to_arrow()
    with pytest.raises(TypeError, match="Column 'x' is int64 in some blocks and must become double"):
        rows.unique("x")


def test_blocks_without_values_fit_beside_all() -> None:
    rows = tables(pa.array([None], pa.string()), pa.array([2**63], pa.uint64()), pa.array([None], pa.uint64()))
    assert [row["x"] for row in rows.take_all()] == [None, 2**63, None]
    assert rows.to_arrow().schema.field("x").type == pa.uint64()
    assert rows.sort("x").to_arrow()["x"].to_pylist() == [2**63, None, None]
    assert rows.sort("x").to_arrow().schema.field("x").type == pa.uint64()


def test_a_sum_is_exact_or_refused() -> None:
    assert tables(pa.array([2**63, 1], pa.uint64())).sum("x") == 2**63 + 1
    assert tables(pa.array([2**62] * 3)).sum("x") == 3 * 2**62
    assert tables(pa.array([2**63 - 1] * 2), pa.array([-(2**63)] * 2)).sum("x") == -2
    assert tables(pa.array([-(2**63)])).aggregate(aggregate.AbsMax("x")) == {"abs_max(x)": 2**63}
    with pytest.raises(OverflowError, match="A value is too large for its column: 18446744073709551616"):
        tables(pa.array([2**63, 2**63], pa.uint64())).sum("x")


def test_a_missing_key_is_nan_where_it_was_nan() -> None:
    (first, last) = tables(pa.array([math.nan, 1.0]), pa.array([math.nan])).groupby("x").count().take_all()
    assert (first["x"], math.isnan(last["x"]), last["count()"]) == (1.0, True, 2)
    assert tables(pa.array([None, 1.0])).unique("x") == [1.0, None]


UNSIGNED, SIGNED, FLOATS = [2**64 - 1, 3], [-(2**62) - 1, 2], [2.0**62, 0.5]


@pytest.mark.parametrize(
    ("expr", "right"),
    [
        (col("u") > col("i"), [True, True]),
        (col("u") == 2**64 - 1, [True, False]),
        (col("u") > -1, [True, True]),
        (col("i") < col("f"), [True, False]),
        (-col("i") == col("f"), [False, False]),
        (col("i") / 2, [(-(2**62) - 1) / 2, 1.0]),
        (col("u") / col("i"), [(2**64 - 1) / (-(2**62) - 1), 1.5]),
        (col("u") - 1, [2**64 - 2, 2]),
        (col("u") // 10, [(2**64 - 1) // 10, 0]),
        (col("u") % 10, [5, 3]),
        (col("i").is_in([0.5, 2]), [False, True]),
        (-col("b"), [-255, -1]),
    ],
)
def test_expressions_of_whole_numbers_are_exact(expr: Any, right: list[Any]) -> None:
    table = pa.table(
        {"u": pa.array(UNSIGNED, pa.uint64()), "i": SIGNED, "f": FLOATS, "b": pa.array([255, 1], pa.uint8())}
    )
    assert [row["y"] for row in data.from_arrow(table).with_column("y", expr).take_all()] == right


def test_what_cannot_be_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    for number, (rows, write, message) in enumerate(
        [
            (data.from_numpy(np.zeros((2, 2), complex)), "parquet", "'data' has arrays of complex128, for which Arrow"),
            (data.from_items([2**64]), "parquet", "Column 'item' cannot be an Arrow column"),
            (data.from_items(["\ud800"]), "parquet", "Column 'item' cannot be an Arrow column"),
            (data.from_items([[1]]), "csv", "column 'item' is list<item: int64>, which this kind of file cannot hold"),
            (data.from_numpy(np.zeros((2, 2))), "orc", "column 'data' is extension<arrow.fixed_shape_tensor"),
        ]
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            getattr(rows, f"write_{write}")(tmp_path / str(number))
        assert not [path for path in (tmp_path / str(number)).rglob("*") if path.suffix in (".parquet", ".csv", ".orc")]
    with pytest.raises(TypeError, match=r"sort\(x\): column 'x' is decimal256\(60, 3\), which cannot be a key"):
        tables(pa.array([1], pa.decimal256(60, 3))).sort("x").take_all()


def test_parquet_is_written_in_the_types_of_a_schema(tmp_path: Path) -> None:
    rows = data.range(2)
    rows.write_parquet(tmp_path / "a", schema=pa.schema([("id", pa.float32())]))
    assert data.read_parquet(tmp_path / "a").to_arrow().schema.types == [pa.float32()]
    both = pa.schema([("id", pa.int8()), ("more", pa.string())])
    rows.write_parquet(tmp_path / "c", schema=both)
    assert data.read_parquet(tmp_path / "c").to_arrow().schema.types == [pa.int8(), pa.string()]
    rows.add_column("k", lambda frame: frame["id"]).write_parquet(
        tmp_path / "d", partition_cols=["k"], schema=pa.schema([("k", pa.int64()), ("id", pa.int8())])
    )
    assert data.read_parquet(tmp_path / "d", columns=["id"]).to_arrow().schema.types == [pa.int8()]
    with pytest.raises(TypeError, match="schema must be an Arrow schema, but received 5"):
        rows.write_parquet(tmp_path / "b", schema=5)
    with pytest.raises(ValueError, match="the schema lacks the column 'id', which the rows have"):
        rows.write_parquet(tmp_path / "b", schema=pa.schema([("x", pa.int8())]))
    with pytest.raises(ValueError, match="column 'id' cannot be int8, as the schema says"):
        data.from_items([{"id": 300}]).write_parquet(tmp_path / "b", schema=pa.schema([("id", pa.int8())]))
