"""Checkpoints of values on meshes: folders that any mesh, number of devices and framework can read.

- ``<save>-<n>.safetensors``: the parts whose first holder is device ``n``, so each part is written once.
- ``manifest.json``: each value's shape, dtype and places of parts; each file's digest. It is replaced last, by a
  rename, so a reader finds this checkpoint or the previous one. Files that it does not name come from an interrupted
  save; the next save removes them.

Loading reads only the parts that a device needs. `export` writes one ordinary safetensors file instead.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from hocket import extras
from hocket._base import addresses, texts
from hocket.mesh import layout_maps, layouts, manifests, operations, tensors
from hocket.mesh.backends import contract
from hocket.stores import local_files
from hocket.stores import manifests as noted

_OURS: Final = re.compile(r"[0-9a-f]{8}-\d+\.safetensors|manifest\.json\.(tmp|[0-9a-f]{8})|\.tmp\w+")
"""Names of files that a save writes before its manifest. The last pattern is safetensors' own, for incomplete files."""
_DTYPES: Final = frozenset(
    [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
    + ["bool", "float16", "bfloat16", "float32", "float64", "complex64"]
)
"""The types that safetensors returns to numpy unchanged."""

StrPath: TypeAlias = str | os.PathLike[str]
Array: TypeAlias = npt.NDArray[Any]


# --- writing ----------------------------------------------------------------------------------------------------------


def save(tree: object, path: StrPath) -> Path:
    """Write the values of a model into a folder, each part once; return its path.

    Args:
        tree: The values, in the framework's structure; or a module of PyTorch; or one of its optimizers, with its state
            and the settings that schedules change. Arrays on no mesh are saved, too.
        path: A folder that does not exist, is empty, or is such a checkpoint, which is replaced. A reader finds the old
            checkpoint or the new one, even if this process is killed.

    Raises:
        FileExistsError: The path exists, and is no checkpoint of a mesh.
        ImportError: safetensors is missing.
        OSError: The checkpoint cannot be written there. The previous content is unchanged.
        TypeError: A value is no array of numbers, or has a type that safetensors does not know.
        ValueError: Two values have one name, or the processes do not save the same values to the same place.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from hocket import mesh
        >>> rules = mesh.LayoutMap(mesh.create_mesh({"data": 1}), {"kernel": ["data"]})
        >>> folder = mesh.save(mesh.distribute({"kernel": np.arange(3)}, rules), tempfile.mkdtemp())
        >>> mesh.load(folder, rules)["kernel"].gather().tolist()
        [0, 1, 2]
    """
    addresses.refuse(path, "A checkpoint's path")
    target = Path(path)
    writer = _import_safetensors("safetensors.numpy")
    backend = _find_backend(tree)
    files: dict[int, dict[str, Array]] = {}
    written: list[Path] = []
    number = backend.gather_objects(uuid.uuid4().hex[:8])[0]
    old: list[Path] = []
    with _agreed(backend) as told:
        named = _flatten(tree, backend)
        values = {name: _place(name, leaf, backend, files) for name, leaf in named}
        if backend.get_process() == 0:  # before any process writes
            old = _list_old(target)
            target.mkdir(parents=True, exist_ok=True)
        told[:] = [(str(target), {name: what for name, (what, _) in values.items()})]
    _check_told(told)
    with manifests.removed_after_failure(written), _agreed(backend) as found:
        for device, arrays in files.items():
            written.append(target / f"{number}-{device}.safetensors")
            writer.save_file(arrays, written[-1])
            local_files.sync(written[-1])
        found[:] = [(values, {file.name: noted.read_file(file).sha256 for file in written})]
    with _agreed(backend):  # from here on only process 0 knows whether the manifest names the files
        if backend.get_process() == 0:
            with manifests.removed_after_failure(written):
                manifests.write(target, manifests.join(found, number))
            local_files.sync(target)
            for file in old:
                file.unlink(missing_ok=True)
    return target


def _flatten(tree: object, backend: contract.Backend) -> list[tuple[str, object]]:
    """Return the values with their names; raise if two names are equal."""
    named, _ = backend.flatten(tree)
    seen: set[str] = set()
    for name, _ in named:
        if name in seen:
            raise ValueError(
                f"Two values of the model are called {name!r}. Rename one of them: one of their keys contains a slash."
            )
        seen.add(name)
    return named


def _check_told(told: Sequence[tuple[str, dict[str, Any]]]) -> None:
    """Raise if the processes do not save the same values to the same place."""
    for number, (path, values) in enumerate(told):
        if path != told[0][0]:
            raise ValueError(
                f"Process 0 saves to {told[0][0]!r}, but process {number} saves to {path!r}. Give all of them one path."
            )
        odd = [name for name in {**told[0][1], **values} if told[0][1].get(name) != values.get(name)]
        if odd:
            raise ValueError(
                f"The processes must save the same values, but {odd[0]!r} is {_describe(told[0][1].get(odd[0]))} in "
                f"process 0 and {_describe(values.get(odd[0]))} in process {number}. Give all of them the same model."
            )


def _describe(what: Mapping[str, object] | None) -> str:
    return "missing" if what is None else f"{what['dtype']}{what['shape']}"


@contextlib.contextmanager
def _agreed(backend: contract.Backend) -> Iterator[list[Any]]:
    """Run a block in all processes; raise in all of them if the block raises in one.

    Yields:
        A list for the process's results. After the block it holds the results of all processes.
    """
    found: list[Any] = []
    try:
        yield found
    except BaseException as error:
        backend.gather_objects((texts.describe(error), []))
        raise
    told = backend.gather_objects((None, found))
    failed = next((number for number, (text, _) in enumerate(told) if text is not None), None)
    if failed is not None:
        raise RuntimeError(f"The checkpoint was not saved, because process {failed} failed: {told[failed][0]}")
    found[:] = [one for _, several in told for one in several]


def export(tree: object, path: StrPath) -> Path:
    """Write all values, whole, into one safetensors file, which every framework's loader reads; return its path.

    The export takes the memory of the whole model. Names are those of `distribute`: ``"params/Dense_0/kernel"``.

    Args:
        tree: The values, in the framework's structure.
        path: The file; it is replaced atomically.

    Raises:
        ImportError: safetensors is missing.
        OSError: The file cannot be written there.
        TypeError: As for `save`.
    """
    addresses.refuse(path, "A file's path")
    target = Path(path)
    backend = _find_backend(tree)
    beside = target.with_name(f"{target.name}.{uuid.uuid4().hex[:8]}")
    arrays: dict[str, Array] = {}
    for name, leaf in _flatten(tree, backend):
        whole = leaf.gather() if isinstance(leaf, tensors.DTensor) else leaf
        if backend.get_process() == 0:
            arrays[name] = _check_array(name, whole, backend)
    with _agreed(backend):
        if backend.get_process() == 0:
            target.parent.mkdir(parents=True, exist_ok=True)
            with manifests.removed_after_failure([beside]):
                _import_safetensors("safetensors.numpy").save_file(arrays, beside)
                local_files.sync(beside)
                beside.replace(target)
    return target


def _find_backend(tree: object) -> contract.Backend:
    """Return the backend of a tree of values; if no value belongs to a framework, that of the default framework."""
    left = [tree]
    while left:
        one = left.pop()
        if isinstance(one, tensors.DTensor):
            return operations.find_backend(one.layout.mesh)
        framework = contract.find_framework(one)
        if framework:
            return contract.get_backend(framework)
        if isinstance(one, Mapping):
            left += one.values()
        elif isinstance(one, (list, tuple)):
            left += one
    return contract.get_backend(contract.choose_framework())


def _place(
    name: str, leaf: object, backend: contract.Backend, files: dict[int, dict[str, Array]]
) -> tuple[dict[str, Any], list[tuple[int, Any]]]:
    """Add this process's parts of a value to the files by device; return the value's description, and the places."""
    if isinstance(leaf, tensors.DTensor) and leaf.layout.partial:
        leaf = operations.relayout(leaf, leaf.layout.with_partial(()))
    if not isinstance(leaf, tensors.DTensor):
        array = _check_array(name, leaf, backend)
        held = [(0, array, tuple([slice(0, length) for length in array.shape]))] if backend.get_process() == 0 else []
        shape, dtype = array.shape, array.dtype
    else:
        shape, dtype = leaf.shape, leaf.dtype
        places = leaf.layout.slices(shape)
        held = [
            (device, _check_array(name, part, backend), places[device])
            for device, part in zip(backend.list_local(leaf.layout.mesh), operations.unpack(leaf), strict=True)
            if places.index(places[device]) == device
        ]
    for device, array, _ in held:
        files.setdefault(device, {})[name] = array
    parts = [(device, [[one.start, one.stop] for one in place]) for device, _, place in held]
    return {"shape": list(shape), "dtype": dtype.name}, parts


def _check_array(name: str, value: object, backend: contract.Backend) -> Array:
    try:
        array = backend.to_numpy(value)
        array = np.ascontiguousarray(array) if array.ndim else array
    except TypeError as error:
        raise TypeError(
            f"The value {name!r} must be an array of numbers, but received {texts.name_kind(value)}."
        ) from error
    if array.dtype.name not in _DTYPES:
        raise TypeError(
            f"The value {name!r} has the type {array.dtype}, which cannot be saved. Convert it to one of "
            f"{', '.join(sorted(_DTYPES))}."
        )
    return array


def _list_old(target: Path) -> list[Path]:
    """Return the files that a new checkpoint makes superfluous, from the old checkpoint and interrupted saves."""
    if not target.exists():
        return []
    found = list(target.iterdir()) if target.is_dir() else [target]
    strange = [file.name for file in found if file.name != manifests.MANIFEST and not _OURS.fullmatch(file.name)]
    if strange or not target.is_dir():
        raise FileExistsError(
            f"{target} exists, but is not a checkpoint of a mesh: it has {strange[0]!r}. Choose a path that does not "
            "exist."
        )
    return [file for file in found if file.name != manifests.MANIFEST]


def _import_safetensors(name: str) -> Any:
    return extras.load(name, "A checkpoint of a mesh", "safetensors", "Run pip install safetensors.")


# --- reading ----------------------------------------------------------------------------------------------------------


def load(
    path: StrPath, layout_map: layout_maps.LayoutMap | None = None, *, like: object = None, verify: bool = True
) -> Any:
    """Read the values of a checkpoint onto a mesh, which may differ from the mesh that they were saved from.

    Args:
        path: The folder.
        layout_map: The layouts of the values. Default: those in `like`; its other values are replicated.
        like: The structure to fill: a model's values, or objects with their shapes, such as
            ``jax.eval_shape(model.init, ...)``; or a module of PyTorch, which is filled as by `distribute`; or an
            optimizer, which may have taken steps or none. Default: a dict by names.
        verify: Whether to compare all files with their digests first, which reads them whole.

    Returns:
        DTensors in the structure of `like`, with exactly the saved bits.

    Raises:
        CheckpointDamagedError: A file differs from the one that was written, or is gone.
        FileNotFoundError: The path is no checkpoint.
        ImportError: safetensors is missing.
        TypeError: No layout is known.
        ValueError: A value of `like` is missing in the checkpoint, or one of the checkpoint in `like`; or a value has
            another shape or type, or does not fit its layout.
    """
    addresses.refuse(path, "A checkpoint's path")
    saved, opened = _open(Path(path), verify=verify)
    targets, rebuild = _find_targets(saved, layout_map, like)
    return rebuild([_read_value(name, saved[name], layout, opened) for name, layout in targets])


def _find_targets(
    saved: Mapping[str, manifests.Saved], layout_map: layout_maps.LayoutMap | None, like: object
) -> tuple[list[tuple[str, layouts.Layout]], Any]:
    """Return the layout of each value, and the function that builds the result from the values."""
    if layout_map is None and like is None:
        raise TypeError("load() needs a layout for each value. Give it a layout_map, or like=, with DTensors.")
    if like is None:
        assert layout_map is not None
        found = [(name, layout_map.find(name, one.shape)) for name, one in saved.items()]
        return found, lambda values: dict(zip(saved, values, strict=True))
    backend = _find_backend(like) if layout_map is None else operations.find_backend(layout_map.mesh)
    backend.prepare_to_load(like, list(saved))
    named, rebuild = backend.flatten(like)
    _check_same(saved, named)
    if layout_map is not None:
        buffers = backend.list_buffers(like)
        whole = {name: layouts.Layout.replicated(layout_map.mesh, len(saved[name].shape)) for name in buffers}
        found = [(name, whole.get(name) or layout_map.find(name, saved[name].shape)) for name, _ in named]
        return found, rebuild
    mesh = next((leaf.layout.mesh for _, leaf in named if isinstance(leaf, tensors.DTensor)), None)
    if mesh is None:
        raise TypeError("No value of like= is a DTensor, so the layouts are unknown. Give a layout_map.")
    replicated = functools.partial(layouts.Layout.replicated, mesh)
    return [
        (name, leaf.layout if isinstance(leaf, tensors.DTensor) else replicated(np.ndim(leaf))) for name, leaf in named
    ], rebuild


def _check_same(saved: Mapping[str, manifests.Saved], named: Sequence[tuple[str, Any]]) -> None:
    names = {name for name, _ in named}
    faults = [f"it has no {name!r}" for name, _ in named if name not in saved]
    faults += [f"it has {name!r}, which like= does not have" for name in saved if name not in names]
    for name, leaf in named:
        if name in saved and (tuple(np.shape(leaf)), _name_dtype(leaf)) != (saved[name].shape, saved[name].dtype):
            here = f"{_name_dtype(leaf)}{list(np.shape(leaf))}"
            faults.append(
                f"{name!r} is {saved[name].dtype}{list(saved[name].shape)} in the checkpoint, but {here} in like="
            )
    if faults:
        raise ValueError(
            f"The checkpoint does not fit like=: {'; '.join(faults[:5])}{'; ...' if len(faults) > 5 else ''}."
        )


def _name_dtype(value: object) -> str:
    found = value.dtype if hasattr(value, "dtype") else np.asarray(value).dtype
    return str(found).rpartition(".")[2]  # torch's names are like torch.float32


def _read_value(
    name: str, saved: manifests.Saved, layout: layouts.Layout, files: Mapping[str, object]
) -> tensors.DTensor:
    places = layout.slices(saved.shape)
    read: dict[tuple[tuple[int, int], ...], Array] = {}
    parts: list[Array] = []
    for device in operations.find_backend(layout.mesh).list_local(layout.mesh):
        place = places[device]
        key = tuple([(one.start, one.stop) for one in place])
        if key not in read:
            read[key] = _read_place(name, saved, place, files)
        parts.append(read[key])
    value = operations.pack(parts, layout)
    if value.dtype != parts[0].dtype:
        raise ValueError(
            f"The value {name!r} was saved as {parts[0].dtype}, but the framework converts it to {value.dtype}. With "
            "JAX call jax.config.update('jax_enable_x64', True) first."
        )
    return value


def _read_place(name: str, saved: manifests.Saved, place: manifests.Place, files: Mapping[str, Any]) -> Array:
    """Return a region of a value, put together from the parts in the files."""
    whole = np.empty([one.stop - one.start for one in place], tensors.find_dtype(saved.dtype))
    filled = 0
    for part in saved.parts:
        common = [
            slice(max(one.start, other.start), min(one.stop, other.stop))
            for one, other in zip(place, part.place, strict=True)
        ]
        if any(one.stop <= one.start for one in common):
            continue
        reader = files[part.file]
        found = reader.get_slice(name)[_move(common, part.place)] if common else reader.get_tensor(name)
        whole[_move(common, place)] = found
        filled += found.size
    if filled != whole.size:
        raise manifests.CheckpointDamagedError(
            f"The checkpoint has only a part of the value {name!r}. Use another checkpoint."
        )
    return whole


def _move(place: Sequence[slice], origin: manifests.Place) -> manifests.Place:
    """Return a place relative to the beginning of another one."""
    return tuple(
        [slice(one.start - other.start, one.stop - other.start) for one, other in zip(place, origin, strict=True)]
    )


def _open(path: Path, *, verify: bool) -> tuple[dict[str, manifests.Saved], dict[str, object]]:
    """Return a checkpoint's values, and its opened files."""
    while True:
        text, saved, digests = manifests.read(path)
        try:
            return saved, {name: _open_file(path / name, digest if verify else "") for name, digest in digests.items()}
        except FileNotFoundError as error:
            if manifests.read(path)[0] == text:
                raise manifests.build_damage(path / error.args[0], "it is missing") from error
            # Another process has replaced the checkpoint meanwhile.


def _open_file(file: Path, digest: str) -> object:
    """Open a file; raise FileNotFoundError with its name if it is gone."""
    library = _import_safetensors("safetensors")
    try:
        opened = library.safe_open(file, "np")
        is_changed = digest and noted.read_file(file).sha256 != digest
    except FileNotFoundError as error:
        raise FileNotFoundError(file.name) from error
    except library.SafetensorError as error:
        raise manifests.build_damage(file, str(error)) from error
    if is_changed:
        raise manifests.build_damage(file, "it has changed since it was written")
    return opened
