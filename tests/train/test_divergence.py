"""The net's two ends, without ranks: digests, and the driver's comparison."""

from __future__ import annotations

import dataclasses
import logging
import threading
from typing import Any

import numpy as np
import pytest

from hocket import train
from hocket.train.rank import equality
from hocket.train.run import divergence


def look(rank_values: dict[str, Any], watch: equality.Watch | None = None) -> list[equality.Item]:
    """Return what a rank sends that has these arrays."""
    sent: list[equality.Item] = []
    watch = watch or equality.Watch(0, sent.append)
    watch.add(
        lambda: [equality.Equal("parameter", name, np.asarray(value)) for name, value in rank_values.items()],
        {"parameter": "Likely causes: a test."},
    )
    watch.look("report", 1)
    return sent


def compare(*ranks: dict[str, Any], action: str = "error") -> None:
    driver = divergence.DivergenceWatch(train.DivergenceConfig(action), len(ranks))
    for rank, values in enumerate(ranks):
        for item in look(values):
            driver.take(rank, item)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int64", "bool", "complex64"])
@pytest.mark.parametrize("size", [0, 1, 7, 1000, 9000, 100_003])
def test_equal_bytes_have_equal_digests_and_others_do_not(dtype: str, size: int) -> None:
    values = np.random.default_rng(size).integers(0, 2, size).astype(dtype)
    digest = equality.compute_digest(values)
    assert equality.compute_digest(values.copy()) == digest
    assert equality.compute_digest(np.stack([values, values])[0, :]) == digest
    for place in {0, size // 2, size - 1} if size else ():
        changed = values.copy()
        changed[place] = not values[place]
        assert equality.compute_digest(changed) != digest


def test_rows_that_change_places_change_the_digest() -> None:
    table = np.arange(512.0 * 64).reshape(64, 512)
    assert equality.compute_digest(table[::-1]) != equality.compute_digest(table)


def test_the_ranks_that_differ_are_named_with_what_differs() -> None:
    same, other = {"first": np.zeros(4), "second": np.ones(3)}, {"first": np.zeros(4), "second": np.array([1, 1, 3.0])}
    compare(same, same, same)
    with pytest.raises(
        train.RanksDivergedError,
        match=r"in report 1 \(after 0 steps\) rank 2 has values of the parameter `second` that differ from rank 0's by "
        r"up to 2 in the sampled values\. Likely causes: a test\. To train nevertheless, write "
        r"RunConfig\(divergence_config",
    ):
        compare(same, same, other)
    with pytest.raises(train.RanksDivergedError, match="only one of the ranks 0 and 1 has the parameter `second`"):
        compare(same, {"first": np.zeros(4)})


def test_rounding_is_a_warning_and_so_is_what_shall_be_one(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "hocket.train"):
        compare({"one": np.ones(4)}, {"one": np.full(4, 1 + 1e-8)})
        compare({"one": np.ones(4)}, {"one": np.zeros(4)}, action="warn")
    assert ["by rounding" in message for message in caplog.messages] == [True, False]


def test_a_rank_that_ends_is_not_waited_for() -> None:
    driver = divergence.DivergenceWatch(train.DivergenceConfig(), 3)
    for rank, value in enumerate([0.0, 1.0]):
        for item in look({"one": np.full(2, value)}):
            driver.take(rank, item)
    with pytest.raises(
        train.RanksDivergedError, match="rank 1 has values of the parameter `one` that differ from rank 0's"
    ):
        driver.end(2)


def test_ends_of_parts_are_not_taken_for_each_other() -> None:
    """A rank comes to its second end before the other one comes to its first."""
    sent: dict[int, list[Any]] = {0: [], 1: []}
    weights = {rank: np.zeros(3) for rank in sent}
    for rank, items in sent.items():
        watch = equality.Watch(0, items.append)
        watch.add(lambda rank=rank: [equality.Equal("parameter", "w", weights[rank])], {})  # type: ignore[misc]
        for _ in range(2):
            weights[rank] += 1
            watch.count_step()
            watch.end()
    driver = divergence.DivergenceWatch(train.DivergenceConfig(), 2)
    for rank, look in ((0, sent[0][0]), (0, sent[0][1]), (1, sent[1][0]), (1, sent[1][1])):
        driver.take(rank, look)
    driver.take(0, sent[0][0])
    mixed = dataclasses.replace(sent[1][1], place=("end", 1))
    with pytest.raises(train.RanksDivergedError, match="at the end of the training function"):  # the ends do differ
        driver.take(1, mixed)


def test_first_epochs_of_two_models_are_not_taken_for_each_other() -> None:
    """The driver hears of both epochs of one rank before it hears of the other rank's."""
    sent: list[list[equality.Item]] = []
    for _ in range(2):
        items: list[equality.Item] = []
        watch = equality.Watch(0, items.append)
        named = ["first"]
        watch.add(lambda named=named: [equality.Equal("parameter", name, np.ones(3)) for name in named], {})  # type: ignore[misc]
        watch.look_at_epoch(0)
        named.append("second")
        watch.look_at_epoch(0)
        sent.append(items)
    driver = divergence.DivergenceWatch(train.DivergenceConfig(), 2)
    for rank, items in enumerate(sent):
        for item in items:
            driver.take(rank, item)


def test_the_end_of_an_epoch_is_looked_at_once() -> None:
    sent: list[Any] = []
    watch = equality.Watch(3, sent.append)
    watch.add(lambda: [equality.Equal("parameter", "one", np.ones(1))], {})
    for _ in range(2):
        watch.count_step()
    watch.end_epoch(1)
    watch.look("report", 1)  # it has that of the epoch
    watch.count_step()
    watch.end_epoch(2)  # it was looked at after the third step
    watch.count_step()
    watch.end_epoch(3)
    watch.count_step()
    watch.end()
    watch.end()
    assert [one.place for one in sent] == [("report", 1), ("step", 3), ("epoch 3", 5)]


def test_looks_of_several_threads_arrive_in_order() -> None:
    """A look without keys has those of the look that was sent before, here by a report."""
    sent: list[Any] = []
    calls: list[int] = []
    again = threading.Event()

    def list_tensors() -> list[equality.Equal]:
        calls.append(1)
        if len(calls) > 1:
            again.set()
        return [equality.Equal("parameter", "one", np.ones(1))]

    watch = equality.Watch(1, sent.append)
    watch.add(list_tensors, {})
    training = threading.Thread(target=watch.count_step)
    with watch.take_look("report", 1) as look:
        training.start()
        assert not again.wait(0.1), "the other look waits for this one"
        sent.append(look)
    training.join()
    assert [(one.place, one.keys is not None) for one in sent] == [(("report", 1), True), (("step", 1), False)]


@pytest.mark.parametrize(
    ("given", "error", "match"),
    [
        ({"action": "stop"}, ValueError, "action must be 'error', 'warn' or 'ignore', but received 'stop'"),
        ({"every_n_steps": -1}, ValueError, "every_n_steps must be 0 or more, but received -1"),
        ({"every_n_steps": 1.5}, TypeError, "every_n_steps must be an int, but received 1.5"),
    ],
)
def test_settings_that_are_none(given: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        train.DivergenceConfig(**given)
    with pytest.raises(TypeError, match="divergence_config must be a DivergenceConfig"):
        train.RunConfig(divergence_config="error")  # type: ignore[arg-type]
