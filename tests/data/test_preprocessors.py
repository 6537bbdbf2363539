"""Preprocessors beside scikit-learn, SciPy and pandas: on blocks, rows and batches, saved and read."""

from __future__ import annotations

import collections
import datetime as dt
import hashlib
import json
import math
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped,unused-ignore]  # it may lack its stubs
import pyarrow as pa
import pytest
import scipy.special  # type: ignore[import-untyped,unused-ignore]  # the same
import sklearn.preprocessing
from sklearn.feature_extraction.text import CountVectorizer as SklearnCounts
from sklearn.impute import SimpleImputer as SklearnImputer

import hocket
from hocket import data
from hocket.data import preprocessors as pre

pytestmark = pytest.mark.timeout(120)

ROWS = 60
BLOCKS = pytest.mark.parametrize("num_blocks", [1, 7])
WORDS = ["the cat", "a dog saw the cat", "", "the the end", "dog  dog"]


def draw(values: list[Any], seed: int) -> list[Any]:
    return [values[at] for at in np.random.default_rng(seed).integers(0, len(values), ROWS)]


def build_columns() -> dict[str, Any]:
    rng = np.random.default_rng(1)
    gaps = rng.normal(3, 2, ROWS)
    gaps[::7] = np.nan
    return {
        "x": rng.normal(50, 7, ROWS),
        "y": rng.integers(-9, 9, ROWS),
        "gaps": gaps,
        "same": np.full(ROWS, 0.1),
        "zero": np.zeros(ROWS),
        "positive": rng.lognormal(size=ROWS),
        "flag": rng.random(ROWS) < 0.5,
        "color": draw(["red", "green", "blue", "é"], 2),
        "size": draw([3, 1, 2], 3),
        "tags": draw([["a", "b"], ["b"], [], ["c", "a", "a"]], 4),
        "text": draw(WORDS, 5),
        "hole": draw(["u", None, "v", "v"], 6),
        "count": draw([1, None, 4], 7),
        "vector": rng.normal(size=(ROWS, 3)),
    }


COLUMNS = build_columns()


def build_rows(num_blocks: int = 1) -> data.Dataset:
    rows = [
        {
            name: value if isinstance(value, np.ndarray) else getattr(value, "item", lambda v=value: v)()
            for name, value in zip(COLUMNS, row, strict=True)
        }
        for row in zip(*COLUMNS.values(), strict=True)
    ]
    return data.from_items(rows, override_num_blocks=num_blocks)


@pytest.fixture(scope="module", autouse=True)
def here() -> Any:
    with hocket.init(num_cpus=2, engine="inprocess") as context:
        yield context


def transform(preprocessor: pre.Preprocessor, num_blocks: int) -> dict[str, Any]:
    rows = build_rows(num_blocks)
    found: dict[str, Any] = preprocessor.fit_transform(rows).take_batch(ROWS)
    return found


def assert_close(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(np.asarray(found, float), np.asarray(wanted, float), rtol=1e-12, atol=1e-12)


def stack(names: list[str]) -> Any:
    return np.stack([np.asarray(COLUMNS[name], float) for name in names], axis=1)


NUMBERS = ["x", "y", "gaps", "same", "zero", "flag"]

SCALERS: list[tuple[Callable[[list[str]], pre.Preprocessor], Any]] = [
    (pre.StandardScaler, sklearn.preprocessing.StandardScaler()),
    (pre.MinMaxScaler, sklearn.preprocessing.MinMaxScaler()),
    (pre.MaxAbsScaler, sklearn.preprocessing.MaxAbsScaler()),
    (pre.RobustScaler, sklearn.preprocessing.RobustScaler()),
    (
        lambda names: pre.RobustScaler(names, (0.1, 0.8)),
        sklearn.preprocessing.RobustScaler(quantile_range=(10.0, 80.0)),
    ),
]


@BLOCKS
@pytest.mark.parametrize(("make", "theirs"), SCALERS, ids=["standard", "minmax", "maxabs", "robust", "robust-range"])
def test_scalers_beside_scikit_learn(make: Any, theirs: Any, num_blocks: int) -> None:
    found = transform(make(NUMBERS), num_blocks)
    assert_close(np.stack([found[name] for name in NUMBERS], axis=1), theirs.fit_transform(stack(NUMBERS)))
    assert found["color"].tolist() == COLUMNS["color"]


@pytest.mark.parametrize("values", [[1e9 + 0.1] * 9, [1e-10, 2e-10, 3e-10], [1e15, 1e15 + 1, 1e15 + 2], [5.0]])
@pytest.mark.parametrize(("make", "theirs"), SCALERS[:1])
def test_what_is_constant_is_as_in_scikit_learn(make: Any, theirs: Any, values: list[float]) -> None:
    found = make(["x"]).fit_transform(data.from_numpy({"x": np.array(values)})).take_batch(9)["x"]
    np.testing.assert_allclose(
        found, theirs.fit_transform(np.array(values)[:, None])[:, 0], rtol=1e-9, atol=1e-6
    )  # where it is rounding


@BLOCKS
@pytest.mark.parametrize("norm", ["l1", "l2", "max"])
def test_normalizer_beside_scikit_learn(norm: str, num_blocks: int) -> None:
    names = ["x", "y", "zero"]
    found = transform(pre.Normalizer(names, norm), num_blocks)
    assert_close(np.stack([found[name] for name in names], 1), sklearn.preprocessing.normalize(stack(names), norm=norm))
    assert pre.Normalizer(["x", "y"], norm).transform_row({"x": 0, "y": 0.0}) == {"x": 0.0, "y": 0.0}


@BLOCKS
@pytest.mark.parametrize("power", [-1.0, 0, 0.3, 1, 2, 2.5])
def test_powers_beside_scikit_learn_and_scipy(power: float, num_blocks: int) -> None:
    theirs = sklearn.preprocessing.PowerTransformer(standardize=False).fit(stack(["y"]))
    theirs.lambdas_ = np.array([float(power)])
    found = transform(pre.PowerTransformer(["y", "gaps"], power), num_blocks)
    assert_close(found["y"], theirs.transform(stack(["y"]))[:, 0])
    assert_close(found["gaps"], theirs.transform(stack(["gaps"]))[:, 0])
    found = transform(pre.PowerTransformer(["positive"], power, "box-cox"), num_blocks)
    assert_close(found["positive"], scipy.special.boxcox(COLUMNS["positive"], power))


@BLOCKS
def test_encoders_beside_scikit_learn(num_blocks: int) -> None:
    both = np.array([COLUMNS["color"], COLUMNS["size"]], object).T
    found = transform(pre.OrdinalEncoder(["color", "size"]), num_blocks)
    wanted = sklearn.preprocessing.OrdinalEncoder().fit_transform(both)
    assert found["color"].dtype == np.int64
    assert np.stack([found["color"], found["size"]], 1).tolist() == wanted.tolist()

    found = transform(pre.OneHotEncoder(["color", "size"]), num_blocks)
    wanted = sklearn.preprocessing.OneHotEncoder(sparse_output=False).fit_transform(both)
    assert found["color"].dtype == np.uint8
    assert np.concatenate([found["color"], found["size"]], 1).tolist() == wanted.tolist()

    found = transform(pre.LabelEncoder("color", output_column="label"), num_blocks)
    assert found["label"].tolist() == sklearn.preprocessing.LabelEncoder().fit_transform(COLUMNS["color"]).tolist()

    found = transform(pre.MultiHotEncoder(["tags"]), num_blocks)
    wanted = sklearn.preprocessing.MultiLabelBinarizer().fit_transform(COLUMNS["tags"])
    assert (found["tags"] > 0).astype(int).tolist() == wanted.tolist()
    assert found["tags"].tolist() == [[row.count(tag) for tag in "abc"] for row in COLUMNS["tags"]]


@BLOCKS
def test_most_categories(num_blocks: int) -> None:
    rows = data.from_items([{"x": x} for x in "bbcacad"], override_num_blocks=num_blocks)
    encoder = pre.OneHotEncoder(["x"], max_categories={"x": 2}).fit(rows)
    assert encoder.stats_ == {"unique_values(x)": {"a": 0, "b": 1}}  # equally frequent: the first
    assert encoder.transform_row({"x": "c"})["x"].tolist() == [0, 0]


@BLOCKS
def test_lists_as_categories(num_blocks: int) -> None:
    whole = pre.OrdinalEncoder(["tags"], encode_lists=False)
    found = transform(whole, num_blocks)
    assert whole.stats_ == {"unique_values(tags)": {(): 0, ("a", "b"): 1, ("b",): 2, ("c", "a", "a"): 3}}
    index = whole.stats_["unique_values(tags)"]
    assert found["tags"].tolist() == [index[tuple(tags)] for tags in COLUMNS["tags"]]
    parts = pre.OrdinalEncoder(["tags"])
    rows = parts.fit_transform(build_rows(num_blocks)).take_all()
    assert [list(row["tags"]) for row in rows] == [["abc".index(tag) for tag in tags] for tags in COLUMNS["tags"]]
    assert parts.transform_row({"tags": ["b", "z"]}) == {"tags": [1, None]}


def test_unknown_categories() -> None:
    rows = build_rows()
    assert math.isnan(pre.OrdinalEncoder(["color"]).fit(rows).transform_row({"color": "pink"})["color"])
    assert math.isnan(pre.LabelEncoder("color").fit(rows).transform_row({"color": "pink"})["color"])
    assert pre.OneHotEncoder(["size"]).fit(rows).transform_row({"size": 9})["size"].tolist() == [0, 0, 0]
    assert pre.MultiHotEncoder(["tags"]).fit(rows).transform_row({"tags": ["z", "a"]})["tags"].tolist() == [1, 0, 0]


@BLOCKS
def test_labels_and_back(num_blocks: int) -> None:
    encoder = pre.LabelEncoder("color", output_column="label")
    encoded = encoder.fit_transform(build_rows(num_blocks)).drop_columns("color")
    assert encoder.inverse_transform(encoded).take_batch(ROWS)["color"].tolist() == COLUMNS["color"]


@BLOCKS
def test_categorizer_beside_pandas(num_blocks: int) -> None:
    ordered = pd.CategoricalDtype(["red", "green"], ordered=True)
    categorizer = pre.Categorizer(["color", "hole"], {"color": ordered}, ["c", "h"])
    made = categorizer.fit_transform(build_rows(num_blocks))
    assert made.schema().types[-2:] == [  # type: ignore[union-attr]
        "dictionary<values=string, indices=int32, ordered=1>",
        "dictionary<values=string, indices=int32, ordered=0>",
    ]
    batch = categorizer.transform_batch(pd.DataFrame({"color": COLUMNS["color"], "hole": COLUMNS["hole"]}))
    known = [color if color in ordered.categories else None for color in COLUMNS["color"]]
    wanted = pd.Series(pd.Categorical(known, dtype=ordered))
    pd.testing.assert_series_equal(batch["c"], wanted, check_names=False)
    assert batch["h"].cat.categories.tolist() == ["u", "v"]
    assert made.take_batch(ROWS)["c"].tolist() == known


@BLOCKS
def test_imputers_beside_scikit_learn(num_blocks: int) -> None:
    found = transform(pre.SimpleImputer(["gaps", "count"]), num_blocks)
    wanted = SklearnImputer().fit_transform(np.array([COLUMNS["gaps"], COLUMNS["count"]], float).T)
    assert_close(np.stack([found["gaps"], found["count"]], 1), wanted)
    found = transform(pre.SimpleImputer(["hole", "count"], "most_frequent"), num_blocks)
    for name in ("hole", "count"):
        column = np.array(COLUMNS[name], object)[:, None]
        theirs = SklearnImputer(strategy="most_frequent", missing_values=None)  # type: ignore[arg-type,unused-ignore]
        assert found[name].tolist() == theirs.fit_transform(column)[:, 0].tolist()
    constant = pre.SimpleImputer(["hole"], "constant", fill_value="?", output_columns=["full"])
    found = constant.transform(build_rows(num_blocks)).take_batch(ROWS)
    assert found["full"].tolist() == [value or "?" for value in COLUMNS["hole"]]
    assert constant.transform_row({"x": 1}) == {"x": 1, "full": "?"}


@BLOCKS
@pytest.mark.parametrize("right", [True, False])
@pytest.mark.parametrize("include_lowest", [True, False])
def test_bins_beside_pandas(right: bool, include_lowest: bool, num_blocks: int) -> None:
    how: dict[str, Any] = {"right": right, "include_lowest": include_lowest}
    edges = [-9, -2.5, 0, 4, 8]
    frame = pd.DataFrame({"y": COLUMNS["y"], "gaps": COLUMNS["gaps"], "same": COLUMNS["same"]})
    found = transform(pre.CustomKBinsDiscretizer(["y", "gaps"], edges, **how), num_blocks)
    for name in ("y", "gaps"):
        assert_close(found[name], pd.cut(frame[name], edges, labels=False, **how).to_numpy(float))
    uniform = pre.UniformKBinsDiscretizer(["y", "gaps", "same"], {"y": 4, "gaps": 3, "same": 2}, **how)
    found = transform(uniform, num_blocks)
    for name, number in uniform.bins.items():  # type: ignore[union-attr]
        assert_close(found[name], pd.cut(frame[name], number, labels=False, **how).to_numpy(float))


def test_bins_with_labels() -> None:
    labels = pd.CategoricalDtype(["low", "high"], ordered=True)
    bins = pre.CustomKBinsDiscretizer(["y"], [-10, 0, 10], dtypes={"y": labels})
    found = bins.transform_batch(pd.DataFrame({"y": [1, -1, 99]}, index=[5, 6, 7]))
    assert found["y"].dtype == labels
    assert found["y"].tolist()[:2] == ["high", "low"]
    assert found.index.tolist() == [5, 6, 7]
    assert bins.transform_row({"y": 3}) == {"y": "high"}


@BLOCKS
def test_counts_of_words(num_blocks: int) -> None:
    vectorizer = pre.CountVectorizer(["text"])
    found = transform(vectorizer, num_blocks)["text"]
    counts = collections.Counter(word for text in COLUMNS["text"] for word in text.split(" "))
    order = sorted(counts, key=lambda word: (-counts[word], word))
    assert vectorizer.stats_ == {"token_counts(text)": {word: counts[word] for word in order}}
    assert list(vectorizer.stats_["token_counts(text)"]) == order
    assert found.tolist() == [[text.split(" ").count(word) for word in order] for text in COLUMNS["text"]]

    theirs = SklearnCounts(tokenizer=str.split, token_pattern=None, lowercase=False)
    wanted = theirs.fit_transform(COLUMNS["text"]).toarray()
    ours = pre.CountVectorizer(["text"], str.split)
    found = transform(ours, num_blocks)["text"]
    places = [theirs.vocabulary_[word] for word in ours.stats_["token_counts(text)"]]
    assert found.tolist() == wanted[:, places].tolist()
    assert (
        list(pre.CountVectorizer(["text"], max_features=2).fit(build_rows()).stats_["token_counts(text)"]) == order[:2]
    )


@BLOCKS
def test_hashes(num_blocks: int) -> None:
    def place(word: str) -> int:
        return int(hashlib.sha256(word.encode()).hexdigest(), 16) % 8

    found = transform(pre.HashingVectorizer(["text"], 8), num_blocks)["text"]
    wanted = np.zeros((ROWS, 8), int)
    for row, text in enumerate(COLUMNS["text"]):
        for word in text.split(" "):
            wanted[row, place(word)] += 1
    assert found.tolist() == wanted.tolist()
    sums = transform(pre.FeatureHasher(["x", "y", "size"], 8, "sums"), num_blocks)["sums"]
    theirs = np.zeros((ROWS, 8))
    for name in ("x", "y", "size"):
        theirs[:, place(name)] += COLUMNS[name]
    assert_close(sums, theirs)


@BLOCKS
def test_concatenator(num_blocks: int) -> None:
    found = transform(pre.Concatenator(["x", "y"], dtype=np.float32), num_blocks)
    assert found["concat_out"].dtype == np.float32
    assert found["concat_out"].tolist() == stack(["x", "y"]).astype(np.float32).tolist()
    assert "x" not in found
    found = transform(pre.Concatenator(["vector", "x"], flatten=True), num_blocks)
    assert_close(found["concat_out"], np.column_stack([COLUMNS["vector"], COLUMNS["x"]]))
    ragged = pre.Concatenator(["v", "x"], "all", flatten=True)
    rows = ragged.transform(data.from_items([{"v": [1, 2], "x": 3}, {"v": [4], "x": 5}])).take_all()
    assert [list(row["all"]) for row in rows] == [[1, 2, 3], [4, 5]]


def test_missing_texts_stay_missing() -> None:
    rows = data.from_items([{"t": "a b"}, {"t": None}, {"t": "b"}], override_num_blocks=2)
    assert pre.Tokenizer(["t"]).transform(rows).take_all() == [{"t": ["a", "b"]}, {"t": None}, {"t": ["b"]}]
    counted = pre.CountVectorizer(["t"]).fit_transform(rows).take_all()
    assert [row["t"] if row["t"] is None else list(row["t"]) for row in counted] == [[1, 1], None, [1, 0]]


def halve(image: Any) -> Any:
    return image / 2


def test_torchvision() -> None:
    images = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    rows = data.from_numpy({"image": images})
    for batched in (False, True):
        halved = pre.TorchVisionPreprocessor(["image"], halve, ["half"], batched)
        assert halved.transform(rows).take_batch(2)["half"].tolist() == (images / 2).tolist()
        assert repr(halved).startswith("TorchVisionPreprocessor(columns=['image'], transform=halve")
    needs_array = pre.TorchVisionPreprocessor(["image"], np.ascontiguousarray)
    assert needs_array.transform_row({"image": images[0]})["image"].tolist() == images[0].tolist()


ALL: list[pre.Preprocessor] = [
    pre.StandardScaler(["x", "gaps"]),
    pre.MinMaxScaler(["y"], ["scaled"]),
    pre.MaxAbsScaler(["y", "flag"]),
    pre.RobustScaler(["x", "gaps"], quantile_range=(0.1, 0.9)),
    pre.Normalizer(["x", "y"], "l1"),
    pre.PowerTransformer(["y"], 0.5),
    pre.OrdinalEncoder(["color", "tags"]),
    pre.OneHotEncoder(["color", "size"], max_categories={"color": 2}),
    pre.MultiHotEncoder(["tags"], output_columns=["hot"]),
    pre.LabelEncoder("size"),
    pre.Categorizer(["color", "hole"], {"color": pd.CategoricalDtype(["red", "blue"], ordered=True)}),
    pre.SimpleImputer(["gaps", "count"]),
    pre.SimpleImputer(["hole", "count"], "most_frequent"),
    pre.SimpleImputer(["hole"], "constant", fill_value="?"),
    pre.CustomKBinsDiscretizer(["x"], [0, 40, 50, 100], dtypes={"x": ["low", "middle", "high"]}),
    pre.UniformKBinsDiscretizer(["x", "gaps"], 4),
    pre.Concatenator(["x", "y", "vector"], "all", np.float32, flatten=True),
    pre.Tokenizer(["text"], str.split),
    pre.CountVectorizer(["text"], max_features=3),
    pre.HashingVectorizer(["text"], 8),
    pre.FeatureHasher(["x", "y"], 4, "hashed"),
    pre.TorchVisionPreprocessor(["vector"], halve),
    pre.Chain(pre.SimpleImputer(["gaps"]), pre.StandardScaler(["gaps", "x"]), pre.Concatenator(["gaps", "x"], "all")),
]
EACH = pytest.mark.parametrize("preprocessor", ALL, ids=lambda one: type(one).__name__)


def is_same(found: Any, wanted: Any) -> bool:
    if isinstance(found, np.ndarray | list):
        return len(found) == len(wanted) and all(map(is_same, found, wanted))
    return bool(found == wanted or (found != found and wanted != wanted))  # noqa: PLR0124 (NaN)


def assert_rows(found: Any, wanted: Any) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert list(one) == list(other)
        assert [name for name in one if not is_same(one[name], other[name])] == []


@EACH
def test_rows_and_batches_are_as_the_data_set(preprocessor: pre.Preprocessor) -> None:
    rows = build_rows(5)
    wanted = preprocessor.fit_transform(rows).take_all()
    assert len(wanted) == ROWS
    assert_rows([preprocessor.transform_row(row) for row in rows.take_all()], wanted)
    whole = rows.take_batch(ROWS)
    before = {name: values.copy() for name, values in whole.items()}
    batch = preprocessor.transform_batch(whole)
    assert list(batch) == list(wanted[0])
    for name in preprocessor.get_output_columns():
        assert isinstance(batch[name], np.ndarray)
        assert is_same(list(batch[name]), [row[name] for row in wanted])
    assert all(is_same(list(before[name]), list(whole[name])) for name in before)
    frame = preprocessor.transform_batch(rows.to_pandas())
    assert isinstance(frame, pd.DataFrame)
    assert list(frame.columns) == list(wanted[0])
    for name in preprocessor.get_output_columns():
        values = frame[name].astype(object).where(frame[name].notna(), None).tolist()
        assert is_same(
            [np.nan if value is None else value for value in values],
            [np.nan if row[name] is None else row[name] for row in wanted],
        )


@EACH
def test_saving(preprocessor: pre.Preprocessor, tmp_path: Path) -> None:
    rows = build_rows(2)
    wanted = preprocessor.fit_transform(rows).take_all()
    preprocessor.save(tmp_path / "saved.json")
    found = pre.Preprocessor.load(tmp_path / "saved.json", allow_functions=True)
    assert type(found) is type(preprocessor)
    assert repr(found) == repr(preprocessor)
    assert found.stats_ == preprocessor.stats_
    assert found.fit_status() == preprocessor.fit_status()
    assert_rows(found.transform(rows).take_all(), wanted)
    assert_rows(pickle.loads(pickle.dumps(preprocessor)).transform(rows).take_all(), wanted)


def test_what_is_saved_can_be_read() -> None:
    text = pre.StandardScaler(["x"]).fit(data.from_items([{"x": 1.0}, {"x": 3.0}])).serialize()
    assert json.loads(text) == {
        "hocket_preprocessor": 1,
        "name": "StandardScaler",
        "arguments": {"columns": ["x"], "output_columns": ["x"]},
        "stats": {"mean(x)": 2.0, "std(x)": 1.0},
    }


@pytest.mark.parametrize(
    "values",
    [
        [pd.Timestamp("2026-01-01 00:00:00.000000001"), pd.Timestamp("2026-01-01 00:00:00.000000002")],
        [pd.Timedelta(-7, "ns"), pd.Timedelta(7001, "ns")],
    ],
)
def test_nanoseconds_are_saved(values: list[Any]) -> None:
    rows = data.from_items([{"x": value} for value in values])
    encoder = pre.Preprocessor.deserialize(pre.OrdinalEncoder(["x"]).fit(rows).serialize())
    assert encoder.transform(rows).take_all() == [{"x": 0}, {"x": 1}]


def test_functions_are_imported_on_request() -> None:
    text = pre.Tokenizer(["x"], str.split).serialize()
    with pytest.raises(ValueError, match=re.escape("calls the function 'builtins:str.split'")):
        pre.Preprocessor.deserialize(text)


def test_columns_that_are_not_transformed_stay_as_they_are() -> None:
    table = pa.table({"x": [1.0, 2.0], "id": pa.array([None, 2**60 + 1]), "at": pa.array([0, 1], pa.timestamp("s"))})
    rows = data.from_arrow(table)
    made = pre.MinMaxScaler(["x"]).fit_transform(rows)
    assert made.schema() == rows.schema()
    assert [row["id"] for row in made.take_all()] == [None, 2**60 + 1]
    assert made.num_blocks() == 1
    frame = pd.DataFrame({"x": [1.0], "c": pd.Categorical(["a"])}, index=["row"])
    found = pre.MinMaxScaler(["x"]).fit(rows).transform_batch(frame)
    assert found["c"].dtype == frame["c"].dtype
    assert found.index.tolist() == ["row"]
    assert frame["x"].tolist() == [1.0]


def test_a_transformed_data_set_keeps_what_was_learnt() -> None:
    scaler = pre.MaxAbsScaler(["x"])
    first = scaler.fit_transform(data.from_items([{"x": 2.0}]))
    scaler.fit(data.from_items([{"x": 8.0}]))
    assert first.take_all() == [{"x": 1.0}]
    assert scaler.transform_row({"x": 2.0}) == {"x": 0.25}


def test_status() -> None:
    rows = data.from_items([{"x": 1.0, "y": 2.0}])
    scaler, other = pre.StandardScaler(["x"]), pre.StandardScaler(["y"])
    chain = pre.Chain(scaler, other, pre.Concatenator(["x", "y"]))
    assert [one.fit_status() for one in chain.preprocessors] == ["NOT_FITTED", "NOT_FITTED", "NOT_FITTABLE"]
    assert chain.fit_status() is pre.FitStatus.NOT_FITTED
    scaler.fit(rows)
    assert chain.fit_status() is pre.Preprocessor.FitStatus.PARTIALLY_FITTED
    assert chain.fit(rows).has_been_fitted
    assert pre.Chain(pre.Tokenizer(["x"])).fit_status() == "NOT_FITTABLE"
    assert chain.get_input_columns() == ["x", "y"]
    assert chain.get_output_columns() == ["concat_out"]


def test_a_failed_fit_changes_nothing() -> None:
    scaler = pre.StandardScaler(["x"]).fit(data.from_items([{"x": 1.0}]))
    with pytest.raises(ValueError, match="holds infinity"):
        scaler.fit(data.from_items([{"x": math.inf}]))
    assert scaler.stats_ == {"mean(x)": 1.0, "std(x)": 0.0}


def test_a_chain_of_which_a_member_fails_to_learn_keeps_what_it_had() -> None:
    inner = pre.StandardScaler(["x"])
    chain = pre.Chain(pre.Chain(inner), pre.OrdinalEncoder(["y"]))
    chain.fit(data.from_items([{"x": 0.0, "y": "a"}, {"x": 2.0, "y": "b"}]))
    with pytest.raises(ValueError, match="cannot learn categories from missing values"):
        chain.fit(data.from_items([{"x": 10.0, "y": None}, {"x": 20.0, "y": "b"}]))
    assert inner.stats_ == {"mean(x)": 1.0, "std(x)": 1.0}
    assert chain.transform_row({"x": 2.0, "y": "b"}) == {"x": 1.0, "y": 1}
    new = pre.Chain(pre.StandardScaler(["x"]), pre.OrdinalEncoder(["y"]))
    with pytest.raises(ValueError, match="cannot learn categories from missing values"):
        new.fit(data.from_items([{"x": 1.0, "y": None}]))
    assert new.fit_status() is pre.FitStatus.NOT_FITTED


def test_times_with_a_zone_are_the_same_in_batches_of_numpy() -> None:
    """Numpy has them in UTC, without the zone."""
    times = [dt.datetime(2026, 1, 1, hour, tzinfo=dt.UTC) for hour in (1, 5, 1)]
    plain = [time.replace(tzinfo=None) for time in times]
    rows = data.from_arrow(pa.table({"at": pa.array(times, pa.timestamp("us", "Asia/Tokyo"))}))
    for encoder in (pre.OrdinalEncoder(["at"]), pre.LabelEncoder("at"), pre.OneHotEncoder(["at"])):
        wanted = [row["at"] for row in encoder.fit_transform(rows).take_all()]
        assert is_same(list(encoder.transform_batch(rows.take_batch())["at"]), wanted)
    found = pre.Categorizer(["at"]).fit(rows).transform_batch(rows.take_batch())["at"]
    assert found.tolist() == plain
    gaps = data.from_arrow(pa.table({"at": pa.array([*times, None], pa.timestamp("us", "Asia/Tokyo"))}))
    imputer = pre.SimpleImputer(["at"], "most_frequent").fit(gaps)
    filled = imputer.transform_batch(gaps.take_batch())["at"]
    assert filled.dtype.kind == "M"
    assert filled.tolist() == [*plain, plain[0]]
    assert [row["at"] for row in imputer.transform(gaps).take_all()][3] == rows.take(1)[0]["at"]


def test_batches_without_rows() -> None:
    made = pre.Concatenator(["x", "y"]).transform_batch({"x": np.empty(0), "y": np.empty(0, np.int64)})
    assert made["concat_out"].shape == (0, 2)
    made = pre.Concatenator(["x", "v"], flatten=True).transform_batch({"x": np.empty(0), "v": np.empty((0, 2, 3))})
    assert made["concat_out"].shape == (0, 7)


@pytest.mark.parametrize("make", [pre.StandardScaler, pre.MinMaxScaler, pre.MaxAbsScaler, pre.RobustScaler])
def test_all_missing_stays_missing(make: Any) -> None:
    scaler = make(["x"]).fit(data.from_items([{"x": None}, {"x": None}]))
    assert math.isnan(scaler.transform_row({"x": 1.0})["x"])
    assert scaler.transform_batch({"x": np.array([])})["x"].tolist() == []


def test_how_it_is_shown() -> None:
    assert repr(pre.StandardScaler(["x"])) == "StandardScaler(columns=['x'])"
    assert repr(pre.MinMaxScaler(["x"], ["y"])) == "MinMaxScaler(columns=['x'], output_columns=['y'])"
    assert repr(pre.Tokenizer(["x"], str.split)) == "Tokenizer(columns=['x'], tokenization_fn=str.split)"
    chain = pre.Chain(pre.MaxAbsScaler(["x"]), pre.Concatenator(["x"], dtype=np.float32))
    assert repr(chain) == "Chain(MaxAbsScaler(columns=['x']), Concatenator(columns=['x'], dtype='float32'))"
    rows = pre.Concatenator(["x"]).transform(data.from_items([{"x": 1}]))
    assert repr(rows) == "Dataset(1 blocks, 1 rows -> transform(Concatenator(columns=['x'])))"


def fit(preprocessor: pre.Preprocessor, *values: Any) -> Callable[[], object]:
    return lambda: preprocessor.fit(data.from_items([{"x": value} for value in values]))


def row(preprocessor: pre.Preprocessor, value: Any, *learnt: Any) -> Callable[[], object]:
    def call() -> object:
        if learnt:
            fit(preprocessor, *learnt)()
        return preprocessor.transform_row({"x": value})

    return call


untyped: Any = pre
X = ["x"]
NO_FIT = pre.StandardScaler(X)
ERRORS: list[tuple[Callable[[], object], type[Exception], str]] = [
    # arguments
    (lambda: untyped.StandardScaler("x"), TypeError, "columns of StandardScaler must be a list of names"),
    (lambda: pre.StandardScaler([]), ValueError, "columns of StandardScaler must name columns, each once"),
    (lambda: pre.StandardScaler(["x", "x"]), ValueError, "each once, but received ['x', 'x']"),
    (lambda: pre.StandardScaler(X, ["a", "b"]), ValueError, "output_columns must have a name for each of columns"),
    (lambda: pre.Normalizer(X, "l3"), ValueError, "norm must be one of 'l1', 'l2', 'max', but received 'l3'"),
    (lambda: pre.PowerTransformer(X, 1, "log"), ValueError, "method must be 'yeo-johnson' or 'box-cox'"),
    (lambda: untyped.PowerTransformer(X, "2"), ValueError, "power must be a number, but received '2'"),
    (lambda: pre.RobustScaler(X, (0.9, 0.1)), ValueError, "quantile_range must be two numbers from 0 to 1"),
    (
        lambda: pre.OneHotEncoder(X, max_categories={"z": 1}),
        ValueError,
        "names the column 'z', which is not one of columns=['x']",
    ),
    (lambda: pre.OneHotEncoder(X, max_categories={"x": 0}), ValueError, "max_categories['x'] must be"),
    (lambda: untyped.MultiHotEncoder(X, max_categories=3), TypeError, "max_categories must be a dict"),
    (lambda: untyped.Categorizer(X, {"x": "a"}), TypeError, "dtypes needs categories for column 'x', but received 'a'"),
    (lambda: pre.Categorizer(X, {"z": ["a"]}), ValueError, "dtypes names the column 'z'"),
    (lambda: pre.SimpleImputer(X, "median"), ValueError, "strategy must be one of 'mean', 'most_frequent', 'constant'"),
    (lambda: pre.SimpleImputer(X, "constant"), ValueError, "strategy='constant' needs a value to fill in"),
    (lambda: pre.SimpleImputer(X, fill_value=0), ValueError, "fill_value=0 is for strategy='constant'"),
    (lambda: pre.CustomKBinsDiscretizer(X, 3), TypeError, "bins must be a list of edges, but received 3"),
    (
        lambda: pre.CustomKBinsDiscretizer(X, [0, 2, 1]),
        ValueError,
        "two or more edges in rising order, but received [0, 2, 1]",
    ),
    (lambda: pre.CustomKBinsDiscretizer(X, [0, 0, 1]), ValueError, "duplicates='drop' to leave equal edges out"),
    (lambda: pre.CustomKBinsDiscretizer(X, {"z": [0, 1]}), ValueError, "bins is a dict that lacks the columns ['x']"),
    (lambda: pre.UniformKBinsDiscretizer(X, 0), ValueError, "bins must be the number of bins, a whole number from 1"),
    (lambda: pre.UniformKBinsDiscretizer(X, 2, duplicates="keep"), ValueError, "duplicates must be 'raise' or 'drop'"),
    (lambda: untyped.Tokenizer(X, "split"), TypeError, "tokenization_fn of Tokenizer must be a function"),
    (lambda: pre.HashingVectorizer(X, 0), ValueError, "num_features must be"),
    (lambda: untyped.FeatureHasher(X, None, "y"), ValueError, "num_features must be a whole number from 1"),
    (lambda: untyped.TorchVisionPreprocessor(X, 1), TypeError, "transform must be a function on tensors"),
    (pre.Chain, ValueError, "Chain() received no preprocessor"),
    (lambda: untyped.Chain(1), TypeError, "Chain() takes preprocessors, but received 1"),
    # not fitted, no data set, no batch
    (lambda: NO_FIT.transform(build_rows()), pre.PreprocessorNotFittedException, "has not learnt from data yet"),
    (lambda: NO_FIT.transform_batch({}), pre.PreprocessorNotFittedException, "cannot transform_batch()"),
    (lambda: NO_FIT.transform_row({}), pre.PreprocessorNotFittedException, "cannot transform_row()"),
    (lambda: untyped.StandardScaler(X).fit([1]), TypeError, "fit() takes a data set, but received a list"),
    (lambda: untyped.Tokenizer(X).transform({}), TypeError, "transform() takes a data set, but received a dict"),
    (lambda: pre.Tokenizer(X).transform_batch([1]), TypeError, "takes a dict of arrays or a pandas DataFrame"),
    (lambda: untyped.Tokenizer(X).transform_row([1]), TypeError, "takes a dict of values by column"),
    # data
    (lambda: pre.StandardScaler(["z"]).fit(build_rows()), KeyError, "There is no column 'z'"),
    (lambda: pre.OrdinalEncoder(["z"]).fit(build_rows()), KeyError, "There is no column 'z'"),
    (lambda: pre.Tokenizer(X).transform_row({"y": 1}), KeyError, "There is no column 'x': the columns are 'y'"),
    (lambda: pre.Tokenizer(X).transform_batch({"y": []}), KeyError, "There is no column 'x': the columns are 'y'"),
    (fit(pre.StandardScaler(X)), ValueError, "StandardScaler.fit() needs rows to learn from"),
    (fit(pre.OneHotEncoder(X)), ValueError, "OneHotEncoder.fit() needs rows to learn from"),
    (fit(pre.MinMaxScaler(X), "a"), TypeError, "needs numbers, but the column holds string"),
    (fit(pre.MinMaxScaler(X), 1.0, -math.inf), ValueError, "column 'x' holds infinity"),
    (
        row(pre.MinMaxScaler(X), "a", 1, 2),
        TypeError,
        "MinMaxScaler needs one number for each row, but column 'x' holds",
    ),
    (fit(pre.MaxAbsScaler(X), [1, 2]), TypeError, "needs numbers, but the column holds"),
    (row(pre.MinMaxScaler(X), [1, 2], 1, 2), TypeError, "MinMaxScaler needs one number for each row"),
    (fit(pre.OrdinalEncoder(X), "a", None), ValueError, "1 values of column 'x' are None or NaN"),
    (fit(pre.OneHotEncoder(X), 1.0, math.nan), ValueError, "1 values of column 'x' are None or NaN"),
    (fit(pre.OneHotEncoder(X), {"a": 1}), TypeError, "column 'x' holds dicts"),
    (row(pre.LabelEncoder("x"), None, "a"), ValueError, "LabelEncoder cannot encode missing values"),
    (fit(pre.SimpleImputer(X), None), ValueError, "all values of column 'x' are missing"),
    (fit(pre.SimpleImputer(X, "most_frequent"), None), ValueError, "all values of column 'x' are missing"),
    (fit(pre.UniformKBinsDiscretizer(X, 3), None), ValueError, "all values of column 'x' are missing"),
    (row(pre.PowerTransformer(X, 2, "box-cox"), 0), ValueError, "needs positive numbers, but column 'x' holds 0"),
    (row(pre.Tokenizer(X), 1), TypeError, "Tokenizer needs texts, but column 'x' holds int64, such as 1"),
    (row(untyped.Tokenizer(X, len), "a"), TypeError, "must return a list of texts, but returned 1 for 'a'"),
    (row(pre.Concatenator(X), [1, 2]), TypeError, "one number for each row, unless flatten=True"),
    (row(pre.Concatenator(X, dtype=int), math.nan), ValueError, "dtype='int64' cannot hold missing values"),
    (
        row(pre.Concatenator(X, dtype="uint8"), 300.0),
        ValueError,
        "dtype='uint8' holds numbers from 0 to 255, but columns",
    ),
    (row(pre.Concatenator(X, dtype="uint8"), -1), ValueError, "have numbers from -1 to -1. Write a larger dtype"),
    (
        row(pre.CustomKBinsDiscretizer(X, [0, 1], dtypes={"x": ["a", "b"]}), 1),
        ValueError,
        "2 categories for column",
    ),
    (row(untyped.TorchVisionPreprocessor(X, str), 1), TypeError, "transform must return a tensor or an array"),
    # saving
    (lambda: pre.Tokenizer(X, lambda text: [text]).serialize(), TypeError, "tokenization_fn is <function <lambda>"),
    (lambda: pre.Preprocessor.deserialize("x"), ValueError, "This is not a saved preprocessor, because it is not JSON"),
    (
        lambda: pre.Preprocessor.deserialize("{}"),
        ValueError,
        'begins with "hocket_preprocessor": 1, but this text has None',
    ),
    (
        lambda: pre.Preprocessor.deserialize('{"hocket_preprocessor": 1, "name": "Scaler"}'),
        ValueError,
        "No preprocessor has the name 'Scaler': the known names are ",
    ),
]


@pytest.mark.parametrize(("make", "error", "message"), ERRORS)
def test_errors(make: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        make()


def test_errors_of_a_step_come_with_its_rows() -> None:
    made = pre.Tokenizer(["x"]).transform(data.from_items([{"x": 1}]))
    with pytest.raises(TypeError, match="Tokenizer needs texts"):
        made.take_all()
