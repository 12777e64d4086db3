"""Workspaces from bundles: what is fetched, what is written, and what never is."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from gpulayer.protocol.endpoint import Endpoint
from gpulayer.source import BlobError, SourceConflict, SourceError, scan, write_pack
from gpulayer.source.blobs import Blobs
from gpulayer_worker.workspace import FetchError, Workspaces

ENDPOINT = Endpoint(url="http://127.0.0.1:9", token="token", pid=1, version="0")


class Home:
    """A notebook's folder and a control plane that has what is in it, behind a transport that counts."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch):
        self.folder = folder
        folder.mkdir()
        self.blobs: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.damage: Callable[[bytes], bytes] = lambda data: data
        monkeypatch.setattr(Workspaces, "_client", lambda _: httpx.Client(
            base_url=ENDPOINT.url, transport=httpx.MockTransport(self._answer)))  # fmt: skip

    def write(self, **files: str) -> str:
        """Change the folder; the digest of what is in it now, which the control plane has."""
        for name, text in files.items():
            (self.folder / f"{name}.py").write_text(text)
        bundle = scan(self.folder)
        for digest, path in bundle.source_of.items():
            self.blobs[digest] = Path(path).read_bytes()
        self.blobs[bundle.manifest.digest] = bundle.manifest.to_bytes()
        return bundle.manifest.digest

    def remove(self, name: str) -> str:
        (self.folder / f"{name}.py").unlink()
        return self.write()

    def _answer(self, request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            digest = request.url.path.rpartition("/")[2]
            self.asked.append("manifest")
            return httpx.Response(200, content=self.blobs[digest]) if digest in self.blobs else httpx.Response(404)
        wanted: list[str] = json.loads(request.content)
        self.asked.append(f"{len(wanted)} blobs")
        pack = io.BytesIO()
        folder = self.folder.parent / "packed"
        folder.mkdir(exist_ok=True)
        for digest in wanted:
            (folder / digest).write_bytes(self.blobs[digest])
        write_pack([(digest, folder / digest) for digest in wanted], pack)
        return httpx.Response(200, content=self.damage(pack.getvalue()))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    return Home(tmp_path / "home", monkeypatch)


@pytest.fixture
def workspaces(tmp_path: Path) -> Workspaces:
    return Workspaces(Blobs(tmp_path / "blobs"), lambda: ENDPOINT)


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def quiet(text: str) -> None:
    """Nobody looks at the progress."""


# ---------------------------------------------------------------- fresh


def test_a_fresh_workspace_has_the_bundles_files(home: Home, workspaces: Workspaces, tmp_path: Path) -> None:
    told: list[str] = []
    workspaces.fresh(home.write(train="A", util="B"), tmp_path / "w", told.append)
    assert contents(tmp_path / "w") == {"train.py": "A", "util.py": "B"}
    assert told == ["fetching 2 files"]


def test_no_bundle_is_an_empty_folder(home: Home, workspaces: Workspaces, tmp_path: Path) -> None:
    workspaces.fresh("", tmp_path / "w", quiet)
    assert contents(tmp_path / "w") == {}
    assert home.asked == []


def test_only_what_lacks_is_fetched(home: Home, workspaces: Workspaces, tmp_path: Path) -> None:
    workspaces.fresh(home.write(train="A", util="B"), tmp_path / "1", quiet)
    home.asked.clear()
    workspaces.fresh(home.write(), tmp_path / "2", quiet)
    assert home.asked == []
    workspaces.fresh(home.write(train="C"), tmp_path / "3", quiet)
    assert home.asked == ["manifest", "1 blobs"]
    assert contents(tmp_path / "3") == {"train.py": "C", "util.py": "B"}


def test_what_a_job_does_to_its_files_reaches_no_other(home: Home, workspaces: Workspaces, tmp_path: Path) -> None:
    digest = home.write(train="A")
    workspaces.fresh(digest, tmp_path / "1", quiet)
    with (tmp_path / "1" / "train.py").open("a") as file:
        file.write("changed")
    workspaces.fresh(digest, tmp_path / "2", quiet)
    assert contents(tmp_path / "2") == {"train.py": "A"}


def test_a_bundle_that_the_control_plane_lost_may_be_asked_for_again(
    workspaces: Workspaces, home: Home, tmp_path: Path
) -> None:
    with pytest.raises(FetchError, match="bundle abababababab… could not be fetched"):
        workspaces.fresh("ab" * 32, tmp_path / "w", quiet)
    assert home.asked == ["manifest"]


def test_a_control_plane_that_does_not_answer_may_be_asked_again(tmp_path: Path) -> None:
    workspaces = Workspaces(Blobs(tmp_path / "blobs"), lambda: ENDPOINT)
    with pytest.raises(FetchError, match="could not be fetched"):
        workspaces.fresh("ab" * 32, tmp_path / "w", quiet)


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-5], lambda data: data[:-9] + b"X" + data[-8:]], ids=["broken off", "changed"]
)
def test_a_damaged_pack_is_no_workspace_and_whole_it_is_one(
    home: Home, workspaces: Workspaces, tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    digest = home.write(train="A" * 50, util="B" * 50)
    home.damage = damage
    with pytest.raises((BlobError, SourceError)):
        workspaces.fresh(digest, tmp_path / "w", quiet)
    assert contents(tmp_path / "w") == {}
    home.damage = lambda data: data
    workspaces.fresh(digest, tmp_path / "w", quiet)
    assert contents(tmp_path / "w") == {"train.py": "A" * 50, "util.py": "B" * 50}


# ---------------------------------------------------------------- a session's


@pytest.fixture
def session(tmp_path: Path) -> Path:
    return tmp_path / "session"


def test_a_sessions_workspace_follows_home_and_keeps_what_was_made_there(
    home: Home, workspaces: Workspaces, session: Path
) -> None:
    state = session.with_suffix(".json")
    workspaces.update(home.write(train="A", util="B"), session, state, quiet)
    (session / "made.txt").write_text("here")
    untouched = (session / "util.py").stat()
    workspaces.update(home.write(train="C"), session, state, quiet)
    assert contents(session) == {"train.py": "C", "util.py": "B", "made.txt": "here"}
    assert (session / "util.py").stat().st_mtime_ns == untouched.st_mtime_ns
    workspaces.update(home.remove("util"), session, state, quiet)
    assert contents(session) == {"train.py": "C", "made.txt": "here"}


def test_a_file_changed_on_both_sides_stops_it_before_anything_is_touched(
    home: Home, workspaces: Workspaces, session: Path
) -> None:
    state = session.with_suffix(".json")
    first = home.write(train="A", util="B")
    workspaces.update(first, session, state, quiet)
    (session / "train.py").write_text("there")
    with pytest.raises(SourceConflict) as conflict:
        workspaces.update(home.write(train="home", util="new"), session, state, quiet)
    assert conflict.value.paths == ("train.py",)
    assert contents(session) == {"train.py": "there", "util.py": "B"}
    assert not workspaces.is_current(first, state)
    workspaces.update(home.write(train="A", util="newer"), session, state, quiet)
    assert contents(session) == {"train.py": "there", "util.py": "newer"}


def test_a_new_agent_goes_on_where_the_last_one_was(home: Home, workspaces: Workspaces, session: Path) -> None:
    state = session.with_suffix(".json")
    workspaces.update(home.write(train="A"), session, state, quiet)
    (session / "train.py").write_text("there")
    again = Workspaces(workspaces._blobs, lambda: ENDPOINT)
    again.update(home.write(), session, state, quiet)  # the same bundle: nothing is written
    assert contents(session) == {"train.py": "there"}
    with pytest.raises(SourceConflict):
        again.update(home.write(train="home"), session, state, quiet)


def test_it_knows_without_a_look_at_the_disk_whether_it_is_current(
    home: Home, workspaces: Workspaces, session: Path
) -> None:
    state = session.with_suffix(".json")
    digest = home.write(train="A")
    assert not workspaces.is_current(digest, state)
    workspaces.update(digest, session, state, quiet)
    assert workspaces.is_current(digest, state)
    assert not workspaces.is_current(home.write(train="B"), state)
    workspaces.forget(state)
    assert not workspaces.is_current(digest, state)
