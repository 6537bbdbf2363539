"""Checkpoints of variables: directories that numpy can read, without this package.

- ``manifest.json``: each variable's kind, shape, dtype and step; the number of pushes; files' digests; further data.
- ``<name>/value.npy``: a dense variable, or a table's rows.
- ``<name>/<slot>.npy``: a slot of the variable's optimizer.
- ``<name>/ids.npy``: a table's ids, one for each row; with ``hits.npy`` and ``last_steps.npy``.

Saving joins the shards, and loading splits them again, so the number of servers may change. A checkpoint is written
beside its place and renamed, so no process sees half a checkpoint; in a store such as S3 the manifest is written last
(`hocket.stores.commits`). A checkpoint is one cut: the gate is held while the variables are copied.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import numpy as np

from hocket.ps import errors
from hocket.ps.access import links
from hocket.ps.checkpoint import snapshots
from hocket.ps.rules import initializers, placement
from hocket.ps.stores import records
from hocket.ps.stores.memory import Array
from hocket.stores import atomic_folders, commits, local_files, manifests, names, places

MANIFEST: Final = "manifest.json"
_FORMAT: Final = 1
_CALLER: Final = "A checkpoint of variables"


def save(
    address: links.Address,
    made: list[records.VariableRecord],
    path: str | os.PathLike[str],
    extra: Mapping[str, object],
) -> str:
    """Write a checkpoint; return its path.

    Args:
        address: The addresses of the servers.
        made: The records of the variables.
        path: A directory that does not exist, or is a checkpoint, which is replaced. Or an address such as
            ``s3://bucket/folder``, whose old checkpoint is removed first.
        extra: Further data to save; JSON.

    Raises:
        FileExistsError: The path exists, and is no checkpoint.
        OSError: The checkpoint cannot be written there.
    """
    found = _locate(path)
    if not isinstance(found, places.Place):
        return _save(address, made, Path(found), extra)
    with tempfile.TemporaryDirectory(prefix="checkpoint-") as folder:
        commits.put(found, Path(_save(address, made, Path(folder, "checkpoint"), extra)), MANIFEST)
    return os.fspath(path)


def _locate(path: str | os.PathLike[str]) -> str | os.PathLike[str] | places.Place:
    text: object = os.fspath(path)
    if not isinstance(text, str):
        raise TypeError(
            f"The path of a checkpoint must be a str or a pathlib.Path, but received {path!r:.80}. Write "
            "os.fsdecode(path)."
        )
    if not text:
        raise ValueError("The path of a checkpoint is empty. Give the path of a folder, such as 'checkpoint'.")
    return places.locate(path, None, _CALLER)


def _save(address: links.Address, made: list[records.VariableRecord], target: Path, extra: Mapping[str, object]) -> str:
    place = atomic_folders.AtomicFolder(target)
    if place.find().exists() and not (place.find() / MANIFEST).is_file():
        raise FileExistsError(f"{target} exists, and is not a checkpoint. Choose a path that does not exist.")
    link = links.open_link(address)
    with snapshots.open_gate(address).held() as version:
        states = {one.name: [link.stores[part.server].export(part.number) for part in one.parts] for one in made}
    with place.writing() as folder:
        variables = {one.name: _write(folder, one, states[one.name]) for one in made}
        files = {
            str(file.relative_to(folder)): manifests.read_file(file).sha256 for file in sorted(folder.rglob("*.npy"))
        }
        manifest = {"format": _FORMAT, "version": version, "variables": variables, "files": files, "extra": dict(extra)}
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=1))

    return str(target)


@contextlib.contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[str | os.PathLike[str]]:
    """Yield the folder of a checkpoint; for a checkpoint in a store, a copy that lasts for the block."""
    found = _locate(path)
    if not isinstance(found, places.Place):
        named = Path(found)
        # A folder without a name, such as "." inside a checkpoint, has never been replaced.
        yield atomic_folders.AtomicFolder(named).find() if named.name not in ("", "..") else named
        return
    with tempfile.TemporaryDirectory(prefix="checkpoint-") as folder:
        try:
            commits.fetch(found, Path(folder), MANIFEST)
        except commits.DamagedError as error:
            raise errors.CheckpointDamagedError(f"The checkpoint {found.shown!r} is damaged: {error}.") from error
        yield folder


def read_manifest(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return a checkpoint's manifest."""
    file = Path(path) / MANIFEST
    try:
        found: dict[str, Any] = json.loads(local_files.read_text(file))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileNotFoundError(f"{path} is not a checkpoint of variables: it has no {MANIFEST}.") from error
    except (ValueError, RecursionError, OSError) as error:  # also bytes that are not UTF-8, and no file
        raise _build_damage(file, f"it is not JSON ({error})") from error
    if not _is_manifest(found):
        raise _build_damage(file, "it is not a manifest of variables")
    return found


def _is_manifest(found: Any) -> bool:
    if not isinstance(found, dict) or not {"format", "version", "variables", "extra"} <= found.keys():
        return False
    kept, files = found["variables"], found.get("files", {})
    if not all(isinstance(part, dict) for part in (kept, files, found["extra"])) or type(found["version"]) is not int:
        return False
    if any(names.find_fault(name) or not isinstance(digest, str) for name, digest in files.items()):
        return False
    kinds: dict[str, Any] = {"is_table": bool, "dtype": str, "shape": list, "slots": list, "step": int}
    table: dict[str, Any] = {"rows": (int, type(None)), "dim": int, "initializer": dict}
    return all(
        isinstance(one, dict)
        and all(isinstance(one.get(key), kind) for key, kind in kinds.items())
        and (not one["is_table"] or all(isinstance(one.get(key, ...), kind) for key, kind in table.items()))
        and not any(names.find_fault(part) for part in [_quote(name), *one["slots"]])
        for name, one in kept.items()
    )


def _build_damage(file: Path, what: str) -> errors.CheckpointDamagedError:
    return errors.CheckpointDamagedError(
        f"The checkpoint's file {str(file)!r} is damaged: {what}. Use another checkpoint."
    )


def _verify(path: str | os.PathLike[str], manifest: Mapping[str, Any]) -> None:
    """Compare a checkpoint's files with their digests. Checkpoints of earlier versions have no digests."""
    damage = manifests.find_damage(Path(path), manifest.get("files", {}))
    if damage is not None and damage.is_gone:
        file = str(Path(path, damage.file))
        raise FileNotFoundError(f"The checkpoint's file {file!r} is gone. Use another checkpoint.")
    if damage is not None:
        raise _build_damage(Path(path, damage.file), f"it {damage.text}")


def restore(
    address: links.Address, made: list[records.VariableRecord], path: str | os.PathLike[str], *, strict: bool
) -> dict[str, object]:
    """Set variables from a checkpoint; return its `extra`.

    No variable is changed if one does not fit.

    Args:
        address: The addresses of the servers.
        made: The records of the variables.
        path: The checkpoint.
        strict: Whether the checkpoint and the strategy must have the same variables.
    """
    with opened(path) as folder:
        return _restore(address, made, folder, strict=strict)


def _restore(
    address: links.Address, made: list[records.VariableRecord], path: str | os.PathLike[str], *, strict: bool
) -> dict[str, object]:
    manifest = read_manifest(path)
    _verify(path, manifest)
    kept = manifest["variables"]
    _check(made, kept, path, strict=strict)
    _check_room(Path(path), made, kept)
    link = links.open_link(address)
    for one in made:
        if one.name not in kept:
            continue
        state = _read(Path(path), one, kept[one.name])
        start = 0
        for part in one.parts:
            if isinstance(part, records.TableSpec):
                piece = _pick_rows(state, part)
            else:
                rows = slice(start, start + part.shape[0]) if part.shape else ...
                piece = {
                    "value": state["value"][rows],
                    "slots": [slot[rows] for slot in state["slots"]],
                    "step": state["step"],
                }
                start += part.shape[0] if part.shape else 0
            link.stores[part.server].push(None, [records.Operation(part.number, "restore", piece)])
    link.gate.set_version(int(manifest["version"]))
    extra: dict[str, object] = manifest["extra"]
    return extra


def load_checkpoint(path: str | os.PathLike[str]) -> snapshots.Snapshot:
    """Read a checkpoint without servers, to evaluate it.

    Args:
        path: The checkpoint, or its address.

    Raises:
        FileNotFoundError: The path is no checkpoint, or the checkpoint was deleted meanwhile.
        CheckpointDamagedError: The checkpoint's files differ from those that were written.
    """
    with opened(path) as folder:
        return _load(folder)


def _load(path: str | os.PathLike[str]) -> snapshots.Snapshot:
    manifest = read_manifest(path)
    _verify(path, manifest)
    values: dict[str, Array | snapshots.Table] = {}
    for name, kept in manifest["variables"].items():
        folder = Path(path) / _quote(name)
        value = _load_array(folder / "value.npy")
        if not kept["is_table"]:
            values[name] = value
            continue
        ids = _load_array(folder / "ids.npy")
        if ids.shape != value.shape[:1]:
            raise _build_damage(folder / "ids.npy", "its length is not that of the values")
        order = np.argsort(ids)
        values[name] = snapshots.Table(ids[order], value[order], kept["rows"], _build_initializer(kept["initializer"]))
    return snapshots.Snapshot(int(manifest["version"]), values)


def _write(folder: Path, made: records.VariableRecord, shards: list[dict[str, Any]]) -> dict[str, object]:
    place = folder / _quote(made.name)
    place.mkdir()
    first = made.parts[0]
    np.save(place / "value.npy", snapshots.join_dense(made, shards))
    for number, slot in enumerate(first.slots):
        np.save(place / f"{slot}.npy", snapshots.join_dense(made, shards, "slots", number))
    kept: dict[str, Any] = {
        "is_table": made.is_table,
        "shape": list(made.shape),
        "dtype": made.dtype,
        "slots": list(first.slots),
        "step": max(int(shard["step"]) for shard in shards),
    }
    if isinstance(first, records.TableSpec):
        for part in ("ids", "hits", "last_steps"):
            np.save(place / f"{part}.npy", np.concatenate([shard[part] for shard in shards]))
        kept["updates"] = max(int(shard["updates"]) for shard in shards)
        kept |= {"rows": made.rows, "dim": made.dim, "initializer": _describe_initializer(first.initializer)}
    return kept


def _read(folder: Path, made: records.VariableRecord, kept: Mapping[str, Any]) -> dict[str, Any]:
    place = folder / _quote(made.name)
    state: dict[str, Any] = {
        "value": _load_array(place / "value.npy"),
        "slots": [_load_array(place / f"{slot}.npy") for slot in kept["slots"]],
        "step": int(kept["step"]),
    }
    if made.is_table:
        state |= {part: _load_array(place / f"{part}.npy") for part in ("ids", "hits", "last_steps")}
        state["updates"] = int(kept.get("updates", kept["step"]))  # older checkpoints lack "updates"
    expected = (np.size(state["ids"]), made.dim) if made.is_table else tuple(made.shape)
    if np.shape(state["value"]) != expected:
        raise _build_damage(place / "value.npy", f"its shape is not {list(expected)}")
    return state


def _load_array(file: Path) -> Array:
    try:
        found: Array = np.load(file, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise _build_damage(file, f"it is not an array ({error})") from error
    return found


def _pick_rows(state: Mapping[str, Any], part: records.TableSpec) -> dict[str, object]:
    """Return a shard's part of a table's state."""
    ids = state["ids"]
    owners = placement.hash_shard(ids, part.stride) if part.is_hashed else placement.locate(ids, part.stride)[0]
    mine = owners == part.offset
    return {
        "ids": ids[mine],
        "value": state["value"][mine],
        "slots": [slot[mine] for slot in state["slots"]],
        "hits": state["hits"][mine],
        "last_steps": state["last_steps"][mine],
        "step": state["step"],
        "updates": state["updates"],
    }


def _check(made: list[records.VariableRecord], kept: Mapping[str, Any], path: object, *, strict: bool) -> None:
    here = {one.name for one in made}
    missing, unknown = sorted(here - set(kept)), sorted(set(kept) - here)
    if strict and (missing or unknown):
        faults = [f"{path} lacks {missing}"] * bool(missing) + [
            f"{path} has {unknown}, which this strategy lacks"
        ] * bool(unknown)
        raise errors.CheckpointMismatchError(
            f"{', and '.join(faults)}. Make the same variables, under the same names, or write strict=False to restore "
            "those that both have."
        )
    for one in made:
        if one.name not in kept:
            continue
        there = kept[one.name]
        shape_there = [there["rows"], there["dim"]] if there["is_table"] else there["shape"]
        shape_here = [one.rows, one.dim] if one.is_table else list(one.shape)
        if there["is_table"] != one.is_table or shape_there != shape_here or there["dtype"] != one.dtype:
            raise errors.CheckpointMismatchError(
                f"`{one.name}` is {one.dtype}{shape_here} here, but {there['dtype']}{shape_there} in {path}. Make it "
                "as it is in the checkpoint, or give it another name and write strict=False."
            )
        slots = list(one.parts[0].slots)
        if there["slots"] != slots:
            raise errors.CheckpointMismatchError(
                f"The optimizer of `{one.name}` keeps {slots} here, but kept {there['slots']} in {path}. Use the "
                "optimizer that it was saved with."
            )


def _check_room(folder: Path, made: list[records.VariableRecord], kept: Mapping[str, Any]) -> None:
    """Raise if a table of hashed ids has no room for its ids in a checkpoint."""
    for one in made:
        if not one.is_table or one.rows is not None or one.name not in kept:
            continue
        ids = _load_array(folder / _quote(one.name) / "ids.npy")
        counts = np.bincount(placement.hash_shard(ids, len(one.parts)), minlength=len(one.parts)).tolist()
        for part, count in zip(one.parts, counts, strict=True):
            if isinstance(part, records.TableSpec) and count > part.rows:
                raise errors.CapacityError(
                    f"The table `{one.name}` has room for {part.rows} ids on server {part.server}, but {count} of the "
                    f"{len(ids)} in {folder} belong there. Make it with a larger capacity. Nothing was changed."
                )


def _quote(name: str) -> str:
    return "%2E" * len(name) if name in (".", "..") else urllib.parse.quote(name, safe="") or "%"


def _describe_initializer(initializer: object) -> dict[str, object]:
    kind = type(initializer)
    if kind in _INITIALIZERS:
        return {"kind": kind.__name__, **vars(initializer)}
    return {"kind": f"{kind.__module__}.{kind.__qualname__}"}


def _build_initializer(kept: Mapping[str, Any]) -> Any:
    by_name: dict[str, Any] = {cls.__name__: cls for cls in _INITIALIZERS}
    settings = dict(kept)
    kind = str(settings.pop("kind", ""))
    try:
        return by_name[kind](**settings) if kind in by_name else _UnknownInitializer(kind)
    except (TypeError, ValueError, OverflowError) as error:
        raise errors.CheckpointDamagedError(f"An initializer in {MANIFEST} is invalid: {error}.") from error


@final
@dataclass(frozen=True, slots=True)
class _UnknownInitializer(initializers.Initializer):
    """A placeholder for a user's initializer: a checkpoint holds only its name."""

    kind: str

    def fill(self, ids: Array, out: Array) -> None:
        raise errors.CheckpointMismatchError(
            f"The checkpoint has no row for the id {ids[0]}, and it does not hold {self.kind!r}, the initializer that "
            "computes new rows. Look up only ids that are in the table's `ids`, or restore the checkpoint into a "
            "strategy that makes the table with this initializer."
        )


_INITIALIZERS: Final = (initializers.Zeros, initializers.Constant, initializers.Uniform, initializers.Normal)
