"""Spans of OpenTelemetry, by its own library."""

from __future__ import annotations

import os
import threading
import time

import pytest

import hocket
from hocket import exceptions
from hocket.observe import telemetry

pytest.importorskip("opentelemetry.sdk", reason="comes with Ray")
from opentelemetry.sdk import trace
from opentelemetry.sdk.trace import export
from opentelemetry.sdk.trace.export import in_memory_span_exporter

pytestmark = pytest.mark.about_local("events that processes of one machine share")


@hocket.remote(max_retries=0)
def work(*, fails: bool = False) -> None:
    time.sleep(0.01)
    if fails:
        raise ValueError("no")


@pytest.fixture
def memory() -> in_memory_span_exporter.InMemorySpanExporter:
    return in_memory_span_exporter.InMemorySpanExporter()


@pytest.fixture
def provider(memory: in_memory_span_exporter.InMemorySpanExporter) -> trace.TracerProvider:
    made = trace.TracerProvider()
    made.add_span_processor(export.SimpleSpanProcessor(memory))
    return made


def test_each_run_is_a_span(
    memory: in_memory_span_exporter.InMemorySpanExporter, provider: trace.TracerProvider
) -> None:
    with hocket.init(num_cpus=2), telemetry.SpanExporter(provider) as exporter:
        begun = time.time_ns()
        hocket.wait([work.remote() for _ in range(5)] + [work.remote(fails=True)], num_returns=6)
        ended = time.time_ns()
    spans = [span for span in memory.get_finished_spans() if span.name == "work"]
    assert len(spans) == 6
    assert exporter.missed == 0
    assert sorted(span.status.is_ok for span in spans) == [False, True, True, True, True, True]
    for span in spans:
        assert span.start_time is not None
        assert span.end_time is not None
        assert span.attributes is not None
        assert begun - 1e6 < span.start_time < span.end_time < ended + 1e6
        assert span.end_time - span.start_time > 9e6
        assert span.attributes["hocket.kind"] == "task"
        assert span.attributes["process.pid"] != os.getpid()
    assert not [thread for thread in threading.enumerate() if thread.name == "hocket-telemetry"]


class Odd(trace.SpanProcessor):
    """Raises for the first span, and waits at the second one if that is wanted."""

    def __init__(self, *, waits: bool = False) -> None:
        self.waits = waits
        self.count = 0
        self.ending = threading.Event()

    def on_end(self, span: trace.ReadableSpan) -> None:
        self.count += 1
        if self.waits:
            self.ending.wait()
        elif self.count == 1:
            raise RuntimeError("full")


def export_five(provider: trace.TracerProvider) -> telemetry.SpanExporter:
    with hocket.init(num_cpus=1), telemetry.SpanExporter(provider) as exporter:
        hocket.get([work.remote() for _ in range(5)])
    return exporter


def test_a_processor_that_raises_is_counted() -> None:
    provider, odd = trace.TracerProvider(), Odd()
    provider.add_span_processor(odd)
    with pytest.warns(UserWarning, match="has raised RuntimeError: full"):
        assert export_five(provider).refused == 1
    assert odd.count >= 5


def test_a_processor_that_does_not_return_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "CLOSE_SECONDS", 0.5)
    provider, odd = trace.TracerProvider(), Odd(waits=True)
    provider.add_span_processor(odd)
    with hocket.init(num_cpus=1):
        exporter = telemetry.SpanExporter(provider)
        exporter.start()
        hocket.get(work.remote())
        with pytest.warns(UserWarning, match="has not returned"):
            exporter.close()
        odd.ending.set()
        exporter.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "hocket-telemetry"]


def test_where_there_is_nothing_to_read(provider: trace.TracerProvider) -> None:
    with pytest.raises(exceptions.SessionClosedError):
        telemetry.SpanExporter(provider).start()
    with (
        hocket.init(num_cpus=1, engine="inprocess"),
        pytest.raises(LookupError, match="in the driver of a session on the local engine"),
    ):
        telemetry.SpanExporter(provider).start()
    telemetry.SpanExporter(provider).close()


def test_a_second_start(provider: trace.TracerProvider) -> None:
    with (
        hocket.init(num_cpus=1),
        telemetry.SpanExporter(provider) as exporter,
        pytest.raises(RuntimeError, match="Make another one"),
    ):
        exporter.start()
