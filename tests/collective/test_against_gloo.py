"""Random collectives, each in our backend and in gloo: the same numbers, or an error in the call itself.

``HOCKET_TEST_COLLECTIVES=5000 pytest tests/collective/test_against_gloo.py`` tries more; ``HOCKET_TEST_SEED=17`` tries
one again.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'hocket[torch]'")
dist = torch.distributed

from tests.collective.test_torch import run  # noqa: E402 (torch may be missing)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.about_local("memory that the processes of one machine share"),
]

CASES = int(os.environ.get("HOCKET_TEST_COLLECTIVES", "150"))
SEED = int(os.environ.get("HOCKET_TEST_SEED", "-1"))

FLOATS = ("float32", "float64", "float16", "bfloat16")
WHOLE = ("int64", "int32", "int8", "uint8")
SHAPES = ((), (0,), (1,), (5,), (1, 4), (3, 1), (2, 3), (4, 0), (3, 5, 2), (40_000,), (70, 900))


class Case:
    """One operation, drawn alike in all ranks."""

    def __init__(self, seed: int, rank: int, size: int) -> None:
        self.draw = random.Random(seed)
        self.rank = rank
        self.size = size
        self.root = self.draw.randrange(size)
        self.dtype = self.draw.choice(FLOATS + WHOLE)
        self.op = self.draw.choice(("SUM", "PRODUCT", "MIN", "MAX", "AVG"))
        if self.dtype in WHOLE and self.draw.random() < 0.4:
            self.op = self.draw.choice(("BAND", "BOR", "BXOR"))
        self.shape = self.draw.choice(SHAPES)
        #: Of each rank its own numbers, from a seed that says which.
        self.numbers = torch.Generator().manual_seed(seed * 31 + rank)

    def build(self, shape: tuple[int, ...] | None = None, layout: str | None = None) -> Any:
        """Return a tensor of small numbers, which every dtype can hold and add up."""
        shape = self.shape if shape is None else shape
        value = torch.randint(0, 4, shape, generator=self.numbers).to(getattr(torch, self.dtype))
        layout = layout or self.draw.choice(("plain", "plain", "transposed", "strided", "offset"))
        if layout == "transposed":
            return value.t().contiguous().t() if value.dim() == 2 else value
        if layout == "strided" and value.dim():
            wide = torch.zeros((*shape, 3), dtype=value.dtype)
            wide[..., 1] = value
            return wide[..., 1]
        if layout == "offset":
            return torch.cat([value.new_zeros(1), value.reshape(-1)])[1:].view(shape)
        return value

    def copy(self, value: Any) -> Any:
        """Return the same numbers as gloo takes them, which is contiguous."""
        return value.clone(memory_format=torch.contiguous_format)


def all_reduce(case: Case, group: Any, pick: Callable[[Any], Any]) -> list[Any]:
    value = pick(case.build())
    op = case.op
    if group is not None and op == "AVG":  # gloo has none
        dist.all_reduce(value, dist.ReduceOp.SUM, group=group)
        return [divide(value, case.size)]
    dist.all_reduce(value, getattr(dist.ReduceOp, op), group=group)
    return [value]


def divide(value: Any, size: int) -> Any:
    return value / size if value.dtype.is_floating_point else value.div(size, rounding_mode="trunc")


def reduce(case: Case, group: Any, pick: Callable[[Any], Any]) -> list[Any]:
    value = pick(case.build())
    op = "SUM" if case.op == "AVG" else case.op
    dist.reduce(value, case.root, getattr(dist.ReduceOp, op), group=group)
    return [value] if case.rank == case.root else []


def broadcast(case: Case, group: Any, pick: Callable[[Any], Any]) -> list[Any]:
    value = pick(case.build())
    dist.broadcast(value, case.root, group=group)
    return [value]


def all_gather(case: Case, group: Any, pick: Callable[[Any], Any]) -> list[Any]:
    value = pick(case.build())
    parts = [torch.zeros_like(value) for _ in range(case.size)]
    dist.all_gather(parts, value, group=group)
    return parts


def gather(case: Case, group: Any, pick: Callable[[Any], Any]) -> list[Any]:
    value = pick(case.build())
    parts = [torch.zeros_like(value) for _ in range(case.size)] if case.rank == case.root else None
    dist.gather(value, parts, dst=case.root, group=group)
    return parts or []


def scatter(case: Case, group: Any, pick: Callable[[Any], Any]) -> list[Any]:
    parts = [pick(case.build(layout="plain")) for _ in range(case.size)]
    value = torch.zeros_like(parts[0])
    dist.scatter(value, parts if case.rank == case.root else None, src=case.root, group=group)
    return [value]


def all_to_all(case: Case, group: Any, pick: Callable[[Any], Any]) -> list[Any]:
    """Uneven: rank a sends a + b rows to rank b."""
    rows = [case.rank + other for other in range(case.size)]
    width = case.draw.choice((1, 3, 700))
    given = pick(case.build((sum(rows), width), layout="plain"))
    taken = torch.zeros_like(given)
    dist.all_to_all_single(taken, given, rows, rows, group=group)
    return [taken]


def messages(case: Case, group: Any, pick: Callable[[Any], Any]) -> list[Any]:
    """Each rank sends to the next, with several tags, and receives in another order."""
    count = case.draw.randrange(1, 4)
    order = case.draw.sample(range(count), count)
    given = [pick(case.build(layout="plain")) + tag for tag in range(count)]
    taken = [torch.zeros_like(given[0]) for _ in range(count)]
    works = [dist.isend(given[tag], (case.rank + 1) % case.size, group=group, tag=tag) for tag in range(count)]
    works += [dist.irecv(taken[tag], (case.rank - 1) % case.size, group=group, tag=tag) for tag in order]
    for work in works:
        work.wait()
    return taken


def sparse(case: Case, group: Any, pick: Callable[[Any], Any]) -> list[Any]:
    """Embeddings' gradients: some rows, some of them twice, of which each rank has others."""
    count, width = int(torch.randint(0, 6, (), generator=case.numbers)), case.draw.choice((1, 4))
    rows = torch.randint(0, 9, (1, count), generator=case.numbers)
    values = torch.rand((count, width), generator=case.numbers)
    value = torch.sparse_coo_tensor(rows, values, (9, width))
    dist.all_reduce(value, group=group)
    return [value.to_dense()]


OPERATIONS = (all_reduce, all_reduce, reduce, broadcast, all_gather, gather, scatter, all_to_all, messages, sparse)


def compare(seed: int, rank: int, size: int, gloo: Any) -> str:
    """Run one case in both; return what is wrong, or nothing."""
    operation = OPERATIONS[random.Random(seed).randrange(len(OPERATIONS))]
    ours_case, theirs_case = Case(seed, rank, size), Case(seed, rank, size)
    ours = operation(ours_case, None, lambda value: value)
    theirs = operation(theirs_case, gloo, theirs_case.copy)
    name = (
        f"HOCKET_TEST_SEED={seed}: {operation.__name__}, rank {rank}, {ours_case.dtype} {ours_case.op} "
        f"{ours_case.shape}"
    )
    for one, other in zip(ours, theirs, strict=True):
        rough = {"float16": 2e-2, "bfloat16": 5e-2}.get(ours_case.dtype, 1e-6)
        if one.shape != other.shape or not torch.allclose(one.double(), other.double(), rtol=rough, atol=rough):
            return f"{name}: {one.flatten()[:8]} and {other.flatten()[:8]}"
    return ""


@pytest.mark.usefixtures("shared_session")
@pytest.mark.parametrize("size", [2, 3, 4])
def test_random_collectives_give_what_gloo_gives(size: int, tmp_path: Path) -> None:
    seeds = [SEED] if SEED >= 0 else range(size * 1_000_000, size * 1_000_000 + CASES)

    def body(rank: int, size: int) -> list[str]:
        gloo = dist.new_group(backend="gloo")
        found = [compare(seed, rank, size, gloo) for seed in seeds]
        return [text for text in found if text][:5]

    assert run(body, size, tmp_path, timeout_s=120.0) == [[]] * size


@pytest.mark.usefixtures("shared_session")
def test_groups_are_made_again_and_again_on_one_store(tmp_path: Path) -> None:
    def body(rank: int, size: int) -> list[float]:
        store = dist.distributed_c10d._get_default_store()
        found = []
        for _ in range(20):
            dist.destroy_process_group()
            dist.init_process_group("hocket", store=store, rank=rank, world_size=size)
            value = torch.ones(3)
            dist.all_reduce(value)
            found.append(float(value[0]))
        return found

    assert run(body, 3, tmp_path) == [[3.0] * 20] * 3


@pytest.mark.usefixtures("shared_session")
def test_odd_dtypes(tmp_path: Path) -> None:
    """Those that gloo refuses, against the sum on paper."""

    def body(rank: int, size: int) -> list[Any]:
        found: list[Any] = []
        for dtype in (torch.uint16, torch.uint32, torch.uint64, torch.int16):
            value = torch.tensor([rank, 5], dtype=dtype)
            dist.all_reduce(value)
            found.append(value.tolist())
            dist.all_reduce(value, dist.ReduceOp.AVG)
            found.append(value.tolist())
        return found

    assert run(body, 3, tmp_path) == [[[3, 15]] * 8] * 3


@pytest.mark.usefixtures("shared_session")
def test_whoever_has_sent_a_tag_is_found(tmp_path: Path) -> None:
    def body(rank: int, size: int) -> list[int]:
        if rank:
            for tag in (7, 3):
                dist.send(torch.tensor([10 * rank + tag]), 0, tag=tag)
            dist.barrier()
            return []
        found = []
        for tag in (3, 3, 7, 7):
            value = torch.zeros(1, dtype=torch.int64)
            sender = dist.recv(value, tag=tag)
            assert value.item() == 10 * sender + tag
            found.append(value.item())
        dist.barrier()
        return sorted(found)

    assert run(body, 3, tmp_path)[0] == [13, 17, 23, 27]
