import os
import time
from pathlib import Path

import pytest

from gpulayer.source import Bundle, DigestCache, SecretRefused, scan

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
