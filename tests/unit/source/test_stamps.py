"""Scans that follow one another: what is looked at again, and that they find what a first one finds."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpulayer.source import Bundle, DigestCache, Limits, SecretRefused, SourceTooLarge, digests, scan, walk

LONG_AGO_NS = 1_600_000_000_123_456_789


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "source"
    (root / "package" / "deep").mkdir(parents=True)
    (root / "train.py").write_text("import package\n")
    (root / "package" / "module.py").write_text("VALUE = 1\n")
    (root / "package" / "deep" / "data.txt").write_text("12345")
    (root / ".gitignore").write_text("*.log\n")
    return root


@pytest.fixture
def scanner(monkeypatch: pytest.MonkeyPatch):
    """Scans with a clock that is an hour ahead, so that nothing counts as just changed."""
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() + 3_600_000_000_000)
    cache = DigestCache(None)

    def run(root: Path, previous: Bundle | None = None, **options) -> Bundle:
        return scan(root, cache=cache, previous=previous, **options)

    return run


def test_an_unchanged_folder_gives_the_very_same_bundle(folder: Path, scanner) -> None:
    first = scanner(folder)
    assert scanner(folder, first) is first


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "train.py").write_text("import packagE\n"),  # the same size
        lambda root: (root / "new.py").write_text(""),
        lambda root: (root / "package" / "deep" / "more.txt").write_text("x"),
        lambda root: (root / "package" / "module.py").unlink(),
        lambda root: (root / "package" / "module.py").rename(root / "package" / "renamed.py"),
        lambda root: (root / "package" / "module.py").chmod(0o755),
        lambda root: (root / "package" / "empty").mkdir(),
        lambda root: (root / ".gitignore").write_text("*.txt\n"),
        lambda root: (root / "package" / ".gpulayerignore").write_text("module.py\n"),
        lambda root: (root / "package").rename(root / "other"),
    ],
)
def test_any_change_is_seen(folder: Path, scanner, change) -> None:
    first = scanner(folder)
    change(folder)
    second = scanner(folder, first)
    assert second.manifest != first.manifest
    assert second.manifest == scan(folder).manifest


def test_a_change_that_keeps_size_and_modification_time_is_seen(folder: Path, scanner) -> None:
    path = folder / "train.py"
    os.utime(path, ns=(LONG_AGO_NS, LONG_AGO_NS))
    first = scanner(folder)
    path.write_text("IMPORT package\n")
    os.utime(path, ns=(LONG_AGO_NS, LONG_AGO_NS))
    assert scanner(folder, first).manifest != first.manifest


def test_what_is_left_out_may_change(folder: Path, scanner) -> None:
    (folder / "__pycache__").mkdir()
    first = scanner(folder)
    (folder / "__pycache__" / "train.pyc").write_bytes(b"x")
    assert scanner(folder, first) is first


def test_a_left_out_env_that_becomes_a_package_travels(folder: Path, scanner) -> None:
    (folder / "env").mkdir()
    (folder / "env" / "gym.py").write_text("")
    first = scanner(folder)
    assert "env/gym.py" not in first.manifest.by_path
    (folder / "env" / "__init__.py").write_text("")
    assert "env/gym.py" in scanner(folder, first).manifest.by_path


def test_an_environment_that_loses_its_mark_travels(folder: Path, scanner) -> None:
    (folder / "tools").mkdir()
    (folder / "tools" / "pyvenv.cfg").write_text("")
    (folder / "tools" / "tool.py").write_text("")
    first = scanner(folder)
    assert "tools/tool.py" not in first.manifest.by_path
    (folder / "tools" / "pyvenv.cfg").unlink()
    assert "tools/tool.py" in scanner(folder, first).manifest.by_path


def test_an_ignore_file_above_the_folder_counts(tmp_path: Path, folder: Path, scanner) -> None:
    (tmp_path / ".git").mkdir()
    first = scanner(folder)
    (tmp_path / ".gitignore").write_text("*.txt\n")
    assert "package/deep/data.txt" not in scanner(folder, first).manifest.by_path


def test_a_new_secret_is_refused(folder: Path, scanner) -> None:
    first = scanner(folder)
    (folder / ".env").write_text("TOKEN=1\n")
    with pytest.raises(SecretRefused):
        scanner(folder, first)


def test_another_folder_or_other_options_are_scanned_anew(tmp_path: Path, folder: Path, scanner) -> None:
    first = scanner(folder)
    other = tmp_path / "other"
    other.mkdir()
    (other / "a.py").write_text("")
    assert set(scanner(other, first).manifest.by_path) == {"a.py"}
    assert "train.py" not in scanner(folder, first, exclude=("train.py",)).manifest.by_path


def test_what_changed_just_now_is_not_relied_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = DigestCache(None)
    newest_ns = (folder / ".gitignore").stat().st_mtime_ns
    monkeypatch.setattr(time, "time_ns", lambda: newest_ns + 1)
    first = scan(folder, cache=cache)
    assert scan(folder, cache=cache, previous=first) is not first


def test_a_folder_with_symlinks_is_scanned_each_time(folder: Path, scanner) -> None:
    (folder / "link.py").symlink_to("train.py")
    first = scanner(folder)
    second = scanner(folder, first)
    assert second is not first
    assert second.manifest == first.manifest


# --- only what changed is read -----------------------------------------------------------------------------------


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of files that were read or folders that were listed by a walk, in order."""
    seen: list[str] = []
    hashed, entered = digests.hash_file, walk.Walk._enter

    def hash_file(path: str, **options: Any) -> digests.Hashed:
        seen.append(os.path.basename(path))
        return hashed(path, **options)

    def enter(self: walk.Walk, folder: Any) -> list[walk.Found]:
        seen.append(f"{os.path.basename(folder.source)}/")
        return entered(self, folder)

    monkeypatch.setattr(digests, "hash_file", hash_file)
    monkeypatch.setattr(walk.Walk, "_enter", enter)
    return seen


def test_of_a_changed_file_only_that_is_read_and_nothing_is_walked(folder: Path, scanner, readings: list[str]) -> None:
    first = scanner(folder)
    readings.clear()
    (folder / "package" / "module.py").write_text("VALUE = 2\n")
    second = scanner(folder, first)
    assert readings == ["module.py"]
    assert second == scan(folder)
    assert scanner(folder, second) is second


def test_a_file_that_was_touched_gives_the_same_manifest(folder: Path, scanner, readings: list[str]) -> None:
    first = scanner(folder)
    os.utime(folder / "train.py", ns=(LONG_AGO_NS, LONG_AGO_NS))
    second = scanner(folder, first)
    assert second.manifest is first.manifest
    assert second.source_of == first.source_of
    readings.clear()
    assert scanner(folder, second) is second
    assert readings == []


def test_saving_by_rename_and_a_file_that_came_and_went_need_no_walk(
    folder: Path, scanner, readings: list[str]
) -> None:
    first = scanner(folder)
    readings.clear()
    (folder / ".train.py.swp").write_text("an editor's own")
    (folder / ".train.py.swp").unlink()
    (folder / "new").write_text("import package, os\n")
    (folder / "new").rename(folder / "train.py")
    second = scanner(folder, first)
    assert readings == ["train.py"]
    assert second == scan(folder)


def test_a_mode_is_seen_without_a_walk(folder: Path, scanner, readings: list[str]) -> None:
    first = scanner(folder)
    (folder / "train.py").chmod(0o755)
    readings.clear()
    second = scanner(folder, first)
    assert second.manifest.by_path["train.py"].mode == 0o755
    assert "source/" not in readings
    assert second == scan(folder)


def test_the_content_that_a_changed_file_had_is_found_in_another(folder: Path, scanner) -> None:
    for name in ("a.py", "b.py", "c.py"):
        (folder / name).write_text("the same\n")
    first = scanner(folder)
    for name in ("a.py", "c.py"):
        (folder / name).write_text(f"changed {name}\n")
    second = scanner(folder, first)
    assert second == scan(folder)
    same = second.manifest.by_path["b.py"].sha256
    assert second.source_of[same] == str(folder / "b.py")
    (folder / "b.py").write_text("the last\n")
    assert same not in scanner(folder, second).source_of


def test_what_changed_just_now_is_read_again_and_nothing_else(
    folder: Path, monkeypatch: pytest.MonkeyPatch, readings: list[str]
) -> None:
    long_after_ns = time.time_ns() + 3_600_000_000_000
    monkeypatch.setattr(time, "time_ns", lambda: long_after_ns)
    cache = DigestCache(None)
    first = scan(folder, cache=cache)
    (folder / "train.py").write_text("import packagE\n")
    now_ns = (folder / "train.py").stat().st_mtime_ns + 1
    monkeypatch.setattr(time, "time_ns", lambda: now_ns)
    second = scan(folder, cache=cache, previous=first)
    (folder / "train.py").write_text("import pacKage\n")  # within one tick of the clock it may keep its stamps
    os.utime(folder / "train.py", ns=(now_ns - 1, now_ns - 1))
    readings.clear()
    third = scan(folder, cache=cache, previous=second)
    assert readings == ["train.py"]
    assert third.manifest == scan(folder).manifest
    assert third.manifest != second.manifest


@pytest.mark.parametrize(
    ("grown", "limits"),
    [(2_000, Limits(file_bytes=1_000)), (2_000, Limits(bundle_bytes=1_000))],
    ids=["a file", "the bundle"],
)
def test_a_file_that_grew_over_a_limit_is_refused(folder: Path, scanner, grown: int, limits: Limits) -> None:
    first = scanner(folder, limits=limits)
    (folder / "train.py").write_bytes(bytes(grown))
    with pytest.raises(SourceTooLarge):
        scanner(folder, first, limits=limits)


def test_a_secret_that_was_written_into_a_known_file_is_refused(folder: Path, scanner) -> None:
    (folder / "account.json").write_text("{}")
    first = scanner(folder)
    (folder / "account.json").write_text('{"private_key": "-----BEGIN"}')
    with pytest.raises(SecretRefused, match=r"account\.json"):
        scanner(folder, first)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no fifos here")
@pytest.mark.parametrize(
    "make", [Path.mkdir, lambda path: os.mkfifo(path), lambda path: path.symlink_to("package/module.py")]
)
def test_a_file_that_became_something_else_is_walked(folder: Path, scanner, make) -> None:
    first = scanner(folder)
    (folder / "train.py").unlink()
    make(folder / "train.py")
    assert scanner(folder, first).manifest == scan(folder).manifest


def test_another_folder_behind_the_same_symlink_is_scanned(tmp_path: Path, folder: Path, scanner) -> None:
    link = tmp_path / "link"
    link.symlink_to(folder)
    first = scanner(link)
    assert scanner(link, first) is first
    other = tmp_path / "other"
    other.mkdir()
    (other / "a.py").write_text("")
    link.unlink()
    link.symlink_to(other)
    assert set(scanner(link, first).manifest.by_path) == {"a.py"}


NAMES = ["a.py", "b.py", "-rf", "new\nline", "p/c.py", "p/q/d.py", "p/.gitignore", "p/__init__.py"]
steps = st.lists(
    st.tuples(st.sampled_from(NAMES), st.sampled_from(["write", "remove", "exec", "touch", "rename"])), max_size=12
)


@given(steps, st.booleans())
@settings(deadline=None, max_examples=100)
def test_scans_one_after_the_other_find_what_a_first_scan_finds(steps: list[tuple[str, str]], old: bool) -> None:
    """`old`: as if every change were long ago when the next scan looks; else all of them are just now."""
    real = time.time_ns
    ahead_ns = 3_600_000_000_000 if old else 0
    with tempfile.TemporaryDirectory() as name, mock.patch("time.time_ns", side_effect=lambda: real() + ahead_ns):
        root = Path(name)
        (root / "p" / "q").mkdir(parents=True)
        cache = DigestCache(None)
        bundle = scan(root, cache=cache)
        for number, (path, action) in enumerate(steps):
            act(root / path, action, number)
            bundle = scan(root, cache=cache, previous=bundle)
            assert bundle == scan(root)


def act(path: Path, action: str, number: int) -> None:
    if action == "write":
        path.write_text("x" * number if path.name != ".gitignore" else ["*.py\n", "q/\n", "!c.py\n"][number % 3])
    elif path.exists():
        if action == "remove":
            path.unlink()
        elif action == "exec":
            path.chmod(0o755 if number % 2 else 0o644)
        elif action == "touch":
            os.utime(path)
        else:
            path.rename(path.with_name("renamed"))
