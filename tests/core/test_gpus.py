"""GPUs as the scheduler sees them: their names, parts of them, and the processes that may use them. None is touched."""

from __future__ import annotations

import os
from typing import Any

import pytest

import hocket
from hocket.util import placement_group, scheduling_strategies

pytestmark = [
    pytest.mark.about_local("the environment variable that its workers get"),
    pytest.mark.usefixtures("_no_real_gpus"),
]


@pytest.fixture
def _no_real_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def describe() -> tuple[int, str | None, list[Any]]:
    """Return the process, what CUDA would read there, and what the session says."""
    return os.getpid(), os.environ.get("CUDA_VISIBLE_DEVICES"), list(hocket.get_gpu_ids())


look = hocket.remote(describe)


@pytest.mark.parametrize("names", [["2", "3"], ["GPU-8932f937", "GPU-1f0ca2b6"]])
def test_tasks_get_the_gpus_that_the_driver_was_given(names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(names))
    with hocket.init(num_cpus=2):
        assert hocket.cluster_resources()["GPU"] == 2
        _, visible, ids = hocket.get(look.options(num_gpus=2).remote())
        assert (visible, ids) == (",".join(names), names)
        ones = [hocket.get(look.options(num_gpus=1).remote()) for _ in range(2)]
        assert all([visible] == ids and visible in names for _, visible, ids in ones), ones


def test_actors_and_bundles_get_them_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")

    class Holder:
        def look(self) -> tuple[str | None, list[Any], dict[str, list[str]]]:
            found = hocket.get_runtime_context().get_accelerator_ids()
            return os.environ.get("CUDA_VISIBLE_DEVICES"), list(hocket.get_gpu_ids()), found

    remote_class = hocket.remote(num_gpus=1)(Holder)
    with hocket.init(num_cpus=4):
        first = remote_class.remote()
        group = placement_group([{"CPU": 1, "GPU": 1}])
        assert group.wait(10)
        strategy = scheduling_strategies.PlacementGroupSchedulingStrategy(group)
        second = remote_class.options(num_cpus=1, scheduling_strategy=strategy).remote()
        seen = hocket.get([first.look.remote(), second.look.remote()])
    assert sorted(seen) == [("5", ["5"], {"GPU": ["5"]}), ("7", ["7"], {"GPU": ["7"]})]


@pytest.mark.parametrize(
    ("visible", "count"), [("", 0), ("-1", 0), ("NoDevFiles", 0), ("4", 1), ("4,-1,5", 1), ("0, 1", 2)]
)
def test_they_are_counted_as_cuda_counts_them(visible: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with hocket.init(num_cpus=1):
        assert hocket.cluster_resources().get("GPU", 0) == count


def test_a_session_hands_out_no_gpus_beyond_those_of_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    with pytest.raises(
        ValueError, match=r"num_gpus=3 is more than CUDA_VISIBLE_DEVICES='2,3' leaves to this process: 2"
    ):
        hocket.init(num_cpus=1, num_gpus=3)
    with hocket.init(num_cpus=1, num_gpus=1):
        assert hocket.get(look.options(num_gpus=1).remote())[1:] == ("2", ["2"])


def test_two_halves_share_a_gpu_and_give_it_back() -> None:
    class Half:
        def look(self) -> list[Any]:
            return list(hocket.get_gpu_ids())

    remote_class = hocket.remote(num_gpus=0.5)(Half)
    with hocket.init(num_cpus=4, num_gpus=2):
        halves = [remote_class.remote() for _ in range(2)]
        assert hocket.get([half.look.remote() for half in halves]) == [[0], [0]]
        assert hocket.available_resources()["GPU"] == 1
        assert hocket.get(look.options(num_gpus=1).remote())[2] == [1]
        third = remote_class.remote()
        assert hocket.get(third.look.remote()) == [1]


@pytest.mark.parametrize(
    ("given", "match"),
    [
        (
            {"num_gpus": 1.5},
            r"'num_gpus' must be a whole number, or a fraction below 1, but received 1\.5.* Write 1 or 2",
        ),
        ({"resources": {"TPU": 2.5}}, r"resource 'TPU' must be a whole number, .*received 2\.5"),
        ({"resources": {"neuron_cores": 1.1}}, r"resource 'neuron_cores' must be a whole number"),
        (
            {"num_gpus": 0.00009},
            r"'num_gpus' must be 0, or at least 0\.0001, the smallest part, but received 9e-05",
        ),
        ({"num_cpus": 0.00001}, r"'num_cpus' must be 0, or at least 0\.0001"),
        ({"resources": {"camera": 0.00001}}, r"'camera' must be 0, or at least 0\.0001"),
        ({"num_cpus": float("nan")}, "'num_cpus' must be a finite number, but received nan"),
    ],
)
def test_amounts_that_cannot_be_handed_out_are_refused_at_the_decorator(given: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        hocket.remote(**given)(lambda: None)
    with pytest.raises(ValueError, match=match):
        look.options(**given)
    with pytest.raises(ValueError, match=match):
        hocket.remote(**given)(type("Thing", (), {}))


@pytest.mark.parametrize(
    "given", [{"num_gpus": 2.0}, {"num_cpus": 1.5}, {"num_gpus": 0.0001}, {"resources": {"camera": 1.5}}]
)
def test_amounts_that_can_be_are_taken(given: dict[str, Any]) -> None:
    look.options(**given)


def test_bundles_and_sessions_follow_the_same_rule() -> None:
    with pytest.raises(ValueError, match=r"num_gpus must be a whole number, or a fraction below 1, but received 1\.5"):
        hocket.init(num_gpus=1.5)
    with pytest.raises(ValueError, match=r"TPU must be a whole number, .*received 2\.5"):
        hocket.init(resources={"TPU": 2.5})
    with hocket.init(num_cpus=1, num_gpus=2):
        with pytest.raises(ValueError, match=r"'GPU' of bundle 0 must be a whole number"):
            placement_group([{"GPU": 1.5}])
        with pytest.raises(ValueError, match=r"'CPU' of bundle 1 must be 0 or more, but received -1"):
            placement_group([{"CPU": 1}, {"CPU": -1}])


def test_a_process_that_ran_work_on_the_cpu_never_runs_work_on_a_gpu_or_the_other_way_round() -> None:
    """A CUDA library looks once in the life of its process at which GPUs there are."""
    with hocket.init(num_cpus=1, num_gpus=2):
        on_gpu = hocket.remote(num_gpus=1, max_calls=0)(describe)
        plain, *_ = hocket.get(look.remote())
        first, visible, _ = hocket.get(on_gpu.remote())
        assert visible == "0"
        assert first != plain
        assert hocket.get(look.remote())[0] != first
        both, visible, _ = hocket.get(on_gpu.options(num_gpus=2).remote())
        assert visible == "0,1"
        assert both not in {plain, first}


def test_a_process_goes_on_with_the_gpu_that_it_has() -> None:
    with hocket.init(num_cpus=2, num_gpus=2):
        on_gpu = hocket.remote(num_gpus=1, max_calls=0)(describe)
        seen = [hocket.get(on_gpu.remote()) for _ in range(6)]
        assert len({pid for pid, *_ in seen}) == len({visible for _, visible, _ in seen}) == 1
