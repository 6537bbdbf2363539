"""Other libraries' training loops in trials: what they report, and what they save."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hocket import tune
from hocket.train.frameworks.boosters import metric_choice

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120), pytest.mark.usefixtures("session")]


def search(function: Any, path: Path, space: dict[str, Any], **settings: Any) -> tune.ResultGrid:
    return tune.Tuner(
        function,
        param_space=space,
        tune_config=tune.TuneConfig(metric="loss", mode="min", **settings),
        run_config=tune.RunConfig(name="search", storage_path=path, verbose=0),
    ).fit()


def load_rows() -> tuple[Any, Any]:
    from sklearn.datasets import load_breast_cancer

    rows, labels = load_breast_cancer(return_X_y=True)
    return rows, labels


def boost_with_xgboost(config: dict[str, Any]) -> None:
    import xgboost

    from hocket.tune.integration.xgboost import TuneReportCheckpointCallback

    rows = xgboost.DMatrix(*load_rows()[:1], label=load_rows()[1])
    xgboost.train(
        {"objective": "binary:logistic", "eval_metric": ["logloss", "error"], "eta": config["eta"], "nthread": 1},
        rows,
        num_boost_round=5,
        evals=[(rows, "eval")],
        verbose_eval=False,
        callbacks=[TuneReportCheckpointCallback(config["metrics"], frequency=config["frequency"])],
    )


def boost_with_lightgbm(config: dict[str, Any]) -> None:
    import lightgbm

    from hocket.tune.integration.lightgbm import TuneReportCheckpointCallback

    data = lightgbm.Dataset(*load_rows()[:1], label=load_rows()[1])
    lightgbm.train(
        {"objective": "binary", "metric": ["binary_logloss", "binary_error"], "learning_rate": config["eta"],
         "num_threads": 1, "verbose": -1},
        data,
        num_boost_round=5,
        valid_sets=[data],
        valid_names=["eval"],
        callbacks=[TuneReportCheckpointCallback(config["metrics"], frequency=config["frequency"])],
    )  # fmt: skip


BOOSTERS = [
    ("xgboost", boost_with_xgboost, "logloss", "error"),
    ("lightgbm", boost_with_lightgbm, "binary_logloss", "binary_error"),
]


@pytest.mark.parametrize(("library", "function", "loss", "error"), BOOSTERS)
@pytest.mark.parametrize("frequency", [0, 5])
def test_boosters(tmp_path: Path, library: str, function: Any, loss: str, error: str, frequency: int) -> None:
    module = pytest.importorskip(f"hocket.tune.integration.{library}", reason=f"needs {library}", exc_type=ImportError)
    metrics = {"loss": f"eval-{loss}", "error": f"eval-{error}"}
    space = {"eta": tune.grid_search([0.01, 0.3]), "metrics": metrics, "frequency": frequency}
    found = search(function, tmp_path, space)
    assert not found.errors
    assert found.get_best_result().config["eta"] == 0.3
    for one in found:
        assert one.checkpoint is not None
        losses = [report["loss"] for report in one.metrics_history]
        repeats = library == "xgboost" and frequency != 5  # only afterwards it says that it was the last
        assert len(losses) == 5 + repeats
        assert losses[:5] == sorted(losses[:5], reverse=True)
        assert {"loss", "error"} <= set(one.metrics)
        model = module.TuneReportCheckpointCallback.get_model(one.checkpoint)
        rounds = model.num_boosted_rounds() if library == "xgboost" else model.current_iteration()
        assert rounds == 5


@pytest.mark.parametrize(("library", "function", "loss", "error"), BOOSTERS)
def test_a_metric_that_a_booster_does_not_have(
    tmp_path: Path, library: str, function: Any, loss: str, error: str
) -> None:
    pytest.importorskip(library, reason=f"needs {library}")
    found = search(function, tmp_path, {"eta": 0.1, "metrics": ["eval-auc"], "frequency": 0})
    assert f"metrics names ['eval-auc'], but the metrics are ['eval-{error}', 'eval-{loss}']" in str(found.errors[0])


def validate_with_xgboost(config: dict[str, Any]) -> None:
    import xgboost

    from hocket.tune.integration.xgboost import TuneReportCheckpointCallback

    images, labels = load_rows()
    callback = TuneReportCheckpointCallback(
        frequency=2, results_postprocessing_fn=lambda found: {"loss": found["test-logloss"][0]}
    )
    xgboost.cv(
        {"objective": "binary:logistic", "nthread": 1},
        xgboost.DMatrix(images, label=labels),
        num_boost_round=3,
        nfold=3,
        metrics="logloss",
        callbacks=[callback],
        verbose_eval=False,
    )


def test_cross_validation(tmp_path: Path) -> None:
    pytest.importorskip("xgboost", reason="needs XGBoost: pip install xgboost")
    (found,) = search(validate_with_xgboost, tmp_path, {})
    assert found.error is None
    assert len(found.metrics_history) == 3
    assert found.checkpoint is None, "there is no one model"


def train_with_lightning(config: dict[str, Any]) -> None:
    import torch
    from lightning import pytorch as pl

    from hocket.tune.integration.pytorch_lightning import TuneReportCheckpointCallback

    class Line(pl.LightningModule):  # type: ignore[misc]  # Lightning is not type-checked
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.inner = torch.nn.Linear(1, 1)

        def training_step(self, batch: Any) -> Any:
            return (self.inner(batch) - 2 * batch).square().mean()

        def validation_step(self, batch: Any) -> None:
            self.log("val_loss", (self.inner(batch) - 2 * batch).square().mean())

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=config["lr"])

    rows: Any = torch.linspace(0, 1, 16).reshape(16, 1)
    trainer = pl.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tune.get_context().get_trial_dir(),
        callbacks=[TuneReportCheckpointCallback({"loss": "val_loss"}, filename="line.ckpt")],
    )
    loaders: Any = [torch.utils.data.DataLoader(rows, batch_size=4) for _ in range(2)]
    trainer.fit(Line(), *loaders)


@pytest.mark.filterwarnings("ignore")
def test_lightning(tmp_path: Path) -> None:
    pytest.importorskip("lightning", reason="needs Lightning: pip install 'hocket[lightning]'")
    found = search(train_with_lightning, tmp_path, {"lr": tune.grid_search([0.001, 0.1])})
    assert not found.errors
    assert found.get_best_result().config["lr"] == 0.1
    for one in found:
        assert len(one.metrics_history) == 3, "the check of validation before the first epoch does not count"
        assert one.checkpoint is not None
        assert Path(one.checkpoint.path, "line.ckpt").is_file()


def test_a_hook_that_lightning_does_not_have() -> None:
    module = pytest.importorskip("hocket.tune.integration.pytorch_lightning", exc_type=ImportError, reason="needs it")
    with pytest.raises(ValueError, match=r"on must name hooks of Lightning's callbacks, .*, but received 'epoch'"):
        module.TuneReportCheckpointCallback("loss", on="epoch")


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"metrics": [1]}, TypeError, r"metrics must be a list of names, or a dict of names, but received \[1\]"),
        ({"filename": "a/b"}, ValueError, "filename must be the name of a file, but received 'a/b'"),
        ({"frequency": -1}, ValueError, "frequency must be a whole number of iterations, 0 or more, but received -1"),
        ({"results_postprocessing_fn": 1}, TypeError, "results_postprocessing_fn must be a function"),
    ],
)
@pytest.mark.parametrize("library", ["xgboost", "lightgbm"])
def test_bad_arguments(library: str, arguments: dict[str, Any], error: type[Exception], match: str) -> None:
    module = pytest.importorskip(f"hocket.tune.integration.{library}", reason=f"needs {library}", exc_type=ImportError)
    with pytest.raises(error, match=match):
        module.TuneReportCheckpointCallback(**arguments)


def test_all_metrics_if_none_are_named() -> None:
    assert metric_choice.choose(metric_choice.read(None), {"a": 1}) == {"a": 1}
    assert metric_choice.choose(metric_choice.read("a"), {"a": 1, "b": 2}) == {"a": 1}
