"""What tables do on each engine: the same."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import psutil
import pytest

import hocket
from hocket import data
from hocket.data import aggregate as aggregates
from hocket.testing.suites.programs import wait_until

pytestmark = pytest.mark.timeout(120)


def test_tables_do_the_same_on_each_engine(any_session: hocket.SessionContext, tmp_path: Path) -> None:
    rows = data.range(1000, override_num_blocks=4).map_batches(
        lambda batch: {"id": batch["id"], "k": batch["id"] % 3, "x": batch["id"] * 0.1}
    )
    assert rows.sort("x", descending=True).take(1)[0]["id"] == 999
    assert rows.groupby("k").sum("id").take_all() == [{"k": k, "sum(id)": sum(range(k, 1000, 3))} for k in range(3)]
    digits = rows.groupby("k").aggregate(aggregates.Mean("x"), aggregates.Std("x")).take_all()
    assert digits == rows.groupby("k").aggregate(aggregates.Mean("x"), aggregates.Std("x")).take_all()
    names = data.from_items([{"k": 1, "name": "one"}, {"k": 2, "name": "two"}])
    assert rows.join(names, on="k").count() == 666
    assert rows.limit(10).union(rows.limit(5)).zip(data.range(15)).take_all()[14]["id_1"] == 14
    with pytest.raises(KeyError, match="no column 'gone'"):
        rows.sort("gone").take(1)

    def fail(batch: Any) -> Any:
        raise ArithmeticError("in a step")

    with pytest.raises(ArithmeticError, match="in a step"):
        rows.map_batches(fail).sort("id").take(1)

    rows.write_parquet(tmp_path)
    assert data.read_parquet(tmp_path).sort("id").take_all() == rows.take_all()
    lines = tmp_path / "lines.txt"
    lines.write_text("".join(f"line {at}\n" for at in range(1000)))
    assert data.read_text(lines).map_batches(lambda batch: batch).count() == 1000


def list_opened() -> set[tuple[int, Path]]:
    """Return the folders that workers write rows to, and whose they are."""
    start = str(Path(tempfile.gettempdir(), "hocket-data-"))
    found = set()
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(OSError):  # it has ended, or a descriptor is closed
            targets = map(os.readlink, Path(f"/proc/{process.pid}/fd").iterdir())
            found |= {(process.pid, Path(target).parent) for target in targets if target.startswith(start)}
    return found


@pytest.mark.about_local("whose workers are children of the driver")
def test_a_query_whose_worker_is_killed_is_done_again_and_leaves_nothing(
    session: hocket.SessionContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    # many blocks, of which a few wait for their reader, and the query with them
    monkeypatch.setattr(data.DataContext.get_current(), "target_max_block_size", 100_000)
    rows = data.range(500_000, override_num_blocks=8).sort("id", descending=True)
    wait_until(lambda: not list_opened())  # a query of the test before may not have removed its folder yet
    loop = iter(rows.iter_batches(batch_size=100))
    seen = next(loop)["id"].tolist()
    ((pid, folder),) = list_opened()
    os.kill(pid, signal.SIGKILL)
    for batch in loop:
        seen += batch["id"].tolist()
    assert seen == list(range(499_999, -1, -1))
    assert not folder.exists()
