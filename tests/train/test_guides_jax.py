"""Loops as the guides of JAX, Flax and Optax write them end in two ranks where one process ends that has the whole
batch; what cannot be right is refused in the first step, and what remains the net finds. The programs are in
`guides_jax`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="needs JAX: pip install 'hocket[jax]'")
optax = pytest.importorskip("optax", reason="needs Optax: pip install optax")
pytest.importorskip("flax", reason="needs Flax: pip install flax")

from hocket import train  # noqa: E402 (JAX may be missing)
from hocket.train import jax as hocket_jax  # noqa: E402
from tests.train import guides_jax  # noqa: E402

CLOSE: Final = 1e-5
APART: Final = ("statistics_of_batches",)
"""What differs from one process by nature: each rank normalises by its own rows."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def fit(function: Any, path: Path, config: Any = None) -> Any:
    return hocket_jax.JaxTrainer(
        function,
        train_loop_config=config,
        scaling_config=train.ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5}),
        run_config=train.RunConfig(storage_path=str(path)),
    ).fit()


def measure(one: Any, other: Any) -> float:
    assert [part.shape for part in one] == [part.shape for part in other]
    return max(float(np.abs(a - b).max() / max(1.0, np.abs(a).max())) for a, b in zip(one, other, strict=True))


@pytest.mark.long
@pytest.mark.usefixtures("session")
def test_two_ranks_end_where_one_process_does(tmp_path: Path) -> None:
    found = fit(guides_jax.compare, tmp_path).return_value
    assert list(found) == list(guides_jax.PROGRAMS)
    wrong: dict[str, object] = {}
    for name, (alone, ranks) in found.items():
        if name in guides_jax.REFUSED:
            for text in ranks:
                with pytest.raises(ValueError, match=guides_jax.REFUSED[name]):
                    raise ValueError(text)
            continue
        texts: list[Any] = [one for one in (alone, *ranks) if isinstance(one, str)]
        far = texts or [measure(ranks[0], ranks[1]), 0.0 if name in APART else measure(alone, ranks[0])]
        if texts or not max(far) <= CLOSE:
            wrong[name] = far
    assert wrong == {}


def diverge(config: dict[str, str]) -> None:
    """Train with what only one rank has."""
    rank = train.get_context().get_world_rank()
    optimizer = hocket_jax.prepare_optimizer(optax.inject_hyperparams(optax.sgd)(learning_rate=0.1))
    params = guides_jax.make_params()
    if config["what"] == "parameter":
        params = jax.tree.map(lambda one: one + rank, params)  # as of another seed, and not prepared
    state = optimizer.init(params)
    for number, (x, y) in enumerate(guides_jax.Kit(rank).batches()):
        if config["what"] == "optimizer" and number == 2 and rank:
            state.hyperparams["learning_rate"] = state.hyperparams["learning_rate"] / 2  # its own loss says so
        updates, state = optimizer.update(jax.grad(guides_jax.find_loss)(params, x, y), state, params)
        params = optax.apply_updates(params, updates)
        if config["reports"]:
            train.report({"step": number})


@pytest.mark.parametrize("reports", [True, False])
@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("parameter", r"has values of the parameter `bias`.*give them to prepare_params\(\)"),
        ("optimizer", r"has values of .*learning_rate.*decide by the result of average_gradients\(\)"),
    ],
)
@pytest.mark.usefixtures("session")
def test_the_net_finds_ranks_that_differ(what: str, message: str, reports: bool, tmp_path: Path) -> None:
    with pytest.raises(train.RanksDivergedError, match=message):
        fit(diverge, tmp_path, {"what": what, "reports": reports})
