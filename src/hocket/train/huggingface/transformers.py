"""Hugging Face's Trainer in the ranks of a `TorchTrainer`. Names are Ray's.

    arguments = transformers.TrainingArguments(folder, use_cpu=True)
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=data)
    trainer.add_callback(RayTrainReportCallback())
    trainer = prepare_trainer(trainer)
    trainer.train()

transformers uses the process group that the `TorchTrainer` has made. Importing this module imports transformers.
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

    importlib.import_module("accelerate")  # now, because transformers would miss it only when a Trainer is made

from hocket.train.checkpoints import checkpoint as checkpoint_module
from hocket.train.rank import context, worker_session


@final
class RayTrainReportCallback(transformers.TrainerCallback):  # type: ignore[misc]  # transformers is not type-checked
    """A callback that reports the Trainer's last logged metrics and its checkpoint, each time that it saves one."""

    CHECKPOINT_NAME: Final = "checkpoint"
    """The name of the Trainer's folder inside a checkpoint, for ``trainer.train(resume_from_checkpoint=...)``."""

    def on_save(self, args: Any, state: Any, control: object, **kwargs: object) -> None:
        """Report. The Trainer calls this method in all ranks, when its files are written."""
        metrics: dict[str, Any] = {}
        for logged in state.log_history:
            metrics.update(logged)
        if dist.is_initialized():
            dist.barrier()  # because each rank also writes a file of its own
        source = Path(args.output_dir, f"checkpoint-{state.global_step}")
        with worker_session.get_session("report").open_folder() as folder:
            checkpoint = None
            if context.get_context().get_local_rank() == 0 and source.is_dir():
                shutil.copytree(source, Path(folder, self.CHECKPOINT_NAME))
                checkpoint = checkpoint_module.Checkpoint.from_directory(folder)
            context.report(metrics, checkpoint=checkpoint)


def prepare_trainer(trainer: Any) -> Any:
    """Check that a Trainer has found the ranks of a `TorchTrainer`, and return it.

    Raises:
        RuntimeError: The Trainer would train in each rank alone.
    """
    expected, found = context.get_context().get_world_size(), trainer.args.world_size
    if found != expected:
        raise RuntimeError(
            f"The Trainer found a world size of {found}, but there are {expected} ranks, so each would train alone. On "
            "CPUs write TrainingArguments(use_cpu=True, ...)."
        )
    return trainer
