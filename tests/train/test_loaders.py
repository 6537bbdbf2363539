"""Prepared loaders, in this process: every rank is played in turn."""

from __future__ import annotations

import itertools
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch
from hypothesis import strategies as st
from torch.utils import data

from hocket import train
from hocket.train import torch as hocket_torch
from hocket.train.checkpoints import storage
from hocket.train.frameworks.torch import samplers
from hocket.train.rank import reports
from hocket.train.run import checkpoint_manager
from tests.train.ranks import be_rank

Build = Callable[[], "data.DataLoader[Any]"]

plans = st.fixed_dictionaries(
    {
        "rows": st.integers(1, 90),
        "batch_size": st.integers(1, 9),
        "shuffle": st.booleans(),
        "drop_last": st.booleans(),
        "seed": st.one_of(st.none(), st.integers(0, 2**64 - 1)),
    }
)


def build(
    rows: int,
    batch_size: int | None,
    shuffle: bool = False,
    drop_last: bool = False,
    seed: int | None = None,
    **given: Any,
) -> data.DataLoader[Any]:
    generator = None if seed is None else torch.Generator().manual_seed(seed if seed < 2**63 else seed - 2**64)
    return data.DataLoader(
        range(rows),  # type: ignore[arg-type]  # any sequence will do
        batch_size=batch_size,
        shuffle=shuffle,
        drop_last=drop_last,
        generator=generator,
        **given,
    )


def prepare(build_loader: Build, world_size: int) -> list[hocket_torch.PreparedDataLoader]:
    loaders = []
    for rank in range(world_size):
        with be_rank(rank, world_size):
            loaders.append(hocket_torch.prepare_data_loader(build_loader()))
    return loaders


def read_rows(loader: hocket_torch.PreparedDataLoader, batch: torch.Tensor) -> list[int]:
    """Return the rows of a batch that count."""
    weights = loader.weights
    assert len(weights) == len(batch)
    return batch[weights == 1].tolist()


def read_epoch(loaders: list[hocket_torch.PreparedDataLoader]) -> list[list[int]]:
    """Run a loop in all ranks in step; return the rows of each global batch."""
    return [join(loaders, parts) for parts in zip(*loaders, strict=True)]


def join(loaders: list[hocket_torch.PreparedDataLoader], parts: tuple[torch.Tensor, ...]) -> list[int]:
    return [row for loader, part in zip(loaders, parts, strict=True) for row in read_rows(loader, part)]


def check_epochs(plan: dict[str, Any], world_size: int, **given: Any) -> None:
    size = plan["batch_size"] * world_size
    if plan["drop_last"] and plan["rows"] < size:
        with pytest.raises(ValueError, match="so an epoch would have no step"):
            prepare(lambda: build(**plan, **given), world_size)
        return
    loaders = prepare(lambda: build(**plan, **given), world_size)
    alone = prepare(lambda: build(**plan | {"batch_size": size}), 1)
    orders = []
    for epoch in range(2):
        assert {loader.epoch for loader in loaders} == {epoch}
        batches = read_epoch(loaders)  # zip is strict: the steps are equal
        assert {len(loader) for loader in loaders} == {len(batches)}
        assert batches == read_epoch(alone)
        orders.append([row for batch in batches for row in batch])
        if plan["drop_last"]:
            assert len(orders[-1]) == len(set(orders[-1])) == plan["rows"] // size * size
        else:
            assert sorted(orders[-1]) == list(range(plan["rows"]))
    if not plan["shuffle"]:
        assert orders[0] == orders[1] == list(range(len(orders[0])))
    elif plan["rows"] > 20:
        assert orders[0] != orders[1]


@hypothesis.given(plan=plans, world_size=st.integers(1, 6))
@hypothesis.settings(max_examples=150, deadline=None)
def test_ranks_take_equal_steps_and_each_row_once(plan: dict[str, Any], world_size: int) -> None:
    check_epochs(plan, world_size)


@pytest.mark.slow
@pytest.mark.parametrize("persistent", [False, True])
@hypothesis.given(plan=plans, world_size=st.integers(1, 2))
@hypothesis.settings(max_examples=3, deadline=None)
def test_ranks_with_loader_processes_do_too(persistent: bool, plan: dict[str, Any], world_size: int) -> None:
    check_epochs(plan, world_size, num_workers=2, persistent_workers=persistent)


# -- going on ---------------------------------------------------------------------------------------------------------


def check_kills(plan: dict[str, Any], kills: list[tuple[int, int]], **given: Any) -> None:
    """Run 3 epochs in groups that are killed, and compare the rows with those of one that is not."""
    plan = {**plan, "drop_last": False}
    alone = prepare(lambda: build(**plan), 1)
    undisturbed = [row for _ in range(3) for batch in read_epoch(alone) for row in batch]
    found: list[int] = []
    saved = ""
    for world_size, stop in [*kills, (3, None)]:
        loaders = prepare(lambda: build(**plan, **given), world_size)
        for loader in loaders if saved else ():
            loader.load_state_dict(json.loads(saved))
        steps, loops = 0, []
        for _ in range(loaders[0].epoch, 3):
            loops = [iter(loader) for loader in loaders]  # held, so that nothing is broken off
            for parts in zip(*loops, strict=True):
                found += join(loaders, parts)
                steps += 1
                if steps == stop:
                    break
            if steps == stop:
                break
        states = [loader.state_dict() for loader in loaders]
        assert all(state == states[0] for state in states)
        saved = json.dumps(states[0])
    assert found == undisturbed


kills_lists = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 12)), max_size=4)


@hypothesis.given(plan=plans, kills=kills_lists)
@hypothesis.settings(max_examples=80, deadline=None)
def test_loaders_that_are_killed_hand_out_what_an_undisturbed_one_does(
    plan: dict[str, Any], kills: list[tuple[int, int]]
) -> None:
    check_kills(plan, kills)


@pytest.mark.slow
def test_what_processes_have_read_ahead_does_not_count() -> None:
    plan = {"rows": 40, "batch_size": 2, "shuffle": True, "seed": 3}
    check_kills(plan, [(2, 3), (1, 1)], num_workers=2, prefetch_factor=4)


def test_a_loop_that_is_broken_off_leaves_its_epoch() -> None:
    (loader,) = prepare(lambda: build(10, 2), 1)
    for _ in loader:
        assert loader.epoch == 0
        break
    assert loader.epoch == 1
    assert read_epoch([loader])[0] == [0, 1]


def test_an_error_in_the_data_leaves_the_position() -> None:
    class Faulty(data.Dataset[int]):
        is_broken = True

        def __len__(self) -> int:
            return 6

        def __getitem__(self, row: int) -> int:
            if row == 3 and self.is_broken:
                raise OSError("bad sector")
            return row

    faulty = Faulty()
    (loader,) = prepare(lambda: data.DataLoader(faulty, batch_size=2), 1)
    loop = iter(loader)
    assert next(loop).tolist() == [0, 1]
    with pytest.raises(OSError, match="bad sector"):
        next(loop)
    state = loader.state_dict()
    assert (state["epoch"], state["position"]) == (0, 2)
    faulty.is_broken = False
    loader.load_state_dict(state)
    assert read_epoch([loader]) == [[2, 3], [4, 5]]


def test_two_loops_at_once_are_refused() -> None:
    (loader,) = prepare(lambda: build(10, 2), 1)
    first, second = iter(loader), iter(loader)
    next(second)
    with pytest.raises(RuntimeError, match="This loop over the loader cannot go on"):
        next(first)


def test_a_loop_of_a_loaders_own_is_told_to_be_left_out() -> None:
    class Doubles(data.DataLoader[int]):
        def __iter__(self) -> Any:
            return (2 * batch for batch in super().__iter__())

    for rank in range(2):
        with be_rank(rank, 2), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            loader = hocket_torch.prepare_data_loader(Doubles(range(4), batch_size=1))  # type: ignore[arg-type]
            assert [batch.tolist() for batch in loader] == [[rank], [2 + rank]]
        said = [str(one.message) for one in caught]
        assert len(said) == 1 - rank
        assert all("Doubles has an __iter__() of its own" in one for one in said)


def test_loaders_find_their_positions_in_a_checkpoint() -> None:
    def prepare_all(rank: int, world_size: int, positions: Any) -> tuple[list[Any], Any]:
        with be_rank(rank, world_size, positions) as session_reports:
            loaders = [
                hocket_torch.prepare_data_loader(build(20, 2)),
                hocket_torch.prepare_data_loader(build(30, 2), name="named"),
                hocket_torch.prepare_data_loader(build(40, 2)),
                hocket_torch.prepare_data_loader(build(50, 2), resume=False),
            ]
        return loaders, session_reports

    loaders, _ = prepare_all(0, 1, None)
    loops = [iter(loader) for loader in loaders]
    positions = {}
    for count, loop in enumerate(loops, 1):
        for _ in range(count):
            next(loop)
    for name, loader in zip(("#0", "named", "#1"), loaders, strict=False):
        positions[name] = loader.state_dict()
    resumed, _ = prepare_all(1, 2, json.loads(json.dumps(positions)))
    found = [next(iter(loader)).tolist() for loader in resumed]
    assert found == [[4, 5], [6, 7], [8, 9], [2, 3]]  # rank 1's, after 2, 4, 6 and no rows


def prepare_some_and_save(config: dict[str, Any]) -> None:
    loaders = [hocket_torch.prepare_data_loader(build(20, 2), name=name) for name in config["names"]]
    for loader in loaders:
        for _ in loader:
            break
    train.report({"epochs": [loader.epoch for loader in loaders]}, train.Checkpoint(config["folder"]))


def test_a_loader_that_is_not_prepared_again_keeps_its_position(tmp_path: Path) -> None:
    def fit(names: list[str]) -> Any:
        (tmp_path / "files").mkdir(exist_ok=True)
        result = hocket_torch.TorchTrainer(
            prepare_some_and_save,
            train_loop_config={"names": names, "folder": str(tmp_path / "files")},
            scaling_config=train.ScalingConfig(num_workers=0),
            run_config=train.RunConfig(name="run", storage_path=tmp_path),
        ).fit()
        assert result.metrics is not None
        return result.metrics["epochs"]

    assert fit(["a", "b"]) == [1, 1]
    assert fit(["b"]) == [2]
    assert fit(["b", "c", "a"]) == [3, 1, 2]


def test_ranks_that_are_not_at_the_same_place_are_told(tmp_path: Path) -> None:
    (first,) = prepare(lambda: build(20, 2, shuffle=True, seed=1), 1)
    (second,) = prepare(lambda: build(20, 2, shuffle=True, seed=2), 1)
    run_storage = storage.Storage(str(tmp_path), "run")
    storage.open_storage(run_storage)
    manager = checkpoint_manager.CheckpointManager(run_storage, train.CheckpointConfig())
    (tmp_path / "files").mkdir()

    def commit(*positions: Any) -> None:
        row = [
            reports.Report(0, b"", storage.stage(run_storage, f"{rank}", str(tmp_path / "files")), None, given)
            for rank, given in enumerate(positions)
        ]
        manager.commit(row, {})

    commit({}, {"#0": second.state_dict()}, {"#0": second.state_dict(), "#1": first.state_dict()})
    assert manager.latest_positions == {"#0": second.state_dict()}
    with pytest.warns(UserWarning, match=r"loader '#0' is at .*'seed': 1.* in rank 0 and at .*'seed': 2.* in rank 1"):
        commit({"#0": first.state_dict()}, {"#0": second.state_dict()})


# -- the end of an epoch ----------------------------------------------------------------------------------------------


@hypothesis.given(
    rows=st.integers(1, 40), batch_size=st.integers(1, 6), world_size=st.integers(1, 5), shuffle=st.booleans()
)
@hypothesis.settings(max_examples=100, deadline=None)
def test_scaled_losses_average_to_the_mean_over_the_global_batch(
    rows: int, batch_size: int, world_size: int, shuffle: bool
) -> None:
    targets = torch.linspace(-1, 1, rows, dtype=torch.float64)
    loaders = prepare(lambda: build(rows, batch_size, shuffle), world_size)
    for parts in zip(*loaders, strict=True):
        mine = torch.zeros((), dtype=torch.float64, requires_grad=True)
        mean = sum(
            (mine - targets[part]).square().mean() * loader.loss_scale / world_size
            for loader, part in zip(loaders, parts, strict=True)
        )
        assert isinstance(mean, torch.Tensor)
        everyone = torch.cat([part[loader.weights == 1] for loader, part in zip(loaders, parts, strict=True)])
        (gradient,) = torch.autograd.grad(mean, mine)
        assert gradient.item() == pytest.approx(-2 * targets[everyone].mean().item(), abs=1e-12)
        if len(everyone) % world_size == 0:
            assert {loader.loss_scale for loader in loaders} == {1.0}


def test_short_batches_are_short_and_a_rank_without_rows_gets_one_that_weighs_nothing() -> None:
    loaders = prepare(lambda: build(14, 2), 3)  # two batches of 6, then 2 rows
    seen = [[(batch.tolist(), loader.weights.tolist(), loader.loss_scale) for batch in loader] for loader in loaders]
    assert [steps[:2] for steps in seen] == [
        [([0, 1], [1, 1], 1.0), ([6, 7], [1, 1], 1.0)],
        [([2, 3], [1, 1], 1.0), ([8, 9], [1, 1], 1.0)],
        [([4, 5], [1, 1], 1.0), ([10, 11], [1, 1], 1.0)],
    ]
    assert [steps[2] for steps in seen] == [([12], [1], 1.5), ([13], [1], 1.5), ([12], [0], 0.0)]
    assert [len(loader.sampler) for loader in loaders] == [5, 5, 5]  # type: ignore[arg-type]
    assert [list(loader.sampler) for loader in loaders][2] == [4, 5, 10, 11, 12]


def test_a_loop_that_does_not_ask_for_weights_is_warned_once() -> None:
    loaders = prepare(lambda: build(5, 2), 2)
    assert [batch.tolist() for batch in loaders[0]] == [[0, 1], [4]]
    with pytest.warns(
        UserWarning, match=r"has 1 rows for 2 ranks, so rank 1 got a row .* loader\.loss_scale"
    ) as caught:
        assert [batch.tolist() for batch in loaders[1]] == [[2, 3], [4]]
    assert [warning.filename for warning in caught] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in loaders[1]:
            assert loaders[1].loss_scale in (1.0, 0.0)


def test_rows_without_batches() -> None:
    """batch_size=None: the data set makes the batches, and a row is a step."""
    loaders = prepare(lambda: build(5, None), 2)
    found = [[(row, loader.weights.tolist()) for row in loader] for loader in loaders]
    assert found == [[(0, [1]), (2, [1]), (4, [1])], [(1, [1]), (3, [1]), (4, [0])]]
    assert [len(loader) for loader in loaders] == [3, 3]


# -- what stays torch's -----------------------------------------------------------------------------------------------


def collate(rows: list[int]) -> dict[str, Any]:
    return {"rows": torch.tensor(rows), "note": f"{len(rows)} rows"}


def test_a_prepared_loader_keeps_what_the_user_wrote() -> None:
    loaders = prepare(lambda: build(12, 3, shuffle=True, drop_last=True, seed=7, collate_fn=collate), 2)
    for loader in loaders:
        assert isinstance(loader, data.DataLoader)
        assert (loader.batch_size, loader.drop_last, loader.num_workers, len(loader)) == (3, True, 0, 2)
        batch_sampler: Any = loader.batch_sampler
        assert (batch_sampler.batch_size, batch_sampler.drop_last, batch_sampler.sampler) == (3, True, loader.sampler)
        assert list(loader.sampler) == [row for batch in batch_sampler for row in batch]
        batches = list(loader)
        assert [batch["note"] for batch in batches] == ["3 rows", "3 rows"]


def test_loops_written_for_a_distributed_sampler_run() -> None:
    def read(epochs: list[int]) -> list[list[int]]:
        (loader,) = prepare(lambda: build(10, 5, shuffle=True), 1)
        found = []
        for epoch in epochs:
            loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
            assert loader.sampler.epoch == epoch  # type: ignore[attr-defined]
            found.append([row for batch in loader for row in batch.tolist()])
        return found

    first = read([0, 1, 2, 5])
    assert len({tuple(rows) for rows in first}) == 4
    assert read([5, 2, 2]) == [first[3], first[2], first[2]]


def test_a_generator_is_the_seed() -> None:
    def read(**given: Any) -> list[int]:
        (loader,) = prepare(lambda: build(30, 5, shuffle=True, **given), 1)
        return [row for batch in loader for row in batch.tolist()]

    assert read(seed=1) == read(seed=1) != read(seed=2)
    assert read(seed=0) == read()


# -- samplers ---------------------------------------------------------------------------------------------------------


def sample(sampler: Any, rows: int = 12) -> Build:
    return lambda: data.DataLoader(torch.arange(rows), batch_size=2, sampler=sampler)  # type: ignore[arg-type]


def test_a_subset_is_shared_out() -> None:
    subset = [3, 5, 7, 9, 11]
    loaders = prepare(sample(data.SubsetRandomSampler(subset, torch.Generator().manual_seed(1))), 2)
    first, second = read_epoch(loaders), read_epoch(loaders)
    assert sorted(itertools.chain(*first)) == sorted(itertools.chain(*second)) == subset
    assert first != second


def test_a_sampler_of_fewer_rows_is_taken_at_its_word() -> None:
    loaders = prepare(sample(data.SequentialSampler(range(5))), 2)
    assert list(itertools.chain(*read_epoch(loaders))) == [0, 1, 2, 3, 4]


def test_a_distributed_sampler_is_replaced_and_fills_up_nothing() -> None:
    def prepare_rank(rank: int) -> hocket_torch.PreparedDataLoader:
        own: Any = data.DistributedSampler(range(7), num_replicas=2, rank=rank, shuffle=False)  # type: ignore[arg-type]
        with be_rank(rank, 2):
            return hocket_torch.prepare_data_loader(sample(own, 7)())

    assert list(itertools.chain(*read_epoch([prepare_rank(0), prepare_rank(1)]))) == list(range(7))
    other: Any = data.DistributedSampler(range(7), num_replicas=4, rank=3)  # type: ignore[arg-type]
    with be_rank(1, 2), pytest.raises(ValueError, match=r"has its own sampler, .*DistributedSampler"):
        hocket_torch.prepare_data_loader(sample(other, 7)())


class Reversed(data.Sampler[int]):
    def __iter__(self) -> Any:
        return iter([2, 1, 0])

    def __len__(self) -> int:
        return 3


CANNOT_SPLIT: list[Any] = [
    data.RandomSampler(range(12), replacement=True),
    data.RandomSampler(range(12), num_samples=5),
    data.WeightedRandomSampler([0.5] * 12, 12),
    Reversed(),
    data.BatchSampler(data.SequentialSampler(range(12)), 2, drop_last=False),
]


@pytest.mark.parametrize("sampler", CANNOT_SPLIT, ids=lambda sampler: type(sampler).__name__)
def test_samplers_that_no_ledger_stands_for_are_refused_and_with_one_rank_kept(sampler: Any) -> None:
    match = r"has its own sampler, .*among 2 ranks without repeating or losing .*pass add_dist_sampler=False"
    with be_rank(0, 2):
        with pytest.raises(ValueError, match=match):
            hocket_torch.prepare_data_loader(sample(sampler)())
        unsplit = hocket_torch.prepare_data_loader(sample(sampler)(), add_dist_sampler=False)
    with be_rank():
        alone = hocket_torch.prepare_data_loader(sample(sampler)())
    for loader in (unsplit, alone):
        assert loader.sampler is sampler
        assert sum(batch.numel() for batch in loader) == sum(batch.numel() for batch in sample(sampler)())
        with pytest.raises(RuntimeError, match=r"loader\.state_dict needs the sample ledger, .* Use a data set with"):
            loader.state_dict()
        with pytest.raises(RuntimeError, match=r"loader\.loss_scale needs the sample ledger"):
            _ = loader.loss_scale


ROWS = 13
SUBSET = [1, 4, 6, 7, 10]


class OwnBatchSampler(data.BatchSampler):
    pass


def build_samplers(rank: int, world_size: int) -> dict[str, tuple[Any, list[int] | None]]:
    """Return each kind of sampler, with the rows that all ranks together must read; None if it must be refused."""
    rows: Any = range(ROWS)
    return {
        "none": (None, list(rows)),
        "sequential": (data.SequentialSampler(rows), list(rows)),
        "random": (data.RandomSampler(rows), list(rows)),
        "random with replacement": (data.RandomSampler(rows, replacement=True), None),
        "random, fewer": (data.RandomSampler(rows, num_samples=5), None),
        "subset": (data.SubsetRandomSampler(SUBSET), SUBSET),
        "weighted": (data.WeightedRandomSampler([0.5] * ROWS, ROWS), None),
        "distributed": (data.DistributedSampler(rows, world_size, rank), list(rows)),
        "distributed, of others": (data.DistributedSampler(rows, world_size + 1, rank), None),
        "list": ([3, 1, 2], None),
        "own": (Reversed(), None),
    }


def build_combined(sampler: Any, batching: str, drop_last: bool, num_workers: int) -> data.DataLoader[Any]:
    rows: Any = torch.arange(ROWS)
    if batching == "arguments":
        return data.DataLoader(rows, batch_size=2, drop_last=drop_last, sampler=sampler, num_workers=num_workers)
    if batching == "none":
        return data.DataLoader(rows, batch_size=None, sampler=sampler, num_workers=num_workers)
    kind = OwnBatchSampler if batching == "own batch sampler" else data.BatchSampler
    inner = data.SequentialSampler(range(ROWS)) if sampler is None else sampler
    return data.DataLoader(rows, batch_sampler=kind(inner, 2, drop_last), num_workers=num_workers)


def check_combination(kind: str, batching: str, drop_last: bool, world_size: int, num_workers: int = 0) -> None:
    if batching == "none":
        drop_last = False  # torch has no such thing
    wanted = build_samplers(0, world_size)[kind][1]
    is_split = wanted is not None and batching != "own batch sampler"
    loaders = []
    loader: Any = None
    for rank in range(world_size):
        loader = build_combined(build_samplers(rank, world_size)[kind][0], batching, drop_last, num_workers)
        with be_rank(rank, world_size):
            if world_size > 1 and not is_split:
                with pytest.raises(ValueError, match="cannot be split among"):
                    hocket_torch.prepare_data_loader(loader)
                return
            if drop_last and is_split and len(wanted or ()) < 2 * world_size:
                with pytest.raises(ValueError, match="would have no step"):
                    hocket_torch.prepare_data_loader(loader)
                return
            loaders.append(hocket_torch.prepare_data_loader(loader))
    for _ in range(2):  # epochs
        if not is_split:  # one rank, as torch has it
            assert sum(batch.numel() for batch in loaders[0]) == sum(batch.numel() for batch in loader)
            continue
        assert wanted is not None
        found = []
        for parts in zip(*loaders, strict=True):
            for prepared, part in zip(loaders, parts, strict=True):
                found += part.reshape(-1)[prepared.weights == 1].tolist()
        size = 2 * world_size
        if drop_last:
            assert len(set(found)) == len(found) == len(wanted) // size * size
            assert set(found) <= set(wanted)
        else:
            assert sorted(found) == wanted


KINDS = tuple(build_samplers(0, 1))
BATCHINGS = ("arguments", "batch sampler", "own batch sampler", "none")


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("batching", BATCHINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_each_combination_of_samplers_is_split_to_the_row_or_refused(
    kind: str, batching: str, drop_last: bool, world_size: int
) -> None:
    check_combination(kind, batching, drop_last, world_size)


@pytest.mark.slow
@pytest.mark.parametrize("batching", BATCHINGS)
@pytest.mark.parametrize("kind", ["none", "random", "subset", "distributed", "own"])
def test_so_it_is_with_loader_processes(kind: str, batching: str) -> None:
    check_combination(kind, batching, drop_last=False, world_size=3, num_workers=2)


def test_iterable_data_sets_split_themselves() -> None:
    class Stream(data.IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter(range(5))

    with be_rank(1, 2):
        loader = hocket_torch.prepare_data_loader(data.DataLoader(Stream(), batch_size=2))
    with be_rank(0, 2):
        with pytest.warns(UserWarning, match=r"Stream is an IterableDataset, .* so each of the 2 ranks reads all rows"):
            hocket_torch.prepare_data_loader(data.DataLoader(Stream(), batch_size=2))
        hocket_torch.prepare_data_loader(data.DataLoader(Stream(), batch_size=2), add_dist_sampler=False)
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4]]
    with pytest.raises(RuntimeError, match=r"loader\.epoch needs the sample ledger, .* IterableDataset"):
        _ = loader.epoch


# -- bad input --------------------------------------------------------------------------------------------------------


def test_bad_loaders_are_refused() -> None:
    with be_rank(0, 4):
        with pytest.raises(TypeError, match=r"takes a torch\.utils\.data\.DataLoader, but received list: \[1, 2\]\."):
            hocket_torch.prepare_data_loader([1, 2])  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="is prepared already"):
            hocket_torch.prepare_data_loader(hocket_torch.prepare_data_loader(build(4, 1)))
        with pytest.raises(
            ValueError, match=r"has 7 rows, but a step of 4 ranks with batch_size=2 and drop_last=True needs 8"
        ):
            hocket_torch.prepare_data_loader(build(7, 2, drop_last=True))
        with pytest.raises(
            ValueError, match=r"has 0 rows, .* needs 1 or more, so an epoch would have no step\. Check the data"
        ):
            hocket_torch.prepare_data_loader(build(0, 2))
        with pytest.raises(ValueError, match="has in_order=False, but its position can be known only"):
            hocket_torch.prepare_data_loader(build(8, 2, num_workers=1, in_order=False))
        hocket_torch.prepare_data_loader(build(8, 2), name="train")
        with pytest.raises(
            ValueError, match=r"has prepared a loader with name='train' before\. Give each loader its own name"
        ):
            hocket_torch.prepare_data_loader(build(8, 2), name="train")
        for name in ("", "#0"):
            with pytest.raises(
                ValueError,
                match=rf"must be a string that does not begin with '#' and is not empty, but received '{name}'",
            ):
                hocket_torch.prepare_data_loader(build(8, 2), name=name)
    with pytest.raises(RuntimeError, match=r"torch\.prepare_data_loader\(\) was called outside a training function"):
        hocket_torch.prepare_data_loader(build(4, 1))


def test_weights_are_of_a_batch() -> None:
    (loader,) = prepare(lambda: build(4, 2), 1)
    with pytest.raises(
        RuntimeError, match=r"loader\.weights belongs to the latest batch, but no batch was handed out yet"
    ):
        _ = loader.weights


def test_a_position_of_other_rows_is_refused() -> None:
    (other,) = prepare(lambda: build(9, 2), 1)
    with be_rank(positions={"#0": other.state_dict(), "train": other.state_dict()}):
        with pytest.raises(
            ValueError, match=r"\(no name, .*does not fit it: .*num_rows=9, .*num_rows=8.* pass resume=False"
        ):
            hocket_torch.prepare_data_loader(build(8, 2))
        with pytest.raises(ValueError, match=r"\(name='train'\) does not fit it"):
            hocket_torch.prepare_data_loader(build(8, 2), name="train")
        assert hocket_torch.prepare_data_loader(build(8, 2), resume=False).epoch == 0


# -- evaluation -------------------------------------------------------------------------------------------------------


def test_bad_values_of_a_mean_are_refused() -> None:
    mean = hocket_torch.GlobalMean()
    with pytest.raises(TypeError, match=r"takes a tensor, but received 1\.5\."):
        mean.add(1.5)
    with pytest.raises(ValueError, match=r"one of shape \(\)\. Pass the loss of each row, not their mean"):
        mean.add(torch.tensor(1.5))
    with pytest.raises(ValueError, match="received 2 weights for 3 values"):
        mean.add(torch.ones(3), torch.ones(2))
    with pytest.raises(ValueError, match="An ExactMean without values has no mean"):
        mean.compute()
    mean.add(torch.tensor([0.5, 9.0], dtype=torch.bfloat16, requires_grad=True), torch.tensor([1.0, 0.0]))
    assert mean.compute() == 0.5


def test_a_plan_knows_its_rows() -> None:
    loader = sample(data.SubsetRandomSampler([4, 2]))()
    assert samplers.find_plan(loader, samplers.read_batching(loader), 0, 1) == samplers.SamplerPlan(
        num_rows=2, shuffle=True, seed=0, rows=[4, 2]
    )
