"""What travels with a command."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpulayer.client.sending import Sender, SourceRefused
from gpulayer.client.submission import Input, Source, bundle_of, parse_input
from gpulayer.source import Bundle, Limits


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a source and data beside it."""
    folder = tmp_path / "here"
    for name, text in {"src/a.py": "a", "src/.gitignore": "*.log\n", "src/x.log": "x", "data/b": "b", "f": "f"}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def sender(tmp_path: Path) -> Sender:
    return Sender(tmp_path / "remembered")


def bundled(sender: Sender, source: str | None, *inputs: str) -> Bundle:
    bundle = bundle_of(sender, Source(folder=source) if source else None, [parse_input(each) for each in inputs])
    assert bundle is not None
    for entry in bundle.manifest.files:
        if entry.kind == "file":
            assert os.path.getsize(bundle.source_of[entry.sha256]) == entry.size
    return bundle


def paths(bundle: Bundle) -> list[str]:
    return [entry.path for entry in bundle.manifest.files]


@pytest.mark.parametrize(
    ("text", "source", "target"),
    [
        ("f", "f", "f"),
        ("f:g", "f", "g"),
        ("f:./deep//g", "f", "deep/g"),
        ("f:into/", "f", "into/f"),
        ("data", "data", "data"),
        ("data/", "data/", "data"),
        ("data:.", "data", ""),
        ("data:./", "data", ""),
        ("./data/../f", "./data/../f", "f"),
        ("with:colon", "with:colon", "with:colon"),
        ("with:colon:x", "with:colon", "x"),
    ],
)
def test_sources_and_where_they_lie(here: Path, text: str, source: str, target: str) -> None:
    (here / "with:colon").write_text("c")
    assert parse_input(text) == Input(source=source, target=target)


def test_a_drive_letter_parts_nothing(here: Path) -> None:
    (here / "C:f").write_text("c")
    assert parse_input("C:f:g", windows=True) == Input(source="C:f", target="g")
    with pytest.raises(SourceRefused, match=r"input C:\\nowhere is not there|input 'C:\\\\nowhere' is not there"):
        parse_input("C:\\nowhere:g", windows=True)


@pytest.mark.parametrize("target", ["../x", "a/../../x", "/x", "..", "a/.."])
def test_outside_the_folder(here: Path, target: str) -> None:
    with pytest.raises(SourceRefused, match="an input can't lie outside the job's folder; write a path below it"):
        parse_input(f"f:{target}")


def test_inputs_are_entries_beside_the_sources(here: Path, sender: Sender) -> None:
    (here / "f").chmod(0o755)
    bundle = bundled(sender, "src", "data:in", "f:deep/f")
    assert paths(bundle) == [".gitignore", "a.py", "deep/f", "in/b"]
    assert [entry.mode for entry in bundle.manifest.files] == [0o644, 0o644, 0o755, 0o644]


def test_an_input_takes_the_place_of_a_file_of_the_source(here: Path, sender: Sender) -> None:
    bundle = bundled(sender, "src", "f:a.py")
    assert bundle.source_of[bundle.manifest.by_path["a.py"].sha256] == str(here / "f")


def test_inputs_alone_and_none_at_all(here: Path, sender: Sender) -> None:
    assert paths(bundled(sender, None, "data:.")) == ["b"]
    assert bundle_of(sender, None, []) is None


def test_ignore_rules_and_limits_are_the_sources_alone(here: Path, sender: Sender) -> None:
    (here / "big").write_bytes(b"x" * 100)
    source = Source(folder="src", limits=Limits(file_bytes=50, bundle_bytes=60))
    bundle = bundle_of(sender, source, [parse_input("big"), parse_input("src:again")])
    assert bundle is not None
    assert paths(bundle) == [".gitignore", "a.py", "again/.gitignore", "again/a.py", "again/x.log", "big"]


def test_notebooks_travel_with_commands(here: Path, sender: Sender) -> None:
    (here / "src" / "n.ipynb").write_text("{}")
    assert "n.ipynb" in paths(bundled(sender, "src"))


def test_links_are_what_they_point_at(here: Path, sender: Sender) -> None:
    (here / "data" / "link").symlink_to(here / "f")
    (here / "data" / "folder").symlink_to(here / "src")
    bundle = bundled(sender, None, "data")
    assert paths(bundle) == ["data/b", "data/folder/.gitignore", "data/folder/a.py", "data/folder/x.log", "data/link"]


def test_a_circle_and_a_link_to_nowhere(here: Path, sender: Sender) -> None:
    (here / "data" / "self").symlink_to(here / "data")
    with pytest.raises(SourceRefused, match="self of input data links to a folder that it is in"):
        bundled(sender, None, "data")
    (here / "data" / "self").unlink()
    (here / "data" / "gone").symlink_to(here / "nothing")
    with pytest.raises(SourceRefused, match="gone of input data is a link that points nowhere"):
        bundled(sender, None, "data")


def test_secrets_have_to_be_named_by_themselves(here: Path, sender: Sender) -> None:
    (here / "data" / ".env").write_text("TOKEN=x")
    with pytest.raises(SourceRefused, match=r"\.env of input data looks like a secret .* name it by itself"):
        bundled(sender, None, "data")
    assert paths(bundled(sender, None, "data/.env")) == [".env"]


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        (("f:x", "data/b:x"), "inputs f and data/b would both be x"),
        (("f:x", "data/b:x/y"), "an input can't lie there: "),
        (("f:.",), "input f is a file: name it too"),
    ],
)
def test_inputs_in_each_others_way(here: Path, sender: Sender, inputs: tuple[str, ...], said: str) -> None:
    with pytest.raises(SourceRefused, match=said):
        bundled(sender, None, *inputs)


def test_empty_files_and_folders(here: Path, sender: Sender) -> None:
    (here / "data" / "hollow").mkdir()
    (here / "data" / "empty").touch()
    entries = {entry.path: (entry.kind, entry.size) for entry in bundled(sender, None, "data").manifest.files}
    assert entries == {"data/b": ("file", 1), "data/empty": ("file", 0), "data/hollow": ("dir", 0)}


def test_an_unchanged_input_is_not_read_again(here: Path, sender: Sender, monkeypatch: pytest.MonkeyPatch) -> None:
    os.utime(here / "f", (1_000_000_000, 1_000_000_000))
    first = bundled(sender, None, "f")
    read: list[str] = []
    real = sender.cache.hash
    monkeypatch.setattr(sender.cache, "hash", lambda path, **more: read.append(path) or real(path, **more))
    assert bundled(sender, None, "f").manifest == first.manifest
    assert len(read) <= 1  # once more where the clock of the disk is coarse


def test_what_is_named_by_itself_is_not_the_sources(here: Path, sender: Sender) -> None:
    """Neither its limits nor its refusal of secrets are for it; elsewhere it stays in the source too."""
    (here / "src" / "big").write_bytes(b"x" * 100)
    (here / "src" / ".env").write_text("A=1")
    source = Source(folder="src", limits=Limits(file_bytes=50))
    bundle = bundle_of(sender, source, [parse_input("src/big"), parse_input("src/.env")])
    assert bundle is not None
    assert paths(bundle) == [".env", ".gitignore", "a.py", "big"]
    moved = bundle_of(
        sender, source, [parse_input("src/big:in/big"), parse_input("src/.env"), parse_input("src/a.py:b.py")]
    )
    assert moved is not None
    assert paths(moved) == [".env", ".gitignore", "a.py", "b.py", "in/big"]
