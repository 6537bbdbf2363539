"""A training loop over batches of tensors, after Ray Data's guide "Iterating over data"."""

from __future__ import annotations

from typing import Any

import torch

from hocket import data

EXPECTED: Any = {"weight": 3.0, "bias": -1.0, "steps": 80, "sizes": [32, 32, 32, 4], "dtype": "torch.float32"}


def make_row(row: dict[str, Any]) -> dict[str, Any]:
    x = row["id"] / 50 - 1
    return {"x": [x], "y": [3 * x - 1]}


def main(folder: str) -> Any:
    torch.manual_seed(0)
    rows = data.range(100).map(make_row).materialize()
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    steps, sizes, dtype = 0, [], ""
    for epoch in range(20):
        for batch in rows.iter_torch_batches(batch_size=32, dtypes=torch.float32):
            loss = torch.nn.functional.mse_loss(model(batch["x"]), batch["y"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
            dtype = str(batch["x"].dtype)
            if epoch == 0:
                sizes.append(len(batch["x"]))
    return {
        "weight": round(model.weight.item(), 1),
        "bias": round(model.bias.item(), 1),
        "steps": steps,
        "sizes": sizes,
        "dtype": dtype,
    }
