"""Numbers that a program counts and measures, and their text in Prometheus' format.

A record is cheap: it changes a number in the process's memory. Workers send new records with their results (see
`kernel.metrics`), so `render_prometheus` in the driver covers all processes. Counters and histograms of several
processes add up. For a gauge the value that arrived last counts, so give it a tag if each process has its own value.

Serving the text is up to the program; Hocket opens no port.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Mapping
from typing import Any, Self, final

from hocket.engine import contract
from hocket.kernel import metrics

_INVALID = re.compile(r"[^a-zA-Z0-9_:]|^(?=[0-9])")
"""Characters that a metric's name may not have in Prometheus."""

_INVALID_LABEL = re.compile(r"[^a-zA-Z0-9_]|^(?=[0-9])")
"""Characters that a label's name may not have in Prometheus."""

_early = metrics.MetricStore()
"""Records from before a session was open; the next session takes them over."""


class Metric:
    """The base class of the three kinds of metrics. It has no instances of its own.

    Args:
        name: The name of the metric. Metrics of the same name and kind are one metric, in all processes.
        description: A description for the reader of the text.
        tag_keys: The tags that each record must have, by default or in the call.

    Raises:
        ValueError: The name is empty.
        TypeError: `name` or `description` is no str, or `tag_keys` no tuple of str.
    """

    _kind = ""
    _boundaries: tuple[float, ...] = ()

    def __init__(self, name: str, description: str = "", tag_keys: tuple[str, ...] | None = None) -> None:
        if not self._kind:
            raise TypeError("Metric cannot be used by itself. Use Counter, Gauge or Histogram.")
        for label, value in (("name", name), ("description", description)):
            if not isinstance(value, str):
                raise TypeError(f"{label} must be a str, but received {value!r}.")
        if not name:
            raise ValueError("Empty name is not allowed. Please provide a metric name.")
        if tag_keys is not None and not isinstance(tag_keys, tuple):
            raise TypeError(f"tag_keys should be a tuple type, got: {type(tag_keys)}. Write ('key',) for one key.")
        for key in tag_keys or ():
            if not isinstance(key, str):
                raise TypeError(f"Tag keys must be str, got {type(key)}: {key!r}.")
        self._name = name
        self._text_name = _build_text_name(name)
        self._description = description
        self._tag_keys = tag_keys or ()
        self._default_tags: dict[str, str] = {}

    def set_default_tags(self, default_tags: Mapping[str, str]) -> Self:
        """Set the values of tags that a record does not name.

        Raises:
            ValueError: A key is not one of `tag_keys`.
            TypeError: A value is no str.
        """
        for key, value in default_tags.items():
            if key not in self._tag_keys:
                raise ValueError(f"Unrecognized tag key {key}. It must be one of tag_keys, which are {self._tag_keys}.")
            _check_tag_value(value)
        self._default_tags = dict(default_tags)
        return self

    @property
    def info(self) -> dict[str, Any]:
        """The arguments of the metric, under Ray's keys."""
        return {
            "name": self._name,
            "description": self._description,
            "tag_keys": self._tag_keys,
            "default_tags": dict(self._default_tags),
        }

    def _record(self, numbers: tuple[float, ...], tags: Mapping[str, str] | None) -> None:
        series = self._build_series(tags) if self._tag_keys else ()
        record = (self._kind, self._text_name, self._description, self._boundaries, series, numbers)
        engine = contract.current_engine
        if engine is None:
            _early.merge((record,))
        else:
            engine.metrics.record((record,))

    def _build_series(self, tags: Mapping[str, str] | None) -> metrics.Tags:
        found = {**self._default_tags, **tags} if tags else self._default_tags
        missing = [key for key in self._tag_keys if key not in found]
        if missing:
            raise ValueError(
                f"Missing value for tag key(s): {','.join(missing)}. Give them as tags={{...}} or with "
                "set_default_tags."
            )
        for key in self._tag_keys:
            _check_tag_value(found[key])
        return tuple([(key, found[key]) for key in sorted(self._tag_keys)])  # the order may differ between processes

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self._list_arguments(), self._default_tags)

    def _list_arguments(self) -> tuple[object, ...]:
        return self._name, self._description, self._tag_keys


@final
class Counter(Metric):
    """A number that only grows.

    Example:
        >>> from hocket.util.metrics import Counter
        >>> requests = Counter("requests", description="how many", tag_keys=("path",))
        >>> requests.inc(tags={"path": "/"})
        >>> requests.inc(0)
        Traceback (most recent call last):
            ...
        ValueError: value must be >0, got 0. Use a Gauge for a number that can also fall.
    """

    _kind = metrics.COUNTER

    def inc(self, value: float = 1.0, tags: Mapping[str, str] | None = None) -> None:
        """Add to the counter.

        Raises:
            ValueError: `value` is not above 0, or a tag is missing.
            TypeError: `value` is no number, or a tag's value no str.
        """
        _check_number(value)
        if value <= 0:
            raise ValueError(f"value must be >0, got {value}. Use a Gauge for a number that can also fall.")
        self._record((float(value),), tags)


@final
class Gauge(Metric):
    """A number that can be set.

    Example:
        >>> from hocket.util.metrics import Gauge
        >>> Gauge("queue_length", tag_keys=("queue",)).set_default_tags({"queue": "mail"}).set(3)
    """

    _kind = metrics.GAUGE

    def set(self, value: float | None, tags: Mapping[str, str] | None = None) -> None:
        """Set the gauge; None leaves it unchanged.

        Raises:
            ValueError: A tag is missing.
            TypeError: `value` is no number, or a tag's value no str.
        """
        if value is None:
            return
        _check_number(value)
        self._record((float(value),), tags)


@final
class Histogram(Metric):
    """A count of values by size.

    Args:
        name: See `Metric`.
        description: See `Metric`.
        boundaries: The upper ends of the buckets, all above 0 and rising. A further bucket takes greater values.
        tag_keys: See `Metric`.

    Raises:
        ValueError: There are no boundaries, or they are not positive and rising.

    Example:
        >>> from hocket.util.metrics import Histogram
        >>> latency = Histogram("latency_seconds", boundaries=[0.1, 1])
        >>> latency.observe(0.25)
    """

    _kind = metrics.HISTOGRAM

    def __init__(
        self,
        name: str,
        description: str = "",
        boundaries: list[float] | None = None,
        tag_keys: tuple[str, ...] | None = None,
    ) -> None:
        super().__init__(name, description, tag_keys)
        if not boundaries:
            raise ValueError(
                "boundaries argument should be provided when using the Histogram class. e.g., "
                'Histogram("name", boundaries=[1.0, 2.0])'
            )
        for index, boundary in enumerate(boundaries):
            if not boundary > 0:
                raise ValueError(
                    f"Invalid `boundaries` argument at index {index}, {boundaries}. Use positive values for the "
                    "arguments."
                )
            if index and not boundary > boundaries[index - 1]:
                raise ValueError(
                    f"Invalid `boundaries` argument at index {index}, {boundaries}. Use values in rising order."
                )
        self._boundaries = tuple(map(float, boundaries))

    def observe(self, value: float, tags: Mapping[str, str] | None = None) -> None:
        """Count a value.

        Raises:
            ValueError: A tag is missing.
            TypeError: `value` is no number, or a tag's value no str.
        """
        _check_number(value)
        self._record(metrics.build_histogram_numbers(self._boundaries, value), tags)

    @property
    def info(self) -> dict[str, Any]:
        """The arguments of the metric, under Ray's keys."""
        return {**super().info, "boundaries": list(self._boundaries)}

    def _list_arguments(self) -> tuple[object, ...]:
        return self._name, self._description, list(self._boundaries), self._tag_keys


def _rebuild(kind: type[Metric], arguments: tuple[Any, ...], default_tags: dict[str, str]) -> Metric:
    return kind(*arguments).set_default_tags(default_tags)


def _check_number(value: object) -> None:
    if not isinstance(value, int | float):
        raise TypeError(f"value must be int or float, got {type(value)}: {value!r}.")


def _check_tag_value(value: object) -> None:
    if not isinstance(value, str):
        raise TypeError(f"Tag values must be str, got {type(value)}: {value!r}. Write str(...) around it.")


def _build_text_name(name: str) -> str:
    text_name = _INVALID.sub("_", name)
    if text_name != name:
        warnings.warn(
            f"{name!r} is not a valid name in Prometheus' format; it is written as {text_name!r}. Use only letters, "
            "digits, _ and :.",
            stacklevel=4,
        )
    return text_name


# --- the text ---------------------------------------------------------------------------------------------------------


def render_prometheus() -> str:
    """Return all records as text in Prometheus' format (version 0.0.4).

    In the driver the text covers the whole session. In a worker it covers only records that the worker has not sent
    yet, which is rarely useful.
    Example:
        >>> import hocket
        >>> from hocket.util.metrics import Counter, render_prometheus
        >>> @hocket.remote
        ... def work():
        ...     Counter("jobs_done", "Jobs that were done.", tag_keys=("kind",)).inc(2, tags={"kind": "small"})
        >>> hocket.get(work.remote())
        >>> for line in render_prometheus().splitlines():
        ...     if "jobs_done" in line:
        ...         print(line)
        # HELP jobs_done Jobs that were done.
        # TYPE jobs_done counter
        jobs_done{kind="small"} 2.0
    """
    lines = []
    for family in list_families():
        if family.description:
            lines.append(f"# HELP {family.name} {_escape(family.description)}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        for tags, numbers in family.series.items():
            if family.kind == metrics.HISTOGRAM:
                lines += _render_histogram(family, tags, numbers)
            else:
                lines.append(f"{family.name}{_render_tags(tags)} {_render_number(numbers[0])}")
    return "".join([f"{line}\n" for line in lines])


def list_families() -> list[metrics.Family]:
    """Return copies of all records, by name."""
    engine = contract.current_engine
    if engine is None:
        return _copy(_early)
    engine.metrics.record(_early.take())
    with engine.metrics.lock:
        return _copy(engine.metrics.collect())


def _copy(store: metrics.MetricStore) -> list[metrics.Family]:
    copied = metrics.MetricStore()
    copied.merge(store.list_records())
    return sorted(copied.families.values(), key=lambda family: family.name)


def build_label(key: str) -> str:
    """Return a tag's key as the name of a Prometheus label."""
    return _INVALID_LABEL.sub("_", key)


def _render_histogram(family: metrics.Family, tags: metrics.Tags, numbers: tuple[float, ...]) -> list[str]:
    lines = []
    count = 0.0
    for boundary, in_bucket in zip((*family.boundaries, float("inf")), numbers[:-1], strict=True):
        count += in_bucket
        lines.append(
            f"{family.name}_bucket{_render_tags((*tags, ('le', _render_number(boundary))))} {_render_number(count)}"
        )
    lines.append(f"{family.name}_sum{_render_tags(tags)} {_render_number(numbers[-1])}")
    lines.append(f"{family.name}_count{_render_tags(tags)} {_render_number(count)}")
    return lines


def _render_tags(tags: metrics.Tags) -> str:
    if not tags:
        return ""
    quoted = [f'{build_label(key)}="{_escape(value, quotes=True)}"' for key, value in tags]
    return f"{{{','.join(quoted)}}}"


def _escape(text: str, *, quotes: bool = False) -> str:
    text = text.encode("utf-8", "backslashreplace").decode().replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quotes else text


def _render_number(value: float) -> str:
    if not math.isfinite(value):
        return {"inf": "+Inf", "-inf": "-Inf"}.get(str(value), "NaN")
    return str(value)
