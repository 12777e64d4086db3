"""Workspaces from bundles: what is fetched, what is written, and what never is."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gpulayer.source import BlobError, SourceConflict, SourceError, scan, write_pack
from gpulayer.source.blobs import Blobs
from gpulayer_worker.workspace import FetchError, Workspaces
from tests.support.bundles import ENDPOINT, Home, contents, quiet, sha


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    return Home(tmp_path / "home", monkeypatch)


@pytest.fixture
def workspaces(tmp_path: Path) -> Workspaces:
    return Workspaces(Blobs(tmp_path / "blobs"), lambda: ENDPOINT)


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


def test_a_fetch_that_breaks_is_taken_up_with_what_lacks(home: Home, workspaces: Workspaces, tmp_path: Path) -> None:
    files = {f"small_{number:02d}": f"{number}" * 100 for number in range(40)}
    digest = home.write(**files, large_1=os.urandom(300_000), large_2=os.urandom(300_000), large_3=os.urandom(300_000))
    home.breaks_after = 700_000
    with pytest.raises(FetchError, match=r"^bundle \w{12}… could not be fetched: Connection reset by peer$"):
        workspaces.fresh(digest, tmp_path / "w", quiet)
    assert contents(tmp_path / "w", read=Path.read_bytes) == {}
    home.breaks_after = None
    told: list[str] = []
    workspaces.fresh(digest, tmp_path / "w", told.append)
    assert home.asked == ["manifest", "43 blobs", "41 blobs"]
    assert told == ["fetching 41 files"]  # they come in the bundle's order: two large ones had come
    assert scan(tmp_path / "w").manifest.digest == digest


def test_a_fetch_that_breaks_before_anything_came_is_told_in_one_line(
    home: Home, workspaces: Workspaces, tmp_path: Path
) -> None:
    home.breaks_after = 0
    with pytest.raises(FetchError) as broken:
        workspaces.fresh(home.write(train="A"), tmp_path / "w", quiet)
    assert "\n" not in str(broken.value)


def test_a_control_plane_far_away_is_asked_to_compress(home: Home, workspaces: Workspaces, tmp_path: Path) -> None:
    home.url = "https://gpu.example:8443"
    workspaces.fresh(home.write(train="A" * 100_000), tmp_path / "1", quiet)
    workspaces.fresh(home.write(train="B"), tmp_path / "2", quiet)
    home.url = ENDPOINT.url
    workspaces.fresh(home.write(train="C" * 100_000), tmp_path / "3", quiet)
    assert home.codings == ["zstd", "", ""]
    assert contents(tmp_path / "1") == {"train.py": "A" * 100_000}
    assert contents(tmp_path / "3") == {"train.py": "C" * 100_000}


def test_what_was_not_asked_for_is_not_kept(home: Home, workspaces: Workspaces, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"other")
    pack = io.BytesIO()
    write_pack([(sha(b"other"), other)], pack)
    home.damage = lambda _: pack.getvalue()
    with pytest.raises(SourceError, match="which nobody asked for"):
        workspaces.fresh(home.write(train="A"), tmp_path / "w", quiet)
    assert sha(b"other") not in workspaces._blobs


def test_what_an_agent_that_died_left_half_written_is_written_anew(
    home: Home, workspaces: Workspaces, tmp_path: Path
) -> None:
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "train.py").write_text("hal")
    workspaces.fresh(home.write(train="A"), tmp_path / "w", quiet)
    assert contents(tmp_path / "w") == {"train.py": "A"}


def test_a_blob_that_a_power_cut_left_short_is_fetched_again(
    home: Home, workspaces: Workspaces, tmp_path: Path
) -> None:
    digest = home.write(train="A" * 50)
    workspaces.fresh(digest, tmp_path / "1", quiet)
    workspaces._blobs.path(sha(b"A" * 50)).write_bytes(b"A" * 20)
    workspaces.fresh(digest, tmp_path / "2", quiet)
    assert contents(tmp_path / "2") == {"train.py": "A" * 50}


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


def test_of_a_kept_workspace_only_the_changed_file_is_fetched_and_touched(
    home: Home, workspaces: Workspaces, session: Path
) -> None:
    state = session.with_suffix(".json")
    workspaces.update(home.write(**{f"file_{number}": f"{number}" for number in range(30)}), session, state, quiet)
    before = {path.name: stamps(path) for path in session.iterdir()}
    for blob in workspaces._blobs.folder.rglob("*"):  # what is in the workspace already need not be in the cache
        if blob.is_file() and blob.parent.name == "shared":
            blob.unlink()
    lacking = Workspaces(Blobs(workspaces._blobs.folder), lambda: ENDPOINT)
    lacking._kept = workspaces._kept
    home.asked.clear()
    lacking.update(home.write(file_7="changed"), session, state, quiet)
    assert home.asked == ["manifest", "1 blobs"]
    after = {path.name: stamps(path) for path in session.iterdir()}
    assert {name for name in after if after[name] != before[name]} == {"file_7.py"}
    assert (session / "file_7.py").read_text() == "changed"


def stamps(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_ino, status.st_mtime_ns, status.st_ctime_ns


def test_an_update_that_broke_is_made_again(home: Home, workspaces: Workspaces, session: Path) -> None:
    state = session.with_suffix(".json")
    workspaces.update(home.write(train="A", util="B"), session, state, quiet)
    home.breaks_after = 0
    changed = home.write(train="C", util="D")
    with pytest.raises(FetchError):
        workspaces.update(changed, session, state, quiet)
    assert contents(session) == {"train.py": "A", "util.py": "B"}
    assert not workspaces.is_current(changed, state)
    home.breaks_after = None
    workspaces.update(changed, session, state, quiet)
    assert contents(session) == {"train.py": "C", "util.py": "D"}


def test_names_of_any_bytes_are_remembered_between_agents(home: Home, workspaces: Workspaces, session: Path) -> None:
    state = session.with_suffix(".json")
    odd = home.folder / os.fsdecode(b"n\xff w\nline")
    odd.write_text("1")
    workspaces.update(home.write(), session, state, quiet)
    odd.write_text("22")
    again = Workspaces(workspaces._blobs, lambda: ENDPOINT)
    again.update(home.write(), session, state, quiet)
    assert contents(session) == {odd.name: "22"}
    (session / odd.name).write_text("there")
    odd.write_text("333")
    with pytest.raises(SourceConflict) as conflict:
        Workspaces(workspaces._blobs, lambda: ENDPOINT).update(home.write(), session, state, quiet)
    assert conflict.value.paths == (odd.name,)


def test_a_workspace_whose_making_broke_off_is_made_anew(home: Home, workspaces: Workspaces, session: Path) -> None:
    left = session.with_name(f".{session.name}.new")
    left.mkdir()
    (left / "half.py").write_text("of an agent that died")
    workspaces.update(home.write(train="A"), session, session.with_suffix(".json"), quiet)
    assert contents(session) == {"train.py": "A"}
    assert not left.exists()


def test_a_workspace_that_was_made_but_not_noted_is_taken_up(home: Home, workspaces: Workspaces, session: Path) -> None:
    state = session.with_suffix(".json")
    workspaces.update(home.write(train="A", util="B"), session, state, quiet)
    before = {path.name: stamps(path) for path in session.iterdir()}
    state.unlink()
    again = Workspaces(workspaces._blobs, lambda: ENDPOINT)
    again.update(home.write(), session, state, quiet)
    assert {path.name: stamps(path)[:2] for path in session.iterdir()} == {
        name: each[:2] for name, each in before.items()
    }


def test_a_workspace_that_somebody_removed_is_made_anew(home: Home, workspaces: Workspaces, session: Path) -> None:
    state = session.with_suffix(".json")
    digest = home.write(train="A", util="B")
    workspaces.update(digest, session, state, quiet)
    shutil.rmtree(session)
    workspaces.update(digest, session, state, quiet)
    assert contents(session) == {"train.py": "A", "util.py": "B"}


def test_what_cells_made_before_there_were_files_stays(home: Home, workspaces: Workspaces, session: Path) -> None:
    state = session.with_suffix(".json")
    workspaces.update("", session, state, quiet)
    (session / "made.txt").write_text("here")
    workspaces.update(home.write(train="A"), session, state, quiet)
    assert contents(session) == {"made.txt": "here", "train.py": "A"}
