"""Files that others may have written: each reader of JSON passes them over, or ends in an error of its own.

`READERS` has a row for each function of the package that parses JSON, or says why what it parses is nobody else's. A
function without a row fails. Each reader gets what a valid file says with parts missing, doubled or odd, and texts that
are something else.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import json
import os
import random
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hocket import train, tune
from hocket.cli import runs
from hocket.data import preprocessors
from hocket.data.sources import writing
from hocket.mesh import manifests
from hocket.observe import searches
from hocket.observe.runs import history
from hocket.ps import errors as ps_errors
from hocket.ps.checkpoint import checkpoints
from hocket.train.checkpoints import checkpoint as checkpoint_module
from hocket.train.checkpoints import storage
from hocket.tune import history as tune_history
from hocket.tune.schedulers import lineage
from tests.observe import damage

SEEDS = int(os.environ.get("HOCKET_TEST_EXAMPLES", "60"))
SOURCE = Path("src/hocket")

TEXTS = [
    *(b"", b"[]", b"{}", b"7", b"null", b"NaN", b'"x"', b"[[]]", b"[" * 100_000, b"\xff\xfe", b"{", b'{"a": 1e999}'),
    b'{"files": []}',
    b'{"files": {"../x": {"size_bytes": 1, "sha256": "x"}}}',
    b"1" * 5_000,
    b"\x00" * 64,
]
"""What is no file of ours."""

Read = Callable[[Path, Any], None]
"""Writes a file into an empty folder, and reads it: a damaged value, or raw bytes."""


def write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(value if isinstance(value, bytes) else json.dumps(value).encode())


def write_lines(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(value if isinstance(value, bytes) else b"".join(json.dumps(one).encode() + b"\n" for one in value))


# --- the readers ------------------------------------------------------------------------------------------------------

RUN_MANIFEST = {
    "number": 0,
    "score": 0.5,
    "metrics": {"loss": 1.0},
    "positions": {"loader": {"epoch": 1, "position": 8}},
    "validation": {"status": "COMMITTED", "fn_kwargs": {}, "timeout_s": None},
    "files": {
        "weights": {"size_bytes": 1, "sha256": "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"}
    },
}


def read_run(folder: Path, value: Any) -> None:
    write_json(folder / "checkpoint_000000" / storage.MANIFEST_NAME, value)
    (folder / "checkpoint_000000" / "weights").write_bytes(b"x")
    with contextlib.suppress(RuntimeError):  # there is no checkpoint
        found = train.Result.from_path(folder)
        found.report(folder / "report.html")
        with contextlib.suppress(ValueError):  # no checkpoint has it
            found.get_best_checkpoint("loss", "min")


def read_metadata(folder: Path, value: Any) -> None:
    write_json(folder / checkpoint_module.METADATA_NAME, value)
    with contextlib.suppress(ValueError):
        assert isinstance(train.Checkpoint(folder).get_metadata(), dict)


MESH_MANIFEST = {
    "format": "hocket.mesh 1",
    "values": {"kernel": {"shape": [4, 2], "dtype": "float32", "parts": [["a-0.safetensors", [[0, 4], [0, 2]]]]}},
    "files": {"a-0.safetensors": "0" * 64},
}


def read_mesh(folder: Path, value: Any) -> None:
    write_json(folder / manifests.MANIFEST, value)
    with contextlib.suppress(manifests.CheckpointDamagedError):
        _, saved, digests = manifests.read(folder)
        assert all(Path(folder, name).parent == folder for name in digests)
        assert all(type(length) is int for one in saved.values() for length in one.shape)


PS_MANIFEST = {
    "format": 1,
    "version": 3,
    "extra": {},
    "files": {},
    "variables": {
        "w": {"is_table": False, "shape": [2], "dtype": "float32", "slots": ["slot0"], "step": 1},
        "t": {
            "is_table": True,
            "shape": [3, 2],
            "dtype": "float32",
            "slots": [],
            "step": 1,
            "rows": 3,
            "dim": 2,
            "initializer": {"kind": "Uniform", "low": 0.0, "high": 1.0, "seed": 1},
        },
    },
}


def read_servers(folder: Path, value: Any) -> None:
    write_json(folder / checkpoints.MANIFEST, value)
    for name, array in (("w/value", np.zeros(2)), ("t/value", np.zeros((3, 2))), ("t/ids", np.arange(3))):
        (folder / name).parent.mkdir(exist_ok=True)
        np.save(folder / f"{name}.npy", array)
    with contextlib.suppress(ps_errors.CheckpointDamagedError, FileNotFoundError):
        checkpoints.load_checkpoint(folder)


def read_policies(folder: Path, value: Any) -> None:
    write_lines(folder / "policies.txt", value)
    with contextlib.suppress(ValueError):
        lineage.read(folder / "policies.txt")


class _Steps(tune.Trainable):
    def load_checkpoint(self, checkpoint: Any) -> None:
        pass


def read_trainable(folder: Path, value: Any) -> None:
    write_json(folder / ".trainable.json", value)
    with contextlib.suppress(tune.TuneError):
        trainable = _Steps({})
        trainable.restore(folder)
        assert isinstance(trainable.iteration, int)


RUN_LINES: list[Any] = [
    {"is": "run", "at": 1.7e9, "name": "a", "pid": 999_999, "config": {"lr": 0.1}, "start": None},
    {"is": "attempt", "at": 1.7e9, "kept": 0, "ranks": 1},
    {"is": "places", "at": 1.7e9, "pids": [999_999], "nodes": ["a"]},
    {
        "is": "row",
        "at": 1.7e9,
        "metrics": [{"loss": 1.0, "note": "x"}],
        "late": [0.0],
        "behind": 0.1,
        "checkpoint": "c",
    },
    {"is": "failure", "at": 1.7e9, "errors": {"0": "ValueError: x"}},
    {"is": "end", "at": 1.7e9, "error": None},
]


def read_run_log(folder: Path, value: Any) -> None:
    write_lines(folder / "one" / "run.jsonl", value)
    write_lines(folder / "good" / "run.jsonl", RUN_LINES)
    for sort, as_json in ((None, False), ("loss", True)):
        assert runs.run(folders=[str(folder)], metrics=None, sort=sort, output=None, as_json=as_json) == 0
    runs.run(folders=[str(folder)], metrics=None, sort=None, output=str(folder / "out.html"), as_json=False)
    runs.report(str(folder / "one"), None)


def read_glimpse(folder: Path, value: Any) -> None:
    lines = value if isinstance(value, bytes) else [json.dumps(one, separators=(",", ":")) for one in value]
    write_lines(folder / "run.jsonl", lines if isinstance(lines, bytes) else ("\n".join(lines) + "\n").encode())
    found = history.take_glimpse(folder / "run.jsonl")
    assert found is None or (0 <= found.started <= 1e11 and 0 <= found.ended <= 1e11)


SEARCH_LINES: list[Any] = [
    {
        "event": "session",
        "version": 1,
        "time": 1.7e9,
        "seed": 1,
        "prefix": "a",
        "name": "f",
        "metric": "loss",
        "mode": "min",
    },
    {"event": "trial", "id": "a_0", "number": 0, "config": {"x": 1}, "tag": "0", "folder": "f_0"},
    {"event": "trial", "id": "a_1", "number": 1, "config": {"x": 2}, "tag": "1", "folder": "f_1"},
    {"event": "start", "id": "a_0", "time": 1.7e9, "attempt": 0, "iteration": 0, "checkpoint": None},
    {"event": "process", "id": "a_0", "pid": 7, "host": "h"},
    {
        "event": "report",
        "id": "a_0",
        "metrics": {"loss": 1.0},
        "time": 1.7e9,
        "seconds": 0.5,
        "checkpoint": "checkpoint_000000",
        "acts": [],
    },
    {"event": "save", "id": "a_0", "checkpoint": "checkpoint_000001"},
    {"event": "pause", "id": "a_0"},
    {
        "event": "exploit",
        "id": "a_1",
        "source": "a_0",
        "config": {"x": 3},
        "tag": "y",
        "checkpoint": "c",
        "iteration": 1,
        "seconds": 0.5,
    },
    {"event": "retry", "id": "a_1", "error": "x"},
    {"event": "end", "id": "a_0", "status": "TERMINATED", "reason": "it returned", "error": None, "cause": None},
    {"event": "revive", "id": "a_0", "restarts": False},
    {"event": "end", "id": "a_1", "status": "ERROR", "reason": "x", "error": "x", "cause": None},
]


def read_search(folder: Path, value: Any) -> None:
    write_lines(folder / "search.jsonl", value)
    tune.Tuner.can_restore(folder)
    with contextlib.suppress(tune.TuneError):
        for one in tune_history.read(folder):
            assert Path(one.build_result(folder).path).parent == folder
    with contextlib.suppress(tune.TuneError):
        found = tune.ResultGrid(folder, "loss", "min")
        found.get_dataframe()
        for scope in ("last", "all", "avg", "last-5-avg"):
            with contextlib.suppress(RuntimeError, ValueError, tune.TuneError):  # no trial has it
                found.get_best_result(scope=scope)


def replay_search(folder: Path, value: Any) -> None:
    write_lines(folder / "search.jsonl", value)
    with contextlib.suppress(tune.TuneError):
        tuner = tune.Tuner.restore(
            folder,
            _report_once,
            param_space={"x": tune.choice([1, 2])},
            tune_config=tune.TuneConfig(num_samples=2, metric="loss", mode="min"),
            run_config=tune.RunConfig(verbose=0),
        )
        tuner.fit()


def _report_once(config: dict[str, Any]) -> dict[str, float]:
    return {"loss": 1.0}


def look_at_search(folder: Path, value: Any) -> None:
    write_lines(folder / "one" / "search.jsonl", value)
    found = searches.Searches(folder)
    for line in found.list_searches([]):
        json.dumps(found.describe(line["path"], None, 100))


SCALER = preprocessors.StandardScaler(["a"])


def read_preprocessor(folder: Path, value: Any) -> None:
    write_json(folder / "scaler.json", value)
    with contextlib.suppress(ValueError):
        preprocessors.Preprocessor.load(folder / "scaler.json")


def read_data_manifest(folder: Path, value: Any) -> None:
    with contextlib.suppress(ValueError):
        for one in writing.parse_manifest(
            value if isinstance(value, bytes) else json.dumps(value).encode(), "x()", "f"
        ):
            assert not Path(one["path"]).is_absolute()
            assert ".." not in Path(one["path"]).parts


def read_columns(folder: Path, value: Any) -> None:
    pa = pytest.importorskip("pyarrow")
    arrow = pytest.importorskip("hocket.data.arrow")
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    facts = {
        b"ARROW:extension:name": b"datasets.features.features.Array2DExtensionType",
        b"ARROW:extension:metadata": text,
    }
    field = pa.field("a", pa.list_(pa.list_(pa.int64())), metadata=facts)
    table = pa.table({"a": pa.array([[[1, 2]]], field.type)}, schema=pa.schema([field]))
    assert list(arrow.read_table(table)) == ["a"]


def read_pytree(folder: Path, value: Any) -> None:
    pytest.importorskip("jax")
    found = pytest.importorskip("hocket.train.frameworks.jax.checkpoints")
    text = (value if isinstance(value, bytes) else json.dumps(value).encode()).decode(errors="replace")
    np.savez(folder / "tree.npz", allow_pickle=False, **{found.DTYPES: np.array(text), "a": np.zeros(2)})
    with contextlib.suppress(ValueError):
        found.load_pytree(folder / "tree.npz", {"a": np.zeros(2)})


def read_recorded(folder: Path, value: Any) -> None:
    report = pytest.importorskip("hocket.cli.launch.report")
    assert isinstance(report.parse_recorded(value if isinstance(value, bytes) else json.dumps(value).encode()), str)


def read_csv(folder: Path, value: Any) -> None:
    tables = pytest.importorskip("hocket.train.tracking.tables")
    write_json(
        folder / "progress.csv", value if isinstance(value, bytes) else b"loss,step\n1,2\n" + json.dumps(value).encode()
    )
    with contextlib.suppress(ValueError):
        tables.Csv(folder / "progress.csv").add({"loss": 1, "more": 2})


Row = tuple[Any, Read]

READERS: dict[tuple[str, str], Row | str] = {
    ("stores/manifests.py", "parse"): (RUN_MANIFEST, read_run),
    ("train/checkpoints/checkpoint.py", "Checkpoint.get_metadata"): ({"epoch": 1}, read_metadata),
    ("mesh/manifests.py", "read"): (MESH_MANIFEST, read_mesh),
    ("ps/checkpoint/checkpoints.py", "read_manifest"): (PS_MANIFEST, read_servers),
    ("tune/schedulers/lineage.py", "read"): ([["a", "b", 1, 2, {}, {"x": 1}]] * 3, read_policies),
    ("tune/trainable.py", "Trainable.restore"): ({"iteration": 3, "seconds": 0.5}, read_trainable),
    ("tune/encoding.py", "decode"): (SEARCH_LINES, read_search),
    ("observe/searches.py", "SearchHistory.update"): (SEARCH_LINES, look_at_search),
    ("observe/runs/history.py", "RunHistory._take"): (RUN_LINES, read_run_log),
    ("observe/runs/history.py", "take_glimpse"): (RUN_LINES, read_glimpse),
    ("data/preprocessors/saving.py", "read"): (None, read_preprocessor),
    ("data/sources/writing.py", "parse_manifest"): (
        {"run": "a", "files": [{"path": "a.parquet", "rows": 3}]},
        read_data_manifest,
    ),
    ("data/arrow/forms.py", "_list_shapes"): ([[1, 2], "int64"], read_columns),
    ("train/frameworks/jax/checkpoints.py", "_read"): ({"a": "float64"}, read_pytree),
    ("cli/launch/report.py", "parse_recorded"): (
        {"message": {"message": "x", "extraInfo": {"py_callstack": "y"}}},
        read_recorded,
    ),
    ("train/tracking/tables.py", "Csv._read_header"): ([], read_csv),
    ("train/tracking/tables.py", "Csv._widen"): "as Csv._read_header",
    ("tune/encoding.py", "(module)"): "the decoder of decode",
    ("data/sources/archives.py", "WebDataset._finish"): "data: tests/data/test_damaged_files.py",
    ("data/sources/archives.py", "_decode"): "data: tests/data/test_damaged_files.py",
    ("data/sources/formats.py", "_fill_lines"): "data: tests/data/test_damaged_files.py",
    ("data/sources/formats.py", "_opens_array"): "data: tests/data/test_damaged_files.py",
    ("data/sources/formats.py", "_read_array"): "data: tests/data/test_damaged_files.py",
    ("data/sources/formats.py", "Json._read_lines"): "data: tests/data/test_damaged_files.py",
    ("data/sources/formats.py", "Json._read_exactly"): "data: tests/data/test_damaged_files.py",
    ("cli/launch/plan.py", "parse_plan"): "a pipe of the launcher",
    ("cli/launch/rank.py", "Note.read"): "memory of the launcher",
    ("collective/rendezvous.py", "join"): "a store of the group",
    ("core/environments.py", "parse_environment"): "what this program has said",
    ("engine/inprocess/runner.py", "_take_on"): "what this program has said",
    ("engine/local/surroundings.py", "apply_environment"): "a session's message",
    ("engine/local/endpoint.py", "_read_snapshot"): "a session of this user, whose socket says so",
    ("_base/internals/ray.py", "read_facts"): "a cluster's message",
    ("engine/ray/keywords.py", "_build_environment"): "what this program has said",
    ("engine/ray/keywords.py", "_build_placing"): "what this program has said",
    ("engine/ray/packages.py", "read_job_environment"): "the environment",
    ("engine/stack_questions.py", "fetch_shown"): "a process of this user",
    ("mesh/tensorflow.py", "parse_workers"): "the environment",
    ("tune/logger.py", "CSVLoggerCallback.log_trial_start"): "names of columns that this search has written",
    ("ps/cluster.py", "Cluster.from_tf_config"): "the environment",
}

#: Also run with damaged values, though another row has their function.
MORE: dict[str, Row] = {"replay": (SEARCH_LINES, replay_search)}


def _list_parsers() -> set[tuple[str, str]]:
    found: set[tuple[str, str]] = set()

    def visit(node: ast.AST, outer: tuple[str, ...], path: str) -> None:
        for child in ast.iter_child_nodes(node):
            named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            within = (*outer, child.name) if named else outer  # type: ignore[attr-defined]
            if isinstance(child, ast.Attribute) and isinstance(child.value, ast.Name):
                name = child.value.id, child.attr
                is_parser = name[0] in ("json", "tomllib", "configparser") and name[1] in (
                    "load",
                    "loads",
                    "JSONDecoder",
                )
                if is_parser or name in (("csv", "reader"), ("csv", "DictReader")):
                    found.add((path, ".".join(within) or "(module)"))
            visit(child, within, path)

    for path in SOURCE.rglob("*.py"):
        if "testing" not in path.parts:
            visit(ast.parse(path.read_text()), (), path.relative_to(SOURCE).as_posix())
    return found


def test_each_reader_has_a_row() -> None:
    parsers = _list_parsers()
    assert sorted(parsers - READERS.keys()) == [], "give it a row: how its file is damaged, or why it is nobody else's"
    assert sorted(READERS.keys() - parsers) == [], "rows of readers that are gone"


ROWS = {f"{path}:{name}": row for (path, name), row in READERS.items() if not isinstance(row, str)} | MORE


@pytest.fixture
def quiet(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.node.callspec.params["name"] in MORE:
        request.getfixturevalue("session")  # it searches
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is passed over is told
        yield


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("name", [*ROWS])
def test_a_text_that_is_something_else(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, read = ROWS[name]
    for number, text in enumerate(TEXTS):
        _try(read, tmp_path / str(number), text, f"{text[:60]!r}")


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("name", [*ROWS])
def test_what_is_damaged_ends_in_an_error_of_ours(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    valid, read = ROWS[name]
    if valid is None:
        valid = json.loads(SCALER.serialize()) if not SCALER.stats_ else {}
    _try(read, tmp_path / "valid", valid, "the valid one")
    rng = random.Random(name)
    for number in range(SEEDS // 3 if name in MORE else SEEDS):
        value = damage.damage(copy.deepcopy(valid), rng)
        if read in (read_run_log, read_glimpse, read_search, look_at_search, replay_search, read_policies):
            value = value if isinstance(value, list) else [value]
        _try(read, tmp_path / f"damaged-{number}", value, f"{json.dumps(value)[:2000]}")


def _try(read: Read, folder: Path, value: Any, shown: str) -> None:
    folder.mkdir(parents=True)
    try:
        read(folder, value)
    except Exception as error:  # noqa: BLE001 (any that is not ours is what is looked for)
        pytest.fail(f"{type(error).__name__}: {error}\nfrom {shown}\n{''.join(traceback.format_exception(error)[-6:])}")
