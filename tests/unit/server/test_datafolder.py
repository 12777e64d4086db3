"""The data folder: who holds it, who waits for it, and where it must not lie."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from gpulayer.protocol.endpoint import Endpoint
from gpulayer_server import folderlock
from gpulayer_server.datafolder import DataFolder, DataFolderError, FolderHeld, when_free

PATIENCE_S = 30.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data"


def test_one_holds_it_and_says_who(path: Path) -> None:
    folder = DataFolder(path)
    assert path.stat().st_mode & 0o777 == 0o700
    with pytest.raises(FolderHeld, match=rf"{path} is held by another control plane \(pid {os.getpid()}\); attach to"):
        DataFolder(path)
    folder.close()
    DataFolder(path).close()


def test_the_port_of_the_last_holder_is_remembered(path: Path) -> None:
    folder = DataFolder(path)
    assert folder.last_port == 0
    folder.publish(Endpoint(url="http://127.0.0.1:4321", token="t", pid=1, version="0"))
    folder.close()
    after = DataFolder(path)
    assert after.last_port == 4321
    assert (path / "endpoint.json").stat().st_mode & 0o777 == 0o600
    after.close()


def test_on_a_network_file_system_nothing_is_made(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folderlock, "network_filesystem", lambda _: "nfs4")
    with pytest.raises(DataFolderError, match=r"network file system \(nfs4\).*; set GPULAYER_DATA to a folder"):
        DataFolder(path)
    assert not path.exists()


def test_a_folder_that_can_not_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataFolderError, match=r"file/data can't be the data folder: Not a directory; mend that, or"):
        DataFolder(tmp_path / "file" / "data")


def test_an_endpoint_that_can_not_be_written_is_one_line(path: Path) -> None:
    folder = DataFolder(path)
    (path / "endpoint.json").mkdir()
    with pytest.raises(DataFolderError, match=r"endpoint\.json can't be written: Is a directory"):
        folder.publish(Endpoint(url="http://127.0.0.1:1", token="t", pid=1, version="0"))
    assert [each.name for each in path.iterdir() if each.name.startswith(".")] == []
    folder.close()


# ---------------------------------------------------------------- waiting


def test_who_waits_gets_it_when_the_holder_lets_go(path: Path) -> None:
    async def run() -> None:
        holder = DataFolder(path)
        waiting = [asyncio.ensure_future(when_free(path)) for _ in range(2)]
        done, _ = await asyncio.wait(waiting, timeout=0.1)
        assert not done
        holder.close()
        for _ in range(2):
            done, pending = await asyncio.wait(waiting, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
            assert len(done) == 1  # one at a time
            (first,) = done
            assert (path / "lock").read_text() == f"{os.getpid()}\n"
            first.result().close()
            waiting = list(pending)

    asyncio.run(run())


def test_who_no_longer_waits_lets_go_of_what_it_gets(path: Path) -> None:
    async def run() -> None:
        holder = DataFolder(path)
        waiting = asyncio.ensure_future(when_free(path))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        holder.close()
        after = await asyncio.wait_for(when_free(path), PATIENCE_S)
        after.close()

    asyncio.run(run())


def test_a_folder_that_was_removed_meanwhile_is_made_anew_and_held(path: Path) -> None:
    async def run() -> None:
        holder = DataFolder(path)
        waiting = asyncio.ensure_future(when_free(path))
        done, _ = await asyncio.wait([waiting], timeout=0.1)
        assert not done
        shutil.rmtree(path)
        holder.close()
        folder = await asyncio.wait_for(waiting, PATIENCE_S)
        with pytest.raises(FolderHeld):
            DataFolder(path)
        folder.close()

    asyncio.run(run())


def test_what_is_wrong_with_a_folder_is_told_to_who_waits(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataFolderError, match="can't be the data folder"):
        asyncio.run(when_free(tmp_path / "file" / "data"))
