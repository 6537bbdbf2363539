"""What a prompt and a notebook show of what a program holds: something that says what it is."""

from __future__ import annotations

import dataclasses

import pytest

import hocket
from hocket import data, train, tune
from hocket._base import markup


def add(x: int, y: int = 2) -> int:
    return x + y


class Counter:
    def __init__(self, start: int = 0) -> None:
        self.total = start

    def grow(self, amount: int) -> None:
        self.total += amount


def loop() -> None:
    train.report({"loss": 0.5})


def test_functions_and_actors(session):
    assert repr(hocket.remote(add)) == "RemoteFunction(add(x: 'int', y: 'int' = 2) -> 'int')"
    assert repr(hocket.remote(num_cpus=3)(add)).endswith(", num_cpus=3)")
    assert repr(hocket.remote(max)) == "RemoteFunction(max(...))"
    kind = hocket.remote(max_restarts=2)(Counter)
    assert repr(kind) == "ActorClass(Counter, max_restarts=2)"
    assert "grow" in dir(kind)
    counter = kind.remote()
    assert repr(counter).startswith("Actor(Counter, ")
    assert repr(counter.grow) == "ActorMethod(Counter.grow(amount: 'int') -> 'None')"
    assert {"grow"} <= set(dir(counter))


def test_session(session):
    shown = session._repr_html_()
    assert shown.startswith("<b>Hocket session</b>")
    assert f"<td>{hocket.__version__}</td>" in shown


def test_training(tmp_path):
    trainer = train.DataParallelTrainer(
        loop,
        scaling_config=train.ScalingConfig(num_workers=0),
        run_config=train.RunConfig(name="short", storage_path=tmp_path),
    )
    assert repr(trainer) == "DataParallelTrainer(`loop`, num_workers=0, name='short')"
    result = trainer.fit()
    assert repr(result) == f"Result(metrics={{'loss': 0.5}}, reports=1, path='{tmp_path}/short')"
    assert "<tr><th>loss</th><td>0.5</td></tr>" in result._repr_html_()
    assert "return_value" not in result._repr_html_()
    returned = dataclasses.replace(result, return_value=[7])._repr_html_()
    assert "<tr><th>return_value</th><td>[7]</td></tr>" in returned
    assert repr(tune.Tuner(add, param_space={"x": 1})) == "Tuner(add, param_space={'x': 1})"


def test_data_sets_are_shown_without_being_executed():
    def fail(batch):
        raise AssertionError("it was executed")

    rows = data.range(10)
    shown = rows.map_batches(fail)._repr_html_()
    assert "<td>not known before they are read</td>" in shown
    assert "fail)</td>" in shown
    assert "<td>10</td>" in rows._repr_html_()
    assert "<td>x: int64</td>" in data.from_items([{"x": 1}])._repr_html_()


def test_what_a_user_named_is_no_markup():
    class Angry:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    shown = markup.write_facts("a<b", {"<script>": "&", "angry": Angry(), "long": "<" * 1000})
    assert "<script>" not in shown
    assert shown.startswith("<b>a&lt;b</b>")
    assert "&lt;" * (markup.MOST_LETTERS - 3) + "...<" in shown


@pytest.mark.parametrize("rows", [[], [["x", 1]]])
def test_grid(rows):
    assert markup.write_grid(["name", "count"], rows, "below").endswith("</tbody></table><p>below</p>")
