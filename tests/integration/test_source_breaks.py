"""Files on their way while connections break and files change: what had come whole is not sent again."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from gpulayer.client import sending as sending_module
from gpulayer.notebook.folder import Source
from gpulayer.protocol.endpoint import Endpoint, write_private
from gpulayer.source import scan
from gpulayer.source.blobs import Blobs
from gpulayer_worker.workspace import FetchError, Workspaces
from tests.support.deployment import Deployment


class Relay:
    """A port before the control plane, wherever that is now. After so many bytes one way, `then` runs and it breaks."""

    def __init__(self, target: Callable[[], Endpoint]):
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads: list[threading.Thread] = []
        self.sent_bytes: list[int] = []  # from the client, by connection
        self.answered_bytes: list[int] = []
        self.break_after: tuple[str, int] | None = None  # 'sent' or 'answered', bytes
        self.then: Callable[[], None] = lambda: None
        self._start(self._accept)

    @property
    def endpoint(self) -> Endpoint:
        """The control plane's, with this port."""
        port = self._listener.getsockname()[1]
        return Endpoint(url=f"http://127.0.0.1:{port}", token=self._target().token, pid=1, version="0")

    def close(self) -> None:
        """End all of it."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                host, _, port = self._target().url.removeprefix("http://").rpartition(":")
                server = socket.create_connection((host, int(port)))
            except (OSError, LookupError):  # it is being started again
                client.close()
                continue
            for kind, counts, source, sink in (
                ("sent", self.sent_bytes, client, server),
                ("answered", self.answered_bytes, server, client),
            ):
                counts.append(0)
                self._start(self._pass_on, kind, counts, len(counts) - 1, source, sink)

    def _pass_on(self, kind: str, counts: list[int], index: int, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError), source:
            while data := source.recv(65_536):
                counts[index] += len(data)
                if (
                    self.break_after is not None
                    and self.break_after[0] == kind
                    and counts[index] >= self.break_after[1]
                ):
                    self.break_after = None
                    self.then()
                    break
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def relay(plane: Deployment) -> Iterator[Relay]:
    """A way to that control plane that can break."""
    relay = Relay(lambda: plane.plane.endpoint)
    yield relay
    relay.close()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """30 MB in 78 files, small and large."""
    home = tmp_path / "home"
    home.mkdir()
    for number in range(50):
        (home / f"small_{number:02d}.bin").write_bytes(os.urandom(40_000))
    for number in range(28):
        (home / f"large_{number:02d}.bin").write_bytes(os.urandom(1_000_000))
    return home


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    """A notebook's side that tries again soon."""
    monkeypatch.setattr(sending_module, "PAUSES_S", (0.1,) * 300)  # a control plane takes its time to start
    return Source(tmp_path / "client")


def restart(plane: Deployment, relay: Relay, client: Path) -> Callable[[], None]:
    """Kill the control plane and start it again; the client's `endpoint.json` follows."""

    def again() -> None:
        plane.plane.kill()
        plane.plane.start()
        write_private(client / "endpoint.json", msgspec.json.encode(relay.endpoint))

    return again


@pytest.mark.parametrize("killed", [True, False], ids=["control plane killed", "connection reset"])
def test_an_upload_is_taken_up_after_a_break(
    plane: Deployment, relay: Relay, home: Path, source: Source, tmp_path: Path, killed: bool
) -> None:
    write_private(tmp_path / "client" / "endpoint.json", msgspec.json.encode(relay.endpoint))
    relay.break_after = ("sent", 20_000_000)
    relay.then = restart(plane, relay, tmp_path / "client") if killed else relay.then
    told: list[str] = []
    bundle = source.scan(str(home))
    source.send(bundle, relay.endpoint, told.append)
    assert plane.request("GET", f"/v1/blobs/{bundle.manifest.digest}").content == bundle.manifest.to_bytes()
    assert any("try 2 of 301" in line for line in told)
    again_bytes = sum(relay.sent_bytes) - relay.sent_bytes[0]
    # Of 30 MB: what had come whole is not sent again, but for some MB on the way to the disk.
    assert 9_000_000 < again_bytes < 27_000_000, relay.sent_bytes
    blobs = Blobs(plane.data / "blobs")
    assert blobs.missing({entry.sha256: entry.size for entry in bundle.manifest.files}) == []


@pytest.mark.parametrize("killed", [True, False], ids=["control plane killed", "connection reset"])
def test_a_workers_fetch_is_taken_up_after_a_break(
    plane: Deployment, relay: Relay, home: Path, source: Source, tmp_path: Path, killed: bool
) -> None:
    bundle = source.scan(str(home))
    source.send(bundle, plane.plane.endpoint, lambda text: None)
    workspaces = Workspaces(Blobs(tmp_path / "blobs"), lambda: relay.endpoint)
    relay.break_after = ("answered", 20_000_000)
    relay.then = restart(plane, relay, tmp_path / "client") if killed else relay.then
    told: list[str] = []
    with pytest.raises(FetchError):
        workspaces.fresh(bundle.manifest.digest, tmp_path / "w", told.append)
    workspaces.fresh(bundle.manifest.digest, tmp_path / "w", told.append)
    assert scan(tmp_path / "w").manifest == bundle.manifest
    assert told[0] == "fetching 78 files"
    assert 9_000_000 < sum(relay.answered_bytes) - relay.answered_bytes[0] < 27_000_000, relay.answered_bytes


def test_a_file_that_changes_between_scan_and_send_never_gets_in_under_its_old_digest(
    plane: Deployment, home: Path, source: Source
) -> None:
    bundle = source.scan(str(home))
    (home / "large_03.bin").write_bytes(os.urandom(1_000_000))
    with pytest.raises(sending_module.SourceRefused, match=r"large_03\.bin changed while it was sent; run it again"):
        source.send(bundle, plane.plane.endpoint, lambda text: None)
    assert plane.request("GET", f"/v1/blobs/{bundle.manifest.digest}").status_code == 404
    again = source.scan(str(home))
    source.send(again, plane.plane.endpoint, lambda text: None)
    blobs = Blobs(plane.data / "blobs")
    for entry in again.manifest.files:
        assert blobs.read(entry.sha256) == (home / entry.path).read_bytes()
