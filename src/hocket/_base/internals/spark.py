"""PySpark's names: the context on the other side, in Java."""

from __future__ import annotations

from typing import Any


def count_slots(spark_context: Any) -> int:
    """Return how many tasks Spark can run at once now."""
    inner = spark_context._jsc.sc()
    return int(inner.maxNumConcurrentTasks(inner.resourceProfileManager().defaultResourceProfile()))


def is_running(spark_context: Any) -> bool:
    """Tell whether a SparkContext is not stopped."""
    return spark_context._jsc is not None
