"""The worker's folder: what an agent writes down, and what the next one finds."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from gpulayer.protocol.messages import Assign
from gpulayer.protocol.types import CellSpec, JobSpec, Outcome, State
from gpulayer_worker.layout import Layout, LayoutError
from gpulayer_worker.link import Held


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path)


def held(name: str = "a-1-1", code: str = "1", **more: object) -> Held:
    """An attempt as the link holds it."""
    assign = Assign(attempt=name, job="job", spec=JobSpec(cell=CellSpec(code=code)))
    return Held(assign=assign, **more)  # type: ignore[arg-type]


def facts(each: Held) -> tuple[object, ...]:
    return (each.assign, each.began, each.outcome, each.end, each.gone, each.recorded)


OUTCOME = Outcome(state=State.FAILED, exit_code=3, problem="the kernel exited with code 3")


# ---------------------------------------------------------------- names


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "/etc", "a" * 65, "é", "a\n", "a\0"])
def test_what_is_no_name_never_becomes_a_path(layout: Layout, name: str) -> None:
    for path in (layout.attempt, layout.session, layout.kernel, layout.spool):
        with pytest.raises(LayoutError, match="not a name"):
            path(name)


def test_every_kind_has_a_folder_of_its_own(layout: Layout) -> None:
    assert len({layout.attempt("x"), layout.session("x"), layout.kernel("x"), layout.blobs}) == 4


def test_the_workers_id_is_made_once_and_is_the_owners_alone(layout: Layout) -> None:
    name = layout.worker_id()
    assert Layout(layout.data).worker_id() == name
    assert stat.S_IMODE((layout.data / "worker.json").stat().st_mode) == 0o600


# ---------------------------------------------------------------- attempts


def test_what_was_persisted_is_found_again(layout: Layout) -> None:
    first = held("a-1-1", began=True)
    second = held("b-1-2", began=True, outcome=OUTCOME, end=77, gone=True, recorded=True)
    for each in (first, second):
        layout.persist(each)
    assert [facts(each) for each in Layout(layout.data).load()] == [facts(first), facts(second)]
    assert Layout(layout.data).load()[1].spool_end == 77


def test_the_last_state_counts(layout: Layout) -> None:
    each = held()
    for step in ("assigned", "began", "ended", "gone", "recorded"):
        each.began = each.began or step == "began"
        if step == "ended":
            each.outcome, each.end = OUTCOME, 12
        each.gone = each.gone or step == "gone"
        each.recorded = each.recorded or step == "recorded"
        layout.persist(each)
        assert facts(Layout(layout.data).load()[0]) == facts(each)


def test_a_cells_code_is_written_once(layout: Layout) -> None:
    each = held(code="x" * 100_000)
    for began in (False, True):
        each.began = began
        layout.persist(each)
    written = sum(path.stat().st_size for path in layout.attempt("a-1-1").rglob("*") if path.is_file())
    assert written < 150_000


@pytest.mark.parametrize("lost_bytes", [1, 5, 12])
def test_a_state_that_a_killed_agent_had_begun_to_write_does_not_count_and_others_may_follow(
    layout: Layout, lost_bytes: int
) -> None:
    each = held()
    layout.persist(each)
    whole = facts(each)
    each.began = True
    layout.persist(each)
    log = layout.attempt("a-1-1") / "attempt.log"
    os.truncate(log, log.stat().st_size - lost_bytes)
    assert [facts(found) for found in Layout(layout.data).load()] == [whole]
    each.gone = True
    layout.persist(each)
    assert [facts(found) for found in Layout(layout.data).load()] == [facts(each)]


def test_an_attempt_whose_first_state_is_not_whole_was_never_here(layout: Layout) -> None:
    layout.persist(held())
    os.truncate(layout.attempt("a-1-1") / "attempt.log", 6)
    assert Layout(layout.data).load() == []
    assert not layout.attempt("a-1-1").exists()


def test_a_damaged_log_is_given_up_and_said(layout: Layout, caplog: pytest.LogCaptureFixture) -> None:
    layout.persist(held())
    log = layout.attempt("a-1-1") / "attempt.log"
    log.write_bytes(bytes(byte ^ 0xFF for byte in log.read_bytes()))
    assert Layout(layout.data).load() == []
    assert not layout.attempt("a-1-1").exists()


def test_on_a_full_disk_a_state_is_written_whole_or_not_at_all(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    each = held()
    layout.persist(each)
    whole = facts(each)
    write = os.write
    monkeypatch.setattr("gpulayer_worker.layout.os.write", lambda fd, data: write(fd, data[: len(data) // 2]))
    each.began = True
    with pytest.raises(OSError, match="No space left"):
        layout.persist(each)
    monkeypatch.undo()
    assert [facts(found) for found in Layout(layout.data).load()] == [whole]


def test_a_dropped_attempt_leaves_nothing_to_the_next(layout: Layout) -> None:
    layout.persist(held("a-1-1", began=True))
    layout.note(layout.attempt("a-1-1"), "kernel", {"kernel": "k1"})
    (layout.spool("a-1-1") / f"{0:016d}.log").write_bytes(b"output")
    layout.drop("a-1-1")
    assert not layout.attempt("a-1-1").exists()
    assert Layout(layout.data).load() == []
    layout.persist(held("b-1-2"))
    assert layout.noted(layout.attempt("b-1-2"), "kernel") is None
    assert sum(path.stat().st_size for path in layout.spool("b-1-2").iterdir()) == 0
    assert [each.assign.attempt for each in Layout(layout.data).load()] == ["b-1-2"]


def test_a_dropped_attempts_files_are_gone(layout: Layout) -> None:
    layout.persist(held())
    workspace = layout.attempt("a-1-1") / "workspace"
    workspace.mkdir()
    (workspace / "secret.txt").write_text("x")
    layout.drop("a-1-1")
    assert list(layout.data.rglob("secret.txt")) == []


def test_a_drop_of_what_is_gone_is_no_error(layout: Layout) -> None:
    layout.drop("a-1-1")
    assert Layout(layout.data).load() == []


# ---------------------------------------------------------------- notes


def test_a_note_is_read_again_and_replaced(layout: Layout) -> None:
    folder = layout.kernel("k1")
    layout.note(folder, "owner", {"owner": "a much longer name"})
    layout.note(folder, "owner", {"owner": "é"})
    assert layout.noted(folder, "owner") == {"owner": "é"}
    assert stat.S_IMODE((folder / "owner.json").stat().st_mode) == 0o600


@pytest.mark.parametrize("content", [b"", b'{"owner": ', b"\xff\xfe"])
def test_a_note_that_is_not_whole_does_not_count(layout: Layout, content: bytes) -> None:
    folder = layout.kernel("k1")
    layout.note(folder, "owner", {})
    (folder / "owner.json").write_bytes(content)
    assert layout.noted(folder, "owner") is None


def test_what_was_not_noted_is_none(layout: Layout) -> None:
    assert layout.noted(layout.kernel("k1"), "owner") is None


def test_trouble_with_the_disk_says_what_to_do(layout: Layout) -> None:
    full = layout.trouble(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "somewhere"))
    assert full == f"no room is left on the worker's disk, in {layout.data}: make room there, then run it again"
    assert (
        layout.trouble(PermissionError(errno.EACCES, "Permission denied", "f")) == "[Errno 13] Permission denied: 'f'"
    )
