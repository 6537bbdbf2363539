"""What of the driver travels to the nodes of a cluster."""

from __future__ import annotations

import importlib.machinery
import json
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

import pytest

from hocket.engine.ray import access, packages


def make_main(file: Path | None, package: str | None = None) -> ModuleType:
    """A __main__, as of ``python file`` or of ``python -m package.module``."""
    main = ModuleType("__main__")
    if file is not None:
        main.__file__ = str(file)
    if package is not None:
        main.__spec__ = importlib.machinery.ModuleSpec(f"{package}.module", None)
    return main


def test_folder_of_a_script(tmp_path: Path) -> None:
    assert packages.find_script_folder(make_main(tmp_path / "train.py")) == tmp_path
    assert packages.find_script_folder(make_main(tmp_path / "one" / "two" / "module.py", "one.two")) == tmp_path


def test_no_script() -> None:
    assert packages.find_script_folder(None) is None
    assert packages.find_script_folder(make_main(None)) is None


@pytest.mark.parametrize("place", ["scripts", "purelib", "stdlib"])
def test_installed_program(place: str) -> None:
    assert packages.find_script_folder(make_main(Path(sysconfig.get_path(place), "program.py"))) is None


def test_import_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(tmp_path / "gone"), sysconfig.get_path("purelib"), ""])
    monkeypatch.chdir("/")
    assert packages.list_import_folders() == [str(tmp_path), "/"]


def test_environment_of_a_session(tmp_path: Path) -> None:
    assert packages.build_environment({}, Path("/package"), None) == {"py_modules": ["/package"]}
    assert packages.build_environment({}, Path("/package"), tmp_path)["working_dir"] == str(tmp_path)
    given = {"working_dir": "s3://bucket/work.zip", "py_modules": ["/mine"], "env_vars": {"A": "1"}}
    made = packages.build_environment(given, Path("/package"), tmp_path)
    assert made == {**given, "py_modules": ["/mine", "/package"]}
    assert given["py_modules"] == ["/mine"]


def test_environment_of_a_job_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(packages.JOB_VARIABLE, raising=False)
    assert packages.read_job_environment() == {}
    job = {"working_dir": "gcs://work.zip", "py_modules": ["gcs://theirs.zip"], "env_vars": {"A": "1"}}
    monkeypatch.setenv(packages.JOB_VARIABLE, json.dumps({"runtime_env": job, "metadata": {}}))
    assert packages.read_job_environment() == job
    made = packages.build_environment({"py_modules": ["/mine"]}, Path("/package"), tmp_path, job)
    assert made == {"py_modules": ["gcs://theirs.zip", "/mine", "/package"]}
    assert packages.build_environment({"working_dir": "/w"}, Path("/package"), tmp_path, job)["working_dir"] == "/w"


def write(path: Path, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(size)  # a hole: it takes no space


def test_large_folder_is_not_sent_unasked(tmp_path: Path) -> None:
    write(tmp_path / "train.py", 100)
    write(tmp_path / "data" / "deep" / "images.bin", 90 * 2**20)
    write(tmp_path / "model.pt", 20 * 2**20)
    with pytest.raises(
        ValueError,
        match=r"has 110 MiB.* 100 MiB .*: data \(90 MiB\), model.pt \(20 MiB\), train.py \(0 MiB\)\. .*\['data'\]",
    ):
        packages.check_size(tmp_path, (), access.walk_package)


def test_what_is_left_out_does_not_count(tmp_path: Path) -> None:
    write(tmp_path / "data" / "images.bin", 200 * 2**20)
    write(tmp_path / "cache" / "more.bin", 200 * 2**20)
    write(tmp_path / ".git" / "objects", 200 * 2**20)
    (tmp_path / ".gitignore").write_text("data/\n")
    with pytest.raises(ValueError, match=r"The largest parts: cache \(200 MiB\)"):
        packages.check_size(tmp_path, (), access.walk_package)
    packages.check_size(tmp_path, ["cache"], access.walk_package)
    (tmp_path / ".rayignore").write_text("cache/\n")
    packages.check_size(tmp_path, (), access.walk_package)
