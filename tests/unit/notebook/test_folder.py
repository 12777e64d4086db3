"""The notebook's folder, and its way to the control plane."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import httpx
import msgspec
import pytest

from gpulayer.client.errors import ControlPlaneError, RequestRefused
from gpulayer.notebook.folder import Source, SourceRefused, notebook_path
from gpulayer.protocol.endpoint import Endpoint
from gpulayer.protocol.types import Problem
from gpulayer.source import Manifest, read_pack

ENDPOINT = Endpoint(url="http://127.0.0.1:9", token="token", pid=1, version="0")


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GPULAYER_DATA", str(tmp_path / "data"))
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "notebook"
    folder.mkdir()
    (folder / "train.py").write_text("LR = 1")
    (folder / "demo.ipynb").write_text("{}")
    monkeypatch.chdir(folder)
    return folder


def names(bundle: object) -> list[str]:
    return [entry.path for entry in bundle.manifest.files]  # type: ignore[attr-defined]


# ---------------------------------------------------------------- which folder


def test_the_kernels_current_folder_travels_without_notebooks(folder: Path) -> None:
    assert names(Source().scan()) == ["train.py"]


def test_the_notebooks_own_folder_comes_first(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JPY_SESSION_NAME", str(folder / "demo.ipynb"))
    monkeypatch.chdir(tmp_path)
    assert notebook_path() == folder / "demo.ipynb"
    assert names(Source().scan()) == ["train.py"]


@pytest.mark.parametrize("named", ["", "demo.ipynb", "/nowhere/demo.ipynb", "console-1", "/tmp"])
def test_what_names_no_notebook_is_not_believed(folder: Path, monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    monkeypatch.setenv("JPY_SESSION_NAME", named)
    assert notebook_path() is None


def test_a_named_folder_comes_before_all(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "x.txt").touch()
    monkeypatch.setenv("HOME", str(tmp_path))
    assert names(Source().scan(str(tmp_path / "other"))) == ["x.txt"]
    assert names(Source().scan("~/other")) == ["x.txt"]


def test_what_should_not_travel_is_one_line(folder: Path) -> None:
    (folder / ".env").write_text("TOKEN=1")
    with pytest.raises(SourceRefused, match=r"\.env") as refused:
        Source().scan()
    assert "\n" not in str(refused.value)


def test_a_change_is_seen_by_the_next_scan(folder: Path) -> None:
    source = Source()
    first = source.scan().manifest.digest
    assert source.scan().manifest.digest == first
    (folder / "train.py").write_text("LR = 22")
    assert source.scan().manifest.digest != first


def test_without_a_disk_to_remember_on_it_works(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("GPULAYER_DATA", str(tmp_path / "file" / "data"))
    assert names(Source().scan()) == ["train.py"]


# ---------------------------------------------------------------- sending


class Plane:
    """A control plane's side of an upload."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.blobs: dict[str, bytes] = {}
        self.bundles: set[str] = set()
        self.problem: httpx.Response | None = None
        self.loses = False
        real = httpx.Client
        monkeypatch.setattr(httpx, "Client", lambda **options: real(
            transport=httpx.MockTransport(self._answer), **options))  # fmt: skip

    def _answer(self, request: httpx.Request) -> httpx.Response:
        assert request.headers["Authorization"] == "Bearer token"
        if self.problem is not None:
            return self.problem
        if request.url.path == "/v1/blobs":
            for digest, _, chunks in read_pack(io.BytesIO(request.read())):
                self.blobs.update({} if self.loses else {digest: b"".join(chunks)})
            return httpx.Response(200, json={"stored": 1})
        manifest = Manifest.from_bytes(request.content)
        missing = [entry.sha256 for entry in manifest.files if entry.sha256 not in self.blobs]
        if not missing:
            self.bundles.add(manifest.digest)
        return httpx.Response(200, content=json.dumps({"digest": manifest.digest, "missing": missing}))


@pytest.fixture
def plane(monkeypatch: pytest.MonkeyPatch) -> Plane:
    return Plane(monkeypatch)


def send(folder: Path, tell: Callable[[str], None] = lambda text: None) -> str:
    source = Source()
    bundle = source.scan()
    source.send(bundle, ENDPOINT, tell)
    return bundle.manifest.digest


def test_only_what_lacks_is_sent_and_then_the_bundle_is_known(folder: Path, plane: Plane) -> None:
    told: list[str] = []
    assert send(folder, told.append) in plane.bundles
    (folder / "util.py").write_text("U")
    assert send(folder, told.append) in plane.bundles
    assert told == ["◐ sending 1 of 1 files", "◐ sending 1 of 2 files"]
    assert sorted(plane.blobs.values()) == [b"LR = 1", b"U"]


def test_when_nothing_lacks_nothing_is_said(folder: Path, plane: Plane) -> None:
    send(folder)
    told: list[str] = []
    send(folder, told.append)
    assert told == []


def test_files_that_did_not_arrive_are_said(folder: Path, plane: Plane) -> None:
    plane.loses = True
    with pytest.raises(SourceRefused, match="1 files did not arrive; run the cell again"):
        send(folder)


def test_a_problem_of_the_control_plane_is_passed_on(folder: Path, plane: Plane) -> None:
    problem = Problem(status=507, code="disk", title="the control plane can't store the source", detail="disk full")
    plane.problem = httpx.Response(507, content=msgspec.json.encode(problem))
    with pytest.raises(RequestRefused, match="can't store the source: disk full"):
        send(folder)


def test_a_file_that_changes_while_it_is_sent_is_said(folder: Path, plane: Plane) -> None:
    source = Source()
    bundle = source.scan()
    (folder / "train.py").write_text("changed!")
    with pytest.raises(SourceRefused, match=r"train\.py changed while it was sent; run it again"):
        source.send(bundle, ENDPOINT, lambda text: None)


def test_a_control_plane_that_goes_away_is_one_line(folder: Path) -> None:
    with pytest.raises(ControlPlaneError, match="the control plane went away while the files were sent"):
        send(folder)
