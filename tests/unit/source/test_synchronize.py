"""A session's workspace: only what changed at home is written, and no edit made there is ever lost."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpulayer.source import SourceConflict, WorkspaceError, synchronize

# From conftest: makes a session's workspace from files.
Make = Callable[..., Any]
ReadTree = Callable[[Path], dict[str, bytes | None]]
StatTree = Callable[[Path], dict[str, tuple]]

SECOND = 1_000_000_000


def test_only_what_changed_at_home_is_touched(make: Make, stat_tree: StatTree) -> None:
    session = make({"a": b"1", "sub/b": b"2", "c": b"3"})
    before = stat_tree(session.target)
    session.bring({"a": b"1", "sub/b": b"changed", "c": b"3"})
    after = stat_tree(session.target)
    changed = {path for path in before if before[path] != after[path]}
    assert changed == {str(session.target / "sub" / "b"), str(session.target / "sub")}
    assert session.read() == {"a": b"1", "sub/b": b"changed", "c": b"3"}


def test_nothing_new_touches_nothing(make: Make, stat_tree: StatTree) -> None:
    session = make({"a": b"1", "d": None})
    session.edit("a", b"edited by the cell")
    before = stat_tree(session.target)
    session.bring({"a": b"1", "d": None})
    assert stat_tree(session.target) == before


def test_files_come_and_go(make: Make) -> None:
    session = make({"a": b"1", "old/deep/b": b"2", "old/c": b"3", "empty": None, "kept/x": b"4"})
    session.bring({"a": b"1", "new/d": b"5", "new-empty": None, "kept/x": b"4"})
    assert session.read() == {"a": b"1", "new/d": b"5", "new-empty": None, "kept/x": b"4"}
    assert session.written.keys() == {"a", "new/d", "kept/x"}
    session.bring({})
    assert session.read() == {}
    assert session.target.is_dir()


def test_a_running_program_keeps_the_file_that_it_opened(make: Make) -> None:
    session = make({"lib.so": b"version one"})
    with (session.target / "lib.so").open("rb") as file:
        session.bring({"lib.so": b"version two"})
        assert file.read() == b"version one"
    assert session.read() == {"lib.so": b"version two"}


def test_what_a_cell_made_is_never_touched(make: Make) -> None:
    session = make({"a": b"1", "sub/b": b"2"})
    session.edit("out.csv", b"result")
    session.edit("sub/out.csv", b"result")
    (session.target / "sub" / "made").mkdir()
    session.bring({"a": b"new"})
    assert session.read() == {"a": b"new", "out.csv": b"result", "sub/out.csv": b"result", "sub/made": None}


def test_changed_on_both_sides_is_a_conflict_and_all_of_them_are_named(make: Make) -> None:
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
    assert "--exclude" in str(error)


def test_an_edit_of_the_same_length_in_the_same_moment_is_noticed(make: Make) -> None:
    session = make({"a": b"1"})
    with (session.target / "a").open("r+b") as file:  # at once: the file system's clock may not have moved
        file.write(b"x")
    assert session.refuses({"a": b"2"}) == ("a",)


def test_a_file_that_was_only_touched_is_not_in_conflict(make: Make) -> None:
    session = make({"a": b"1"})
    os.utime(session.target / "a")
    session.bring({"a": b"2"})
    assert session.read() == {"a": b"2"}


def test_the_same_edit_on_both_sides_is_no_conflict(make: Make) -> None:
    session = make({"a": b"1"})
    session.edit("a", b"2")
    before = (session.target / "a").stat().st_mtime_ns
    session.bring({"a": b"2"}, executable=("a",))
    status = (session.target / "a").stat()
    assert (status.st_mtime_ns, stat.S_IMODE(status.st_mode)) == (before, 0o755)
    session.bring({"a": b"3"})
    assert session.read() == {"a": b"3"}


def test_a_new_file_at_home_does_not_overwrite_what_a_cell_made(make: Make) -> None:
    session = make({"a": b"1"})
    session.edit("results/x", b"from the cell")
    assert session.refuses({"a": b"1", "results/x": b"from home"}) == ("results/x",)
    assert session.refuses({"a": b"1", "results": b"a file now"}) == ("results",)
    assert session.refuses({"a": b"1", "results/x/y": b"below a file"}) == ("results/x/y",)
    session.bring({"a": b"1", "results/x": b"from the cell"})
    session.bring({"a": b"1", "results/x": b"now ours"})
    assert session.read() == {"a": b"1", "results/x": b"now ours"}


def test_a_file_gone_at_home_and_edited_here_stays(make: Make) -> None:
    session = make({"a": b"1", "sub/b": b"2"})
    session.edit("sub/b", b"edited")
    session.bring({})
    assert session.read() == {"sub/b": b"edited"}
    assert session.written == {}


def test_a_file_that_a_cell_deleted_comes_back_when_it_changes_at_home(make: Make) -> None:
    session = make({"a": b"1", "sub/b": b"2"})
    (session.target / "a").unlink()
    (session.target / "sub" / "b").unlink()
    (session.target / "sub").rmdir()
    session.bring({"a": b"1", "sub/b": b"3"})
    assert session.read() == {"sub/b": b"3"}
    session.bring({})
    assert session.read() == {}


def test_a_file_becomes_a_folder_and_back(make: Make) -> None:
    session = make({"a": b"1", "b/x": b"2", "c": b"3", "d": None})
    session.bring({"a/deep/x": b"1", "b": b"2", "c": None, "d": b"4"})
    assert session.read() == {"a/deep/x": b"1", "b": b"2", "c": None, "d": b"4"}
    session.bring({"a": b"1", "b/x": b"2", "c": b"3", "d": None})
    assert session.read() == {"a": b"1", "b/x": b"2", "c": b"3", "d": None}


def test_a_folder_with_a_cells_files_does_not_become_a_file(make: Make) -> None:
    session = make({"b/x": b"2", "e": None})
    session.edit("b/made", b"by the cell")
    session.edit("e/made", b"by the cell")
    assert session.refuses({"b": b"2", "e": b"3"}) == ("b", "e")
    (session.target / "b" / "made").unlink()
    (session.target / "b" / "made").mkdir()
    assert session.refuses({"b": b"2"}) == ("b",)


def test_an_edited_file_does_not_become_a_folder(make: Make) -> None:
    session = make({"a": b"1", "c": b"3"})
    session.edit("a", b"edited")
    session.edit("c", b"edited")
    assert session.refuses({"a/x": b"1", "c": None}) == ("a/x", "c")


def test_a_change_of_mode_alone_keeps_the_content(make: Make) -> None:
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


def test_no_symlink_that_a_cell_made_is_followed(make: Make, tmp_path: Path, read_tree: ReadTree) -> None:
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
    assert read_tree(outside) == {"b": b"2"}
    assert (session.target / "sub").is_symlink()
    assert (session.target / "a").is_symlink()


def test_each_version_has_another_whole_second(make: Make) -> None:
    session = make({"a": b"0"})
    seconds = [(session.target / "a").stat().st_mtime_ns // SECOND]
    for version in b"12345":
        session.bring({"a": bytes([version])})
        seconds.append((session.target / "a").stat().st_mtime_ns // SECOND)
    assert len(set(seconds)) == 6
    assert seconds == sorted(seconds)


def test_a_call_that_failed_half_way_can_be_made_again(make: Make) -> None:
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
    versions: list[dict[str, bytes | None]], make: Make
) -> None:
    session = make(versions[0])
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
    make: Make,
) -> None:
    session = make(old)
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
