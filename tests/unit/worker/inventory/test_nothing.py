"""Where neither a device nor NVML is there, nobody is asked; where one of them may be, somebody is."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from gpulayer_worker.inventory.nvmlguard import NvmlGuard, NvmlTrouble, nothing_to_ask

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a child is always asked")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine without any of NVIDIA's."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/ld.so.cache").write_bytes(b"glibc-ld.so.cache1.1\0libc.so.6\0")
    return tmp_path


def test_nothing_is_there(root: Path) -> None:
    assert nothing_to_ask(root, {})


@pytest.mark.parametrize("file", ["dev/nvidia0", "proc/driver/nvidia/gpus/0000:01:00.0", "usr/lib64/libnvidia-ml.so.1"])
def test_a_device_or_the_library_is_there(root: Path, file: str) -> None:
    (root / file).parent.mkdir(parents=True)
    (root / file).touch()
    assert not nothing_to_ask(root, {})


def test_the_library_is_in_the_loaders_cache(root: Path) -> None:
    """As under WSL, which shows no device of NVIDIA's."""
    (root / "etc/ld.so.cache").write_bytes(b"libc.so.6\0/usr/lib/wsl/lib/libnvidia-ml.so.1\0")
    assert not nothing_to_ask(root, {})


def test_the_library_is_where_this_environment_says(root: Path) -> None:
    (root / "opt/cuda").mkdir(parents=True)
    (root / "opt/cuda/libnvidia-ml.so.1").touch()
    assert not nothing_to_ask(root, {"LD_LIBRARY_PATH": "/nowhere:/opt/cuda"})
    assert nothing_to_ask(root, {"LD_LIBRARY_PATH": "/nowhere"})


def test_a_loader_that_has_no_cache_may_look_anywhere(root: Path) -> None:
    (root / "etc/ld.so.cache").unlink()
    assert not nothing_to_ask(root, {})


def test_bindings_of_somebodys_own_are_asked(root: Path) -> None:
    assert not nothing_to_ask(root, {"PYTHONPATH": "/mine"})


def test_then_no_child_is_started() -> None:
    async def go() -> None:
        guard = NvmlGuard(("/nowhere/python",), absent=lambda: True)
        with pytest.raises(NvmlTrouble, match="no NVIDIA device is here"):
            await guard.ask({"ask": "machine"}, 60.0)
        assert guard.present is False
        await guard.close()

    asyncio.run(go())
