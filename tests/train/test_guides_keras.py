"""Loops as Keras's guides write them end in two ranks where one process ends that has the whole batch; and what cannot
be right is refused in the first step. The programs are in `guides_keras`.

Results are of float32, whose last digit is 6e-8 of a weight of 1; ranks add up in another order. 1e-5 leaves room for
some steps of that. Mixed precision computes in halves: there only the ranks are compared as closely.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

with pytest.MonkeyPatch.context() as _patch:
    if "KERAS_BACKEND" not in os.environ:
        _patch.setenv("KERAS_BACKEND", "torch")  # for this process, in which torch is loaded anyway
    import keras  # noqa: F401 (with that backend)

from hocket import train
from hocket.train import keras as hocket_keras
from tests.train import guides_keras

CLOSE: Final = 1e-5
ROUGH: Final = {"mixed_precision": 2e-2}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

BACKENDS: Final = ("torch", "tensorflow", "jax")
CASES: Final = [(backend, name) for backend in BACKENDS for name in guides_keras.list_programs(backend)]


def compare(config: dict[str, Any]) -> Any:
    return guides_keras.compare(config["names"])


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    return iter([{}])


def find(backend: str, kept: dict[str, Any], path: Path) -> Any:
    if backend not in kept:
        kept[backend] = (
            hocket_keras.KerasTrainer(
                compare,
                train_loop_config={"names": guides_keras.list_programs(backend)},
                keras_config=hocket_keras.KerasConfig(backend=backend),
                scaling_config=train.ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5}),
                run_config=train.RunConfig(storage_path=str(path)),
            )
            .fit()
            .return_value
        )
    return kept[backend]
