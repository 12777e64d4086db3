"""Many jobs at once: all are taken or none, and nothing waits for long meanwhile."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from gpulayer.protocol.types import CommandSpec, JobSpec, JobView, Problem, State
from gpulayer_server.submitting import submit
from tests.support.processes import until

PATIENCE_S = 30


def command(name: str = "", **more: Any) -> JobSpec:
    return JobSpec(command=CommandSpec(argv=("run",)), name=name, **more)


def some(count: int, first: int = 0) -> list[tuple[str, JobSpec]]:
    return [(f"key{n}", command(f"job {n}")) for n in range(first, first + count)]


def take(plane: Any, jobs: list[tuple[str, JobSpec]]) -> list[str] | Problem:
    """Submit a batch and wait for the answer."""
    answers: list[list[str] | Problem] = []
    plane.do(lambda: plane.service.shell.submit_batch("ana", jobs, answers.append))
    until(lambda: bool(answers), "an answer")
    return answers[0]


def problem(plane: Any, jobs: list[tuple[str, JobSpec]]) -> Problem:
    """The problem that a batch is answered with; nothing of it was taken."""
    before = plane.do(lambda: plane.service.shell.plane.last_job_n)
    answer = take(plane, jobs)
    assert isinstance(answer, Problem)
    assert plane.do(lambda: plane.service.shell.plane.last_job_n) == before
    return answer


def test_a_batch_is_taken_in_order_and_the_same_one_again_is_the_same_jobs(plane: Any) -> None:
    jobs = some(600)
    names = take(plane, jobs)
    assert isinstance(names, list)
    views = plane.do(lambda: plane.service.shell.views(600))
    assert [(view.id, view.name) for view in reversed(views)] == [(name, f"job {n}") for n, name in enumerate(names)]
    assert {view.state for view in views} == {State.REJECTED}  # there is no worker
    assert take(plane, jobs) == names
    shell = plane.service.shell
    for _ in range(12):  # until the plane has forgotten them
        plane.do(lambda: shell.plane.forget_keys() or setattr(shell.plane, "ticks", shell.plane.ticks + 1))
    assert plane.do(lambda: shell.plane.keys) == {}
    assert take(plane, [*some(1, 600), *jobs])[1:] == names  # type: ignore[index]


def test_a_key_twice_in_a_batch_is_one_job(plane: Any) -> None:
    names = take(plane, [*some(3), *some(2)])
    assert isinstance(names, list)
    assert names[3:] == names[:2]
    assert len(set(names)) == 3


@pytest.mark.parametrize("at", [0, 299])
def test_one_that_can_not_be_a_job_keeps_all_from_being_taken(plane: Any, at: int) -> None:
    jobs = some(300)
    jobs[at] = ("bad", JobSpec())
    found = problem(plane, jobs)
    assert (found.status, found.title) == (
        400,
        f"job {at} of the batch: a job is either a cell or a command, this one is neither",
    )


def test_one_key_of_another_job_keeps_all_from_being_taken(plane: Any) -> None:
    take(plane, some(1))
    assert problem(plane, [*some(299, 1), ("key0", command("another"))]).code == "key_conflict"
    assert problem(plane, [*some(299, 1), ("key1", command("another"))]).code == "key_conflict"


def test_one_that_is_to_run_after_nobody_keeps_all_from_being_taken(plane: Any) -> None:
    found = problem(plane, [*some(260), ("last", command(after=("none",)))])
    assert (found.status, found.code) == (404, "no_such_job")
    assert "none" in found.title


def test_source_that_is_not_here_keeps_all_from_being_taken(plane: Any) -> None:
    bundle = JobSpec(command=CommandSpec(argv=("run",), bundle="0" * 64))
    assert problem(plane, [*some(3), ("last", bundle)]).code == "bundle_unknown"


def test_too_many_are_refused(plane: Any) -> None:
    assert problem(plane, some(10_001)).title.startswith("a batch has 10,000 jobs at most, this one 10,001")


def test_a_batch_may_name_jobs_of_before(plane: Any, worker: Any) -> None:
    taken = take(plane, some(1))
    assert isinstance(taken, list)
    [first] = taken
    names = take(plane, [("a", command(after=(first,))), ("b", command(after=(first,), array=((0, 1),)))])
    assert isinstance(names, list)
    states = plane.do(lambda: plane.service.shell.states([first, *names, "none"]))
    assert states == {first: State.ASSIGNED, names[0]: State.QUEUED, names[1]: State.QUEUED}


def test_a_job_with_a_key_of_a_batch_on_its_way_waits_for_it(plane: Any) -> None:
    """All or none: nobody else makes a job of one of its keys meanwhile."""
    shell = plane.service.shell
    answers: list[Any] = []
    over = threading.Event()

    def both() -> None:
        shell.submit_batch("ana", some(600), answers.append)
        plane.service.shell._loop.call_soon(one)

    def one() -> None:
        assert shell.coming
        submit(shell, "ana", "key599", command("another"), told)

    def told(answer: JobView | Problem | None) -> None:
        answers.append(answer)
        over.set()

    plane.do(both)
    assert over.wait(PATIENCE_S)
    names, conflict = answers
    assert len(names) == 600
    assert isinstance(conflict, Problem)
    assert (conflict.code, names[599] in conflict.detail) == ("key_conflict", True)
    assert shell.coming == {}


def test_a_failed_write_is_told_once_and_the_next_try_is_well(plane: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpulayer_server.store.database import StoreError

    shell = plane.service.shell

    def broken(units: Any) -> None:
        raise StoreError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(shell.store, "commit", broken)
        found = take(plane, some(600))
    assert isinstance(found, Problem)
    assert found.status == 507
    names = take(plane, some(600))
    assert isinstance(names, list)
    assert len(set(names)) == 600
