"""torch's names."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection
from typing import Any, Final, TypeVar

import torch
from torch.autograd import Variable
from torch.utils import _pytree

Function = TypeVar("Function", bound=Callable[..., Any])

COMPILED: Final = "_orig_mod"
"""The attribute, and part of a parameter's name, below which `torch.compile` keeps what it was given."""

HOOKS: Final = (
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_load_state_dict_pre_hooks",
)
"""Where modules keep hooks, by their handles' numbers."""

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
"""Where `torch.distributed.distributed_c10d` keeps its process groups. torch's own tests of ranks that are threads
replace the first of them, too."""


# --- trees, and functions on many tensors -----------------------------------------------------------------------------


def list_leaves(tree: object) -> list[Any]:
    """Return the values in tuples, lists and dicts."""
    return list(_pytree.tree_leaves(tree))


def map_leaves(function: Callable[[Any], object], tree: object) -> Any:
    """Return the same tuples, lists and dicts with another value in the place of each."""
    return _pytree.tree_map(function, tree)


def map_tensors(function: Callable[[torch.Tensor], object], tree: object) -> Any:
    """Return the same tuples, lists and dicts with another value in the place of each tensor."""
    return _pytree.tree_map_only(torch.Tensor, function, tree)


def multiply(tensors: list[torch.Tensor], factor: float) -> None:
    """Multiply tensors of one kind in place, by one call of torch's core."""
    torch._foreach_mul_(tensors, factor)


def compute_largest(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the largest magnitude in each of several tensors of one kind, by one call of torch's core."""
    return list(torch._foreach_norm(tensors, float("inf")))


def get_weight_norm() -> Callable[..., torch.Tensor]:
    """Return the function that weight normalization computes with."""
    found: Callable[..., torch.Tensor] = torch._weight_norm
    return found


# --- gradients --------------------------------------------------------------------------------------------------------


def call_after_backward(function: Callable[[], object]) -> None:
    """Have a function called at the end of the backward pass that runs now."""
    engine: Any = Variable._execution_engine
    engine.queue_callback(function)


def has_hooks(parameter: Any, own: int) -> bool:
    """Tell whether a parameter has hooks on its gradient, beside so many that run when it is accumulated."""
    return bool(parameter._backward_hooks) or len(parameter._post_accumulate_grad_hooks or ()) > own


def forget_kept_gradients(model: torch.nn.Module, parameters: Collection[object]) -> None:
    """Forget the gradients of some parameters that the layers of a model sharded by ``fully_shard`` keep whole, since
    they were not to be added up yet."""
    for module in model.modules():
        find: Callable[[], Any] = getattr(module, "_get_fsdp_state", lambda: None)
        state = find()
        groups = getattr(state, "_fsdp_param_groups", None)  # older ones of torch have one
        for group in [getattr(state, "_fsdp_param_group", None)] if groups is None else groups:
            for one in group.fsdp_params if group is not None else ():
                if one.sharded_param in parameters:
                    one.unsharded_accumulated_grad = None
                    if getattr(one, "_unsharded_param", None) is not None:
                        one._unsharded_param.grad = None


def keeps_values() -> bool:
    """Tell whether someone keeps the values that the backward pass needs, as a checkpoint of activations does."""
    look: Callable[[bool], object] | None = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return look is not None and look(True) is not None


def read_version(tensor: torch.Tensor) -> int:
    """Return how often a tensor was written into; of one that torch keeps no account of, 0."""
    try:
        return tensor._version
    except RuntimeError:  # an inference tensor. To ask it first would be a use of it, as a TorchFunctionMode sees uses
        return 0


# --- modules ----------------------------------------------------------------------------------------------------------


def skip_compiler(function: Function) -> Function:
    """Have the compiler leave a function alone. `torch.compiler.disable` would import the compiler at once."""
    skip: Any = torch._disable_dynamo  # type: ignore[attr-defined]  # torch does not list it
    found: Function = skip(function)
    return found


def get_parameters(module: torch.nn.Module) -> dict[str, Any]:
    """Return a module's own parameters, to be changed."""
    return module._parameters


def get_buffers(module: torch.nn.Module) -> dict[str, Any]:
    """Return a module's own buffers, to be changed."""
    return module._buffers


def list_unsaved_buffers(module: torch.nn.Module) -> set[str]:
    """Return the names of a module's own buffers that its state leaves out."""
    return module._non_persistent_buffers_set


def list_early_hooks(module: torch.nn.Module) -> list[object]:
    """Return the functions that are called before a module computes."""
    return list(module._forward_pre_hooks.values())


def hook_state(module: Any, save: Callable[..., object], load: Callable[..., object]) -> tuple[Any, Any]:
    """Have functions called after a module's state is built, and before it is loaded; return their handles. Both are
    public since torch 2.5."""
    return (
        module._register_state_dict_hook(save),
        module._register_load_state_dict_pre_hook(load, with_module=True),
    )


def refresh_recurrent(module: torch.nn.RNNBase) -> None:
    """Have a recurrent layer look at its parameters again, which it keeps in a list of its own."""
    module._flat_weights = [getattr(module, name) for name in module._flat_weights_names]


def unwrap_compiled(model: Any) -> Any:
    """Return the model in what `torch.compile` returns; any other as it is."""
    return getattr(model, COMPILED, model)


# --- process groups ---------------------------------------------------------------------------------------------------


def check_reduced(wrapped: torch.nn.parallel.DistributedDataParallel) -> None:
    """Raise RuntimeError if the wrapper waits for gradients of the last forward pass."""
    wrapped._check_reducer_finalized()  # type: ignore[no-untyped-call]  # torch does not say


def is_joined(wrapped: object) -> bool:
    """Tell whether a model computes inside `torch.distributed.algorithms.Join`."""
    found: Any = getattr(wrapped, "_join_config", None)
    return found is not None and bool(found.enable)


def isolate_threads(are_apart: bool) -> None:
    """Have each thread have process groups of its own, whose names torch knows outside of Python; or have all threads
    share theirs again."""
    importlib.import_module("torch._C._distributed_c10d")._set_thread_isolation_mode(are_apart)


def count_values(sparse: torch.Tensor) -> int:
    """Return how many values a sparse tensor holds."""
    return sparse._nnz()
