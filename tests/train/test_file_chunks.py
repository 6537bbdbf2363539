"""Folders cut into chunks and put together again: equal, or an error."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies as st

from hocket import train
from hocket.train.checkpoints import file_chunks, storage

NAMES = (
    st.lists(st.sampled_from(["a", "b", "deep"]), min_size=1, max_size=3).map("/".join).map(lambda name: name + ".x")
)
FOLDERS = st.dictionaries(NAMES, st.binary(max_size=40), max_size=6)
WHAT = "rank 1's part of a checkpoint"


def make_folder(path: Path, files: dict[str, bytes]) -> Path:
    path.mkdir(parents=True)
    for name, content in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return path


def pack(source: Path, chunk_bytes: int) -> list[file_chunks.FileChunk]:
    return list(file_chunks.pack(str(source), *storage.list_contents(str(source)), {}, chunk_bytes=chunk_bytes))


def unpack(target: Path, given: list[file_chunks.FileChunk]) -> storage.Staged:
    unpacker = file_chunks.Unpacker(target, WHAT, is_durable=False)
    try:
        for chunk in given:
            unpacker.take(chunk)
        return unpacker.finish()
    finally:
        unpacker.close()


def read(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@hypothesis.given(files=FOLDERS, chunk_bytes=st.integers(1, 50))
@hypothesis.settings(deadline=None)
def test_what_is_packed_is_what_is_unpacked(files: dict[str, bytes], chunk_bytes: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source = make_folder(Path(folder, "source"), files)
        Path(source, "an/empty/folder").mkdir(parents=True)
        given = pack(source, chunk_bytes)
        assert all(sum(len(piece.data) for piece in chunk.pieces) <= chunk_bytes for chunk in given)
        staged = unpack(Path(folder, "target"), given)
        assert read(Path(staged.path)) == files
        assert Path(staged.path, "an/empty/folder").is_dir()
        assert staged == storage.Staged(str(Path(folder, "target")), staged.files)
        manifest = {
            "files": {name: {"size_bytes": r.size_bytes, "sha256": r.sha256} for name, r in staged.files.items()}
        }
        assert set(staged.files) == set(files)
        assert storage.find_damage(source, manifest) is None


def lose(given: list[file_chunks.FileChunk], place: int) -> list[file_chunks.FileChunk]:
    return given[:place] + given[place + 1 :]


def repeat(given: list[file_chunks.FileChunk], place: int) -> list[file_chunks.FileChunk]:
    return given[: place + 1] + given[place:]


def swap(given: list[file_chunks.FileChunk], place: int) -> list[file_chunks.FileChunk]:
    other = (place + 1) % len(given)
    changed = list(given)
    changed[place], changed[other] = changed[other], changed[place]
    return changed


@hypothesis.given(
    files=st.dictionaries(NAMES, st.binary(min_size=1, max_size=40), min_size=1, max_size=6),
    chunk_bytes=st.integers(1, 10),
    change=st.sampled_from([lose, repeat, swap]),
    place=st.integers(0, 1000),
)
@hypothesis.settings(deadline=None)
def test_chunks_that_are_lost_repeated_or_swapped_never_make_another_folder(
    files: dict[str, bytes],
    chunk_bytes: int,
    change: Callable[[list[file_chunks.FileChunk], int], list[file_chunks.FileChunk]],
    place: int,
) -> None:
    """Two equal chunks may change places; then nothing has changed."""
    with tempfile.TemporaryDirectory() as folder:
        given = pack(make_folder(Path(folder, "source"), files), chunk_bytes)
        changed = change(given, place % len(given))
        try:
            staged = unpack(Path(folder, "target"), changed)
        except train.TransferError:
            return
        assert read(Path(staged.path)) == files


def test_a_stream_that_is_torn_says_where(tmp_path: Path) -> None:
    given = pack(make_folder(tmp_path / "source", {"a": b"12345", "b": b"67890"}), 3)
    match = r"^Rank 1's part of a checkpoint did not arrive whole: the stream ended after 0 complete files, and file 'a' ended after 3 bytes\."
    with pytest.raises(train.TransferError, match=match):
        unpack(tmp_path / "target", given[:1])
    with pytest.raises(train.TransferError, match="file 'b' began before the end of 'a'"):
        unpack(tmp_path / "other", [given[0], given[2]])
    with pytest.raises(train.TransferError, match="1 of 2 files are complete"):
        unpack(tmp_path / "third", [*given[:2], file_chunks.FileChunk((), (), 2)])


def test_a_commits_digest_is_what_counts(tmp_path: Path) -> None:
    source = make_folder(tmp_path / "source", {"a": b"changed"})
    known = {"a": storage.FileRecord(7, "0" * 64)}
    given = list(file_chunks.pack(str(source), [], ["a"], known))
    with pytest.raises(
        train.TransferError, match=rf"7 bytes with sha256 {'0' * 64} were sent, but 7 bytes with sha256 [1-9a-f]"
    ):
        unpack(tmp_path / "target", given)
