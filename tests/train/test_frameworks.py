"""Lightning and Hugging Face: their trainers train one model in all ranks, and their checkpoints arrive."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import data

from hocket import train
from hocket.train import torch as hocket_torch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def fit(function: Any, path: Path, config: Any, num_workers: int = 2) -> train.Result:
    return hocket_torch.TorchTrainer(
        function,
        train_loop_config=config,
        scaling_config=train.ScalingConfig(num_workers=num_workers),
        run_config=train.RunConfig(storage_path=path),
    ).fit()


class Pairs(data.Dataset[dict[str, torch.Tensor]]):
    """16 samples of a line."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        x = torch.tensor([number / 8 - 1.0])
        return {"x": x, "labels": 2 * x + 1}


def train_alone(epochs: int) -> list[float]:
    """Plain SGD, each step with all samples, so that their order does not matter."""
    model = build_linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, labels = (torch.stack([Pairs()[number][key] for number in range(16)]) for key in ("x", "labels"))
    for _ in range(epochs):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), labels).backward()
        optimizer.step()
    return [model.weight.item(), model.bias.item()]


def build_linear() -> torch.nn.Linear:
    torch.manual_seed(5)
    return torch.nn.Linear(1, 1)


# --- Lightning --------------------------------------------------------------------------------------------------------


def train_with_lightning(config: dict[str, Any]) -> list[float]:
    from lightning import pytorch as pl

    from hocket.train import lightning as hocket_lightning

    class Line(pl.LightningModule):  # type: ignore[misc]  # Lightning is not type-checked
        def __init__(self) -> None:
            super().__init__()
            self.linear = build_linear()

        def training_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
            loss = torch.nn.functional.mse_loss(self.linear(batch["x"]), batch["labels"])
            self.log("loss", loss, sync_dist=True)
            self.log(
                "mean_loss", loss, on_step=False, on_epoch=True, sync_dist=True
            )  # averages a count of rows, too: an int64
            return loss

        def validation_step(self, batch: dict[str, torch.Tensor]) -> None:
            self.log("rank", float(train.get_context().get_world_rank()), sync_dist=True)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    quiet = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
    }
    given: dict[str, Any] = {"strategy": hocket_lightning.RayDDPStrategy()}
    if config["environment"]:
        given["plugins"] = [hocket_lightning.RayLightningEnvironment()]
    trainer = hocket_lightning.prepare_trainer(
        pl.Trainer(
            max_epochs=2,
            accelerator="cpu",
            devices=1,
            callbacks=[hocket_lightning.RayTrainReportCallback()],
            **quiet,
            **given,
        )
    )
    model = Line()
    trainer.fit(model, data.DataLoader(Pairs(), batch_size=8), data.DataLoader(Pairs(), batch_size=8))
    assert trainer.world_size == train.get_context().get_world_size()
    return [model.linear.weight.item(), model.linear.bias.item()]


@pytest.mark.usefixtures("session")
def test_lightning_trains_one_model(tmp_path: Path) -> None:
    pytest.importorskip("lightning", reason="needs Lightning: pip install 'hocket[lightning]'")
    result = fit(train_with_lightning, tmp_path, {"environment": True})
    expected = train_alone(epochs=2)
    assert result.return_value == pytest.approx(expected, rel=1e-5)
    assert result.metrics is not None
    assert result.metrics.keys() == {"loss", "mean_loss", "rank", "epoch", "step"}
    assert result.metrics["rank"] == pytest.approx(0.5)
    assert (result.metrics["epoch"], result.metrics["step"]) == (1, 2)
    assert result.checkpoint is not None
    with result.checkpoint.as_directory() as folder:
        saved = torch.load(Path(folder, "checkpoint.ckpt"), weights_only=True)["state_dict"]
    assert [saved["linear.weight"].item(), saved["linear.bias"].item()] == pytest.approx(expected, rel=1e-5)


def test_a_lightning_trainer_that_was_not_made_for_ranks_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("lightning", reason="needs Lightning: pip install 'hocket[lightning]'")
    with pytest.raises(
        RuntimeError, match=r"plugins=\[RayLightningEnvironment\(\)\], but its environment is a LightningEnvironment"
    ):
        fit(train_with_lightning, tmp_path, {"environment": False}, num_workers=0)


# --- Hugging Face -----------------------------------------------------------------------------------------------------


def train_with_transformers(config: dict[str, Any]) -> list[float]:
    import transformers

    from hocket.train.huggingface import transformers as hocket_transformers

    class Line(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = build_linear()

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            outputs = self.linear(x)
            return {"loss": torch.nn.functional.mse_loss(outputs, labels), "logits": outputs}

    model = Line()
    arguments = transformers.TrainingArguments(
        config["folder"],
        use_cpu=config["use_cpu"],
        per_device_train_batch_size=8,
        num_train_epochs=2,
        learning_rate=0.1,
        lr_scheduler_type="constant",
        optim="sgd",
        max_grad_norm=0.0,
        save_strategy="epoch",
        logging_strategy="epoch",
        report_to=[],
        disable_tqdm=True,
        train_sampling_strategy="sequential",
    )
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=Pairs())
    trainer.add_callback(hocket_transformers.RayTrainReportCallback())
    trainer = hocket_transformers.prepare_trainer(trainer)
    trainer.train()
    return [model.linear.weight.item(), model.linear.bias.item()]


@pytest.mark.usefixtures("session")
def test_transformers_trains_one_model(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="needs transformers: pip install 'hocket[transformers]'")
    pytest.importorskip("accelerate", reason="needs accelerate: pip install 'hocket[transformers]'")
    result = fit(train_with_transformers, tmp_path, {"folder": str(tmp_path / "own"), "use_cpu": True})
    assert result.metrics is not None
    assert result.metrics["step"] == 2
    assert result.checkpoint is not None
    with result.checkpoint.as_directory() as folder:
        assert {"trainer_state.json", "rng_state_0.pth", "rng_state_1.pth"} <= {
            path.name for path in Path(folder, "checkpoint").iterdir()
        }
    assert result.return_value == pytest.approx(train_alone(epochs=2), rel=1e-5)
    with pytest.raises(
        train.WorkerGroupError,
        match=r"found a world size of 1, but there are 2 ranks, so each would train alone\. .*use_cpu=True",
    ):
        fit(train_with_transformers, tmp_path, {"folder": str(tmp_path / "own"), "use_cpu": False})


# --- neither ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "framework", "extra"),
    [
        ("hocket.train.lightning", "lightning", "lightning"),
        ("hocket.train.huggingface.transformers", "transformers", "transformers"),
        ("hocket.train.torch", "torch", "torch"),
        ("hocket.train.tensorflow", "tensorflow", "tensorflow"),
        ("hocket.train.keras", "keras", "keras"),
    ],
)
def test_a_missing_framework_names_its_extra(module: str, framework: str, extra: str) -> None:
    program = f"import sys; sys.modules[{framework!r}] = None\nimport {module}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"pip install 'hocket[{extra}]'" in done.stderr.splitlines()[-1]
