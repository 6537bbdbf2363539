"""What the tests of meshes on PyTorch run in each rank."""

from __future__ import annotations

import functools
import itertools
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.nn import functional

from hocket import mesh
from hocket.collective import errors
from hocket.mesh import UNSHARDED, Layout, LayoutMap
from hocket.mesh.relayouts import Kind, count_least
from tests.mesh import operations
from tests.mesh.simulated import list_layouts

_SHAPE = (8, 16)


def make_mesh(dims: dict[str, int]) -> mesh.Mesh:
    return mesh.create_mesh(dims, framework="torch")


def _list_layouts(dims: dict[str, int], rank: int, *, partial: bool = False) -> list[Layout]:
    """All that PyTorch knows: axes that cut the same dim come in the mesh's order."""
    order = list(dims)
    return [
        layout
        for layout in list_layouts(make_mesh(dims), rank, partial=partial)
        if all(list(axes) == sorted(axes, key=order.index) for axes in layout.axes)
    ]


def relayout_all(dims: dict[str, int], stride: int) -> int:
    whole = np.arange(128.0, dtype="float32").reshape(_SHAPE)
    layouts = _list_layouts(dims, 2, partial=True)
    for source in layouts:
        value = mesh.copy_to_mesh(whole, source)
        mesh.check_layout(value, source)
        for target in layouts[layouts.index(source) % stride :: stride]:
            moved = mesh.relayout(value, target)
            assert moved.layout == target
            np.testing.assert_array_equal(moved.gather(), whole)
            (part,) = mesh.unpack(moved)
            assert tuple(part.shape) == target.local_shape_from_global_shape(_SHAPE)
            if not target.partial:
                np.testing.assert_array_equal(part.numpy(), whole[target.slices(_SHAPE)[dist.get_rank()]])
            packed = mesh.pack([part], target)
            np.testing.assert_array_equal(packed.gather(), whole)
    return len(layouts)


class TorchLibrary:
    """PyTorch's functions, under the names of `operations.Library`."""

    exp = staticmethod(torch.exp)
    tanh = staticmethod(torch.tanh)
    softmax = staticmethod(torch.softmax)
    log_softmax = staticmethod(torch.log_softmax)
    sum = staticmethod(torch.sum)
    mean = staticmethod(torch.mean)
    max = staticmethod(torch.amax)
    transpose = staticmethod(torch.permute)

    @staticmethod
    def embed(rows: Any, table: Any) -> Any:
        return functional.embedding(torch.from_numpy(rows), table)

    @staticmethod
    def convolve(images: Any, kernel: Any, stride: int, padding: int) -> Any:
        function: Any = functional.conv2d if kernel.ndim == 4 else functional.conv1d
        return function(images, kernel, stride=stride, padding=padding)


def compare_operation(dims: dict[str, int], name: str, most: int) -> int:
    """Compute an operation and its gradients on values of so many choices of layouts, and on natives underneath."""
    operation = operations.OPERATIONS[name]
    given = [torch.from_numpy(array) for array in operation.build_inputs()]
    leaves = [one.clone().requires_grad_() for one in given]
    whole = operation.compute(TorchLibrary, *leaves)
    slopes = torch.autograd.grad(torch.sin(whole).sum(), leaves)
    cases = operation.list_cases(make_mesh(dims), has_orders=False)
    for number, layouts in enumerate(operations.pick(cases, most)):
        variables = [mesh.DVariable(array, layout) for array, layout in zip(given, layouts, strict=True)]
        found = operation.compute(TorchLibrary, *[one.value for one in variables])
        np.testing.assert_allclose(found.gather(), whole.detach().numpy(), rtol=1e-9, atol=1e-9, err_msg=f"{layouts}")

        def compute(variables: Any = variables, is_native: bool = number % 2 == 0) -> Any:
            arrays = [one.native if is_native else one for one in variables]
            return torch.sin(operation.compute(TorchLibrary, *arrays)).sum()

        loss, found_slopes = mesh.value_and_gradients(compute, variables)
        np.testing.assert_allclose(loss.gather(), torch.sin(whole).sum().item(), rtol=1e-9)
        for one, other in zip(found_slopes, slopes, strict=True):
            np.testing.assert_allclose(one.gather(), other.numpy(), rtol=1e-9, atol=1e-9, err_msg=f"{layouts}")
    return len(cases)


def _along(function: Any, *args: Any, **kwargs: Any) -> Any:
    return lambda value: function(value, *args, **kwargs)


REDUCTIONS: dict[str, Any] = {
    **{f"norm {order}": _along(torch.linalg.vector_norm, order, dim=1) for order in (0, 0.5, 1, 2, 3, np.inf, -np.inf)},
    **{f"norm {order} of all": _along(torch.linalg.vector_norm, order) for order in (1, 2, 3, np.inf, -np.inf)},
    **{
        f"{name} {dim}": _along(getattr(torch, name), **({} if dim is None else {"dim": dim}))
        for name in ("sum", "mean", "amax", "amin", "prod", "var", "std", "nansum", "logsumexp", "norm", "aminmax")
        for dim in (0, 1, None)
        if (name, dim) != ("logsumexp", None)
    },
    **{f"{name} with places": _along(getattr(torch, name), dim=1) for name in ("max", "min", "median")},
    **{f"{name} of all": getattr(torch, name) for name in ("max", "min", "argmax", "count_nonzero", "any", "all")},
    **{
        f"{name} 0": _along(getattr(torch, name), dim=0) for name in ("argmax", "argmin", "count_nonzero", "any", "all")
    },
    "matrix norm": torch.linalg.matrix_norm,
    "nuclear norm": _along(torch.linalg.matrix_norm, "nuc"),
    "norm by name": lambda value: value.norm(p=3, dim=1),
    "norm of a norm": lambda value: torch.linalg.vector_norm(torch.linalg.vector_norm(value, dim=1)),
    "norm, then sum": lambda value: torch.linalg.vector_norm(value, dim=1).sum(),
    "norm, then product": lambda value: torch.linalg.vector_norm(value, dim=1, keepdim=True).T @ value,
    "product with norms": lambda value: value.T @ torch.linalg.vector_norm(value, dim=1, keepdim=True),
    "norm, scaled": lambda value: torch.linalg.vector_norm(value, dim=1) * 2 + 1,
    "norm, squared": lambda value: torch.linalg.vector_norm(value, dim=1) ** 2,
    "two norms": lambda value: torch.linalg.vector_norm(value, dim=1) + torch.linalg.vector_norm(value, 1, dim=1),
    "norm and sum": lambda value: torch.linalg.vector_norm(value, dim=1) + value.sum(1),
    "mean, scaled": lambda value: value.mean(1) * 3 + 1,
    "mean and sum": lambda value: value.mean(1) + value.sum(1),
    "mean of no dims": lambda value: value.mean([]),
    "largest, negated": lambda value: -value.amax(1),
    "largest and smallest": lambda value: value.amax(1) - value.amin(1),
    "sum, squared": lambda value: value.sum(1) * value.sum(1),
    "normalized": _along(functional.normalize, dim=1),
    "softmax": _along(torch.softmax, dim=1),
    "similarity": lambda value: functional.cosine_similarity(value, value + 1, dim=1),
    "mean square": lambda value: functional.mse_loss(value, value * 0.5),
    "distance": lambda value: torch.dist(value, value * 0.5),
    "layer norm": lambda value: functional.layer_norm(value, (value.shape[1],)),
    "norm of many": lambda value: torch._foreach_norm([value, 2 * value])[1],
    "lookup": lambda value: functional.embedding(torch.tensor([0, 3, 5]), value),
}
"""What brings the values of several ranks together, for each of torch's partial placements, and what comes after it."""


def compare_reductions(dims: dict[str, int]) -> tuple[int, list[str]]:
    """Compute reductions and their gradients of values with every layout; return how many, and what is wrong."""
    whole = torch.randn(_SHAPE, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 0.1
    found: list[str] = []
    count = 0
    for layout, name in itertools.product(_list_layouts(dims, 2, partial=True), REDUCTIONS):
        leaf = whole.clone().requires_grad_()
        wanted = REDUCTIONS[name](leaf)
        outputs = wanted if isinstance(wanted, tuple) else (wanted,)
        variable = None if layout.partial else mesh.DVariable(whole, layout)
        value = mesh.copy_to_mesh(whole, layout)
        for number, output in enumerate(outputs):
            count += 1
            try:
                _compare_reduction(REDUCTIONS[name], number, output, leaf, value, variable)
            except Exception as error:  # noqa: BLE001 (all of them are listed)
                found.append(f"{name} ({number}) of {layout}: {type(error).__name__} {str(error).strip()[:200]}")
    return count, found


def _compare_reduction(compute: Any, number: int, wanted: Any, leaf: Any, value: Any, variable: Any) -> None:
    def take(given: Any) -> Any:
        result = compute(given)
        return result[number] if isinstance(result, tuple) else result

    got = take(value)
    replicated = Layout([UNSHARDED] * wanted.ndim, value.layout.mesh)
    for form in (got, mesh.relayout(got, replicated), got * 1):
        np.testing.assert_allclose(form.gather(), wanted.detach().numpy(), rtol=1e-9, atol=1e-9)
    if variable is None or not wanted.requires_grad:
        return
    weights = torch.arange(1.0, wanted.numel() + 1, dtype=wanted.dtype).reshape(wanted.shape)
    (slope,) = torch.autograd.grad((wanted * weights).sum(), leaf, retain_graph=True)
    for moves in (False, True):

        def weigh(moves: bool = moves) -> Any:
            result = take(variable)
            return ((mesh.relayout(result, replicated) if moves else result) * weights).sum()

        _, (found,) = mesh.value_and_gradients(weigh, [variable])
        np.testing.assert_allclose(found.gather(), slope.numpy(), rtol=1e-9, atol=1e-9)


def differentiate_relayouts(dims: dict[str, int]) -> None:
    whole = np.arange(128.0).reshape(_SHAPE) / 128
    layouts = _list_layouts(dims, 2)
    for source, target in itertools.product(layouts, layouts[::2]):
        variable = mesh.DVariable(torch.from_numpy(whole), source)

        def cube(target: Layout, variable: Any = variable) -> Any:
            return (mesh.relayout(variable, target) ** 3).sum()

        loss, (slope,) = mesh.value_and_gradients(cube, [variable], target)
        np.testing.assert_allclose(loss.gather(), (whole**3).sum())
        np.testing.assert_allclose(slope.gather(), 3 * whole**2)


def take_steps(dims: dict[str, int]) -> None:
    start = np.arange(128.0, dtype="float32").reshape(_SHAPE) / 128
    goal = np.linspace(1, 2, 128, dtype="float32").reshape(_SHAPE)
    expected = start - 0.2 * (start - goal)
    for layout in _list_layouts(dims, 2):
        weights = mesh.DVariable(start, layout, name="weights")

        def compute_loss(target: Any, weights: Any = weights) -> Any:
            return ((weights - target) ** 2).sum()

        @mesh.function(variables=[weights])
        def step(target: Any, weights: Any = weights, compute_loss: Any = compute_loss) -> Any:
            loss, (slope,) = mesh.value_and_gradients(compute_loss, [weights], target)
            weights.assign_sub(0.1 * slope)
            return loss

        assert float(step(goal)) == pytest.approx(float(((start - goal) ** 2).sum()), rel=1e-5)
        np.testing.assert_allclose(weights.gather(), expected, rtol=1e-6)
        assert weights.value.layout == layout


def behave_as_arrays(dims: dict[str, int]) -> None:
    grid = make_mesh(dims)
    axis = grid.dim_names[0]
    rows = mesh.copy_to_mesh(np.arange(128.0, dtype="float32").reshape(_SHAPE), Layout([axis, UNSHARDED], grid))
    assert (rows.shape, rows.dtype.name, rows.ndim, rows.size, len(rows)) == (_SHAPE, "float32", 2, 128, 8)
    assert (rows + 1).layout == rows.layout
    assert mesh.is_dtensor(rows.T)
    assert (rows @ rows.T).gather().tolist() == (rows.gather() @ rows.gather().T).tolist()
    assert (rows * np.full(16, 2.0, "float32")).gather().sum() == 2 * rows.gather().sum()
    half = mesh.copy_to_mesh(torch.ones(8, dtype=torch.bfloat16), Layout([axis], grid))
    assert half.gather().dtype.name == "bfloat16"
    complexes = np.arange(16).reshape(8, 2) * (1 + 2j)
    library: Any = torch
    turned_over = library.conj(mesh.copy_to_mesh(complexes, Layout([axis, UNSHARDED], grid)))  # torch only notes it
    assert turned_over.gather().tolist() == complexes.conj().tolist()
    total = mesh.relayout(turned_over, Layout([UNSHARDED, UNSHARDED], grid, partial=[axis]))
    assert total.gather().tolist() == complexes.conj().tolist()
    swapped = np.arange(8, dtype=">f4")
    assert mesh.copy_to_mesh(swapped, Layout([axis], grid)).gather().tolist() == swapped.tolist()
    many = mesh.copy_to_mesh(torch.ones(8, 1 << 14, dtype=torch.float16), Layout([axis, UNSHARDED], grid))
    mean = library.mean(many)
    assert (float(mean.gather()), mean.dtype.name) == (1, "float16")
    with pytest.raises(TypeError, match=r"is spread over devices\. To move all of it here, call its gather"):
        np.asarray(rows)
    assert float(mesh.relayout(rows.sum(), Layout([], grid))) == 8128
    assert mesh.call_with_layout(torch.ones, rows.layout, 8, 16).gather().sum() == 128
    images = mesh.copy_to_mesh(torch.ones(8, 4, 4, 4), Layout([axis, UNSHARDED, UNSHARDED, UNSHARDED], grid))
    unfold: Any = functional.unfold  # torch has no rule for it
    assert unfold(images, 2).gather().tolist() == np.ones((8, 16, 9)).tolist()
    variable = mesh.DVariable(images)
    _, (slope,) = mesh.value_and_gradients(lambda: torch.square(unfold(variable, 2)).sum() + 0, [variable])
    assert slope.gather()[0, 0, 1].tolist() == [4.0, 8.0, 8.0, 4.0]
    draw: Any = torch.poisson
    with pytest.raises(
        NotImplementedError, match=r"poisson\(\) draws random numbers, which would differ between ranks"
    ):
        draw(rows)
    with pytest.raises(NotImplementedError, match="renorm_"):
        rows.renorm_(2, 0, 1.0)
    mesh.barrier(grid)
    turned = Layout([",".join(reversed(grid.dim_names)), UNSHARDED], grid)
    for call, error, match in [
        (
            lambda: mesh.create_mesh({"x": 1}, framework="torch"),
            ValueError,
            "has 1 places. Give it one place for each rank",
        ),
        (lambda: mesh.create_mesh({"x": 64}, framework="torch"), ValueError, "needs 64 devices.* start more ranks"),
        (lambda: mesh.create_mesh(dims, framework="torch", device_type="TPU"), ValueError, "must be 'CPU'"),
        (lambda: mesh.pack([torch.ones(1)] * 2, rows.layout), ValueError, "for each of the 1 devices"),
        *([(lambda: mesh.relayout(rows, turned), ValueError, "in another order than the mesh's")] * (grid.rank - 1)),
    ]:
        with pytest.raises(error, match=match):
            call()


def save_everywhere(folder: str, meshes: list[dict[str, int]]) -> None:
    """What is saved on one mesh is loaded onto each other, and by JAX."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 8).bfloat16())
    plain = {name: value.clone() for name, value in model.state_dict().items()}
    maps = [
        LayoutMap(make_mesh(dims), {r"\d\.weight": ([*dims, UNSHARDED])[:2], r"\d\.bias": [list(dims)[-1]]})
        for dims in meshes
    ]
    for number, (saved, loaded) in enumerate(itertools.product(maps, maps)):
        path = mesh.save(mesh.distribute(plain, saved), Path(folder, str(number % 2)))
        found = mesh.load(path, loaded, like=plain)
        assert list(found) == list(plain)
        for name, value in plain.items():
            assert found[name].layout == loaded.find(name, tuple(value.shape))
            assert (
                found[name].gather().tobytes()
                == value.view(torch.int16 if value.dtype == torch.bfloat16 else value.dtype).numpy().tobytes()
            )
    mine = f"only in {torch.distributed.get_rank()}"
    with pytest.raises(
        ValueError, match=r"The processes must save the same values, but 'only in 0' is .* and missing in process"
    ):
        mesh.save({**mesh.distribute(plain, maps[0]), mine: torch.ones(2)}, Path(folder, "0"))
    with pytest.raises(ValueError, match="Give all of them one path"):
        mesh.save(mesh.distribute(plain, maps[0]), Path(folder, mine))
    mesh.load(Path(folder, "0"), maps[0])  # it is what it was
    exported = mesh.export(mesh.distribute(plain, maps[0]), Path(folder, "whole.safetensors"))
    from safetensors.torch import load_file

    for name, value in load_file(exported).items():
        assert torch.equal(value, plain[name])


# --- what moves, and what dies ----------------------------------------------------------------------------------------


class _Counter:
    """Counts the bytes that this rank receives from others in the collectives of a block, as the processes' group
    does them: of each what the cheapest algorithm for it takes."""

    def __init__(self) -> None:
        self.num_bytes = 0

    def add(self, kind: str, size: int, *, held: int, found: int) -> None:
        share = {
            "all_gather": found - held,
            "reduce_scatter": held - found,
            "all_reduce": 2 * (held * (size - 1) // size),
            "all_to_all": held * (size - 1) // size,
            "recv": found,
        }
        self.num_bytes += share[kind]


def _count(run: Any) -> int:
    """Run something with torch's collectives wrapped: they are called as before, and their tensors are measured."""
    from hocket.mesh.backends.torch import relayouts as adapter

    counter = _Counter()
    names = {"_all_gather": (adapter, "all_gather"), "_reduce_scatter": (adapter, "reduce_scatter")}
    names.update({name: (dist, name) for name in ("all_reduce", "all_to_all", "recv")})
    with pytest.MonkeyPatch.context() as patches:
        for name, (owner, kind) in names.items():
            patches.setattr(owner, name, _measure(getattr(owner, name), kind, counter))
        run()
    return counter.num_bytes


def _measure(function: Any, kind: str, counter: _Counter) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        size = dist.get_world_size(kwargs.get("group"))
        taken = [sum(one.nbytes for one in arg) if isinstance(arg, list) else getattr(arg, "nbytes", 0) for arg in args]
        counter.add(kind, size, found=taken[0], held=taken[1] if len(taken) > 1 else taken[0])
        return function(*args, **kwargs)

    return call


def count_moved_bytes(dims: dict[str, int], stride: int) -> int:
    """The collectives of a relayout, and of its gradient, move what its plan counts; without sums to be taken, and in
    one step, that is no more than what any algorithm must move."""
    layouts = _list_layouts(dims, 2, partial=True)
    compared = 0
    for source, target in list(itertools.product(layouts, layouts))[::stride]:
        value = mesh.copy_to_mesh(np.ones(_SHAPE, "float32"), source)
        plan = mesh.plan_relayout(source, target, _SHAPE, 4)
        moved = _count(functools.partial(mesh.relayout, value, target))
        turns = [step for step in plan.steps if step.kind is Kind.PERMUTE]
        if turns:  # of a permutation some ranks keep what they have
            assert plan.num_bytes - sum(step.num_bytes for step in turns) <= moved <= plan.num_bytes
        else:
            assert moved == plan.num_bytes, (source, target, plan.describe())
        if len(plan.steps) == 1 and not (source.partial or target.partial):
            assert moved <= count_least(source, target, _SHAPE, 4)
        compared += 1
    return compared


def die_in_a_relayout(dims: dict[str, int], step: int) -> tuple[str, float]:
    """Rank 1 is killed before a step of a relayout of two steps; the others do all of it."""
    grid = make_mesh(dims)
    source, target = Layout(["x", "y"], grid), Layout([UNSHARDED, UNSHARDED], grid)
    middle = mesh.plan_relayout(source, target, _SHAPE, 4).steps[0].target
    value = mesh.copy_to_mesh(np.ones(_SHAPE, "float32"), source)
    mesh.barrier(grid)

    def do_it() -> None:
        mesh.relayout(value, target)
        mesh.barrier(grid)  # of a rank that needs nothing of the dead one

    if dist.get_rank() == 1:
        if step == 1:
            mesh.relayout(value, middle)
        os.kill(os.getpid(), signal.SIGKILL)
    before = time.monotonic()
    with pytest.raises(errors.RankDiedError) as caught:
        do_it()
    return str(caught.value), time.monotonic() - before
