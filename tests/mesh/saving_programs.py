"""What the tests of models on meshes run in a worker: spreading, saving, loading."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hocket import mesh
from hocket.mesh import UNSHARDED, LayoutMap
from tests.mesh.jax_programs import make_mesh

_RULES: dict[str, tuple[dict[str, int], dict[str, Any]]] = {
    "2x2": ({"data": 2, "model": 2}, {".*/kernel": ["data", "model"], ".*/bias": ["model"]}),
    "2x2 turned": ({"data": 2, "model": 2}, {".*/kernel": [UNSHARDED, ("model", "data")], ".*/bias": ["data"]}),
    "1": ({"one": 1}, {}),
    "4": ({"all": 4}, {".*/kernel": ["all", UNSHARDED]}),
    "1x4": ({"data": 1, "model": 4}, {".*/kernel": ["data", "model"], ".*/bias": ["model"]}),
    "2x4": ({"data": 2, "model": 4}, {".*/kernel": [("data", "model"), UNSHARDED]}),
}


def _make_map(name: str) -> LayoutMap:
    dims, rules = _RULES[name]
    return LayoutMap(make_mesh(*dims.items()), rules)


def _make_model() -> dict[str, Any]:
    make_mesh(("all", 8))  # before anything else uses JAX
    random = np.random.default_rng(7)
    return {
        "dense": {"kernel": random.normal(size=(8, 16)).astype("float32"), "bias": np.arange(16, dtype="int32")},
        "half": {"kernel": jnp.asarray(random.normal(size=(16, 8)), "bfloat16")},
        "list": [np.ones((2, 3), bool), np.float32(2.5), np.zeros((0, 3), "float16")],
    }


def _read(tree: Any) -> list[tuple[str, np.ndarray]]:
    found = jax.tree_util.tree_leaves_with_path(tree, is_leaf=mesh.is_dtensor)
    return [
        (jax.tree_util.keystr(path), leaf.gather() if mesh.is_dtensor(leaf) else np.asarray(leaf))
        for path, leaf in found
    ]


def _check_same(one: Any, other: Any) -> None:
    for (name, mine), (path, theirs) in zip(_read(one), _read(other), strict=True):
        assert (name, mine.dtype, mine.shape) == (path, theirs.dtype, theirs.shape)
        assert mine.tobytes() == theirs.tobytes(), name


def distribute_all() -> None:
    model = _make_model()
    for name in _RULES:
        spread = mesh.distribute(model, _make_map(name))
        _check_same(model, spread)
        assert spread["dense"]["kernel"].layout == _make_map(name).find("dense/kernel", (8, 16))
        told = mesh.explain(model, _make_map(name))
        assert [row.local_bytes for row in told.rows] == [
            mesh.unpack(leaf)[0].nbytes for leaf in jax.tree_util.tree_leaves(spread, is_leaf=mesh.is_dtensor)
        ]


def load_everywhere(folder: str) -> None:
    model = _make_model()
    for saved, loaded in itertools.product(_RULES, _RULES):
        path = mesh.save(mesh.distribute(model, _make_map(saved)), Path(folder, "saved"))
        found = mesh.load(path, _make_map(loaded), like=model)
        _check_same(model, found)
        assert found["dense"]["kernel"].layout == _make_map(loaded).find("dense/kernel", (8, 16))
        _check_same(found, mesh.load(path, like=found, verify=False))
    by_name = mesh.load(Path(folder, "saved"), _make_map("4"))
    assert sorted(by_name) == ["dense/bias", "dense/kernel", "half/kernel", "list/0", "list/1", "list/2"]


def write_each_part_once(folder: str) -> None:
    from safetensors.numpy import load_file

    path = mesh.save(mesh.distribute(_make_model(), _make_map("2x2")), folder)
    files = {file.name[9:]: load_file(file) for file in path.glob("*.safetensors")}
    shapes = {name: {key: array.shape for key, array in file.items()} for name, file in files.items()}
    assert shapes["1.safetensors"] == {"dense/kernel": (4, 8), "dense/bias": (8,), "half/kernel": (8, 4)}
    assert shapes["2.safetensors"] == {"dense/kernel": (4, 8), "half/kernel": (8, 4)}
    assert sum(array.nbytes for file in files.values() for array in file.values()) == sum(
        array.nbytes for _, array in _read(_make_model())
    )


def export_whole(folder: str) -> None:
    from safetensors.flax import load_file

    model = _make_model()
    path = mesh.export(mesh.distribute(model, _make_map("2x4")), Path(folder, "whole.safetensors"))
    assert [file.name for file in path.parent.iterdir()] == ["whole.safetensors"]
    loaded = load_file(path)
    assert loaded["dense/kernel"].tobytes() == model["dense"]["kernel"].tobytes()
    assert loaded["half/kernel"].dtype == jnp.bfloat16
    assert len(loaded) == 6


def save_sums(folder: str) -> None:
    grid = make_mesh(("data", 2), ("model", 2))
    value = mesh.copy_to_mesh(np.arange(8.0, dtype="float32"), mesh.Layout([UNSHARDED], grid, partial=["data"]))
    path = mesh.save({"sum": value}, folder)
    assert mesh.load(path, LayoutMap(grid))["sum"].gather().tolist() == list(range(8))


def save_again_and_again(folder: str) -> None:
    """Until it is killed. All values say in which turn they were saved."""
    rules = LayoutMap(make_mesh(("data", 2), ("model", 2)), {".": ["data", "model"]})
    for turn in itertools.count():
        mesh.save(mesh.distribute({name: np.full((64, 64), turn, "float32") for name in "abc"}, rules), folder)


def read_turn(folder: str) -> int:
    """Return in which turn a checkpoint was saved."""
    found = mesh.load(folder, LayoutMap(make_mesh(("all", 4)), {".": ["all", UNSHARDED]}))
    (turn,) = {int(number) for value in found.values() for number in np.unique(value.gather())}
    return turn


def refuse(folder: str) -> None:
    model = _make_model()
    rules = _make_map("2x2")
    no_map: Any = {}
    path = mesh.save(mesh.distribute(model, rules), Path(folder, "saved"))
    with pytest.raises(TypeError, match=r"layout_map must be a LayoutMap, but received {}. Write"):
        mesh.distribute(model, no_map)
    wrong = LayoutMap(rules.mesh, {".*/weight": ["data"]})
    with pytest.raises(ValueError, match=r"The rule '\.\*/weight' matches no parameter. Their names are 'dense/bias'"):
        mesh.distribute(model, wrong)
    with pytest.raises(ValueError, match="matches no parameter"):
        mesh.explain(model, wrong)
    with pytest.raises(ValueError, match=r"has the axes \['data', 'model'\], but received 'batch'"):
        mesh.explain(model, rules, batch_dims=["batch"])
    with pytest.raises(TypeError, match=r"load\(\) needs a layout for each value"):
        mesh.load(path)
    with pytest.raises(TypeError, match="No value of like= is a DTensor"):
        mesh.load(path, like=model)
    less = {**model, "dense": {"kernel": np.ones((8, 8), "float32")}, "more": np.ones(1)}
    with pytest.raises(ValueError, match=r"it has no 'more'; it has 'dense/bias', which .* but float32\[8, 8\] in"):
        mesh.load(path, rules, like=less)
    with pytest.raises(ValueError, match="does not fit it"):
        mesh.load(path, LayoutMap(make_mesh(("x", 8)), {"list/0": ["x", UNSHARDED]}))
    with pytest.raises(TypeError, match=r"'key' must be an array of numbers, but received"):
        mesh.save({"key": jax.random.key(1)}, Path(folder, "key"))
    with pytest.raises(TypeError, match="'many' has the type complex128, which cannot be saved"):
        mesh.save({"many": np.ones(3, "complex128")}, Path(folder, "key"))
    with pytest.raises(ValueError, match="Two values of the model are called 'a/b'"):
        mesh.save({"a/b": np.ones(3), "a": {"b": np.zeros(3)}}, Path(folder, "key"))
    assert not Path(folder, "key").exists()
    with pytest.raises(FileNotFoundError, match="is not a checkpoint of a mesh: it has no"):
        mesh.load(folder, rules)
    with pytest.raises(FileExistsError, match="it has 'saved'"):
        mesh.save(model, folder)
    with pytest.raises(ValueError, match="must be a path of this machine"):
        mesh.save(model, "s3://bucket/model")
    _refuse_damaged(path, rules)


def _refuse_damaged(path: Path, rules: LayoutMap) -> None:
    manifest = path / "manifest.json"
    text, files = manifest.read_text(), sorted(path.glob("*.safetensors"))
    data = files[0].read_bytes()
    for broken, match in ((data[:-1] + bytes([data[-1] ^ 1]), "has changed"), (data[:-9], "damaged"), (b"", "damaged")):
        files[0].write_bytes(broken)
        with pytest.raises(mesh.CheckpointDamagedError, match=match):
            mesh.load(path, rules)
    files[0].unlink()
    with pytest.raises(mesh.CheckpointDamagedError, match="it is missing"):
        mesh.load(path, rules)
    files[0].write_bytes(data)
    mesh.load(path, rules)
    described = json.loads(text)
    described["values"]["dense/kernel"]["parts"].pop()
    reshaped = json.loads(text)
    reshaped["values"]["dense/kernel"]["shape"] = [1, 1]
    undigested = {key: value for key, value in described.items() if key != "digest"}
    broken_texts = [json.dumps(one) for one in ({**described, "format": "other"}, described, reshaped, undigested)]
    for broken_text in ("{", "[]", *broken_texts):
        manifest.write_text(broken_text)
        with pytest.raises(mesh.CheckpointDamagedError):
            mesh.load(path, rules)
    manifest.write_text(text)


def load_wide(folder: str) -> None:
    """What is saved from numpy has 64 bits; JAX makes 32 of them unless it is told."""
    path = mesh.save({"wide": np.arange(3.0)}, folder)
    with pytest.raises(ValueError, match="'wide' was saved as float64, but the framework converts it to float32"):
        mesh.load(path, _make_map("1"))


def load_from_torch(folder: str) -> None:
    """What ranks of PyTorch have saved, JAX loads, bit for bit."""
    from safetensors.flax import load_file

    rules = LayoutMap(make_mesh(("data", 2), ("model", 2)), {r"\d\.weight": ["data", "model"], r"\d\.bias": ["model"]})
    expected = load_file(Path(folder, "whole.safetensors"))
    for name in ("0", "1"):
        loaded = mesh.load(Path(folder, name), rules)
        assert loaded.keys() == expected.keys()
        for key, value in loaded.items():
            assert value.layout == rules.find(key, value.shape)
            assert value.gather().tobytes() == np.asarray(expected[key]).tobytes()
