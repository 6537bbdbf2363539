"""Tables that are joined, grouped and sorted, after Ray Data's example on the queries of TPC-H."""

from __future__ import annotations

from typing import Any

import pandas as pd  # type: ignore[import-untyped,unused-ignore]
import pyarrow as pa

from hocket import data
from hocket.data.aggregate import Count, Max, Mean, Sum

EXPECTED: Any = {
    "sold": [("Kyoto", 8, 46.0), ("Oslo", 16, 92.0)],
    "without": [("c3", None)],
    "best": [(23, 11.5), (22, 11.0), (21, 10.5)],
    "numbers": {"sum(price)": 138.0, "mean(price)": 5.75, "max(price)": 11.5},
    "semi": 16,
}


def main(folder: str) -> Any:
    customers = data.from_pandas(
        pd.DataFrame({"customer": ["c0", "c1", "c2", "c3"], "city": ["Oslo", "Kyoto", "Oslo", "Lima"]})
    )
    orders = data.from_arrow(
        pa.table(
            {
                "order": list(range(24)),
                "customer": [f"c{number % 3}" for number in range(24)],
                "price": [number / 2 for number in range(24)],
            }
        )
    )
    joined = orders.join(customers, join_type="inner", num_partitions=2, on=("customer",)).materialize()
    sold = joined.groupby("city").aggregate(Count(), Sum("price")).materialize()
    left = customers.join(
        orders.groupby("customer").count(), join_type="left_outer", num_partitions=2, on=("customer",)
    )
    oslo = customers.filter(lambda row: row["city"] == "Oslo")
    return {
        "sold": sorted((row["city"], row["count()"], row["sum(price)"]) for row in sold.take_all()),
        "without": [(row["customer"], row["count()"]) for row in left.take_all() if row["count()"] is None],
        "best": [(row["order"], row["price"]) for row in joined.sort("price", descending=True).take(3)],
        "numbers": orders.aggregate(Sum("price"), Mean("price"), Max("price")),
        "semi": orders.join(oslo, join_type="left_semi", num_partitions=2, on=("customer",)).count(),
    }
