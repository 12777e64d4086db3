"""Fresh workspaces: what is written, and what nothing may do to the cache."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpulayer.source import FileEntry, Manifest, WorkspaceError, materialize, scan, tree

# A cache of blobs that makes manifests, from conftest.
Cache = Any
ReadTree = Callable[[Path], dict[str, bytes | None]]


def test_a_workspace_holds_what_the_manifest_says(cache: Cache, tmp_path: Path, read_tree: ReadTree) -> None:
    files = {
        "a.py": b"print(1)",
        "deep/er/b.bin": bytes(range(256)) * 4096,
        "empty": b"",
        "with space/new\nline": b"odd",
        "-rf": b"dash",
        os.fsdecode(b"caf\xe9"): b"not utf-8",
        "folder": None,
        "deep-er/x": b"sorts between",
        "run.sh": b"#!/bin/sh",
    }
    manifest = cache.manifest(files, executable=("run.sh",))
    target = tmp_path / "new" / "workspace"
    written = materialize(manifest, target, cache)
    assert read_tree(target) == files
    assert stat.S_IMODE((target / "run.sh").stat().st_mode) == 0o755
    assert stat.S_IMODE((target / "a.py").stat().st_mode) == 0o644
    assert written == {
        entry.path: ((target / entry.path).stat().st_size, (target / entry.path).stat().st_mtime_ns)
        for entry in manifest.files
        if entry.kind == "file"
    }


def test_modes_do_not_depend_on_the_umask(cache: Cache, tmp_path: Path) -> None:
    manifest = cache.manifest({"a": b"1", "b": b"2"}, executable=("b",))
    before = os.umask(0o077)
    try:
        materialize(manifest, tmp_path / "w", cache)
    finally:
        os.umask(before)
    assert [stat.S_IMODE((tmp_path / "w" / name).stat().st_mode) for name in "ab"] == [0o644, 0o755]


def test_what_was_scanned_comes_out_the_same(tmp_path: Path) -> None:
    for path, content in {"a.py": b"1", "sub/b": b"2", "x\ny": b"3"}.items():
        (tmp_path / "home" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "home" / path).write_bytes(content)
    (tmp_path / "home" / "out").mkdir()
    bundle = scan(tmp_path / "home")
    materialize(bundle.manifest, tmp_path / "w", lambda digest: Path(bundle.source_of[digest]))
    assert scan(tmp_path / "w").manifest == bundle.manifest


@pytest.mark.parametrize("way", ["clone or kernel", "no clone", "read and write"])
def test_a_job_that_writes_into_its_files_does_not_write_into_the_cache(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    if way != "clone or kernel":
        monkeypatch.setattr(tree.sys, "platform", "other")
    if way == "read and write":
        monkeypatch.delattr(os, "copy_file_range", raising=False)
    content = bytes(range(256)) * 2000
    manifest = cache.manifest({"a": content, "same": content})
    materialize(manifest, tmp_path / "w", cache)
    blob = cache(manifest.files[0].sha256)
    inodes = {path.stat().st_ino for path in (blob, tmp_path / "w" / "a", tmp_path / "w" / "same")}
    assert len(inodes) == 3
    assert {path.stat().st_nlink for path in (blob, tmp_path / "w" / "a", tmp_path / "w" / "same")} == {1}
    with (tmp_path / "w" / "a").open("r+b") as file:
        file.write(b"overwritten")
        file.seek(0, os.SEEK_END)
        file.write(b"appended")
    assert blob.read_bytes() == content
    assert (tmp_path / "w" / "same").read_bytes() == content


def test_blobs_are_cloned_where_the_file_system_can(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_tree: ReadTree
) -> None:
    fcntl = pytest.importorskip("fcntl")
    requests = []

    def clone(target: int, request: int, source: int) -> int:
        requests.append(request)
        return os.write(target, os.pread(source, 1000, 0))

    monkeypatch.setattr(tree.sys, "platform", "linux")
    monkeypatch.setattr(fcntl, "ioctl", clone)
    monkeypatch.setattr(os, "copy_file_range", lambda *_: pytest.fail("copied, not cloned"), raising=False)
    materialize(cache.manifest({"a": b"1", "b": b"2"}), tmp_path / "w", cache)
    assert read_tree(tmp_path / "w") == {"a": b"1", "b": b"2"}
    assert requests == [0x40049409, 0x40049409]  # FICLONE of linux/fs.h


def test_a_file_system_without_clones_is_asked_once(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_tree: ReadTree
) -> None:
    fcntl = pytest.importorskip("fcntl")
    asked = []

    def refuse(*_: object) -> int:
        asked.append(1)
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(tree.sys, "platform", "linux")
    monkeypatch.setattr(fcntl, "ioctl", refuse)
    materialize(cache.manifest({"a": b"1", "b": b"2"}), tmp_path / "w", cache)
    assert read_tree(tmp_path / "w") == {"a": b"1", "b": b"2"}
    assert asked == [1]


def test_a_copy_that_the_kernel_gives_up_half_way_is_finished_by_hand(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_tree: ReadTree
) -> None:
    content = bytes(range(256)) * 1000
    manifest = cache.manifest({"a": content, "b": content[:100]})
    monkeypatch.setattr(tree.sys, "platform", "other")

    def half(source: int, target: int, count: int, *, offset_src: int) -> int:
        if offset_src:
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        return os.write(target, os.pread(source, 1000, offset_src))

    monkeypatch.setattr(os, "copy_file_range", half, raising=False)
    materialize(manifest, tmp_path / "w", cache)
    assert read_tree(tmp_path / "w") == {"a": content, "b": content[:100]}


def test_a_full_disk_is_the_callers_to_know(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_tree: ReadTree
) -> None:
    monkeypatch.setattr(tree.sys, "platform", "other")

    def full(*_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "copy_file_range", full, raising=False)
    with pytest.raises(OSError, match="No space left"):
        materialize(cache.manifest({"a": bytes(1_000_000)}), tmp_path / "w", cache)
    assert read_tree(tmp_path / "w") == {}


def test_a_file_that_is_there_already_is_not_overwritten(cache: Cache, tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "a").write_bytes(b"mine")
    with pytest.raises(WorkspaceError, match="a is in the workspace already"):
        materialize(cache.manifest({"a": b"1"}), tmp_path / "w", cache)
    assert (tmp_path / "w" / "a").read_bytes() == b"mine"


def test_no_symlink_in_the_workspace_is_followed(cache: Cache, tmp_path: Path, read_tree: ReadTree) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "victim").write_bytes(b"precious")
    workspace = tmp_path / "w"
    workspace.mkdir()
    (workspace / "folder").symlink_to(outside)
    (workspace / "file").symlink_to(outside / "victim")
    (workspace / "dangling").symlink_to(outside / "made")
    for path, message in [
        ("folder/victim", "folder in the workspace is a symlink or a file where a folder should be"),
        ("folder/deep/new", "folder in the workspace"),
        ("file", "already"),
        ("dangling", "already"),
        ("file/x", "file in the workspace"),
    ]:
        with pytest.raises(WorkspaceError, match=message):
            materialize(cache.manifest({path: b"evil"}), workspace, cache)
    with pytest.raises(WorkspaceError):
        materialize(cache.manifest({"folder/sub": None}), workspace, cache)
    assert read_tree(outside) == {"victim": b"precious"}


def test_the_workspace_itself_may_lie_behind_a_symlink(cache: Cache, tmp_path: Path, read_tree: ReadTree) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk")
    materialize(cache.manifest({"w/a": b"1"}), tmp_path / "link", cache)
    assert read_tree(tmp_path / "disk") == {"w/a": b"1"}


def test_missing_and_short_blobs_are_named(cache: Cache, tmp_path: Path, read_tree: ReadTree) -> None:
    manifest = cache.manifest({"a": b"content"})
    cache(manifest.files[0].sha256).write_bytes(b"cont")
    with pytest.raises(WorkspaceError, match=r"has 4 bytes, the manifest says 7; fetch it again"):
        materialize(manifest, tmp_path / "w", cache)
    assert read_tree(tmp_path / "w") == {}
    cache(manifest.files[0].sha256).unlink()
    with pytest.raises(WorkspaceError, match="is not in the cache; fetch it again"):
        materialize(manifest, tmp_path / "w", cache)


def test_no_descriptor_is_left_open(cache: Cache, tmp_path: Path) -> None:
    manifest = cache.manifest({f"d{number}/e/f": b"x" for number in range(20)})
    missing = Manifest([*manifest.files, FileEntry(path="z", mode=0o644, size=1, sha256="0" * 64)])
    before = os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else []
    materialize(manifest, tmp_path / "w", cache)
    with pytest.raises(WorkspaceError):
        materialize(missing, tmp_path / "v", cache)
    after = os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else []
    assert len(after) == len(before)
