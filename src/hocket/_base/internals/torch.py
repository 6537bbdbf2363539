"""Undocumented names of torch."""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Callable, Collection
from typing import Any, Final, TypeVar

import torch
from torch.autograd import Variable
from torch.utils import _pytree

Function = TypeVar("Function", bound=Callable[..., Any])

COMPILED: Final = "_orig_mod"
"""The attribute in which `torch.compile` keeps the original model. It is also a part of the parameters' names."""

HOOKS: Final = (
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_load_state_dict_pre_hooks",
)
"""The attributes in which modules keep hooks, by the numbers of the hooks' handles."""

GROUP_GLOBALS: Final = (
    "_world",
    "_pg_map",
    "_pg_names",
    "_pg_group_ranks",
    "_pg_backend_config",
    "_group_count",
    "_tags_to_pg",
    "_pg_to_tag",
    "_default_pg_init_method",
)
"""The globals in which `torch.distributed.distributed_c10d` keeps its process groups. torch's own tests with threads as
ranks replace the first of them, too."""


# --- trees, and functions on many tensors -----------------------------------------------------------------------------


def list_leaves(tree: object) -> list[Any]:
    """Return the values in tuples, lists and dicts."""
    return list(_pytree.tree_leaves(tree))


def map_leaves(function: Callable[[Any], object], tree: object) -> Any:
    """Return the same tuples, lists and dicts, with the function applied to each value in them."""
    return _pytree.tree_map(function, tree)


def map_tensors(function: Callable[[torch.Tensor], object], tree: object) -> Any:
    """Return the same tuples, lists and dicts, with the function applied to each tensor in them."""
    return _pytree.tree_map_only(torch.Tensor, function, tree)


def multiply(tensors: list[torch.Tensor], factor: float) -> None:
    """Multiply tensors of one dtype and device in place, by one call of torch's core."""
    torch._foreach_mul_(tensors, factor)


def compute_largest(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the largest magnitude in each of several tensors of one dtype and device, by one call of torch's core."""
    return list(torch._foreach_norm(tensors, float("inf")))


def get_weight_norm() -> Callable[..., torch.Tensor]:
    """Return the function that computes weight normalization."""
    found: Callable[..., torch.Tensor] = torch._weight_norm
    return found


# --- gradients --------------------------------------------------------------------------------------------------------


def call_after_backward(function: Callable[[], object]) -> None:
    """Have torch call a function at the end of the current backward pass."""
    engine: Any = Variable._execution_engine
    engine.queue_callback(function)


def has_hooks(parameter: Any, own: int) -> bool:
    """Return whether a parameter has hooks on its gradient, besides `own` hooks that run after accumulation."""
    return bool(parameter._backward_hooks) or len(parameter._post_accumulate_grad_hooks or ()) > own


def forget_kept_gradients(model: torch.nn.Module, parameters: Collection[object]) -> None:
    """Drop the unsharded gradients of some parameters in a model that ``fully_shard`` has sharded. Its layers keep such
    gradients while the model accumulates them without a reduction over ranks."""
    for module in model.modules():
        find: Callable[[], Any] = getattr(module, "_get_fsdp_state", lambda: None)
        state = find()
        groups = getattr(state, "_fsdp_param_groups", None)  # older versions of torch have a single group
        for group in [getattr(state, "_fsdp_param_group", None)] if groups is None else groups:
            for one in group.fsdp_params if group is not None else ():
                if one.sharded_param in parameters:
                    one.unsharded_accumulated_grad = None
                    if getattr(one, "_unsharded_param", None) is not None:
                        one._unsharded_param.grad = None


def keeps_values() -> bool:
    """Return whether hooks handle the values saved for the backward pass, as activation checkpointing does."""
    look: Callable[[bool], object] | None = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return look is not None and look(True) is not None


def read_version(tensor: torch.Tensor) -> int:
    """Return how often a tensor was written into; 0 for a tensor that torch keeps no version of."""
    try:
        return tensor._version
    except RuntimeError:  # an inference tensor. A check before would be an operation that a TorchFunctionMode sees
        return 0


# --- modules ----------------------------------------------------------------------------------------------------------


def skip_compiler(function: Function) -> Function:
    """Have the compiler skip a function. `torch.compiler.disable` would import the compiler at once."""
    skip: Any = torch._disable_dynamo  # type: ignore[attr-defined]  # torch does not list it
    found: Function = skip(function)
    return found


def get_parameters(module: torch.nn.Module) -> dict[str, Any]:
    """Return the dict of a module's own parameters, which the caller may change."""
    return module._parameters


def get_buffers(module: torch.nn.Module) -> dict[str, Any]:
    """Return the dict of a module's own buffers, which the caller may change."""
    return module._buffers


def list_unsaved_buffers(module: torch.nn.Module) -> set[str]:
    """Return the names of a module's own buffers that its state dict omits."""
    return module._non_persistent_buffers_set


def list_early_hooks(module: torch.nn.Module) -> list[object]:
    """Return the functions that run before a module's forward pass."""
    return list(module._forward_pre_hooks.values())


def hook_state(module: Any, save: Callable[..., object], load: Callable[..., object]) -> tuple[Any, Any]:
    """Hook functions after a module's state dict is built, and before one is loaded; return the hooks' handles. Both
    hooks are public since torch 2.5."""
    return (
        module._register_state_dict_hook(save),
        module._register_load_state_dict_pre_hook(load, with_module=True),
    )


def refresh_recurrent(module: torch.nn.RNNBase) -> None:
    """Have a recurrent layer renew its separate list of its parameters."""
    module._flat_weights = [getattr(module, name) for name in module._flat_weights_names]


def unwrap_compiled(model: Any) -> Any:
    """Return the original of a model from `torch.compile`; any other model unchanged."""
    return getattr(model, COMPILED, model)


# --- process groups ---------------------------------------------------------------------------------------------------


def check_reduced(wrapped: torch.nn.parallel.DistributedDataParallel) -> None:
    """Raise RuntimeError if the wrapper still waits for gradients of the last forward pass."""
    wrapped._check_reducer_finalized()  # type: ignore[no-untyped-call]  # torch does not say


def is_joined(wrapped: object) -> bool:
    """Return whether a model computes inside `torch.distributed.algorithms.Join`."""
    found: Any = getattr(wrapped, "_join_config", None)
    return found is not None and bool(found.enable)


def isolate_threads(are_apart: bool) -> None:
    """Have each thread use its own process groups, or have all threads share them again. torch keeps the groups' names
    outside of Python."""
    importlib.import_module("torch._C._distributed_c10d")._set_thread_isolation_mode(are_apart)


def count_values(sparse: torch.Tensor) -> int:
    """Return how many values a sparse tensor holds."""
    return sparse._nnz()


# --- tensors as values, and storages: their memory, which views share -------------------------------------------------


def reduce_tensor(tensor: Any) -> tuple[Any, ...]:
    """Return the reduced form of a tensor: torch's own, from which torch also rebuilds its newer dtypes.

    For those (unsigned whole numbers, 8-bit floats) torch reduces a storage without a dtype, but rebuilds from one with
    a dtype, as only `torch.load` makes it, and fails for a tensor that requires a gradient.
    """
    rebuild, args, *rest = tensor.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    if not args or not isinstance(args[0], torch.UntypedStorage):
        return (rebuild, args, *rest)
    storage, offset, size, stride, requires_grad, *others = args
    args = (_rebuild_typed_storage(storage, torch.uint8), offset, size, stride, False, *others)
    return (_rebuild_tensor, (rebuild, args, requires_grad), *rest)


def _rebuild_tensor(rebuild: Callable[..., torch.Tensor], args: tuple[Any, ...], requires_grad: bool) -> torch.Tensor:
    return rebuild(*args).requires_grad_(requires_grad)


def reduce_typed_storage(storage: Any) -> tuple[Any, ...]:
    """Return the reduced form of a storage with a dtype, of which torch's tensors hold a new one each."""
    return _rebuild_typed_storage, (storage._untyped_storage, storage.dtype)


def _rebuild_typed_storage(storage: torch.UntypedStorage, dtype: torch.dtype) -> object:
    kind: Any = torch.storage.TypedStorage
    return kind(wrap_storage=storage, dtype=dtype, _internal=True)


def reduce_storage(storage: Any) -> tuple[Any, ...]:
    """Return the reduced form of a storage on the host, with its memory as a buffer that may travel beside the pickle.

    torch's own form is a file inside the pickle, so it copies the memory several times. A storage on a GPU goes through
    the host. Storages on other devices keep torch's form.
    """
    if storage.device.type == "cuda":
        return rebuild_on_gpu, (storage.cpu(), storage.device.index)
    if storage.device.type != "cpu":
        found: tuple[Any, ...] = storage.__reduce__()
        return found
    if not storage.nbytes():
        return torch.UntypedStorage, (0,)
    flat: Any = torch.empty(0, dtype=torch.uint8)
    return _rebuild_storage, (pickle.PickleBuffer(flat.set_(storage).numpy()),)


def _rebuild_storage(buffer: Any) -> torch.UntypedStorage:
    if isinstance(buffer, bytes | bytearray) or memoryview(buffer).readonly:  # inside the pickle, or not to be written
        return torch.frombuffer(bytearray(buffer), dtype=torch.uint8).clone().untyped_storage()
    return torch.frombuffer(buffer, dtype=torch.uint8).untyped_storage()


def rebuild_on_gpu(host: torch.UntypedStorage, index: int) -> torch.UntypedStorage:
    """Return a copy of a storage on a GPU: on that of the sender's index, or, if this process has fewer, on its current
    one.

    Raises:
        RuntimeError: This process sees no GPU.
    """
    if not torch.cuda.is_available():
        raise RuntimeError(
            "The value has a tensor on a GPU, but this process sees no GPU. Send tensor.cpu(), or request a GPU for "
            "the task or actor that takes the value: @hocket.remote(num_gpus=1)"
        )
    there = index if index < torch.cuda.device_count() else torch.cuda.current_device()
    found: torch.UntypedStorage = host.to(device=torch.device("cuda", there))
    return found
