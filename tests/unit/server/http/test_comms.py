"""What a page says to a widget of a cell on a worker, on its way through the control plane."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gpulayer.protocol.messages import (
    COMM_BYTES,
    Assign,
    CommMessage,
    Refused,
    Submit,
    ToKernel,
    Update,
)
from gpulayer.protocol.types import CellSpec, JobSpec
from tests.support.processes import until

PARTS = (b"{}", b'{"comm_id":"w","data":{}}', b"\x00")


@pytest.fixture
def hearing(new_worker: Callable[..., Any]) -> Any:
    """A worker that knows such messages."""
    return new_worker(comms=True)


def running(client: Any, worker: Any, session: str | None = None) -> Assign:
    client.say(Submit(n=1, key="k", spec=JobSpec(cell=CellSpec(code="1", session=session))))
    assign = worker.assigned()
    worker.begin(assign.attempt)
    client.until(Update)
    return assign


def say(client: Any, job: str, *, session: str | None = None, parts: tuple[bytes, ...] = PARTS, n: int = 7) -> None:
    client.say(ToKernel(n=n, job=job, session=session, kind="comm_msg", parts=parts))


def refusal(client: Any) -> tuple[int, str]:
    refused: Refused = client.until(Refused)
    return refused.n, refused.problem.code


def test_it_goes_to_the_worker_of_the_jobs_attempt(client: Any, hearing: Any) -> None:
    assign = running(client, hearing)
    say(client, assign.job)
    assert hearing.until(CommMessage) == CommMessage(attempt=assign.attempt, kind="comm_msg", parts=PARTS)


def test_in_a_session_it_goes_to_the_sessions_kernel_also_after_the_job(client: Any, hearing: Any) -> None:
    assign = running(client, hearing, session="train")
    expected = CommMessage(session=assign.session, kind="comm_msg", parts=PARTS)
    say(client, assign.job)  # the session is that of the attempt
    assert hearing.until(CommMessage) == expected
    hearing.finish(assign.attempt, hearing.print(assign.attempt, "x"))
    while not client.until(Update).job.terminal:
        pass
    say(client, assign.job, session="train")
    assert hearing.until(CommMessage) == expected


def test_all_parts_together_have_a_limit(client: Any, hearing: Any) -> None:
    assign = running(client, hearing)
    say(client, assign.job, parts=(b"{}", b"{}", bytes(COMM_BYTES - 3)))
    assert refusal(client) == (7, "comm_too_large")
    say(client, assign.job, parts=(b"{}", b"{}", bytes(COMM_BYTES - 4)))
    assert len(hearing.until(CommMessage).parts[2]) == COMM_BYTES - 4


def test_an_unknown_job_and_one_that_is_over_have_no_kernel(client: Any, hearing: Any) -> None:
    say(client, "nope", session="nor this")
    assert refusal(client) == (7, "no_such_kernel")
    assign = running(client, hearing)
    hearing.finish(assign.attempt, hearing.print(assign.attempt, "x"))
    while not client.until(Update).job.terminal:
        pass
    say(client, assign.job)
    assert refusal(client) == (7, "no_such_kernel")


@pytest.mark.parametrize("session", [None, "train"])
def test_nobody_speaks_to_the_widgets_of_another_owner(
    client: Any, hearing: Any, plane: Any, session: str | None
) -> None:
    assign = running(client, hearing, session)

    def give_away() -> None:
        live = plane.service.shell.plane
        live.jobs[assign.job].owner = "somebody else"
        for each in live.sessions.values():
            each.owner = "somebody else"

    plane.do(give_away)
    say(client, assign.job, session=session)
    assert refusal(client) == (7, "no_such_kernel")


def test_a_worker_that_does_not_know_it_is_not_sent_it(client: Any, worker: Any) -> None:
    assign = running(client, worker)
    say(client, assign.job)
    assert refusal(client) == (7, "worker_away")
    end = worker.print(assign.attempt, "x")  # the connection is as good as before
    worker.finish(assign.attempt, end)
    while not client.until(Update).job.terminal:
        pass


def test_for_a_worker_that_is_behind_only_so_many_wait(client: Any, new_worker: Callable[..., Any], plane: Any) -> None:
    hearing = new_worker(comms=True)
    assign = running(client, hearing)
    link = plane.do(lambda: next(iter(plane.service.shell.links.values())))
    message = CommMessage(attempt=assign.attempt, kind="comm_msg", parts=(bytes(COMM_BYTES),))
    taken = plane.do(lambda: [link.offer(message) for _ in range(40)])  # nothing is written in between
    assert taken[0]
    assert not taken[-1]
    for _ in range(sum(taken)):
        assert hearing.until(CommMessage) == message
    say(client, assign.job, n=8)
    assert hearing.until(CommMessage).parts == PARTS


def test_a_worker_that_is_away_hears_nothing(client: Any, hearing: Any, plane: Any) -> None:
    assign = running(client, hearing)
    hearing.socket.close()
    until(lambda: plane.do(lambda: not plane.service.shell.links), "the worker is gone")
    say(client, assign.job)
    assert refusal(client) == (7, "worker_away")
