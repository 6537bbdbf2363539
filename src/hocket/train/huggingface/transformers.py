"""Hugging Face's Trainer in the ranks of a `TorchTrainer`. Names are Ray's.

    trainer = transformers.Trainer(model=model, args=transformers.TrainingArguments(folder, use_cpu=True),
    train_dataset=data) trainer.add_callback(RayTrainReportCallback()) trainer = prepare_trainer(trainer)
    trainer.train()

It finds the process group that the trainer has joined, and uses it. Importing this module imports transformers.
"""

from __future__ import annotations

import importlib
import shutil
from pathlib import Path
from typing import Any, Final, final

from hocket import extras

with extras.explain(
    "hocket.train.huggingface.transformers",
    "PyTorch, transformers and accelerate",
    "Run pip install 'hocket[transformers]'.",
):
    import torch.distributed as dist
    import transformers

    importlib.import_module("accelerate")  # the Trainer asks for it only when it is made

from hocket.train.checkpoints import checkpoint as checkpoint_module
from hocket.train.rank import context, worker_session


@final
class RayTrainReportCallback(transformers.TrainerCallback):  # type: ignore[misc]  # transformers is not type-checked
    """Reports what the Trainer has logged last, and its checkpoint, each time that it saves one."""

    CHECKPOINT_NAME: Final = "checkpoint"
    """The folder in the checkpoint's folder, for ``trainer.train(resume_from_checkpoint=...)``."""

    def on_save(self, args: Any, state: Any, control: object, **kwargs: object) -> None:
        """Called by the Trainer, in all ranks, when its files are written."""
        metrics: dict[str, Any] = {}
        for logged in state.log_history:
            metrics.update(logged)
        if dist.is_initialized():
            dist.barrier()  # each rank writes a file of its own too
        source = Path(args.output_dir, f"checkpoint-{state.global_step}")
        with worker_session.get_session("report").open_folder() as folder:
            checkpoint = None
            if context.get_context().get_local_rank() == 0 and source.is_dir():
                shutil.copytree(source, Path(folder, self.CHECKPOINT_NAME))
                checkpoint = checkpoint_module.Checkpoint.from_directory(folder)
            context.report(metrics, checkpoint=checkpoint)


def prepare_trainer(trainer: Any) -> Any:
    """Check that a Trainer has found the ranks of a `TorchTrainer`; return it.

    Raises:
        RuntimeError: It would train in each rank alone.
    """
    expected, found = context.get_context().get_world_size(), trainer.args.world_size
    if found != expected:
        raise RuntimeError(
            f"The Trainer has found {found} rank where there are {expected}, so each would train alone. On CPUs write "
            "TrainingArguments(use_cpu=True, ...)."
        )
    return trainer
