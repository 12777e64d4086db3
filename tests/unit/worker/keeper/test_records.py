"""The files of a data folder."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from gpulayer_worker.keeper import records
from gpulayer_worker.keeper.records import (
    Folder,
    exit_record,
    last_line,
    read_json,
    remove,
    rotate_log,
    valid_id,
    write_json,
)


@pytest.mark.parametrize("id", ["a", "A-1_z", "x" * 64])
def test_ids_that_can_name_a_group(id: str) -> None:
    assert valid_id(id)


@pytest.mark.parametrize("id", ["", "x" * 65, "a/b", "..", "a b", "é", "@agent", None, 7, ["a"]])
def test_ids_that_cannot(id: object) -> None:
    assert not valid_id(id)


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    write_json(str(path), {"a": 1})
    before = os.open(path, os.O_RDONLY)
    write_json(str(path), {"a": 2})
    assert json.loads(os.read(before, 100)) == {"a": 1}  # who reads meanwhile has the old one, whole
    os.close(before)
    assert read_json(str(path)) == {"a": 2}
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["file.json"]


def test_a_failed_write_leaves_the_old_file_and_no_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file.json"
    write_json(str(path), {"a": 1})

    def full(*_: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(records.os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        write_json(str(path), {"a": 2})
    assert read_json(str(path)) == {"a": 1}
    assert os.listdir(tmp_path) == ["file.json"]


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff"])
def test_what_is_no_record_reads_as_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(content)
    assert read_json(str(path)) is None
    assert read_json(str(tmp_path / "missing")) is None


def test_removing_twice_is_harmless(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("")
    remove(str(path))
    remove(str(path))
    assert not path.exists()


def test_a_folder_becomes_the_users_alone(tmp_path: Path) -> None:
    root = tmp_path / "worker"
    root.mkdir(mode=0o755)
    folder = Folder(str(root))
    folder.prepare()
    folder.prepare()
    assert {Path(path).stat().st_mode & 0o777 for path in (folder.root, folder.groups, folder.logs)} == {0o700}
    assert Folder(str(root)).key == folder.key
    assert Folder(str(tmp_path)).key != folder.key


def test_another_users_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records.os, "getuid", lambda: 4242)
    with pytest.raises(PermissionError, match="give --data a folder of your own"):
        Folder(str(tmp_path)).prepare()


def test_group_records_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path))
    folder.prepare()
    write_json(folder.group("good"), {"id": "good"})
    Path(folder.group("bad")).write_text("{")
    Path(folder.groups, "draft.json.123.tmp").write_text("{}")
    assert folder.group_records() == [folder.group("bad"), {"id": "good"}]


def test_the_last_line_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert last_line(str(log)) == ""
    log.write_text("x" * 10_000 + "\nfirst\n  the last \n\n  \n")
    assert last_line(str(log)) == "the last"


def test_a_log_is_put_aside_when_it_has_grown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "LOG_LIMIT_BYTES", 3)
    log = tmp_path / "log"
    rotate_log(str(log))
    log.write_text("abc")
    rotate_log(str(log))
    assert log.exists()
    log.write_text("abcd")
    rotate_log(str(log))
    assert not log.exists()
    assert (tmp_path / "log.1").read_text() == "abcd"


def test_an_exit_record_has_every_field() -> None:
    record = exit_record(pid=1, start_time=2, boot_id="b", started_at=3.0, ended_at=4.0, code=0)
    assert record == {
        "pid": 1,
        "start_time": 2,
        "boot_id": "b",
        "code": 0,
        "signal": None,
        "unknown": False,
        "oom": False,
        "killed_by_us": False,
        "peak_rss_bytes": None,
        "cpu_s": None,
        "wall_s": None,
        "started_at": 3.0,
        "ended_at": 4.0,
    }


def test_a_copy_of_a_folder_forgets_whose_processes_it_names(tmp_path: Path) -> None:
    origin = Folder(str(tmp_path / "origin"))
    origin.prepare()
    for path in (origin.agent, origin.keeper, origin.group("g")):
        write_json(path, {"pid": 1})
    (tmp_path / "origin" / "worker.json").write_text("{}")
    origin.prepare()
    assert read_json(origin.agent) == {"pid": 1}
    shutil.copytree(tmp_path / "origin", tmp_path / "copy")
    copy = Folder(str(tmp_path / "copy"))
    copy.prepare()
    assert [read_json(path) for path in (copy.agent, copy.keeper, copy.group("g"))] == [None, None, None]
    assert (tmp_path / "copy" / "worker.json").exists()
    assert [read_json(path) for path in (origin.agent, origin.group("g"))] == [{"pid": 1}, {"pid": 1}]


def test_after_a_boot_a_moved_folder_keeps_its_records(tmp_path: Path) -> None:
    """No process of it is left then; its records say how they ended."""
    folder = Folder(str(tmp_path))
    folder.prepare()
    write_json(folder.group("g"), {"pid": 1})
    write_json(folder.itself, {"key": "another disk's", "boot_id": "of yesterday"})
    folder.prepare()
    assert read_json(folder.group("g")) == {"pid": 1}
    assert read_json(folder.itself) != {"key": "another disk's", "boot_id": "of yesterday"}
