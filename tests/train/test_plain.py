"""Metrics as plain data, and what a checkpoint may hold."""

from __future__ import annotations

import collections
import enum
import os
import socket
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hocket import train
from hocket.train.tracking import plain

CYCLE: dict[str, Any] = {}
CYCLE["inside"] = [CYCLE]


def nest(depth: int) -> dict[str, Any]:
    return {"a": nest(depth - 1)} if depth else {}


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


class Color(enum.IntEnum):
    RED = 1


class Name(str):
    __slots__ = ()


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (np.float32(0.5), 0.5),
        (np.float64(0.5), 0.5),
        (np.int8(3), 3),
        (np.uint64(2**64 - 1), 2**64 - 1),
        (np.bool_(True), True),
        (np.array(2.0), 2.0),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (np.array(["a", "b"]), ["a", "b"]),
        (np.ma.masked, None),
        (np.ma.masked_array([1.5, 2.5, 3.5], mask=[False, True, False], dtype=np.float32), [1.5, None, 3.5]),
        ((1, (2, 3)), [1, [2, 3]]),
        (collections.OrderedDict(a=1), {"a": 1}),
        (Color.RED, 1),
        (Name("x"), "x"),
        (None, None),
        (float("inf"), float("inf")),
        ("\ud800\x00", "\ud800\x00"),
    ],
    ids=repr,
)
def test_what_has_one_meaning_is_converted(given: object, found: object) -> None:
    converted = plain.convert({"key": given})["key"]
    assert converted == found
    assert type(converted) is type(found)


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ({(1, 2): 3}, TypeError, r"^Keys of metrics must be strings, but metrics has the key \(1, 2\) \(tuple\)"),
        ({"a": {1: 2}}, TypeError, r"^Keys of metrics must be strings, but metrics\['a'\] has the key 1 \(int\)"),
        ({"a": b"bytes"}, TypeError, r"^metrics\['a'\] is b'bytes' \(bytes\), but metrics take numbers, strings"),
        ({"a": [1, {2}]}, TypeError, r"^metrics\['a'\]\[1\] is \{2\} \(set\)"),
        ({"a": Unprintable()}, TypeError, r"^metrics\['a'\] is <Unprintable without a text"),
        ({"a": 1j}, TypeError, r"^metrics\['a'\] is 1j \(complex\)"),
        ({"a": np.array([1j])}, TypeError, r"^metrics\['a'\] is array"),
        ({"a": np.array([object()])}, TypeError, r"^metrics\['a'\] is array"),
        (CYCLE, ValueError, r"^metrics\['inside'\]\[0\] contains itself"),
        ({"a": 10**5000}, ValueError, r"^metrics\['a'\] is an int of 16,?610 bits, but metrics take up to 64"),
        (
            {"a": np.zeros(1001)},
            ValueError,
            r"^metrics\['a'\] is an array of 1,001 elements, but metrics take up to 1,000",
        ),
        (nest(60), ValueError, r"is nested too deep: metrics may have 50 levels"),
    ],
    ids=[
        "tuple key",
        "int key",
        "bytes",
        "set",
        "unprintable",
        "complex",
        "complex array",
        "objects",
        "cycle",
        "huge",
        "large",
        "deep",
    ],
)
def test_what_cannot_be_kept_is_refused_by_name(given: dict[Any, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        plain.convert(given)


def fit(function: Any, path: Path, num_workers: int = 0, config: dict[str, Any] | None = None) -> train.Result:
    return train.DataParallelTrainer(
        function,
        train_loop_config=config or {},
        scaling_config=train.ScalingConfig(num_workers=num_workers),
        run_config=train.RunConfig(name="run", storage_path=path),
    ).fit()


def test_what_is_read_from_a_path_is_what_was_reported(tmp_path: Path) -> None:
    def loop(config: dict[str, Any]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            metrics = {
                "array": np.arange(3),
                "pair": (1, 2.5),
                "text": "ü\n",
                "nested": {"flag": np.bool_(False)},
                "none": None,
            }
            train.report(metrics, train.Checkpoint(folder))

    result = fit(loop, tmp_path)
    assert result.metrics == {
        "array": [0, 1, 2],
        "pair": [1, 2.5],
        "text": "ü\n",
        "nested": {"flag": False},
        "none": None,
    }
    assert train.Result.from_path(result.path).metrics == result.metrics


@pytest.mark.usefixtures("session")
def test_bad_metrics_are_an_error_of_the_rank_that_reports_them(tmp_path: Path) -> None:
    def loop(config: dict[str, Any]) -> None:
        wrong: Any = {(1, 2): 3}
        rank = train.get_context().get_world_rank()
        with tempfile.TemporaryDirectory() as folder:
            train.report(wrong if rank == 1 else {"loss": 1.0}, train.Checkpoint(folder))

    with pytest.raises(
        train.WorkerGroupError, match=r"^Rank 1 of 2 raised TypeError: Keys of metrics must be strings"
    ) as caught:
        fit(loop, tmp_path, 2)
    assert "in loop" in str(caught.value)


def make_pipe(folder: Path) -> None:
    os.mkfifo(folder / "special")


def make_socket(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "special"))


def link_device(folder: Path) -> None:
    (folder / "special").symlink_to("/dev/zero")


def link_upwards(folder: Path) -> None:
    (folder / "inner").mkdir()
    (folder / "inner" / "special").symlink_to(folder, target_is_directory=True)


def link_nothing(folder: Path) -> None:
    (folder / "special").symlink_to(folder / "gone")


def link_itself(folder: Path) -> None:
    (folder / "special").symlink_to("special")


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    ("make", "what"),
    [
        (make_pipe, "is a pipe"),
        (make_socket, "is a socket"),
        (link_device, "is a device"),
        (link_upwards, "to a folder that contains the link"),
        (link_nothing, r"is a link that leads nowhere \(No such file or directory: '.*gone'\)"),
        (link_itself, r"is a link that leads nowhere \(Too many levels of symbolic links: 'special'\)"),
    ],
)
def test_a_checkpoint_of_what_has_no_end_is_refused_by_name(tmp_path: Path, make: Any, what: str) -> None:
    def loop(config: dict[str, Any]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            make(Path(folder))
            train.report({}, train.Checkpoint(folder))

    with pytest.raises(ValueError, match=f"special'.*{what}"):
        fit(loop, tmp_path)
