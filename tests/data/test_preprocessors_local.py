"""Preprocessors in worker processes: what is learnt, and what is made, is the same as in one process."""

from __future__ import annotations

import hocket
from hocket import data
from hocket.data import preprocessors as pre


def test_on_the_local_engine() -> None:
    with hocket.init(num_cpus=2, engine="local"):
        items = [{"x": float(x), "color": "rgb"[x % 3], "text": f"row {x % 5}"} for x in range(50)]
        rows = data.from_items(items, override_num_blocks=4)
        chain = pre.Chain(
            pre.StandardScaler(["x"]),
            pre.OneHotEncoder(["color"]),
            pre.CountVectorizer(["text"], tokenization_fn=lambda text: text.split()),
            pre.Concatenator(["x", "color", "text"], "features", flatten=True),
        )
        found = chain.fit_transform(rows).take_batch(50)["features"]
        assert found.shape == (50, 1 + 3 + 6)
        assert abs(found[:, 0].mean()) < 1e-12
        assert [list(one) for one in found] == [list(chain.transform_row(item)["features"]) for item in items]
