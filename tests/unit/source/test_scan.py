"""Scans: digests, limits, secrets, refused folders."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

import pytest

from gpulayer.source import (
    Bundle,
    DigestCache,
    Limits,
    Manifest,
    SecretRefused,
    SourceError,
    SourceTooLarge,
    digests,
    iter_pack,
    scan,
)

LATER = 10**18 * 4  # a clock for which no file is racy


def write(root: Path, path: str, content: bytes | str = b"x") -> Path:
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content.encode() if isinstance(content, str) else content)
    return target


def paths(bundle: Bundle) -> list[str]:
    return [entry.path for entry in bundle.manifest.files]


def test_the_bundle_says_what_is_on_disk(tmp_path: Path) -> None:
    write(tmp_path, "b.sh", b"#!/bin/sh\n").chmod(0o700)
    write(tmp_path, "sub/a.py", b"print(1)").chmod(0o600)
    write(tmp_path, "c.pyc")
    bundle = scan(tmp_path)
    assert [(entry.path, entry.mode, entry.size, entry.sha256) for entry in bundle.manifest.files] == [
        ("b.sh", 0o755, 10, hashlib.sha256(b"#!/bin/sh\n").hexdigest()),
        ("sub/a.py", 0o644, 8, hashlib.sha256(b"print(1)").hexdigest()),
    ]
    assert bundle.root == tmp_path
    assert bundle.scanned_files == 3
    assert Manifest.from_bytes(bundle.manifest.to_bytes()) == bundle.manifest
    assert {name: Path(path).read_bytes() for name, path in bundle.source_of.items()} == {
        hashlib.sha256(content).hexdigest(): content for content in (b"#!/bin/sh\n", b"print(1)")
    }


def test_the_same_content_elsewhere_is_the_same_bundle(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write(tmp_path, f"{name}/a.py", "same")
        write(tmp_path, f"{name}/sub/b.py", "same too")
    assert scan(tmp_path / "one").manifest.digest == scan(tmp_path / "two").manifest.digest


def test_an_empty_folder_is_an_empty_bundle(tmp_path: Path) -> None:
    assert len(scan(tmp_path).manifest) == 0


def test_an_unchanged_folder_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = DigestCache(clock_ns=lambda: LATER)
    write(tmp_path, "a.py", "1")
    write(tmp_path, "data.json", "{}")
    first = scan(tmp_path, cache=cache)
    read = []
    original = digests.hash_file
    monkeypatch.setattr(digests, "hash_file", lambda path, **rest: read.append(path) or original(path, **rest))
    assert scan(tmp_path, cache=cache).manifest == first.manifest
    assert read == []
    write(tmp_path, "a.py", "22")
    changed = scan(tmp_path, cache=cache)
    assert read == [str(tmp_path / "a.py")]
    assert changed.manifest.by_path["a.py"].sha256 == hashlib.sha256(b"22").hexdigest()
    assert changed.manifest.by_path["data.json"] == first.manifest.by_path["data.json"]


def test_a_change_of_mode_alone_is_seen(tmp_path: Path) -> None:
    cache = DigestCache(clock_ns=lambda: LATER)
    script = write(tmp_path, "run.sh")
    before = scan(tmp_path, cache=cache).manifest
    script.chmod(0o755)
    after = scan(tmp_path, cache=cache).manifest
    assert (before.files[0].mode, after.files[0].mode) == (0o644, 0o755)


def test_what_was_scanned_can_be_packed(tmp_path: Path) -> None:
    write(tmp_path, "a\nb", "1")
    write(tmp_path, "-rf", "2")
    bundle = scan(tmp_path)
    assert sum(map(len, iter_pack(bundle.source_of.items()))) == 9 + 2 * 41 + 40


# --- limits ----------------------------------------------------------------------------------------------------------


def test_a_large_file_is_named_with_its_size_and_the_flags(tmp_path: Path) -> None:
    write(tmp_path, "data/big.bin", bytes(3000))
    write(tmp_path, "data/bigger.bin", bytes(4_000_000))
    write(tmp_path, "a.py")
    with pytest.raises(SourceTooLarge) as caught:
        scan(tmp_path, limits=Limits(file_bytes=2000))
    message = str(caught.value)
    assert message.startswith("data/bigger.bin (4.0 MB), data/big.bin (3.0 kB): larger than 2.0 kB")
    assert "--exclude data/bigger.bin" in message
    assert "--max-file" in message
    assert "\n" not in message
    assert paths(scan(tmp_path, exclude=["data/*.bin"], limits=Limits(file_bytes=2000)))[0] == "a.py"
    assert len(scan(tmp_path, limits=Limits(file_bytes=4_000_000)).manifest) == 3


def test_a_large_bundle_names_the_five_largest(tmp_path: Path) -> None:
    for number in range(8):
        write(tmp_path, f"f{number}", bytes(1000 + number))
    with pytest.raises(SourceTooLarge) as caught:
        scan(tmp_path, limits=Limits(bundle_bytes=5000))
    message = str(caught.value)
    assert "more than 5.0 kB" in message
    assert "f7 (1.0 kB), f6 (1.0 kB), f5 (1.0 kB), f4 (1.0 kB), f3 (1.0 kB)" in message
    assert "f2" not in message
    assert "--max-bundle" in message
    assert len(scan(tmp_path, limits=Limits(bundle_bytes=8028)).manifest) == 8


def test_too_many_files_name_the_fullest_folders(tmp_path: Path) -> None:
    for number in range(6):
        write(tmp_path, f"images/{number}.png")
    write(tmp_path, "a.py")
    with pytest.raises(SourceTooLarge, match=r"more than 5 files.*images \(6 files\).*--max-files"):
        scan(tmp_path, limits=Limits(files=5))
    assert scan(tmp_path, limits=Limits(files=7)).scanned_files == 7


def test_the_scan_stops_at_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        write(tmp_path, f"d{number}/file", bytes(100))
    listed = []
    original = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: listed.append(path) or original(path))
    with pytest.raises(SourceTooLarge):
        scan(tmp_path, limits=Limits(bundle_bytes=250))
    assert len(listed) == 4  # the source folder, and three that hold 300 bytes


def test_limits_read_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "big", bytes(100))
    monkeypatch.setattr(digests, "hash_file", lambda *_, **__: pytest.fail("a file was read"))
    with pytest.raises(SourceTooLarge):
        scan(tmp_path, limits=Limits(file_bytes=10))


def test_what_is_left_out_does_not_count(tmp_path: Path) -> None:
    write(tmp_path, "checkpoints/big.pt", bytes(1000))
    write(tmp_path, "a.py")
    assert paths(scan(tmp_path, limits=Limits(bundle_bytes=10, file_bytes=10, files=1))) == ["a.py"]


def test_negative_limits_are_refused() -> None:
    with pytest.raises(ValueError, match=r"Limits.files is -1"):
        Limits(files=-1)


# --- secrets ---------------------------------------------------------------------------------------------------------


def test_a_secret_that_would_travel_is_refused_by_name(tmp_path: Path) -> None:
    write(tmp_path, "app/.env", "TOKEN=1")
    write(tmp_path, "key.pem")
    with pytest.raises(SecretRefused) as caught:
        scan(tmp_path)
    message = str(caught.value)
    assert "app/.env (environment variables)" in message
    assert "key.pem (a private key)" in message
    assert ".gpulayerignore" in message
    assert "--include " in message


def test_an_ignored_secret_is_left_out_silently(tmp_path: Path) -> None:
    write(tmp_path, ".gitignore", ".env\n")
    write(tmp_path, ".env", "TOKEN=1")
    bundle = scan(tmp_path)
    assert paths(bundle) == [".gitignore"]
    assert [str(record) for record in bundle.exclusions] == [".env was left out by .gitignore line 1 (.env)"]


def test_an_include_that_names_it_allows_it(tmp_path: Path) -> None:
    write(tmp_path, ".env")
    write(tmp_path, "certificates/ca.pem")
    assert paths(scan(tmp_path, include=[".env", "certificates/*.pem"])) == [".env", "certificates/ca.pem"]
    for vague in (["*"], ["**"], ["certificates", ".env"], ["certificates/*", ".env"], ["certificates/**", ".env"]):
        with pytest.raises(SecretRefused):
            scan(tmp_path, include=vague)


def test_an_allowed_secret_is_refused_again_without_the_include(tmp_path: Path) -> None:
    cache = DigestCache(clock_ns=lambda: LATER)
    write(tmp_path, ".env")
    write(tmp_path, "account.json", '{"private_key": "-----BEGIN"}')
    assert len(scan(tmp_path, include=[".env", "account.json"], cache=cache).manifest) == 2
    with pytest.raises(SecretRefused, match=r"\.env"):
        scan(tmp_path, cache=cache)
    with pytest.raises(SecretRefused, match=r"account\.json \(a service account's private key\)"):
        scan(tmp_path, include=[".env"], cache=cache)


def test_secrets_are_found_by_content_also_when_the_digest_is_known(tmp_path: Path) -> None:
    cache = DigestCache(clock_ns=lambda: LATER)
    account = write(tmp_path, "project-1.json", '{"private_key": "x"}')
    cache.digest(account)  # somebody else took the digest and did not look
    with pytest.raises(SecretRefused, match=r"project-1\.json"):
        scan(tmp_path, cache=cache)


def test_a_symlink_to_a_secret_is_a_secret(tmp_path: Path) -> None:
    write(tmp_path, ".gitignore", ".env\n.aws\n")
    write(tmp_path, ".env")
    write(tmp_path, ".aws/credentials")
    (tmp_path / "settings.txt").symlink_to(".env")
    with pytest.raises(SecretRefused, match=r"settings\.txt"):
        scan(tmp_path)
    (tmp_path / "settings.txt").unlink()
    (tmp_path / "cloud").symlink_to(".aws")
    with pytest.raises(SecretRefused, match="cloud/credentials"):
        scan(tmp_path)


# --- folders that are refused ----------------------------------------------------------------------------------------


def test_home_needs_to_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home" / "ada"
    write(home, "a.py")
    monkeypatch.setenv("HOME", str(home))
    with pytest.raises(SourceError, match=r"your home folder .*--source"):
        scan(home)
    (tmp_path / "link").symlink_to(home)
    with pytest.raises(SourceError, match="your home folder"):
        scan(tmp_path / "link")
    with pytest.raises(SourceError, match="holds your home folder"):
        scan(tmp_path / "home")
    assert paths(scan(home, explicit=True)) == ["a.py"]
    write(home, "project/b.py")
    assert paths(scan(home / "project")) == ["b.py"]


def test_the_whole_file_system_needs_to_be_named() -> None:
    with pytest.raises(SourceError, match=r"the whole file system.*--source /"):
        scan("/")


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"nowhere cannot be used: No such file or directory"):
        scan(tmp_path / "nowhere")
    with pytest.raises(SourceError, match=r"a\.py is not a folder"):
        scan(write(tmp_path, "a.py"))


def test_one_text_is_no_list_of_globs(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"include='\*\.py' is one text; give a list"):
        scan(tmp_path, include="*.py")


def test_a_file_that_vanishes_during_the_scan_does_not_travel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "a.py")
    gone = write(tmp_path, "gone.py")
    original = digests.hash_file

    def vanish(path: str, **rest: object) -> digests.Hashed:
        if path == str(gone):
            gone.unlink()
        return original(path, **rest)  # type: ignore[arg-type]

    monkeypatch.setattr(digests, "hash_file", vanish)
    assert paths(scan(tmp_path)) == ["a.py"]


def test_small_files_that_were_read_are_held_for_the_upload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "a.py", b"one")
    write(tmp_path, "b.py", b"two")
    write(tmp_path, "large.bin", bytes(digests.READ_AT_ONCE_BYTES))
    cache = DigestCache(clock_ns=lambda: LATER)
    first = scan(tmp_path, cache=cache)
    assert sorted(first.contents.values()) == [b"one", b"two"]
    assert all(hashlib.sha256(content).hexdigest() == digest for digest, content in first.contents.items())
    assert scan(tmp_path, cache=cache).contents == {}
    monkeypatch.setattr(sys.modules[Limits.__module__], "HELD_BYTES", 4)
    assert list(scan(tmp_path).contents.values()) == [b"one"]
