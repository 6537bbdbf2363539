"""Programs that Ray ships for Ray Train: their training functions run on Ray, and with other imports on Hocket."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.programs import running

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.about_local("programs of their own"),
]


def test_linear_regression_in_pytorch(tmp_path: Path) -> None:
    shipped = running.find_shipped("ray", "train/examples/pytorch/torch_linear_example.py")
    on_ray, on_hocket = running.run_on_ray_and_hocket(tmp_path, shipped, "drive_ray_linear.py")
    # Ray deals rows in turn and Hocket in slices of the same batches: the mean of a batch is added up in another order.
    assert on_hocket["weights"]["weight"][0] == pytest.approx(on_ray["weights"]["weight"][0], rel=1e-5)
    assert on_hocket["weights"]["bias"] == pytest.approx(on_ray["weights"]["bias"], rel=1e-5)


def test_regression_over_a_dataset_in_pytorch(tmp_path: Path) -> None:
    shipped = running.find_shipped("ray", "train/examples/pytorch/torch_regression_example.py")
    on_ray, on_hocket = running.run_on_ray_and_hocket(tmp_path, shipped, "drive_ray_regression.py")
    # Each side deals the rows in its own way, and so adds up their gradients in another order.
    assert on_hocket["loss"] == pytest.approx(on_ray["loss"], rel=1e-4)
    assert on_hocket["weights"] == pytest.approx(on_ray["weights"], rel=1e-4, abs=1e-6)


def test_digits_in_tensorflow(tmp_path: Path) -> None:
    shipped = running.find_shipped("ray", "train/examples/tf/tensorflow_mnist_example.py")
    on_ray, on_hocket = running.run_on_ray_and_hocket(tmp_path, shipped, "drive_ray_tensorflow_mnist.py")
    # TensorFlow's threads add up a convolution's gradient in any order.
    assert on_hocket["loss"] == pytest.approx(on_ray["loss"], rel=1e-5)
    assert on_hocket["accuracy"] == on_ray["accuracy"]


def test_horovod_in_pytorch(tmp_path: Path) -> None:
    """Horovod is not installed: beside it runs what it documents, by hand."""
    shipped = running.find_shipped("ray", "train/examples/horovod/horovod_pytorch_example.py")
    place = tmp_path / "program"
    place.mkdir()
    scripts = [running.SCRIPTS / name for name in ("drive_ray_horovod.py", "horovod_by_hand.py")]
    for path in (shipped, *scripts, running.SCRIPTS / "pictures" / "torchvision.py"):
        (place / path.name).write_text(running.change_imports(path.read_text()))
    by_hand = running.read_result(running.run(place, *running.TORCHRUN, "horovod_by_hand.py"))
    ours = running.read_result(running.run(place, sys.executable, "drive_ray_horovod.py"))
    assert ours == by_hand
