"""Workspaces: what is written, what is left alone, and what nothing may do to the cache."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpulayer.source import (
    FileEntry,
    Manifest,
    SourceConflict,
    WorkspaceError,
    Written,
    materialize,
    scan,
    synchronize,
    tree,
)

SECOND = 1_000_000_000


class Cache:
    """A folder of blobs, filled by the manifests that it makes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def __call__(self, digest: str) -> Path:
        return self.folder / digest

    def manifest(self, files: dict[str, bytes | None], *, executable: tuple[str, ...] = ()) -> Manifest:
        entries = []
        for path, content in files.items():
            if content is None:
                entries.append(FileEntry(path=path, mode=0o755, size=0, sha256="", kind="dir"))
                continue
            digest = hashlib.sha256(content).hexdigest()
            (self.folder / digest).write_bytes(content)
            mode = 0o755 if path in executable else 0o644
            entries.append(FileEntry(path=path, mode=mode, size=len(content), sha256=digest))
        return Manifest(entries)


class Workspace:
    """A session's workspace, at home in `home`."""

    def __init__(self, cache: Cache, target: Path, files: dict[str, bytes | None]) -> None:
        self.cache = cache
        self.target = target
        self.manifest = cache.manifest(files)
        self.written: Written = materialize(self.manifest, target, cache)

    def bring(self, files: dict[str, bytes | None], *, executable: tuple[str, ...] = ()) -> None:
        new = self.cache.manifest(files, executable=executable)
        self.written = synchronize(self.manifest, new, self.target, self.cache, self.written)
        self.manifest = new

    def refuses(self, files: dict[str, bytes | None]) -> tuple[str, ...]:
        """The paths in conflict; checks that nothing was touched."""
        before = everything(self.target)
        with pytest.raises(SourceConflict) as caught:
            self.bring(files)
        assert everything(self.target) == before
        return caught.value.paths

    def edit(self, path: str, content: bytes) -> None:
        (self.target / path).parent.mkdir(parents=True, exist_ok=True)
        (self.target / path).write_bytes(content)

    def read(self) -> dict[str, bytes | None]:
        return contents(self.target)


def contents(folder: Path) -> dict[str, bytes | None]:
    """Files with their bytes, empty folders with None."""
    result: dict[str, bytes | None] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            result[str(path.relative_to(folder))] = path.read_bytes()
        elif not path.is_symlink() and not any(path.iterdir()):
            result[str(path.relative_to(folder))] = None
    return result


def everything(folder: Path) -> dict[str, tuple]:
    return {
        str(path): (status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_mode)
        for path in sorted(folder.rglob("*"))
        if (status := path.lstat())
    }


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "blobs")


@pytest.fixture
def make(cache: Cache, tmp_path: Path) -> Callable[..., Workspace]:
    return lambda files: Workspace(cache, tmp_path / "workspace", files)


# --- a fresh workspace -----------------------------------------------------------------------------------------------


def test_a_workspace_holds_what_the_manifest_says(cache: Cache, tmp_path: Path) -> None:
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
    assert contents(target) == files
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


def test_a_copy_that_the_kernel_gives_up_half_way_is_finished_by_hand(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = bytes(range(256)) * 1000
    manifest = cache.manifest({"a": content, "b": content[:100]})
    monkeypatch.setattr(tree.sys, "platform", "other")

    def half(source: int, target: int, count: int) -> int:
        if os.lseek(source, 0, os.SEEK_CUR):
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        return os.write(target, os.read(source, 1000))

    monkeypatch.setattr(os, "copy_file_range", half, raising=False)
    materialize(manifest, tmp_path / "w", cache)
    assert contents(tmp_path / "w") == {"a": content, "b": content[:100]}


def test_a_full_disk_is_the_callers_to_know(cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree.sys, "platform", "other")

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "copy_file_range", full, raising=False)
    with pytest.raises(OSError, match="No space left"):
        materialize(cache.manifest({"a": b"1"}), tmp_path / "w", cache)
    assert contents(tmp_path / "w") == {}


def test_a_file_that_is_there_already_is_not_overwritten(cache: Cache, tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "a").write_bytes(b"mine")
    with pytest.raises(WorkspaceError, match="a is in the workspace already"):
        materialize(cache.manifest({"a": b"1"}), tmp_path / "w", cache)
    assert (tmp_path / "w" / "a").read_bytes() == b"mine"


def test_no_symlink_in_the_workspace_is_followed(cache: Cache, tmp_path: Path) -> None:
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
    assert contents(outside) == {"victim": b"precious"}


def test_the_workspace_itself_may_lie_behind_a_symlink(cache: Cache, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk")
    materialize(cache.manifest({"w/a": b"1"}), tmp_path / "link", cache)
    assert contents(tmp_path / "disk") == {"w/a": b"1"}


def test_missing_and_short_blobs_are_named(cache: Cache, tmp_path: Path) -> None:
    manifest = cache.manifest({"a": b"content"})
    cache(manifest.files[0].sha256).write_bytes(b"cont")
    with pytest.raises(WorkspaceError, match=r"has 4 bytes, the manifest says 7; fetch it again"):
        materialize(manifest, tmp_path / "w", cache)
    assert contents(tmp_path / "w") == {}
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


# --- a session's workspace -------------------------------------------------------------------------------------------


def test_only_what_changed_at_home_is_touched(make: Callable[..., Workspace]) -> None:
    session = make({"a": b"1", "sub/b": b"2", "c": b"3"})
    before = everything(session.target)
    session.bring({"a": b"1", "sub/b": b"changed", "c": b"3"})
    after = everything(session.target)
    changed = {path for path in before if before[path] != after[path]}
    assert changed == {str(session.target / "sub" / "b"), str(session.target / "sub")}
    assert session.read() == {"a": b"1", "sub/b": b"changed", "c": b"3"}


def test_nothing_new_touches_nothing(make: Callable[..., Workspace]) -> None:
    session = make({"a": b"1", "d": None})
    session.edit("a", b"edited by the cell")
    before = everything(session.target)
    session.bring({"a": b"1", "d": None})
    assert everything(session.target) == before


def test_files_come_and_go(make: Callable[..., Workspace]) -> None:
    session = make({"a": b"1", "old/deep/b": b"2", "old/c": b"3", "empty": None, "kept/x": b"4"})
    session.bring({"a": b"1", "new/d": b"5", "new-empty": None, "kept/x": b"4"})
    assert session.read() == {"a": b"1", "new/d": b"5", "new-empty": None, "kept/x": b"4"}
    assert session.written.keys() == {"a", "new/d", "kept/x"}
    session.bring({})
    assert session.read() == {}
    assert session.target.is_dir()


def test_a_running_program_keeps_the_file_that_it_opened(make: Callable[..., Workspace]) -> None:
    session = make({"lib.so": b"version one"})
    with (session.target / "lib.so").open("rb") as file:
        session.bring({"lib.so": b"version two"})
        assert file.read() == b"version one"
    assert session.read() == {"lib.so": b"version two"}


def test_what_a_cell_made_is_never_touched(make: Callable[..., Workspace]) -> None:
    session = make({"a": b"1", "sub/b": b"2"})
    session.edit("out.csv", b"result")
    session.edit("sub/out.csv", b"result")
    (session.target / "sub" / "made").mkdir()
    session.bring({"a": b"new"})
    assert session.read() == {"a": b"new", "out.csv": b"result", "sub/out.csv": b"result", "sub/made": None}


def test_changed_on_both_sides_is_a_conflict_and_all_of_them_are_named(make: Callable[..., Workspace]) -> None:
    session = make({"a": b"1", "b": b"2", "c": b"3", "d": b"4"})
    session.edit("a", b"x")
    session.edit("b", b"longer than before")
    assert session.refuses({"a": b"A", "b": b"B", "c": b"C"}) == ("a", "b")
    session.bring({"a": b"1", "b": b"2", "c": b"C", "d": b"4"})
    assert session.read() == {"a": b"x", "b": b"longer than before", "c": b"C", "d": b"4"}


def test_the_conflict_says_what_to_do() -> None:
    error = SourceConflict(["b", "new\nline", *(f"x{number}" for number in range(9))])
    assert error.paths[0] == "b"
    assert "\n" not in str(error)
    assert "'new\\nline'" in str(error)
    assert "and 6 more" in str(error)
    assert "--output" in str(error)


def test_an_edit_of_the_same_length_in_the_same_moment_is_noticed(make: Callable[..., Workspace]) -> None:
    session = make({"a": b"1"})
    with (session.target / "a").open("r+b") as file:  # at once: the file system's clock may not have moved
        file.write(b"x")
    assert session.refuses({"a": b"2"}) == ("a",)


def test_a_file_that_was_only_touched_is_not_in_conflict(make: Callable[..., Workspace]) -> None:
    session = make({"a": b"1"})
    os.utime(session.target / "a")
    session.bring({"a": b"2"})
    assert session.read() == {"a": b"2"}


def test_the_same_edit_on_both_sides_is_no_conflict(make: Callable[..., Workspace]) -> None:
    session = make({"a": b"1"})
    session.edit("a", b"2")
    before = (session.target / "a").stat().st_mtime_ns
    session.bring({"a": b"2"}, executable=("a",))
    status = (session.target / "a").stat()
    assert (status.st_mtime_ns, stat.S_IMODE(status.st_mode)) == (before, 0o755)
    session.bring({"a": b"3"})
    assert session.read() == {"a": b"3"}


def test_a_new_file_at_home_does_not_overwrite_what_a_cell_made(make: Callable[..., Workspace]) -> None:
    session = make({"a": b"1"})
    session.edit("results/x", b"from the cell")
    assert session.refuses({"a": b"1", "results/x": b"from home"}) == ("results/x",)
    assert session.refuses({"a": b"1", "results": b"a file now"}) == ("results",)
    assert session.refuses({"a": b"1", "results/x/y": b"below a file"}) == ("results/x/y",)
    session.bring({"a": b"1", "results/x": b"from the cell"})
    session.bring({"a": b"1", "results/x": b"now ours"})
    assert session.read() == {"a": b"1", "results/x": b"now ours"}


def test_a_file_gone_at_home_and_edited_here_stays(make: Callable[..., Workspace]) -> None:
    session = make({"a": b"1", "sub/b": b"2"})
    session.edit("sub/b", b"edited")
    session.bring({})
    assert session.read() == {"sub/b": b"edited"}
    assert session.written == {}


def test_a_file_that_a_cell_deleted_comes_back_when_it_changes_at_home(make: Callable[..., Workspace]) -> None:
    session = make({"a": b"1", "sub/b": b"2"})
    (session.target / "a").unlink()
    (session.target / "sub" / "b").unlink()
    (session.target / "sub").rmdir()
    session.bring({"a": b"1", "sub/b": b"3"})
    assert session.read() == {"sub/b": b"3"}
    session.bring({})
    assert session.read() == {}


def test_a_file_becomes_a_folder_and_back(make: Callable[..., Workspace]) -> None:
    session = make({"a": b"1", "b/x": b"2", "c": b"3", "d": None})
    session.bring({"a/deep/x": b"1", "b": b"2", "c": None, "d": b"4"})
    assert session.read() == {"a/deep/x": b"1", "b": b"2", "c": None, "d": b"4"}
    session.bring({"a": b"1", "b/x": b"2", "c": b"3", "d": None})
    assert session.read() == {"a": b"1", "b/x": b"2", "c": b"3", "d": None}


def test_a_folder_with_a_cells_files_does_not_become_a_file(make: Callable[..., Workspace]) -> None:
    session = make({"b/x": b"2", "e": None})
    session.edit("b/made", b"by the cell")
    session.edit("e/made", b"by the cell")
    assert session.refuses({"b": b"2", "e": b"3"}) == ("b", "e")
    (session.target / "b" / "made").unlink()
    (session.target / "b" / "made").mkdir()
    assert session.refuses({"b": b"2"}) == ("b",)


def test_an_edited_file_does_not_become_a_folder(make: Callable[..., Workspace]) -> None:
    session = make({"a": b"1", "c": b"3"})
    session.edit("a", b"edited")
    session.edit("c", b"edited")
    assert session.refuses({"a/x": b"1", "c": None}) == ("a/x", "c")


def test_a_change_of_mode_alone_keeps_the_content(make: Callable[..., Workspace]) -> None:
    session = make({"a": b"1", "b": b"2", "c": b"3"})
    session.edit("b", b"edited")
    (session.target / "c").unlink()
    inode = (session.target / "a").stat().st_ino
    session.bring({"a": b"1", "b": b"2", "c": b"3"}, executable=("a", "b", "c"))
    assert session.read() == {"a": b"1", "b": b"edited"}
    assert [stat.S_IMODE((session.target / name).stat().st_mode) for name in "ab"] == [0o755, 0o755]
    assert (session.target / "a").stat().st_ino == inode
    assert session.refuses({"a": b"1", "b": b"new"}) == ("b",)
    session.bring({"a": b"new", "b": b"2"})
    assert session.read() == {"a": b"new", "b": b"edited"}


def test_no_symlink_that_a_cell_made_is_followed(make: Callable[..., Workspace], tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "b").write_bytes(b"2")
    session = make({"a": b"1", "sub/b": b"2", "c": b"3"})
    (session.target / "a").unlink()
    (session.target / "a").symlink_to(outside / "b")
    (session.target / "sub" / "b").unlink()
    (session.target / "sub").rmdir()
    (session.target / "sub").symlink_to(outside)
    assert session.refuses({"a": b"new", "sub/b": b"new", "sub/c": b"new", "c": b"3"}) == ("a", "sub/b", "sub/c")
    assert session.refuses({"sub/d": None}) == ("sub/d",)
    session.bring({"c": b"4"})
    assert contents(outside) == {"b": b"2"}
    assert (session.target / "sub").is_symlink()
    assert (session.target / "a").is_symlink()


def test_each_version_has_another_whole_second(make: Callable[..., Workspace]) -> None:
    session = make({"a": b"0"})
    seconds = [(session.target / "a").stat().st_mtime_ns // SECOND]
    for version in b"12345":
        session.bring({"a": bytes([version])})
        seconds.append((session.target / "a").stat().st_mtime_ns // SECOND)
    assert len(set(seconds)) == 6
    assert seconds == sorted(seconds)


def test_a_call_that_failed_half_way_can_be_made_again(make: Callable[..., Workspace]) -> None:
    session = make({"a": b"1", "b": b"2", "gone": b"3"})
    target = {"a": b"A", "b": b"B", "c": b"C"}
    new = session.cache.manifest(target)
    blob = session.cache(new.by_path["b"].sha256)
    hidden = blob.rename(blob.with_suffix(".hidden"))
    with pytest.raises(WorkspaceError, match="not in the cache"):
        synchronize(session.manifest, new, session.target, session.cache, session.written)
    assert session.read() == {"a": b"A", "b": b"2"}
    hidden.rename(blob)
    session.bring(target)
    assert session.read() == target
    assert session.written.keys() == target.keys()


# --- any sequence of versions and edits ------------------------------------------------------------------------------

trees = st.dictionaries(
    st.sampled_from(["a", "b", "d/a", "d/b", "d/e/a", "f/a"]), st.sampled_from([b"1", b"2", b"333"]), max_size=6
)


@settings(max_examples=60, deadline=None)
@given(versions=st.lists(trees, min_size=2, max_size=5))
def test_without_edits_the_workspace_is_always_the_manifest(
    versions: list[dict[str, bytes | None]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("any")
    session = Workspace(Cache(folder / "blobs"), folder / "w", versions[0])
    for version in versions[1:]:
        session.bring(version)
        assert session.read() == version
        assert session.written.keys() == version.keys()


@settings(max_examples=60, deadline=None)
@given(old=trees, edits=trees, new=trees)
def test_an_edit_is_never_lost(
    old: dict[str, bytes | None],
    edits: dict[str, bytes],
    new: dict[str, bytes | None],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("any")
    session = Workspace(Cache(folder / "blobs"), folder / "w", old)
    for path, content in edits.items():
        session.edit(path, content)
    conflicts = {path for path in edits if new.get(path, old.get(path)) not in (old.get(path), edits[path])} - {
        path for path in edits if edits[path] == old.get(path)
    }
    if conflicts:
        assert set(session.refuses(new)) == conflicts
        return
    session.bring(new)
    after = session.read()
    for path, content in edits.items():
        if content != old.get(path):
            assert after[path] == content
    for path, wanted in new.items():
        if path not in edits or edits[path] == old.get(path):
            assert after[path] == wanted
