"""A model's weights in a file of safetensors, however the model was prepared.

The file has each tensor once, whole, under its name in the unprepared model. (Wrappers such as
``DistributedDataParallel`` and ``torch.compile`` add to names, and a spread model has parts.) Tied tensors are written
under the first of their names.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch.nn import parallel

from hocket import extras
from hocket._base.internals import torch as torch_internals
from hocket.train.rank import worker_session

FILE_NAME: Final = "model.safetensors"
"""The file's name in the folder, which is Hugging Face's."""


def save_model(model: torch.nn.Module, folder: str | os.PathLike[str]) -> None:
    """Write a model's weights to ``model.safetensors`` in a folder. Needs safetensors, which the extra `torch` has.

    If the model is spread over the ranks, all of them must call it: they put the parts together, one tensor after
    another. Rank 0 writes.

    Args:
        model: The result of `prepare_model`, or any other model.
        folder: The folder. It must exist.

    Raises:
        TypeError: `model` is no model.
        FileNotFoundError: There is no such folder.
        MissingExtraError: safetensors is not installed.

    Example:
        >>> import os, tempfile, torch
        >>> from hocket.train.torch import save_model
        >>> folder = tempfile.mkdtemp()
        >>> save_model(torch.nn.Linear(2, 1), folder)
        >>> os.listdir(folder)
        ['model.safetensors']
    """
    library = _import()
    _check("save_model", model)
    session = worker_session.get_optional_session()
    writes = session is None or session.info.rank == 0
    if writes and not Path(folder).is_dir():
        raise FileNotFoundError(
            f"save_model() writes into an existing folder, but received {os.fspath(folder)!r}. Create it first, for "
            "example with tempfile.TemporaryDirectory()."
        )
    whole: dict[str, torch.Tensor] = {}
    inner = _unwrap(model)
    state = inner.state_dict(keep_vars=True)
    untied: dict[str, Any] = {_clean(first): state[first] for first in _find_firsts(inner, state).values()}
    for name, value in untied.items():
        gathered = value.full_tensor() if hasattr(value, "full_tensor") else value  # by all ranks, for a DTensor
        if writes:
            whole[name] = gathered.detach().to("cpu").contiguous()
    if writes:
        library.save_file(whole, Path(folder, FILE_NAME), metadata={"format": "pt"})


def load_model(model: torch.nn.Module, folder: str | os.PathLike[str]) -> torch.nn.Module:
    """Set a model to the weights that `save_model` has written; return the model.

    Args:
        model: A model, prepared or not, with any number of ranks. All ranks call it, and read the file.
        folder: The folder with ``model.safetensors``. A file of Hugging Face's with the same names will do.

    Raises:
        TypeError: `model` is no model.
        FileNotFoundError: There is no such file.
        ValueError: The file lacks tensors of the model, has further ones, or some of other shapes.
        MissingExtraError: safetensors is not installed.

    Example:
        >>> import tempfile, torch
        >>> from hocket.train.torch import load_model, save_model
        >>> folder, model = tempfile.mkdtemp(), torch.nn.Linear(2, 1)
        >>> save_model(model, folder)
        >>> torch.equal(load_model(torch.nn.Linear(2, 1), folder).weight, model.weight)
        True
    """
    library = _import()
    _check("load_model", model)
    path = Path(folder, FILE_NAME)
    if not path.is_file():
        raise FileNotFoundError(
            f"{os.fspath(folder)!r} has no {FILE_NAME}. Pass a folder into which save_model() has written."
        )
    found: dict[str, torch.Tensor] = library.load_file(path)
    inner = _unwrap(model)
    state = inner.state_dict(keep_vars=True)
    firsts = _find_firsts(inner, state)
    wanted = {_clean(first): state[first] for first in firsts.values()}
    _compare(found, wanted, {_clean(name) for name in firsts}, path)
    for name, first in firsts.items():
        state[name] = _spread_like(found[_clean(first)], state[name])
    inner.load_state_dict(state)  # not tensor by tensor: with ParameterServer the servers have the values
    return model


def _import() -> Any:
    remedy = "Run pip install safetensors."
    return extras.load("safetensors.torch", "hocket.train.torch.save_model()", "safetensors", remedy)


def _check(caller: str, model: object) -> None:
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"{caller}() takes a torch.nn.Module, but received {model!r}. Write {caller}(model, folder).")


def _unwrap(model: torch.nn.Module) -> torch.nn.Module:
    inner: Any = model
    while hasattr(inner, torch_internals.COMPILED) or isinstance(inner, parallel.DistributedDataParallel):
        inner = getattr(inner, torch_internals.COMPILED, None) or inner.module
    found: torch.nn.Module = inner
    return found


def _clean(name: str) -> str:
    """Return a tensor's name without the additions of wrappers of layers."""
    return name.replace(f"{torch_internals.COMPILED}.", "")


def _find_firsts(model: torch.nn.Module, state: Mapping[str, object]) -> dict[str, str]:
    """Return, for the name of each tensor in a model's state, the tensor's first name.

    The state may have copies of tensors, as with ParameterServer, so the model decides which of them are tied.
    """
    own = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))
    firsts: dict[int, str] = {}
    return {
        name: firsts.setdefault(id(own.get(name, value)), name)
        for name, value in state.items()
        if isinstance(value, torch.Tensor)
    }


def _compare(
    found: Mapping[str, torch.Tensor], wanted: Mapping[str, torch.Tensor], names: Collection[str], path: Path
) -> None:
    missing = [name for name in wanted if name not in found]
    others = [name for name in found if name not in names]
    shapes = [
        f"{name} of shape {tuple(found[name].shape)} where the model has {tuple(value.shape)}"
        for name, value in wanted.items()
        if name in found and found[name].shape != value.shape
    ]
    if missing or others or shapes:
        said = [
            *([f"lacks {', '.join(missing)}"] if missing else []),
            *([f"has {', '.join(others)}, which the model lacks"] if others else []),
            *([f"has {', '.join(shapes)}"] if shapes else []),
        ]
        raise ValueError(f"{str(path)!r} {'; it '.join(said)}. Load it into a model of the same layers.")


def _spread_like(whole: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    if not hasattr(value, "full_tensor"):
        return whole
    from torch.distributed import tensor as dtensors  # with sympy, as long to import as torch; spread models have it

    assert isinstance(value, dtensors.DTensor)
    whole = whole.to(value.device, value.dtype)
    return dtensors.distribute_tensor(whole, value.device_mesh, value.placements)
