"""XGBoost and LightGBM: ranks train one model of all their rows, and a run goes on where it was."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import hocket
from hocket import data, train

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

ROUNDS = 12

LIBRARIES = ("xgboost", "lightgbm")

each_library = pytest.mark.parametrize("library", LIBRARIES)


def load_rows(rank: int = 0, size: int = 1) -> tuple[Any, Any]:
    """Columns of few different values, so that the bins do not depend on who has which rows."""
    draw = np.random.default_rng(0)
    x = draw.integers(0, 12, size=(2000, 5)).astype(float)
    y = 2 * x[:, 0] - x[:, 1] + 3 * (x[:, 2] > 5) + draw.normal(size=2000)
    return x[rank::size], y[rank::size]


def name_trainer(library: str) -> Any:
    if library == "xgboost":
        from hocket.train.xgboost import XGBoostTrainer

        return XGBoostTrainer
    from hocket.train.lightgbm import LightGBMTrainer

    return LightGBMTrainer


def get_callback(library: str) -> Any:
    if library == "xgboost":
        from hocket.train import xgboost as module
    else:
        from hocket.train import lightgbm as module  # type: ignore[no-redef]
    return module.RayTrainReportCallback


def boost(library: str, x: Any, y: Any, rounds: int, start: Any = None, callbacks: Any = ()) -> Any:
    """Train with the library, in whatever ranks there are."""
    if library == "xgboost":
        import xgboost

        rows = xgboost.DMatrix(x, label=y)
        settings = {"max_depth": 3, "eta": 0.3, "nthread": 1}
        return xgboost.train(
            settings, rows, rounds, evals=[(rows, "train")], verbose_eval=False, callbacks=list(callbacks),
            xgb_model=start,
        )  # fmt: skip
    import lightgbm

    from hocket.train.lightgbm import get_network_params

    params = {
        "num_threads": 1, "verbose": -1, "min_data_in_bin": 1, "tree_learner": "data_parallel", "pre_partition": True,
        "metric": "rmse", **(get_network_params() if in_a_rank() else {}),
    }  # fmt: skip
    given = lightgbm.Dataset(x, y, params=params)
    return lightgbm.train(
        params, given, rounds, valid_sets=[given], valid_names=["train"], callbacks=list(callbacks), init_model=start
    )


def in_a_rank() -> bool:
    try:
        train.get_context()
    except RuntimeError:
        return False
    return True


def predict(library: str, model: Any) -> list[float]:
    x = load_rows()[0]
    if library == "xgboost":
        import xgboost

        x = xgboost.DMatrix(x)
    found: list[float] = model.predict(x).tolist()
    return found


def count_rounds(model: Any) -> int:
    return int(model.num_boosted_rounds() if hasattr(model, "num_boosted_rounds") else model.current_iteration())


def fit(library: str, function: Callable[..., Any], path: Path, num_workers: int = 2, **settings: Any) -> train.Result:
    found: train.Result = name_trainer(library)(
        function,
        train_loop_config={"library": library, **settings.pop("config", {})},
        scaling_config=train.ScalingConfig(num_workers=num_workers),
        run_config=train.RunConfig(storage_path=path, name="run", **settings.pop("run", {})),
        **settings,
    ).fit()
    return found


# --- one model --------------------------------------------------------------------------------------------------------


def train_together(config: dict[str, Any]) -> dict[str, Any]:
    context = train.get_context()
    library, size = config["library"], context.get_world_size()
    callback = get_callback(library)(frequency=5)
    model = boost(library, *load_rows(context.get_world_rank(), size), ROUNDS, callbacks=[callback])
    return {"predictions": predict(library, model), "listening": count_listening()}


def count_listening() -> int:
    return sum(one.status == psutil.CONN_LISTEN for one in psutil.Process().net_connections())


@each_library
@pytest.mark.usefixtures("session")
def test_ranks_train_the_model_of_one_process(tmp_path: Path, library: str) -> None:
    result = fit(library, train_together, tmp_path)
    alone = predict(library, boost(library, *load_rows(), ROUNDS))
    assert result.return_value["predictions"] == pytest.approx(alone, abs=1e-4)  # sums in another order
    assert result.checkpoint is not None
    kept = get_callback(library).get_model(result.checkpoint)
    assert predict(library, kept) == pytest.approx(result.return_value["predictions"], abs=1e-12)
    assert count_rounds(kept) == ROUNDS
    assert result.metrics is not None
    assert set(result.metrics) == {"train-rmse"}
    again = library == "xgboost"  # it does not say beforehand which iteration is the last
    assert len(result.metrics_history) == ROUNDS + again


@pytest.mark.usefixtures("session")
def test_lightgbm_listens_nowhere(tmp_path: Path) -> None:
    ranks = train.DataParallelTrainer(
        count_listening,
        scaling_config=train.ScalingConfig(num_workers=2),
        run_config=train.RunConfig(storage_path=tmp_path),
    )
    assert fit("lightgbm", train_together, tmp_path).return_value["listening"] == ranks.fit().return_value


# --- data -------------------------------------------------------------------------------------------------------------


def train_on_shards(config: dict[str, Any]) -> list[float]:
    """As programs for Ray do."""
    frame = train.get_dataset_shard("train").materialize().to_pandas()
    assert len(frame) == 1000
    model = boost(config["library"], frame.drop(columns="y").to_numpy(), frame["y"].to_numpy(), ROUNDS)
    return predict(config["library"], model)


@each_library
@pytest.mark.usefixtures("session")
def test_ranks_train_on_a_dataset(tmp_path: Path, library: str) -> None:
    x, y = load_rows()
    rows = data.from_items(
        [{**{f"x{at}": value for at, value in enumerate(row)}, "y": label} for row, label in zip(x, y, strict=True)]
    )
    result = fit(library, train_on_shards, tmp_path, datasets={"train": rows})
    assert result.return_value == pytest.approx(predict(library, boost(library, x, y, ROUNDS)), abs=1e-4)


# --- failures ---------------------------------------------------------------------------------------------------------


class KillAfter:
    """Ends the process of rank 1 after some rounds; works as a callback of both libraries."""

    def __init__(self, rounds: int, mark: Path) -> None:
        self.rounds, self.mark = rounds, mark

    def __call__(self, env: Any) -> None:
        self.after_iteration(None, env.iteration, {})

    def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        if train.get_context().get_world_rank() == 1 and epoch + 1 == self.rounds and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return False

    def before_training(self, model: Any) -> Any:
        return model

    def after_training(self, model: Any) -> Any:
        return model

    def before_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        return False


def build_killer(library: str, rounds: int, mark: Path) -> Any:
    if library == "lightgbm":
        return KillAfter(rounds, mark)
    import xgboost

    class Killer(KillAfter, xgboost.callback.TrainingCallback):  # type: ignore[misc,unused-ignore]
        pass

    return Killer(rounds, mark)


def go_on(config: dict[str, Any]) -> list[float]:
    context = train.get_context()
    library = config["library"]
    callback = get_callback(library)
    start = train.get_checkpoint()
    model = None if start is None else callback.get_model(start)
    done = 0 if model is None else count_rounds(model)
    Path(config["log"], f"{context.get_world_rank()}-from-{done}").touch()
    model = boost(
        library,
        *load_rows(context.get_world_rank(), context.get_world_size()),
        ROUNDS - done,
        start=model,
        callbacks=[callback(frequency=4), build_killer(library, 7, Path(config["log"], "killed"))],
    )
    assert count_rounds(model) == ROUNDS
    return predict(library, model)


@each_library
@pytest.mark.usefixtures("session")
def test_a_killed_rank_costs_the_rounds_since_the_checkpoint(tmp_path: Path, library: str) -> None:
    log = tmp_path / "log"
    log.mkdir()
    run = {"failure_config": train.FailureConfig(max_failures=1)}
    result = fit(library, go_on, tmp_path, config={"log": str(log)}, run=run)
    assert {file.name for file in log.iterdir()} == {"0-from-0", "1-from-0", "0-from-4", "1-from-4", "killed"}
    alone = predict(library, boost(library, *load_rows(), ROUNDS))
    assert result.return_value == pytest.approx(alone, abs=1e-4)


@pytest.mark.usefixtures("session")
def test_a_run_that_is_complete_reports_nothing_more(tmp_path: Path) -> None:
    """XGBoost's callbacks hear of a training without an iteration, too, and its metrics are not known."""
    results = [fit("xgboost", go_on_for_no_round, tmp_path, num_workers=1) for _ in range(2)]
    assert [len(result.best_checkpoints) for result in results] == [1, 1]
    assert set(results[0].metrics or {}) == {"loss"}
    assert results[1].metrics == results[0].metrics


def go_on_for_no_round(config: dict[str, Any]) -> None:
    callback, start = get_callback("xgboost"), train.get_checkpoint()
    model = None if start is None else callback.get_model(start)
    boost("xgboost", *load_rows(), 0 if model else 2, start=model, callbacks=[callback({"loss": "train-rmse"})])


@each_library
@pytest.mark.usefixtures("session")
def test_the_rank_that_was_killed_is_named(tmp_path: Path, library: str) -> None:
    log = tmp_path / "log"
    log.mkdir()
    with pytest.raises(train.WorkerGroupError, match=r"^Rank 1 of 2.* died"):
        fit(library, go_on, tmp_path, config={"log": str(log)})
    assert (log / "killed").exists()


def raise_in_one_rank(config: dict[str, Any]) -> None:
    context = train.get_context()
    if context.get_world_rank() == 1:
        raise KeyError("no column")
    boost(config["library"], *load_rows(context.get_world_rank(), 2), ROUNDS)


@each_library
@pytest.mark.usefixtures("session")
def test_the_rank_that_raised_is_named(tmp_path: Path, library: str) -> None:
    with pytest.raises(train.WorkerGroupError, match=r"^Rank 1 of 2.* raised KeyError"):
        fit(library, raise_in_one_rank, tmp_path)


def train_for_fewer_rounds(config: dict[str, Any]) -> None:
    rank = train.get_context().get_world_rank()
    boost(config["library"], *load_rows(rank, 2), ROUNDS - rank)


def test_ranks_that_train_for_other_rounds_are_named(session: hocket.SessionContext, tmp_path: Path) -> None:
    with pytest.raises(train.WorkerGroupError, match=r"^Rank 0 of 2") as caught:
        fit("lightgbm", train_for_fewer_rounds, tmp_path)
    if session["engine"] == "local":  # Ray keeps the last lines of a dead worker in files
        assert "LightGBM cannot train with the other ranks: RankDiedError: Rank 1" in str(caught.value)
        assert "All ranks must call the same operations, the same number of times." in str(caught.value)


# --- bad input --------------------------------------------------------------------------------------------------------


@each_library
def test_bad_input(tmp_path: Path, library: str) -> None:
    trainer = name_trainer(library)
    callback = get_callback(library)
    with pytest.raises(DeprecationWarning, match=r"params=\.\.\.\) is not supported, .* trained without a function"):
        trainer(train_together, params={"eta": 0.1})
    with pytest.raises(TypeError, match="train_loop_per_worker must be a function"):
        trainer(None)
    with pytest.raises(TypeError, match=f"{library}_config must be a"):
        trainer(train_together, **{f"{library}_config": 3})
    with pytest.raises(ValueError, match="filename must be the name of a file"):
        callback(filename="a/b")
    with pytest.raises(TypeError, match="frequency must be an int"):
        callback(frequency=1.5)
    with pytest.raises(ValueError, match="frequency must be a whole number of iterations, 0 or more"):
        callback(frequency=-1)
    with pytest.raises(TypeError, match="metrics must be a list of names"):
        callback([3])
    with pytest.raises(TypeError, match="results_postprocessing_fn must be a function"):
        callback(results_postprocessing_fn=3)


def test_bad_settings() -> None:
    from hocket.train.lightgbm import LightGBMConfig, get_network_params
    from hocket.train.xgboost import XGBoostConfig

    for kind in (XGBoostConfig, LightGBMConfig):
        with pytest.raises(ValueError, match="timeout_s must be more than 0 seconds"):
            kind(timeout_s=0)
    with pytest.raises(ValueError, match="xgboost_communicator must be 'rabit'"):
        XGBoostConfig(xgboost_communicator="federated")
    with pytest.raises(RuntimeError, match="get_network_params"):
        get_network_params()


@each_library
@pytest.mark.usefixtures("here")
def test_ranks_of_one_process_are_refused(tmp_path: Path, library: str) -> None:
    with pytest.raises(ValueError, match="needs ranks that are processes"):
        fit(library, train_together, tmp_path)
    assert len(fit(library, train_together, tmp_path, num_workers=1).return_value["predictions"]) == 2000
    assert hocket.is_initialized()
