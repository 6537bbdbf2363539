"""What a wrong call shows: the user's own lines and the message, and no frame of this package."""

from __future__ import annotations

import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

import hocket
from hocket import data, ps, train, tune
from hocket._base import texts

PACKAGE = str(Path(hocket.__file__).parent)


def fail(config: dict[str, object]) -> None:
    raise ValueError("boom")


def search(folder: Path) -> tune.Tuner:
    settings = tune.RunConfig(storage_path=str(folder), verbose=0, failure_config=tune.FailureConfig(fail_fast="raise"))
    return tune.Tuner(fail, run_config=settings)


WRONG: dict[str, Callable[[Path], object]] = {
    "a configuration's value": lambda _: train.ScalingConfig(num_workers="a"),  # type: ignore[arg-type]
    "a configuration's name": lambda _: train.RunConfig(nme="a"),  # type: ignore[call-arg]
    "a search's configuration": lambda _: tune.TuneConfig(mode="x"),
    "a trainer's function": lambda _: train.DataParallelTrainer(3),  # type: ignore[arg-type]
    "a trainer's second value": lambda _: train.DataParallelTrainer(fail, train.ScalingConfig()),  # type: ignore[call-arg, arg-type]
    "a trainable": lambda _: tune.Tuner(3),
    "a scheduler": lambda _: tune.schedulers.ASHAScheduler(max_t=-1),
    "a space": lambda _: tune.uniform(1, "x"),  # type: ignore[arg-type]
    "a trial's error": lambda folder: search(folder).fit(),
    "a file that is not there": lambda folder: data.read_parquet(str(folder / "none")),
    "a pattern that nothing fits": lambda folder: data.read_csv(str(folder / "*.csv")),
    "a reader's keyword": lambda folder: data.read_images(str(folder), sise=1),
    "a file that is broken": lambda _: data.read_parquet(__file__),
    "a place where nobody may write": lambda _: data.range(1).write_csv("/proc/none"),
    "a range": lambda _: data.range("x"),  # type: ignore[arg-type]
    "a column": lambda _: data.range(3).select_columns(["x"]).take(1),
    "a column to sort by": lambda _: data.range(3).sort("x").take(1),
    "an optimizer": lambda _: ps.SGD(lr="x"),  # type: ignore[arg-type]
}


@pytest.mark.usefixtures("session")
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_call_shows_the_users_lines_alone(name: str, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"\w") as caught:  # each kind has its own; other tests look at them
        WRONG[name](tmp_path)
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert [frame for frame in frames if frame.filename.startswith(PACKAGE) or frame.filename == "<string>"] == []


def test_our_own_mistakes_keep_their_frames() -> None:
    def fail_by_mistake() -> None:
        texts.cut(None, 3)  # type: ignore[arg-type]  # `len` raises in there

    with pytest.raises(TypeError, match="NoneType") as caught:
        fail_by_mistake()
    assert not texts.is_raised_by_us(caught.value)
    with pytest.raises(ValueError, match="boom") as raised:
        fail({})
    assert not texts.is_raised_by_us(raised.value)


def test_all_frames_can_be_had() -> None:
    program = "from hocket import train; train.ScalingConfig(num_workers='a')"
    environment = {"HOCKET_FULL_TRACEBACKS": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert PACKAGE in done.stderr
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert PACKAGE not in done.stderr
    assert "TypeError: num_workers must be an int" in done.stderr
