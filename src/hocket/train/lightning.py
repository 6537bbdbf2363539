"""Lightning: its Trainer in the ranks of a `TorchTrainer`. Names are Ray's.

    trainer = lightning.pytorch.Trainer(
        accelerator="auto", devices="auto",
        strategy=RayDDPStrategy(), plugins=[RayLightningEnvironment()], callbacks=[RayTrainReportCallback()],
    )
    trainer = prepare_trainer(trainer)
    trainer.fit(model, data)

Lightning uses the process group that the `TorchTrainer` has made. Importing this module imports Lightning.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, final

from hocket import extras
from hocket._base import missing as _missing
from hocket._base import texts

with extras.explain("hocket.train.lightning", "PyTorch and Lightning", "Run pip install 'hocket[lightning]'."):
    import torch
    from lightning import pytorch as pl
    from lightning.pytorch import strategies as pl_strategies
    from lightning.pytorch.plugins import environments

from hocket.train.checkpoints import checkpoint as checkpoint_module
from hocket.train.frameworks.torch import devices
from hocket.train.rank import context, worker_session


@final
class RayDDPStrategy(pl_strategies.DDPStrategy):  # type: ignore[misc]  # Lightning is not type-checked
    """Lightning's DDPStrategy on the rank's device, with the same arguments."""

    @property
    def root_device(self) -> torch.device:
        """The rank's device."""
        return devices.get_device()

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        """The arguments by which Lightning splits the samples of loaders."""
        return {"num_replicas": self.world_size, "rank": self.global_rank}


@final
class RayLightningEnvironment(environments.LightningEnvironment):  # type: ignore[misc]  # the same
    """An environment from which Lightning learns its rank, and that it must not start processes."""

    @property
    def creates_processes_externally(self) -> bool:
        """Whether the processes run already: always."""
        return True

    def world_size(self) -> int:
        """Return the number of ranks."""
        return context.get_context().get_world_size()

    def global_rank(self) -> int:
        """Return this rank's index."""
        return context.get_context().get_world_rank()

    def local_rank(self) -> int:
        """Return this rank's index among those of its machine."""
        return context.get_context().get_local_rank()

    def node_rank(self) -> int:
        """Return the index of this rank's machine."""
        return context.get_context().get_node_rank()

    def set_world_size(self, size: int) -> None:
        """Do nothing, because the trainer, not Lightning's count of devices, sets the number of ranks."""

    def set_global_rank(self, rank: int) -> None:
        """Do nothing, because the trainer sets the rank."""

    def teardown(self) -> None:
        """Do nothing, because the environment variables belong to the trainer."""


@final
class RayTrainReportCallback(pl.Callback):  # type: ignore[misc]  # the same
    """A callback that reports Lightning's metrics and a checkpoint after each epoch of training."""

    CHECKPOINT_NAME: Final = "checkpoint.ckpt"
    """The name of Lightning's file inside a checkpoint, for ``trainer.fit(ckpt_path=...)``."""

    def on_train_epoch_end(self, trainer: Any, pl_module: object) -> None:
        """Report. Lightning calls this method in all ranks."""
        metrics = {name: value.item() for name, value in trainer.callback_metrics.items()}
        metrics.update(epoch=trainer.current_epoch, step=trainer.global_step)
        with worker_session.get_session("report").open_folder() as folder:
            trainer.save_checkpoint(f"{folder}/{self.CHECKPOINT_NAME}", weights_only=False)
            has_files = any(Path(folder).iterdir())  # if models are equal, only rank 0 writes one
            checkpoint = checkpoint_module.Checkpoint.from_directory(folder) if has_files else None
            context.report(metrics, checkpoint=checkpoint)


def prepare_trainer(trainer: Any) -> Any:
    """Check that a Lightning Trainer was made for the ranks of a `TorchTrainer`, and return it.

    Raises:
        RuntimeError: Its strategy or its environment is not one of this module's.
    """
    if not isinstance(trainer.strategy, RayDDPStrategy):
        raise RuntimeError(
            "prepare_trainer() takes a Trainer with strategy=RayDDPStrategy(), but its strategy is "
            f"{texts.name_kind(trainer.strategy)}. Write Trainer(strategy=RayDDPStrategy(), ...)."
        )
    environment = trainer.strategy.cluster_environment
    if not isinstance(environment, RayLightningEnvironment):
        raise RuntimeError(
            "prepare_trainer() takes a Trainer with plugins=[RayLightningEnvironment()], but its environment is "
            f"{texts.name_kind(environment)}. Write Trainer(plugins=[RayLightningEnvironment()], ...)."
        )
    return trainer


_missing.explain(__name__)
