"""The manifest of a mesh checkpoint: its values, the places of their parts, and the digests of its files.

It is replaced last and atomically, and has a digest of its own, so its content is known to be intact.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, Final, TypeAlias

from hocket.stores import local_files, names

Place: TypeAlias = tuple[slice, ...]
"""The place of a part in the whole value: a slice for each dim."""

MANIFEST: Final = "manifest.json"
_FORMAT: Final = "hocket.mesh 1"


class CheckpointDamagedError(ValueError):
    """A checkpoint's files differ from those that were written. The message names the file. Use another checkpoint."""


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """A part of a value."""

    file: str
    place: Place


@dataclasses.dataclass(frozen=True, slots=True)
class Saved:
    """One value of a checkpoint."""

    shape: tuple[int, ...]
    dtype: str
    parts: tuple[Part, ...]


# --- writing ----------------------------------------------------------------------------------------------------------


def join(found: Sequence[tuple[Any, dict[str, str]]], number: str) -> dict[str, Any]:
    """Return the manifest, joined from the descriptions of all processes."""
    values: dict[str, Any] = {}
    for described, _ in found:
        for name, (what, parts) in described.items():
            value = values.setdefault(name, {**what, "parts": []})
            value["parts"] += [[f"{number}-{device}.safetensors", bounds] for device, bounds in parts]
    said = {"values": values, "files": {name: one for _, files in found for name, one in files.items()}}
    return {"format": _FORMAT, "digest": _digest_text(said), **said}


def _digest_text(said: Mapping[str, object]) -> str:
    """Return the digest of the values and files in a manifest."""
    text = json.dumps({key: said[key] for key in ("values", "files")}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def write(target: Path, manifest: Mapping[str, object]) -> None:
    """Replace the manifest of a folder, after the files that it names were written."""
    local_files.sync(target)  # before the manifest, the files that it names
    local_files.write_synced(target / MANIFEST, json.dumps(manifest, indent=1).encode())


@contextlib.contextmanager
def removed_after_failure(files: list[Path]) -> Iterator[None]:
    """Remove files if the block raises."""
    try:
        yield
    except BaseException:
        for file in files:
            file.unlink(missing_ok=True)
        raise


# --- reading ----------------------------------------------------------------------------------------------------------


def read(path: Path) -> tuple[str, dict[str, Saved], dict[str, str]]:
    """Return a manifest's text, its values, and the digests of the files."""
    file = path / MANIFEST
    try:
        text = local_files.read_text(file)
        found: Any = json.loads(text)
        if found["format"] != _FORMAT:
            raise ValueError(f"its format is {found['format']!r}, but this version reads {_FORMAT!r}")
        if _digest_text(found) != found.get("digest", _digest_text(found)):  # older manifests have no digest
            raise ValueError("it has changed since it was written")
        digests = {names.check(name, f"{str(file)!r}"): str(one) for name, one in found["files"].items()}
        return text, {name: _read_saved(one, digests.keys()) for name, one in found["values"].items()}, digests
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileNotFoundError(f"{path} is not a checkpoint of a mesh: it has no {MANIFEST}.") from error
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise build_damage(file, f"it is not a manifest ({error})") from error


def build_damage(file: Path, what: str) -> CheckpointDamagedError:
    """Return the error for a file that differs from the one that was written."""
    return CheckpointDamagedError(f"The checkpoint's file {str(file)!r} is damaged: {what}. Use another checkpoint.")


def _read_saved(described: Mapping[str, Any], files: AbstractSet[str]) -> Saved:
    parts = tuple([Part(file, tuple([slice(*one) for one in bounds])) for file, bounds in described["parts"]])
    shape, bounds = tuple(described["shape"]), [part.place for part in parts]
    numbers = [*shape, *(end for place in bounds for one in place for end in (one.start, one.stop))]
    is_sound = all(type(number) is int and number >= 0 for number in numbers) and isinstance(described["dtype"], str)
    if not (is_sound and all(len(place) == len(shape) for place in bounds) and files >= {part.file for part in parts}):
        raise ValueError("a value's shape or parts are impossible")
    return Saved(shape, described["dtype"], parts)
