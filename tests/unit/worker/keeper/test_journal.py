"""The journal of groups that are started by the batch."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpulayer_worker.keeper import journal as journal_module
from gpulayer_worker.keeper.journal import Journal


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "groups.log")


def found(path: str) -> dict[str, dict[str, object]]:
    """What the next keeper knows."""
    journal = Journal(path)
    journal.close()
    return journal.known


def test_what_becomes_known_of_a_group_is_found_together(path: str) -> None:
    journal = Journal(path)
    journal.add("a", {"cgroup": None})
    journal.add("b", {"cgroup": "/c"})
    journal.flush()
    journal.add("a", {"pid": 7})
    journal.add("a", {"exit": {"code": 3}, "gone": True})
    assert found(path) == {"a": {"cgroup": None}, "b": {"cgroup": "/c"}}
    journal.flush()
    assert found(path) == {"a": {"cgroup": None, "pid": 7, "exit": {"code": 3}, "gone": True}, "b": {"cgroup": "/c"}}
    journal.close()


def test_a_batch_is_one_write(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    real = os.write
    monkeypatch.setattr(journal_module.os, "write", lambda fd, data: written.append(len(data)) or real(fd, data))
    journal = Journal(path)
    for number in range(50):
        journal.add(f"a-{number}", {"cgroup": None})
    journal.flush()
    journal.flush()
    assert len(written) == 1
    assert len(found(path)) == 50
    journal.close()


def test_what_is_forgotten_is_not_found(path: str) -> None:
    journal = Journal(path)
    journal.add("a", {"n": 1})
    journal.add("b", {"n": 2})
    journal.flush()
    journal.forget("a")
    journal.forget("never-there")
    journal.flush()
    assert found(path) == {"b": {"n": 2}}
    journal.close()


def test_a_line_that_a_killed_keeper_had_begun_does_not_count(path: str) -> None:
    journal = Journal(path)
    journal.add("a", {"n": 1})
    journal.flush()
    journal.add("a", {"n": 2})
    journal.flush()
    journal.close()
    os.truncate(path, os.path.getsize(path) - 4)
    again = Journal(path)
    assert again.known == {"a": {"n": 1}}
    again.add("a", {"n": 3})
    again.flush()
    again.close()
    assert found(path) == {"a": {"n": 3}}


def test_damage_costs_the_line_that_has_it(path: str) -> None:
    journal = Journal(path)
    for number in range(3):
        journal.add(f"a-{number}", {"n": number})
        journal.flush()
    journal.close()
    lines = Path(path).read_bytes().splitlines(keepends=True)
    lines[1] = b"\xff" * (len(lines[1]) - 1) + b"\n"
    Path(path).write_bytes(b"".join(lines))
    assert set(found(path)) == {"a-0", "a-2"}


def test_on_a_full_disk_nothing_is_written_and_it_is_tried_again(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(path)
    journal.add("a", {"n": 1})
    journal.flush()
    journal.add("b", {"n": 2})
    journal.add("c", {"n": 3})
    real = os.write
    monkeypatch.setattr(journal_module.os, "write", lambda fd, data: real(fd, data[: len(data) // 2]))
    with pytest.raises(OSError, match="No space left"):
        journal.flush()
    monkeypatch.undo()
    assert set(found(path)) == {"a"}
    journal.take_back(["c"])
    journal.flush()
    assert set(found(path)) == {"a", "b"}
    journal.close()


def test_a_journal_of_no_group_begins_anew(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "_TIDY_BYTES", 1000)
    journal = Journal(path)
    for number in range(200):
        journal.add(f"a-{number}", {"n": number})
        journal.flush()
        journal.forget(f"a-{number}")
    journal.flush()
    assert os.path.getsize(path) < 2000
    assert found(path) == {}
    journal.close()


def test_a_long_journal_is_written_anew_with_what_is_known(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "_REWRITE_BYTES", 2000)
    journal = Journal(path)
    journal.add("stays", {"n": -1})
    for number in range(200):
        journal.add(f"a-{number}", {"n": number})
        journal.flush()
        journal.forget(f"a-{number}")
    assert os.path.getsize(path) < 4000
    journal.add("after", {"n": 1})
    journal.flush()
    assert found(path)["stays"] == {"n": -1}
    assert found(path)["after"] == {"n": 1}
    journal.close()
