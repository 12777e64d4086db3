"""Fleets on record, asked where a job would go."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpulayer.protocol.types import Placement, Requirements
from gpulayer_server.recorded import NotAFleet, explain_recorded, read
from tests.support.fleets import FOLDER, NAMES

ALL = [str(FOLDER / f"{name}.json") for name in NAMES]


def test_a_job_goes_where_it_fits_of_all_that_is_on_record() -> None:
    told = explain_recorded(ALL, Requirements(accelerator="mps"))
    assert (told.placement, told.chosen) == (Placement.PLACED, ("mac-laptop",))
    assert {reason.worker for reason in told.reasons} == set(NAMES) - {"mac-laptop"}


def test_what_no_machine_on_record_has_is_rejected_with_a_reason_for_each() -> None:
    told = explain_recorded(ALL, Requirements(accelerator="cuda", devices=64))
    assert told.placement is Placement.REJECTED
    assert {reason.worker for reason in told.reasons} == set(NAMES)
    assert told.nearest


def test_a_list_of_machines_is_a_file_too(tmp_path: Path) -> None:
    file = tmp_path / "fleet.json"
    file.write_bytes(b"[" + b",".join(Path(name).read_bytes() for name in ALL) + b"]")
    assert [view.name for view in read(file)] == list(NAMES)


def test_a_folder_holds_many() -> None:
    assert {view.name for view in read(FOLDER)} == set(NAMES)


@pytest.mark.parametrize("text", ["", "[1]", "{}", '{"id": 3, "name": "x"}'])
def test_a_file_that_is_none(tmp_path: Path, text: str) -> None:
    file = tmp_path / "fleet.json"
    file.write_text(text)
    with pytest.raises(NotAFleet, match=r"records no machines .*gpulayer resources list --json"):
        read(file)


def test_a_folder_that_has_none(tmp_path: Path) -> None:
    with pytest.raises(NotAFleet, match=r"records no machines \(no \*\.json in it\); write one with: gpulayer"):
        read(tmp_path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NotAFleet, match="cannot be read: No such file or directory"):
        read(tmp_path / "none.json")
