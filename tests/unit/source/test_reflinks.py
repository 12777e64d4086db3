"""Reflinks on a file system that has them: btrfs in a file, mounted for these tests."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpulayer.source import Manifest, materialize, scan, synchronize
from gpulayer.source.blobs import Blobs

_IMAGE_BYTES = 256 << 20
_LARGE_BYTES = 20_000_000


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        raise OSError(f"{command[0]} failed: {done.stderr.strip()}")
    return done.stdout.strip()


@pytest.fixture(scope="module")
def btrfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder on btrfs. Skips where none can be mounted; unmounts it, and its loop device goes, in any case."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("only root on Linux mounts a btrfs")
    if shutil.which("mkfs.btrfs") is None:
        pytest.skip("mkfs.btrfs is not installed")
    folder = tmp_path_factory.mktemp("btrfs")
    image, target = folder / "image", folder / "mounted"
    target.mkdir()
    with image.open("wb") as file:
        file.truncate(_IMAGE_BYTES)
    try:
        _run("mkfs.btrfs", "--quiet", str(image))
        _run("mount", "-t", "btrfs", "-o", "loop", str(image), str(target))  # the loop device ends with the mount
    except OSError as error:
        pytest.skip(f"no btrfs here: {error}")
    try:
        yield target
    finally:
        _run("umount", str(target))
        image.unlink()


def _used_bytes(folder: Path) -> int:
    os.sync()
    _run("btrfs", "filesystem", "sync", str(folder))
    status = os.statvfs(folder)
    return (status.f_blocks - status.f_bfree) * status.f_frsize


def test_a_workspace_shares_its_blobs_bytes_and_its_writes_stay_its_own(btrfs: Path) -> None:
    home = btrfs / "home"
    home.mkdir()
    content = os.urandom(_LARGE_BYTES)
    (home / "weights.bin").write_bytes(content)
    (home / "train.py").write_text("LR = 1\n")
    bundle = scan(home)
    blobs = Blobs(btrfs / "blobs")
    for digest, path in bundle.source_of.items():
        blobs.put(digest, [Path(path).read_bytes()])
    before = _used_bytes(btrfs)

    materialize(bundle.manifest, btrfs / "w", blobs.find)
    assert (btrfs / "w" / "weights.bin").read_bytes() == content
    assert _used_bytes(btrfs) - before < _LARGE_BYTES // 4

    with (btrfs / "w" / "weights.bin").open("r+b") as file:
        file.write(b"overwritten")
        file.seek(0, os.SEEK_END)
        file.write(b"appended")
    blob = blobs.path(hashlib.sha256(content).hexdigest())
    assert blob.read_bytes() == content
    assert blob.stat().st_nlink == (btrfs / "w" / "weights.bin").stat().st_nlink == 1


def test_a_kept_workspace_takes_reflinks_too(btrfs: Path) -> None:
    home = btrfs / "again"
    home.mkdir()
    blobs = Blobs(btrfs / "blobs")
    (home / "a.bin").write_bytes(os.urandom(_LARGE_BYTES))
    bundle = scan(home)
    for digest, path in bundle.source_of.items():
        blobs.put(digest, [Path(path).read_bytes()])
    (btrfs / "kept").mkdir()
    before = _used_bytes(btrfs)
    synchronize(Manifest(files=()), bundle.manifest, btrfs / "kept", blobs.find, {})
    assert (btrfs / "kept" / "a.bin").read_bytes() == (home / "a.bin").read_bytes()
    assert _used_bytes(btrfs) - before < _LARGE_BYTES // 4


def test_blobs_in_a_shared_file_are_copied(btrfs: Path) -> None:
    contents = [b"%04d" % number * 50 for number in range(40)]
    home = btrfs / "small"
    home.mkdir()
    for number, content in enumerate(contents):
        (home / f"{number:02d}.py").write_bytes(content)
    blobs = Blobs(btrfs / "blobs")
    blobs.take((hashlib.sha256(content).hexdigest(), len(content), [content]) for content in contents)
    bundle = scan(home)
    materialize(bundle.manifest, btrfs / "copied", blobs.find)
    assert scan(btrfs / "copied").manifest == bundle.manifest


def test_a_cache_on_another_file_system_is_copied_from(btrfs: Path, tmp_path: Path) -> None:
    content = os.urandom(1_000_000)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "a.bin").write_bytes(content)
    bundle = scan(tmp_path / "home")
    blobs = Blobs(tmp_path / "blobs")
    blobs.put(hashlib.sha256(content).hexdigest(), [content])
    materialize(bundle.manifest, btrfs / "from elsewhere", blobs.find)
    assert (btrfs / "from elsewhere" / "a.bin").read_bytes() == content
