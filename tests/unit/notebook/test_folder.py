"""The notebook's folder, and its way to the control plane."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import httpx
import msgspec
import pytest

from gpulayer.client import sending as module
from gpulayer.client import transfer
from gpulayer.client.errors import ControlPlaneError, RequestRefused
from gpulayer.client.submission import Input
from gpulayer.notebook.folder import Source, SourceRefused, notebook_path
from gpulayer.protocol.endpoint import Endpoint, write_private
from gpulayer.protocol.types import Problem
from gpulayer.source import Limits, Manifest, digests, read_pack

ENDPOINT = Endpoint(url="http://127.0.0.1:9", token="token", pid=1, version="0")


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GPULAYER_DATA", str(tmp_path / "data"))
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    monkeypatch.setattr(module, "PAUSES_S", (0.0, 0.01, 0.02))


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


def test_vs_code_tells_the_notebook_in_a_variable(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its variable is set with the first cell: the names are looked at when they are needed."""
    monkeypatch.chdir(tmp_path)
    variables: dict[str, object] = {}
    source = Source(names=variables)
    variables["__vsc_ipynb_file__"] = str(folder / "demo.ipynb")
    assert notebook_path(variables) == folder / "demo.ipynb"
    assert names(source.scan()) == ["train.py"]


@pytest.mark.parametrize("named", [7, None, "Untitled-1.ipynb", "/nowhere/demo.ipynb"])
def test_a_notebook_that_is_not_saved_yet_is_no_path(folder: Path, named: object) -> None:
    assert notebook_path({"__vsc_ipynb_file__": named}) is None
    assert names(Source(names={"__vsc_ipynb_file__": named}).scan()) == ["train.py"]


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
        self.asked: list[str] = []
        self.hosts: list[str] = []
        self.came: list[int] = []  # how many blobs, by request
        self.near: list[str] = []
        self.breaks: list[int] = []  # for each upload: after so many blobs the connection breaks
        real = httpx.Client
        ours = httpx.MockTransport(self._answer)
        monkeypatch.setattr(httpx, "Client", lambda **options: real(**{**options, "transport": ours}))

    def _answer(self, request: httpx.Request) -> httpx.Response:
        assert request.headers["Authorization"] == "Bearer token"
        self.hosts.append(request.url.host)
        if self.problem is not None:
            return self.problem
        self.asked.append(request.url.path)
        if request.url.path == "/v1/blobs":
            if self.breaks:
                self._break(request)
            came = {digest: b"".join(chunks) for digest, _, chunks in read_pack(io.BytesIO(request.read()))}
            self.came.append(len(came) - 1)
            self.near.append(request.url.params.get("near", ""))
            manifest = Manifest.from_bytes(came.pop(request.url.params["bundle"]))
            self.blobs.update({} if self.loses else came)
        else:
            manifest = Manifest.from_bytes(request.content)
        missing = [entry.sha256 for entry in manifest.files if entry.sha256 not in self.blobs]
        if not missing:
            self.bundles.add(manifest.digest)
        return httpx.Response(200, content=json.dumps({"digest": manifest.digest, "missing": missing}))

    def _break(self, request: httpx.Request) -> None:
        blobs = read_pack(io.BytesIO(request.read()))
        count = self.breaks.pop(0)
        for _ in range(count):
            digest, _, chunks = next(blobs)
            self.blobs[digest] = b"".join(chunks)
        self.came.append(count)
        raise httpx.WriteError("Connection reset by peer")


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


def test_a_large_file_that_changes_while_it_is_sent_is_said(folder: Path, plane: Plane) -> None:
    (folder / "data.bin").write_bytes(bytes(300_000))
    source = Source()
    bundle = source.scan()
    (folder / "data.bin").write_bytes(b"\1" * 300_000)
    with pytest.raises(SourceRefused, match=r"data\.bin changed while it was sent; run it again"):
        source.send(bundle, ENDPOINT, lambda text: None)


def test_a_small_file_that_changes_while_it_is_sent_travels_as_it_was_scanned(folder: Path, plane: Plane) -> None:
    source = Source()
    bundle = source.scan()
    entry = bundle.manifest.by_path["train.py"]
    (folder / "train.py").write_text("changed!")
    source.send(bundle, ENDPOINT, lambda text: None)
    assert entry.sha256 in plane.blobs
    assert source.scan().manifest.by_path["train.py"] != entry


def test_a_small_file_that_the_scan_did_not_read_is_read_when_it_is_sent(folder: Path, plane: Plane) -> None:
    source = Source()
    bundle = source.scan()
    bundle.contents.clear()  # as of a cell that was sent before
    (folder / "train.py").write_text("changed!")
    with pytest.raises(SourceRefused, match=r"train\.py changed while it was sent; run it again"):
        source.send(bundle, ENDPOINT, lambda text: None)


def test_a_control_plane_that_goes_away_is_one_line(folder: Path) -> None:
    with pytest.raises(ControlPlaneError, match="the control plane went away while the files were sent"):
        send(folder)


def test_an_upload_that_breaks_is_taken_up_with_what_lacks(folder: Path, plane: Plane) -> None:
    for number in range(9):
        (folder / f"{number}.py").write_text(f"{number}")
    plane.breaks = [4, 0, 5]
    told: list[str] = []
    assert send(folder, told.append) in plane.bundles
    assert plane.came == [4, 0, 5, 1]
    away = "the control plane went away while the files were sent (Connection reset by peer)"
    assert told == [
        "◐ sending 10 of 10 files",
        f"◌ {away}; sending the rest in 0 s, try 2 of 4",
        "◐ sending 6 of 10 files",
        f"◌ {away}; sending the rest in 0.01 s, try 3 of 4",
        "◐ sending 6 of 10 files",
        f"◌ {away}; sending the rest in 0.02 s, try 4 of 4",
        "◐ sending 1 of 10 files",
    ]


def test_an_upload_that_breaks_each_time_is_given_up(folder: Path, plane: Plane) -> None:
    plane.breaks = [0] * 4
    with pytest.raises(ControlPlaneError, match=r"\(Connection reset by peer\); run the cell again$"):
        send(folder)
    assert plane.asked == ["/v1/bundles", "/v1/blobs"] * 4
    assert send(folder) in plane.bundles


@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_proxy_without_its_control_plane_is_tried_again(folder: Path, plane: Plane, status: int) -> None:
    plane.problem = httpx.Response(status, text="<html>")
    told: list[str] = []

    def tell(text: str) -> None:
        told.append(text)
        plane.problem = None

    assert send(folder, tell) in plane.bundles
    assert f"({status} " in told[0]


def test_what_a_proxy_refuses_is_one_line(folder: Path, plane: Plane) -> None:
    plane.problem = httpx.Response(413, text="<html>\ntoo large</html>")
    with pytest.raises(ControlPlaneError, match="the files were refused: 413 Request Entity Too Large") as refused:
        send(folder)
    assert "\n" not in str(refused.value)


def test_a_control_plane_that_comes_back_elsewhere_is_found(folder: Path, tmp_path: Path, plane: Plane) -> None:
    def named(host: str) -> Endpoint:
        endpoint = Endpoint(url=f"http://{host}:9", token="token", pid=1, version="0")
        write_private(tmp_path / "data" / "endpoint.json", msgspec.json.encode(endpoint))
        return endpoint

    (tmp_path / "data").mkdir()
    first = named("127.0.0.1")
    plane.breaks = [1, 0]
    source = Source()
    source.send(source.scan(), first, lambda text: named("127.0.0.2") and None)
    assert list(dict.fromkeys(plane.hosts)) == ["127.0.0.1", "127.0.0.2"]


def test_a_control_plane_elsewhere_is_not_looked_for_here(folder: Path, tmp_path: Path, plane: Plane) -> None:
    (tmp_path / "data").mkdir()
    here = Endpoint(url="http://127.0.0.2:9", token="another", pid=1, version="0")
    write_private(tmp_path / "data" / "endpoint.json", msgspec.json.encode(here))
    plane.breaks = [0]
    send(folder)
    assert set(plane.hosts) == {"127.0.0.1"}


def test_after_one_change_one_request_brings_it(folder: Path, plane: Plane) -> None:
    (folder / "util.py").write_text("U")
    source = Source()
    first = source.scan()
    source.send(first, ENDPOINT, lambda text: None)
    (folder / "util.py").write_text("changed")
    plane.asked.clear()
    second = source.scan()
    source.send(second, ENDPOINT, lambda text: None)
    assert plane.asked == ["/v1/blobs"]
    assert plane.came == [2, 1]
    assert plane.near == ["", first.manifest.digest]
    assert second.manifest.digest in plane.bundles


def test_a_control_plane_that_forgot_what_it_had_gets_all_of_it(folder: Path, plane: Plane) -> None:
    (folder / "util.py").write_text("U")
    source = Source()
    source.send(source.scan(), ENDPOINT, lambda text: None)
    plane.blobs.clear()
    (folder / "util.py").write_text("changed")
    bundle = source.scan()
    source.send(bundle, ENDPOINT, lambda text: None)
    assert bundle.manifest.digest in plane.bundles
    assert sorted(plane.blobs.values()) == [b"LR = 1", b"changed"]


def test_a_renamed_file_is_not_sent_again(folder: Path, plane: Plane) -> None:
    source = Source()
    source.send(source.scan(), ENDPOINT, lambda text: None)
    (folder / "train.py").rename(folder / "fit.py")
    plane.asked.clear()
    bundle = source.scan()
    source.send(bundle, ENDPOINT, lambda text: None)
    assert plane.asked == ["/v1/bundles"]
    assert bundle.manifest.digest in plane.bundles


def test_a_large_upload_says_how_far_it_is(folder: Path, plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "_TOLD_EVERY_S", 0.0)
    (folder / "data.bin").write_bytes(bytes(2_000_000))
    told: list[str] = []
    send(folder, told.append)
    assert told[0] == "◐ sending 2 of 2 files"
    assert "◐ sending 2 of 2 files · ▓▓▓▓░░░░ 1 of at most 2 MB" in told


def test_digests_are_remembered_for_the_next_kernel(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "is_racy", lambda *_: False)  # as if all of it were old
    source = Source()
    first = source.scan()
    (folder / "train.py").write_text("LR = 2")
    second = source.scan()
    monkeypatch.setattr(digests, "hash_file", lambda path, **_: pytest.fail(f"{path} was read again"))
    assert Source().scan().manifest == second.manifest != first.manifest


def test_limits_includes_and_excludes_are_passed_on(folder: Path) -> None:
    (folder / ".env").write_text("A=1")
    assert names(Source().scan(exclude=(".env",))) == ["train.py"]
    assert names(Source().scan(include=(".env",))) == [".env", "train.py"]
    with pytest.raises(SourceRefused, match="--max-file"):
        Source().scan(exclude=(".env",), limits=Limits(file_bytes=3))


def test_inputs_go_with_the_folder_whatever_its_rules_and_limits(folder: Path, tmp_path: Path) -> None:
    (folder / "big.bin").write_bytes(b"x" * 100)
    (folder / ".gitignore").write_text("*.bin\n")
    elsewhere = tmp_path / "elsewhere.csv"
    elsewhere.write_text("1")
    inputs = (
        Input(source=str(folder / "big.bin"), target="big.bin"),
        Input(source=str(elsewhere), target="data/elsewhere.csv"),
    )
    bundle = Source().scan(limits=Limits(file_bytes=50), inputs=inputs)
    assert names(bundle) == [".gitignore", "big.bin", "data/elsewhere.csv", "train.py"]
    assert bundle.why_left_out("big.bin") is None
