"""Preprocessors that programs write themselves, as Ray documents them."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import hocket
from hocket import data
from hocket.data.preprocessor import Preprocessor, PreprocessorNotFittedException
from hocket.data.preprocessors import Chain, StandardScaler


@pytest.fixture(scope="module", autouse=True)
def session() -> Iterator[None]:
    with hocket.init(num_cpus=2):
        yield


class Centre(Preprocessor):
    """Learns, keeps it in `stats_`, and takes data frames."""

    def __init__(self, column: str) -> None:
        self.column = column

    def _fit(self, dataset: data.Dataset) -> Preprocessor:
        self.stats_ = {"mean": dataset.mean(self.column)}
        return self

    def _transform_pandas(self, frame: Any) -> Any:
        return frame.assign(**{self.column: frame[self.column] - self.stats_["mean"]})


class Largest(Preprocessor):
    """Learns, keeps it in an attribute, and takes arrays."""

    def _fit(self, dataset: data.Dataset) -> None:
        self.most = dataset.max("x")

    def _transform_numpy(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {**batch, "x": batch["x"] / self.most}


class Rows(Preprocessor):
    """Has nothing to learn, and takes tables of Arrow's."""

    _is_fittable = False

    def _transform_arrow(self, table: Any) -> Any:
        return table.append_column("rows", [np.full(table.num_rows, table.num_rows)])


def make() -> data.Dataset:
    return data.from_items([{"x": 1.0, "y": "a"}, {"x": 3.0, "y": "b"}], override_num_blocks=1)


def test_frames_arrays_and_tables() -> None:
    rows = make()
    assert Centre("x").fit_transform(rows).take_all() == [{"x": -1.0, "y": "a"}, {"x": 1.0, "y": "b"}]
    assert [row["x"] for row in Largest().fit(rows).transform(rows).take_all()] == [1 / 3, 1.0]
    assert [row["rows"] for row in Rows().transform(rows).take_all()] == [2, 2]
    assert [row["rows"] for row in Rows().transform(rows, batch_size=1).take_all()] == [1, 1]


def test_batches_and_rows() -> None:
    learnt = Centre("x").fit(make())
    assert learnt.transform_batch({"x": np.array([5.0])})["x"].tolist() == [3.0]
    assert learnt.transform_row({"x": 2.0, "y": "c"}) == {"x": 0.0, "y": "c"}
    assert Largest().fit(make()).transform_batch({"x": np.array([6.0])})["x"].tolist() == [2.0]


def test_what_was_learnt_travels() -> None:
    learnt = Centre("x").fit(make())
    opened = pickle.loads(pickle.dumps(learnt))
    saved = Preprocessor.deserialize(learnt.serialize())
    for one in (opened, saved):
        assert one.has_been_fitted
        assert one.transform_row({"x": 2.0}) == {"x": 0.0}


def test_they_stand_in_chains() -> None:
    chain = Chain(Centre("x"), StandardScaler(["x"]))
    assert [row["x"] for row in chain.fit_transform(make()).take_all()] == [-1.0, 1.0]


def test_states() -> None:
    kinds = Preprocessor.FitStatus
    assert (Centre("x").fit_status(), Rows().fit_status()) == (kinds.NOT_FITTED, kinds.NOT_FITTABLE)
    assert Largest().fit(make()).fit_status() is kinds.FITTED
    assert Rows().fit(make()).fit_status() is kinds.NOT_FITTABLE


class Lazy(Preprocessor):
    """Has no method."""


def test_mistakes() -> None:
    with pytest.raises(PreprocessorNotFittedException, match=r"has not learnt from data yet. Call fit\(dataset\)"):
        Largest().transform(make())
    with pytest.raises(
        NotImplementedError, match=r"Lazy has no _fit\(dataset\). Write this method, or set _is_fittable"
    ):
        Lazy().fit(make())
    Lazy._is_fittable = False
    with pytest.raises(NotImplementedError, match=r"Lazy has no method that transforms\. Write _transform_numpy"):
        Lazy().transform(make())
