"""Optuna's samplers as a searcher: what is proposed depends on the seed and on what was told, and on nothing else."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hocket.tune import errors
from hocket.tune.search import ConcurrencyLimiter, Repeater, Searcher, create_searcher, space
from hocket.tune.search.optuna import OptunaSearch

optuna: Any = pytest.importorskip("optuna", reason="needs Optuna: pip install 'hocket[tune]'")

pytestmark = pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")

SPACE = {
    "lr": space.loguniform(1e-4, 1),
    "model": {"layers": space.randint(1, 6), "dropout": space.quniform(0, 0.5, 0.1)},
    "epochs": 10,
}
NUMBERS = {"x": space.uniform(-1, 1), "y": space.uniform(-1, 1)}

untyped: Any = OptunaSearch
"""For arguments that a type checker would not let pass."""


def compute_loss(config: dict[str, Any]) -> float:
    if "x" in config:
        return float((config["x"] - 0.3) ** 2 + config["y"] ** 2)
    return float((math.log(config["lr"]) + 4) ** 2 + config["model"]["layers"] + config["model"]["dropout"])


Call = tuple[str, str, Any]


def search(searcher: Searcher, trials: int, at_once: int = 3) -> list[Call]:
    """Run a search, some trials at a time, one of which fails and one of which makes no report; return its log."""
    log: list[Call] = []
    running: list[tuple[str, dict[str, Any]]] = []
    number = 0
    while number < trials or running:
        while number < trials and len(running) < at_once:
            config = searcher.suggest(f"t{number}")
            if not isinstance(config, dict):
                trials = number
                break
            log.append(("restored", f"t{number}", config))
            running.append((f"t{number}", config))
            number += 1
        if not running:
            break
        name, config = running.pop(len(log) % len(running))
        log += end(searcher, name, config)
    return log


def end(searcher: Searcher, name: str, config: dict[str, Any]) -> list[Call]:
    loss = compute_loss(config)
    report = {"loss": loss, "time": abs(loss - 1), "training_iteration": 1}
    calls: list[Call] = [("result", name, report)]
    calls.append(("complete", name, {"t4": (None, True), "t6": (None, False)}.get(name, (report, False))))
    replay(searcher, calls)
    return calls


def replay(searcher: Searcher, log: list[Call]) -> None:
    for kind, name, value in log:
        if kind == "restored":
            searcher.on_trial_restored(name, value)
        elif kind == "result":
            searcher.on_trial_result(name, value)
        else:
            searcher.on_trial_complete(name, *value)


def resume(searcher: Searcher, log: list[Call]) -> None:
    """Make the calls that a log tells of, and find that the proposals are those of the log."""
    for kind, name, value in log:
        if kind == "restored":
            assert searcher.suggest(name) == value
        else:
            replay(searcher, [(kind, name, value)])


SAMPLERS: dict[str, Callable[[], Any]] = {
    "default": lambda: None,
    "random": optuna.samplers.RandomSampler,
    "tpe": lambda: optuna.samplers.TPESampler(n_startup_trials=5),
    "tpe seeded": lambda: optuna.samplers.TPESampler(n_startup_trials=5, seed=3),
    "multivariate": lambda: optuna.samplers.TPESampler(n_startup_trials=5, multivariate=True),
    "group": lambda: optuna.samplers.TPESampler(n_startup_trials=5, multivariate=True, group=True, constant_liar=True),
    "nsga2": lambda: optuna.samplers.NSGAIISampler(population_size=6),
    "nsga3": lambda: optuna.samplers.NSGAIIISampler(population_size=6),
    "brute force": optuna.samplers.BruteForceSampler,
    "partly fixed": lambda: optuna.samplers.PartialFixedSampler(
        {"x": 0.5}, optuna.samplers.TPESampler(n_startup_trials=5)
    ),
}
HARDER: dict[str, tuple[str, Callable[[], Any]]] = {
    "cma": ("cmaes", lambda: optuna.samplers.CmaEsSampler(n_startup_trials=2, popsize=4)),
    "qmc": ("scipy", lambda: optuna.samplers.QMCSampler(scramble=True)),
    "qmc seeded": ("scipy", lambda: optuna.samplers.QMCSampler(seed=3, scramble=True)),
}
DISCRETE = {"x": space.choice([0.1, 0.2, 0.4]), "y": space.quniform(0, 1, 0.25)}


def check_resumption(make: Callable[[], Any], given: dict[str, Any], trials: int, at: Any, **options: Any) -> None:
    def build() -> Searcher:
        return OptunaSearch(given, sampler=make(), **{"metric": "loss", "mode": "min", "seed": None, **options})

    log = search(build(), trials)
    places = [place for place, (kind, *_) in enumerate(log) if kind == "restored" and int(log[place][1][1:]) in at]
    assert places
    for place in places:
        fresh = build()
        replay(fresh, log[:place])
        resume(fresh, log[place:])


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLERS)
def test_a_search_resumed_anywhere_proposes_what_an_undisturbed_one_does(name: str) -> None:
    given = DISCRETE if name == "brute force" else NUMBERS
    check_resumption(SAMPLERS[name], given, 14 if name == "brute force" else 30, range(30))


@pytest.mark.slow
@pytest.mark.parametrize("name", HARDER)
def test_so_it_does_with_samplers_of_other_libraries(name: str) -> None:
    library, make = HARDER[name]
    pytest.importorskip(library, reason=f"Optuna's sampler needs {library}")
    check_resumption(make, NUMBERS, 30, range(30))


@pytest.mark.slow
def test_so_it_does_with_gaussian_processes() -> None:
    pytest.importorskip("torch", reason="Optuna's GPSampler needs PyTorch")
    pytest.importorskip("scipy", reason="and SciPy")
    check_resumption(lambda: optuna.samplers.GPSampler(n_startup_trials=5), NUMBERS, 9, (0, 8))


def test_so_it_does_over_a_grid_until_that_is_gone_through() -> None:
    grid = {"x": [-1, 0, 1], "y": [0, 1]}
    given = {"x": space.randint(-1, 2), "y": space.randint(0, 2)}
    check_resumption(lambda: optuna.samplers.GridSampler(grid, seed=0), given, 6, range(6))
    searcher = OptunaSearch(given, "loss", "min", sampler=optuna.samplers.GridSampler(grid, seed=0))
    log = search(searcher, 20, at_once=1)
    assert len({tuple(call[2].values()) for call in log if call[0] == "restored"}) == 6
    assert searcher.suggest("more") == Searcher.FINISHED


@pytest.mark.slow
def test_so_it_does_in_a_space_with_constants_points_and_functions() -> None:
    points = [{"lr": 0.5}, {"lr": 0.25, "model": {"layers": 2, "dropout": 0.5}}]
    check_resumption(lambda: None, SPACE, 20, range(20), points_to_evaluate=points)

    def define(trial: Any) -> dict[str, Any]:
        x = trial.suggest_float("x", -1, 1)
        if x > 0:
            trial.suggest_categorical("kind", ["a", "b"])
        trial.suggest_float("y", -1, 1)
        return {"epochs": 10}

    check_resumption(lambda: None, define, 20, range(20))  # type: ignore[arg-type]
    several: dict[str, Any] = {"metric": ["loss", "time"], "mode": ["min", "max"]}
    check_resumption(lambda: None, NUMBERS, 20, range(0, 20, 3), **several)


def test_wrapped_in_others_it_goes_on_too() -> None:
    def build() -> Searcher:
        return ConcurrencyLimiter(Repeater(OptunaSearch(NUMBERS, "loss", "min", seed=1), 2), 4, batch=True)

    log = search(build(), 24, at_once=4)
    for place in range(0, len(log), 7):
        fresh = build()
        replay(fresh, log[:place])
        resume(fresh, log[place:])


def test_the_seed_is_its_own_the_samplers_or_the_searches() -> None:
    def propose(sampler: Any = None, seed: int | None = None, of_search: int = 0) -> Any:
        searcher = OptunaSearch(metric="loss", mode="min", sampler=sampler, seed=seed)
        assert searcher.set_search_properties(None, None, NUMBERS, num_samples=3, seed=of_search)
        return [searcher.suggest(f"t{number}") for number in range(3)]

    random = optuna.samplers.RandomSampler
    assert propose() == propose()
    assert propose(of_search=1) != propose(of_search=2)
    assert propose(seed=5, of_search=1) == propose(seed=5, of_search=2) != propose(seed=6)
    assert propose(random(seed=5), of_search=1) == propose(random(seed=5), of_search=2) != propose(random(seed=6))
    assert propose(random(), of_search=1) == propose(random(), of_search=1) != propose(random(), of_search=2)


def test_it_learns() -> None:
    searcher = OptunaSearch(NUMBERS, "loss", "min", seed=1)
    losses = [compute_loss(call[2]) for call in search(searcher, 60, at_once=1) if call[0] == "restored"]
    assert sum(losses[-20:]) < 0.5 * sum(losses[:20])


def test_restoring_asks_no_sampler() -> None:
    asked = []

    class Counting(optuna.samplers.TPESampler):  # type: ignore[misc]
        def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: Any) -> Any:
            asked.append(param_name)
            return super().sample_independent(study, trial, param_name, param_distribution)

    Counting.__name__, Counting.__module__ = "TPESampler", "optuna.samplers"
    searcher = OptunaSearch(NUMBERS, "loss", "min", sampler=Counting())
    for number in range(100):
        searcher.on_trial_restored(f"t{number}", {"x": number / 100, "y": 0.0})
    assert not asked
    searcher.suggest("next")
    assert asked == ["x", "y"]


# --- spaces -----------------------------------------------------------------------------------------------------------


def test_each_domain_that_optuna_has() -> None:
    given: dict[str, Any] = {
        "a": space.uniform(0, 1),
        "b": space.quniform(0, 1, 0.25),
        "c": space.loguniform(1e-3, 1),
        "d": space.randint(1, 3),
        "e": space.qrandint(3, 13, 4),
        "f": space.lograndint(1, 9),
        "g": space.choice(["x", None, 2.5]),
        "h": [space.choice([(1, 2), {"k": 3}]), {"i": space.uniform(5, 6)}],
    }
    searcher = OptunaSearch(given, "loss", "min", sampler=optuna.samplers.RandomSampler(), seed=1)
    found: list[Any] = [searcher.suggest(f"t{number}") for number in range(60)]
    for config in found:
        assert all(given[key].is_valid(config[key]) for key in "abcdefg")
        assert config["h"][0] in ((1, 2), {"k": 3})
        assert 5 <= config["h"][1]["i"] <= 6
    assert {config["d"] for config in found} == {1, 2}
    assert {config["e"] for config in found} == {4, 8, 12}
    fresh = OptunaSearch(given, "loss", "min", sampler=optuna.samplers.RandomSampler(), seed=1)
    fresh.on_trial_restored("t0", found[0])
    assert fresh.suggest("t1") == found[1]


def test_spaces_of_optunas_own_distributions() -> None:
    given = {
        "a/b": optuna.distributions.FloatDistribution(0, 1),
        "a/c": optuna.distributions.IntDistribution(1, 1),
        "d": {"e": optuna.distributions.CategoricalDistribution(["x"])},
    }
    config: Any = OptunaSearch(given, "loss", "min").suggest("t")
    assert config == {"a": {"b": config["a"]["b"], "c": 1}, "d": {"e": "x"}}


def test_a_space_of_its_own_takes_the_searches_constants() -> None:
    searcher = OptunaSearch(NUMBERS, "loss", "min")
    assert searcher.set_search_properties("loss", "min", {"epochs": 3}, num_samples=1, seed=0)
    config: Any = searcher.suggest("t")
    assert set(config) == {"x", "y", "epochs"}
    assert not OptunaSearch(NUMBERS, "loss", "min").set_search_properties(None, None, {"z": space.randint(0, 1)})
    assert not OptunaSearch(NUMBERS, "loss", "min").set_search_properties("accuracy", None, {})
    assert not OptunaSearch(NUMBERS, "loss", "min").set_search_properties(None, "max", {})


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"x": space.randn()}, r"cannot draw 'x'.*Write uniform\(mean"),
        ({"x": space.sample_from(lambda: 1)}, r"cannot draw 'x'.*Give OptunaSearch a function"),
        ({"x": space.grid_search([1])}, r"cannot draw 'x'.*Write choice\(...\), or .*GridSampler"),
        ({"x": space.choice([{"y": space.uniform(0, 1)}])}, r"cannot draw choices that hold domains, but 'x'"),
        (
            {"x": space.qlograndint(4, 16, 4)},
            r"multiples on a logarithmic scale, but 'x'.*Write lograndint\(1, 5\), and",
        ),
        ({"x": 1}, r"must have something to draw, but received {'x': 1}"),
        ({"x/y": space.uniform(0, 1)}, r"must have no '/', but received 'x/y'"),
    ],
)
def test_what_optuna_cannot_draw_is_refused(given: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        OptunaSearch(given, "loss", "min")


def test_a_quantum_on_a_logarithmic_scale_is_ignored_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="q=0.5 of 'x' is ignored"):
        OptunaSearch({"x": space.qloguniform(0.5, 8, 0.5)}, "loss", "min")


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: OptunaSearch(3), TypeError, "space must be a dict of domains, or a function .* but received 3"),
        (lambda: OptunaSearch(NUMBERS, "l", "up"), ValueError, "mode must be 'min' or 'max', or a list of these"),
        (lambda: OptunaSearch(NUMBERS, ["l"], "min"), ValueError, "must both be lists or neither"),
        (lambda: OptunaSearch(NUMBERS, ["l", "k"], ["min"]), ValueError, "one entry for each of the metrics"),
        (lambda: OptunaSearch(NUMBERS, sampler=3), TypeError, "sampler must be one of optuna.samplers, but received 3"),
        (lambda: OptunaSearch(NUMBERS, storage=3), TypeError, "storage must be one of optuna.storages or a URL"),
        (lambda: OptunaSearch(NUMBERS, seed=-1), ValueError, "seed must be an int of 0 or more, but received -1"),
        (lambda: untyped(NUMBERS, points_to_evaluate=3), TypeError, "must be a list of dicts, but received 3"),
        (lambda: OptunaSearch(NUMBERS, evaluated_rewards=[1]), ValueError, "one entry for each of the 0 points"),
        (
            lambda: OptunaSearch(NUMBERS).suggest("t"),
            errors.TuneError,
            "needs a metric and a mode, but has metric=None",
        ),
        (lambda: OptunaSearch(metric="l", mode="min").suggest("t"), errors.TuneError, "OptunaSearch has no space"),
        (
            lambda: OptunaSearch(NUMBERS, "l", "min", points_to_evaluate=[{"z": 1}]).suggest("t"),
            ValueError,
            r"only keys of the space, \['x', 'y'\], but received 'z'",
        ),
        (
            lambda: OptunaSearch(lambda trial: 3, "l", "min").suggest("t"),
            TypeError,
            "must return None, or a dict of constants with str keys, but returned 3",
        ),
        (
            lambda: OptunaSearch(NUMBERS, "l", "min").on_trial_restored("t", {"x": 1.0}),
            ValueError,
            "A configuration must have 'y', but received",
        ),
    ],
)
def test_what_cannot_be_is_refused(make: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        make()


# --- results, points and storages -------------------------------------------------------------------------------------


def read_states(storage: Any, name: str = "optuna") -> list[tuple[str, Any]]:
    return [(trial.state.name, trial.values) for trial in optuna.load_study(study_name=name, storage=storage).trials]


def test_results_are_told_with_their_states() -> None:
    storage = optuna.storages.InMemoryStorage()
    searcher = OptunaSearch(NUMBERS, "n/loss", "min", storage=storage)
    for number in range(5):
        searcher.suggest(f"t{number}")
    searcher.on_trial_result("t1", {"n": {"loss": 4.0}, "training_iteration": 3})
    searcher.on_trial_complete("t0", {"n": {"loss": 1}})
    searcher.on_trial_complete("t1")
    searcher.on_trial_complete("t2", {"n": {"loss": 1}}, error=True)
    searcher.on_trial_complete("t3", {"n": {"loss": math.nan}})
    searcher.on_trial_complete("t0", {"n": {"loss": 9}})
    searcher.on_trial_complete("stranger", {"n": {"loss": 9}})
    assert read_states(storage) == [
        ("COMPLETE", [1.0]), ("PRUNED", [4.0]), ("FAIL", None), ("FAIL", None), ("RUNNING", None),
    ]  # fmt: skip


def test_points_come_first_and_known_results_are_not_tried_again() -> None:
    points = [{"x": 0.5, "y": 0.25}, {"x": -0.5}]
    searcher = OptunaSearch(NUMBERS, "loss", "min", points_to_evaluate=points)
    first, second = (searcher.suggest(f"t{number}") for number in range(2))
    assert first == points[0]
    assert isinstance(second, dict)
    assert second["x"] == -0.5

    storage = optuna.storages.InMemoryStorage()
    searcher = OptunaSearch(
        NUMBERS, "loss", "max", storage=storage, points_to_evaluate=[{"x": 0.5, "y": 0.25}], evaluated_rewards=[7]
    )
    searcher.add_evaluated_point({"x": 0.1, "y": 0.2}, 3, intermediate_values=[1, 2])
    searcher.add_evaluated_point({"x": 0.2, "y": 0.2}, 3, error=True)
    assert searcher.suggest("t0") != {"x": 0.5, "y": 0.25}
    assert sorted(read_states(storage), key=str) == [
        ("COMPLETE", [3.0]), ("COMPLETE", [7.0]), ("FAIL", None), ("RUNNING", None),
    ]  # fmt: skip


def test_several_metrics() -> None:
    storage = optuna.storages.InMemoryStorage()
    searcher = OptunaSearch(NUMBERS, ["loss", "time"], ["min", "max"], storage=storage)
    for name, report in (("t0", {"loss": 1, "time": 2}), ("t1", {"loss": 1})):
        searcher.suggest(name)
        searcher.on_trial_result(name, report)
        searcher.on_trial_complete(name, report)
    assert read_states(storage) == [("COMPLETE", [1.0, 2.0]), ("PRUNED", None)]


@pytest.mark.slow
def test_a_storage_holds_each_trial_once_however_often_a_search_is_resumed(tmp_path: Path) -> None:
    pytest.importorskip("sqlalchemy", reason="Optuna's databases need SQLAlchemy")
    url = f"sqlite:///{tmp_path / 'study.db'}"

    def build() -> OptunaSearch:
        points = [{"x": 0.9, "y": 0.9}]
        return OptunaSearch(
            NUMBERS, "loss", "min", storage=url, seed=1, points_to_evaluate=points, evaluated_rewards=[1.17]
        )

    undisturbed = search(OptunaSearch(NUMBERS, "loss", "min", seed=1, points_to_evaluate=[{"x": 0.9, "y": 0.9}],
                                      evaluated_rewards=[1.17]), 8, at_once=1)  # fmt: skip
    log = search(build(), 5, at_once=1)
    assert log == undisturbed[: len(log)]
    fresh = build()
    for _ in range(2):
        fresh = build()
        replay(fresh, log)
        assert len(read_states(url)) == 6
    resume(fresh, undisturbed[len(log) :])
    assert [state for state, _ in read_states(url)] == ["COMPLETE"] * 5 + ["FAIL", "COMPLETE", "PRUNED", "COMPLETE"]
    with pytest.raises(ValueError, match="in the storage has the directions"):
        OptunaSearch(NUMBERS, "loss", "max", storage=url).suggest("t")


def test_a_trial_that_was_begun_in_the_storage_but_not_logged_is_taken_up() -> None:
    storage = optuna.storages.InMemoryStorage()
    config = OptunaSearch(NUMBERS, "loss", "min", storage=storage).suggest("t0")
    searcher = OptunaSearch(NUMBERS, "loss", "min", storage=storage)
    assert searcher.suggest("t0") == config
    assert len(read_states(storage)) == 1


def test_state_is_saved_and_restored(tmp_path: Path) -> None:
    searcher = OptunaSearch(NUMBERS, "loss", "min", seed=1)
    log = search(searcher, 20)
    searcher.save(str(tmp_path / "state"))
    fresh = OptunaSearch(NUMBERS, "loss", "min", seed=2)
    fresh.restore(str(tmp_path / "state"))
    assert fresh.suggest("t20") == searcher.suggest("t20")
    assert log


def test_optuna_is_quiet_and_found_by_name() -> None:
    create_searcher("optuna", space=NUMBERS, metric="loss", mode="min").suggest("t")
    assert optuna.logging.get_verbosity() == optuna.logging.WARNING


def test_without_optuna_the_extra_is_named() -> None:
    program = """
import sys
sys.modules["optuna"] = None
from hocket.tune.search.optuna import OptunaSearch
OptunaSearch()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert "MissingExtraError: OptunaSearch needs Optuna" in last
    assert "pip install 'hocket[tune]'" in last
