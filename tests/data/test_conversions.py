"""Batches as tensors: of PyTorch, TensorFlow and JAX."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

import hocket
from hocket import data

ROWS = data.from_items(
    [{"x": [float(number), 1.0], "y": number, "s": str(number), "r": [0] * number} for number in range(5)]
)


def build(*names: str) -> data.Dataset:
    return data.from_items([{name: row[name] for name in names} for row in ROWS.iter_rows()])


def test_torch_gets_tensors() -> None:
    batches = list(build("x", "y").iter_torch_batches(batch_size=2, dtypes={"y": torch.float32}, drop_last=True))
    assert [batch["x"].tolist() for batch in batches] == [[[0.0, 1.0], [1.0, 1.0]], [[2.0, 1.0], [3.0, 1.0]]]
    assert [(name, tensor.dtype, tensor.device.type) for name, tensor in batches[0].items()] == [
        ("x", torch.float64, "cpu"),
        ("y", torch.float32, "cpu"),
    ]
    batches[0]["x"] += 1  # the caller's own, and no warning of a read-only array
    (batch,) = build("x", "s", "r").iter_torch_batches(
        collate_fn=lambda batch: (torch.tensor([len(text) for text in batch["s"]]), [torch.zeros(1)]), device="meta"
    )
    assert (batch[0].shape, batch[0].device.type, batch[1][0].device.type) == ((5,), "meta", "meta")
    assert next(iter(data.from_numpy(np.array([1, 2], ">i4")).iter_torch_batches()))["data"].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("names", "given", "error", "message"),
    [
        (
            "ys",
            {"dtypes": torch.float32},
            TypeError,
            r"Column 's' holds values of type object, such as '0', which cannot be a tensor. Leave it out with drop_columns\(\['s'\]\)",
        ),
        (
            "yr",
            {},
            ValueError,
            r"Column 'r' has rows of different shapes, \[\(0,\), \(1,\), \(2,\), \(3,\)\], so they cannot form one array",
        ),
        ("y", {"dtypes": {"z": torch.float32}}, KeyError, "There is no column 'z': the columns are 'y'"),
        (
            "y",
            {"dtypes": np.float32},
            TypeError,
            "dtypes must be a torch dtype, or a dict of them by column, but received <class 'numpy.float32'>",
        ),
        ("y", {"dtypes": {"y": "float32"}}, TypeError, "but received 'float32' for 'y'"),
        ("y", {"dtypes": torch.float32, "collate_fn": dict}, ValueError, "received both dtypes and collate_fn"),
        ("y", {"batch_size": 0}, ValueError, "batch_size must be 1 or more rows"),
    ],
)
def test_what_is_no_tensor_is_named(names: str, given: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        list(build(*names).iter_torch_batches(**given))


def test_jax_gets_arrays() -> None:
    jnp = pytest.importorskip("jax.numpy", reason="needs JAX: pip install 'hocket[jax]'")
    first, *_ = build("x", "y").iter_jax_batches(batch_size=3, dtypes={"y": jnp.float32})
    assert (first["x"].shape, first["x"].dtype, first["y"].dtype) == ((3, 2), jnp.float32, jnp.float32)
    assert first["y"].tolist() == [0, 1, 2]
    with pytest.raises(
        TypeError, match="Column 's' holds values of type object, such as '0', which cannot be a JAX array"
    ):
        list(build("s").iter_jax_batches())
    for padding, filled in ((-1, [2, -1]), ({"id": 7.0}, [2, 7])):
        assert list(data.range(3).iter_jax_batches(batch_size=2, paddings=padding))[1]["id"].tolist() == filled
    for bad in (0.5, float("nan")):
        with pytest.raises(
            ValueError, match=r"paddings has .* for 'id', but this column holds int64, which has no such"
        ):
            list(data.range(3).iter_jax_batches(batch_size=2, paddings=bad))


REST = "Fill missing values with map_batches(), or pass a feature_type_spec or label_type_spec of floats."
LATER = [
    f"ValueError: Column 'x' must be a tensor of int64, as its first rows are, but holds np.float64(nan). {REST}",
    f"ValueError: Column 'x' must be a tensor of int64, as its first rows are, but holds np.float64(0.5). {REST}",
    f"ValueError: Column 'x' must be a tensor of int64, as its type spec requires, but holds np.float64(nan). {REST}",
]


@pytest.mark.slow
def test_tensorflow_gets_a_dataset() -> None:
    """In a process of its own: TensorFlow stays in a process for good, and takes seconds to import."""
    program = """
import numpy as np
import tensorflow as tf
from hocket import data
rows = data.from_items([{"x": [float(n), 1.0], "y": n, "s": str(n), "r": [0] * n} for n in range(5)])
pairs = data.from_items([{"x": [float(n), 1.0], "y": n, "s": str(n), "w": n / 2} for n in range(5)]).to_tf("x", "y", batch_size=2)
print(pairs.element_spec[0].shape, pairs.element_spec[0].dtype.name, pairs.element_spec[1].dtype.name)
for _ in range(2):  # each loop is an epoch
    print([(x.numpy().tolist(), y.numpy().tolist()) for x, y in pairs])
several = data.from_items([{"x": 1.0, "s": "a", "w": 0.5}]).to_tf(["x", "s"], {"target": "x"}, additional_columns="w")
print([(features["s"].numpy().tolist(), labels["target"].numpy().tolist(), w.numpy().tolist()) for features, labels, w in several])
typed = data.from_items([{"x": 1, "y": 2}]).to_tf("x", "y", feature_type_spec=tf.TensorSpec((None,), tf.float32))
print([x.dtype.name for x, y in typed])
later = data.from_blocks([{"x": np.array([0, 1]), "y": np.array([0, 1])}, {"x": np.array([np.nan, 0.5]), "y": np.array([2, 3])}])
whole = tf.TensorSpec((None,), tf.int64)
for given, cut in ((None, later), (None, later.filter(expr="y != 2")), (whole, later)):
    try:
        list(cut.to_tf("x", ["y"], batch_size=2, feature_type_spec=given))
    except tf.errors.InvalidArgumentError as error:
        print([line for line in str(error).splitlines() if "Column" in line][-1])
floats = tf.TensorSpec((None,), tf.float32)
print([x.numpy().tolist() for x, y in later.to_tf("x", "y", batch_size=2, feature_type_spec=floats)])
halves = data.from_items([{"x": 1.5, "y": 2}])
print([x.numpy().tolist() for x, y in halves.to_tf("x", "y", feature_type_spec=whole)])
for make in (lambda: rows.to_tf("z", "y"), lambda: rows.to_tf("r", "y")):
    try:
        make()
    except (KeyError, ValueError) as error:
        print(error.args[0])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "(None, 2) float64 int64",
        *["[([[0.0, 1.0], [1.0, 1.0]], [0, 1]), ([[2.0, 1.0], [3.0, 1.0]], [2, 3]), ([[4.0, 1.0]], [4])]"] * 2,
        "[([b'a'], [1.0], [0.5])]",
        "['float32']",
        *LATER,
        "[[0.0, 1.0], [nan, 0.5]]",
        "[[1]]",
        "There is no column 'z': the columns are 'x', 'y', 's', 'r'. Use one of these names.",
        (
            "Column 'r' has rows of different shapes, [(0,), (1,), (2,), (3,)], so they cannot form one array. Give "
            "them one shape with map_batches(), or pass feature_type_spec or label_type_spec."
        ),
    ]


@pytest.mark.parametrize(
    ("framework", "call", "extra"),
    [
        ("torch", "iter_torch_batches()", "torch"),
        ("jax", "iter_jax_batches()", "jax"),
        ("tensorflow", "to_tf('id', 'id')", "tensorflow"),
    ],
)
def test_a_missing_framework_names_its_extra(
    monkeypatch: pytest.MonkeyPatch, framework: str, call: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, framework, None)
    with pytest.raises(
        ImportError,
        match=rf"needs .*, and '{framework}' cannot be imported. Run pip install 'hocket\[{extra}\]', or use iter_batches\(\)",
    ):
        eval(f"data.range(3).{call}")


def test_tensors_in_rows_become_arrays(session: hocket.SessionContext) -> None:
    rows = data.range(3).map(lambda row: {"t": torch.full((2,), float(row["id"]))})
    assert rows.schema() == data.Schema(names=["t"], types=["float32[2]"])
    (batch,) = rows.iter_torch_batches()
    assert batch["t"].tolist() == [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]


def test_batches_of_tensorflow_and_tables(session: hocket.SessionContext) -> None:
    tensorflow = pytest.importorskip("tensorflow", reason="needs TensorFlow: pip install 'hocket[tensorflow]'")
    rows = data.from_items([{"x": at, "s": f"t{at}", "v": [1.0, float(at)]} for at in range(3)])
    first, second = rows.iter_tf_batches(batch_size=2)
    assert first["x"].dtype == tensorflow.int64
    assert first["s"].numpy().tolist() == [b"t0", b"t1"]
    assert second["v"].numpy().tolist() == [[1.0, 2.0]]
    (whole,) = rows.drop_columns("s").iter_tf_batches(dtypes={"x": tensorflow.float32})
    assert whole["x"].dtype == tensorflow.float32
    with pytest.raises(KeyError, match="no column 'gone'"):
        list(rows.iter_tf_batches(dtypes={"gone": tensorflow.float32}))
    assert rows.to_arrow().to_pylist() == rows.take_all()
