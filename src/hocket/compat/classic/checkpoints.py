"""The checkpoints of a run of `Trainer`: dicts. The best or the latest are kept as files."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle

from hocket._base import addresses, texts
from hocket.compat.classic import session
from hocket.stores import local_files
from hocket.stores import trust as trust_module
from hocket.train import configs
from hocket.train.rank import questions


@dataclass(frozen=True, kw_only=True)
class CheckpointStrategy:
    """The rule for which checkpoints of a run are kept as files.

    Raises:
        ValueError: A value breaks a rule.

    Example:
        >>> from hocket import train
        >>> best = train.CheckpointStrategy(
        ...     num_to_keep=2, checkpoint_score_attribute="loss", checkpoint_score_order="min"
        ... )
        >>> best.num_to_keep
        2
    """

    num_to_keep: int | None = None
    """How many to keep: the best by score. None keeps all. 0 keeps none as files, and only the latest in memory."""
    checkpoint_score_attribute: str = session.TIMESTAMP
    """The key of the score in checkpoints. By default the latest is the best. NaN is the worst."""
    checkpoint_score_order: str = "max"
    """Whether the best score is the ``"max"`` or the ``"min"``."""

    def __post_init__(self) -> None:
        number: Any = self.num_to_keep
        if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 0):
            raise ValueError(
                f"num_to_keep must be 0 or more, or None to keep all, but received {number!r}. Write 0 to keep none "
                "as files."
            )
        configs.check_score_order(self.checkpoint_score_order)


@dataclass(frozen=True, slots=True)
class _Kept:
    number: int
    score: float
    path: Path


class CheckpointStore:
    """The checkpoints of one run."""

    def __init__(self, folder: Path, strategy: CheckpointStrategy, start_blob: bytes | None) -> None:
        self.folder = folder
        self.strategy = strategy
        self.latest_blob = start_blob
        """The last saved checkpoint, or the checkpoint that the run began with, pickled."""
        self._has_saved = False
        self._count = 0
        self._kept: list[_Kept] = []

    @property
    def latest(self) -> dict[str, object] | None:
        """The last saved checkpoint; None if there is none."""
        if not self._has_saved or self.latest_blob is None:
            return None
        state: dict[str, Any] = cloudpickle.loads(self.latest_blob)
        return state

    @property
    def best_path(self) -> Path | None:
        """The file with the best score, and the newest of equal ones. None if there is no file."""
        return max(self._kept, key=self._rank).path if self._kept else None

    def take(self, saved: questions.HandOver) -> None:
        """Keep a checkpoint of rank 0."""
        assert saved.blob is not None, "it is rank 0's"
        self.latest_blob = saved.blob
        self._has_saved = True
        self._count += 1
        if self.strategy.num_to_keep == 0:
            return
        assert saved.score is not None, "what is kept as a file has a score"
        path = self.folder / f"checkpoint_{self._count:06d}"
        self.folder.mkdir(parents=True, exist_ok=True)
        local_files.write_synced(path, trust_module.note(saved.blob))
        self._kept.append(_Kept(self._count, saved.score, path))
        self._kept.sort(key=self._rank, reverse=True)
        keep = self.strategy.num_to_keep
        for surplus in self._kept[keep:] if keep is not None else ():
            surplus.path.unlink(missing_ok=True)
        del self._kept[keep if keep is not None else len(self._kept) :]

    def _rank(self, kept: _Kept) -> tuple[float, int]:
        if math.isnan(kept.score):  # the worst
            return -math.inf, kept.number
        return (kept.score if self.strategy.checkpoint_score_order == "max" else -kept.score), kept.number


def load(path: str | Path, *, trust: bool = False) -> dict[str, Any]:
    """Read a checkpoint from a file that a run has kept.

    Raises:
        UntrustedFolderError: Other users may write the file, and `trust` is False.
        FileNotFoundError: There is no such file.
        ValueError: The file is not a checkpoint.
    """
    found = cloudpickle.loads(_read(path, trust=trust))
    if not isinstance(found, dict):
        raise ValueError(
            f"A checkpoint must be a dict, but {str(path)!r} holds {texts.name_kind(found)}. Pass a file of "
            "Trainer.latest_checkpoint_dir."
        )
    return found


def encode(checkpoint: Mapping[str, object] | str | Path | None) -> bytes | None:
    """Return the first checkpoint of a run, pickled.

    Raises:
        TypeError: `checkpoint` is neither a dict nor a path.
        UntrustedFolderError: Other users may write the file.
        FileNotFoundError: There is no such file.
    """
    if checkpoint is None:
        return None
    if isinstance(checkpoint, str | os.PathLike):
        return _read(checkpoint, trust=False)
    if isinstance(checkpoint, dict):
        blob: bytes = cloudpickle.dumps(checkpoint)
        return blob
    raise TypeError(
        f"checkpoint must be a dict or the path of a file, but received {checkpoint!r}. Pass "
        "Trainer.latest_checkpoint or best_checkpoint_path."
    )


def _read(path: str | os.PathLike[str], *, trust: bool) -> bytes:
    addresses.refuse(path, "checkpoint")
    file = Path(path).expanduser()
    if not file.is_file():
        raise FileNotFoundError(
            f"There is no checkpoint file {str(file)!r}. Was it removed (CheckpointStrategy.num_to_keep)? "
            "Trainer.latest_checkpoint_dir lists them."
        )
    with local_files.open_regular(file) as opened:
        blob = opened.read()
    trust_module.Opener(file, "Trainer.load_checkpoint_from_path()", trust=trust).check(blob)
    return blob
