"""Which files a cell made or changed, by the globs of `--output`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpulayer.source import SourceError
from gpulayer.source.collect import Globs, collect, stamps


def tree(folder: Path, *paths: str) -> None:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(path)


def paths(folder: Path, *globs: str) -> list[str]:
    return [entry.path for entry in collect(str(folder), Globs(globs), {}).files]


FILES = ("a.csv", "results/a.csv", "results/deep/b.csv", "results/log.txt", "other/model.pt")


@pytest.mark.parametrize(
    ("globs", "matched"),
    [
        (("*.csv",), ["a.csv", "results/a.csv", "results/deep/b.csv"]),
        (("/*.csv",), ["a.csv"]),
        (("results/*.csv",), ["results/a.csv"]),
        (("./results/*.csv",), ["results/a.csv"]),
        (("results/**/*.csv",), ["results/a.csv", "results/deep/b.csv"]),
        (("results/",), ["results/a.csv", "results/deep/b.csv", "results/log.txt"]),
        (("results",), ["results/a.csv", "results/deep/b.csv", "results/log.txt"]),
        (("results/", "!*.txt"), ["results/a.csv", "results/deep/b.csv"]),
        (("!*.txt", "results/"), ["results/a.csv", "results/deep/b.csv", "results/log.txt"]),
        (("*.pt", "a.csv"), ["a.csv", "other/model.pt", "results/a.csv"]),
        (("nothing/*",), []),
        (("[",), []),
    ],
)
def test_globs_mean_what_they_mean_in_gitignore(tmp_path: Path, globs: tuple[str, ...], matched: list[str]) -> None:
    tree(tmp_path, *FILES)
    assert paths(tmp_path, *globs) == matched


def test_globs_that_match_nothing_are_told() -> None:
    globs = Globs(["*.csv", "*.pt", "!x.pt", "results/"])
    assert globs.without_match(["a.csv", "x.pt"]) == ["results/"]
    assert globs.without_match([]) == ["*.csv", "*.pt", "results/"]


def test_only_what_was_made_or_changed(tmp_path: Path) -> None:
    tree(tmp_path, "same.txt", "edited.txt", "replaced.txt", "gone.txt")
    globs = Globs(["*.txt"])
    before = stamps(str(tmp_path), globs)
    (tmp_path / "edited.txt").write_text("EDITED.TXT")
    tree(tmp_path, "made.txt")
    (tmp_path / "new").write_text("x" * len("replaced.txt"))
    (tmp_path / "new").rename(tmp_path / "replaced.txt")
    (tmp_path / "gone.txt").unlink()
    manifest = collect(str(tmp_path), globs, before)
    assert [entry.path for entry in manifest.files] == ["edited.txt", "made.txt", "replaced.txt"]
    assert collect(str(tmp_path), globs, stamps(str(tmp_path), globs)).files == ()


def test_no_symlink_and_nothing_special_is_taken_or_entered(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    tree(tmp_path, "home/x.txt", "secret/y.txt")
    work = tmp_path / "home"
    (work / "link.txt").symlink_to(tmp_path / "secret" / "y.txt")
    (work / "folder").symlink_to(tmp_path / "secret")
    os.mkfifo(work / "pipe.txt")
    tree(work, "__pycache__/m.txt", ".git/config.txt", ".gpulayer-12.tmp.txt")
    assert paths(work, "*.txt", "folder/") == ["x.txt"]


def test_the_executable_bit_is_all_of_the_mode_that_travels(tmp_path: Path) -> None:
    tree(tmp_path, "a.sh", "b.txt")
    (tmp_path / "a.sh").chmod(0o700)
    (tmp_path / "b.txt").chmod(0o666)
    assert [entry.mode for entry in collect(str(tmp_path), Globs(["*"]), {}).files] == [0o755, 0o644]


def test_a_name_that_cannot_travel_is_told(tmp_path: Path) -> None:
    tree(tmp_path, "a\\b.txt")
    with pytest.raises(SourceError, match="holds neither NUL nor backslash"):
        paths(tmp_path, "*.txt")


def test_more_files_than_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpulayer.source.collect.MOST_FILES", 2)
    tree(tmp_path, *FILES)
    with pytest.raises(SourceError, match="--output matches 3 files, at most 2 come back: narrow it"):
        paths(tmp_path, "*.csv")
