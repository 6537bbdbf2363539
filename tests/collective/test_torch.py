"""The backend of torch.distributed, in real processes, beside gloo."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hocket

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'hocket[torch]'")
dist = torch.distributed

from hocket.collective import torch as hocket_torch  # noqa: E402 (torch may be missing)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.about_local("memory that the processes of one machine share"),
]

Body = Callable[[int, int], Any]


def run_rank(body: Body, path: str, rank: int, size: int, timeout_s: float) -> Any:
    """Join a process group, run the body in it, and leave."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    hocket_torch.register()
    store = dist.FileStore(path, size)
    dist.init_process_group("hocket", store=store, rank=rank, world_size=size, timeout=dt.timedelta(seconds=timeout_s))
    try:
        return body(rank, size)
    finally:
        dist.destroy_process_group()


def run(body: Body, size: int, folder: Path, timeout_s: float = 60.0) -> list[Any]:
    """Run a body in so many ranks; return what they return."""
    rank_task = hocket.remote(max_retries=0)(run_rank)
    path = str(folder / f"store-{size}-{os.urandom(4).hex()}")
    found: list[Any] = hocket.get([rank_task.remote(body, path, rank, size, timeout_s) for rank in range(size)])
    return found


def build_tensor(rank: int, count: int, dtype: Any) -> Any:
    return (torch.arange(count) % 5 + rank + 1).to(dtype)


DTYPES = ("float32", "float64", "bfloat16", "float16", "int64", "int32", "int16", "int8", "uint8")


@pytest.mark.usefixtures("shared_session")
def test_lazy_negatives_move_as_the_numbers_that_they_are(tmp_path: Path) -> None:
    def body(rank: int, size: int) -> list[str]:
        def build(number: complex) -> Any:
            return torch.tensor([number]).conj().imag  # whose memory has the number with the other sign

        wanted, wrong = torch.tensor([-2.0]), []
        for move in ("broadcast", "message", "gathered"):
            given = build(1 + 2j if rank == 0 else 0j)
            if move == "broadcast":
                dist.broadcast(given, 0)
            elif move == "gathered":
                parts = [build(0j) for _ in range(size)]
                dist.all_gather(parts, given)
                given = parts[0]
            elif rank == 0:
                dist.send(given, 1)
            else:
                dist.recv(given, 0)
            wrong += [] if torch.equal(given, wanted) else [move]
        return wrong

    assert run(body, 2, tmp_path) == [[], []]


@pytest.mark.usefixtures("shared_session")
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_reductions_are_those_of_gloo(size: int, tmp_path: Path) -> None:
    def body(rank: int, size: int) -> list[str]:
        gloo = dist.new_group(backend="gloo")
        wrong = []
        for dtype in DTYPES:
            for op in ("SUM", "PRODUCT", "MIN", "MAX"):
                for count in (1, 7, 1000, 300_000):
                    ours = build_tensor(rank, count, getattr(torch, dtype))
                    theirs = ours.to(torch.int32) if dtype == "int16" else ours.clone()  # gloo has no int16
                    dist.all_reduce(ours, getattr(dist.ReduceOp, op))
                    dist.all_reduce(theirs, getattr(dist.ReduceOp, op), group=gloo)
                    if not torch.allclose(ours.double(), theirs.double()):
                        wrong.append(f"{dtype} {op} {count}")
        return wrong

    assert run(body, size, tmp_path) == [[]] * size


@pytest.mark.usefixtures("shared_session")
@pytest.mark.parametrize("size", [2, 3])
def test_everything_else_is_that_of_gloo(size: int, tmp_path: Path) -> None:  # noqa: PLR0915 (one call after the other)
    def list_results(rank: int, size: int, group: Any) -> list[Any]:  # noqa: PLR0915
        results = []
        for count in (3, 400_000):
            base = torch.arange(count, dtype=torch.float32) + 1000 * rank
            root = size - 1

            whole = base.clone()
            dist.broadcast(whole, root, group=group)
            results.append(whole)

            rooted = base.clone()
            dist.reduce(rooted, root, group=group)
            results.append(rooted if rank == root else None)

            parts = [torch.empty(count) for _ in range(size)]
            dist.all_gather(parts, base, group=group)
            results += parts

            parts = [torch.empty(count) for _ in range(size)] if rank == root else []
            dist.gather(base, parts or None, root, group=group)
            results += parts

            own = torch.empty(count)
            dist.scatter(own, [base + number for number in range(size)] if rank == root else None, root, group=group)
            results.append(own)

            joined = torch.empty(size * count)
            dist.all_gather_into_tensor(joined, base, group=group)
            results.append(joined)

            own = torch.empty(count)
            dist.reduce_scatter(own, [base * (number + 1) for number in range(size)], group=group)
            results.append(own)

            own = torch.empty(count)
            dist.reduce_scatter_tensor(own, torch.cat([base] * size), group=group)
            results.append(own)

            received = torch.empty(size * count)
            dist.all_to_all_single(received, torch.cat([base + number for number in range(size)]), group=group)
            results.append(received)

            neighbour, before = (rank + 1) % size, (rank - 1) % size
            received = torch.empty(count)
            sent = dist.isend(base, neighbour, group=group)
            dist.recv(received, before, group=group)
            sent.wait()
            results.append(received)

        gathered: list[Any] = [None] * size
        dist.all_gather_object(gathered, {"rank": rank}, group=group)
        results.append(gathered)
        values = ["from the root"] if rank == 0 else [None]
        dist.broadcast_object_list(values, 0, group=group)
        results.append(values)
        dist.barrier(group=group)
        return results

    def body(rank: int, size: int) -> bool:
        ours = list_results(rank, size, None)
        theirs = list_results(rank, size, dist.new_group(backend="gloo"))
        pairs = zip(ours, theirs, strict=True)
        return all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in pairs)

    assert run(body, size, tmp_path) == [True] * size


@pytest.mark.usefixtures("shared_session")
def test_what_is_not_contiguous_is_written_too(tmp_path: Path) -> None:
    def body(rank: int, size: int) -> list[Any]:
        grid = torch.zeros(4, 6)
        column = grid[:, rank : rank + 2]
        column += rank + 1
        dist.all_reduce(column)
        other = torch.zeros(3, 3).t()[:2]
        if rank == 0:
            other += 7
        dist.broadcast(other, 0)
        received = torch.zeros(8, 2)[:, 1]
        if rank == 0:
            dist.send(torch.arange(8.0), 1)
        else:
            dist.recv(received, 0)
        return [column.unique().tolist(), other.unique().tolist(), received.tolist()]

    first, second = run(body, 2, tmp_path)
    assert first[:2] == second[:2] == [[3.0], [7.0]]
    assert second[2] == list(range(8))


@pytest.mark.usefixtures("shared_session")
def test_messages_larger_than_the_ring_cross_each_other(tmp_path: Path) -> None:
    def body(rank: int, size: int) -> bool:
        mine, theirs = torch.full((500_000,), float(rank)), torch.empty(500_000)
        sent = dist.isend(mine, 1 - rank)
        sent.wait() if rank == 2 else None
        received = dist.irecv(theirs, 1 - rank)
        sent.wait()
        received.wait()
        found = torch.empty(3)
        if rank == 0:
            dist.send(torch.ones(3), 1)
        else:
            assert dist.recv(found) == 0
        return bool((theirs == 1 - rank).all())

    assert run(body, 2, tmp_path) == [True, True]


@pytest.mark.usefixtures("shared_session")
def test_a_model_trains_as_with_gloo(tmp_path: Path) -> None:
    def train(rank: int, group: Any) -> list[float]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 3))
        wrapped = torch.nn.parallel.DistributedDataParallel(model, process_group=group)
        optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
        generator = torch.Generator().manual_seed(rank)
        losses = []
        for _ in range(10):
            x = torch.randn(8, 20, generator=generator)
            loss = torch.nn.functional.cross_entropy(wrapped(x), x.argmax(1) % 3)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return [*losses, *(float(parameter.detach().sum()) for parameter in model.parameters())]

    def body(rank: int, size: int) -> tuple[list[float], list[float]]:
        return train(rank, None), train(rank, dist.new_group(backend="gloo"))

    results = run(body, 2, tmp_path)
    for ours, theirs in results:
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    assert results[0][0][10:] == results[1][0][10:], "all ranks have the same weights"


@pytest.mark.usefixtures("shared_session")
def test_a_sharded_model_trains(tmp_path: Path) -> None:
    def body(rank: int, size: int) -> list[float]:
        from torch.distributed import device_mesh, fsdp

        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 3))
        mesh = device_mesh.DeviceMesh.from_group(dist.group.WORLD, "cpu", mesh=torch.arange(size))
        fsdp.fully_shard(model, mesh=mesh)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        generator = torch.Generator().manual_seed(0)
        losses = []
        for _ in range(5):
            x = torch.randn(8, 20, generator=generator)
            loss = torch.nn.functional.cross_entropy(model(x), x.argmax(1) % 3)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    first, second = run(body, 2, tmp_path)
    assert first == second
    assert first[-1] < first[0]


@pytest.mark.usefixtures("shared_session")
def test_the_compiler_leaves_it_alone(tmp_path: Path) -> None:
    def body(rank: int, size: int) -> list[Any]:
        dist.barrier()
        compiled = torch.compile(lambda tensor: tensor * 2, backend="aot_eager")  # imports the compiler
        compiled(torch.ones(1))

        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))

        @torch.compile(backend="aot_eager")
        def step(batch: Any) -> Any:
            model(batch).sum().backward()
            return model.module.bias.grad + 0

        gradients = [step(torch.ones(rank + 1, 4)).tolist() for _ in range(2)]
        devices = [str(device) for device in dist.group.WORLD._device_types]
        return [gradients, devices]

    assert run(body, 2, tmp_path) == [[[[1.5, 1.5], [3.0, 3.0]], ["cpu"]]] * 2


@pytest.mark.usefixtures("shared_session")
def test_groups_of_some_ranks(tmp_path: Path) -> None:
    def body(rank: int, size: int) -> float:
        groups = [dist.new_group([0, 2], backend="hocket"), dist.new_group([1], backend="hocket")]
        value = torch.ones(5) * (rank + 1)
        dist.all_reduce(value, group=groups[rank % 2])
        return float(value[0])

    assert run(body, 3, tmp_path) == [4.0, 2.0, 4.0]


@pytest.mark.usefixtures("shared_session")
def test_different_operations_are_named(tmp_path: Path) -> None:
    def body(rank: int, size: int) -> str:
        calls = [lambda: dist.all_reduce(torch.ones(4)), lambda: dist.broadcast(torch.ones(3), 1)]
        with pytest.raises(Exception, match="at the same point") as caught:
            calls[rank]()
        with pytest.raises(Exception, match="at the same point"):
            dist.barrier()
        return str(caught.value)

    first, second = run(body, 2, tmp_path)
    assert "Rank 0 calls all_reduce(16 bytes of f32, sum), but rank 1 calls broadcast(12 bytes" in first
    assert "Rank 1 calls broadcast(12 bytes of f32, root 1), but rank 0 calls all_reduce(16" in second


@pytest.mark.usefixtures("shared_session")
def test_a_rank_that_leaves_is_named(tmp_path: Path) -> None:
    def body(rank: int, size: int) -> str:
        if rank == 1:
            return ""
        with pytest.raises(Exception, match=r"Rank 1 \(pid \d+\) (has left the group|died)") as caught:
            dist.all_reduce(torch.ones(4))
        return str(caught.value)

    assert "all_reduce(16 bytes of f32, sum)" in run(body, 2, tmp_path)[0]


@pytest.mark.usefixtures("shared_session")
def test_a_rank_that_does_not_come_is_named_with_its_stack(tmp_path: Path) -> None:
    def body(rank: int, size: int) -> str:
        if rank == 1:
            return dawdle(dist.distributed_c10d._get_default_store())
        with pytest.raises(Exception, match=r"has waited for \d+ s in all_reduce") as caught:
            dist.all_reduce(torch.ones(4))
        dist.distributed_c10d._get_default_store().set("seen", "yes")
        return str(caught.value)

    def dawdle(store: Any) -> str:
        store.wait(["seen"], dt.timedelta(seconds=60))
        return ""

    text = run(body, 2, tmp_path, timeout_s=1.0)[0]
    assert "for rank 1" in text
    assert "has not arrived; its last operation is nothing" in text
    assert "in dawdle" in text


@pytest.mark.usefixtures("shared_session")
def test_bad_input(tmp_path: Path) -> None:
    def body(rank: int, size: int) -> list[str]:
        found = []
        for call in (
            lambda: dist.all_reduce(torch.ones(3, device="meta")),
            lambda: dist.all_reduce(torch.ones(3), dist.ReduceOp.BXOR),
            lambda: dist.all_reduce(torch.ones(3), torch.distributed._make_nccl_premul_sum(2.0)),
            lambda: dist.all_reduce(torch.ones(3, dtype=torch.bool), dist.ReduceOp.AVG),
            lambda: dist.broadcast(torch.eye(3).to_sparse(), 0),
            lambda: dist.all_reduce(torch.eye(3).to_sparse(), dist.ReduceOp.MAX),
            lambda: dist.all_reduce(torch.eye(2 + rank).to_sparse()),
            lambda: dist.all_to_all_single(torch.ones(3), torch.ones(4)),
            lambda: dist.all_to_all_single(torch.ones(4), torch.ones(3)),
        ):
            with pytest.raises((ValueError, TypeError, RuntimeError)) as caught:
                call()
            found.append(str(caught.value))
        value = torch.ones(2)
        dist.all_reduce(value)
        return [*found, str(value.tolist())]

    first, _ = run(body, 2, tmp_path)
    for text, expected in zip(
        first,
        [
            "on meta",
            "op=BXOR combines the bits of integers, but received float32",
            "supports the operations SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR, but received PREMUL_SUM",
            "needs floats",
            "layout torch.sparse",
            "Sparse tensors support only op=SUM and op=MEAN, but received op=MAX",
            (
                "must reduce tensors of the same shape and with the same number of sparse dimensions, but they have "
                "[(2, 2), (3, 3)]"
            ),
            (
                "no output_split_sizes, so 2 ranks must share the rows of the output evenly, but there are 3 rows. "
                "Pass output_split_sizes"
            ),
            (
                "no input_split_sizes, so 2 ranks must share the rows of the input evenly, but there are 3 rows. "
                "Pass input_split_sizes"
            ),
            "[2.0, 2.0]",
        ],
        strict=True,
    ):
        assert expected in text
