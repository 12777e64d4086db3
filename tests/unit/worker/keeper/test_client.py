"""Exit records as the agent reads them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpulayer_worker.keeper.client import ExitRecord, KeeperError
from gpulayer_worker.keeper.records import exit_record, write_json


def test_a_written_record_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "exit"
    written = exit_record(pid=1, start_time=2, boot_id="b", started_at=3.0, ended_at=4.0, signal=9, oom=True, cpu_s=0.5)
    write_json(str(path), written)
    record = ExitRecord.from_file(path)
    assert record == ExitRecord(
        pid=1, start_time=2, boot_id="b", signal=9, oom=True, cpu_s=0.5, started_at=3.0, ended_at=4.0
    )


def test_fields_of_a_later_version_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "exit"
    written = exit_record(pid=1, start_time=2, boot_id="b", started_at=3.0, ended_at=4.0, code=0)
    path.write_text(json.dumps({**written, "new": 1}))
    record = ExitRecord.from_file(path)
    assert record is not None
    assert record.code == 0


def test_no_file_is_no_record(tmp_path: Path) -> None:
    assert ExitRecord.from_file(tmp_path / "exit") is None


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"pid": 1}'])
def test_what_is_no_record_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "exit"
    path.write_text(content)
    with pytest.raises(KeeperError, match="not an exit record"):
        ExitRecord.from_file(path)
