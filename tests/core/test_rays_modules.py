"""Modules of Ray's core under its names: types of generators, progress bars."""

from __future__ import annotations

import pytest

import hocket
from hocket import _raylet
from hocket.experimental import tqdm_ray


def test_types_of_generators() -> None:
    @hocket.remote
    def count() -> object:
        yield 1

    with hocket.init(num_cpus=1):
        found = count.remote()
        assert isinstance(found, _raylet.ObjectRefGenerator)
        assert isinstance(next(found), _raylet.ObjectRef)
    assert hocket._raylet is _raylet


def test_bars_count_and_write_lines(capsys: pytest.CaptureFixture[str]) -> None:
    bar = tqdm_ray.tqdm([7, 8, 9], desc="Loading", flush_interval_s=0)
    assert list(bar) == [7, 8, 9]
    assert (bar.n, bar.total) == (3, 3)
    bar.set_description("Done")
    bar.close()
    silent: tqdm_ray.tqdm[int] = tqdm_ray.tqdm(desc="never", total=10, flush_interval_s=3600)
    silent.update(4)
    other = tqdm_ray.tqdm((n for n in range(2)), unit="files", flush_interval_s=0)
    assert sum(other) == 1
    tqdm_ray.safe_print("beside")
    out, err = capsys.readouterr()
    lines = [f"Loading: {n}/3 it" for n in (1, 2, 3)]
    assert err.splitlines() == [*lines, "Done: 3/3 it", "1 files", "2 files"]
    assert out == "beside\n"


def test_bars_in_tasks() -> None:
    @hocket.remote
    def go() -> tuple[int, int | None]:
        bar = tqdm_ray.tqdm(range(5), flush_interval_s=3600)
        return sum(bar), bar.total

    with hocket.init(num_cpus=1):
        assert hocket.get(go.remote()) == (10, 5)


def test_a_bar_of_nothing_says_what_to_write() -> None:
    with pytest.raises(ValueError, match=r"nothing to go through. Write tqdm\(values\), or call update\(1\)"):
        next(iter(tqdm_ray.tqdm(total=3)))
