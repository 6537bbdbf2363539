"""Collectives in actors, under Ray's names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hocket
from hocket import collective
from hocket.collective import rendezvous

pytestmark = [
    pytest.mark.about_local("memory that the processes of one machine share"),
    pytest.mark.usefixtures("session"),
]


class _Member:
    def join(self, size: int, rank: int, name: str) -> int:
        collective.init_collective_group(size, rank, "gloo", name)
        return collective.get_rank(name)

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)


def build_members(size: int) -> list[Any]:
    member = hocket.remote(num_cpus=0)(_Member)
    return [member.remote() for _ in range(size)]


def join(size: int, name: str = "default") -> list[Any]:
    members = build_members(size)
    assert hocket.get([one.join.remote(size, rank, name) for rank, one in enumerate(members)]) == list(range(size))
    return members


def test_all_operations() -> None:
    def work() -> list[Any]:
        rank, size = collective.get_rank(), collective.get_collective_group_size()
        found: list[Any] = []
        value: Any
        for op in collective.ReduceOp:
            bits = op in (collective.ReduceOp.BAND, collective.ReduceOp.BOR, collective.ReduceOp.BXOR)
            value = np.full((2, 2), rank + 1, np.int64 if bits else np.float64)
            collective.allreduce(value, op=op)
            found.append(value[1, 1])
        value = np.full(3, rank + 1, np.int32)
        collective.reduce(value, 1)
        found.append(value.tolist() if rank == 1 else None)
        collective.broadcast(value, 1)
        found.append(value.tolist())
        parts = [np.zeros(2) for _ in range(size)]
        collective.allgather(parts, np.full(2, float(rank)))
        found.append([part.tolist() for part in parts])
        own = np.zeros(2)
        collective.reducescatter(own, [np.full(2, float(rank + number)) for number in range(size)])
        found.append(own.tolist())
        if rank == 0:
            collective.send(np.arange(4), 2)
        elif rank == 2:
            got = np.zeros(4, np.int64)
            collective.recv(got, 0)
            found.append(got.tolist())
        collective.barrier()
        collective.destroy_collective_group()
        return [*found, collective.is_group_initialized()]

    by_rank = hocket.get([member.run.remote(work) for member in join(3)])
    for rank, found in enumerate(by_rank):
        assert found[:8] == [6, 6, 1, 3, 2, 0, 3, 0]  # sum, product, min, max, mean, and, or, exclusive or
        rest = found[3:]
        assert rest[5] == ([6, 6, 6] if rank == 1 else None)
        assert rest[6:9] == [[6, 6, 6], [[0, 0], [1, 1], [2, 2]], [3 * rank + 3] * 2]
        assert rest[9:-1] == ([[0, 1, 2, 3]] if rank == 2 else [])
        assert rest[-1] is False


def test_a_group_of_one() -> None:
    def work() -> list[Any]:
        collective.init_collective_group(1, 0, group_name="alone")
        value, other = np.ones(2), np.zeros(2)
        collective.allreduce(value, "alone")
        collective.broadcast(value, 0, "alone")
        collective.allgather([other], value, "alone")
        collective.barrier("alone")
        collective.destroy_collective_group("alone")
        return [value.tolist(), other.tolist()]

    assert hocket.get(build_members(1)[0].run.remote(work)) == [[1, 1], [1, 1]]


def test_groups_can_be_joined_again() -> None:
    members = build_members(2)
    for _ in range(3):
        collective.create_collective_group(members, 2, [1, 0], group_name="again")
        assert hocket.get([one.run.remote(collective.get_rank, "again") for one in members]) == [1, 0]
        hocket.get([one.run.remote(collective.destroy_collective_group, "again") for one in members])


def test_bad_input() -> None:
    members = join(2, "pair")

    def fail(function: Callable[..., Any], *args: Any) -> str:
        with pytest.raises((ValueError, RuntimeError, TypeError)) as caught:
            function(*args)
        return str(caught.value)

    readonly = np.ones(3)
    readonly.flags.writeable = False
    for expected, call in {
        "backend must be one of": (collective.init_collective_group, 2, 0, "nccl", "new"),
        "is in the group 'pair' already": (collective.init_collective_group, 2, 0, "hocket", "pair"),
        "received rank=2 of world_size=2": (collective.init_collective_group, 2, 2, "hocket", "new"),
        "another rank made the group 'fresh' with world_size=2": (
            collective.init_collective_group,
            3,
            0,
            "hocket",
            "fresh",
        ),
        "is not in a group 'nobody'": (collective.allreduce, np.ones(3), "nobody"),
        "dst_rank must be one of 0 to 1, but received 5": (collective.reduce, np.ones(3), 5, "pair"),
        "one tensor for each of 2 ranks, but received 1": (collective.allgather, [np.ones(3)], np.ones(3), "pair"),
        "must have the size and dtype": (collective.allgather, [np.ones(3), np.ones(2)], np.ones(3), "pair"),
        "read-only": (collective.allreduce, readonly, "pair"),
        "can send to and receive from the other ranks": (collective.send, np.ones(3), 0, "pair"),
    }.items():
        if "fresh" in expected:
            board = hocket.remote(num_cpus=0, name="hocket-collective/fresh")(rendezvous.RendezvousActor).remote(2)
            hocket.get(board.get_size.remote())
        assert expected in hocket.get(members[0].run.remote(fail, *call))
    with pytest.raises(ValueError, match=r"received 2 actors and ranks \[0, 0\]"):
        collective.create_collective_group(members, 2, [0, 0])


def test_a_rank_that_is_taken() -> None:
    members = build_members(2)
    refs = [one.join.remote(3, 0, "twice") for one in members]
    ready, _ = hocket.wait(refs, timeout=20)
    with pytest.raises(ValueError, match="Rank 0 is taken: another process has it"):
        hocket.get(ready[0])


def test_what_numpy_copies_can_be_sent_and_not_changed() -> None:
    """The result of an operation on a list would be lost."""

    def work() -> list[Any]:
        rank = collective.get_rank("lists")
        calls: list[Callable[[], object]] = [
            lambda: collective.allreduce([1.0, 2.0], "lists"),
            lambda: collective.broadcast([1.0], 0, "lists"),
            lambda: collective.allgather([[0.0], [0.0]], np.ones(1), "lists"),
            lambda: collective.allgather(list(np.zeros(2)), np.ones(1), "lists"),  # numbers, and no views
            lambda: collective.reducescatter([0.0], [np.ones(1), np.ones(1)], "lists"),
            lambda: collective.recv([0.0], 1 - rank, "lists"),
        ]
        for call in calls:
            with pytest.raises(ValueError, match="which numpy copies: the result would be lost"):
                call()
        gathered, own, got = [np.zeros(1), np.zeros(1)], np.zeros(1), np.zeros(1)
        collective.allgather(gathered, [float(rank)], "lists")
        collective.reducescatter(own, [[1.0], [2.0]], "lists")
        collective.send([float(rank)], 1 - rank, "lists")
        collective.recv(got, 1 - rank, "lists")
        return [one.tolist() for one in (*gathered, own, got)]

    found = hocket.get([member.run.remote(work) for member in join(2, "lists")])
    assert found == [[[0.0], [1.0], [2.0], [1.0]], [[0.0], [1.0], [4.0], [0.0]]]
