"""A store that speaks S3, on loopback: read and written by tasks, and what is said when it fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import fs
from tests import s3_server

import hocket
from hocket import data
from hocket.data.sources import writing

pytestmark = pytest.mark.timeout(180)


def test_rows_go_there_and_back(s3_store: tuple[fs.S3FileSystem, str], session: hocket.SessionContext) -> None:
    filesystem, bucket = s3_store
    rows = data.range(1000, override_num_blocks=4).map_batches(lambda batch: {**batch, "y": batch["id"] % 3})
    rows.write_parquet(f"{bucket}/rows", filesystem=filesystem, partition_cols=["y"])
    found = data.read_parquet(f"{bucket}/rows", filesystem=filesystem)
    assert found.groupby("y").count().take_all() == [
        {"y": "0", "count()": 334},
        {"y": "1", "count()": 333},
        {"y": "2", "count()": 333},
    ]
    assert filesystem.get_file_info(f"{bucket}/rows/{writing.MANIFEST}").size
    assert sorted(row["id"] for row in found.take_all()) == list(range(1000))
    rows.write_json(f"{bucket}/json", filesystem=filesystem)
    assert data.read_json(f"{bucket}/json", filesystem=filesystem).sum("id") == 499_500


def test_an_address_says_where(
    s3_port: int, s3_store: tuple[fs.S3FileSystem, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, bucket = s3_store
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    where = f"?endpoint_override=127.0.0.1:{s3_port}&scheme=http&region=us-east-1"
    with hocket.init(num_cpus=2):
        data.range(10).write_csv(f"s3://{bucket}/rows{where}")
        assert data.read_csv(f"s3://{bucket}/rows{where}").sum("id") == 45
    with pytest.raises(FileNotFoundError, match=r"there is no file or folder 's3://.*gone"):
        data.read_csv(f"s3://{bucket}/gone{where}")


def test_what_is_gone_in_between_is_named(s3_store: tuple[fs.S3FileSystem, str]) -> None:
    filesystem, bucket = s3_store
    with hocket.init(num_cpus=2, engine="inprocess"):
        data.range(10).write_parquet(f"{bucket}/rows", filesystem=filesystem)
        rows = data.read_parquet(f"{bucket}/rows", filesystem=filesystem)
        filesystem.delete_dir_contents(f"{bucket}/rows")
        with pytest.raises((FileNotFoundError, OSError), match=r"read_parquet\(\).*rows/"):
            rows.take_all()


def test_a_store_that_is_slow_for_a_moment_is_asked_again(
    s3_proxy: s3_server.Proxy, s3_store: tuple[fs.S3FileSystem, str]
) -> None:
    direct, bucket = s3_store
    filesystem = s3_server.open_store(s3_proxy.port)
    with hocket.init(num_cpus=2, engine="inprocess"):
        data.range(10).write_parquet(f"{bucket}/rows", filesystem=direct)
        s3_proxy.fault = "once"
        assert data.read_parquet(f"{bucket}/rows", filesystem=filesystem).sum("id") == 45
    assert s3_proxy.count > 2, "the fault fired"


def test_refused_credentials_are_told(s3_proxy: s3_server.Proxy, s3_store: tuple[fs.S3FileSystem, str]) -> None:
    direct, bucket = s3_store
    filesystem = s3_server.open_store(s3_proxy.port, retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=1))
    with hocket.init(num_cpus=2, engine="inprocess"):
        data.range(10).write_parquet(f"{bucket}/rows", filesystem=direct)
        rows = data.read_parquet(f"{bucket}/rows", filesystem=filesystem)
        s3_proxy.fault = "denied"
        with pytest.raises(PermissionError, match=r"read_parquet\(\) is not allowed to read .*Check the credentials"):
            rows.take_all()
        with pytest.raises(PermissionError, match=r"read_csv\(\) is not allowed to read .*Check the credentials"):
            data.read_csv(f"{bucket}/rows", filesystem=filesystem)
        with pytest.raises(PermissionError, match=r"write_csv\(\) cannot write .*check the permissions of the folder"):
            data.range(3).write_csv(f"{bucket}/other", filesystem=filesystem)
    assert s3_proxy.count, "the fault fired"


PROGRAM = """
import sys, time
import hocket
from hocket import data
from pyarrow import fs

filesystem = fs.S3FileSystem(access_key="key", secret_key="secret", region="us-east-1", scheme="http",
                             endpoint_override="127.0.0.1:" + sys.argv[1])

def slow(batch):
    time.sleep(0.02)
    return batch

hocket.init(num_cpus=2)
data.range(10_000, override_num_blocks=100).map_batches(slow).write_parquet(sys.argv[2], filesystem=filesystem)
"""


def test_what_a_killed_writer_leaves_is_whole(s3_port: int, s3_store: tuple[fs.S3FileSystem, str]) -> None:
    filesystem, bucket = s3_store
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(s3_port), f"{bucket}/rows"], stdout=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    infos: list[Any] = []
    while len(infos) < 5:
        assert time.monotonic() < deadline
        infos = filesystem.get_file_info(fs.FileSelector(f"{bucket}/rows", allow_not_found=True))
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    infos = filesystem.get_file_info(fs.FileSelector(f"{bucket}/rows"))
    assert not any(info.base_name == writing.MANIFEST for info in infos), "it was not finished"
    with hocket.init(num_cpus=2, engine="inprocess"):
        with pytest.warns(UserWarning, match="is still running or never finished"):
            found = data.read_parquet(f"{bucket}/rows", filesystem=filesystem)
        rows = [row["id"] for row in found.take_all()]
        with pytest.raises(FileExistsError, match="holds an unfinished write"):
            data.range(3).write_parquet(f"{bucket}/rows", filesystem=filesystem, mode="ignore")
        data.range(3).write_parquet(f"{bucket}/rows", filesystem=filesystem)
        with pytest.warns(UserWarning, match="is still running or never finished"):  # more rows do not mend it
            data.read_parquet(f"{bucket}/rows", filesystem=filesystem)
        data.range(3).write_parquet(f"{bucket}/rows", filesystem=filesystem, mode="overwrite")
        assert data.read_parquet(f"{bucket}/rows", filesystem=filesystem).count() == 3
    assert len(rows) == len(set(rows))
    assert len(rows) % 100 == 0
    assert (np.diff(np.sort(np.asarray(rows)).reshape(-1, 100)) == 1).all(), "each file is whole"


def test_memory_of_this_process_is_refused(session: hocket.SessionContext) -> None:
    with pytest.raises(ValueError, match="is in this process's memory, where the session's workers cannot see"):
        data.range(10).write_parquet("memory://rows")
    with pytest.raises(ValueError, match="is in this process's memory"):
        data.read_parquet("memory://rows")


def test_messages_have_no_passwords(s3_port: int, s3_store: tuple[fs.S3FileSystem, str], tmp_path: Path) -> None:
    _, bucket = s3_store
    how = f"endpoint_override=127.0.0.1:{s3_port}&scheme=http&region=us-east-1&access_key=me&secret_key=hush"
    calls: list[Callable[[], object]] = [
        lambda: data.read_parquet(f"s3://{bucket}/none?{how}"),
        lambda: data.read_csv([f"s3://{bucket}/none?{how}", str(tmp_path)]),
        lambda: data.range(3).write_csv(f"s3://no-such-bucket/rows?{how}"),
        lambda: data.range(3).write_csv(f"s3://{bucket}/rows?{how}", mode="error"),
    ]
    with hocket.init(num_cpus=1, engine="inprocess"):
        data.range(3).write_csv(f"s3://{bucket}/rows?{how}")
        for call in calls:
            with pytest.raises((OSError, ValueError)) as caught:
                call()
            assert "hush" not in str(caught.value)
