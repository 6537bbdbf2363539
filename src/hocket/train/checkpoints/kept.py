"""The contents of a run's folder: whole checkpoints and remains of damaged ones, on this machine or in a store."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from hocket.stores import commits, manifests, names
from hocket.train.checkpoints import checkpoint as checkpoint_module
from hocket.train.checkpoints import storage

DAMAGED_SUFFIX: Final = ".damaged"
"""The suffix for the name of a damaged checkpoint when another checkpoint needs that name."""

OWN_NAME: Final = re.compile(r"checkpoint_\d{6,}")
"""The default names of checkpoints."""

_NO_MANIFEST: Final = "it has no manifest, so it was not committed, or has lost files"


NAME_RULE: Final = f"the name of one folder that does not start with '.' or end with {DAMAGED_SUFFIX!r}"
"""The rule of `is_name` in words, for messages."""


def is_name(name: str) -> bool:
    """Return whether a user may give a checkpoint this name. Checkpoints with other names would not be found again."""
    return not (names.find_folder_fault(name) or name.startswith(".") or name.endswith(DAMAGED_SUFFIX))


@final
@dataclass(frozen=True, slots=True)
class Kept:
    """A folder that is a checkpoint, or was one."""

    name: str
    shown: str
    """The folder's name in messages."""
    checkpoint: checkpoint_module.Checkpoint
    manifest: Mapping[str, Any]
    damage: str | None = None
    """A description of the damage; None if the checkpoint is whole."""


def list_local(run_path: Path) -> Iterator[Kept]:
    """Yield the checkpoints in a run's folder. Each file is compared with its digest."""
    for folder in run_path.iterdir() if run_path.is_dir() else ():
        if folder.name.endswith(DAMAGED_SUFFIX):
            continue
        manifest, damage = None, "its manifest cannot be read"
        if not (folder / storage.MANIFEST_NAME).is_file():
            if not (OWN_NAME.fullmatch(folder.name) and folder.is_dir()):
                continue
            damage = _NO_MANIFEST
        else:
            manifest = storage.get_optional_manifest(folder)
        found = damage if manifest is None else storage.find_damage(folder, manifest)
        yield Kept(folder.name, str(folder), checkpoint_module.Checkpoint(folder), manifest or {}, found)


def list_stored(shelf: commits.Shelf) -> Iterator[Kept]:
    """Yield the checkpoints in a run's folder in a store. Names and sizes of the files are compared now, contents only
    when they are read."""
    folders = shelf.list_folders()
    pending = folders.get(commits.PENDING, {})
    for name, sizes in folders.items():
        if name.endswith(DAMAGED_SUFFIX):
            continue
        manifest, damage = None, "its manifest cannot be read"
        if storage.MANIFEST_NAME not in sizes:
            if not OWN_NAME.fullmatch(name) or name in pending:
                continue
            damage = _NO_MANIFEST
        else:
            manifest = shelf.read_manifest(name)
        gap = None if manifest is None else manifests.find_gap(storage.read_records(manifest), sizes)
        found = damage if manifest is None else None if gap is None else str(gap)
        place = shelf.place.join(name)
        yield Kept(name, place.shown, checkpoint_module.build(place.path, None, place), manifest or {}, found)
