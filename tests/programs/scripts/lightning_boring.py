"""Trains and tests the `BoringModel` that Lightning ships, in two ranks (lightning.pytorch.demos, Apache-2.0)."""

import json
import sys

import torch
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.demos.boring_classes import BoringModel


def main() -> None:
    seed_everything(0, verbose=False)
    model = BoringModel()
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=2,
        limit_train_batches=8,
        limit_val_batches=4,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model)
    trainer.test(model, verbose=False)
    if trainer.is_global_zero:
        weights = torch.cat([parameter.flatten() for parameter in model.parameters()]).tolist()
        found = {"ranks": trainer.world_size, "steps": trainer.global_step, "weights": weights}
        sys.stdout.write("\n" + json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
