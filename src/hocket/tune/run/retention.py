"""The checkpoints of a trial: which ones are kept, and how a trial gets another's."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from hocket.stores import atomic_folders, names
from hocket.train import configs as train_configs
from hocket.train.checkpoints import storage
from hocket.train.tracking import scores
from hocket.tune.run import live_trial


def choose_surplus(
    checkpoints: list[live_trial.SavedCheckpoint], config: train_configs.CheckpointConfig
) -> list[live_trial.SavedCheckpoint]:
    """Return the checkpoints that are not kept; see `scores.choose_kept`."""
    key, order = config.checkpoint_score_attribute, config.checkpoint_score_order
    kept = scores.choose_kept([one.metrics for one in checkpoints], config.num_to_keep, key, order)
    return [one for place, one in enumerate(checkpoints) if place not in kept]


def remove(folder: Path, checkpoint: live_trial.SavedCheckpoint) -> None:
    """Remove a checkpoint of the trial in `folder`."""
    names.join(folder.parent, f"{folder.name}/{checkpoint.name}", "The log of the search")
    storage.remove(storage.Storage(str(folder.parent), folder.name), folder / checkpoint.name)


def remove_strays(folder: Path, known: Iterable[str]) -> None:
    """Remove the remains of a killed attempt: whole or half-written checkpoints that the trial had not reported.

    Copies of checkpoints under other names, which the trial has made itself, stay.

    Args:
        folder: The trial's folder.
        known: The names of the checkpoints in the log.
    """
    if not folder.is_dir() or folder.is_symlink():
        return
    own = storage.Storage(str(folder.parent), folder.name)
    kept = set(known)
    for inner in folder.iterdir():
        if inner.name not in kept and inner.is_dir() and not inner.is_symlink():
            manifest = storage.get_optional_manifest(inner)
            if manifest is not None and storage.is_own(inner.name, manifest):
                storage.remove(own, inner)
    storage.close_storage(own)


def give(source: Path, target: Path) -> None:
    """Give a committed checkpoint to another trial: link its files if the disk allows it, else copy them.

    Links are safe: files do not change after the commit, and removing one trial's link leaves the other's.
    """
    with atomic_folders.AtomicFolder(target).writing() as folder:
        shutil.copytree(source, folder, copy_function=_link, dirs_exist_ok=True)
        manifest = storage.get_optional_manifest(folder)
        if manifest is not None:
            storage.replace_manifest(folder, {**manifest, "name": target.name})


def _link(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    return target
