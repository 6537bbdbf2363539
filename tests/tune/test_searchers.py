"""Searchers that learn nothing, and those that wrap another."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from hocket.tune import errors, search
from hocket.tune.search import (
    BasicVariantGenerator,
    ConcurrencyLimiter,
    Repeater,
    Searcher,
    create_searcher,
    repeater,
    space,
)

GRID = {"a": space.grid_search([1, 2]), "b": space.randint(0, 1000)}

untyped: Any = search
"""For arguments that a type checker would not let pass."""


def begin(searcher: Searcher, given: Mapping[str, Any], num_samples: int = 4, seed: int = 1) -> Any:
    assert searcher.set_search_properties("loss", "min", given, num_samples=num_samples, seed=seed)
    return searcher


def drain(searcher: Searcher, first: int = 0) -> list[Any]:
    """Take all proposals, and end each trial at once."""
    found: list[Any] = []
    while (config := searcher.suggest(f"t{first + len(found)}")) != Searcher.FINISHED:
        searcher.on_trial_complete(f"t{first + len(found)}", {"loss": 1.0})
        found.append(config)
    return found


class Recorder(Searcher):
    """Proposes 0, 1, 2, ... and notes what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.proposed, self.told = 0, list[Any]()

    def set_search_properties(
        self, metric: str | None, mode: str | None, config: Mapping[str, Any], **spec: Any
    ) -> bool:
        self.metric, self.mode, self.spec = metric, mode, spec
        return True

    def suggest(self, trial_id: str) -> dict[str, Any]:
        self.proposed += 1
        return {"x": self.proposed - 1}

    def on_trial_complete(self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False) -> None:
        self.told.append((trial_id, None if result is None else dict(result), error))


# --- BasicVariantGenerator --------------------------------------------------------------------------------------------


def test_points_stand_for_samples_as_rays_do() -> None:
    """The example of Ray's documentation: six trials of four samples."""
    points = [{"a": 2, "b": 2}, {"a": 1}, {"b": 2}]
    searcher = begin(BasicVariantGenerator(points_to_evaluate=points), GRID)
    assert searcher.total_samples == 6
    found = drain(searcher)
    assert [config["a"] for config in found] == [2, 1, 1, 2, 1, 2]
    assert [config["b"] == 2 for config in found] == [True, False, True, True, False, False]


def test_points_beyond_the_samples_are_tried() -> None:
    searcher = begin(BasicVariantGenerator(points_to_evaluate=[{"b": 1}, {"b": 2}]), GRID, num_samples=1)
    assert [(config["a"], config["b"]) for config in drain(searcher)] == [(1, 1), (2, 1), (1, 2), (2, 2)]


def test_points_may_be_nested_and_out_of_the_space(caplog: pytest.LogCaptureFixture) -> None:
    given = {"n": {"x": space.uniform(0, 1), "y": space.choice([1, 2])}, "l": [space.randint(0, 2), 5]}
    point = {"n": {"x": 3.0}, "l": [1, 5]}
    found = drain(begin(BasicVariantGenerator(points_to_evaluate=[point]), given, num_samples=1))
    assert found[0]["n"]["x"] == 3.0
    assert found[0]["n"]["y"] in (1, 2)
    assert found[0]["l"] == [1, 5]
    assert "'n/x'=3.0, which is outside the space's domain, (0, 1)" in caplog.text


@pytest.mark.parametrize("restored", [0, 1, 5, 8])
def test_a_restored_one_goes_on_where_the_other_was(restored: int) -> None:
    everything = drain(begin(BasicVariantGenerator(), GRID))
    searcher = begin(BasicVariantGenerator(), GRID)
    for number in range(restored):
        searcher.on_trial_restored(f"t{number}", everything[number])
    assert drain(searcher, restored) == everything[restored:]


def test_the_seed_is_its_own_or_the_searches() -> None:
    first, other = (drain(begin(BasicVariantGenerator(), GRID, seed=seed)) for seed in (1, 2))
    assert first != other
    own = [drain(begin(BasicVariantGenerator(random_state=7), GRID, seed=seed)) for seed in (1, 2)]
    assert own[0] == own[1] != first
    for make in (np.random.default_rng, np.random.RandomState):
        twice = [drain(begin(BasicVariantGenerator(random_state=make(3)), GRID)) for _ in range(2)]
        assert twice[0] == twice[1]


def test_its_limit_holds_back() -> None:
    searcher = begin(BasicVariantGenerator(max_concurrent=1), GRID)
    assert isinstance(searcher.suggest("t0"), dict)
    assert searcher.suggest("t1") is None
    searcher.on_trial_complete("t0")
    assert isinstance(searcher.suggest("t1"), dict)


def test_without_end() -> None:
    searcher = begin(BasicVariantGenerator(), {"x": space.uniform(0, 1)}, num_samples=-1)
    assert searcher.total_samples is None
    assert len({searcher.suggest(f"t{number}")["x"] for number in range(50)}) == 50


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (
            lambda: untyped.BasicVariantGenerator(max_concurrent=-1),
            ValueError,
            "max_concurrent must be 0 or more trials",
        ),
        (
            lambda: untyped.BasicVariantGenerator(random_state="a"),
            TypeError,
            "random_state must be a seed or a numpy generator",
        ),
        (lambda: untyped.BasicVariantGenerator(random_state=-1), ValueError, "random_state must be 0 or more"),
        (
            lambda: untyped.BasicVariantGenerator({"a": 1}),
            TypeError,
            r"must be a list of dicts, but received {'a': 1}. Write \[",
        ),
        (lambda: untyped.BasicVariantGenerator([3]), TypeError, "must be a list of dicts, but one is 3"),
        (lambda: untyped.BasicVariantGenerator().suggest("t"), errors.TuneError, "has no space yet"),
        (
            lambda: untyped.ConcurrencyLimiter(3, 1),
            TypeError,
            "ConcurrencyLimiter takes a Searcher, but received 3",
        ),
        (lambda: untyped.ConcurrencyLimiter(Recorder(), 0), ValueError, "max_concurrent must be 1 or more trials"),
        (lambda: untyped.Repeater(3, 1), TypeError, "Repeater takes a Searcher, but received 3"),
        (lambda: untyped.Repeater(Recorder(), 0), ValueError, "repeat must be 1 or more trials, but received 0"),
    ],
)
def test_what_cannot_be_is_refused(make: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        make()


# --- ConcurrencyLimiter -----------------------------------------------------------------------------------------------


def test_a_limit_lets_the_next_in_when_one_has_ended() -> None:
    inner = Recorder()
    limiter = begin(ConcurrencyLimiter(inner, 2), {})
    assert [limiter.suggest(name) for name in ("t0", "t1", "t2")] == [{"x": 0}, {"x": 1}, None]
    limiter.on_trial_complete("t1", {"loss": 1})
    assert limiter.suggest("t2") == {"x": 2}
    assert inner.told == [("t1", {"loss": 1}, False)]
    assert (limiter.metric, limiter.mode) == ("loss", "min")


def test_a_batch_is_told_when_all_have_ended() -> None:
    inner = Recorder()
    limiter = begin(ConcurrencyLimiter(inner, 2, batch=True), {})
    limiter.suggest("t0")
    limiter.suggest("t1")
    limiter.on_trial_complete("t1", {"loss": 1})
    assert limiter.suggest("t2") is None
    assert inner.told == []
    limiter.on_trial_complete("t0", error=True)
    assert inner.told == [("t1", {"loss": 1}, False), ("t0", None, True)]
    assert limiter.suggest("t2") == {"x": 2}


def test_restored_trials_count_in_a_limit() -> None:
    limiter = begin(ConcurrencyLimiter(Recorder(), 1), {})
    limiter.on_trial_restored("t0", {"x": 0})
    assert limiter.suggest("t1") is None
    limiter.on_trial_complete("t0")
    assert limiter.suggest("t1") == {"x": 1}


# --- Repeater ---------------------------------------------------------------------------------------------------------


def test_each_proposal_is_repeated_and_told_by_its_mean() -> None:
    inner = Recorder()
    repeats = begin(Repeater(inner, 3), {}, num_samples=6)
    assert inner.spec["num_samples"] == 2
    found = [repeats.suggest(f"t{number}") for number in range(6)]
    assert found == [{"x": x, repeater.TRIAL_INDEX: index} for x in (0, 1) for index in range(3)]
    for number, loss in ((4, 5.0), (0, 1.0), (2, math.nan), (1, 2.0)):
        repeats.on_trial_complete(f"t{number}", {"loss": loss})
    assert inner.told == [("t0", {"loss": 1.5}, False)]
    repeats.on_trial_complete("t3", error=True)
    repeats.on_trial_complete("t5", error=True)
    assert inner.told[1:] == [("t3", {"loss": 5.0}, False)]


def test_a_proposal_all_of_whose_trials_fail_has_failed() -> None:
    inner = Recorder()
    repeats = begin(Repeater(inner, 2, set_index=False), {}, num_samples=2)
    assert [repeats.suggest("t0"), repeats.suggest("t1")] == [{"x": 0}, {"x": 0}]
    repeats.on_trial_complete("t0", error=True)
    repeats.on_trial_complete("t1", error=True)
    assert inner.told == [("t0", None, True)]


def test_a_repeater_is_restored_in_the_midst_of_a_group(caplog: pytest.LogCaptureFixture) -> None:
    given = {"b": space.randint(0, 1000)}
    everything = drain(begin(Repeater(BasicVariantGenerator(), 3), given, num_samples=9))
    assert len(everything) == 9
    for restored in range(9):
        repeats = begin(Repeater(BasicVariantGenerator(), 3), given, num_samples=9)
        for number in range(restored):
            repeats.on_trial_restored(f"t{number}", everything[number])
        assert drain(repeats, restored) == everything[restored:]
    begin(Repeater(Recorder(), 2), {}, num_samples=3)
    assert "num_samples=3 is not a multiple of repeat=2" in caplog.text


# --- by name ----------------------------------------------------------------------------------------------------------


def test_searchers_by_name() -> None:
    assert isinstance(create_searcher("random", max_concurrent=2), BasicVariantGenerator)
    assert isinstance(create_searcher("Variant_Generator"), BasicVariantGenerator)
    for name, text in (("hyperopt", "TPESampler"), ("ax", "GPSampler"), ("nevergrad", "CmaEsSampler")):
        with pytest.raises(
            ValueError, match=f"received '{name}'.*OptunaSearch has a comparable one: .*{text}.*Searcher"
        ):
            create_searcher(name)
    with pytest.raises(ValueError, match="takes one of 'optuna', 'random', 'variant_generator'"):
        create_searcher("guess")
