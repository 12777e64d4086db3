"""The log of commands: what an agent writes down, and what the next one finds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpulayer.protocol.messages import Assign
from gpulayer.protocol.types import CommandSpec, JobSpec, Outcome, State
from gpulayer_worker import commandlog
from gpulayer_worker.commandlog import CommandLog
from gpulayer_worker.link import Held

OUTCOME = Outcome(state=State.FAILED, exit_code=3)


def held(name: str = "a-1-1", **more: object) -> Held:
    assign = Assign(attempt=name, job="job", spec=JobSpec(command=CommandSpec(argv=("true",))))
    return Held(assign=assign, **more)  # type: ignore[arg-type]


def facts(each: Held) -> tuple[object, ...]:
    return (each.assign, each.began, each.outcome, each.end, each.gone, each.recorded)


def found(path: Path) -> list[tuple[object, ...]]:
    log = CommandLog(path)
    try:
        return [facts(each) for each in log.load()]
    finally:
        log.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "commands.log"


def opened(path: Path) -> CommandLog:
    log = CommandLog(path)
    log.load()
    return log


def test_the_last_state_of_each_is_found_again(path: Path) -> None:
    log, first, second = opened(path), held("a-1-1"), held("b-1-1")
    log.write([first, second])
    second.began, second.outcome, second.end, second.gone = True, OUTCOME, 12, True
    log.write([second])
    assert found(path) == [facts(first), facts(second)]
    log.close()


def test_many_are_one_write(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, written = opened(path), []
    real = os.write
    monkeypatch.setattr(commandlog.os, "write", lambda fd, data: written.append(len(data)) or real(fd, data))
    log.write([held(f"a-{number}-1") for number in range(100)])
    assert len(written) == 1
    assert len(found(path)) == 100
    log.close()


def test_what_was_dropped_is_not_found(path: Path) -> None:
    log = opened(path)
    log.write([held("a-1-1"), held("b-1-1")])
    log.drop("a-1-1")
    log.write([held("c-1-1")])
    assert [each[0].attempt for each in found(path)] == ["b-1-1", "c-1-1"]  # type: ignore[attr-defined]
    log.close()


@pytest.mark.parametrize("lost_bytes", [1, 5, 20])
def test_what_a_killed_agent_had_begun_to_write_does_not_count_and_more_may_follow(path: Path, lost_bytes: int) -> None:
    log, each = opened(path), held()
    log.write([each])
    whole = facts(each)
    each.began = True
    log.write([each])
    log.close()
    os.truncate(path, path.stat().st_size - lost_bytes)
    assert found(path) == [whole]
    log = CommandLog(path)
    (again,) = log.load()
    again.gone = True
    log.write([again])
    log.close()
    assert found(path) == [facts(again)]


def test_on_a_full_disk_all_is_written_or_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, each = opened(path), held()
    log.write([each])
    whole = facts(each)
    real = os.write
    monkeypatch.setattr(commandlog.os, "write", lambda fd, data: real(fd, data[: len(data) // 2]))
    each.began = True
    other = held("b-1-1")
    with pytest.raises(OSError, match="No space left"):
        log.write([each, other])
    monkeypatch.undo()
    assert found(path) == [whole]
    log.write([each, other])
    assert found(path) == [facts(each), facts(other)]
    log.close()


def test_a_log_that_is_damaged_is_given_up_and_said(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = opened(path)
    log.write([held()])
    log.close()
    path.write_bytes(bytes(byte ^ 0xFF for byte in path.read_bytes()))
    assert found(path) == []
    assert "is damaged" in caplog.text


def test_a_log_of_which_nothing_is_held_begins_anew(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commandlog, "_TIDY_BYTES", 1000)
    log = opened(path)
    for number in range(100):
        log.write([held(f"a-{number}-1")])
        log.drop(f"a-{number}-1")
    log.write([held("last-1-1")])
    assert path.stat().st_size < 20_000
    assert [each[0].attempt for each in found(path)] == ["last-1-1"]  # type: ignore[attr-defined]
    log.close()


def test_a_long_log_is_written_anew_with_what_is_held(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commandlog, "_REWRITE_BYTES", 4000)
    log, stays = opened(path), held("stays-1-1", began=True)
    log.write([stays])
    for number in range(300):
        log.write([held(f"a-{number}-1")])
        log.drop(f"a-{number}-1")
    assert path.stat().st_size < 8000
    assert facts(stays) in found(path)
    log.write([held("after-1-1")])
    assert len(found(path)) <= 3
    log.close()
