"""A session's work as OpenTelemetry spans, by OpenTelemetry's own library.

It needs ``pip install 'hocket[telemetry]'``, and an exporter for the spans.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import warnings
from typing import Final, Self, final

from hocket import extras
from hocket._base import texts
from hocket.core import session
from hocket.engine.events import layout, reader
from hocket.engine.local import driver
from hocket.observe import sessions

_trace: Final = extras.load(
    "opentelemetry.trace", "hocket.observe.telemetry", "OpenTelemetry", "Run pip install 'hocket[telemetry]'."
)

LOOK_SECONDS = 1.0
"""Seconds between two reads of the events. Each process keeps the last 32,768."""

MEET_SECONDS = 0.05
"""Seconds between two attempts to open the events, which do not exist before the first task."""

CLOSE_SECONDS = 10.0
"""Seconds that `SpanExporter.close` waits for a span processor."""


@final
class SpanExporter:
    """An exporter that makes spans of tasks, actor calls, constructors, waits in `get` and large values in `put`.

    Once a second, a thread of the driver reads the events that each process writes anyway; tasks do not wait for it. A
    span has the times of the run, its process, and an error status if the run failed. Consecutive runs under 0.1 ms may
    share a span, which has their number.

    Use it as a context manager in the driver, or call `start` and `close`.

    Args:
        provider: A `TracerProvider`. Default: OpenTelemetry's global one.

    Example:
        >>> import hocket
        >>> from hocket.observe import telemetry
        >>> from opentelemetry.sdk import trace
        >>> from opentelemetry.sdk.trace import export
        >>> from opentelemetry.sdk.trace.export import in_memory_span_exporter
        >>> memory = in_memory_span_exporter.InMemorySpanExporter()
        >>> provider = trace.TracerProvider()
        >>> provider.add_span_processor(export.SimpleSpanProcessor(memory))
        >>> with hocket.init(num_cpus=1), telemetry.SpanExporter(provider):
        ...     hocket.get(hocket.remote(abs).remote(-1))
        1
        >>> "abs" in [span.name for span in memory.get_finished_spans()]
        True
    """

    def __init__(self, provider: object = None) -> None:
        self._tracer = _trace.get_tracer("hocket", tracer_provider=provider)
        self._opened: sessions.SessionEvents | None = None
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._offset = 0
        self.missed = 0
        """The number of events that were overwritten before they could be read."""
        self.refused = 0
        """The number of events for which a span processor raised an error."""

    def start(self) -> None:
        """Begin to read, from the earliest event that is left.

        Raises:
            SessionClosedError: No session is open.
            LookupError: The session writes no events: its engine is the in-process one, or Ray's.
            RuntimeError: The exporter has begun before.
        """
        if self._thread is not None:
            raise RuntimeError("This exporter was started before. Make another one for another session.")
        if not isinstance(session.get_open_engine(), driver.DriverEngine):
            raise LookupError(
                "This session writes no events that can be read from here: use SpanExporter in the driver of a session "
                "on the local engine."
            )
        self._offset = time.time_ns() - time.perf_counter_ns()
        self._thread = threading.Thread(target=self._run, name="hocket-telemetry", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Read the remaining events, and stop. Leave the provider, which is the program's, open.

        If a span processor does not return within `CLOSE_SECONDS`, warn and stop waiting.
        """
        if self._thread is None:
            return
        self._ending.set()
        self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive():
            warnings.warn(
                f"A span processor of OpenTelemetry has not returned for {CLOSE_SECONDS:.0f} s. Spans that are not "
                "exported yet are no longer waited for.",
                stacklevel=2,
            )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._ending.wait(LOOK_SECONDS if self._opened is not None else MEET_SECONDS)
            if self._opened is None:
                with contextlib.suppress(LookupError):  # there is nothing to read before the first task
                    self._opened = sessions.SessionEvents(os.getpid())
            if self._opened is not None:
                for batch in self._opened.reader.read():
                    self._take(batch)
        if self._opened is not None:
            self._opened.close()

    def _take(self, batch: reader.Batch) -> None:
        self.missed += batch.missed
        for event in batch:
            try:
                self._export(event, batch)
            except Exception as error:  # noqa: BLE001 (the span processor is the program's)
                self.refused += 1
                if self.refused == 1:
                    warnings.warn(
                        f"A span processor of OpenTelemetry has raised {texts.describe(error, 500)}. Other spans are "
                        "still exported, and SpanExporter.refused counts the failures.",
                        stacklevel=2,
                    )

    def _export(self, event: reader.Event, batch: reader.Batch) -> None:
        attributes: dict[str, str | int] = {
            "hocket.kind": event.kind.name.lower(),
            "hocket.worker": batch.worker_id,
            "process.pid": batch.pid,
        }
        if event.runs > 1:
            attributes["hocket.runs"] = event.runs
        if event.attempt:
            attributes["hocket.attempt"] = event.attempt
        began = self._offset + int(event.started * 1e9)
        span = self._tracer.start_span(event.name, start_time=began, attributes=attributes)
        if event.state is layout.State.FAILED:
            span.set_status(_trace.Status(_trace.StatusCode.ERROR))
        span.end(end_time=began + int(event.seconds * 1e9))
