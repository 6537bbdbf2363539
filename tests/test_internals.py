"""Names of other libraries that these do not document are all there: the version that takes one away is told."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

import hocket._base.internals as here

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings("ignore:.torch.jit.:DeprecationWarning"),  # of the compiler, about itself
]

KNOWN: Final = {
    "jax": "0.10.2",
    "keras": "3.15.1",
    "lightgbm": "4.7.0",
    "optuna": "5.0.0",
    "ray": "2.60.0",
    "tf-keras": "2.21.0",
    "torch": "2.13.0",
}
"""The versions in which all names were there."""

PACKAGES: Final = {"tf_keras": "tf-keras"}
MODULES: Final = [name.replace("-", "_") for name in KNOWN]
"""Those of Spark and datasets are called by their own tests, where these libraries are installed."""

ABSENT: Final = {
    "jax._src.lib.xla_extension",  # as it was called before jax 0.6
    "ray._private.worker.global_worker.core_worker",  # there while a session is open, as the next
    "ray._private.worker.global_worker.core_worker.get_all_reference_counts",
}


def tell(module: str, problem: object) -> str:
    package = PACKAGES.get(module, module)
    return (
        f"{package} {importlib.metadata.version(package)}: {problem}. The last version that is known to have all names "
        f"is {KNOWN[package]}: see hocket/_base/internals/{module}.py."
    )


def list_chains(module: str) -> Iterator[str]:
    """Yield each dotted name that begins with an import."""
    tree = ast.parse(Path(here.__path__[0], f"{module}.py").read_text())
    imported: dict[str, str | None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {
                alias.asname or alias.name.partition(".")[0]: alias.asname and alias.name for alias in node.names
            }
        elif isinstance(node, ast.ImportFrom) and node.module != "__future__":
            imported |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            root, dot, rest = ast.unparse(node).partition(".")
            if root.isidentifier() and root in imported and rest.replace(".", "").isidentifier():
                yield f"{imported[root] or root}{dot}{rest}"
    yield from (name for name in imported.values() if name)


def resolve(name: str) -> object:
    head, *rest = name.split(".")
    found: Any = importlib.import_module(head)
    path = head
    for part in rest:
        path = f"{path}.{part}"
        try:
            found = getattr(found, part)
        except AttributeError:
            found = importlib.import_module(path)
    return found


@pytest.mark.parametrize("module", MODULES)
def test_names_are_there(module: str) -> None:
    missing = []
    for name in sorted(set(list_chains(module)) - ABSENT):
        try:
            resolve(name)
        except ImportError:
            missing.append(name)
    assert not missing, tell(module, f"there is no {' and no '.join(missing)}")


# --- names of objects, which only a use shows -------------------------------------------------------------------------


def use_torch(names: Any) -> None:
    import torch

    assert names.list_leaves({"a": [1, (2,)]}) == [1, 2]
    assert names.map_leaves(str, [1, {"a": 2}]) == ["1", {"a": "2"}]
    assert names.map_tensors(torch.numel, [torch.ones(3), "x"]) == [3, "x"]
    values = [torch.ones(2), -torch.ones(3)]
    names.multiply(values, 3.0)
    assert [one.tolist() for one in names.compute_largest(values)] == [3.0, 3.0]
    assert callable(names.get_weight_norm())
    weight = torch.ones(2, requires_grad=True)
    assert not names.has_hooks(weight, own=0)
    weight.register_hook(lambda slope: slope)
    assert names.has_hooks(weight, own=0)
    called: list[str] = []
    weight.register_post_accumulate_grad_hook(lambda _: names.call_after_backward(lambda: called.append("end")))
    assert names.has_hooks(torch.ones(2), own=0) is False
    weight.sum().backward()
    assert called == ["end"]
    assert not names.keeps_values()
    with torch.autograd.graph.saved_tensors_hooks(lambda one: one, lambda one: one):
        assert names.keeps_values()


def use_modules_of_torch(names: Any) -> None:
    import torch

    net = torch.nn.BatchNorm1d(2)
    net.register_buffer("extra", torch.ones(1), persistent=False)
    before = names.read_version(net.weight)
    with torch.no_grad():
        net.weight.add_(1)
    assert names.read_version(net.weight) == before + 1
    with torch.inference_mode():
        assert names.read_version(torch.ones(1)) == 0
    assert names.skip_compiler(lambda: 2)() == 2
    assert set(names.get_parameters(net)) == {"weight", "bias"}
    assert "running_mean" in names.get_buffers(net)
    assert names.list_unsaved_buffers(net) == {"extra"}
    net.register_forward_pre_hook(print)
    assert names.list_early_hooks(net) == [print]
    assert set(names.HOOKS) <= vars(net).keys()
    saved: list[str] = []
    names.hook_state(net, lambda *_: saved.append("save"), lambda *_: saved.append("load"))
    net.load_state_dict(net.state_dict())
    assert saved == ["save", "load"]
    layer = torch.nn.GRU(1, 1)
    names.refresh_recurrent(layer)
    assert names.unwrap_compiled(torch.compile(net)) is net
    assert names.unwrap_compiled(net) is net


def use_groups_of_torch(names: Any) -> None:
    import torch
    from torch.distributed import distributed_c10d

    assert callable(torch.nn.parallel.DistributedDataParallel._check_reducer_finalized)
    assert not names.is_joined(torch.nn.Linear(1, 1))
    assert _keeps_join(torch)
    names.isolate_threads(False)
    assert names.count_values(torch.eye(3).to_sparse().coalesce()) == 3
    assert all(hasattr(distributed_c10d, name) for name in (*names.GROUP_GLOBALS, here.TORCH_GROUP_MAKER))
    importlib.import_module(here.TORCH_COMPILER)


def _keeps_join(torch: Any) -> bool:
    class Alone(torch.distributed.algorithms.join.Joinable):  # type: ignore[misc]  # its base is not known here
        join_hook = join_device = join_process_group = None

        def __init__(self) -> None:
            super().__init__()

    return hasattr(Alone(), "_join_config")


def use_jax(names: Any) -> None:
    state = names.get_state()
    assert state.client is None
    assert (state.process_id, state.num_processes, state.coordinator_address) == (0, 1, None)
    assert all(
        hasattr(names._get_library(), name)
        for name in (
            "get_distributed_runtime_service",
            "get_distributed_runtime_client",
            "make_gloo_tcp_collectives",
        )
    )


def use_keras(names: Any) -> None:
    import keras
    import numpy as np

    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    optimizer = keras.optimizers.AdamW(0.1)
    model.compile(optimizer, "mse", metrics=["mae"])
    assert callable(names.get_losses().reduce_weighted_values)
    assert names.list_layers(model)[0] is model
    assert names.list_stepped(optimizer) == []
    optimizer.build(model.trainable_variables)
    assert len(names.list_stepped(optimizer)) == 2
    assert names.uses_weight_decay(optimizer, model.trainable_variables[0])
    assert names.get_first_epoch(model) is None
    names.set_first_epoch(model, 3)
    assert names.get_first_epoch(model) == 3
    rows = np.zeros((4, 1), "float32")
    model.fit(rows, rows, verbose=0)
    logs = model.evaluate(rows, rows, verbose=0, return_dict=True)
    assert len(names.list_metrics(model, logs)) == len(logs)
    assert callable(getattr(model, names.LOGS_METHOD))
    assert hasattr(keras.callbacks.Callback().on_train_batch_end, names.DEFAULT_HOOK)
    assert model.__class__.__module__.startswith(names.PACKAGE)
    importlib.import_module(names.BACKEND_TRAINER)
    written: list[object] = []
    callback = keras.callbacks.ModelCheckpoint("never.keras", monitor="loss", save_best_only=True)
    callback.set_model(model)
    names.have_saved_by(callback, lambda epoch, batch, logs: written.append(epoch))
    callback.on_epoch_end(0, {"loss": 1.0})
    assert len(written) == 1
    names.look_whether_to_save(callback, 1, None, {"loss": 0.5})
    assert callback.best == 0.5


def use_optuna(names: Any) -> None:
    import optuna

    study = optuna.create_study()
    assert names.get_number(study.ask()) == 0
    assert names.get_number(study.trials[0]) == 0
    found = [names.get_generator(value) for value in vars(optuna.samplers.RandomSampler(seed=1)).values()]
    assert any(one is not None for one in found)


USES: Final[list[tuple[str, Callable[[Any], None]]]] = [
    ("torch", use_torch),
    ("torch", use_modules_of_torch),
    ("torch", use_groups_of_torch),
    ("jax", use_jax),
    ("keras", use_keras),
    ("optuna", use_optuna),
]


@pytest.mark.parametrize(("module", "use"), USES)
def test_objects_have_them(module: str, use: Callable[[Any], None]) -> None:
    names = importlib.import_module(f"hocket._base.internals.{module}")
    try:
        use(names)
    except (AttributeError, ImportError, TypeError) as error:
        pytest.fail(tell(module, error))
