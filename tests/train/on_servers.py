"""What tests of training on parameter servers share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hocket import train
from hocket.train import strategies


def fit(
    trainer: Any,
    path: Path,
    loop: Callable[..., Any],
    strategy: strategies.Strategy | None,
    num_workers: int = 0,
    **given: Any,
) -> train.Result:
    """Train with a strategy; ``config`` and ``max_failures`` may be given."""
    result: train.Result = trainer(
        loop,
        train_loop_config=given.get("config"),
        strategy=strategy,
        scaling_config=train.ScalingConfig(num_workers=num_workers),
        run_config=train.RunConfig(
            storage_path=str(path), failure_config=train.FailureConfig(max_failures=given.get("max_failures", 0))
        ),
    ).fit()
    return result


def make_digits(rank: int, step: int) -> tuple[Any, Any]:
    """Images of two "digits" with noise; no two ranks and steps have the same."""
    generator = np.random.default_rng((rank, step))
    labels = generator.integers(0, 4, 32)
    patterns = np.random.default_rng(0).normal(size=(4, 16))
    return (patterns[labels] + generator.normal(size=(32, 16)) / 2).astype("float32"), labels
