"""Domains: what they draw, as Ray's do, and what they refuse. Variants: the configurations of a space by number."""

from __future__ import annotations

import math
import random
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from hocket.tune import errors
from hocket.tune.search import sample, space, variants

SETTINGS = hypothesis.settings(max_examples=100, deadline=None)
SEEDS = st.integers(0, 2**32)

untyped: Any = space
"""For arguments that a type checker would not let pass."""


# --- domains ----------------------------------------------------------------------------------------------------------


@hypothesis.given(st.floats(-1e6, 1e6), st.floats(0, 1e6), SEEDS)
@SETTINGS
def test_floats_lie_between_their_bounds(lower: float, width: float, seed: int) -> None:
    domain = space.uniform(lower, lower + width)
    values = domain.sample(size=20, random_state=seed)
    assert all(domain.is_valid(value) for value in values.tolist())


@hypothesis.given(st.floats(1e-12, 1e6), st.floats(1, 1e6), SEEDS)
@SETTINGS
def test_logarithmic_floats_lie_between_their_bounds(lower: float, factor: float, seed: int) -> None:
    domain = space.loguniform(lower, lower * factor)
    assert all(domain.is_valid(value) for value in domain.sample(size=20, random_state=seed).tolist())


@hypothesis.given(st.integers(-50, 50), st.integers(0, 50), st.sampled_from([0.1, 0.25, 0.3, 1e-4, 2, 5]), SEEDS)
@SETTINGS
def test_quantized_floats_are_multiples_with_both_bounds(first: int, width: int, q: float, seed: int) -> None:
    domain = space.quniform(first * q, (first + width) * q, q)
    values = domain.sample(size=20, random_state=seed).tolist()
    assert all(domain.is_valid(value) and math.isclose(value / q, round(value / q), abs_tol=1e-9) for value in values)


@hypothesis.given(st.integers(1, 1000), st.integers(1, 1000), st.integers(1, 50), st.booleans(), SEEDS)
@SETTINGS
def test_integers_are_multiples_between_their_bounds(lower: int, width: int, q: int, logs: bool, seed: int) -> None:
    upper = lower + width
    allowed = [value for value in range(lower, upper + (q != 1)) if value % q == 0]
    make = space.qlograndint if logs else space.qrandint
    if not allowed:
        with pytest.raises(ValueError, match=f"There is no multiple of q={q} from {lower} to {upper}"):
            make(lower, upper, q)
        return
    domain = make(lower, upper, q)
    values = domain.sample(size=20, random_state=seed).tolist()
    assert set(values) <= set(allowed)
    assert all(domain.is_valid(value) for value in values)
    assert isinstance(domain.sample(random_state=seed), int)


def test_each_value_of_a_small_domain_comes_up() -> None:
    assert set(space.randint(2, 5).sample(size=200, random_state=0)) == {2, 3, 4}
    assert set(space.qrandint(4, 12, 4).sample(size=200, random_state=0)) == {4, 8, 12}
    assert set(space.quniform(0, 1, 0.5).sample(size=200, random_state=0)) == {0, 0.5, 1}
    assert set(space.choice(["a", None]).sample(size=200, random_state=0)) == {"a", None}


def test_bell_curves_have_their_mean_and_deviation() -> None:
    values = space.randn(10, 2).sample(size=20_000, random_state=0)
    assert abs(values.mean() - 10) < 0.05
    assert abs(values.std() - 2) < 0.05
    assert all(value % 0.5 == 0 for value in space.qrandn(0, 1, 0.5).sample(size=50, random_state=0))


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("uniform", (-1, 3)),
        ("quniform", (1, 3, 0.25)),
        ("loguniform", (1e-5, 1)),
        ("qloguniform", (0.5, 64, 0.5)),
        ("randn", (1, 2)),
        ("qrandn", (1, 2, 0.5)),
        ("randint", (-5, 90)),
        ("qrandint", (3, 90, 4)),
        ("qrandint", (3, 90)),
        ("lograndint", (2, 900)),
        ("qlograndint", (3, 900, 7)),
        ("choice", (["a", 2, None, 3.0],)),
    ],
)
def test_values_are_those_that_ray_draws(name: str, arguments: tuple[Any, ...]) -> None:
    pytest.importorskip("ray", reason="the extra ray is not installed")
    theirs = pytest.importorskip("ray.tune.search.sample", reason="Ray's own extra tune is not installed")
    ours = getattr(space, name)(*arguments)
    for size in (1, 30):
        found = ours.sample(size=size, random_state=np.random.default_rng(3))
        expected = getattr(theirs, name)(*arguments).sample(size=size, random_state=np.random.default_rng(3))
        if name == "choice":
            assert found == expected
        else:
            np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert ours.domain_str == getattr(theirs, name)(*arguments).domain_str


def test_domains_are_frozen_and_chained() -> None:
    domain = space.Float(1, 4)
    assert domain.loguniform() == space.loguniform(1, 4)
    assert domain.quantized(0.5) == space.quniform(1, 4, 0.5)
    assert space.Float(None, None).normal(1, 2).quantized(1) == space.qrandn(1, 2, 1)
    assert space.Integer(1, 9).uniform() == space.randint(1, 9)
    assert space.Integer(1, 9).loguniform().quantized(3) == space.qlograndint(1, 9, 3)
    assert space.Categorical([1, 2]).grid().is_grid()
    assert sample.Categorical is space.Categorical
    with pytest.raises(AttributeError):
        domain.lower = 2  # type: ignore[misc]
    with pytest.raises(ValueError, match="already has the sampler LogUniform"):
        domain.loguniform().uniform()


def test_a_base_is_ignored_with_a_warning_at_the_callers_line() -> None:
    with pytest.warns(DeprecationWarning, match="base=2 is ignored") as caught:
        assert space.loguniform(1, 8, base=2) == space.loguniform(1, 8)
    assert caught[0].filename == __file__
    with pytest.warns(DeprecationWarning, match="base=2 is ignored"):
        space.Float(1, 8).loguniform(base=2)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: untyped.uniform(2, 1), ValueError, r"lower must not be more than upper, but received 2 and 1. Swap"),
        (lambda: untyped.uniform("1", 2), TypeError, r"lower must be a number, but received '1'. Write 1.0 without"),
        (lambda: untyped.uniform("low", 2), TypeError, r"lower must be a number, but received 'low'\.$"),
        (lambda: untyped.uniform(0, math.nan), ValueError, r"upper must be a number, but received nan"),
        (lambda: untyped.uniform(0, math.inf), ValueError, r"Uniform needs two finite bounds, but received 0 and inf"),
        (lambda: untyped.uniform(0, True), TypeError, r"upper must be a number, but received True"),
        (
            lambda: untyped.loguniform(0, 1),
            ValueError,
            r"must begin above 0, but received lower=0, upper=1. Write the b",
        ),
        (lambda: untyped.loguniform(-4, -1), ValueError, r"such as 1e-4 for -4"),
        (
            lambda: untyped.quniform(0, 1, 0.3),
            ValueError,
            r"upper must be a multiple of q=0.3, but received 1. The near",
        ),
        (lambda: untyped.quniform(0, 1, 0), ValueError, r"q must be more than 0, but received 0"),
        (lambda: untyped.randn(0, 0), ValueError, r"sd must be more than 0 and finite, but received 0"),
        (lambda: untyped.randn(math.inf), ValueError, r"mean must be a finite number, but received inf"),
        (lambda: untyped.Float(0, 1).normal(), ValueError, r"have no bounds, but received 0 and 1. Write randn"),
        (
            lambda: untyped.randint(3, 3),
            ValueError,
            r"which is itself excluded, but received 3 and 3. For the one value 3 writ",
        ),
        (
            lambda: untyped.randint(0.5, 3),
            TypeError,
            r"lower must be an integer, but received 0.5. For floats write",
        ),
        (lambda: untyped.randint(4, 3), ValueError, r"lower must be less than upper, but received 4 and 3. Swap"),
        (lambda: untyped.randint(0, 2**70), ValueError, r"upper must fit in 64 bits"),
        (lambda: untyped.qrandint(1, 9, 2.5), TypeError, r"q must be an integer, but received 2.5"),
        (lambda: untyped.lograndint(0, 3), ValueError, r"must begin above 0, but received lower=0"),
        (lambda: untyped.choice([]), ValueError, r"choice takes at least one value, but received \[\]"),
        (
            lambda: untyped.choice("adam"),
            TypeError,
            r"choice takes a list of values, but received 'adam'. For o",
        ),
        (lambda: untyped.choice(3), TypeError, r"write choice\(\[3\]\)"),
        (lambda: untyped.choice({1, 2}), TypeError, r"whose order differs from run to run. Write choice\(sorted"),
        (lambda: untyped.grid_search([]), ValueError, r"grid_search takes at least one value"),
        (lambda: untyped.choice({"a": 1}), TypeError, r"takes a list of values, but received \{'a': 1\}"),
        (lambda: untyped.grid_search(3), TypeError, r"write grid_search\(\[3\]\)"),
        (lambda: untyped.sample_from(3), TypeError, r"sample_from takes a function, but received 3"),
        (lambda: untyped.sample_from(lambda a, b: a), ValueError, r"must take the configuration, or nothing"),
        (lambda: untyped.uniform(0, 1).sample(size=0), ValueError, r"size must be 1 or more, but received 0"),
        (lambda: untyped.Categorical([1]).grid().sample(), ValueError, r"in turn, and cannot draw one of them"),
    ],
)
def test_domains_that_cannot_be_are_refused(make: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        make()


def test_what_is_valid() -> None:
    assert not space.randint(1, 3).is_valid(3)
    assert space.qrandint(2, 4, 2).is_valid(4)
    assert not space.uniform(0, 1).is_valid("0.5")
    assert not space.choice([1, 0]).is_valid(True)
    assert space.choice([np.arange(3), "a"]).is_valid("a")
    assert space.randn().is_valid(1e9)


# --- variants ---------------------------------------------------------------------------------------------------------


def build_all(given: dict[str, Any], num_samples: int = 1, seed: int = 1, **options: Any) -> list[dict[str, Any]]:
    made = variants.Variants(given, num_samples, seed, **options)
    return [made.build(number)[0] for number in range(made.count() or 0)]


NESTED: dict[str, Any] = {
    "b": space.grid_search([1, 2, 3]),
    "a": {"deep": [space.grid_search(["x", "y"]), 5]},
    "lr": space.loguniform(1e-4, 1),
    "double": space.sample_from(lambda config: 2 * config["lr"]),
}


def test_grids_come_in_rays_order() -> None:
    given = {"b": space.grid_search([1, 2, 3]), "a": {"deep": space.grid_search(["x", "y"])}}
    found = [(config["a"]["deep"], config["b"]) for config in build_all(given, 2)]
    assert found == [("x", 1), ("y", 1), ("x", 2), ("y", 2), ("x", 3), ("y", 3)] * 2


@pytest.mark.parametrize(
    "given",
    [
        {"b": space.grid_search([1, 2]), "a": space.grid_search([3, 4, 5]), "c": 7},
        {"b": space.grid_search([{"x": space.grid_search([1, 2])}, 3]), "a": space.grid_search([4, 5])},
        {"b": space.grid_search([{"x": space.grid_search([1, 2])}, {"y": space.grid_search([6, 7, 8])}]), "a": 1},
        {"l": [space.grid_search([1, 2]), {"k": space.grid_search([3, 4])}], "t": (1, space.grid_search([5, 6]))},
    ],
)
def test_grids_are_those_of_ray(given: dict[str, Any]) -> None:
    pytest.importorskip("ray", reason="the extra ray is not installed")
    theirs = pytest.importorskip("ray.tune.search.variant_generator", reason="Ray's extra tune is not installed")
    expected = [spec["config"] for _, spec in theirs.generate_variants({"config": given})]
    assert build_all(given) == expected


def test_a_configuration_depends_on_seed_and_number_alone() -> None:
    everything = build_all(NESTED, 20)
    assert len(everything) == 120
    assert len({config["lr"] for config in everything}) == 120
    fresh = variants.Variants(NESTED, 20, 1)
    for number in (119, 3, 60):
        assert fresh.build(number)[0] == everything[number]
    endless = {key: value for key, value in NESTED.items() if key in ("lr", "double")}
    assert variants.Variants(endless, -1, 1).count() is None
    assert variants.Variants(endless, -1, 1).build(10**9)[0] == variants.Variants(endless, 10**9 + 1, 1).build(10**9)[0]
    assert variants.Variants(NESTED, 20, 2).build(0)[0] != everything[0]


def test_constants_of_any_type_are_left_alone() -> None:
    array, function, made = np.arange(3), len, {1, 2}
    given = {"array": array, "function": function, "set": made, "none": None, "list": [1, {"x": space.uniform(0, 1)}]}
    config = build_all(given)[0]
    assert config["array"] is array
    assert config["function"] is function
    assert config["set"] is made
    assert 0 <= config["list"][1]["x"] <= 1
    assert isinstance(given["list"][1]["x"], space.Float)  # type: ignore[index]


def test_with_a_constant_grid_search_a_sample_has_the_same_draws() -> None:
    given = {**NESTED, "sum": space.sample_from(lambda config: config["b"] + config["lr"])}
    found = build_all(given, 2, constant_grid_search=True)
    assert [config["lr"] for config in found] == [found[0]["lr"]] * 6 + [found[6]["lr"]] * 6
    assert found[0]["lr"] != found[6]["lr"]
    assert all(config["sum"] == config["b"] + config["lr"] for config in found)
    assert len({config["lr"] for config in build_all(given, 1)}) == 6


def test_domains_inside_a_chosen_value_are_drawn() -> None:
    given = {
        "optimizer": space.choice(
            [{"name": "adam"}, {"name": "sgd", "momentum": space.choice([0, {"m": space.randint(1, 5)}])}]
        )
    }
    found = build_all(given, 60)
    assert {config["optimizer"]["name"] for config in found} == {"adam", "sgd"}
    momenta = [config["optimizer"]["momentum"] for config in found if config["optimizer"]["name"] == "sgd"]
    assert 0 in momenta
    assert any(isinstance(momentum, dict) and 1 <= momentum["m"] < 5 for momentum in momenta)


def test_functions_see_what_was_drawn_whatever_the_order() -> None:
    given = {
        "a": space.sample_from(lambda spec: spec.config.b + 1),
        "b": space.sample_from(lambda spec: spec["config"]["c"]["d"] * 2),
        "c": {"d": space.sample_from(lambda config: config["x"])},
        "e": space.sample_from(lambda config: {**config["c"]}["d"] + config.get("missing", 1)),
        "list": [space.randint(3, 4), space.sample_from(lambda config: config["list"][0] + sum(config["pair"]))],
        "pair": [space.sample_from(lambda: 5), space.sample_from(lambda spec: spec.x)],
        "grid": space.grid_search([7]),
        "f": space.sample_from(lambda spec: spec.config.grid),
        "x": space.randint(3, 4),
        "returned": space.sample_from(lambda _: {"z": space.randint(8, 9)}),
        "after": space.sample_from(lambda config: config["returned"]["z"]),
    }
    found = build_all(given)[0]
    assert found == {
        "a": 7, "b": 6, "c": {"d": 3}, "e": 4, "list": [3, 11], "pair": [5, 3], "grid": 7, "f": 7, "x": 3,
        "returned": {"z": 8}, "after": 8,
    }  # fmt: skip


def test_global_random_numbers_in_functions_are_the_searches() -> None:
    given = {"x": space.sample_from(lambda: (random.random(), np.random.uniform())), "y": space.uniform(0, 1)}  # noqa: NPY002
    random.seed(5)
    before = random.getstate()
    first = build_all(given, 3)
    assert random.getstate() == before
    random.seed(9)
    assert build_all(given, 3) == first
    assert len({config["x"] for config in first}) == 3


def test_functions_that_fail_or_wait_for_each_other_are_named() -> None:
    cycle = {"a": space.sample_from(lambda c: c["b"]), "b": space.sample_from(lambda c: c["a"]), "x": 1}
    with pytest.raises(errors.TuneError, match="depend on each other: 'a' needs 'b' needs 'a'"):
        build_all(cycle)
    with pytest.raises(errors.TuneError, match=r"for 'n/a' failed with KeyError: 'lr'.*has the keys \['n'\]"):
        build_all({"n": {"a": space.sample_from(lambda c: c["lr"])}})
    with pytest.raises(errors.TuneError, match="for 'a' returned a grid"):
        build_all({"a": space.sample_from(lambda: space.grid_search([1]))})

    def endless() -> dict[str, Any]:
        return {"x": space.sample_from(endless)}

    with pytest.raises(errors.TuneError, match="at most 20 deep"):
        build_all({"a": space.sample_from(endless)})


def refuse_ray() -> dict[str, Any]:
    theirs = pytest.importorskip("ray.tune.search.sample", reason="the extra ray is not installed")
    return {"x": theirs.uniform(0, 1)}


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        (lambda: {"x": {"grid_search": 3}}, TypeError, r"write grid_search\(\[3\]\)"),
        (lambda: {"x": {"grid_search": []}}, ValueError, "grid_search takes at least one value"),
        (lambda: {"x": {"grid_search": [1], "y": 2}}, ValueError, r"'x' has the keys \['grid_search', 'y'\]"),
        (lambda: {"x": [space.uniform]}, TypeError, r"'x/0' is uniform itself, which draws nothing. Call it"),
        (lambda: {"x": space.Float}, TypeError, r"'x' is Float itself"),
        (lambda: {"x": space.choice([space.grid_search([1])])}, ValueError, "'x' is a choice that has the grid"),
        (lambda: {"x": {"eval": "spec.config.y"}}, ValueError, r"Write sample_from\(lambda spec: spec.config.y\)"),
        (lambda: 3, TypeError, "param_space must be a dict, but received 3"),
        (refuse_ray, TypeError, "'x' is one of Ray's domains"),
    ],
)
def test_spaces_that_cannot_be_are_refused_when_made(given: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        variants.Variants(given(), 1, 0)


def test_numbers_that_cannot_be_are_refused() -> None:
    with pytest.raises(errors.TuneError, match="the space has the grid 'b', which would be repeated forever"):
        variants.Variants({"b": space.grid_search([1])}, -1, 0)
    with pytest.raises(ValueError, match="num_samples must be 1 or more, or -1 for no end, but received 0"):
        variants.Variants({}, 0, 0)
    with pytest.raises(ValueError, match="seed must be 0 or more, but received -1"):
        variants.Variants({}, 1, -1)
    with pytest.raises(IndexError, match="There are 2 configurations, numbered from 0, but received number 2"):
        variants.Variants({}, 2, 0).build(2)
    with pytest.raises(ValueError, match=r"has 'n/z', but the space has the keys \['x'\] there"):
        variants.Variants({"n": {"x": 1}}, 2, 0, points_to_evaluate=[{"n": {"z": 1}}])


def test_tags_name_what_was_drawn() -> None:
    given = {
        "lr": space.uniform(0.1, 0.1),
        "model": {"layers": space.grid_search([2])},
        "o": space.choice([{"m": space.choice(["a b/c"])}]),
        "epochs": 10,
    }
    config, values = variants.Variants(given, 1, 0).build(0)
    assert variants.format_tag(values) == "lr=0.1000,layers=2,m=a_b_c"
    assert variants.format_tag(variants.find_values(given, config)) == "lr=0.1000,layers=2,o=m_a_b_c"
