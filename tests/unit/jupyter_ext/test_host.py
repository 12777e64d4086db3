"""The control plane on its own thread of this process."""

from __future__ import annotations

import asyncio
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from gpulayer.protocol.endpoint import read_endpoint
from gpulayer.protocol.pin import pin
from gpulayer_jupyter import host as host_module
from gpulayer_jupyter.host import Host
from gpulayer_jupyter.place import State
from gpulayer_jupyter.thread import LoopThread
from gpulayer_server.datafolder import DataFolder
from tests.support.processes import until


def waiting_threads() -> list[threading.Thread]:
    """Those that wait for a folder's holder to end."""
    return [thread for thread in threading.enumerate() if thread.name == "gpulayer-data-folder"]


class Running:
    """A host on a thread."""

    def __init__(self, data: Path, listen: str = ""):
        self.host = Host(data, local_worker=False, listen=listen)
        self.thread = LoopThread("of-a-host")
        self.thread.start()
        self.thread.submit(self.host.run())

    def until(self, state: State) -> None:
        until(lambda: self.host.status().state == state, lambda: f"{state}, not {self.host.status()}")

    def stop(self) -> None:
        asyncio.run(self.thread.run(self.host.stop()))
        asyncio.run(self.thread.stop())


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    """A folder to hold; after the test no thread is left but one that waits for a folder, which nobody can end."""
    before = set(threading.enumerate())
    yield tmp_path / "data"
    left = {thread.name for thread in set(threading.enumerate()) - before}
    assert left <= {"gpulayer-data-folder"}


def test_it_serves_until_it_is_stopped_and_leaves_nothing(data: Path) -> None:
    running = Running(data)
    running.until("holds")
    endpoint = running.host.endpoint()
    assert endpoint is not None
    headers = {"Authorization": f"Bearer {endpoint.token}"}
    assert httpx.get(f"{endpoint.url}/v1/health", headers=headers, trust_env=False).json()["epoch"] == 1
    assert running.thread.submit(running.host.busy()).result(30) is False
    running.stop()
    assert not waiting_threads()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{endpoint.url}/v1/health", headers=headers, trust_env=False)
    DataFolder(data).close()  # it is free again


def test_it_listens_for_other_machines_where_it_is_told_to(data: Path) -> None:
    running = Running(data, "127.0.0.1:0")
    running.until("holds")
    endpoint = running.host.endpoint()
    assert endpoint is not None
    headers = {"Authorization": f"Bearer {endpoint.token}"}
    there = httpx.get(f"{endpoint.url}/v1/listen", headers=headers, trust_env=False).json()
    assert pin(f"https://127.0.0.1:{there['port']}", there["fingerprint"])
    running.stop()


def test_an_address_that_is_none_is_said(data: Path) -> None:
    running = Running(data, "everywhere")
    running.until("failed")
    assert "'everywhere' is not an address such as 192.168.1.50:8443" in running.host.status().text
    running.stop()
    assert not data.exists()


def test_a_folder_that_others_may_look_into_is_closed_to_them(data: Path) -> None:
    data.mkdir(mode=0o755)
    running = Running(data)
    running.until("holds")
    assert stat.S_IMODE(data.stat().st_mode) == 0o700
    running.stop()


def test_it_stands_by_and_takes_over(data: Path) -> None:
    holder = DataFolder(data)
    running = Running(data)
    running.until("attached")
    assert running.host.endpoint() is None  # nobody says where the holder listens
    assert "has not said where it listens" in running.host.status().text
    holder.close()
    running.until("holds")
    assert read_endpoint(data) == running.host.endpoint()
    running.stop()


def test_one_that_stands_by_stops_at_once_and_takes_nothing_later(data: Path) -> None:
    holder = DataFolder(data)
    running = Running(data)
    running.until("attached")
    running.stop()
    holder.close()
    until(
        lambda: not [t for t in threading.enumerate() if t.name == "gpulayer-data-folder"], "the waiting thread's end"
    )
    DataFolder(data).close()
    assert not (data / "endpoint.json").exists()


def test_what_goes_wrong_is_tried_again(
    data: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(host_module, "_FIRST_RETRY_S", 0.01)
    data.write_text("in the way")
    running = Running(data)
    running.until("failed")
    text = running.host.status().text
    assert text.startswith(f"the control plane can't run: {data} can't be the data folder: ")
    data.unlink()
    running.until("holds")
    running.stop()
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == [text]


def test_a_fault_of_ours_is_logged_whole_and_ends_nothing(
    data: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(folder: Path) -> None:
        raise ZeroDivisionError("a fault")

    monkeypatch.setattr(host_module, "_make_private", broken)
    running = Running(data)
    running.until("failed")
    assert running.host.status().text == "the control plane can't run: a fault"
    running.stop()
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert record.exc_info is not None
    DataFolder(data).close()  # it does not stand in its own way


def test_an_endpoint_whose_process_has_ended_is_none(data: Path) -> None:
    data.mkdir()
    host = Host(data)
    assert host.endpoint() is None
    (data / "endpoint.json").write_text('{"url": "http://127.0.0.1:1", "token": "t", "pid": 4194999, "version": "0"}')
    assert host.endpoint() is None
    assert host.status().text == f"the control plane in {data} is starting"
