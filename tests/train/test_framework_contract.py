"""Each framework keeps the promises of `hocket.train.frameworks.contract`."""

from __future__ import annotations

import pytest

from hocket.testing.framework_contract import FrameworkContract
from tests.train import specimens

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.about_local("sessions of its own; the matrix of frameworks runs on Ray"),
    pytest.mark.filterwarnings(
        "ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"
    ),  # Keras's own
]


class TestTorch(FrameworkContract):
    specimen = specimens.Torch()


class TestJax(FrameworkContract):
    specimen = specimens.Jax()


class TestKerasOnTensorflow(FrameworkContract):
    specimen = specimens.Keras("tensorflow")


class TestKerasOnTorch(FrameworkContract):
    specimen = specimens.Keras("torch")


class TestKerasOnJax(FrameworkContract):
    specimen = specimens.Keras("jax")


class TestTfKeras(FrameworkContract):
    specimen = specimens.TfKeras()


class TestNumpy(FrameworkContract):
    specimen = specimens.Numpy()
