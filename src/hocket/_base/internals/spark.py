"""Undocumented names of PySpark: the context in Java."""

from __future__ import annotations

from typing import Any


def count_slots(spark_context: Any) -> int:
    """Return how many tasks Spark can currently run at once."""
    inner = spark_context._jsc.sc()
    return int(inner.maxNumConcurrentTasks(inner.resourceProfileManager().defaultResourceProfile()))


def is_running(spark_context: Any) -> bool:
    """Return whether a SparkContext is running."""
    return spark_context._jsc is not None
