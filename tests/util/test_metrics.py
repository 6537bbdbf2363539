"""Counters, gauges and histograms, and their text."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import numpy as np
import prometheus_client
import pytest
from prometheus_client import parser

import hocket
from hocket.util import metrics, prometheus
from hocket.util.metrics import Counter, Gauge, Histogram, render_prometheus


@pytest.fixture(scope="module")
def has_common_session() -> bool:
    """Not here: what one test counts stands in the next one's page."""
    return False


def list_lines(prefix: str) -> list[str]:
    return [
        line
        for line in render_prometheus().splitlines()
        if line.startswith((prefix, f"# HELP {prefix}", f"# TYPE {prefix}"))
    ]


def test_counter(any_session: hocket.SessionContext) -> None:
    counter = Counter("requests_total", description="Requests so far.", tag_keys=("method", "path"))
    counter.set_default_tags({"method": "GET"})
    counter.inc(tags={"path": "/"})
    counter.inc(2.5, tags={"path": "/"})
    counter.inc(3, tags={"path": "/", "method": "PUT"})
    assert list_lines("requests_total") == [
        "# HELP requests_total Requests so far.",
        "# TYPE requests_total counter",
        'requests_total{method="GET",path="/"} 3.5',
        'requests_total{method="PUT",path="/"} 3.0',
    ]


def test_gauge(any_session: hocket.SessionContext) -> None:
    gauge = Gauge("level")
    for value in (3, -1.5):
        gauge.set(value)
    gauge.set(None)
    assert list_lines("level") == ["# TYPE level gauge", "level -1.5"]
    gauge.set(float("inf"))
    assert list_lines("level")[1] == "level +Inf"
    gauge.set(float("nan"))
    assert list_lines("level")[1] == "level NaN"
    gauge.set(np.float64(2))
    assert list_lines("level")[1] == "level 2.0"


def test_histogram(any_session: hocket.SessionContext) -> None:
    sizes = Histogram("sizes", boundaries=[1, 10], tag_keys=("kind",))
    for value in (0, 1, 2, 10, 11):
        sizes.observe(value, tags={"kind": "a"})
    assert list_lines("sizes") == [
        "# TYPE sizes histogram",
        'sizes_bucket{kind="a",le="1.0"} 2.0',
        'sizes_bucket{kind="a",le="10.0"} 4.0',
        'sizes_bucket{kind="a",le="+Inf"} 5.0',
        'sizes_sum{kind="a"} 24.0',
        'sizes_count{kind="a"} 5.0',
    ]


def test_text_is_escaped(any_session: hocket.SessionContext) -> None:
    counter = Counter("odd", description='a\\b\n"c"', tag_keys=("text",))
    counter.inc(tags={"text": 'quote " backslash \\ newline \n end'})
    assert list_lines("odd") == [
        '# HELP odd a\\\\b\\n"c"',
        "# TYPE odd counter",
        'odd{text="quote \\" backslash \\\\ newline \\n end"} 1.0',
    ]


def test_what_workers_record_is_there_with_their_results(any_session: hocket.SessionContext) -> None:
    @hocket.remote
    def work(x: int) -> None:
        Counter("done", tag_keys=("parity",)).inc(tags={"parity": str(x % 2)})
        Histogram("seen", boundaries=[5]).observe(x)
        Gauge("latest", tag_keys=("x",)).set(x, tags={"x": str(x)})

    Counter("done", tag_keys=("parity",)).inc(100, tags={"parity": "0"})
    hocket.get([work.remote(x) for x in range(10)])
    assert sorted(list_lines("done")) == ["# TYPE done counter", 'done{parity="0"} 105.0', 'done{parity="1"} 5.0']
    assert 'seen_bucket{le="5.0"} 6.0' in list_lines("seen")
    assert "seen_sum 45.0" in list_lines("seen")
    assert 'latest{x="7"} 7.0' in list_lines("latest")


def test_what_actors_record(any_session: hocket.SessionContext) -> None:
    class PlainWorker:
        def __init__(self) -> None:
            self.counter = Counter("calls")

        def work(self) -> None:
            self.counter.inc()

    Worker: Any = hocket.remote(PlainWorker)  # noqa: N806 (a class)
    workers = [Worker.remote(), Worker.remote()]
    for count in (1, 2):
        hocket.get([worker.work.remote() for worker in workers])
        assert list_lines("calls")[1] == f"calls {2 * count}.0"


def test_what_coroutines_and_threads_of_actors_record(session: hocket.SessionContext) -> None:
    class PlainAsync:
        async def work(self) -> None:
            Counter("coroutines").inc()

    class PlainThreads:
        def work(self) -> None:
            Counter("threads_of_actor").inc()

    workers: list[Any] = [hocket.remote(PlainAsync).remote(), hocket.remote(max_concurrency=4)(PlainThreads).remote()]
    hocket.get([worker.work.remote() for worker in workers for _ in range(50)])
    assert list_lines("coroutines")[1] == "coroutines 50.0"
    assert list_lines("threads_of_actor")[1] == "threads_of_actor 50.0"


@pytest.mark.needs("parallelism")
def test_a_running_task_tells_now_and_then(session: hocket.SessionContext) -> None:
    @hocket.remote
    def work() -> None:
        counter = Counter("steps")
        while not list_lines("stop"):  # only in this process, and never
            counter.inc()

    ref = work.remote()
    while not list_lines("steps"):
        hocket.wait([ref], timeout=0.01)
    hocket.cancel(ref)


def test_a_metric_can_be_sent(any_session: hocket.SessionContext) -> None:
    counter = Counter("sent", tag_keys=("k",)).set_default_tags({"k": "v"})

    def use() -> None:
        counter.inc()

    hocket.get(hocket.remote(use).remote())
    assert list_lines("sent")[1] == 'sent{k="v"} 1.0'
    for metric in (counter, Gauge("g", "text"), Histogram("h", "text", [1, 2], ("a",))):
        assert pickle.loads(pickle.dumps(metric)).info == metric.info


def test_what_is_recorded_before_the_session_is_not_lost() -> None:
    counter = Counter("early")
    counter.inc()
    assert "early 1.0" in list_lines("early")
    with hocket.init(num_cpus=1, engine="inprocess"):
        counter.inc()
        assert "early 2.0" in list_lines("early")
    assert list_lines("early") == []


def test_threads_lose_nothing(any_session: hocket.SessionContext) -> None:
    counter = Counter("threads")

    def count() -> None:
        for _ in range(1000):
            counter.inc()

    threads = [threading.Thread(target=count) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list_lines("threads")[1] == "threads 8000.0"


def test_names_that_prometheus_does_not_take(any_session: hocket.SessionContext) -> None:
    with pytest.warns(
        UserWarning, match="'my.metric 1' is not a valid name in Prometheus' format; it is written as 'my_metric_1'"
    ):
        Counter("my.metric 1").inc()
    with pytest.warns(UserWarning, match="it is written as '_1st'"):
        Counter("1st").inc()
    assert list_lines("my_metric_1")[1] == "my_metric_1 1.0"


def test_info() -> None:
    assert Counter("c", "text", ("a",)).set_default_tags({"a": "1"}).info == {
        "name": "c",
        "description": "text",
        "tag_keys": ("a",),
        "default_tags": {"a": "1"},
    }
    assert Histogram("h", boundaries=[1, 2]).info["boundaries"] == [1, 2]


@pytest.mark.parametrize("kind", [Counter, Gauge])
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"name": ""}, ValueError, "Empty name is not allowed. Please provide a metric name"),
        ({"name": 3}, TypeError, "name must be a str, but received 3"),
        ({"name": "a", "description": 3}, TypeError, "description must be a str, but received 3"),
        ({"name": "a", "tag_keys": ["x"]}, TypeError, "tag_keys should be a tuple type, got: <class 'list'>"),
        ({"name": "a", "tag_keys": "x"}, TypeError, "tag_keys should be a tuple type, got: <class 'str'>"),
        ({"name": "a", "tag_keys": (3,)}, TypeError, "Tag keys must be str, got <class 'int'>"),
    ],
)
def test_bad_arguments(kind: Any, arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        kind(**arguments)


def test_bad_records() -> None:
    counter = Counter("c", tag_keys=("x", "y"))
    tags = {"x": "1", "y": "2"}
    for value in (0, -1):
        with pytest.raises(ValueError, match=f"value must be >0, got {value}"):
            counter.inc(value, tags=tags)
    for record in (counter.inc, Gauge("g").set, Histogram("h", boundaries=[1]).observe):
        with pytest.raises(TypeError, match="value must be int or float, got <class 'str'>"):
            record("3")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"Missing value for tag key\(s\): x,y"):
        counter.inc()
    with pytest.raises(ValueError, match=r"Missing value for tag key\(s\): y"):
        counter.inc(tags={"x": "1"})
    with pytest.raises(TypeError, match="Tag values must be str, got <class 'int'>: 2"):
        counter.inc(tags={"x": "1", "y": 2})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match=r"Unrecognized tag key z. It must be one of .*\('x', 'y'\)"):
        counter.set_default_tags({"z": "1"})
    with pytest.raises(TypeError, match="Tag values must be str, got <class 'int'>: 1"):
        counter.set_default_tags({"x": 1})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("boundaries", "message"),
    [
        (None, "boundaries argument should be provided"),
        ([], "boundaries argument should be provided"),
        ([0, 1], r"argument at index 0, \[0, 1\]. Use positive values"),
        ([1, 1], r"argument at index 1, \[1, 1\]. Use values in rising order"),
        ([3, 1], r"argument at index 1, \[3, 1\]. Use values in rising order"),
    ],
)
def test_bad_boundaries(boundaries: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Histogram("h", boundaries=boundaries)


def test_the_base_class_is_no_metric() -> None:
    with pytest.raises(TypeError, match="Use Counter, Gauge or Histogram"):
        metrics.Metric("m")


@pytest.mark.parametrize("key", ["a:b", "a-b", "1a", "ä", "a b", "a.b"])
def test_prometheus_own_parser_reads_the_text(any_session: hocket.SessionContext, key: str) -> None:
    odd = 'quoted " and \\ and \n'
    Counter("odd_keys_total", tag_keys=(key,)).inc(2, tags={key: odd})
    Histogram("odd_sizes", boundaries=[1], tag_keys=(key,)).observe(3, tags={key: odd})
    families = {family.name: family for family in parser.text_string_to_metric_families(render_prometheus())}
    (sample,) = families["odd_keys"].samples
    assert (sample.value, list(sample.labels.values())) == (2, [odd])
    assert {sample.name for sample in families["odd_sizes"].samples} == {
        "odd_sizes_bucket",
        "odd_sizes_sum",
        "odd_sizes_count",
    }


def test_collector_has_what_tasks_recorded(any_session: hocket.SessionContext) -> None:
    @hocket.remote
    def work(size: int) -> None:
        Counter("things", tag_keys=("kind",)).inc(tags={"kind": "a"})
        Gauge("level_of").set(size)
        Histogram("sizes_of", boundaries=[1, 10]).observe(size)

    registry = prometheus_client.CollectorRegistry()
    registry.register(prometheus.Collector())
    for size in (1, 5, 50):
        hocket.get(work.remote(size))
    read = registry.get_sample_value
    assert read("things_total", {"kind": "a"}) == 3
    assert read("level_of") == 50
    assert [read("sizes_of_bucket", {"le": le}) for le in ("1.0", "10.0", "+Inf")] == [1, 2, 3]
    assert (read("sizes_of_sum"), read("sizes_of_count")) == (56, 3)
    text = prometheus_client.generate_latest(registry).decode()
    assert {family.name for family in parser.text_string_to_metric_families(text)} == {"things", "level_of", "sizes_of"}


def test_keys_of_a_metric_in_another_order_are_the_same() -> None:
    with hocket.init(num_cpus=1, engine="inprocess"):
        Counter("ordered", tag_keys=("b", "a")).inc(tags={"a": "1", "b": "2"})
        Counter("ordered", tag_keys=("a", "b")).inc(tags={"a": "1", "b": "2"})
        assert list_lines("ordered") == ["# TYPE ordered counter", 'ordered{a="1",b="2"} 2.0']
